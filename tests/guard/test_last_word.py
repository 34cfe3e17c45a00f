"""An interruption while the outcome is written down: what the effect has done is said once more before it comes out."""

from __future__ import annotations

import asyncio

import pytest

from samekey import AsyncGuard, Guard, Repeatable
from samekey.core.errors import StoreUnavailable
from samekey.core.states import State
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing import ManualClock


class Rude(MemoryStore):
    """Carries out the first settle or testify of an attempt whose word comes late, and interrupts it."""

    def __init__(self, clock, verb: str, interruption: type[BaseException]) -> None:
        super().__init__(clock)
        self.verb, self.interruption, self.armed = verb, interruption, False

    def carry_out(self, command):
        if command.verb == "testify":
            self._interrupt("testify")
        record = super().carry_out(command)
        if command.verb == "settle":
            self._interrupt("settle")
        return record

    def _interrupt(self, verb: str) -> None:
        if self.armed and verb == self.verb:
            self.armed = False
            raise self.interruption


def take_over(store: Rude, clock: ManualClock) -> None:
    """The lease ends, and somebody else does it again."""
    clock.advance(31)
    assert Guard(store).run("greet", lambda: "theirs", key="k", payload=1, boundary=Repeatable()).result == "theirs"
    store.armed = True


@pytest.mark.parametrize("verb", ["settle", "testify"])
def test_ctrl_c_loses_no_late_success(verb):
    """Settled in vain, and interrupted before it could testify: the evidence is there all the same."""
    clock = ManualClock()
    store = Rude(clock, verb, KeyboardInterrupt)

    def effect() -> str:
        take_over(store, clock)
        return "ours"

    with pytest.raises(KeyboardInterrupt):
        Guard(store).run("greet", effect, key="k", payload=1, boundary=Repeatable())

    (record,) = store._records.values()
    assert record.state is State.COMPLETED
    assert [b"ours" in (one.result or b"") for one in record.evidence] == [True]


@pytest.mark.parametrize("verb", ["settle", "testify"])
async def test_a_cancellation_loses_no_late_success(verb):
    clock = ManualClock()
    store = Rude(clock, verb, asyncio.CancelledError)

    async def effect() -> str:
        take_over(store, clock)
        return "ours"

    with pytest.raises(asyncio.CancelledError):
        await AsyncGuard(AsyncMemoryStore(store)).run("greet", effect, key="k", payload=1, boundary=Repeatable())

    (record,) = store._records.values()
    assert [b"ours" in (one.result or b"") for one in record.evidence] == [True]


async def test_a_cancellation_between_two_tries_says_it_once_more():
    """The store did not answer, the caller is cancelled in the pause before the next try: one more, and out."""
    store, tries = AsyncMemoryStore(), []
    carry_out = store.carry_out

    async def unsure(command):
        if command.verb == "settle":
            tries.append(command)
        if command.verb == "settle" and len(tries) == 1:
            asyncio.get_running_loop().call_soon(task.cancel)
            raise StoreUnavailable("the store does not answer")
        return await carry_out(command)

    store.carry_out = unsure  # type: ignore[method-assign]

    async def effect() -> str:
        return "ours"

    task = asyncio.ensure_future(AsyncGuard(store).run("greet", effect, key="k", payload=1, boundary=Repeatable()))
    with pytest.raises(asyncio.CancelledError):
        await task

    (record,) = store.sync._records.values()
    assert record.state is State.COMPLETED
