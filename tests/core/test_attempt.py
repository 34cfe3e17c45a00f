"""An attempt step by step: what it asks of the world, word for word, and what it makes of the replies.

A script is a list of (command, reply); a reply that is an exception is raised at the attempt, as a driver does.
"""

from __future__ import annotations

from dataclasses import make_dataclass, replace
from math import inf
from typing import Any

import pytest

from samekey.core import attempt as steps
from samekey.core import next_step, recovery
from samekey.core.boundary import (
    Absent,
    Asks,
    Atomic,
    Boundary,
    Conflicting,
    Declined,
    Happened,
    Keyed,
    Kind,
    Opaque,
    Repeatable,
    StillUnknown,
    Terms,
)
from samekey.core.call import Answer, Call, Failed
from samekey.core.commands import (
    Ask,
    Begin,
    CallLookup,
    Open,
    Raised,
    Read,
    Returned,
    RunEffect,
    Settle,
    SettleLater,
    Sleep,
    Take,
    Tell,
    Testify,
    Undo,
    Wait,
)
from samekey.core.envelope import encode
from samekey.core.errors import (
    Fenced,
    InDoubt,
    InProgress,
    KeyReused,
    Misconfigured,
    NotDone,
    RecordUnreadable,
    Refused,
    ResultNotKept,
    StoreUnavailable,
)
from samekey.core.fingerprint import Intent
from samekey.core.key import make_key
from samekey.core.policy import Policy
from samekey.core.record import Evidence, Record
from samekey.core.refusal import encode_refusal
from samekey.core.search import provider_term
from samekey.core.states import Role, State

KEY, OLD_KEY = make_key("charge", "o-1"), make_key("pay", "o-1")
INTENT, OTHER = Intent({"amount": 200}), Intent({"amount": 500})
ROOM = 1 << 20
RESULT = encode("receipt", max_bytes=ROOM)
DOWN = StoreUnavailable("away")


def find(record):
    raise AssertionError("the driver asks, not the core")


class InATransaction(Boundary):
    @property
    def terms(self) -> Terms:
        return Terms(Kind.ATOMIC)


def calling(boundary: Boundary | None = None, **how: Any) -> Call:
    boundary = boundary or Opaque()
    policy = how.pop("policy", Policy(lease=10, retention=1000))
    return Call(KEY, INTENT, "me", boundary, boundary.terms, boundary.terms.text(), policy, **how)


def record(state: State = State.STARTED, attempt: str = "you", **fields: Any) -> Record:
    made = INTENT.fingerprint()
    bare = Record(KEY, state, 7, attempt, made.digest, made.form, made.fields, "opaque", 1, 2, 1.0, 1.0, 1.0, "")
    if state is State.STARTED:
        fields.setdefault("lease_left", 5.0)
    return bare._replace(**fields)


HELD = record(attempt="me")


def play(attempt: Any, *script: tuple[Any, Any]) -> Any:
    """What the steps come to; they must ask for exactly this, in this order."""
    reply: Any = None
    for wanted, answer in script:
        try:
            asked = attempt.throw(reply) if isinstance(reply, Exception) else attempt.send(reply)
        except Exception as early:  # also a StopIteration: it ended
            raise AssertionError(f"{early!r} instead of {wanted}") from early
        assert asked == wanted
        reply = answer
    try:
        more = attempt.throw(reply) if isinstance(reply, Exception) else attempt.send(reply)
    except StopIteration as stop:
        return stop.value
    raise AssertionError(f"one more: {more}")


def opening(call: Call) -> Open:
    return Open(KEY, "me", INTENT, call.terms_text, 10.0, call.terms.sends, call.attributes, None, kept_for(call))


def taking(call: Call, seen: Record) -> Take:
    return Take(seen, "me", call.terms_text, 10.0, call.terms.sends, (), kept_for(call))


def kept_for(call: Call) -> float:
    """Only a hold of Repeatable ends by itself: after lease and retention."""
    return 1010.0 if call.terms.kind is Kind.REPEATABLE else 0.0


def settling(state: State, seen: Record = HELD, **how: Any) -> Settle:
    how = {"role": Role.HOLDER, "by": "me", "retain_seconds": 1000.0, **how}
    return Settle(seen, state=state, **how)


def completed(seen: Record = HELD, **fields: Any) -> Record:
    return seen._replace(**{"state": State.COMPLETED, "settled_by": "me", "result": RESULT, **fields})


# -- claiming ----------------------------------------------------------------------------------------------------


def test_a_new_key_is_claimed_run_and_settled():
    call = calling(attributes=(("region", "eu"),))
    done = play(
        steps.attempt(call),
        (opening(call), HELD),
        (RunEffect(HELD), Returned("receipt")),
        (settling(State.COMPLETED, result=RESULT), completed(token=8, attempts=3)),
    )

    assert done == Answer("receipt", State.COMPLETED, False, "o-1", 8, 3)
    assert (done.recorded, done.guarded) == (True, True)
    assert opening(call).fingerprint == INTENT.fingerprint()


def test_a_claim_that_sends_says_so():
    for boundary, sends in ((Keyed(), True), (Keyed(marked=True), False), (Repeatable(), False)):
        assert calling(boundary).terms.sends == sends
        assert next(steps.attempt(calling(boundary))) == opening(calling(boundary))


def test_a_settled_key_is_replayed():
    done = play(steps.attempt(calling()), (opening(calling()), completed(record())))
    refused = record(State.CLOSED, result=encode_refusal(Refused("stolen"), max_bytes=ROOM))
    closed = play(steps.attempt(calling()), (opening(calling()), refused))

    assert done == Answer("receipt", State.COMPLETED, True, "o-1", 7, 2)
    assert isinstance(closed.error, Refused)
    assert closed.error.reason == "stolen"


def test_what_the_policy_closes_is_raised_again_as_itself():
    """And by a policy that does not name it, as a refusal that does."""
    kept = record(State.CLOSED, result=encode_refusal(LookupError("stolen"), max_bytes=ROOM))
    for policy, kind in ((Policy(lease=10, closes=(LookupError,)), LookupError), (Policy(lease=10), Refused)):
        call = calling(policy=policy)
        assert type(play(steps.attempt(call), (opening(call), kept)).error) is kind


def test_another_payload_is_told_before_anything_else():
    for state in State:
        with pytest.raises(KeyReused) as told:
            play(steps.attempt(replace(calling(), intent=OTHER)), (_any_open(), record(state)))
        assert told.value.fields == ("amount",)
        assert told.value.key == "o-1"


def _any_open() -> Any:
    class Any_(Open):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Open)

    return Any_(KEY, "", INTENT, "", 0.0, False)


