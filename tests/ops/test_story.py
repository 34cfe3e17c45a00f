"""The story of a key: every state is told, and what it says about the next caller is what the core then does."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

from samekey import (
    Absent,
    Asks,
    Atomic,
    Conflicting,
    Happened,
    InDoubt,
    Keyed,
    Opaque,
    Repeatable,
    StillUnknown,
    current,
)
from samekey.core.commands import Ask, Settle, Testify
from samekey.core.record import Move
from samekey.core.states import Role, State
from samekey.ops import Ops
from samekey.ops.story import Resolution, Whose, explain, span, when, whose_turn
from samekey.stores.memory import MemoryStore
from tests.ops.scene import LEASE_SECONDS, Clock, Scene


@pytest.fixture
def clock():
    return Clock(1_700_000_000.0)  # 2023-11-14T22:13:20Z


@pytest.fixture
def scene(clock):
    return Scene(MemoryStore(clock))


def told(record):
    return "\n".join(explain(record).lines())


# -- every state -----------------------------------------------------------------------------------------------------


def test_a_doubt_names_who_when_why_whose_turn_and_the_exact_line(scene, clock):
    record = scene.in_doubt(tenant="acme")
    clock.advance(7500)
    text = told(scene.peek(tenant="acme"))

    assert "charge o-1 (tenant acme)" in text
    assert "in_doubt for 2 h 5 min: it is unknown" in text
    assert f"claimed by attempt {record.attempt[:8]}, token {record.token}, under opaque" in text
    assert "2023-11-14T22:13:20Z" in text
    assert "2 h 5 min ago" in text
    assert f"put in doubt by attempt {record.attempt[:8]} (TimeoutError)" in text
    assert "whose turn: a person" in text
    assert "truth: the provider" in text
    assert record.provider_key() in text
    assert "samekey resolve charge o-1 --happened --why 'how you know' --seen " in text
    assert "--refused" in text
    assert "--not-done" in text
    assert "--tenant acme" in text


def test_a_living_hold_says_until_when_and_asks_for_nothing(scene):
    record = scene.held()
    text = told(record)

    assert "an attempt holds the key" in text
    assert "whose turn: the holder" in text
    assert "alive until 2023-11-14T22:13:50Z" in text
    assert "nothing: wait for the holder" in text
    assert "samekey resolve" not in text


def test_a_hold_past_its_lease_counts_as_a_doubt(scene, clock):
    scene.held()
    clock.advance(LEASE_SECONDS + 1)
    text = told(scene.peek())

    assert "the holder is gone" in text
    assert "its lease is over, so it counts as in doubt" in text
    assert "whose turn: a person" in text
    assert "samekey resolve charge o-1 --not-done" in text


def test_a_completed_key_replays_until_it_is_forgotten(scene):
    text = told(scene.completed())

    assert "the effect happened" in text
    assert "completed, says attempt" in text
    assert "gets the kept result, until 2023-11-15T22:13:20Z" in text
    assert "nothing: it is over" in text


def test_a_completed_key_without_a_result_says_so(scene):
    ops = Ops(scene.store)
    text = told(ops.resolve(scene.in_doubt(), Resolution.HAPPENED, who="ann", why="on the statement"))

    assert "its result was not kept" in text
    assert "completed, says ann (operator) (on the statement)" in text


def test_a_closed_key_replays_its_refusal(scene):
    text = told(scene.closed())

    assert "refused for good" in text
    assert "closed, says attempt" in text
    assert "(Refused)" in text
    assert "gets the refusal, until" in text


def test_a_released_key_is_the_next_callers(scene):
    text = told(scene.released())

    assert "known not to have happened" in text
    assert "released, says attempt" in text
    assert "whose turn: the next caller: the next call with this key runs" in text
    assert "call again with the same key" in text
    assert "--happened" in text
    assert "--not-done" not in text


def test_a_take_over_is_told(scene, clock):
    scene.in_doubt(boundary=Keyed())
    clock.advance(5)
    scene.run("o-1", lambda: 1, boundary=Keyed())

    assert "taken over by attempt" in told(scene.peek())
    assert "out of in_doubt" in told(scene.peek())


def test_the_providers_word_is_told_as_such(scene):
    boundary = Asks(lambda record: Happened("found"))
    scene.in_doubt(boundary=boundary)
    scene.run("o-1", pytest.fail, boundary=boundary)

    assert "completed, says the provider, asked by attempt" in told(scene.peek())


def test_a_mark_is_told(scene):
    def effect():
        current().sending()
        raise TimeoutError

    with pytest.raises(TimeoutError):
        scene.run("o-1", effect, boundary=Opaque(marked=True))
    text = told(scene.peek())

    assert "marked that it now sends" in text
    assert "the holder marks before it sends" in text


def test_moves_no_longer_kept_are_admitted(scene):
    record = scene.completed()
    text = told(record._replace(moves=record.moves[1:]))

    assert "its first moves are no longer kept" in text


def test_the_boundary_of_atomic_lets_the_database_win(scene):
    record = scene.in_doubt()._replace(boundary=Atomic("session").terms.text())

    assert "truth: the database" in told(record)
    assert "look in the database" in told(record)


# -- evidence ----------------------------------------------------------------------------------------------------------


def late(scene, record, attempt="a" * 32):
    """An attempt that comes too late says that it did it."""
    scene.store.carry_out(Testify(record.key, attempt, record.token, State.COMPLETED, None, "settled too late"))
    return scene.peek()


def test_late_evidence_is_told_and_only_happened_is_offered(scene):
    text = told(late(scene, scene.in_doubt()))

    assert "evidence: attempt aaaaaaaa reports completed (settled too late)" in text
    assert "the next call adopts that" in text
    assert "--happened" in text
    assert "--not-done" not in text
    assert "--refused" not in text


def test_two_attempts_that_did_it_smell_of_a_double(scene):
    text = told(late(scene, scene.completed()))

    assert "2 attempts report that they did it" in text
    assert "refund" in text


def test_one_attempt_that_says_so_after_an_operator_said_it_is_no_double(scene):
    record = scene.in_doubt()
    Ops(scene.store).resolve(record, Resolution.HAPPENED, who="ann", why="seen")

    assert "double" not in told(late(scene, record, attempt=record.attempt))


def test_a_refusal_against_the_evidence_is_a_warning(scene):
    assert "it is closed, yet attempt aaaaaaaa reports that it happened" in told(late(scene, scene.closed()))


def test_a_provider_that_has_it_twice_needs_a_person(scene):
    boundary = Asks(lambda record: Conflicting(("a", "b")))
    scene.in_doubt(boundary=boundary)
    with pytest.raises(InDoubt):
        scene.run("o-1", pytest.fail, boundary=boundary)
    text = told(scene.peek())

    assert "the provider has it 2 times" in text
    assert "the double effect is there already" in text
    assert "whose turn: a person" in text


# -- what is said about the next caller is what the core does ---------------------------------------------------------


BOUNDARIES: dict[str, Any] = {
    "opaque": Opaque(),
    "opaque marked": Opaque(marked=True),
    "keyed": Keyed(window=3600),
    "keyed marked": Keyed(window=3600, marked=True),
    "keyed with lookup": Keyed(window=3600, lookup=lambda record: Happened("found")),
    "asks: happened": Asks(lambda record: Happened("found")),
    "asks: absent": Asks(lambda record: Absent()),
    "asks: absent, believed": Asks(lambda record: Absent(), believe_absent_after=60),
    "asks: unknown": Asks(lambda record: StillUnknown()),
    "repeatable": Repeatable(),
}


@pytest.mark.parametrize("boundary", BOUNDARIES.values(), ids=BOUNDARIES)
@pytest.mark.parametrize("age", [LEASE_SECONDS + 1, 7200])
@pytest.mark.parametrize("begin", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_the_next_caller_does_what_was_said(scene, clock, boundary, age, begin, written):
    scene.held(boundary=boundary)
    if begin and boundary.terms.marked:
        scene.holds[0].sending()
    clock.advance(age)
    if written and scene.peek().state is State.STARTED:  # somebody has already put it in doubt
        scene.store.carry_out(Settle(scene.peek(), Role.PASSER_BY, State.IN_DOUBT, by="b" * 32))
    turn = whose_turn(scene.peek())
    ran = []

    other = Scene(scene.store).guard  # of another process: this one's would wait for its own hold

    try:
        answer = other.run("charge", lambda: ran.append(1), key="o-1", payload={"amount": 200}, boundary=boundary)
    except InDoubt:
        answer = None
    if turn.whose is Whose.PERSON:
        assert answer is None
        assert not ran
    else:
        assert turn.whose is Whose.CALLER
        asked = "asks the provider" in turn.says
        assert ran or asked  # without asking, it runs
        assert asked or answer is not None


def test_somebody_who_is_asking_is_named(scene):
    boundary = Asks(lambda record: StillUnknown())
    record = scene.in_doubt(boundary=boundary)
    scene.store.carry_out(Ask(record, asker="c" * 32, lease_seconds=30))

    turn = whose_turn(scene.peek())
    assert turn.whose is Whose.ASKER
    assert "cccccccc" in turn.says


# -- small things -----------------------------------------------------------------------------------------------------


def test_the_resolve_line_survives_the_shell(scene):
    record = scene.in_doubt("--it's; rm -rf $HOME", name="pay")
    line = next(one for one in explain(record, store="sqlite:////tmp/a b.db").next if "--happened" in one)
    words = shlex.split(line)

    assert words[-3:] == ["--", "pay", "--it's; rm -rf $HOME"]
    assert "sqlite:////tmp/a b.db" in words


def test_a_clock_gone_mad_does_not_hide_the_story(scene):
    record = scene.completed()
    mad = record._replace(moves=(Move(1e300, 1, "", "started", "x", ""), *record.moves))

    assert "@1e+300" in told(mad)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86400, "1 d"),
        (100000, "1 d 3 h"),
    ],
)
def test_a_span_is_told_in_its_two_largest_units(seconds, text):
    assert span(seconds) == text


def test_a_moment_is_told_in_utc():
    assert when(0) == "1970-01-01T00:00:00Z"
