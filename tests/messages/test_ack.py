"""The table that decides every ack: each of its rows, and what holds for every cell of the grid."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from samekey import Answer, InDoubt, InProgress, KeyReused, NotDone, Refused, ResultNotKept, StoreUnavailable
from samekey.core.errors import Fenced
from samekey.core.states import State
from samekey.guard.adapters import Doubt, Down, Ended, Mismatch, NotKept, Refusal, Waiting
from samekey.messages._ack import Action, Delivery, Poison, Rules, Shutdown, TooBig, decide

RULES = Rules(tries=3)
FIRST = Delivery(tries=1)
LAST = Delivery(tries=3)
LOST = Delivery(tries=1, lost=True)
CUT = Delivery(tries=1, cut=True)


def answer(result: Any = "receipt") -> Answer[Any]:
    return Answer(result, State.COMPLETED, replayed=True, key="o-1", token=1, attempts=1)


def doubt(following: Any, left: float = 0.0) -> Doubt:
    error = InDoubt(
        "unknown", key="o-1", token=1, error="TimeoutError", age_seconds=1.0, next=following, retry_after=left
    )
    return Doubt(error, following, left)


def ended(state: State | None, following: Any = "answers", *, recorded: bool = True, **more: Any) -> Ended:
    return Ended(state, recorded, next=following, **more)


def fenced() -> Fenced:
    return Fenced("lost", key="o-1", token=1)


def reused() -> Mismatch:
    return Mismatch(KeyReused("another payload", key="o-1", fields=("amount", "to")))


WAITING = Waiting(InProgress("held", key="o-1", token=1, retry_after=12.0), 12.0)
DOWN = Down(StoreUnavailable("down"))
NOT_DONE = ended(State.RELEASED, "runs", error=NotDone("busy"))
RUNS = ended(State.IN_DOUBT, "runs", error=TimeoutError())
ASKS = ended(State.IN_DOUBT, "asks", error=TimeoutError())
PERSON = ended(State.IN_DOUBT, "person", error=TimeoutError())
UNWRITTEN = ended(State.STARTED, "person", recorded=False)
TAKEN = ended(State.STARTED, "runs", recorded=False, error=fenced())

# row, what the guard answered, the delivery, and what is expected of the action
ROWS: list[tuple[str, Any, Delivery, dict[str, Any]]] = [
    ("1", ended(State.COMPLETED, result="receipt"), FIRST, {"verb": "ack", "result": "receipt", "replayed": False}),
    ("2", answer(), FIRST, {"verb": "ack", "result": "receipt", "replayed": True}),
    ("2", NotKept(ResultNotKept("gone", key="o-1")), FIRST, {"verb": "ack", "replayed": True}),
    ("3", WAITING, FIRST, {"verb": "later", "seconds": 12.0, "counted": False}),
    ("3", WAITING, LAST, {"verb": "later", "seconds": 12.0, "counted": False}),
    ("1", ended(State.COMPLETED), Delivery(tries=2), {"verb": "ack"}),  # row 4: took over, then completed
    ("5", NOT_DONE, FIRST, {"verb": "later", "seconds": 1.0, "counted": True}),
    ("5", NOT_DONE, Delivery(tries=2), {"verb": "later", "seconds": 2.0, "counted": True}),
    ("5", NOT_DONE, LAST, {"verb": "dead", "kind": "not done", "reason": "not done after 3 tries: NotDone"}),
    ("6", ended(None, "runs", recorded=False, error=KeyError()), FIRST, {"verb": "later", "counted": True}),
    ("6", ended(None, "runs", recorded=False, error=KeyError()), LAST, {"verb": "dead", "kind": "not done"}),
    ("7a", RUNS, FIRST, {"verb": "later", "counted": True}),
    ("7a", RUNS, LAST, {"verb": "park", "kind": "in doubt"}),
    ("7b", ASKS, FIRST, {"verb": "later", "counted": True}),
    ("7b", ASKS, LAST, {"verb": "park", "reason": "in doubt after 3 tries: TimeoutError"}),
    ("7c", PERSON, FIRST, {"verb": "park", "reason": "in doubt: TimeoutError"}),
    ("8", Refusal(Refused("stolen card")), FIRST, {"verb": "ack", "replayed": True}),
    ("8", ended(State.CLOSED, error=Refused("stolen card")), FIRST, {"verb": "ack", "replayed": False}),
    ("9", doubt("asks", 7.0), FIRST, {"verb": "later", "seconds": 7.0, "counted": False}),
    ("9", doubt("asks"), FIRST, {"verb": "later", "counted": True}),
    ("9", doubt("asks"), LAST, {"verb": "park"}),
    ("9", doubt("runs"), FIRST, {"verb": "later", "counted": True}),
    ("9", doubt("person"), FIRST, {"verb": "park", "reason": "in doubt: TimeoutError"}),
    ("10", reused(), FIRST, {"verb": "dead", "reason": "key reused: fields amount, to"}),
    ("11", Poison("$.amount"), FIRST, {"verb": "dead", "reason": "poison: $.amount"}),
    ("12", TooBig(300, 256), FIRST, {"verb": "dead", "reason": "too big: 300 bytes, 256 are the limit"}),
    ("1", ended(State.COMPLETED, result=None), FIRST, {"verb": "ack"}),  # row 12: the result is too big to keep
    ("13", DOWN, FIRST, {"verb": "later", "seconds": 2.0, "counted": False, "stop": True}),
    ("14", UNWRITTEN, FIRST, {"verb": "silent", "stop": True}),
    ("14", ended(State.STARTED, recorded=False, error=StoreUnavailable("x")), FIRST, {"verb": "silent", "stop": True}),
    ("15", ended(State.COMPLETED, replayed=True), LOST, {"verb": "ack"}),
    ("15", NOT_DONE, LOST, {"verb": "silent"}),
    ("15", PERSON, LOST, {"verb": "silent"}),
    ("15", TAKEN, FIRST, {"verb": "silent", "stop": False}),
    ("16", Shutdown(), FIRST, {"verb": "later", "seconds": 0.0, "counted": False}),
    ("16", ended(State.RELEASED, "runs"), CUT, {"verb": "later", "seconds": 0.0, "counted": False}),
    ("16", PERSON, CUT, {"verb": "silent"}),
    ("16", RUNS, CUT, {"verb": "silent"}),
]


@pytest.mark.parametrize(("row", "outcome", "delivery", "expected"), ROWS)
def test_each_row_of_the_table(row: str, outcome: Any, delivery: Delivery, expected: dict[str, Any]):
    action = decide(outcome, delivery, RULES)

    assert action.row == row
    assert {name: getattr(action, name) for name in expected} == expected


def test_a_refusal_goes_to_the_dead_letters_where_the_application_asks_for_it():
    rules = Rules(refused="dead")

    now = decide(ended(State.CLOSED, error=Refused("no")), FIRST, rules)
    before = decide(Refusal(Refused("no")), FIRST, rules)

    assert (now.verb, now.kind, now.replayed) == ("dead", "refused", False)
    assert (before.verb, before.kind, before.replayed) == ("dead", "refused", True)


def test_waits_grow_have_a_limit_and_are_spread():
    rules = Rules(backoff=1.0, backoff_max=20.0)
    waits = [rules.after(tries, 0.0) for tries in range(1, 9)]

    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0, 20.0]
    assert rules.after(10**6, 1.0) == 25.0
    assert decide(WAITING, Delivery(jitter=1.0), Rules(later_max=4.0)).seconds == 5.0


# -- the whole grid ----------------------------------------------------------------------------------------------------

NEXTS: tuple[Any, ...] = ("answers", "runs", "asks", "person")
STATES: list[State | None] = [None, *State]
ERRORS: list[BaseException | None] = [
    None,
    NotDone(),
    Refused(),
    RuntimeError(),
    TimeoutError(),
    fenced(),
    StoreUnavailable("x"),
]
ENDS: list[Any] = [
    Ended(state, recorded, replayed, None, error, following, 0.0)
    for state, recorded, replayed, error, following in itertools.product(
        STATES, (True, False), (True, False), ERRORS, NEXTS
    )
]
OTHERS: list[Any] = [answer(), Refusal(Refused("x")), WAITING, DOWN, reused(), Poison("x"), TooBig(2, 1), Shutdown()]
OTHERS += [doubt(following, left) for following in ("runs", "asks", "person") for left in (0.0, 5.0)]
DELIVERIES = [
    Delivery(tries, lost, cut, jitter)
    for tries, lost, cut, jitter in itertools.product((1, 2, 3, 50), (True, False), (True, False), (0.0, 1.0))
]
SETTLED = (State.COMPLETED, State.CLOSED)


def wrong(outcome: Any, delivery: Delivery, action: Action) -> str:
    """What of the rules above the rows this action breaks."""
    settled = isinstance(outcome, Ended) and outcome.recorded and outcome.state in SETTLED
    unguarded = isinstance(outcome, Ended) and outcome.state is None
    if action.verb == "ack" and isinstance(outcome, Ended) and not settled:
        if not (unguarded and outcome.error is None):
            return "acknowledged although the record is not settled"
    if isinstance(outcome, Ended) and delivery.lost and not settled and not unguarded and action.verb != "silent":
        return "spoke to the broker after the lease was lost"
    if isinstance(outcome, Ended) and not outcome.recorded and not unguarded and action.verb != "silent":
        return "spoke to the broker although nothing was written"
    if action.verb == "dead" and isinstance(outcome, Ended) and outcome.state is State.IN_DOUBT:
        return "an effect that may have happened is dead-lettered as if it had not"
    if action.verb in ("park", "dead") and not (action.reason and action.kind):
        return "set aside without a reason"
    if action.verb == "later" and not 0 <= action.seconds <= RULES.backoff_max * 1.25:
        return "waits too long"
    if action.counted and delivery.tries >= RULES.tries:
        return "a try more than allowed"
    return "" if action.row else "no row"


def test_the_rules_hold_in_every_cell_of_the_grid():
    cells = [(outcome, delivery) for outcome in (*ENDS, *OTHERS) for delivery in DELIVERIES]
    broken = []
    for outcome, delivery in cells:
        problem = wrong(outcome, delivery, decide(outcome, delivery, RULES))
        if problem:
            broken.append((problem, outcome, delivery))

    assert broken == []
    assert len(cells) > 20_000