def test_a_released_key_is_taken():
    call, free = calling(), record(State.RELEASED)
    done = play(
        steps.attempt(call),
        (opening(call), free),
        (taking(call, free), HELD),
        (RunEffect(HELD), Returned("receipt")),
        (settling(State.COMPLETED, result=RESULT), completed()),
    )

    assert done.result == "receipt"


def test_a_released_key_that_happened_all_the_same_is_completed_not_run():
    call = calling()
    said = Evidence(1.0, 5, "late", State.COMPLETED, RESULT, "")
    free = record(State.RELEASED, evidence=(said,))
    adopting = Settle(
        free, Role.LOOKUP, State.COMPLETED, "late", RESULT, None, "a late attempt reported how it ended", 1000.0
    )
    done = play(steps.attempt(call), (opening(call), free), (adopting, completed(free)))

    assert done.replayed


def test_whoever_finds_it_held_waits_and_is_told_when_it_is_still_held():
    call, held = calling(), record()
    with pytest.raises(InProgress) as told:
        play(steps.attempt(call), (opening(call), held), (Wait(held), held._replace(version=2, lease_left=3.0)))
    assert (told.value.key, told.value.token, told.value.retry_after) == ("o-1", 7, 3.0)
    assert play(steps.attempt(call), (opening(call), held), (Wait(held), completed(held))).replayed


def test_a_hold_that_changed_hands_while_we_waited_is_waited_for_again():
    call, held = calling(), record()
    other = held._replace(attempt="they")
    again = play(steps.attempt(call), (opening(call), held), (Wait(held), other), (Wait(other), completed(other)))

    assert again.replayed


def test_a_record_that_is_gone_is_claimed_again():
    call, held = calling(), record()
    done = play(
        steps.attempt(call),
        (opening(call), held),
        (Wait(held), None),
        (opening(call), HELD),
        (RunEffect(HELD), Returned("receipt")),
        (settling(State.COMPLETED, result=RESULT), completed()),
    )

    assert not done.replayed


@pytest.mark.parametrize(("unsure", "state"), [(False, State.RELEASED), (True, State.IN_DOUBT)])
def test_our_own_claim_that_came_too_late_is_let_go_and_asked_for_again(unsure, state):
    call, late = calling(), HELD._replace(lease_left=0.0, unsure=unsure)
    letting_go = settling(state, late, why="never ran")
    with pytest.raises(InProgress):
        play(steps.attempt(call), (opening(call), late), (letting_go, late._replace(state=state)))
    done = play(steps.attempt(call), (opening(call), late), (letting_go, completed(record())))
    assert done.replayed
    assert play(steps.let_go(call, late), (letting_go, None)) is None
    believing = calling(Asks(find, believe_absent_after=5000))
    staying = settling(state, late, why="never ran", retain_seconds=5010.0)
    with pytest.raises(InProgress):
        play(steps.attempt(believing), (opening(believing), late), (staying, late._replace(state=state)))


def test_a_key_that_changes_hands_too_often_is_busy():
    call, free = calling(), record(State.RELEASED)
    script: list[tuple[Any, Any]] = [(opening(call), free)]
    script += [(taking(call, free), free)] * steps.ROUNDS_MAX
    with pytest.raises(InProgress):
        play(steps.attempt(call), *script)
    script[-1] = (taking(call, free), None)
    with pytest.raises(InProgress) as told:
        play(steps.attempt(call), *script)
    assert (told.value.key, told.value.token, told.value.retry_after) == ("o-1", 0, 1.0)
    assert steps.ROUNDS_MAX == 20


def test_earlier_names_are_looked_at_first():
    call = calling(aliases=(OLD_KEY,))
    assert play(steps.attempt(call), (Read(OLD_KEY), completed(record()))).replayed
    done = play(steps.attempt(call), (Read(OLD_KEY), None), (opening(call), completed(record())))
    assert done.replayed
    run = calling(aliases=(OLD_KEY,), policy=Policy(lease=10, store_down="run"))
    down = Tell("store_down", None, "run", "StoreUnavailable")
    unguarded = [(down, None), (Tell("unguarded", None), None), (RunEffect(None), Returned(5))]
    assert not play(steps.attempt(run), (Read(OLD_KEY), DOWN), *unguarded).guarded
    assert not play(steps.attempt(run), (Read(OLD_KEY), None), (opening(run), DOWN), *unguarded).guarded


def test_a_store_that_is_away_refuses_or_runs_unguarded_as_the_policy_says():
    call = calling()
    with pytest.raises(StoreUnavailable):
        play(steps.attempt(call), (opening(call), DOWN))
    run = calling(policy=Policy(lease=10, store_down="run"))
    done = play(
        steps.attempt(run),
        (opening(run), DOWN),
        (Tell("store_down", None, "run", "StoreUnavailable"), None),
        (Tell("unguarded", None), None),
        (RunEffect(None), Returned(5)),
    )
    assert done == Answer(5, State.COMPLETED, False, "o-1", 0, 1, recorded=False, guarded=False)
    atomic = calling(InATransaction(), policy=Policy(lease=10, store_down="run"))
    with pytest.raises(StoreUnavailable):
        play(steps.attempt(atomic), (opening(atomic), DOWN))


def test_a_store_that_goes_away_while_we_wait_or_take_is_down_but_a_doubt_is_never_run():
    run = calling(Keyed(), policy=Policy(lease=10, store_down="run"))
    down = Tell("store_down", None, "run", "StoreUnavailable")
    unguarded = [(down, None), (Tell("unguarded", None), None), (RunEffect(None), Returned(5))]
    held, free = record(), record(State.RELEASED)
    assert not play(steps.attempt(run), (opening(run), held), (Wait(held), DOWN), *unguarded).guarded
    taking = Take(free, "me", run.terms_text, 10.0, True)
    assert not play(steps.attempt(run), (opening(run), free), (taking, DOWN), *unguarded).guarded
    refuse, doubted = calling(), record(State.IN_DOUBT, boundary=run.terms_text)
    with pytest.raises(StoreUnavailable):
        play(steps.attempt(refuse), (opening(refuse), held), (Wait(held), DOWN))
    with pytest.raises(StoreUnavailable):
        play(steps.attempt(run), (opening(run), doubted), (Take(doubted, "me", run.terms_text, 10.0, True), DOWN))


def test_switched_off_it_runs_without_a_store():
    error = ValueError()
    failed = play(
        steps.attempt(calling(unguarded=True)), (Tell("unguarded", None), None), (RunEffect(None), Raised(error))
    )

    assert failed == Failed(error)


