"""A front before a durable store, step by step: what it is asked, what it is told, and what it may answer."""

from __future__ import annotations

from typing import Any

import pytest

from samekey.core.commands import Free, Open, Read, Redact, Renew, Settle
from samekey.core.fingerprint import Intent
from samekey.core.key import make_key
from samekey.core.layers import (
    FRONT_TTL_SECONDS,
    LINGERS_MAX,
    Front,
    FrontTime,
    Linger,
    Look,
    MayStillReplay,
    Put,
    Sight,
    order_of,
)
from samekey.core.record import Record
from samekey.core.states import Role, State

KEY = make_key("charge", "o-1")
FRONT = Front("life-1", 60.0)
OPEN = Open(KEY, "me", Intent({}), "opaque", 30.0, False)
HELD = Record(KEY, State.STARTED, 7, "you", b"", "1", (), "opaque", 3, 1, 1.0, 1.0, 1.0, "", now=500.0, lease_left=20.0)
DONE = HELD._replace(state=State.COMPLETED, result=b"r", version=4, lease_left=0.0)
DOUBT = HELD._replace(state=State.IN_DOUBT)


def play(steps: Any, *script: tuple[Any, Any]) -> Any:
    reply: Any = None
    for wanted, answer in script:
        try:
            asked = steps.send(reply)
        except Exception as early:  # also a StopIteration: it ended
            raise AssertionError(f"{early!r} instead of {wanted}") from early
        assert asked == wanted
        reply = answer
    try:
        more = steps.send(reply)
    except StopIteration as stop:
        return stop.value
    raise AssertionError(f"one more: {more}")


def entry_of(record: Record, known_at: float = 100.0, front: Front = FRONT) -> bytes:
    """The entry that the front is told about a record."""
    steps = front.steps(Read(record.key))
    assert next(steps) == FrontTime()
    assert steps.send(known_at) == Read(record.key)
    put = steps.send(record)
    assert isinstance(put, Put)
    return put.entry


def buried(record: Record) -> bytes:
    return entry_of(record._replace(state=State.IN_DOUBT))


# -- what it may answer ------------------------------------------------------------------------------------------


def test_a_settled_record_is_answered_by_the_front_alone():
    sight = Sight(130.0, entry_of(DONE))
    answered = play(FRONT.steps(OPEN), (Look(KEY.digest), sight))

    assert answered == DONE._replace(now=130.0)


def test_a_held_record_is_shown_with_what_is_left_of_its_lease():
    entry = entry_of(HELD, known_at=100.0)

    assert FRONT.answer(KEY, Sight(105.0, entry)) == HELD._replace(now=105.0, lease_left=15.0)
    assert FRONT.answer(KEY, Sight(90.0, entry)) is None  # the front's clock was set back: nobody knows how old it is
    almost = FRONT.answer(KEY, Sight(119.5, entry))
    assert almost is not None
    assert almost.lease_left == 0.5
    assert FRONT.answer(KEY, Sight(120.0, entry)) is None  # over


def test_our_own_claim_comes_from_the_durable_store():
    mine = HELD._replace(attempt="me")
    told = Put(KEY.digest, entry_of(mine, 101.0), 161.0)
    steps = FRONT.steps(OPEN)

    assert play(steps, (Look(KEY.digest), Sight(101.0, entry_of(mine))), (OPEN, mine), (told, True)) is mine


def test_no_word_is_believed_past_front_ttl_whoever_kept_it():
    """The front forgets in time; but it may have been told to keep what it has, or its clock was set back."""
    entry = entry_of(DONE, known_at=100.0)

    assert FRONT.answer(KEY, Sight(159.9, entry)) is not None
    assert FRONT.answer(KEY, Sight(160.0, entry)) is None
    assert FRONT.answer(KEY, Sight(99.9, entry)) is None


def test_a_word_that_is_foreign_damaged_or_a_tombstone_says_nothing():
    entry = entry_of(DONE)
    other = Front("life-2", 60.0)
    for said in (None, b"", buried(DONE), entry_of(DONE, front=other), entry[:-1], entry[:-1] + b"x", b"x" + entry[1:]):
        assert FRONT.answer(KEY, Sight(100.0, said)) is None
    for length in range(1, len(entry)):
        assert FRONT.answer(KEY, Sight(100.0, entry[:length])) is None
    assert FRONT.answer(make_key("charge", "o-2"), Sight(100.0, entry)) is None
    assert FRONT.answer(KEY, Sight(100.0, entry)) is not None


def test_what_is_under_a_good_seal_and_no_record_says_nothing():
    strange = FRONT._sealed(DONE, 0, b"12345678not a record")

    assert FRONT.answer(KEY, Sight(100.0, strange)) is None


def test_a_word_is_frozen():
    """Fronts are shared by versions: a new one must understand, or at least refuse, an old one's words."""
    entry = entry_of(DONE)

    assert entry[:19] == b"f1" + (7).to_bytes(8, "big") + (4).to_bytes(8, "big") + b"\x00"
    assert buried(DONE)[19:].hex() == "4f814c3c05e6dc12706849ad2d471a68"
    assert entry[35:43] == (100_000_000).to_bytes(8, "big")
    assert entry_of(DONE, front=Front("life-1", 60.0)) == entry
    assert Front("life-1")._seal(KEY, b"", b"").hex() == "dad9c54fbfecf9c35d331e3d9309a765"
    assert FRONT_TTL_SECONDS == 60.0


# -- what it is asked and told -----------------------------------------------------------------------------------


