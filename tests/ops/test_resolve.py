"""An operator's word: fenced, audited, never over a living holder, never against the evidence."""

from __future__ import annotations

from typing import Any

import pytest

from samekey import Asks, Keyed, Misconfigured, Opaque, Refused, ResultNotKept, State, StillUnknown
from samekey.core.commands import Read, Renew, Settle, Take, Testify
from samekey.core.states import Role
from samekey.ops import CannotResolve, MovedOn, NoSuchKey, Ops
from samekey.ops.story import Resolution, mark
from samekey.stores.memory import MemoryStore
from samekey.stores.sqlite import SqliteStore
from tests.ops.scene import LEASE_SECONDS, Clock, Scene

WHO: dict[str, Any] = {"who": "ann", "why": "on the statement"}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def scene(request, clock, tmp_path):
    store = (
        MemoryStore(clock)
        if request.param == "memory"
        else SqliteStore(tmp_path / "keys.db", synchronous="normal", clock=clock)
    )
    yield Scene(store)
    store.close()


@pytest.fixture
def ops(scene):
    return Ops(scene.store)


def test_it_happened_and_the_result_is_replayed(scene, ops):
    after = ops.resolve(scene.in_doubt(), Resolution.HAPPENED, result={"id": "ch_1"}, **WHO)

    assert after.state is State.COMPLETED
    assert scene.guard.run("charge", pytest.fail, key="o-1", payload={"amount": 200}).result == {"id": "ch_1"}


def test_none_is_a_result_like_any_other(scene, ops):
    ops.resolve(scene.in_doubt(), Resolution.HAPPENED, result=None, **WHO)

    assert scene.guard.run("charge", pytest.fail, key="o-1", payload={"amount": 200}).result is None


def test_without_a_result_callers_learn_that_it_happened(scene, ops):
    ops.resolve(scene.in_doubt(), Resolution.HAPPENED, **WHO)

    with pytest.raises(ResultNotKept, match="resolved by an operator"):
        scene.guard.run("charge", pytest.fail, key="o-1", payload={"amount": 200})


def test_refused_is_replayed_without_the_operators_name_or_reason(scene, ops):
    """The refusal reaches customers; who said so and why is for the audit log."""
    ops.resolve(scene.in_doubt(), Resolution.REFUSED, **WHO)

    with pytest.raises(Refused) as refusal:
        scene.guard.run("charge", pytest.fail, key="o-1", payload={"amount": 200})
    assert "ann" not in str(refusal.value)
    assert "statement" not in str(refusal.value)


def test_not_done_lets_it_run_again(scene, ops):
    ops.resolve(scene.in_doubt(), Resolution.NOT_DONE, **WHO)

    assert scene.guard.run("charge", lambda: "paid now", key="o-1", payload={"amount": 200}).result == "paid now"


def test_every_word_is_in_the_audit_log_with_name_and_reason(scene, ops):
    ops.resolve(scene.in_doubt(), Resolution.NOT_DONE, **WHO)

    (entry,) = scene.store.audit(10)
    assert (entry.who, entry.why, entry.action) == ("ann", "on the statement", "resolve")
    assert (entry.operation, entry.text, entry.before, entry.after) == ("charge", "o-1", "in_doubt", "released")


@pytest.mark.parametrize("missing", ["who", "why"])
@pytest.mark.parametrize("given", ["", "  ", "x" * 501, "esc\x1b[2J", "broken \udcff"])
def test_a_name_and_a_reason_are_required_and_printable(scene, ops, missing, given):
    record = scene.in_doubt()

    with pytest.raises(Misconfigured):
        ops.resolve(record, Resolution.HAPPENED, **{**WHO, missing: given})
    assert scene.peek() == record


def test_a_living_holder_is_never_spoken_over(scene, ops):
    record = scene.held()

    with pytest.raises(CannotResolve, match=r"the holder is alive until \d{4}-\d\d-\d\dT"):
        ops.resolve(record, Resolution.NOT_DONE, **WHO)
    assert scene.peek() == record