def test_an_interrupted_claim_is_withdrawn():
    call = calling()
    letting_go = settling(State.RELEASED, HELD, why="never ran")
    play(steps.withdraw(call, opening(call)), (opening(call), HELD), (letting_go, HELD._replace(state=State.RELEASED)))
    # A passer-by found its lease over, and could not know that it never ran.
    doubted = HELD._replace(state=State.IN_DOUBT)
    letting_go = settling(State.RELEASED, doubted, why="never ran")
    play(
        steps.withdraw(call, opening(call)), (opening(call), doubted), (letting_go, HELD._replace(state=State.RELEASED))
    )
    for other in (record(), HELD._replace(state=State.COMPLETED)):
        play(steps.withdraw(call, opening(call)), (opening(call), other))
    taking = Take(record(), call.attempt, "opaque", 10.0, False)
    play(steps.withdraw(call, taking), (taking, None))


def test_an_open_without_a_record_is_unreadable():
    """A store that answers an open with nothing does not say who holds the key: nothing may run."""
    call = calling()
    with pytest.raises(RecordUnreadable, match="shows no record of it"):
        play(steps.attempt(call), (opening(call), None), (opening(call), None))  # opened once more, as if it were freed


# -- holding -----------------------------------------------------------------------------------------------------


def held_and(call: Call, outcome: Any, *script: tuple[Any, Any], held: Record = HELD) -> Any:
    return play(steps.run_held(call, held), (RunEffect(held), outcome), *script)


def test_a_refusal_closes():
    error = Refused("stolen")
    result = encode_refusal(error, max_bytes=ROOM)
    closing = settling(State.CLOSED, result=result, error="Refused")
    closed = HELD._replace(state=State.CLOSED, settled_by="me", result=result)

    assert held_and(calling(), Raised(error), (closing, closed)) == Failed(error)


@pytest.mark.parametrize(
    ("boundary", "rotates"),
    [(Opaque(), False), (Keyed(), False), (Keyed(keeps_declines=True), True), (Asks(find), True)],
)
def test_not_done_releases_and_turns_the_round_where_an_old_decline_would_speak(boundary, rotates):
    error = NotDone()
    free = HELD._replace(state=State.RELEASED)
    found_by = (provider_term(KEY, 1),) if rotates else ()  # the next provider key can be searched for
    releasing = settling(State.RELEASED, error="NotDone", next_round=rotates, terms=found_by)

    assert held_and(calling(boundary), Raised(error), (releasing, free), (Tell("released", free), None)) == Failed(
        error
    )
    assert not hasattr(error, "__notes__")


def test_with_an_older_doubt_behind_it_not_done_and_refused_stay_in_doubt():
    held = HELD._replace(unsure=True)
    doubted = held._replace(state=State.IN_DOUBT)
    for error in (NotDone(), Refused("stolen")):
        doubting = settling(State.IN_DOUBT, held, error=type(error).__name__, answered=True)
        failed = held_and(
            calling(Asks(find)), Raised(error), (doubting, doubted), (Tell("in_doubt", doubted), None), held=held
        )
        assert failed == Failed(error)
        assert "an earlier attempt may have happened" in error.__notes__[0]


def test_anything_else_is_a_doubt_with_a_note():
    error = ValueError("x")
    doubted = HELD._replace(state=State.IN_DOUBT)
    doubting = settling(State.IN_DOUBT, error="ValueError")

    told = (Tell("in_doubt", doubted, "ValueError"), None)
    assert held_and(calling(), Raised(error), (doubting, doubted), told) == Failed(error)
    assert "the effect ended in ValueError" in error.__notes__[0]
    gone = ValueError("x")
    held_and(calling(), Raised(gone), (doubting, None))
    assert gone.__notes__


@pytest.mark.parametrize(
    "error", [ValueError("x"), TimeoutError(), KeyboardInterrupt()], ids=lambda one: type(one).__name__
)
@pytest.mark.parametrize("unsure", [False, True], ids=["first", "after a doubt"])
def test_anything_under_repeatable_frees_the_key_without_a_note(error, unsure):
    """Only with an older doubt behind it the key stays in doubt; in both cases the next call runs it again."""
    held = HELD._replace(unsure=unsure)
    state = State.IN_DOUBT if unsure else State.RELEASED
    ended = held._replace(state=state)
    settled = (settling(state, held, error=type(error).__name__), ended)

    failed = held_and(calling(Repeatable()), Raised(error), settled, (Tell(str(state), ended), None), held=held)

    assert failed == Failed(error)
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize(
    ("error", "inner", "why"),
    [
        (NotDone("no"), True, "which reports on another guard's effect inside it"),
        (ValueError("x"), True, "which does not tell whether it happened"),
        (ValueError("x"), False, "which does not tell whether it happened"),
    ],
)
def test_the_note_of_a_doubt_says_whose_word_it_was(error, inner, why):
    doubted = HELD._replace(state=State.IN_DOUBT)
    doubting = settling(State.IN_DOUBT, error=type(error).__name__)
    told = (Tell("in_doubt", doubted, type(error).__name__), None)
    held_and(calling(), Raised(error, inner=inner), (doubting, doubted), told)

    assert f"the effect ended in {type(error).__name__}, {why}." in error.__notes__[0]


def test_before_the_mark_nothing_was_sent():
    error, free = ValueError(), HELD._replace(state=State.RELEASED)
    marked = calling(Opaque(marked=True))
    releasing = settling(State.RELEASED, error="ValueError")
    assert held_and(marked, Raised(error), (releasing, free), (Tell("released", free), None)) == Failed(error)
    doubted = HELD._replace(state=State.IN_DOUBT)
    doubting = settling(State.IN_DOUBT, error="ValueError")
    begun = Raised(error, begun=True)
    held_and(marked, begun, (doubting, doubted), (Tell("in_doubt", doubted, "ValueError"), None))
    keyed = calling(Asks(find, marked=True))
    held_and(keyed, Raised(error), (releasing, free), (Tell("released", free), None))  # its own error: no new round


def test_an_abandoned_effect_writes_nothing():
    error = GeneratorExit()
    assert held_and(calling(), Raised(error)) == Failed(error)
    assert held_and(calling(InATransaction()), Raised(error), (Undo(claim_too=True), None)) == Failed(error)


def test_in_a_transaction_a_word_undoes_the_effect_and_an_unknown_undoes_the_claim_too():
    atomic, error, free = calling(InATransaction()), NotDone(), HELD._replace(state=State.RELEASED)
    releasing = settling(State.RELEASED, error="NotDone")
    held_and(atomic, Raised(error), (Undo(claim_too=False), None), (releasing, free), (Tell("released", free), None))
    unknown = ValueError()
    assert held_and(atomic, Raised(unknown), (Undo(claim_too=True), None)) == Failed(unknown)
    refusal = Refused("no")
    result = encode_refusal(refusal, max_bytes=ROOM)
    closed = HELD._replace(state=State.CLOSED, settled_by="me")
    closing = settling(State.CLOSED, result=result, error="Refused")
    assert held_and(atomic, Raised(refusal), (Undo(claim_too=False), None), (closing, closed)) == Failed(refusal)


