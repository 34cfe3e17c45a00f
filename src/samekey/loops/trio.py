"""trio, and anyio when trio is under it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import trio

T = TypeVar("T")


class Trio:
    __slots__ = ("_token",)

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()

    async def sleep(self, seconds: float) -> None:
        await trio.sleep(seconds)

    def bell(self) -> TrioBell:
        return TrioBell()

    def soon(self, work: Callable[[], object]) -> None:
        self._token.run_sync_soon(work)

    async def shielded(self, work: Callable[[], Awaitable[T]]) -> T:
        with trio.CancelScope(shield=True):
            result = await work()
        await trio.lowlevel.checkpoint_if_cancelled()
        return result

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        done = Future[T]()

        async def working() -> None:
            try:
                done.set_result(await work())
            except BaseException as error:
                done.set_exception(error)
                if not isinstance(error, Exception):
                    raise  # cancelled with the loop

        def spawn() -> None:
            try:
                trio.lowlevel.spawn_system_task(working)
            except RuntimeError as error:  # the run is ending; an error raised in here would count as a bug of trio
                done.set_exception(error)

        self._token.run_sync_soon(spawn)
        return done

    def closed(self) -> bool:
        return False  # trio does not end a run before the tasks in it have ended


class TrioBell:
    __slots__ = ("_event", "_token")

    def __init__(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        self._event = trio.Event()

    def ring(self) -> None:
        try:
            # Looked up when the call runs: wait() replaces the event after each ring.
            self._token.run_sync_soon(lambda: self._event.set())
        except trio.RunFinishedError:
            pass  # the run is over: no task waits any more

    async def wait(self, timeout: float | None) -> None:
        with trio.move_on_after(math.inf if timeout is None else timeout):
            await self._event.wait()
        self._event = trio.Event()
