"""What Python cleans up by itself in the middle of a call: it is no part of it."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from samekey import Guard
from samekey.testing import LedgerProvider, ManualClock, crash_everywhere

ORDER = {"order_id": "o", "amount": 200}


@pytest.fixture
def provider() -> LedgerProvider:
    clock = ManualClock(1_700_000_000)
    return LedgerProvider(clock=clock, sleep=clock.advance)


@pytest.fixture
def ignored(monkeypatch):
    """What finalizers swallowed."""
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda failed: told.append(failed.exc_type))
    return told


@pytest.fixture
def busy_collector():
    before = gc.get_threshold()
    gc.set_threshold(5)
    yield
    gc.set_threshold(*before)


def lines() -> Iterator[int]:
    try:
        yield 1
    finally:
        gc.isenabled()


class Line:
    def __del__(self) -> None:
        gc.isenabled()


def test_what_other_calls_left_behind_is_not_closed_in_the_middle_of_one(provider, ignored, busy_collector):
    guard = Guard("memory://")

    @guard.once(name="charge", key="order_id")
    def charge(order_id: str, amount: int) -> Any:
        for _ in range(3):
            read = lines()
            next(read)
            mine: list[Any] = [read]
            mine.append(mine)  # only the collector finds it
        return provider.charge(amount, order=order_id).id

    found = crash_everywhere(charge, ORDER, key="order_id", provider=provider)

    assert found.holds
    assert found.notes == ("after a crash at some of its points a retry raises InProgress",)  # each point came again
    assert ignored == []
    assert gc.isenabled()


def test_nobody_is_told_of_a_call_that_dies_while_something_is_dropped(provider, ignored):
    def charge(order_id: str, amount: int) -> Any:
        line = Line()
        del line
        return provider.charge(amount, order=order_id, key=order_id).id

    assert crash_everywhere(charge, ORDER, key="order_id", provider=provider).holds
    assert ignored == []


def test_what_fails_in_a_finalizer_by_itself_is_told_as_ever(provider, ignored):
    class Broken:
        def __del__(self) -> None:
            raise OSError

    def charge(order_id: str, amount: int) -> Any:
        Broken()
        return provider.charge(amount, order=order_id, key=order_id).id

    assert crash_everywhere(charge, ORDER, key="order_id", provider=provider).holds
    assert set(ignored) == {OSError}


def test_a_collector_that_was_off_stays_off(provider):
    gc.disable()
    try:
        crash_everywhere(
            lambda order_id, amount: provider.charge(amount, order=order_id, key=order_id).id,
            ORDER,
            key="order_id",
            provider=provider,
        )
        assert not gc.isenabled()
    finally:
        gc.enable()