def test_in_a_transaction_an_answer_that_cannot_be_written_is_none():
    atomic = calling(InATransaction())
    settling_it = settling(State.COMPLETED, result=RESULT)
    with pytest.raises(StoreUnavailable):
        held_and(
            atomic,
            Returned("receipt"),
            (settling_it, DOWN),  # and is not tried again: the transaction is broken
            (Undo(claim_too=True), None),
            (Tell("not_recorded", HELD, "StoreUnavailable"), None),
        )


def test_a_result_that_cannot_be_kept_is_completed_all_the_same():
    call = calling(policy=Policy(lease=10, retention=1000, result_max_bytes=20))
    value = "x" * 100

    class NotKept(Settle):
        def __eq__(self, other: object) -> bool:
            assert isinstance(other, Settle)
            return other.result is None and str(other.error).startswith("not kept: ")

    wanted = NotKept(HELD, Role.HOLDER, State.COMPLETED, "me")
    done = held_and(call, Returned(value), (Tell("not_kept", HELD), None), (wanted, completed(result=None)))
    assert done.result == value


def test_a_result_of_a_class_that_the_caller_declared_is_kept_wherever_it_is_made():
    local = make_dataclass("Local", ["n"])
    kept = encode(local(1), max_bytes=ROOM, types=[local])
    settled = completed(result=kept)
    done = held_and(calling(types=(local,)), Returned(local(1)), (settling(State.COMPLETED, result=kept), settled))
    assert done.result == local(1)


# -- a store that is away while we settle ------------------------------------------------------------------------


def test_what_we_know_is_said_again_with_growing_pauses_for_as_long_as_a_lease():
    call = calling(policy=Policy(lease=1.5, retention=1000))
    command = settling(State.COMPLETED, result=RESULT)
    script: list[tuple[Any, Any]] = []
    for pause in (0.05, 0.1, 0.2, 0.4, 0.8):
        script += [(command, DOWN), (Sleep(pause), None)]
    script += [(command, DOWN), (Tell("not_recorded", HELD, "StoreUnavailable"), None)]
    done = held_and(call, Returned("receipt"), *script)

    assert done == Answer("receipt", State.COMPLETED, False, "o-1", 7, 2, recorded=False)


def test_pauses_have_an_end_and_silence_counts():
    call = calling(policy=Policy(lease=8, retention=1000))
    command = settling(State.COMPLETED, result=RESULT)
    slow = StoreUnavailable("silent", tried_seconds=4.0)
    script: list[tuple[Any, Any]] = []
    for pause in (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0):
        script += [(command, DOWN), (Sleep(pause), None)]
    script += [(command, DOWN), (Sleep(2.0), None), (command, completed())]
    assert held_and(call, Returned("receipt"), *script).recorded
    silent = [(command, slow), (Sleep(0.05), None), (command, slow)]
    told = (Tell("not_recorded", HELD, "StoreUnavailable"), None)
    assert not held_and(call, Returned("receipt"), *silent, told).recorded
    as_long_as_a_lease = StoreUnavailable("silent", tried_seconds=8.0)
    assert not held_and(call, Returned("receipt"), (command, as_long_as_a_lease), told).recorded


def test_beyond_the_settle_patience_it_is_written_in_the_background_for_the_rest_of_the_lease():
    call = calling(policy=Policy(lease=8, settle_patience=0.5, retention=1000))
    command = settling(State.COMPLETED, result=RESULT)
    slow = StoreUnavailable("silent", tried_seconds=0.25)
    approx: Any = pytest.approx
    told = (Tell("not_recorded", HELD, "StoreUnavailable"), None)
    script: list[tuple[Any, Any]] = [(command, slow), (Sleep(0.05), None), (command, DOWN), (Sleep(0.1), None)]
    script += [(command, DOWN), (Sleep(approx(0.1)), None), (command, slow)]  # not 0.2: that would be too long
    script += [(SettleLater(command, approx(7.25)), None), told]
    assert not held_and(call, Returned("receipt"), *script).recorded
    closed = StoreUnavailable("closed", tried_seconds=inf)
    assert not held_and(call, Returned("receipt"), (command, closed), told).recorded
    atomic = calling(Atomic("db"), policy=Policy(settle_patience=0.5))
    assert play(steps.insist(atomic, command), (command, slow)) is slow


def test_an_outcome_in_the_background_is_tried_once_and_kept_as_evidence_where_the_key_changed_hands():
    call, command = calling(), settling(State.COMPLETED, result=RESULT)
    other = record(attempt="they")
    assert play(steps.insist_later(call, command), (command, completed())) == completed()
    assert play(steps.insist_later(call, command), (command, other), (late(), other)) == other
    for error in (DOWN, Misconfigured("read-only"), RecordUnreadable("damaged")):
        assert play(steps.insist_later(call, command), (command, error)) is error


@pytest.mark.parametrize("broken", [Misconfigured("read-only"), RecordUnreadable("damaged")], ids=repr)
def test_a_store_that_broke_is_insisted_on_where_waiting_may_help_and_named_as_the_cause(broken: Exception):
    call, command = calling(policy=Policy(lease=0.1, retention=1000)), settling(State.COMPLETED, result=RESULT)
    again: list[tuple[Any, Any]] = [(Sleep(0.05), None), (command, broken), (Sleep(0.1), None), (command, broken)]
    script = [(command, broken), *(again if isinstance(broken, Misconfigured) else [])]
    unsaid = play(steps.insist(call, command), *script)

    assert type(unsaid) is StoreUnavailable
    assert unsaid.__cause__ is broken
    with pytest.raises(type(broken)):
        play(steps.insist(calling(Atomic("db")), command), (command, broken))


def test_words_that_cannot_be_written_down_leave_a_note():
    call = calling(policy=Policy(lease=0.01, retention=1000))
    slow = StoreUnavailable("silent", tried_seconds=4.0)
    refused, not_done, bug = Refused("no"), NotDone(), ValueError()
    result = encode_refusal(refused, max_bytes=ROOM)
    told = (Tell("not_recorded", HELD, "StoreUnavailable"), None)
    held_and(call, Raised(refused), (settling(State.CLOSED, result=result, error="Refused"), slow), told)
    held_and(call, Raised(not_done), (settling(State.RELEASED, error="NotDone"), slow))
    held_and(call, Raised(bug), (settling(State.IN_DOUBT, error="ValueError"), slow))

    assert "the refusal of charge o-1 could not be recorded" in refused.__notes__[0]
    assert "could not be released" in not_done.__notes__[0]
    assert "when its lease ends the key is in doubt" in bug.__notes__[0]
    assert len(bug.__notes__) == 1


