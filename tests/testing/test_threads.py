"""A handler is stopped in the threads that it uses, too; where it cannot be, nothing is said to hold."""

from __future__ import annotations

import asyncio
import itertools
import logging
import logging.handlers
import queue
import re
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from samekey import AsyncGuard, Guard
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing import ManualClock, crash_everywhere, four_assumptions, rows
from samekey.testing.faulty import Crashed
from samekey.testing.handlers import stops, threads

ORDER = {"order_id": "o", "amount": 1}


class Desk:
    """Sends a mail for an order, once as long as nobody dies: or claims first, and never sends twice."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.db.execute("CREATE TABLE keys (key PRIMARY KEY, answer)")
        self.db.execute("CREATE TABLE mails (order_id)")
        self.lock = threading.Lock()  # one process, so no race

    def careless(self, order_id: str, amount: int) -> str:
        with self.lock:
            if self.db.execute("SELECT 1 FROM keys WHERE key = ?", (order_id,)).fetchone():
                return "sent"
            self.db.execute("INSERT INTO mails VALUES (?)", (order_id,))
            self.db.execute("INSERT INTO keys VALUES (?, 'sent')", (order_id,))
            return "sent"

    def careful(self, order_id: str, amount: int) -> str:
        with self.lock:
            if self.db.execute("INSERT OR IGNORE INTO keys VALUES (?, NULL)", (order_id,)).rowcount:
                self.db.execute("INSERT INTO mails VALUES (?)", (order_id,))
                self.db.execute("UPDATE keys SET answer = 'sent' WHERE key = ?", (order_id,))
            found = self.db.execute("SELECT answer FROM keys WHERE key = ?", (order_id,)).fetchone()
            if found[0] is None:
                raise RuntimeError("in doubt")
            return str(found[0])


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.db.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1, thread_name_prefix="desk") as pool:
        yield pool


def crashed(handler: Any, desk: Desk) -> Any:
    around: dict[str, Any] = {"key": "order_id", "clock": ManualClock()}
    return crash_everywhere(handler, ORDER, probes={"mails": rows(desk.db, "SELECT * FROM mails")}, **around)


def in_a_thread(work: Any) -> Any:
    def handler(order_id: str, amount: int) -> Any:
        answers: list[Any] = []
        thread = threading.Thread(target=lambda: answers.append(work(order_id, amount)))
        thread.start()
        thread.join()
        return answers[0] if answers else None

    return handler


def beside_a_loop(work: Any) -> Any:
    async def handler(order_id: str, amount: int) -> Any:
        return await asyncio.to_thread(work, order_id, amount)

    return handler


def behind_a_client(work: Any, *, awaits: bool) -> Any:
    app = FastAPI()

    @app.post("/mails")
    def view(order: dict[str, Any]) -> Any:
        return work(**order)

    @app.post("/async")
    async def async_view(order: dict[str, Any]) -> Any:
        return work(**order)

    client = TestClient(app, raise_server_exceptions=True)

    def handler(order_id: str, amount: int) -> Any:
        path = "/async" if awaits else "/mails"
        return client.post(path, json={"order_id": order_id, "amount": amount}).json()

    return handler


WAYS = {
    "thread": in_a_thread,
    "to_thread": beside_a_loop,
    "client": lambda work: behind_a_client(work, awaits=False),
    "async client": lambda work: behind_a_client(work, awaits=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_crash_in_another_thread_is_a_crash(desk, way):
    with pytest.raises(AssertionError, match="mails moved by 2 for one operation") as told:
        crashed(WAYS[way](desk.careless), desk)

    assert "is killed" in str(told.value)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "thread"])  # that one answers None when its work fails
def test_what_is_right_in_another_thread_passes(desk, way):
    assert crashed(WAYS[way](desk.careful), desk).holds


def test_a_thread_that_writes_a_log_works_for_nobody(desk):
    """What a handler logs is written down in a thread that was there before: that is no part of the handler."""
    lines: queue.Queue[Any] = queue.Queue()
    listener = logging.handlers.QueueListener(lines, logging.NullHandler())
    log = logging.getLogger("samekey.tests.threads")
    log.propagate, log.handlers = False, [logging.handlers.QueueHandler(lines)]
    listener.start()
    try:

        def handler(order_id: str, amount: int) -> str:
            log.error("sending")
            return str(desk.careful(order_id, amount))

        assert crashed(handler, desk).holds
    finally:
        listener.stop()
        log.handlers = []


def test_a_pool_is_traced_again_after_somebody_died_in_it(desk, pool):
    """Its only thread is unwound for each of the dead, and serves the next."""
    for careful in (True, False):
        work = desk.careful if careful else desk.careless

        def handler(order_id: str, amount: int, work: Any = work) -> Any:
            return pool.submit(work, order_id, amount).result()

        if careful:
            found = crashed(handler, desk)
            assert found.holds
            assert found.schedules > 8
        else:
            with pytest.raises(AssertionError, match="mails moved by 2 for one operation"):
                crashed(handler, desk)


def test_a_guard_in_a_pool_survives_what_a_guard_survives(pool):
    clock, sent = ManualClock(), list[str]()
    guard = Guard(MemoryStore(clock))
    mail = guard.once(name="mail", key="order_id")(lambda order_id, amount: sent.append(order_id))

    report = four_assumptions(
        lambda **order: pool.submit(mail, **order).result(),
        payload=ORDER,
        other_payload={"amount": 2},
        clock=clock,
        guard=guard,
        probes={"sent": lambda: sent},
    )
    assert report.check().boundary.schedules >= 8  # before and after each command of its store, and more


# -- where it cannot be stopped ----------------------------------------------------------------------------------------


def test_a_pool_that_was_there_before_is_named_and_nothing_holds_by_it(desk, pool):
    pool.submit(int).result()

    with pytest.raises(AssertionError, match=r"unknown, .*\n.*could not be stopped \(desk_0\)"):
        crashed(lambda **order: pool.submit(desk.careless, **order).result(), desk)


def test_a_client_that_was_started_before_is_named_too(desk):
    app = FastAPI()

    @app.post("/mails")
    async def view(order: dict[str, Any]) -> Any:
        return desk.careless(**order)

    with (
        TestClient(app) as client,
        pytest.raises(AssertionError, match=r"unknown, .*\n.*could not be stopped"),
    ):
        crashed(lambda **order: client.post("/mails", json=order).json(), desk)


@pytest.mark.parametrize("early", [True, False])
def test_a_thread_that_goes_on_from_call_to_call_is_named(early):
    """A consumer: it is shared by all calls, so it is not killed for one of them."""
    mails: list[str] = []
    tasks: queue.Queue[str | None] = queue.Queue()

    def consume() -> None:
        while (order := tasks.get()) is not None:
            mails.append(order)
            tasks.task_done()

    consumer = threading.Thread(target=consume, name="consumer", daemon=True)
    if early:
        consumer.start()
    done: set[str] = set()

    def handler(order_id: str, amount: int) -> None:
        if not consumer.is_alive():
            consumer.start()
        if order_id not in done:
            done.add(order_id)
            tasks.put(order_id)
            tasks.join()

    with pytest.raises(AssertionError, match=r"could not be stopped \(consumer\)|nothing was done"):
        crash_everywhere(handler, ORDER, key="order_id", probes={"mails": lambda: mails})
    assert consumer.is_alive()
    tasks.put(None)
    consumer.join()


@pytest.mark.parametrize("pauses", [0, 3])
def test_a_mail_that_a_task_sends_after_the_answer_is_seen_and_can_be_lost(pauses):
    """A loop that lasts would go on with it: so it is waited for, and whoever is killed meanwhile has lost it."""
    charges, mails, tasks, clock = list[str](), list[str](), set[asyncio.Task[None]](), ManualClock()
    guard = AsyncGuard(AsyncMemoryStore(clock=clock))

    async def mail(order_id: str) -> None:
        for _ in range(pauses):
            await asyncio.sleep(0.001)  # a timer of the loop, not only its next turn
        mails.append(order_id)

    @guard.once(name="charge", key="order_id")
    async def charge(order_id: str, amount: int) -> str:
        charges.append(order_id)
        tasks.add(asyncio.create_task(mail(order_id)))
        return order_id

    with pytest.raises(AssertionError, match="got an answer, but mails moved by 0 instead of 1: nothing was done"):
        crash_everywhere(charge, ORDER, clock=clock, probes={"charges": lambda: charges, "mails": lambda: mails})


@pytest.mark.parametrize("way", ["task", "thread", "timer"])
def test_what_goes_on_long_after_the_answer_is_named_and_nothing_holds_by_it(way, monkeypatch):
    """Nobody will see what it does: it may send a mail for which nobody has a key."""
    monkeypatch.setattr(stops, "LEFT_SECONDS_MAX", 0.01)
    charges, clock, over, kept = list[str](), ManualClock(), threading.Event(), list[Any]()
    guard: Any = (AsyncGuard if way == "task" else Guard)("memory://")

    async def later() -> None:
        await asyncio.Event().wait()

    async def in_a_task(order_id: str, amount: int) -> None:
        charges.append(order_id)
        kept.append(asyncio.create_task(later()))

    def in_a_thread(order_id: str, amount: int) -> None:
        charges.append(order_id)
        kept.append(threading.Thread(target=lambda: over.wait(60), name="later", daemon=True))
        kept[-1].start()

    def in_a_timer(order_id: str, amount: int) -> None:
        charges.append(order_id)
        kept.append(threading.Timer(60, over.set))
        kept[-1].name = "later"
        kept[-1].start()

    handler = guard.once(name="charge", key="order_id")({"task": in_a_task, "thread": in_a_thread}.get(way, in_a_timer))
    try:
        report = four_assumptions(handler, payload=ORDER, clock=clock, probes={"charges": lambda: charges})
    finally:
        over.set()
        for one in kept:
            one.cancel() if isinstance(one, threading.Timer) else None

    assert (report.claim.holds, report.boundary.holds, report.broken) == (None, None, ())
    left = r"the task later\(\)" if way == "task" else "the thread later"
    # Or it was still starting when the next call moved, which is worse and told first.
    named = rf"answered while {left} went on, and what that does was not seen|could not be stopped \(later\)"
    assert re.search(named, str(report.boundary))


def test_a_task_that_was_told_to_end_is_left_alone():
    charges, clock = list[str](), ManualClock()
    guard = AsyncGuard(AsyncMemoryStore(clock=clock))

    async def beat() -> None:
        while True:
            await asyncio.sleep(60)

    @guard.once(name="charge", key="order_id")
    async def charge(order_id: str, amount: int) -> str:
        beats = asyncio.create_task(beat())
        await asyncio.sleep(0)
        charges.append(order_id)
        beats.cancel()
        return order_id

    assert crash_everywhere(charge, ORDER, clock=clock, probes={"charges": lambda: charges}).holds


def test_threads_that_have_nothing_to_do_with_it_are_left_alone(desk, pool):
    """One sleeps, as the pools of other tests do: nothing is said of it."""
    pool.submit(int).result()

    assert crashed(desk.careful, desk).holds


def busy_during_calls(monkeypatch: pytest.MonkeyPatch, *names: set[str]) -> None:
    """Threads of before that used the processor during the first clean call, the second, and so on."""
    calls = itertools.cycle(names)
    monkeypatch.setattr(threads.Bystanders, "worked", lambda self: next(calls))


def test_a_thread_that_wakes_up_now_and_then_is_left_alone(desk, monkeypatch):
    """A heartbeat may well fall into a call, but not into each of many."""
    busy_during_calls(monkeypatch, {"heart"}, {"heart"}, {"heart"}, set())

    assert crashed(desk.careful, desk).holds


def test_a_pool_whose_threads_take_turns_is_named(desk, monkeypatch):
    busy_during_calls(monkeypatch, {"turn_0"}, {"turn_1"})

    with pytest.raises(AssertionError, match=r"unknown, .*\n.*could not be stopped \(turn_0, turn_1\)"):
        crashed(desk.careful, desk)


def test_a_trial_leaves_no_thread_behind(desk):
    before = set(threading.enumerate())
    crashed(desk.careful, desk)

    assert set(threading.enumerate()) <= before


def test_a_timer_that_was_set_before_is_not_a_calls(desk, monkeypatch):
    timer = threading.Timer(60, int)
    timer.start()
    try:
        assert timer not in threads.Bystanders()._threads
    finally:
        timer.cancel()
        timer.join()


def test_the_tracers_of_this_process_are_as_before(desk):
    before = threading.gettrace(), threading.getprofile()
    crashed(desk.careful, desk)

    assert (threading.gettrace(), threading.getprofile()) == before


def test_a_thread_that_dies_after_its_trial_is_not_told_as_failed_and_another_one_is(desk, monkeypatch):
    told = list[Any]()
    monkeypatch.setattr(threading, "excepthook", told.append)
    crashed(desk.careful, desk)

    def die(error: type[BaseException]) -> None:
        raise error

    for error in (Crashed, KeyError):
        late = threading.Thread(target=die, args=(error,))
        late.start()
        late.join()

    assert [failed.exc_type for failed in told] == [KeyError]


def test_to_look_where_threads_are_never_hangs():
    """Threads come and go, the collector has callbacks: some Pythons hang for ever if it strikes in the middle."""
    done = subprocess.run([sys.executable, "-c", LOOKING], capture_output=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (0, b"came through\n"), done.stderr.decode()


LOOKING = """
import gc, threading, time
from samekey.testing.handlers.threads import current_frames

def come_and_go():
    while True:
        threads = [threading.Thread(target=int) for _ in range(5)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()

threading.Thread(target=come_and_go, daemon=True).start()
gc.callbacks.append(lambda phase, info: time.sleep(0.0001))  # another thread runs while we collect
gc.set_threshold(1, 1, 1)
for _ in range(100):
    current_frames()
print("came through", flush=True)
"""


def test_a_thread_that_starts_while_the_others_are_looked_at_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []

    def another_starts(thread: object) -> bool:
        started.append(threading.Thread())
        threads._helpers[started[-1]] = None
        return True

    end = threading.Event()
    first = threading.Thread(target=end.wait)
    first.start()
    threads._helpers[first] = None
    monkeypatch.setattr(threads, "_runs_anything", another_starts)

    assert first in threads.at_work()
    assert started
    end.set()
    first.join()


def test_a_thread_that_has_ended_is_not_at_work() -> None:
    """Its number may belong to a thread that moves: then a caller that waits would look busy for 20 seconds."""
    first = threading.Thread(target=int)
    threads._helpers[first] = None
    first.start()
    first.join()

    assert first not in threads.at_work()
