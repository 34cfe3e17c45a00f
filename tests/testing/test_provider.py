"""The provider's books are the judge, so they are judged first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from samekey.core.boundary import Absent, Conflicting, Happened
from samekey.testing.clock import ManualClock
from samekey.testing.provider import CardStolen, InsufficientFunds, LedgerProvider, OtherRequest


def test_every_call_without_a_key_is_a_charge():
    """Nobody can tell a retry from a second purchase, so the books show both."""
    provider = LedgerProvider()
    first = provider.charge(200, order="o-1")
    second = provider.charge(200, order="o-1")
    provider.charge(200, order="o-2")

    assert first.id != second.id
    assert (provider.count(), provider.count(order="o-1")) == (3, 2)
    assert provider.doubles() == {"o-1": 2}


def test_a_key_charges_once():
    provider = LedgerProvider()
    first = provider.charge(200, key="k", order="o-1")
    again = provider.charge(200, key="k", order="o-1")

    assert again == first
    assert provider.count(key="k") == 1
    assert provider.requests == 2
    assert provider.doubles() == {}


def test_a_provider_without_dedup_ignores_keys():
    provider = LedgerProvider(dedups=False)
    provider.charge(200, key="k", order="o-1")
    provider.charge(200, key="k", order="o-1")

    assert provider.doubles() == {"o-1": 2}


def test_a_key_with_another_request_is_refused():
    provider = LedgerProvider()
    provider.charge(200, key="k", order="o-1")

    with pytest.raises(OtherRequest):
        provider.charge(500, key="k", order="o-1")
    assert provider.count() == 1


def test_a_lost_answer_is_a_charge_all_the_same():
    provider = LedgerProvider(lose_answers=1)
    with pytest.raises(TimeoutError):
        provider.charge(200, key="k", order="o-1")

    assert provider.count(order="o-1") == 1
    assert provider.charge(200, key="k", order="o-1").id == "ch_1"
    assert provider.doubles() == {}


def test_a_soft_decline_ends_with_a_top_up():
    """Nothing is charged while it declines, with a key or without."""
    provider = LedgerProvider(funds=100)
    for key in (None, "k"):
        with pytest.raises(InsufficientFunds):
            provider.charge(200, key=key, order="o-1")
    assert provider.count() == 0

    provider.top_up(100)

    assert provider.charge(200, key="k", order="o-1").amount == 200
    with pytest.raises(InsufficientFunds, match="1 asked, 0 there"):
        provider.charge(1, order="o-2")


def test_a_kept_decline_is_replayed_under_its_key():
    """Until the caller comes with a new key, which is what the next round is for."""
    provider = LedgerProvider(funds=100, keeps_declines=True)
    with pytest.raises(InsufficientFunds):
        provider.charge(200, key="k", order="o-1")
    provider.top_up(1000)

    with pytest.raises(InsufficientFunds):
        provider.charge(200, key="k", order="o-1")
    assert provider.charge(200, key="k2", order="o-1").amount == 200


def test_a_hard_decline_is_for_good():
    provider = LedgerProvider(stolen={"o-1"})
    for key in ("k", "k2", None):
        with pytest.raises(CardStolen):
            provider.charge(200, key=key, order="o-1")

    assert provider.count() == 0
    assert provider.charge(200, order="o-2").order == "o-2"


def test_a_key_is_forgotten_after_its_window():
    clock = ManualClock()
    provider = LedgerProvider(clock=clock, forgets_after=24 * 3600)
    provider.charge(200, key="k", order="o-1")
    clock.advance(24 * 3600 - 1)
    provider.charge(200, key="k", order="o-1")
    assert provider.doubles() == {}

    clock.advance(1)
    provider.charge(200, key="k", order="o-1")

    assert provider.doubles() == {"o-1": 2}


def test_an_accepted_request_lands_late():
    """The caller timed out, a lookup finds nothing - and then it lands."""
    clock = ManualClock()
    provider = LedgerProvider(clock=clock, accept_then_late=1, late_seconds=60)
    with pytest.raises(TimeoutError):
        provider.charge(200, reference="r", order="o-1")
    assert provider.find("r") is None
    assert (provider.count(), len(provider.on_the_way)) == (0, 1)

    provider.charge(200, reference="r", order="o-1")  # who believed the absence
    assert provider.doubles() == {"o-1": 2}

    clock.advance(60)
    assert (provider.count(order="o-1"), provider.on_the_way) == (2, ())


def test_a_late_request_is_known_by_its_key():
    clock = ManualClock()
    provider = LedgerProvider(clock=clock, accept_then_late=1, late_seconds=60)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            provider.charge(200, key="k", order="o-1")
    clock.advance(60)

    assert provider.charge(200, key="k", order="o-1").id == "ch_1"
    assert provider.doubles() == {}


def test_it_can_be_asked_by_reference_or_key():
    provider = LedgerProvider()
    charge = provider.charge(200, key="k", reference="r", order="o-1")

    assert provider.find("r") == provider.find("k") == charge
    assert provider.find("other") is None
    assert provider.verdict("r") == Happened("ch_1")
    assert provider.verdict("other") == Absent()
    assert provider.lookups == 5


def test_it_says_so_when_it_has_it_twice():
    provider = LedgerProvider()
    provider.charge(200, reference="r", order="o-1")
    provider.charge(200, reference="r", order="o-1")

    assert provider.verdict("r") == Conflicting(("ch_1", "ch_2"))
    assert provider.count(reference="r") == 2


def test_a_lookup_may_lag_behind_the_books():
    """By seconds, or by calls: the charge is there, and the search does not show it yet."""
    clock = ManualClock()
    by_time = LedgerProvider(clock=clock, stale_seconds=10)
    by_time.charge(200, reference="r")
    assert by_time.find("r") is None
    clock.advance(10)
    assert by_time.find("r") is not None

    by_calls = LedgerProvider(stale_calls=2)
    by_calls.charge(200, reference="r")
    assert [by_calls.find("r") is not None for _ in range(4)] == [False, False, True, True]


def test_slowness_comes_before_the_books():
    """While the request travels nothing is charged."""
    seen: list[tuple[float, int]] = []
    provider = LedgerProvider(slow=1.5, sleep=lambda seconds: seen.append((seconds, provider.count())))

    provider.charge(200, order="o-1")

    assert seen == [(1.5, 0)]
    assert provider.count() == 1


def test_any_thread_may_charge():
    """Two hundred at once: a key is charged once, and no charge is lost from the books."""
    provider = LedgerProvider()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: provider.charge(1, key="k" if n % 2 else None, order=str(n % 2)), range(200)))

    assert (provider.count(key="k"), provider.count(order="0")) == (1, 100)
    assert len({one.id for one in provider.charges}) == 101
