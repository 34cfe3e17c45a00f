"""Whatever bytes arrive: a value, or the one error that the door promises; never a crash, never a second meaning.

The corpus in `corpus/` is played first, file by file: what once broke, and what breaks readers elsewhere. Then come
made-up inputs and damaged good ones; SAMEKEY_EXAMPLES says how many of each, 20,000 with SAMEKEY_BUDGET=full.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from samekey import Guard
from samekey.core.boundary import Asks, Keyed, Kind, Opaque, Repeatable, parse_terms
from samekey.core.commands import Open
from samekey.core.envelope import decode, encode
from samekey.core.errors import KeyMalformed, KeyMissing, Misconfigured, PayloadRefused, RecordUnreadable, Refused
from samekey.core.fingerprint import Intent
from samekey.core.json_text import parse_json
from samekey.core.key import make_key
from samekey.core.layers import Front, Sight
from samekey.core.packing import pack, unpack
from samekey.core.record import Record
from samekey.core.refusal import decode_refusal, encode_refusal
from samekey.core.shapes import Unreadable
from samekey.drivers.mysql.address import parse_url as mysql_address
from samekey.drivers.postgres.address import parse_url as postgres_address
from samekey.drivers.redis.address import parse_url as redis_address
from samekey.drivers.sqlite import parse_url as sqlite_address
from samekey.guard.store_urls import check_address
from samekey.stores.redis._records import open_body, peeked
from samekey.stores.redis._records import record_of as redis_record
from tests.figures import at_most, figure

CORPUS = Path(__file__).parent / "corpus"
FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
EXAMPLES = int(os.environ.get("SAMEKEY_EXAMPLES", "20000" if FULL else "150"))

tried = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
result_max = 1 << 16


def a_record() -> Record:
    guard = Guard("memory://")
    guard.run("charge", lambda: {"paid": 7}, key="o-1", payload={"amount": 7})
    record = guard.peek("charge", "o-1")
    assert record is not None
    return record._replace(attempt="ab" * 16)


RECORD = a_record()
CLAIM = Open(RECORD.key, RECORD.attempt, Intent({"amount": 7}), RECORD.boundary, 30.0, False)
REDIS_VALUE = b"k1%010d%016d%b%016d%b" % (
    1,
    1,
    RECORD.attempt.encode(),
    1_000_000,
    open_body(CLAIM, CLAIM.attempt.encode()),
)
FRONT = Front("one life")
FRONT_WORD = FRONT._sealed(RECORD, 0, bytes(8) + pack(RECORD))


# -- the doors -------------------------------------------------------------------------------------------------------


def json_body(data: bytes) -> None:
    """Refused, or what the standard library reads, with a fingerprint that does not depend on the bytes' layout."""
    try:
        value = parse_json(data)
    except PayloadRefused:
        return
    # Looked at first: what json.loads rounded to an infinity cannot be written again.
    assert _rounded(data) or parse_json(json.dumps(json.loads(data), ensure_ascii=True)) == json.loads(data)
    assert Intent(value).fingerprint().digest == Intent(parse_json(data.decode())).fingerprint().digest


def envelope(data: bytes) -> None:
    """Unreadable, or a result that can be kept and read again."""
    try:
        value = decode(data)
    except Unreadable:
        return
    assert repr(decode(encode(value, max_bytes=result_max))) == repr(value)


def refusal(data: bytes) -> None:
    try:
        error = decode_refusal(data, allowed=(Refused,))
    except Unreadable:
        return
    assert isinstance(error, Refused)


def terms(data: bytes) -> None:
    """Unreadable, or terms that are written as they were read."""
    try:
        read = parse_terms(data.decode("utf-8", "replace"))
    except RecordUnreadable:
        return
    assert parse_terms(read.text()) == read
    assert all(seconds is None or 0 <= seconds < 1e9 for seconds in (read.window, read.believe_absent_after))
    assert {type(flag) for flag in (read.keeps_declines, read.asks, read.marked)} == {bool}
    assert isinstance(read.kind, Kind)


def key(data: bytes) -> None:
    """Malformed, or kept exactly as it was given."""
    text = data.decode("utf-8", "surrogateescape")
    try:
        made = make_key("charge", text, text)
    except (KeyMalformed, KeyMissing):
        return
    assert (made.text, made.tenant, len(made.digest)) == (text, text, 16)
    assert made.digest != make_key("charge", text).digest


