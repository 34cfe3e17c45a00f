"""Counts and findings reach the store aside: no attempt waits for them, and no error of theirs leaves the guard."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from samekey import AsyncGuard, Guard, Held, Misconfigured, Opaque
from samekey.core.events import OTHER, SOURCES_MAX
from samekey.guard import bookkeeping
from samekey.loops import running
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.stores.sqlite import SqliteStore
from samekey.testing.faulty import AsyncFaultyStore, Fault, FaultyStore
from tests.guard.helpers import SOON, start_asyncio, start_trio

ALL_TIME = (0, 2**33)


def counted(store: Any) -> dict[tuple[str, str, str], int]:
    found: Counter[tuple[str, str, str]] = Counter()
    for one in store.counts(*ALL_TIME):
        found[one.operation, one.source, one.outcome] += one.number
    return dict(found)


def calls(guard: Guard, number: int, **options: Any) -> None:
    for key in range(number):
        guard.run("charge", lambda: "done", key=key, payload=1, **options)


def test_close_writes_what_was_counted():
    store = MemoryStore()
    guard = Guard(store)
    calls(guard, 3)
    calls(guard, 3)
    guard.close()

    assert counted(store) == {("charge", "", "new"): 3, ("charge", "", "replayed"): 3}


@pytest.mark.parametrize("start", [start_asyncio, start_trio])
def test_an_async_guard_does_the_same(start):
    store = MemoryStore()

    async def main() -> None:
        async with AsyncGuard(AsyncMemoryStore(store)) as guard:
            for _ in range(2):
                await guard.run("charge", done, key="o-1", payload=1)

    start(main)

    assert counted(store) == {("charge", "", "new"): 1, ("charge", "", "replayed"): 1}


async def done() -> str:
    return "done"


class Written:
    """A store that shows when counts were added."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.written = threading.Event()
        adds = self.store.add_counts

        def add_counts(counts: Any) -> None:
            adds(counts)
            self.written.set()

        self.store.add_counts = add_counts  # type: ignore[method-assign]


def test_a_thread_writes_them_every_few_seconds(monkeypatch):
    monkeypatch.setattr(bookkeeping, "FLUSH_SECONDS", 0.01)
    here = Written()
    guard = Guard(here.store)
    calls(guard, 2)

    assert here.written.wait(SOON)
    guard.close()
    assert counted(here.store) == {("charge", "", "new"): 2}


class NoTwin(AsyncFaultyStore):
    """A store that only a loop can write to."""


@pytest.mark.parametrize("start", [start_asyncio, start_trio])
def test_of_an_async_store_without_a_sync_twin_its_loop_writes_them(monkeypatch, start):
    monkeypatch.setattr(bookkeeping, "FLUSH_SECONDS", 0.01)
    here = Written()
    guard = AsyncGuard(NoTwin(AsyncMemoryStore(here.store), ()))

    async def main() -> None:
        await guard.run("charge", done, key="o-1", payload=1)
        sleep = asyncio.sleep if start is start_asyncio else __import__("trio").sleep
        for _ in range(500):
            if here.written.is_set():
                return
            await sleep(0.01)

    start(main)

    assert here.written.is_set()
    assert counted(here.store) == {("charge", "", "new"): 1}


@pytest.mark.parametrize("start", [start_asyncio, start_trio])
def test_an_async_guard_that_closes_while_another_flush_runs_loses_no_count(start):
    """The other flush has gathered its counts before the last attempt: close() writes those that came after it."""
    store = MemoryStore()

    class Slow(NoTwin):
        async def add_counts(self, counts: Any) -> None:
            begun.set()
            for _ in range(1000):
                if go_on.is_set():
                    break
                await running().sleep(0.01)
            await super().add_counts(counts)

    begun, go_on = threading.Event(), threading.Event()

    async def main() -> None:
        guard = AsyncGuard(Slow(AsyncMemoryStore(store), ()))
        await guard.run("charge", done, key="o-1", payload=1)
        books = guard._facts.books
        flush = running().start
        thread = threading.Thread(target=lambda: flush(lambda: books.aflush(guard._opened)).result(timeout=SOON))
        thread.start()
        while not begun.is_set():
            await running().sleep(0.01)
        await guard.run("charge", done, key="o-2", payload=1)
        closing = threading.Timer(0.2, go_on.set)
        closing.start()
        await guard.close()
        thread.join(SOON)
        closing.join(SOON)

    start(main)

    assert counted(store) == {("charge", "", "new"): 2}


