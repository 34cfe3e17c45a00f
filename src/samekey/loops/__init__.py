"""What samekey needs of an event loop: sleep, a bell that any thread may ring, a shield.

guard and stores use this package; it imports neither. asyncio is part of Python; trio is imported only by its own
file, and only when the code runs under trio.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future  # a sync program does not need it

T = TypeVar("T")


class Bell(Protocol):
    """Rung from any thread, waited for by one task or thread; ringing it twice has the effect of ringing it once."""

    def ring(self) -> None: ...


class AsyncBell(Bell, Protocol):
    async def wait(self, timeout: float | None) -> None:
        """Return when the bell was rung or the time is over; after that the bell can be rung again."""


class Loop(Protocol):
    async def sleep(self, seconds: float) -> None: ...
    def bell(self) -> AsyncBell: ...
    def soon(self, work: Callable[[], object]) -> None:
        """From the loop itself: do this after all tasks that are ready now have run."""

    async def shielded(self, work: Callable[[], Awaitable[T]]) -> T:
        """Finish `work` although the caller is cancelled; the cancellation is raised afterwards."""

    def start(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        """From another thread: run `work` in this loop, which may be busy for long; the future has its outcome."""

    def closed(self) -> bool:
        """Whether nothing will ever run in it again."""


def running() -> Loop:
    """The loop that runs this task."""
    try:
        loop: Loop = _asyncio().here()
    except RuntimeError:
        if "trio" in sys.modules:
            from samekey.loops import trio

            return trio.Trio()
        raise
    return loop


def in_a_loop() -> bool:
    """Whether a loop runs in this thread: code in here may await, and must not block."""
    try:
        running()
    except RuntimeError:
        return False
    return True


def aside(work: Callable[[], T]) -> Callable[[], Coroutine[Any, Any, T]]:
    """Start `work` in a thread of its own, as it is rare and may take long; returns a function that awaits its end."""
    from concurrent.futures import Future

    bell, done = running().bell(), Future[T]()

    def work_and_ring() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)
        bell.ring()

    async def finish() -> T:
        while not done.done():
            await bell.wait(1.0)
        return done.result()

    if not started(threading.Thread(target=work_and_ring, name="samekey-aside", daemon=True)):
        work_and_ring()  # no thread can be started: block the loop rather than lose the work
    return finish


def started(thread: threading.Thread) -> bool:
    """Start the thread; False at a limit of the system and while the interpreter shuts down."""
    try:
        thread.start()
    except RuntimeError:
        return False
    return True


@cache
def _asyncio() -> Any:
    """Imported by the first caller in a loop: sync programs do not need it."""
    from samekey.loops import asyncio

    return asyncio


class ThreadBell:
    """The bell of a thread that may block: a bare lock, a fifth of the cost of an Event."""

    __slots__ = ("_silent",)

    def __init__(self) -> None:
        self._silent = threading.Lock()
        self._silent.acquire()

    def ring(self) -> None:
        try:
            self._silent.release()
        except RuntimeError:
            pass  # it was rung already

    def wait(self, timeout: float | None) -> None:
        seconds = threading.TIMEOUT_MAX if timeout is None else min(max(0.0, timeout), threading.TIMEOUT_MAX)
        self._silent.acquire(timeout=seconds)


class Bells:
    """The bells of the callers that wait for each digest. Ringing costs one dict lookup when no caller waits."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._waiting: dict[bytes, dict[Bell, None]] = {}  # a thousand may be removed at once, each in one step

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, digest: bytes, bell: Bell) -> bool:
        """Whether this is the first bell for this digest."""
        with self._mutex:
            bells = self._waiting.setdefault(digest, {})
            bells[bell] = None
            return len(bells) == 1

    def remove(self, digest: bytes, bell: Bell) -> bool:
        """Whether it was the last bell for this digest."""
        with self._mutex:
            bells = self._waiting.get(digest)
            if bells is None:
                return False
            bells.pop(bell, None)
            if not bells:
                del self._waiting[digest]
            return not bells

    def ring(self, digest: bytes) -> None:
        if self._waiting:
            with self._mutex:
                bells = list(self._waiting.get(digest, ()))
            ring_together(bells)

    def ring_all(self) -> None:
        with self._mutex:
            bells_of_all = [bell for bells in self._waiting.values() for bell in bells]
        ring_together(bells_of_all)


def ring_together(bells: Sequence[Any]) -> None:
    """Ring all of them, the bells of one loop with one call: each call into another thread's loop costs."""
    together: dict[Any, list[Any]] = {}
    for bell in bells:
        ring_many = getattr(bell, "ring_many", None)
        if ring_many is None:
            bell.ring()
        else:
            together.setdefault(bell.loop, []).append(bell)
    for some in together.values():
        some[0].ring_many(some)