def address(data: bytes) -> None:
    """Misconfigured, or an address whose name shows no password; by the guard and by every driver."""
    text = data.decode("utf-8", "replace")
    with suppress(Misconfigured):
        assert check_address(text) == text
    for parse_url in (mysql_address, postgres_address, redis_address, sqlite_address):
        with suppress(Misconfigured):
            parse_url(text)


def packed(data: bytes) -> None:
    """A record in one piece: unreadable, or read again as it was."""
    try:
        record = unpack(data, RECORD.key)
    except RecordUnreadable:
        return
    assert isinstance(record, Record)


def redis_value(data: bytes) -> None:
    for reads in (
        lambda: redis_record(data, RECORD.key, RECORD.key.digest, now=1_000_000, lost=0),
        lambda: redis_record(data, None, RECORD.key.digest, now=1_000_000, lost=0),
        lambda: peeked(data),
    ):
        with suppress(RecordUnreadable):
            reads()


def front_word(data: bytes) -> None:
    """What the seal does not vouch for says nothing."""
    record = FRONT.answer(RECORD.key, Sight(1.0, data))
    assert record is None or data == FRONT_WORD


DOORS: dict[str, Callable[[bytes], None]] = {
    "json": json_body,
    "envelope": envelope,
    "refusal": refusal,
    "terms": terms,
    "key": key,
    "address": address,
    "packed": packed,
    "redis": redis_value,
    "front": front_word,
}


def _rounded(data: bytes) -> bool:
    """A number that json.loads rounds and we do not."""
    return any(mark in data for mark in (b".", b"e", b"E"))


# -- what comes to them ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", sorted(CORPUS.rglob("*.bin")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_the_corpus(path):
    DOORS[path.parent.name](path.read_bytes())


def test_the_corpus_has_something_for_every_door():
    assert {path.parent.name for path in CORPUS.rglob("*.bin")} == set(DOORS)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.decimals(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
good: dict[str, st.SearchStrategy[bytes]] = {
    "json": values.map(lambda value: json.dumps(value, default=str).encode()),
    "envelope": values.map(lambda value: encode(value, max_bytes=1 << 20)),
    "refusal": st.text().map(lambda text: encode_refusal(Refused(text), max_bytes=1 << 20)),
    "terms": st.sampled_from(
        [Opaque(), Opaque(marked=True), Keyed(keeps_declines=True), Asks(print, believe_absent_after=5), Repeatable()]
    ).map(lambda boundary: boundary.terms.text().encode()),
    "key": st.text().map(lambda text: text.encode("utf-8", "surrogatepass")),
    "address": st.sampled_from(
        [
            b"sqlite:///keys.db",
            b"postgresql://a:b@c/d?e=f",
            b"memory://",
            b"redis://u:p@h:1,i:2?cluster=1",
            b"redis://h?front_ttl=5 postgresql://h/d",
            b"rediss://[::1]:6379/0?ssl_cert_reqs=none",
            b"unix:///run/redis.sock?db=1",
            b"mysql://u:p@h:3306/d?ssl_ca=ca.pem",
        ]
    ),
    "packed": st.just(pack(RECORD)),
    "redis": st.just(REDIS_VALUE),
    "front": st.just(FRONT_WORD),
}


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_whatever_arrives(door):
    """Bytes of any kind, good ones, and good ones with a part cut out, doubled or changed."""

    @tried
    @given(data=st.data())
    def arrives(data):
        whole = data.draw(st.binary(max_size=200) | good[door])
        start, end = sorted((data.draw(st.integers(0, len(whole))), data.draw(st.integers(0, len(whole)))))
        middle = data.draw(st.sampled_from([whole[start:end], b"", whole[start:end] * 2]) | st.binary(max_size=4))

        DOORS[door](whole[:start] + middle + whole[end:])

    arrives()
    figure(f"fuzzing: {door}", f"inputs that broke it: {at_most(EXAMPLES)}")


@pytest.mark.parametrize("parse_url", [mysql_address, postgres_address, redis_address, sqlite_address])
def test_what_is_not_utf8_behind_a_percent_sign_is_refused(parse_url):
    """Read as another character it would be another password, or another file."""
    scheme = parse_url.__module__.rpartition(".")[2].replace("psycopg", "postgresql").replace("pymysql", "mysql")
    with pytest.raises(Misconfigured, match="not UTF-8"):
        parse_url(f"{scheme}://u:%ff@h/db")