# -- too late ----------------------------------------------------------------------------------------------------


def late(state: State = State.COMPLETED, result: bytes | None = RESULT) -> Testify:
    return Testify(KEY, "me", 7, state, result, "settled too late")


def adopting(seen: Record, state: State = State.COMPLETED, result: bytes | None = RESULT) -> Settle:
    return Settle(seen, Role.LOOKUP, state, "me", result, None, "a late attempt reported how it ended", 1000.0)


def test_a_success_that_comes_too_late_is_evidence_and_the_record_answers():
    there, other = record(attempt="they"), completed(record(), settled_by="they")
    done = held_and(
        calling(),
        Returned("mine"),
        (settling(State.COMPLETED, result=encode("mine", max_bytes=ROOM)), there),
        (late(result=encode("mine", max_bytes=ROOM)), other),
        (Tell("late", other, "completed"), None),
    )

    assert (done.result, done.replayed) == ("receipt", True)


def test_a_late_success_that_reads_like_theirs_is_evidence_all_the_same():
    """Two effects with one receipt are two effects."""
    theirs = completed(settled_by="they")
    done = held_and(
        calling(),
        Returned("receipt"),
        (settling(State.COMPLETED, result=RESULT), theirs),
        (late(), theirs),
        (Tell("late", theirs, "completed"), None),
    )

    assert (done.result, done.replayed) == ("receipt", True)


def test_an_attempt_that_ended_twice_is_answered_with_its_first_end():
    """An effect that forks has the same attempt in two processes: whoever settles first speaks for both."""
    first = completed()
    mine = encode("mine", max_bytes=ROOM)
    done = held_and(
        calling(),
        Returned("mine"),
        (settling(State.COMPLETED, result=mine), first),
        (late(result=mine), first),
        (Tell("late", first, "completed"), None),
    )
    assert (done.result, done.replayed) == ("receipt", True)

    error = Refused("mine")
    result = encode_refusal(error, max_bytes=ROOM)
    closed = completed(state=State.CLOSED, result=encode_refusal(Refused("theirs"), max_bytes=ROOM))
    failed = held_and(
        calling(),
        Raised(error),
        (settling(State.CLOSED, result=result, error="Refused"), closed),
        (late(state=State.CLOSED, result=result), closed),
        (Tell("late", closed, "closed"), None),
    )
    assert isinstance(failed, Failed)
    assert str(failed.error) == "theirs"

    happened = completed(result=None)  # with a result that could not be kept
    with pytest.raises(ResultNotKept):
        held_and(
            calling(),
            Raised(error),
            (settling(State.CLOSED, result=result, error="Refused"), happened),
            (late(state=State.CLOSED, result=result), happened),
            (Tell("late", happened, "closed"), None),
        )


def test_our_own_word_that_was_redacted_meanwhile_is_still_ours():
    done = held_and(calling(), Returned("receipt"), (settling(State.COMPLETED, result=RESULT), completed(result=None)))

    assert (done.result, done.replayed) == ("receipt", False)


@pytest.mark.parametrize("state", [State.IN_DOUBT, State.RELEASED])
def test_a_late_success_completes_what_is_in_doubt_or_free(state):
    there = record(state, attempt="they")
    done = held_and(
        calling(),
        Returned("receipt"),
        (settling(State.COMPLETED, result=RESULT), there),
        (late(), there),
        (Tell("late", there, "completed"), None),
        (adopting(there), completed(there)),
    )

    assert done.replayed


class NotesOfItsOwn(Exception):
    __notes__ = ("not a list",)  # type: ignore[assignment]