def test_a_holder_that_renewed_after_the_look_is_left_alone(scene, ops, clock):
    record = scene.held()
    clock.advance(LEASE_SECONDS - 1)
    stale = scene.peek()._replace(lease_left=-1.0)  # as it would have looked a moment later
    assert scene.peek().lease_live

    with pytest.raises(CannotResolve, match="alive"):
        ops.resolve(stale, Resolution.NOT_DONE, **WHO)
    assert scene.peek().state is record.state


def test_a_dead_lease_is_first_written_down_as_a_doubt(scene, ops, clock):
    scene.held()
    clock.advance(LEASE_SECONDS + 1)

    after = ops.resolve(scene.peek(), Resolution.NOT_DONE, **WHO)
    assert [(move.after, move.who) for move in after.moves[1:]] == [
        ("in_doubt", "operator:ann"),
        ("released", "operator:ann"),
    ]


@pytest.mark.parametrize("state", ["completed", "closed"])
@pytest.mark.parametrize("word", list(Resolution))
def test_what_is_settled_stays_settled(scene, ops, state, word):
    record = getattr(scene, state)()

    with pytest.raises(CannotResolve, match=f"already {state}"):
        ops.resolve(record, word, **WHO)
    assert scene.peek() == record


def test_a_released_record_may_still_be_known_to_have_happened(scene, ops):
    assert ops.resolve(scene.released(), Resolution.HAPPENED, **WHO).state is State.COMPLETED


def test_a_released_record_needs_nobody_to_say_not_done(scene, ops):
    with pytest.raises(CannotResolve, match="already released"):
        ops.resolve(scene.released(), Resolution.NOT_DONE, **WHO)


@pytest.mark.parametrize("word", [Resolution.NOT_DONE, Resolution.REFUSED])
def test_nobody_may_say_against_the_evidence(scene, ops, word):
    """The core would adopt the evidence anyway; saying otherwise would only look as if it had helped."""
    record = scene.in_doubt()
    scene.store.carry_out(Testify(record.key, "a" * 32, record.token, State.COMPLETED, b'\x01J"late"', "too late"))

    with pytest.raises(CannotResolve, match="has reported that it happened"):
        ops.resolve(scene.peek(), word, **WHO)


def test_happened_without_a_result_takes_the_one_in_the_evidence(scene, ops):
    record = scene.in_doubt()
    scene.store.carry_out(Testify(record.key, "a" * 32, record.token, State.COMPLETED, b'\x01J"late"', "too late"))
    ops.resolve(scene.peek(), Resolution.HAPPENED, **WHO)

    assert scene.guard.run("charge", pytest.fail, key="o-1", payload={"amount": 200}).result == "late"


# -- fenced --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", list(Resolution))
@pytest.mark.parametrize("second", list(Resolution))
def test_of_two_operators_with_the_same_record_one_wins(scene, ops, first, second):
    """Also where the second word would be a legal move by itself: it was said about another record."""
    seen = scene.in_doubt()
    won = ops.resolve(seen, first, who="ann", why="first")

    with pytest.raises(MovedOn, match="ann") as moved:
        ops.resolve(seen, second, who="bob", why="second")
    assert moved.value.record == won
    assert scene.peek() == won
    assert [entry.who for entry in scene.store.audit(10)] == ["ann"]


class Between:
    """A store in which something happens between our look and our write."""

    def __init__(self, store, happens):
        self._store, self._happens = store, [happens]

    def carry_out(self, command):
        if self._happens and command.verb in ("settle", "free"):
            self._happens.pop()()
        return self._store.carry_out(command)

    def __getattr__(self, name):
        return getattr(self._store, name)


def test_a_holder_that_settles_in_the_last_moment_wins(scene):
    seen = scene.in_doubt()
    late = Settle(seen, Role.HOLDER, State.COMPLETED, by=seen.attempt, result=b"\x01J1", retain_seconds=60)

    with pytest.raises(MovedOn, match="completed"):
        Ops(Between(scene.store, lambda: scene.store.carry_out(late))).resolve(seen, Resolution.NOT_DONE, **WHO)
    assert scene.peek().settled_by == seen.attempt
    assert scene.store.audit(10) == []


