"""A store that fails when told to, and only then."""

from __future__ import annotations

import time

import pytest

from samekey.core.errors import StoreUnavailable
from samekey.core.ports import AsyncStore, Query, Store
from samekey.core.states import State
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing.clock import ManualClock
from samekey.testing.faulty import AsyncFaultyStore, Crashed, Fault, FaultyStore, Plan
from samekey.testing.stores import AsyncStoreSuite, StoreSuite
from samekey.testing.stores.scene import A, B, Scene, settling

scene = Scene(0.02)


@pytest.mark.slow
@pytest.mark.variant
class TestFaultyStoreWithoutFaults(StoreSuite):
    """With nothing planned it is the store it stands around."""

    survives_process = False

    def setup_method(self):
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)

    def make_store(self) -> Store:
        return FaultyStore(self.memory)

    def pass_seconds(self, seconds):
        self.clock.advance(seconds)


@pytest.mark.slow
@pytest.mark.variant
class TestAsyncFaultyStoreWithoutFaults(AsyncStoreSuite):
    survives_process = False

    def setup_method(self):
        self.clock = ManualClock()
        self.memory = MemoryStore(self.clock)

    async def make_store(self) -> AsyncStore:
        return AsyncFaultyStore(AsyncMemoryStore(self.memory))

    async def pass_seconds(self, seconds):
        self.clock.advance(seconds)


def test_unavailable_before_writes_nothing():
    memory = MemoryStore()
    store = FaultyStore(memory, [Fault("open")])

    with pytest.raises(StoreUnavailable, match="nothing was written"):
        store.carry_out(scene.opening())

    assert memory.list(Query()) == []
    assert store.carry_out(scene.opening()).attempt == A


def test_unavailable_after_loses_the_reply():
    """It is written; asked again, the command recognises itself."""
    memory = MemoryStore()
    store = FaultyStore(memory, [Fault("settle", when="after")])
    held = store.carry_out(scene.opening())

    with pytest.raises(StoreUnavailable, match="the reply was lost"):
        store.carry_out(settling(held, State.COMPLETED, result=b"done"))

    (found,) = memory.list(Query()).records
    assert (found.state, found.result) == (State.COMPLETED, b"done")
    again = store.carry_out(settling(held, State.COMPLETED, result=b"done"))
    assert again is not None
    assert again.settled_by == A


@pytest.mark.parametrize(("when", "written"), [("before", 0), ("after", 1)])
def test_a_crash_is_no_exception(when, written):
    """Nothing that catches Exception can catch it, as nothing catches a kill."""
    memory = MemoryStore()
    store = FaultyStore(memory, [Fault("open", kind="crash", when=when)])

    with pytest.raises(Crashed, match=f"{when} open") as crash:
        store.carry_out(scene.opening())

    assert not isinstance(crash.value, Exception)
    assert len(memory.list(Query())) == written


def test_a_duplicate_is_carried_out_twice():
    """As a driver does that retries: the second reply is the one that is heard."""

    class Counting(MemoryStore):
        opened = 0

        def carry_out(self, command):
            self.opened += 1
            return super().carry_out(command)

    memory = Counting()
    store = FaultyStore(memory, [Fault("open", kind="duplicate")])

    held = store.carry_out(scene.opening())

    assert memory.opened == 2
    assert (held.attempt, held.version) == (A, 1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_delay_takes_its_time(when):
    store = FaultyStore(MemoryStore(), [Fault("open", kind="delay", when=when, seconds=0.02)])
    start = time.monotonic()

    store.carry_out(scene.opening())

    assert time.monotonic() - start >= 0.02


def test_faults_are_counted_by_verb():
    """Two go well, the next two fail, the rest go well; other verbs are not meant."""
    store = FaultyStore(MemoryStore(), [Fault("open", skip=2, times=2)])
    told = []
    for number in range(6):
        try:
            store.carry_out(scene.opening(str(number)))
            told.append("well")
        except StoreUnavailable:
            told.append("down")
        store.list(Query())

    assert told == ["well", "well", "down", "down", "well", "well"]
    assert [one.verb for one in store.fired] == ["open", "open"]
    assert store.calls == {"open": 6, "list": 6}


def test_a_store_is_down_until_it_is_healed():
    store = FaultyStore(MemoryStore())
    held = store.carry_out(scene.opening())
    store.add(Fault("*", times=None))
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            store.carry_out(settling(held, State.COMPLETED))
        with pytest.raises(StoreUnavailable):
            store.sweep(1)

    store.heal()

    settled = store.carry_out(settling(held, State.COMPLETED))
    assert settled is not None
    assert settled.state is State.COMPLETED
    assert len(store.fired) == 6


def test_several_faults_meet_one_call():
    """All of them act, in the order given: here it is written twice, and nobody hears of it."""
    memory = MemoryStore()
    store = FaultyStore(memory, [Fault("open", kind="duplicate"), Fault("open", when="after")])

    with pytest.raises(StoreUnavailable):
        store.carry_out(scene.opening(by=B))

    assert [one.fault.kind for one in store.fired] == ["duplicate", "unavailable"]
    assert memory.list(Query()).records[0].attempt == B


def test_two_stores_may_share_a_plan():
    """The colours, or two connections: the count goes over both."""
    memory, plan = MemoryStore(), Plan([Fault("open", skip=1)])
    one, other = FaultyStore(memory, plan), FaultyStore(memory, plan)
    one.carry_out(scene.opening())

    with pytest.raises(StoreUnavailable):
        other.carry_out(scene.opening())


def test_a_fault_that_cannot_happen_is_refused():
    """A misspelt verb would be a test that tests nothing."""
    with pytest.raises(ValueError, match="'setle' is no verb"):
        Fault("setle")
    with pytest.raises(ValueError, match="no such fault"):
        Fault("settle", kind="explode")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no such fault"):
        Fault("settle", when="during")  # type: ignore[arg-type]


async def test_the_async_store_reads_the_same_plan():
    """Down before, lost after, crashed, twice, late: each awaited."""
    memory = MemoryStore()
    store = AsyncFaultyStore(
        AsyncMemoryStore(memory),
        [
            Fault("open"),
            Fault("open", when="after", skip=1),
            Fault("settle", kind="crash", when="after"),
            Fault("read", kind="duplicate"),
            Fault("list", kind="delay", seconds=0.02),
        ],
    )
    with pytest.raises(StoreUnavailable, match="nothing was written"):
        await store.carry_out(scene.opening())
    assert memory.list(Query()) == []
    with pytest.raises(StoreUnavailable, match="the reply was lost"):
        await store.carry_out(scene.opening())
    (held,) = memory.list(Query()).records

    with pytest.raises(Crashed):
        await store.carry_out(settling(held, State.COMPLETED))
    assert memory.list(Query()).records[0].state is State.COMPLETED

    start = time.monotonic()
    assert len(await store.list(Query())) == 1
    assert time.monotonic() - start >= 0.02
