"""The store suite: everything a store promises, as tests to inherit.

    from samekey.testing import StoreSuite

    class TestMyStore(StoreSuite):
        @pytest.fixture(autouse=True)
        def _here(self, tmp_path):
            self.path = str(tmp_path / "keys.db")

        def make_store(self):
            return MyStore(self.path)

        def address(self):
            return ("my_package:MyStore", self.path)

Each test is one scenario, its docstring one sentence of the contract in `samekey.core.ports`. The scenarios
exist once: they are generators, carried out here by threads (`StoreSuite`) or by tasks (`AsyncStoreSuite`).
They need no empty database, only that no other process sweeps it meanwhile. No pytest plugin is needed: an async
suite starts its own loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
import unittest
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from samekey.core.commands import Command, StoreCommand
from samekey.core.drive import adrive, drive
from samekey.core.ports import AsyncStore, Store
from samekey.loops import running
from samekey.testing._asserts import require_asserts
from samekey.testing.stores import (  # noqa: F401 - each registers its scenarios in SCENARIOS; this is their order
    agreement,
    books,
    claims,
    crowds,
    finding,
    holding,
    inquiring,
    keeping,
    operating,
    parking,
    processes,
    settling,
)
from samekey.testing.stores.scene import PROCESS_SCENARIOS, SCENARIOS, Scenario, Scene
from samekey.testing.stores.steps import Invoke, Pass, Pause, Show, Together


class _Suite:
    """What the two colours share: what an extender says about the store."""

    survives_process: bool = True  # False for a store whose records end with the process
    short_seconds: float = 0.02  # a lease that is over soon, and that the store's clock can still tell from none
    expires_by_itself: bool = False  # True where the server itself removes what is past retention: a sweep finds none
    random_steps: int = 300  # random commands held against the pure register; more find more

    def address(self) -> tuple[str, str]:
        """How another process makes a store on the same data: "module:callable", and its one argument."""
        raise NotImplementedError("give address(), or say survives_process = False")

    def _scene(self, colour: str, scenario: Scenario) -> Scene:
        require_asserts()
        address = self.address() if scenario in PROCESS_SCENARIOS else ("", "")
        return Scene(self.short_seconds, address, colour, self.random_steps, expires_by_itself=self.expires_by_itself)


class StoreSuite(_Suite):
    """Inherit from it and give `make_store` and `address`."""

    def make_store(self) -> Store:
        """A new connection to this test's data; called twice where a scenario wants two."""
        raise NotImplementedError("give make_store()")

    def pass_seconds(self, seconds: float) -> None:
        """Let time pass on the store's clock. With a ManualClock: `self.clock.advance(seconds)`."""
        time.sleep(seconds)

    def _play(self, scenario: Scenario) -> None:
        __tracebackhide__ = True
        player = _Player(self)
        try:
            drive(scenario(self._scene("sync", scenario)), player.perform)
        finally:
            player.close()