class NoNotes(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise AttributeError


@pytest.mark.parametrize("error", [NotesOfItsOwn(), NoNotes()])
def test_an_error_that_takes_no_note_leaves_as_it_came(error):
    steps.note(error, "in doubt")

    assert getattr(error, "__notes__", ("not a list",)) == ("not a list",)


def test_a_late_refusal_closes_what_is_free_and_not_what_is_in_doubt():
    error = Refused("no")
    result = encode_refusal(error, max_bytes=ROOM)
    closing = settling(State.CLOSED, result=result, error="Refused")
    free, doubt = record(State.RELEASED), record(State.IN_DOUBT)
    word = late(State.CLOSED, result)
    closed = free._replace(state=State.CLOSED, result=result, settled_by="me")
    done = held_and(
        calling(), Raised(error), (closing, free), (word, free), (Tell("late", free, "closed"), None),
        (adopting(free, State.CLOSED, result), closed),
    )  # fmt: skip
    assert isinstance(done.error, Refused)
    with pytest.raises(Fenced, match=r"its outcome \(closed\) is kept as evidence"):
        held_and(calling(), Raised(error), (closing, doubt), (word, doubt), (Tell("late", doubt, "closed"), None))


def test_a_refusal_that_another_attempt_wrote_is_answered_with_its_words():
    error, theirs = Refused("mine"), encode_refusal(Refused("theirs"), max_bytes=ROOM)
    result = encode_refusal(error, max_bytes=ROOM)
    closed = record(State.CLOSED, result=theirs, settled_by="they")
    done = held_and(
        calling(), Raised(error), (settling(State.CLOSED, result=result, error="Refused"), closed),
        (late(State.CLOSED, result), closed), (Tell("late", closed, "closed"), None),
    )  # fmt: skip

    assert done.error.reason == "theirs"


def test_too_late_it_waits_for_whoever_holds_the_key_now():
    other = record(attempt="they")
    start = [
        (settling(State.COMPLETED, result=RESULT), other), (late(), other), (Tell("late", other, "completed"), None),
    ]  # fmt: skip
    assert held_and(calling(), Returned("receipt"), *start, (Wait(other), completed(other))).replayed
    with pytest.raises(Fenced) as told:
        held_and(calling(), Returned("receipt"), *start, (Wait(other), other))
    assert (told.value.key, told.value.token) == ("o-1", 7)
    third = other._replace(attempt="third")
    again = held_and(calling(), Returned("receipt"), *start, (Wait(other), third), (Wait(third), completed(third)))
    assert again.replayed
    with pytest.raises(Fenced):
        held_and(calling(), Returned("receipt"), *start, (Wait(other), None))


def test_too_late_what_was_seen_last_answers_although_it_is_gone_by_now():
    other = completed(record(), settled_by="they")
    done = held_and(
        calling(), Returned("mine"), (settling(State.COMPLETED, result=encode("mine", max_bytes=ROOM)), other),
        (late(result=encode("mine", max_bytes=ROOM)), None), (Tell("late", other, "completed"), None),
    )  # fmt: skip

    assert (done.result, done.replayed) == ("receipt", True)


def test_too_late_and_the_record_is_gone_or_cannot_be_told():
    gone = [(settling(State.COMPLETED, result=RESULT), None), (late(), None), (Tell("late", None, "completed"), None)]
    with pytest.raises(Fenced, match="kept as evidence"):
        held_and(calling(), Returned("receipt"), *gone)
    refusal = encode_refusal(Refused("no"), max_bytes=ROOM)
    closing = settling(State.CLOSED, result=refusal, error="Refused")
    refused = [(closing, None), (late(State.CLOSED, refusal), None), (Tell("late", None, "closed"), None)]
    with pytest.raises(Fenced, match="kept as evidence"):
        held_and(calling(), Raised(Refused("no")), *refused)
    slow = StoreUnavailable("silent", tried_seconds=60.0)
    other = record(attempt="they")
    with pytest.raises(Fenced, match=r"its outcome \(completed\) could not be kept") as told:
        held_and(
            calling(), Returned("receipt"), (settling(State.COMPLETED, result=RESULT), other), (late(), slow),
            (Tell("not_recorded", other, "StoreUnavailable"), None),
        )  # fmt: skip
    assert told.value.__cause__ is slow
    for there in (record(State.IN_DOUBT), record(State.RELEASED)):
        _cannot_be_adopted(there, slow)


def _cannot_be_adopted(there: Record, slow: StoreUnavailable) -> None:
    with pytest.raises(Fenced):
        held_and(
            calling(), Returned("receipt"), (settling(State.COMPLETED, result=RESULT), there), (late(), there),
            (Tell("late", there, "completed"), None), (adopting(there), slow),
        )  # fmt: skip


def test_a_settle_of_ours_that_says_something_else_is_not_our_answer():
    other = HELD._replace(state=State.CLOSED, settled_by="me", result=encode_refusal(Refused("no"), max_bytes=ROOM))
    done = held_and(
        calling(), Returned("receipt"), (settling(State.COMPLETED, result=RESULT), other), (late(), other),
        (Tell("late", other, "completed"), None),
    )  # fmt: skip

    assert isinstance(done.error, Refused)
    error = Refused("no")
    refusal = encode_refusal(error, max_bytes=ROOM)
    closing = settling(State.CLOSED, result=refusal, error="Refused")
    done = held_and(
        calling(), Raised(error), (closing, completed()), (late(State.CLOSED, refusal), completed()),
        (Tell("late", completed(), "closed"), None),
    )  # fmt: skip
    assert done.replayed


def test_a_last_word_is_said_once_more_and_kept_if_it_comes_too_late():
    call, command = calling(), settling(State.COMPLETED, result=RESULT)
    assert play(steps.last_word(call, command), (command, completed())) == completed()
    other = completed(settled_by="they")
    kept = other._replace(version=9)
    assert play(steps.last_word(call, command), (command, other), (late(), kept)) is kept
    play(steps.last_word(call, command), (command, None), (late(), None))
    ours_otherwise = HELD._replace(state=State.RELEASED, settled_by="me")
    play(steps.last_word(call, command), (command, ours_otherwise), (late(), ours_otherwise))
    doubting = settling(State.IN_DOUBT)
    asked = settling(State.COMPLETED, role=Role.LOOKUP)
    for word in (doubting, late(), asked):  # which nobody says better
        assert play(steps.last_word(call, word), (word, other)) is other


def test_the_mark_is_written_by_whoever_still_holds():
    begun = HELD._replace(begun_at=1.0)
    assert play(steps.sending(calling(), HELD), (Begin(HELD), begun)) is begun
    for lost in (None, HELD, begun._replace(attempt="they"), begun._replace(token=8), begun._replace(lease_left=0.0)):
        with pytest.raises(Fenced) as told:
            play(steps.sending(calling(), HELD), (Begin(HELD), lost))
        assert (told.value.key, told.value.token) == ("o-1", 7)


# -- a store that lost its memory --------------------------------------------------------------------------------

LOST = HELD._replace(after_loss=True)
TOLD = (Tell("store_lost_memory", LOST), None)


def test_after_a_loss_the_provider_is_asked_before_the_first_run():
    call = calling(Asks(find))
    done = play(
        steps.run_held(call, LOST), TOLD, (CallLookup(LOST), Happened("receipt")),
        (settling(State.COMPLETED, LOST, result=RESULT), completed(LOST)),
    )  # fmt: skip
    assert done.result == "receipt"
    for verdict in (Absent(), Declined()):
        done = play(
            steps.run_held(call, LOST), TOLD, (CallLookup(LOST), verdict), (RunEffect(LOST), Returned("receipt")),
            (settling(State.COMPLETED, LOST, result=RESULT), completed(LOST)),
        )  # fmt: skip
        assert done.result == "receipt"
    done = play(
        steps.run_held(calling(), LOST), TOLD, (RunEffect(LOST), Returned("receipt")),
        (settling(State.COMPLETED, LOST, result=RESULT), completed(LOST)),
    )  # fmt: skip
    assert done.result == "receipt"  # nobody to ask


@pytest.mark.parametrize("verdict", [StillUnknown("down"), Conflicting(("a", "b"))])
def test_after_a_loss_what_nobody_can_say_is_in_doubt(verdict):
    call = calling(Asks(find))
    doubting = settling(State.IN_DOUBT, LOST, error="StoreLostMemory")
    for reply, token in ((LOST._replace(state=State.IN_DOUBT, token=8), 8), (None, 7)):
        with pytest.raises(InDoubt, match="the store lost its memory, and the provider") as told:
            play(steps.run_held(call, LOST), TOLD, (CallLookup(LOST), verdict), (doubting, reply))
        assert told.value.token == token
    slow = StoreUnavailable("silent", tried_seconds=60.0)
    with pytest.raises(StoreUnavailable):
        play(steps.run_held(call, LOST), TOLD, (CallLookup(LOST), verdict), (doubting, slow))


def test_after_a_loss_a_final_decline_closes():
    call = calling(Asks(find))
    result = encode_refusal(Refused("stolen"), max_bytes=ROOM)
    closing = settling(State.CLOSED, LOST, result=result, error="Declined")
    asked = (CallLookup(LOST), Declined(final=True, reason="stolen"))
    closed = LOST._replace(state=State.CLOSED, result=result, settled_by="me")
    done = play(steps.run_held(call, LOST), TOLD, asked, (closing, closed))
    assert done.error.reason == "stolen"
    for reply, token in ((record(attempt="they", token=8), 8), (None, 7)):
        with pytest.raises(InDoubt, match="changed hands") as told:
            play(steps.run_held(call, LOST), TOLD, asked, (closing, reply))
        assert told.value.token == token
    with pytest.raises(StoreUnavailable):
        play(steps.run_held(call, LOST), TOLD, asked, (closing, StoreUnavailable("silent", tried_seconds=60.0)))


# -- recovery ----------------------------------------------------------------------------------------------------

DEAD = record(lease_left=0.0)


def doubting_the_dead(seen: Record = DEAD) -> Settle:
    return Settle(seen, Role.PASSER_BY, State.IN_DOUBT, "me", error="LeaseEnded", why="the lease ended")


def test_a_dead_lease_is_written_down_as_a_doubt_first():
    doubted = DEAD._replace(state=State.IN_DOUBT)
    told = (Tell("in_doubt", doubted, "the lease ended"), None)
    assert play(recovery.recover(calling(), DEAD), (doubting_the_dead(), doubted), told) is doubted
    for other in (None, completed(DEAD)):
        assert play(recovery.recover(calling(), DEAD), (doubting_the_dead(), other)) is other


def test_what_had_not_begun_is_taken_at_once():
    call, dead = calling(Opaque(marked=True)), DEAD._replace(boundary="opaque marked")
    assert play(recovery.recover(call, dead), (taking(call, dead), HELD)) is HELD
    said = Evidence(1.0, 5, "late", State.COMPLETED, RESULT, "")
    for begun in (dead._replace(begun_at=1.0), dead._replace(unsure=True), dead._replace(evidence=(said,))):
        play(recovery.recover(call, begun), (doubting_the_dead(begun), None))


def in_doubt(boundary: str, **fields: Any) -> Record:
    return record(State.IN_DOUBT, boundary=boundary, **fields)


def test_the_harmless_and_the_deduplicated_run_again():
    for boundary in (Repeatable(), Keyed()):
        call, doubt = calling(boundary), in_doubt(boundary.terms.text())
        steps_ = (taking(call, doubt), HELD), (Tell("taken_over", HELD), None)
        assert play(recovery.recover(call, doubt), *steps_) is HELD
        assert play(recovery.recover(call, doubt), (taking(call, doubt), None)) is None
        assert play(recovery.recover(call, doubt), (taking(call, doubt), DEAD)) is DEAD


@pytest.mark.parametrize(
    ("claimed", "today", "why"),
    [
        ("repeatable", Opaque(), "which today's code no longer declares"),
        ("keyed window=60.0", Repeatable(), "it was claimed as keyed"),
        ("asks", Opaque(), "it was claimed as asks"),
        ("opaque", Repeatable(), "can be asked"),
        ("atomic", Repeatable(), "can be asked"),
        ("opaque", Asks(find), "can be asked"),
        ("keyed window=60.0", Asks(find), "no longer declares"),
    ],
)
def test_what_the_claim_did_not_allow_or_today_does_not_waits_for_a_person(claimed, today, why):
    with pytest.raises(InDoubt, match=why) as told:
        play(recovery.recover(calling(today), in_doubt(claimed, error="E", now=11.0)))
    assert (told.value.key, told.value.token, told.value.error, told.value.age_seconds) == ("o-1", 7, "E", 10.0)


def test_the_providers_window_must_last_for_a_whole_lease():
    terms = Keyed(100).terms
    assert next_step.within_window(terms, in_doubt("", first_sent_at=0.0, now=89.9), 10.0)
    assert not next_step.within_window(terms, in_doubt("", first_sent_at=0.0, now=90.0), 10.0)
    assert next_step.within_window(terms, in_doubt("", first_sent_at=None, now=900.0), 10.0)
    assert next_step.within_window(Opaque().terms, in_doubt("", first_sent_at=0.0, now=900.0), 10.0)
    over = in_doubt("keyed window=100.0", first_sent_at=0.0, now=95.0)
    with pytest.raises(InDoubt, match="window is over"):
        play(recovery.recover(calling(Keyed(100)), over))


def test_a_window_that_ended_during_the_take_is_a_doubt_again():
    call, doubt = calling(Keyed(100)), in_doubt("keyed window=100.0", first_sent_at=0.0, now=80.0, error="E")
    taken = HELD._replace(first_sent_at=0.0, now=95.0, boundary="keyed window=100.0")
    again = Settle(taken, Role.HOLDER, State.IN_DOUBT, "me", error="E", why="the provider's window ended")
    script = (taking(call, doubt), taken), (Tell("taken_over", taken), None)
    for reply, error in ((None, None), (taken._replace(state=State.IN_DOUBT, error="E"), "E")):
        with pytest.raises(InDoubt, match="ended just now") as told:
            play(recovery.recover(call, doubt), *script, (again, reply))
        assert told.value.error == error
    in_time = taken._replace(now=81.0)
    script = (taking(call, doubt), in_time), (Tell("taken_over", in_time), None)
    assert play(recovery.recover(call, doubt), *script) is in_time
    theirs = record(first_sent_at=0.0, now=95.0)
    assert play(recovery.recover(call, doubt), (taking(call, doubt), theirs)) is theirs


# -- asking ------------------------------------------------------------------------------------------------------

ASKING = in_doubt("asks", asker="me", ask_left=30.0)
ASK = Ask(in_doubt("asks"), "me", 30.0)


def asked(verdict: Any, *script: tuple[Any, Any], asking: Record = ASKING, call: Call | None = None) -> Any:
    seen = asking._replace(asker=None, ask_left=0.0)
    start = (Ask(seen, "me", 30.0), asking), (CallLookup(asking), verdict)
    return play(recovery.recover(call or calling(Asks(find)), seen), *start, *script)


def ending(asking: Record, left: Any = ...) -> tuple[Ask, Any]:
    """The end of our asking, and what it leaves: the doubt, unless it is said."""
    return Ask(asking, "me", 0), asking._replace(asker=None, ask_left=0.0) if left is ... else left


def resolving(state: State, seen: Record = ASKING, **how: Any) -> Settle:
    return Settle(seen, Role.LOOKUP, state, "me", retain_seconds=1000.0, **how)


def test_what_the_provider_says_is_written_down():
    done = completed(ASKING)
    told = (Tell("resolved", done, "Happened"), None)
    happened = resolving(State.COMPLETED, result=RESULT, why="the provider says happened")
    assert asked(Happened("receipt"), (happened, done), told) is done
    assert asked(Happened("receipt"), (happened, None)) is None
    refusal = encode_refusal(Refused("stolen"), max_bytes=ROOM)
    closed = ASKING._replace(state=State.CLOSED)
    closing = resolving(State.CLOSED, result=refusal, error="Declined", why="the provider says declined")
    told = (Tell("resolved", closed, "Declined"), None)
    assert asked(Declined(final=True, reason="stolen"), (closing, closed), told) is closed
    free = ASKING._replace(state=State.RELEASED)
    freeing = resolving(
        State.RELEASED,
        error="Declined",
        why="the provider says declined",
        next_round=True,
        terms=(provider_term(KEY, 1),),
    )
    assert asked(Declined(), (freeing, free), (Tell("resolved", free, "Declined"), None)) is free


def test_a_result_of_the_provider_that_cannot_be_kept_still_happened():
    call = calling(Asks(find), policy=Policy(lease=10, retention=1000, result_max_bytes=20))

    class NotKept(Settle):
        def __eq__(self, other: object) -> bool:
            assert isinstance(other, Settle)
            return (other.state, other.result) == (State.COMPLETED, None) and "not kept" in str(other.error)

    done = completed(ASKING)
    script = (NotKept(ASKING, Role.LOOKUP, State.COMPLETED, "me"), done), (Tell("resolved", done, "Happened"), None)
    assert asked(Happened("x" * 100), *script, call=call) is done


@pytest.mark.parametrize(
    ("verdict", "unsure", "why"),
    [
        (Absent(), False, r"has no record of it, and it may still arrive there \("),
        (StillUnknown(), False, r"does not know \("),
        (StillUnknown("asleep"), False, r"does not know \(asleep\)"),
        (Declined(), True, r"declined it, but an earlier attempt under the same key may still land \("),
        (Declined(final=True), True, "may still land"),
    ],
)
def test_what_says_nothing_leaves_the_doubt_and_ends_the_asking(verdict, unsure, why):
    asking = ASKING._replace(unsure=unsure)
    with pytest.raises(InDoubt, match=why):
        asked(verdict, ending(asking), asking=asking)


@pytest.mark.parametrize(
    "left",
    [
        None,
        completed(ASKING),
        ASKING._replace(token=8),
        ASKING._replace(attempt="other"),
        ASKING._replace(evidence=(Evidence(0.0, 7, "other", State.COMPLETED, RESULT, "late"),)),
    ],
    ids=["gone", "settled", "token", "attempt", "evidence"],
)
def test_what_was_said_while_we_asked_counts(left):
    assert asked(Absent(), ending(ASKING, left)) is left


def test_a_word_that_the_store_did_not_take_leaves_the_doubt_and_says_so():
    happened = resolving(State.COMPLETED, result=RESULT, why="the provider says happened")
    told = (Tell("resolved", ASKING, "Happened"), None)
    with pytest.raises(InDoubt, match="whether charge o-1 happened: the provider says happened"):
        asked(Happened("receipt"), (happened, ASKING), told, ending(ASKING))


def test_contradicting_words_are_evidence():
    word = Testify(KEY, "me", 7, State.IN_DOUBT, None, "the provider has it 2 times")
    said = ASKING._replace(version=2)
    told = (Tell("conflicting", said, "2 results"), None)
    with pytest.raises(InDoubt, match="has it 2 times: refund all but one"):
        asked(Conflicting(("a", "b")), (word, said), told, ending(said))
    assert asked(Conflicting(("a", "b")), (word, None), (Tell("conflicting", ASKING, "2 results"), None)) is None


def test_absence_is_believed_only_after_the_time_the_claim_agreed_to():
    call = calling(Asks(find, 60))
    text = "asks believe_absent_after=60.0"
    old = ASKING._replace(boundary=text, lease_left=-60.0)
    script = (taking(call, old), HELD), (Tell("taken_over", HELD), None)
    assert asked(Absent(), *script, asking=old, call=call) is HELD
    young = old._replace(lease_left=-59.9)
    with pytest.raises(InDoubt):
        asked(Absent(), ending(young), asking=young, call=call)
    with pytest.raises(InDoubt, match="does not know"):
        asked(StillUnknown(), ending(old), asking=old, call=call)  # which is another word
    never = ASKING._replace(lease_left=-6000.0)  # the claim agreed to nothing
    with pytest.raises(InDoubt):
        asked(Absent(), ending(never), asking=never, call=call)


def test_somebody_who_speaks_while_we_ask_wins():
    doubt = in_doubt("asks")
    for other in (None, completed(doubt), doubt._replace(token=8, asker="me"), doubt._replace(attempt="x", asker="me")):
        assert play(recovery.recover(calling(Asks(find)), doubt), (Ask(doubt, "me", 30.0), other)) is other


def test_a_doubt_that_changed_hands_while_we_asked_is_looked_at_anew():
    doubt = in_doubt("asks")
    asked = doubt._replace(asker="me")
    theirs = doubt._replace(token=8, attempt="they")
    settle = Settle(
        asked, Role.LOOKUP, State.COMPLETED, "me", RESULT, None, "the provider says happened", retain_seconds=1000.0
    )
    moved = play(
        recovery.recover(calling(Asks(find)), doubt), (Ask(doubt, "me", 30.0), asked),
        (CallLookup(asked), Happened("receipt")), (settle, theirs), (Tell("resolved", theirs, "Happened"), None),
    )  # fmt: skip

    assert moved is theirs


def test_one_asks_and_the_others_wait():
    doubt = in_doubt("asks")
    theirs = doubt._replace(asker="they", ask_left=9.0)
    start = (Ask(doubt, "me", 30.0), theirs)
    done = completed(doubt)
    assert play(recovery.recover(calling(Asks(find)), doubt), start, (Wait(theirs), done)) is done
    assert play(recovery.recover(calling(Asks(find)), doubt), start, (Wait(theirs), None)) is None
    with pytest.raises(InDoubt, match="another attempt is asking"):
        play(recovery.recover(calling(Asks(find)), doubt), start, (Wait(theirs), theirs))
    for later in (theirs._replace(ask_left=0.0), theirs._replace(asker="third")):
        assert play(recovery.recover(calling(Asks(find)), doubt), start, (Wait(theirs), later)) is later


def test_whoever_is_interrupted_while_asking_lets_the_next_one_ask():
    play(recovery.stop_asking(calling(), ASKING), (Ask(ASKING, "me", 0), None))
    play(recovery.stop_asking(calling(), ASKING), (Ask(ASKING, "me", 0), DOWN))


def test_after_a_loss_the_old_provider_key_is_all_that_protects():
    lost = record(after_loss=True)
    assert recovery.may_rotate(record(), Keyed(keeps_declines=True).terms)
    assert not recovery.may_rotate(lost, Keyed(keeps_declines=True).terms)
    assert recovery.may_rotate(record(), Asks(find).terms)
    assert not recovery.may_rotate(lost, Asks(find).terms)
    assert not recovery.may_rotate(record(), Keyed().terms)
    keyed = Keyed(window=60, lookup=find)
    call = calling(keyed)
    late = in_doubt(keyed.terms.text(), asker="me", ask_left=30.0, after_loss=True, first_sent_at=1.0, now=100.0)
    free = late._replace(state=State.RELEASED)
    freeing = resolving(State.RELEASED, late, error="Declined", why="the provider says declined", next_round=False)
    assert (
        asked(Declined(), (freeing, free), (Tell("resolved", free, "Declined"), None), asking=late, call=call) is free
    )
