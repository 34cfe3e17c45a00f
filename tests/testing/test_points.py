"""Where a handler is stopped: inside a line too, and in a long one at each place - or it is said where not."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from samekey.testing import LedgerProvider, ManualClock, crash_everywhere, four_assumptions, lose_lease
from samekey.testing.handlers import stops
from samekey.testing.handlers.between import TRACES_OPCODES
from samekey.testing.handlers.stops import POINTS_MAX

ORDER = {"order_id": "o", "amount": 1}


def sending(mails: Any) -> Any:
    """Sends and remembers on one line, in each of the ways to write that."""
    done: dict[str, Any] = {}

    class Last:
        order = ""

    def calls(order_id: str, amount: int) -> Any:
        return None if order_id in done else (mails.append(order_id), done.setdefault(order_id, amount))[0]

    def stores(order_id: str, amount: int) -> None:
        if order_id not in done:
            done[order_id] = mails.append(order_id)

    def sets(order_id: str, amount: int) -> None:
        if order_id not in done:
            Last.order = str(mails.append(order_id))
            done[order_id] = Last.order

    return calls, stores, sets


def test_a_python_that_tells_of_single_instructions_is_known_as_one():
    """Else what needs them would be left out without a word."""
    assert TRACES_OPCODES or sys.version_info >= (3, 12)


@pytest.mark.skipif(not TRACES_OPCODES, reason="this Python does not tell of single instructions: 3.12, 3.13.0")
@pytest.mark.parametrize("way", [0, 1, 2])
def test_an_effect_and_its_mark_on_one_line_are_two(way):
    mails: list[str] = []
    handler = sending(mails)[way]

    with pytest.raises(AssertionError, match="mails moved by 2 for one operation") as told:
        crash_everywhere(handler, ORDER, key="order_id", probes={"mails": lambda: mails})
    if way < 2:
        assert "is killed inside line" in str(told.value)


@pytest.mark.skipif(not TRACES_OPCODES, reason="this Python does not tell of single instructions: 3.12, 3.13.0")
def test_a_check_and_an_effect_on_one_line_are_two():
    mails: Any = []
    done: dict[str, Any] = {}

    def notify(order_id: str, amount: int) -> Any:
        return done.get(order_id) or done.setdefault(order_id, mails.append(order_id) or "sent")

    with pytest.raises(AssertionError, match="mails moved by 2 for one operation"):
        lose_lease(notify, ORDER, key="order_id", clock=ManualClock(), probes={"mails": lambda: mails})


def test_a_lock_is_given_back_by_whoever_dies_on_its_line():
    """Nobody is stopped between a with-block and its end."""
    lock, answers, provider = threading.Lock(), dict[str, str](), LedgerProvider()

    def charge(order_id: str, amount: int) -> str:
        with lock if str(order_id) else threading.Lock():
            if order_id not in answers:
                answers[order_id] = provider.charge(amount, order=order_id, key=order_id).id
        return answers[order_id]

    assert crash_everywhere(charge, ORDER, key="order_id", provider=provider).holds


def test_a_lock_is_given_back_by_whoever_dies_beside_the_try_block_that_does_it():
    """Right before it, and right before the line that gives it back: the next caller would wait for ever."""
    lock, answers, provider = threading.Lock(), dict[str, str](), LedgerProvider()

    def charge(order_id: str, amount: int) -> str:
        lock.acquire()
        try:
            if order_id not in answers:
                answers[order_id] = provider.charge(amount, order=order_id, key=order_id).id
            return answers[order_id]
        finally:
            lock.release()

    assert crash_everywhere(charge, ORDER, key="order_id", provider=provider).holds


def test_a_caller_that_never_comes_back_is_told_with_what_was_before_it(monkeypatch):
    """Somebody died with a lock that nothing gives back."""
    monkeypatch.setattr(stops, "CALL_SECONDS_MAX", 0.5)
    lock, provider = threading.Lock(), LedgerProvider()

    def charge(order_id: str, amount: int) -> str:
        lock.acquire()
        answer = provider.charge(amount, order=order_id, key=order_id).id
        lock.release()
        return answer

    with pytest.raises(AssertionError, match=r"(?s)did not come back within .* 1\. A is called and is killed before"):
        crash_everywhere(charge, ORDER, key="order_id", provider=provider)


def long(mails: list[str], *, careless: bool) -> Any:
    done, lock = dict[str, int](), threading.Lock()

    def notify(order_id: str, lines: list[int]) -> int:
        with lock:
            if order_id in done:
                return done[order_id]
            total = 0
            for one in lines:
                total += one
            if not careless:
                done[order_id] = total
            mails.append(order_id)
            if careless:
                done[order_id] = total
            return total

    return notify


def test_a_loop_does_not_hide_what_comes_after_it():
    mails: list[str] = []
    payload = {"order_id": "o", "lines": list(range(POINTS_MAX))}

    report = four_assumptions(long(mails, careless=True), payload=payload, probes={"mails": lambda: mails})
    assert "Boundary" in report.broken
    assert any("the first and the last of each place" in note for note in report.boundary.notes)
    assert report.boundary.schedules < 50


def test_a_handler_with_too_many_places_is_not_said_to_hold():
    """And one that goes on for ever is not tried for ever."""
    mails: list[str] = []
    lines = "\n".join(f"    total = {number}" for number in range(POINTS_MAX + 10))
    made: dict[str, Any] = {"mails": mails}
    exec(f"def many(order_id):\n{lines}\n    if order_id not in mails: mails.append(order_id)", made)

    with pytest.raises(AssertionError, match=r"it was not stopped at \d+ of its places"):
        crash_everywhere(made["many"], {"order_id": "o"}, probes={"mails": lambda: mails})