def test_an_attempt_that_takes_over_in_the_last_moment_wins(scene):
    seen = scene.in_doubt(boundary=Keyed())
    take = Take(seen, "b" * 32, seen.boundary, LEASE_SECONDS, sends=False)

    with pytest.raises(MovedOn, match="started"):
        Ops(Between(scene.store, lambda: scene.store.carry_out(take))).resolve(seen, Resolution.HAPPENED, **WHO)
    assert scene.peek().attempt == "b" * 32


def test_a_dead_holder_that_comes_back_before_the_doubt_is_written_wins(scene, clock):
    scene.held()
    clock.advance(LEASE_SECONDS + 1)
    seen = scene.peek()
    late = Settle(seen, Role.HOLDER, State.COMPLETED, by=seen.attempt, result=b"\x01J1", retain_seconds=60)

    with pytest.raises(MovedOn):
        Ops(Between(scene.store, lambda: scene.store.carry_out(late))).resolve(seen, Resolution.NOT_DONE, **WHO)
    assert scene.peek().state is State.COMPLETED


def test_a_record_that_is_gone_has_moved_on(scene, ops, clock):
    seen = scene.released()
    clock.advance(10 * 24 * 3600)

    with pytest.raises(MovedOn, match="gone"):
        ops.resolve(seen, Resolution.HAPPENED, **WHO)


def test_an_unanswered_question_to_the_provider_does_not_move_a_record_on(scene, ops):
    """Else a client that retries every minute would keep an operator from ever saying anything."""
    boundary = Asks(lambda record: StillUnknown())
    seen = scene.in_doubt(boundary=boundary)
    with pytest.raises(Exception, match="it is unknown"):
        scene.run("o-1", pytest.fail, boundary=boundary)
    assert scene.peek().version > seen.version
    assert mark(scene.peek()) == mark(seen)

    assert ops.resolve(seen, Resolution.HAPPENED, **WHO).state is State.COMPLETED


def test_evidence_moves_a_record_on(scene, ops):
    seen = scene.in_doubt()
    scene.store.carry_out(Testify(seen.key, "a" * 32, seen.token, State.COMPLETED, None, "too late"))

    with pytest.raises(MovedOn):
        ops.resolve(seen, Resolution.NOT_DONE, **WHO)


def test_a_result_that_cannot_be_kept_is_refused_before_anything_is_written(scene, ops):
    record = scene.in_doubt()

    with pytest.raises(Misconfigured, match="cannot be kept"):
        ops.resolve(record, Resolution.HAPPENED, result="x" * (1 << 21), **WHO)
    with pytest.raises(Misconfigured, match="goes with happened"):
        ops.resolve(record, Resolution.REFUSED, result=1, **WHO)
    assert scene.peek() == record


# -- the others ----------------------------------------------------------------------------------------------------


def test_redact_drops_the_result_and_keeps_the_record(scene, ops):
    after = ops.redact(scene.completed(), **WHO)

    assert after.result is None
    with pytest.raises(ResultNotKept):
        scene.guard.run("charge", pytest.fail, key="o-1", payload={"amount": 200})


def test_redact_and_free_leave_a_doubt_alone(scene, ops):
    record = scene.in_doubt()

    with pytest.raises(CannotResolve, match="only a settled record"):
        ops.redact(record, **WHO)
    with pytest.raises(CannotResolve, match="resolve it first"):
        ops.free(record, **WHO)
    assert scene.peek() == record


def test_free_lets_the_key_run_again(scene, ops):
    ops.free(scene.completed(), **WHO)

    assert scene.store.carry_out(Read(scene.completed(result="again").key)).attempts == 1
    assert [entry.action for entry in scene.store.audit(10)] == ["free"]


