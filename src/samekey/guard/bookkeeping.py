"""The books of a guard: how its attempts ended, by the minute, and findings. They are written to the store aside.

An attempt counts with one step on a number of its own (operation, source, outcome). A thread of the guard writes what
was added since, every FLUSH_SECONDS, and `close()` writes the rest. A store that does not answer keeps nothing up: the
counts are kept for the next time, in bounded memory, and no error leaves this file. What a process counts in its last
seconds is lost if it ends without `close()`.

The thread keeps neither the guard nor its store alive.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from samekey.core.books import COUNTS_ADDED_MAX, Count, Finding, make_finding
from samekey.core.events import OTHER
from samekey.loops import Loop, ThreadBell, running, started

_log = logging.getLogger("samekey")

FLUSH_SECONDS = 10.0
WRITE_SECONDS = 5.0  # how long the thread waits for an async store's loop before it tries again later
CLOSE_LOOK_SECONDS = 0.01  # how often a closing guard checks whether another flush has ended
SERIES_MAX = 5000  # numbers of one guard: operations times sources times outcomes; more operations count as "other"
UNWRITTEN_MAX = COUNTS_ADDED_MAX  # counts that wait for the store; the oldest minutes are dropped
FINDINGS_MAX = 1000

Series = tuple[str, str, str]  # operation, source, outcome


class Books:
    """The counts and findings of one guard that its store does not have yet."""

    def __init__(self, *, asynchronous: bool) -> None:
        self._asynchronous = asynchronous
        self._guard: Callable[[], Any] = lambda: None
        self._loop: Loop | None = None
        self._begin()

    def bind(self, guard: Any) -> None:
        self._guard = weakref.ref(guard)

    def after_fork(self) -> None:
        """In the child: what was counted is the parent's to write, and its thread is not here."""
        self._loop = None
        self._begin()

    def _begin(self) -> None:
        self._numbers: dict[Series, count[int]] = {}  # `next` is one step, which no other thread can see half done
        self._read: dict[Series, int] = {}  # how many of each were drawn when it was last read
        self._unwritten: dict[tuple[int, str, str, str], int] = {}
        self._findings: deque[Finding] = deque(maxlen=FINDINGS_MAX)
        self._later: deque[Callable[[], None]] = deque(maxlen=FINDINGS_MAX)
        self._mutex = threading.Lock()  # of the reader: never held while the store is asked
        self._writing = threading.Lock()
        self._changed = ThreadBell()
        self._thread: threading.Thread | None = None
        self._failing = False  # the store did not take the last list
        self._over = False

    # -- in the way of an attempt ----------------------------------------------------------------------------------

    def count(self, operation: str, source: str, outcome: str) -> None:
        """One attempt more."""
        try:
            next(self._numbers[operation, source, outcome])
        except KeyError:
            self._count_first(operation, source, outcome)

    def _count_first(self, operation: str, source: str, outcome: str) -> None:
        if len(self._numbers) >= SERIES_MAX:
            operation, source = OTHER, ""
        next(self._numbers.setdefault((operation, source, outcome), count(1)))
        self.wake()

    def find(self, kind: str, **facts: Any) -> None:
        """A finding of now, which is written soon; `core.books.make_finding` has the facts."""
        self._findings.append(make_finding(kind, at=time.time(), **facts))
        self.wake(soon=True)

    def later(self, work: Callable[[], None]) -> None:
        """For the garbage collector, which may run inside any lock: the thread does the work."""
        self._later.append(work)
        self._changed.ring()

    def wake(self, *, soon: bool = False) -> None:
        """Start the thread, if there is none."""
        if self._asynchronous and (self._loop is None or self._loop.closed()):
            self._loop = _here()
        if self._thread is None and not self._over:
            with self._mutex:
                if self._thread is None:
                    changed = self._changed
                    us = weakref.ref(self, lambda _: changed.ring())
                    thread = threading.Thread(target=_tend, args=(us, changed), name="samekey-books", daemon=True)
                    if started(thread):
                        self._thread = thread
        if soon:
            self._changed.ring()

    # -- writing ---------------------------------------------------------------------------------------------------

    def flush(self, store: Any) -> None:
        """Write what there is to this sync store; errors are logged once."""
        with self._writing:
            try:
                for write in self._writes():
                    write(store)
            except Exception as error:
                self._failed(error)

    async def aflush(self, store: Any) -> bool:
        """The same to an async store; False if another flush is writing, which may have begun before the last count."""
        if not self._writing.acquire(blocking=False):
            return False  # no task may block: the thread waits for our own loop to write them
        try:
            for write in self._writes():
                await write(store)
        except Exception as error:
            self._failed(error)
        finally:
            self._writing.release()
        return True

    def close(self, store: Any) -> None:
        """The guard closes: write the rest, unless the store did not answer the last time."""
        self._end()
        if not self._failing:
            self.flush(store)

    async def aclose(self, store: Any) -> None:
        self._end()
        loop = running()
        for _ in range(round(WRITE_SECONDS / CLOSE_LOOK_SECONDS)):
            if self._failing or await self.aflush(store):
                return
            await loop.sleep(CLOSE_LOOK_SECONDS)  # the other flush goes on, in this loop or in the thread

    def _end(self) -> None:
        self._over = True
        self._changed.ring()

    def _writes(self) -> Iterator[Callable[[Any], Any]]:
        """What to call with the store, one after the other. What was not written stays for the next time."""
        while self._later:
            self._later.popleft()()
        counts = self._gathered()
        if counts:
            yield lambda store: store.add_counts(counts)
            with self._mutex:
                for one in counts:
                    left = self._unwritten.get(one.series, 0) - one.number
                    if left > 0:
                        self._unwritten[one.series] = left
                    else:
                        self._unwritten.pop(one.series, None)
        while self._findings:
            finding = self._findings[0]
            yield lambda store, finding=finding: store.keep_finding(finding)  # type: ignore[misc]
            if self._findings and self._findings[0] is finding:
                self._findings.popleft()
        self._failing = False

    def _gathered(self) -> list[Count]:
        """Add what was counted since the last time to what is unwritten; all of it as a list for the store."""
        with self._mutex:
            self._read_numbers(int(time.time() // 60))
            return [Count(*series, number) for series, number in self._unwritten.items()]

    def _read_numbers(self, minute: int) -> None:
        """Called with the mutex held; loops with a condition have a function of their own there: `stores/_turns.py`."""
        for series, number in list(self._numbers.items()):
            read = self._read.get(series, 0)
            drawn = next(number) - 1  # by attempts and by us: this draw itself is no attempt
            if drawn > read:
                place = (minute, *series)
                self._unwritten[place] = self._unwritten.get(place, 0) + drawn - read
            self._read[series] = drawn + 1
        while len(self._unwritten) > UNWRITTEN_MAX:
            self._unwritten.pop(next(iter(self._unwritten)))

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            _log.warning("counts of attempts could not be written (%s); they are kept for later", type(error).__name__)

    def _tended(self) -> bool:
        """Once around in the thread; False ends it."""
        guard = self._guard()
        store = None if guard is None else guard._opened
        if self._over or guard is None:
            return False
        if store is not None:
            self._write_from_thread(store)
        return True

    def _write_from_thread(self, store: Any) -> None:
        if not self._asynchronous or hasattr(store, "sync"):
            self.flush(getattr(store, "sync", store))
            return
        try:
            self.ask(store, self.aflush, WRITE_SECONDS)
        except Exception:  # noqa: S110 - the loop is busy or ending: the write goes on there, or is made the next time
            pass

    def ask(self, store: Any, work: Callable[[Any], Any], seconds: float) -> Any:
        """From another thread: `work` with this store, or with its sync twin; else awaited in the loop of its calls."""
        if not self._asynchronous or hasattr(store, "sync"):
            return work(getattr(store, "sync", store))
        loop = self._loop
        if loop is None or loop.closed():
            self._loop = None  # the next attempt brings its own
            return None

        async def asked() -> Any:
            found = work(store)
            return await found if inspect.isawaitable(found) else found

        return loop.start(asked).result(timeout=seconds)


def _tend(known: weakref.ref[Books], changed: ThreadBell) -> None:
    """The thread's loop, until the guard is closed or gone."""
    while True:
        changed.wait(FLUSH_SECONDS)
        books = known()
        if books is None or not books._tended():
            return
        del books  # this thread must not keep the guard's books alive while it sleeps


def _here() -> Loop | None:
    try:
        return running()
    except RuntimeError:
        return None
