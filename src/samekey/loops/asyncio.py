"""asyncio, and anyio when asyncio is under it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Asyncio:
    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def bell(self) -> AsyncioBell:
        return AsyncioBell()

    def soon(self, work: Callable[[], object]) -> None:
        self._loop.call_soon(work)

    async def shielded(self, work: Callable[[], Awaitable[T]]) -> T:
        task = asyncio.ensure_future(work())
        cancelled: asyncio.CancelledError | None = None
        while not task.done():
            try:
                await asyncio.shield(task)
            except asyncio.CancelledError as error:
                if task.cancelled():
                    raise
                cancelled = error  # keep it for later: the write must be finished first
            except Exception:  # noqa: S110 - the task keeps it, result() raises it below
                pass
        if cancelled is not None:
            if not task.cancelled():
                task.exception()  # looked at, so that asyncio does not complain about it
            raise cancelled
        return task.result()

    def call(self, work: Callable[[], Coroutine[Any, Any, T]], timeout: float) -> T:
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(timeout)


class AsyncioBell:
    __slots__ = ("_event", "loop")

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def ring(self) -> None:
        self.ring_many((self,))

    def ring_many(self, bells: Sequence[AsyncioBell]) -> None:
        """Ring all of these, which are of our loop."""
        if asyncio._get_running_loop() is self.loop:
            _set(bells)  # in the loop itself: no need to wake it through its pipe
            return
        try:
            self.loop.call_soon_threadsafe(_set, bells)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    async def wait(self, timeout: float | None) -> None:
        # Not asyncio.wait_for: on Python 3.11 it swallows a cancellation that comes together with the ring.
        alarm = None if timeout is None else self.loop.call_later(timeout, self._event.set)
        try:
            await self._event.wait()
        finally:
            if alarm is not None:
                alarm.cancel()
        self._event.clear()


def _set(bells: Sequence[AsyncioBell]) -> None:
    for bell in bells:
        bell._event.set()
