"""The memory store keeps the contract, in both colours, on asyncio and on trio; and what is its own."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import trio

from samekey.core.books import Count
from samekey.core.commands import Read, Wait
from samekey.core.ports import Query
from samekey.core.states import State
from samekey.stores import _waiting
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing.clock import ManualClock
from samekey.testing.stores import AsyncStoreSuite, StoreSuite
from samekey.testing.stores.scene import A, B, Scene, settling

scene = Scene(0.02)


class TestMemoryStore(StoreSuite):
    survives_process = False
    random_steps = 5_000  # cheap here: this clock need not be waited for

    def setup_method(self):
        self.clock = ManualClock()
        self.store = MemoryStore(self.clock)

    def make_store(self):
        return self.store

    def pass_seconds(self, seconds):
        self.clock.advance(seconds)


@pytest.mark.slow
@pytest.mark.variant
class TestMemoryStoreInRealTime(StoreSuite):
    survives_process = False

    def setup_method(self):
        self.store = MemoryStore()

    def make_store(self):
        return self.store


class TestAsyncMemoryStore(AsyncStoreSuite):
    survives_process = False

    def setup_method(self):
        self.memory = MemoryStore()

    async def make_store(self):
        return AsyncMemoryStore(self.memory)


class OnTrio:
    """The two hooks of an async suite that runs on trio."""

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        trio.run(main)

    async def gather(self, works: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        results: list[Any] = [None] * len(works)

        async def one(at: int) -> None:
            results[at] = await works[at]()

        async with trio.open_nursery() as nursery:
            for at in range(len(works)):
                nursery.start_soon(one, at)
        return results


@pytest.mark.slow
@pytest.mark.variant
class TestAsyncMemoryStoreOnTrio(OnTrio, TestAsyncMemoryStore):
    pass


def test_each_addition_forgets_some_minutes_that_are_too_old():
    """Bounded work: a thousand at a time, and a reader sees none of them before that."""
    clock = ManualClock(1_700_000_000)
    store = MemoryStore(clock)
    old, new = int(clock() // 60), int(clock() // 60) + 15 * 1440
    for part in range(3):
        store.add_counts([Count(old + part, "charge", f"{number}", "new", 1) for number in range(500)])
    clock.advance(15 * 24 * 3600)
    assert store.counts(0, math.inf) == []

    store.add_counts([Count(new, "charge", "", "new", 1)])
    assert len(store._counts) == 501
    store.add_counts([Count(new, "charge", "", "new", 1)])
    assert list(store._counts.items()) == [((new, "charge", "", "new"), 2)]


# -- its own -------------------------------------------------------------------------------------------


async def test_both_colours_may_share_one_memory():
    """What one colour claims the other one sees, in both directions."""
    memory = MemoryStore()
    store = AsyncMemoryStore(memory)
    held = memory.carry_out(scene.opening("one", by=A))
    await store.carry_out(scene.opening("two", by=B))

    seen = await store.carry_out(scene.opening("one", by=B))

    assert seen.fence == held.fence
    assert {one.key.text for one in memory.list(Query()).records} == {"one", "two"}


async def test_memories_that_are_not_shared_are_apart():
    store, other = AsyncMemoryStore(), AsyncMemoryStore()
    await store.carry_out(scene.opening())

    assert await other.carry_out(Read(scene.key())) is None


def test_nothing_happens_while_the_manual_clock_stands_still():
    """A lease of a millisecond lives until the clock is moved; then it is over."""
    clock = ManualClock()
    store = MemoryStore(clock)
    store.carry_out(scene.opening(lease=0.001))
    opened = time.monotonic()
    while time.monotonic() <= opened + 0.001:
        pass
    still = store.carry_out(Read(scene.key()))
    clock.advance(0.001)
    over = store.carry_out(Read(scene.key()))

    assert still is not None
    assert still.lease_live
    assert over is not None
    assert not over.lease_live


@pytest.fixture
def no_second_look(monkeypatch):
    """A waiter that missed its bell would sleep for a minute."""
    monkeypatch.setattr(_waiting, "REREAD_SECONDS", 60.0)


@pytest.mark.usefixtures("no_second_look")
def test_a_waiting_thread_is_rung_for():
    """Woken by the settle itself, not by looking again."""
    store = MemoryStore()
    held = store.carry_out(scene.opening())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.wait, Wait(held), 10.0)
        while not len(store.bells):
            time.sleep(0.001)
        store.carry_out(settling(held, State.COMPLETED))
        woken = waiting.result(timeout=5)

    assert woken is not None
    assert woken.state is State.COMPLETED
    assert len(store.bells) == 0


@pytest.mark.usefixtures("no_second_look")
async def test_a_waiting_task_is_rung_for_from_a_thread():
    """The settle comes from a thread that knows nothing of the loop."""
    memory = MemoryStore()
    store = AsyncMemoryStore(memory)
    held = await store.carry_out(scene.opening())
    waiting = asyncio.create_task(store.wait(Wait(held), 10.0))
    while not len(memory.bells):
        await asyncio.sleep(0.001)

    await asyncio.to_thread(memory.carry_out, settling(held, State.COMPLETED))
    woken = await asyncio.wait_for(waiting, 5)

    assert woken is not None
    assert woken.state is State.COMPLETED


def test_it_says_that_it_forgets():
    """A store for tests and tools must not pass for a durable one."""
    store = MemoryStore()

    assert store.health().warnings
    assert "gone" in repr(store)
    assert MemoryStore().health().incarnation != store.health().incarnation
