"""What a record says of itself, and how it travels in one piece."""

from __future__ import annotations

import json

import pytest

from samekey.core.errors import RecordUnreadable
from samekey.core.key import make_key
from samekey.core.packing import LINE_KEPT_MAX_BYTES, _read, pack, unpack
from samekey.core.record import (
    ATTRIBUTE_MAX_CHARS,
    ATTRIBUTES_MAX,
    EVIDENCE_MAX,
    MOVES_MAX,
    Evidence,
    Move,
    Record,
    provider_key,
    unreadable,
)
from samekey.core.states import State

KEY = make_key("charge", "o-1", "acme")
RECORD = Record(
    KEY,
    State.IN_DOUBT,
    7,
    "me",
    b"\x01\x02",
    "1",
    (("amount", b"\x03"), ("to", b"\x04")),
    "asks marked",
    3,
    2,
    100.0,
    101.0,
    130.5,
    "boot",
    unsure=True,
    begun_at=102.0,
    first_sent_at=103.0,
    round=4,
    settled_by="you",
    settled_at=104.0,
    retain_until=105.0,
    result=b"\x00\n\xff",
    error="Timeout",
    asker="they",
    ask_until=106.0,
    attributes=(("region", "eu"), ("v", "1")),
    evidence=(
        Evidence(90.0, 5, "one", State.CLOSED, None, "no"),
        Evidence(91.0, 6, "two", State.COMPLETED, b"\x05", "yes"),
        Evidence(92.0, 6, "three", State.COMPLETED, b"\x06", "yes"),
    ),
    moves=(Move(80.0, 1, "", "started", "me", ""), Move(81.0, 1, "started", "in_doubt", "you", "é")),
    now=107.0,
    lease_left=2.0,
    ask_left=1.0,
    after_loss=True,
)


def test_a_record_comes_back_from_its_bytes_as_it_was():
    assert unpack(pack(RECORD), KEY) == RECORD
    bare = RECORD._replace(result=None, evidence=(), moves=(), attributes=(), fields=())
    assert unpack(pack(bare), KEY) == bare
    assert unpack(pack(RECORD._replace(result=b"")), KEY).result == b""


def test_a_packed_record_is_a_line_of_json_and_the_result_as_it_is():
    line, _, rest = pack(RECORD).partition(b"\n")

    assert rest == RECORD.result
    assert b'"\xc3\xa9"' in line  # as UTF-8, not escaped
    assert b", " not in line
    values = json.loads(line)
    assert values[0] == ["charge", "acme", "o-1"]
    assert values[1] == "in_doubt"
    assert len(values) == len(Record._fields)
    assert KEY.digest.hex() not in line.decode()


def test_a_line_that_was_read_before_brings_no_other_result_time_or_key():
    """What a line says is remembered; what stands beside it is not."""
    data = pack(RECORD)
    for result in (b"r", b"another", b""):
        whole = data.partition(b"\n")[0] + b"\n" + result
        assert unpack(whole, KEY, 700.0) == RECORD._replace(result=result, now=700.0)
        assert unpack(whole, KEY) == RECORD._replace(result=result)
        with pytest.raises(RecordUnreadable, match="another key"):
            unpack(whole, make_key("charge", "o-2", "acme"))


def test_a_long_line_is_read_and_not_remembered():
    long = RECORD._replace(evidence=tuple(one._replace(result=b"x" * LINE_KEPT_MAX_BYTES) for one in RECORD.evidence))
    before = _read.cache_info().currsize

    assert unpack(pack(long), KEY) == long
    assert _read.cache_info().currsize == before