class AsyncStoreSuite(_Suite):
    """Inherit from it and give an async `make_store` and `address`; for trio also `run` and `gather`."""

    async def make_store(self) -> AsyncStore:
        """A new connection to this test's data; called twice where a scenario wants two."""
        raise NotImplementedError("give make_store()")

    async def pass_seconds(self, seconds: float) -> None:
        """Let time pass on the store's clock. With a ManualClock: `self.clock.advance(seconds)`."""
        await running().sleep(seconds)

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run this in an event loop."""

        async def whole() -> None:
            await main()

        asyncio.run(whole())

    async def gather(self, works: Sequence[Callable[[], Awaitable[Any]]]) -> list[Any]:
        """Run all of these at once; what they return, in order."""
        return list(await asyncio.gather(*(work() for work in works)))

    def _play(self, scenario: Scenario) -> None:
        __tracebackhide__ = True

        async def main() -> None:
            player = _AsyncPlayer(self)
            try:
                await adrive(scenario(self._scene("async", scenario)), player.perform)
            finally:
                await player.close()

        self.run(main)


# -- carrying out the steps ----------------------------------------------------------------------------


class _Player:
    """Carries out a scenario's steps with threads."""

    def __init__(self, suite: StoreSuite) -> None:
        self._suite = suite
        self._stores: dict[int, Any] = {}

    def perform(self, step: Command) -> Any:
        __tracebackhide__ = True
        match step:
            case Invoke(method, arguments, on, named):
                store = self._stores.pop(on) if method == "close" else self._store(on)
                return getattr(store, method)(*arguments, **dict(named))
            case Show(attribute, on):
                return getattr(self._store(on), attribute)
            case StoreCommand():
                return self._store(0).carry_out(step)
            case Pass(seconds):
                self._suite.pass_seconds(seconds)
            case Pause(seconds):
                time.sleep(seconds)
            case Together(lanes):
                return self._together(lanes)
            case _:
                raise TypeError(f"{step} is no step of a scenario")
        return None

    def _together(self, lanes: tuple[tuple[Command, ...], ...]) -> list[list[Any]]:
        self._store(0), self._store(1)  # connected before the race
        start = threading.Barrier(len(lanes))

        def run(lane: tuple[Command, ...]) -> list[Any]:
            start.wait()
            return [self.perform(step) for step in lane]

        with ThreadPoolExecutor(len(lanes)) as pool:
            return list(pool.map(run, lanes))

    def _store(self, on: int) -> Any:
        if on not in self._stores:
            self._stores[on] = self._suite.make_store()
        return self._stores[on]

    def close(self) -> None:
        for store in self._stores.values():
            store.close()


class _AsyncPlayer:
    """Carries out a scenario's steps with tasks."""

    def __init__(self, suite: AsyncStoreSuite) -> None:
        self._suite = suite
        self._stores: dict[int, Any] = {}

    async def perform(self, step: Command) -> Any:
        __tracebackhide__ = True
        match step:
            case Invoke(method, arguments, on, named):
                store = self._stores.pop(on) if method == "close" else await self._store(on)
                return await getattr(store, method)(*arguments, **dict(named))
            case Show(attribute, on):
                return getattr(await self._store(on), attribute)
            case StoreCommand():
                return await (await self._store(0)).carry_out(step)
            case Pass(seconds):
                await self._suite.pass_seconds(seconds)
            case Pause(seconds):
                await running().sleep(seconds)
            case Together(lanes):
                return await self._together(lanes)
            case _:
                raise TypeError(f"{step} is no step of a scenario")
        return None

    async def _together(self, lanes: tuple[tuple[Command, ...], ...]) -> list[list[Any]]:
        await self._store(0)
        await self._store(1)

        def lane_of(lane: tuple[Command, ...]) -> Callable[[], Awaitable[list[Any]]]:
            async def run() -> list[Any]:
                return [await self.perform(step) for step in lane]

            return run

        return await self._suite.gather([lane_of(lane) for lane in lanes])

    async def _store(self, on: int) -> Any:
        if on not in self._stores:
            self._stores[on] = await self._suite.make_store()
        return self._stores[on]

    async def close(self) -> None:
        for store in self._stores.values():
            await store.close()


# -- the tests -----------------------------------------------------------------------------------------


def _test(scenario: Scenario, *, other_processes: bool) -> Callable[[Any], None]:
    def test(self: StoreSuite | AsyncStoreSuite) -> None:
        if other_processes and not self.survives_process:
            raise unittest.SkipTest("the records of this store end with its process")
        self._play(scenario)

    test.__name__ = f"test_{scenario.__name__}"
    test.__doc__ = scenario.__doc__
    return test


for _suite in (StoreSuite, AsyncStoreSuite):
    for _scenario in (*SCENARIOS, *PROCESS_SCENARIOS):
        _one = _test(_scenario, other_processes=_scenario in PROCESS_SCENARIOS)
        setattr(_suite, _one.__name__, _one)
