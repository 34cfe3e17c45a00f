"""asyncio, and anyio when asyncio is under it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Asyncio:
    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def bell(self) -> AsyncioBell:
        return AsyncioBell(self._loop)

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
                cancelled = error  # raised below: the write must be finished first
            except Exception:  # noqa: S110 - the task keeps it, and result() raises it below
                pass
        if cancelled is not None:
            if not task.cancelled():
                task.exception()  # retrieved, or asyncio would log that it never was
            raise cancelled
        return task.result()

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        # Not asyncio.run_coroutine_threadsafe: it makes the coroutine here, and a loop that ends first never awaits it.
        done = Future[T]()

        async def working() -> None:
            try:
                done.set_result(await work())
            except BaseException as error:
                done.set_exception(error)
                if not isinstance(error, Exception):
                    raise  # cancelled with the loop

        def spawn() -> None:
            task = self._loop.create_task(working())
            _started.add(task)
            task.add_done_callback(_started.discard)

        self._loop.call_soon_threadsafe(spawn)
        return done

    def closed(self) -> bool:
        return self._loop.is_closed()


_started: set[asyncio.Task[None]] = set()  # a loop itself keeps weak references only
_last: Asyncio | None = None  # kept between calls: nearly every process has one loop, and every call needs it


def here() -> Asyncio:
    """The loop that runs this task; RuntimeError if it is not asyncio's."""
    global _last
    last = _last
    if last is None or last._loop is not asyncio.get_running_loop():
        last = _last = Asyncio()
    return last


class AsyncioBell:
    """A flag and the future of the task that waits. An asyncio.Event costs three times as much."""

    __slots__ = ("_rung", "_sleeper", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self.ring_many((self,))

    def ring_many(self, bells: Sequence[AsyncioBell]) -> None:
        """Ring all of these bells, which belong to the same loop as this one."""
        if asyncio._get_running_loop() is self.loop:
            _ring(bells)  # in the loop itself: no need to wake it through its pipe
            return
        try:
            self.loop.call_soon_threadsafe(_ring, bells)
        except RuntimeError:
            pass  # the loop is closed: no task waits any more

    async def wait(self, timeout: float | None) -> None:
        # Not asyncio.wait_for: on Python 3.11 it swallows a cancellation that comes together with the ring.
        if not self._rung:
            sleeper = self._sleeper = self.loop.create_future()
            timer = None if timeout is None else self.loop.call_later(timeout, _wake, sleeper)
            try:
                await sleeper
            finally:
                self._sleeper = None
                if timer is not None:
                    timer.cancel()
        self._rung = False


def _ring(bells: Sequence[AsyncioBell]) -> None:
    """In their loop: a task that waits is woken, and a task that waits later finds the flag."""
    for bell in bells:
        bell._rung = True
        if bell._sleeper is not None:
            _wake(bell._sleeper)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():  # rung twice, or cancelled
        sleeper.set_result(None)
