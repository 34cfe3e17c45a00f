"""asyncio, and anyio when asyncio is under it."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from heapq import heapify, heappop, heappush
from typing import Any, TypeVar

SWEPT_FROM = 64  # sleepers; fewer are not worth looking through for those who are awake by now

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
                cancelled = error  # keep it for later: the write must be finished first
            except Exception:  # noqa: S110 - the task keeps it, result() raises it below
                pass
        if cancelled is not None:
            if not task.cancelled():
                task.exception()  # looked at, so that asyncio does not complain about it
            raise cancelled
        return task.result()

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work(), self._loop)

    def closed(self) -> bool:
        return self._loop.is_closed()


_last: Asyncio | None = None  # nearly every process has one loop, and every call asks for it


def here() -> Asyncio:
    """The loop that runs this task; RuntimeError if it is not asyncio's."""
    global _last
    last = _last
    if last is None or last._loop is not asyncio.get_running_loop():
        last = _last = Asyncio()
    return last


class AsyncioBell:
    """A flag and the future of the one who sleeps: a thousand may wait at once, and an Event is three times as much."""

    __slots__ = ("_rung", "_sleeper", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._rung = False
        self._sleeper: asyncio.Future[None] | None = None

    def ring(self) -> None:
        self.ring_many((self,))

    def ring_many(self, bells: Sequence[AsyncioBell]) -> None:
        """Ring all of these, which are of our loop."""
        if asyncio._get_running_loop() is self.loop:
            _ring(bells)  # in the loop itself: no need to wake it through its pipe
            return
        try:
            self.loop.call_soon_threadsafe(_ring, bells)
        except RuntimeError:
            pass  # the loop is closed: nobody waits any more

    async def wait(self, timeout: float | None) -> None:
        # Not asyncio.wait_for: on Python 3.11 it swallows a cancellation that comes together with the ring.
        if not self._rung:
            sleeper = self._sleeper = self.loop.create_future()
            if timeout is not None:
                _alarms_of(self.loop).wake_after(timeout, sleeper)
            try:
                await sleeper
            finally:
                self._sleeper = None
        self._rung = False


def _ring(bells: Sequence[AsyncioBell]) -> None:
    """In their loop: whoever comes later finds the flag, whoever sleeps is woken."""
    for bell in bells:
        bell._rung = True
        if bell._sleeper is not None:
            _wake(bell._sleeper)


def _wake(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():  # rung twice, or cancelled
        sleeper.set_result(None)


class _Alarms:
    """One timer of a loop for all who sleep there: most are rung long before, and leave no timer to be taken back."""

    def __init__(self) -> None:
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []  # a heap, by when each is to be woken
        self._number = itertools.count()  # or a heap would compare futures
        self._swept_at = SWEPT_FROM
        self._first = (
            math.inf
        )  # when the timer is due; an earlier one that was set before finds that it is not its turn

    def wake_after(self, seconds: float, sleeper: asyncio.Future[None]) -> None:
        loop = sleeper.get_loop()
        if len(self._sleepers) >= self._swept_at:
            self._sweep()
        due = loop.time() + seconds
        heappush(self._sleepers, (due, next(self._number), sleeper))
        if due < self._first:
            self._first = due
            loop.call_at(due, self._ring, due)

    def _ring(self, due: float) -> None:
        if due != self._first:
            return
        sleepers, loop = self._sleepers, asyncio.get_running_loop()
        now = loop.time()
        while sleepers and (sleepers[0][0] <= now or sleepers[0][2].done()):
            _wake(heappop(sleepers)[2])
        self._first = sleepers[0][0] if sleepers else math.inf
        if sleepers:
            loop.call_at(self._first, self._ring, self._first)

    def _sweep(self) -> None:
        """Forget who is awake; when as many have come again as are left, once more."""
        self._sleepers = [one for one in self._sleepers if not one[2].done()]
        heapify(self._sleepers)
        self._swept_at = max(SWEPT_FROM, 2 * len(self._sleepers))


_alarms: dict[asyncio.AbstractEventLoop, _Alarms] = {}


def _alarms_of(loop: asyncio.AbstractEventLoop) -> _Alarms:
    alarms = _alarms.get(loop)
    if alarms is None:
        for gone in [one for one in tuple(_alarms) if one.is_closed()]:
            _alarms.pop(gone, None)
        alarms = _alarms[loop] = _Alarms()
    return alarms
