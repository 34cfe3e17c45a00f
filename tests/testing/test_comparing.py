"""What a probe returns and what a handler answers is compared by what it says, and else nothing is said of it."""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from samekey import Guard, Policy
from samekey.stores.memory import MemoryStore
from samekey.testing import (
    InsufficientFunds,
    LedgerProvider,
    ManualClock,
    four_assumptions,
    off,
    redeliver,
    run_in_parallel,
    run_twice,
)

ORDER = {"order_id": "o", "amount": 1}


class Row:
    """It has no == of its own."""

    def __init__(self, what: Any) -> None:
        self.what = what


class Slotted:
    __slots__ = ("what",)

    def __init__(self, what: Any) -> None:
        self.what = what


READ = iter([1])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000)


@pytest.fixture
def db():
    with sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None) as db:
        db.execute("CREATE TABLE mails (id)")
        yield db
    db.close()


PROBES: dict[str, Callable[[Any, dict[str, int]], Any]] = {
    "values": lambda db, sent: sent.values(),
    "keys": lambda db, sent: sent.keys(),
    "items": lambda db, sent: sent.items(),
    "generator": lambda db, sent: (one for one in sent),
    "nested": lambda db, sent: {"all": sent.values()},
    "cursor": lambda db, sent: db.execute("SELECT * FROM mails"),
}


@pytest.mark.parametrize("seen", PROBES)
def test_a_probe_may_be_a_view_a_generator_or_a_cursor(db, clock, seen):
    """What is right passes, and what is wrong is seen in each."""
    sent: dict[str, int] = {}
    numbers = itertools.count()

    def notify(order_id: str) -> None:
        sent[f"{order_id} {next(numbers)}"] = 1
        db.execute("INSERT INTO mails VALUES (?)", (order_id,))

    guarded = Guard(MemoryStore(clock)).once(name="notify", key="order_id")(notify)
    probes = {"seen": lambda: PROBES[seen](db, sent)}

    four_assumptions(guarded, payload={"order_id": "o"}, clock=clock, probes=probes).check()
    run_twice(guarded, {"order_id": "p"}, probes=probes)
    with pytest.raises(AssertionError, match="seen moved"):
        run_twice(notify, {"order_id": "o"}, probes=probes)
    with pytest.raises(AssertionError, match="moved by 5 for one operation"):
        run_in_parallel(notify, {"order_id": "o"}, n=4, probes=probes)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Row(1), "two looks in a row differ"),
        (lambda: itertools.count(), "more than"),
        (lambda: READ, "gives the same iterator"),
        (lambda: [Unequal()], "cannot be compared"),
    ],
)
def test_a_probe_that_cannot_judge_is_refused_by_its_name(make, why):
    sent: list[str] = []
    probes = {"sent": lambda: sent, "odd": make}

    for tried in (run_twice, redeliver, run_in_parallel):
        with pytest.raises(ValueError, match=f"the probe odd.*{why}"):
            tried(once(sent), {"to": "ann"}, probes=probes)


def once(sent: list[str]) -> Any:
    return Guard("memory://").once(name="mail", key="to")(lambda to: sent.append(to))


class Unequal:
    """As arrays are: == gives no word."""

    def __eq__(self, other: object) -> Any:
        raise ValueError("the truth of an array is ambiguous")

    __hash__ = None  # type: ignore[assignment]


def test_objects_that_only_appear_after_the_first_run_are_refused_too():
    """An ORM's rows, loaded anew at each look: the first look saw none."""
    sent: list[str] = []

    with pytest.raises(ValueError, match=r"the probe rows.*differ"):
        run_twice(once(sent), {"to": "ann"}, probes={"rows": lambda: [Row(one) for one in sent]})
    with pytest.raises(ValueError, match=r"the probe rows.*differ"):
        run_in_parallel(once([]), {"to": "ann"}, probes={"rows": lambda: [Row(1)]})


# -- answers ---------------------------------------------------------------------------------------------------------


def charging(clock: ManualClock, wrap: Callable[[str], Any]) -> tuple[Any, LedgerProvider]:
    provider = LedgerProvider(clock=clock)
    guard = Guard(MemoryStore(clock), policy=Policy(releases=(InsufficientFunds,)))
    inner = guard.once(name="charge", key="order_id")(
        lambda order_id, amount: provider.charge(amount, order=order_id).id
    )
    return (lambda order_id, amount: wrap(inner(order_id, amount))), provider


@pytest.mark.parametrize("wrap", [Row, lambda id: [Row(id)], lambda id: {"row": Row(id)}])
def test_answers_without_an_equality_of_their_own_are_compared_by_what_they_hold(clock, wrap):
    charge, provider = charging(clock, wrap)

    report = four_assumptions(charge, payload=ORDER, other_payload={"amount": 2}, clock=clock, provider=provider)
    assert report.check().holds
    run_twice(charge, ORDER, provider=provider)


@pytest.mark.parametrize("wrap", [Slotted, lambda id: Row(object()), lambda id: [Unequal()]])
def test_answers_that_cannot_be_compared_are_unknown_and_never_wrong(clock, wrap):
    charge, provider = charging(clock, wrap)

    report = four_assumptions(charge, payload=ORDER, other_payload={"amount": 2}, clock=clock, provider=provider)
    assert report.broken == ()
    assert report.memory.holds is None
    assert any("has no == of its own" in note for note in report.memory.notes)
    with pytest.raises(AssertionError, match="has no == of its own"):
        run_twice(charge, ORDER, provider=provider)


def test_answers_that_hold_something_else_are_told_apart_where_they_can_be(clock):
    numbers = itertools.count()
    charge, provider = charging(clock, lambda id: {"row": Row(id), "number": next(numbers)})

    report = four_assumptions(charge, payload=ORDER, clock=clock, provider=provider)
    assert "Memory" in report.broken


# -- off -------------------------------------------------------------------------------------------------------------


def test_a_guarded_handler_is_not_tried_while_guards_are_off(clock):
    """It would be told to be broken, and it is not: nobody guards it."""
    sent: list[str] = []
    around: dict[str, Any] = {"probes": {"sent": lambda: sent}}
    with off():
        for tried in (run_twice, redeliver, run_in_parallel):
            with pytest.raises(ValueError, match="guards are off"):
                tried(once(sent), {"to": "ann"}, **around)
        with pytest.raises(ValueError, match="guards are off"):
            four_assumptions(once(sent), payload={"to": "ann"}, **around)
        guard = Guard("memory://")
        with pytest.raises(ValueError, match="guards are off"):
            four_assumptions(lambda to: sent.append(to), payload={"to": "ann"}, guard=guard, **around)

    assert sent == []


def test_a_guard_inside_that_is_off_is_told_with_what_was_found():
    sent: list[str] = []
    mail = once(sent)
    around: dict[str, Any] = {"probes": {"sent": lambda: sent}}
    with off():
        with pytest.raises(AssertionError, match="guards are off"):
            run_twice(lambda to: mail(to), {"to": "ann"}, **around)
        with pytest.raises(AssertionError, match="guards are off"):
            redeliver(lambda to: mail(to), {"to": "ann"}, **around)
        report = four_assumptions(lambda to: mail(to), payload={"to": "ann"}, **around)

    assert all(any("guards are off" in note for note in one.notes) for one in report.findings if one.schedules)
