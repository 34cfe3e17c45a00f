"""Threads take turns on a connection, and an interrupt of the leader harms no other caller."""

from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from samekey.core.errors import StoreUnavailable
from samekey.stores import _turns
from samekey.stores.postgres import _threads
from samekey.testing.stores.scene import A
from tests.servers.postgres.helpers import attempt, until

pytestmark = pytest.mark.slow


def test_ctrl_c_in_the_leader_does_not_take_the_others_with_it(store, scene, monkeypatch):
    """The thread that sends for all is interrupted: those who stood behind it ask for themselves."""
    store.carry_out(scene.opening("connected"))
    lane, send = store._connections().claims, store._connections().claims._carry_out
    entered, go = threading.Event(), threading.Event()

    def interrupted(items: Any, turn: Any) -> Any:
        entered.set()
        go.wait(5)
        monkeypatch.setattr(lane, "_carry_out", second)
        return send(items, turn)

    def second(items: Any, turn: Any) -> Any:
        monkeypatch.setattr(lane, "_carry_out", send)
        raise KeyboardInterrupt

    monkeypatch.setattr(lane, "_carry_out", interrupted)

    def claim(number: int) -> Any:
        try:
            return store.carry_out(scene.opening(str(number), by=attempt(number))).attempt
        except KeyboardInterrupt:
            return "interrupted"

    with ThreadPoolExecutor(8) as pool:
        claims = [pool.submit(claim, 0)]
        entered.wait(5)
        claims += [pool.submit(claim, number) for number in range(1, 8)]
        until(lambda: len(lane._queue) == 7)
        go.set()
        said = [one.result(10) for one in claims]

    assert said.count("interrupted") == 1
    assert {one for one in said if one != "interrupted"} <= {attempt(number) for number in range(8)}
    assert store.carry_out(scene.opening("after")).attempt == A


class TimeLimit(Exception):
    """As a task queue raises it out of a signal handler."""


@contextlib.contextmanager
def interrupted_at(number: int):
    """A signal whose handler raises, at so-manieth place of the lanes' own at which Python looks for signals.

    That is as a function begins, and as one written in C has returned: a profiler hears of both.
    """
    places = itertools.count(1)
    struck: list[int] = []

    def look(frame: Any, event: str, _: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename in (_turns.__file__, _threads.__file__):
            if next(places) == number:
                struck.append(frame.f_lineno)
                raise TimeLimit

    sys.setprofile(look)
    try:
        yield struck
    except TimeLimit:
        pass
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("followed", [False, True], ids=["alone", "followed"])
def test_a_lane_outlives_an_interrupt_anywhere(store, scene, monkeypatch, followed):
    """Whoever leads may be interrupted anywhere: the lead is handed on, and nobody waits for it in vain."""
    monkeypatch.setattr(_turns, "TURN_SECONDS", 1.0)  # whoever is forgotten is found out,
    monkeypatch.setattr(_turns.Turns, "_taken_over", lambda lane, asked: False)  # and does not help itself
    store.carry_out(scene.opening("connected"))
    lane, send = store._connections().claims, store._connections().claims._carry_out

    with ThreadPoolExecutor(2) as pool:

        def with_others_behind_us(items: Any, turn: Any) -> Any:
            monkeypatch.setattr(lane, "_carry_out", send)
            behind.extend(pool.submit(store.carry_out, scene.opening(f"{number} {which}")) for which in "ab")
            until(lambda: len(lane._queue) == 2)
            return send(items, turn)

        for number in itertools.count(1):
            behind: list[Any] = []
            monkeypatch.setattr(lane, "_carry_out", with_others_behind_us if followed else send)
            with interrupted_at(number) as struck:
                store.carry_out(scene.opening(str(number)))
            monkeypatch.setattr(lane, "_carry_out", send)
            assert store.carry_out(scene.opening(f"{number} after")).attempt == A
            assert [one.result(10).attempt for one in behind] == [A] * len(behind)
            assert (lane._leader, list(lane._queue), lane._waking.places) == (None, [], set())
            if not struck:
                break

    assert number > 5, "hardly anything was interrupted"


def test_a_lead_that_nobody_has_any_more_is_taken_over(store, scene, monkeypatch):
    """Interrupted twice in the same instant; what it left on its connection is left to it."""
    store.carry_out(scene.opening("connected"))
    lane = store._connections().claims
    connection, lane._leader = lane._connection, [object()]
    monkeypatch.setattr(_turns, "TURN_SECONDS", 0.01)

    assert store.carry_out(scene.opening("after")).attempt == A
    assert (lane._leader, list(lane._queue)) == (None, [])
    assert lane._connection is not connection
    connection.close()


def test_whoever_took_too_long_leaves_the_lane_to_those_who_took_over(store, scene, monkeypatch):
    """It comes back in the middle of others' turn: it is told, and touches nothing of theirs."""
    store.carry_out(scene.opening("connected"))
    lane = store._connections().claims
    left, send, slow, over = lane._connection, lane._carry_out, threading.Event(), threading.Event()

    def sleeping(items: Any, turn: Any) -> Any:
        monkeypatch.setattr(lane, "_carry_out", send)
        slow.set()
        assert over.wait(10)
        return send(items, turn)

    monkeypatch.setattr(lane, "_carry_out", sleeping)
    monkeypatch.setattr(_turns, "TURN_SECONDS", 0.01)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(store.carry_out, scene.opening("late"))
        assert slow.wait(10)
        assert store.carry_out(scene.opening("after")).attempt == A
        connection = lane._connection
        over.set()
        with pytest.raises(StoreUnavailable, match="others have it now"):
            late.result(10)
    assert store.carry_out(scene.opening("late")).attempt == A
    assert lane._connection is connection
    left.close()