def test_free_and_redact_are_fenced(scene, ops):
    seen = scene.completed()
    ops.free(seen, **WHO)
    scene.completed(result="again")

    with pytest.raises(MovedOn):
        ops.free(seen, **WHO)
    with pytest.raises(MovedOn):
        ops.redact(seen, **WHO)


def test_free_does_not_take_away_what_nobody_has_read(scene, ops):
    """A late word that it happened twice, or after all, goes with the record: whoever frees it has seen that word."""
    for key, seen in (("o-1", scene.completed("o-1")), ("o-2", scene.released("o-2"))):
        late = Testify(seen.key, "b" * 32, seen.token, State.COMPLETED, None, "came back late")
        told = scene.store.carry_out(late)

        with pytest.raises(MovedOn):
            ops.free(seen, **WHO)
        assert scene.peek(key) == told
        ops.free(told, **WHO)
    assert len(scene.store.audit(10)) == 2


def test_free_keeps_evidence_that_is_written_between_its_look_and_its_delete(scene):
    for seen in (scene.completed("o-1"), scene.released("o-2")):
        late = Testify(seen.key, "b" * 32, seen.token, State.COMPLETED, None, "came back late")
        store = Between(scene.store, lambda late=late: scene.store.carry_out(late))

        with pytest.raises(MovedOn):
            Ops(store).free(seen, **WHO)
        assert scene.peek(seen.key.text).happened is not None


def test_of_two_operators_who_free_a_key_one_did_it(scene, ops):
    """The other is told that it was gone: the audit log has one name."""
    seen = scene.completed()
    ops.free(seen, who="ann", why="first")

    with pytest.raises(MovedOn, match="gone"):
        ops.free(seen, who="bob", why="second")
    assert [entry.who for entry in scene.store.audit(10)] == ["ann"]


def test_show_says_when_there_is_no_such_key(scene, ops):
    key = scene.completed().key
    ops.free(scene.peek(), **WHO)

    with pytest.raises(NoSuchKey):
        ops.show(key)


def test_a_persons_word_outlives_the_usual_retention(scene, ops, clock):
    """The record does not know its policy's retention; forgetting early would be a second effect."""
    scene.in_doubt(boundary=Opaque())
    ops.resolve(scene.peek(), Resolution.HAPPENED, result=1, **WHO)
    clock.advance(29 * 24 * 3600)

    assert scene.peek().state is State.COMPLETED


# -- over a lease ----------------------------------------------------------------------------------------------------


def test_an_operator_may_declare_a_living_lease_over(scene, ops):
    """A server's clock was set back: the lease of a dead holder would live for hours."""
    held = scene.held()
    with pytest.raises(CannotResolve, match="the holder is alive"):
        ops.resolve(held, Resolution.NOT_DONE, who="ann", why="the pod is gone")
    after = ops.resolve(held, Resolution.NOT_DONE, who="ann", why="the pod is gone", lease_is_over=True)

    assert [(move.after, move.who) for move in after.moves[1:]] == [
        ("in_doubt", "operator:ann"),
        ("released", "operator:ann"),
    ]
    (entry,) = scene.store.audit(10)
    assert entry.why.startswith("over a lease of ")
    assert entry.why.endswith(": the pod is gone")


def test_a_holder_that_was_alive_after_all_is_fenced_and_leaves_evidence(scene, ops):
    held = scene.held()
    ops.resolve(held, Resolution.REFUSED, who="ann", why="gone", lease_is_over=True)
    with pytest.raises(Refused), scene.holds[0] as hold:
        hold.complete("paid after all")

    record = scene.peek()
    assert record.state is State.CLOSED
    assert [one.state for one in record.evidence] == [State.COMPLETED]


def test_a_renewed_lease_is_not_over(scene, ops):
    """The holder renewed it since the operator looked, so the holder is alive."""
    held = scene.held()
    scene.store.carry_out(Renew(held, 30.0))
    before = scene.peek()
    with pytest.raises(MovedOn, match="renewed its lease"):
        ops.resolve(held, Resolution.NOT_DONE, who="ann", why="w", lease_is_over=True)

    assert scene.peek().version == before.version