def test_many_threads_lose_no_count():
    store = MemoryStore()
    guard = Guard(store)
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: calls(guard, 50), range(8)))
    guard.close()

    assert sum(counted(store).values()) == 8 * 50
    assert counted(store)["charge", "", "new"] == 50


def test_a_store_that_is_down_keeps_nothing_up_and_gets_them_later(caplog):
    store = MemoryStore()
    faulty = FaultyStore(store, [Fault("add_counts", times=2)])
    guard = Guard(faulty)
    books = guard._facts.books
    calls(guard, 2)
    books.flush(faulty)
    calls(guard, 2)
    books.flush(faulty)
    assert counted(store) == {}
    books.flush(faulty)

    assert counted(store) == {("charge", "", "new"): 2, ("charge", "", "replayed"): 2}
    assert caplog.text.count("counts of attempts could not be written") == 1


def test_close_does_not_wait_for_a_store_that_did_not_answer():
    faulty = FaultyStore(MemoryStore(), [Fault("add_counts", times=None)])
    guard = Guard(faulty)
    calls(guard, 1)
    guard._facts.books.flush(faulty)
    guard.close()

    assert faulty.calls["add_counts"] == 1


def test_what_waits_for_the_store_is_bounded(monkeypatch):
    monkeypatch.setattr(bookkeeping, "SERIES_MAX", 10)
    monkeypatch.setattr(bookkeeping, "UNWRITTEN_MAX", 5)
    store = MemoryStore()
    guard = Guard(store)
    for number in range(30):
        guard.run(f"charge-{number}", lambda: "done", key="o-1", payload=1)
    books = guard._facts.books

    assert len(books._numbers) == 11
    assert ("other", "", "new") in books._numbers
    assert len(books._gathered()) == 5


def test_the_source_is_an_attribute_with_few_values():
    store = MemoryStore()
    guard = Guard(store, source="client_version")
    for number in range(SOURCES_MAX + 5):
        attributes = {"client_version": f"v{number}", "region": "eu"}
        guard.run("charge", lambda: "done", key=number, payload=1, attributes=attributes)
    guard.close()
    by_source = {source: number for (_, source, _), number in counted(store).items()}

    assert len(by_source) == SOURCES_MAX + 1
    assert (by_source["v0"], by_source[OTHER]) == (1, 5)


def test_the_attribute_source_is_the_source_where_no_other_is_named():
    store = MemoryStore()
    with Guard(store) as guard:
        guard.run("charge", lambda: "done", key="o-1", payload=1, attributes={"source": "batch"})

    assert counted(store) == {("charge", "batch", "new"): 1}


@pytest.mark.parametrize("source", ["", 7, "x" * 300])
def test_a_source_is_the_name_of_an_attribute(source):
    with pytest.raises(Misconfigured, match="source= takes the name of an attribute"):
        Guard("memory://", source=source)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_counts_its_own(tmp_path):
    program = """
import os, sys
from samekey import Guard
guard = Guard(sys.argv[1])
guard.run("charge", lambda: "done", key="parent", payload=1)
child = os.fork()
if child == 0:
    guard.run("charge", lambda: "done", key="child", payload=1)
    guard.close()
    os._exit(0)
os.waitpid(child, 0)
guard.close()
"""
    path = tmp_path / "keys.db"
    subprocess.run([sys.executable, "-c", program, f"sqlite:///{path}"], check=True, timeout=60)
    store = SqliteStore(path)

    assert counted(store) == {("charge", "", "new"): 2}
    store.close()


def test_the_thread_ends_with_its_guard():
    before = set(threading.enumerate())
    guard = Guard("memory://")
    calls(guard, 1)
    (thread,) = [one for one in set(threading.enumerate()) - before if one.name == "samekey-books"]
    del guard
    gc.collect()
    thread.join(SOON)

    assert not thread.is_alive()


def test_a_guard_whose_hold_was_abandoned_closes_its_store(tmp_path):
    """The fact of the abandoned hold is reported later. That must not keep the store open."""
    with Guard(f"sqlite:///{tmp_path}/keys.db") as guard:
        held = guard.hold("charge", key="o-1", payload={}, boundary=Opaque(marked=True))
        assert isinstance(held, Held)
        held.provider_key()  # or it would be let go as it is dropped
    assert not guard._shut  # it left its store to the hold

    del held
    gc.collect()
    guard.close()

    assert guard._shut