def test_a_new_key_is_claimed_in_the_durable_store_and_told():
    told = Put(KEY.digest, entry_of(HELD, 100.0), 160.0)

    assert play(FRONT.steps(OPEN), (Look(KEY.digest), Sight(100.0, None, True)), (OPEN, HELD), (told, True)) is HELD
    assert play(FRONT.steps(OPEN), (Look(KEY.digest), None), (OPEN, HELD)) is HELD  # the front is away
    assert not Sight(100.0, None).marked  # unless it says so


def test_somebodys_mark_is_waited_for_so_many_times():
    mark = (Look(KEY.digest), Sight(100.0, b""))
    linger = (Linger(KEY.digest), None)
    found = (Look(KEY.digest), Sight(130.0, entry_of(DONE)))
    assert play(FRONT.steps(OPEN), mark, linger, mark, linger, found) == DONE._replace(now=130.0)
    told = Put(KEY.digest, entry_of(HELD, 100.0), 160.0)
    patience = [mark, linger] * LINGERS_MAX
    assert play(FRONT.steps(OPEN), *patience, (OPEN, HELD), (told, True)) is HELD
    assert LINGERS_MAX == 20


def test_an_answer_is_kept_no_longer_than_the_record():
    soon = DONE._replace(retain_until=530.0)
    late = DONE._replace(retain_until=5000.0)
    command = Settle(HELD, Role.HOLDER, State.COMPLETED, "me")
    for record, until in ((soon, 130.0), (late, 160.0), (DONE, 160.0)):
        told = Put(KEY.digest, entry_of(record, 100.0), until)
        assert play(FRONT.steps(command), (FrontTime(), 100.0), (command, record), (told, True)) is record


def test_what_cannot_be_answered_is_buried():
    command = Settle(HELD, Role.HOLDER, State.IN_DOUBT, "me")
    for record in (DOUBT, HELD._replace(lease_left=0.0), HELD._replace(state=State.RELEASED)):
        told = Put(KEY.digest, buried(record), 160.0)
        assert play(FRONT.steps(command), (FrontTime(), 100.0), (command, record), (told, True)) is record
        assert buried(record)[18] == 1
        assert len(buried(record)) == 35


def test_a_front_that_never_spoke_or_a_record_that_is_gone_is_told_nothing():
    command = Settle(HELD, Role.HOLDER, State.COMPLETED, "me")
    assert play(FRONT.steps(command), (FrontTime(), None), (command, DONE)) is DONE
    assert play(FRONT.steps(command), (FrontTime(), 100.0), (command, None)) is None


def test_a_hold_that_lasts_is_dated_by_a_fresh_look_at_the_fronts_clock():
    command = Renew(HELD, 30.0)
    told = Put(KEY.digest, entry_of(HELD, 150.0), 210.0)
    renewing = [(FrontTime(), 100.0), (Look(KEY.digest), Sight(150.0, b"")), (command, HELD), (told, True)]
    assert play(FRONT.steps(command), *renewing) is HELD
    away = [(FrontTime(), 100.0), (Look(KEY.digest), None), (command, HELD)]
    assert play(FRONT.steps(command), *away) is HELD


def test_a_word_goes_only_over_an_older_one():
    by_order = [
        entry_of(DONE), buried(DONE), entry_of(DONE._replace(version=5)), buried(DONE._replace(version=(1 << 63) - 1)),
        entry_of(DONE._replace(token=8, version=1)),
    ]  # fmt: skip
    orders = [order_of(entry) for entry in by_order]

    assert orders == sorted(orders)
    assert len(set(orders)) == len(orders)
    assert order_of(b"") < orders[0]


# -- taking back -------------------------------------------------------------------------------------------------

LAST = buried(DONE._replace(version=(1 << 63) - 1))


@pytest.mark.parametrize("command", [Free(DONE, "ann", "why"), Redact(DONE, "ann", "why")])
def test_what_is_taken_back_is_buried_before_and_after(command):
    look = Look(KEY.digest)
    script = (
        (look, Sight(100.0, None)), (Put(KEY.digest, LAST, 160.0), True), (command, None), (look, Sight(101.0, None)),
        (Put(KEY.digest, LAST, 161.0), True),
    )  # fmt: skip

    assert play(FRONT.steps(command), *script) is None


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((True, False), (True, True)),
        ((True, True), (True, False)),
        ((False, None), (True, True)),
        ((True, True), (False, None)),
    ],
)
def test_whoever_cannot_tell_the_front_both_times_says_so(first, second):
    command = Free(DONE, "ann", "why")
    script: list[tuple[Any, Any]] = []
    for there, told in (first, second):
        script.append((Look(KEY.digest), Sight(100.0, None) if there else None))
        if there:
            script.append((Put(KEY.digest, LAST, 160.0), told))
        if len(script) <= 2 and command not in [wanted for wanted, _ in script]:
            script.append((command, None))
    with pytest.raises(MayStillReplay, match="for up to 60 s"):
        play(FRONT.steps(command), *script)


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (Free(DONE, "ann", "why"), DONE._replace(token=8)),
        (Redact(DONE, "ann", "why"), DONE._replace(token=8)),
        (Redact(DONE, "ann", "why"), HELD),
        (Redact(DONE, "ann", "why"), None),
    ],
)
def test_what_the_durable_store_did_not_do_is_not_called_done(command, reply):
    """With the front away, too: whoever asked to forget an answer must not hear that it is forgotten."""
    assert play(FRONT.steps(command), (Look(KEY.digest), None), (command, reply), (Look(KEY.digest), None)) == reply


def test_a_copy_that_the_durable_store_knows_better_about_is_corrected():
    told = Put(KEY.digest, entry_of(DONE, 100.0), 160.0)

    play(FRONT.corrected(HELD, HELD, 100.0))
    play(FRONT.corrected(HELD, DONE, 100.0), (told, True))
    play(FRONT.corrected(DONE, None, 100.0), (Put(KEY.digest, LAST, 160.0), True))
