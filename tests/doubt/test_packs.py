"""Provider packs: what they say, what they do not, and what follows from it."""

from __future__ import annotations

from datetime import date, timedelta

import pytest

from samekey import NotDone, Refused
from samekey.core.errors import Misconfigured
from samekey.doubt.pace import Bucket, parse_rate
from samekey.doubt.pack import OutcomeUnknown, built_in, load_pack
from tests.doubt.helpers import Clock


@pytest.mark.parametrize("name", built_in())
def test_every_built_in_pack_is_dated_sourced_and_has_a_statement_map(name):
    pack = load_pack(name)

    assert pack.name == name
    assert date(2026, 1, 1) < pack.read
    assert pack.header
    assert pack.window_seconds is not None
    assert {"ref", "amount", "at", "currency"} <= set(pack.statement().columns)
    assert pack.keyed().terms.window == pack.window_seconds - 30


def test_stripe_keeps_declines_and_adyen_does_not_say():
    assert load_pack("stripe").keyed().terms.keeps_declines
    assert not load_pack("adyen").keyed().terms.keeps_declines


@pytest.mark.parametrize(
    ("status", "code", "kind", "declined"),
    [
        (402, "card_declined", NotDone, True),
        (429, "", NotDone, False),
        (401, "", NotDone, False),
        (500, "", OutcomeUnknown, False),
        (503, "", OutcomeUnknown, False),
        (409, "idempotency_key_in_use", OutcomeUnknown, False),
        (404, "", Refused, True),
        (418, "", OutcomeUnknown, False),
    ],
)
def test_an_answer_of_stripe_means(status, code, kind, declined):
    """A kept 500 is unknown, never NotDone."""
    error = load_pack("stripe").classify(status, {"error": {"code": code}})

    assert type(error) is kind
    assert getattr(error, "declined", False) is declined
    assert load_pack("stripe").classify(200, {}) is None


def test_a_concurrent_request_at_adyen_is_unknown():
    assert isinstance(load_pack("adyen").classify(422, {"errorCode": "704"}), OutcomeUnknown)


def test_an_absence_is_believed_no_sooner_than_a_lookup_may_lag():
    stripe = load_pack("stripe")
    with pytest.raises(Misconfigured, match="may lag"):
        stripe.asks(lambda record: None, believe_absent_after=60)
    assert stripe.asks(lambda record: None, believe_absent_after=3600).terms.believe_absent_after == 3600


def test_it_warns_of_retries_that_outlive_the_window_and_of_old_facts():
    stripe = load_pack("stripe")

    assert list(stripe.warnings(retries_seconds=26 * 3600)) == [
        "your retries last 26 h, and stripe forgets a key after 24 h: "
        "a later retry charges again where no record stops it"
    ]
    assert list(stripe.warnings(today=stripe.read)) == []
    assert "look whether" in next(stripe.warnings(today=stripe.read + timedelta(days=200)))


@pytest.mark.parametrize(
    "text",
    [
        "no toml",
        "[pack]\nname = 'x'\n",
        "[pack]\nname = 'x'\nread = 2026-01-01\n[key]\nheader = 'K'\n",
        "[pack]\nname = 'x'\nread = 2026-01-01\n[statement.a]\nref = 'r'\n",
        "[pack]\nname = 'x'\nread = 2026-01-01\n[statement.a]\nref='r'\namount='a'\nat='t'\ncurrency='EUR'\n"
        "types={a='b'}\n",
    ],
)
def test_a_pack_that_is_not_whole_is_refused(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(Misconfigured):
        load_pack(str(path)).statement()


def test_an_unknown_pack_is_one_sentence():
    with pytest.raises(Misconfigured, match="built in are: adyen, stripe"):
        load_pack("paypal")
    with pytest.raises(Misconfigured, match="no file"):
        load_pack("./none.toml")


def test_a_bucket_gives_so_many_a_second_and_pauses():
    clock = Clock()
    bucket = Bucket(parse_rate("2/s"), clock)

    assert [bucket.take() for _ in range(3)] == [True, True, False]
    clock.passes(0.5)
    assert [bucket.take(), bucket.take()] == [True, False]
    bucket.pause(10)
    clock.passes(9)
    assert not bucket.take()
    assert bucket.wait_seconds() == pytest.approx(1.0)
    clock.passes(2)
    assert bucket.take()


@pytest.mark.parametrize("text", ["fast", "0/s", "99999/s", "1/day"])
def test_what_is_no_rate_is_refused(text):
    with pytest.raises(Misconfigured):
        parse_rate(text)