@pytest.mark.parametrize(
    "other", [make_key("charge", "o-1"), make_key("charge", "o-2", "acme"), make_key("pay", "o-1")]
)
def test_a_record_of_another_key_is_unreadable(other):
    with pytest.raises(RecordUnreadable, match="another key"):
        unpack(pack(RECORD), other)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[1:],
        lambda data: data.replace(b"in_doubt", b"in_debt", 1),
        lambda data: data.replace(b'"0102"', b'"01x2"', 1),
        lambda data: data.replace(b"[", b'["more",', 1),
        lambda data: b"[]\n",
        lambda data: b"{}\n",
        lambda data: b"7\n",
        lambda data: data.replace(b'"closed"', b'"shut"', 1),
    ],
)
def test_a_damaged_record_is_unreadable(damage):
    with pytest.raises(RecordUnreadable):
        unpack(damage(pack(RECORD)), KEY)


def test_an_unreadable_row_says_whose_it_is_and_where_it_stands_as_far_as_that_can_be_read():
    whose, nobodys = unreadable(KEY, 12.5, ValueError("odd")), unreadable(None, None, ValueError("odd"))

    assert (whose.cursor, nobodys.cursor) == ((12.5, KEY.digest), None)
    assert str(whose).startswith(f"the record of {KEY} is damaged")
    assert str(nobodys).startswith("a record is damaged")


def test_what_a_record_says_of_itself():
    assert RECORD.fence == (7, "me")
    assert RECORD.happened == RECORD.evidence[1]  # the first that says so
    assert RECORD._replace(evidence=RECORD.evidence[:1]).happened is None
    assert RECORD.being_asked
    assert not RECORD._replace(ask_left=0.0).being_asked
    assert not RECORD._replace(asker=None).being_asked
    assert not RECORD._replace(state=State.STARTED).being_asked
    assert not RECORD.lease_live
    assert RECORD._replace(state=State.STARTED).lease_live
    assert not RECORD._replace(state=State.STARTED, lease_left=0.0).lease_live
    settled = {state for state in State if RECORD._replace(state=state).settled}
    assert settled == {State.COMPLETED, State.CLOSED}
    assert RECORD.changed(token=8, error=None) == RECORD._replace(token=8, error=None)


def test_what_nobody_said_is_nothing():
    bare = Record(*RECORD[:14])

    assert (bare.unsure, bare.after_loss) == (False, False)
    assert (bare.begun_at, bare.first_sent_at, bare.settled_by, bare.settled_at, bare.retain_until) == (None,) * 5
    assert (bare.result, bare.error, bare.asker) == (None,) * 3
    assert (bare.round, bare.ask_until, bare.now, bare.lease_left, bare.ask_left) == (0, 0.0, 0.0, 0.0, 0.0)
    assert (bare.attributes, bare.evidence, bare.moves) == ((), (), ())


@pytest.mark.parametrize(
    ("round", "label", "key"),
    [
        (0, "", "0a2389bd-9120-42f2-b0b9-0b1e4c7ac024"),
        (1, "", "f15aefe9-6c11-4da5-a3fd-bc58ddb6cda9"),
        (0, "refund", "64dbce34-1a35-4e38-ab9c-a9b7e8ce9925"),
    ],
)
def test_the_provider_key_is_frozen_for_ever(round, label, key):
    """If it changed with a deploy, a re-run would reach the provider as a new request."""
    assert provider_key(KEY, round, label) == RECORD._replace(round=round).provider_key(label) == key


def test_the_provider_key_is_a_uuid4_of_key_round_and_label():
    keys = {
        provider_key(one, round, label) for one in (KEY, make_key("a", "b")) for round in (0, 1) for label in ("", "1")
    }

    assert len(keys) == 8
    assert RECORD.provider_key() == provider_key(KEY, RECORD.round) == provider_key(KEY, RECORD.round, "")
    assert all(key[14] == "4" and len(key) == 36 for key in keys)


def test_the_bounds_are_those_of_the_docs():
    assert (MOVES_MAX, EVIDENCE_MAX, ATTRIBUTES_MAX, ATTRIBUTE_MAX_CHARS) == (16, 64, 16, 256)
