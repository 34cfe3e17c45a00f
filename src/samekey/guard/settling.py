"""Outcomes that the store did not take while their callers waited: they are written in the background.

The caller has its answer, with `recorded=False`. One thread of the guard (one task under AsyncGuard) tries the oldest
outcome again and again, with growing pauses; when the store is back it writes the others one after the other. An
outcome is tried for as long as its lease may live. `close()` waits for that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from samekey.core.attempt import SETTLE_PAUSE_MAX_SECONDS, SETTLE_PAUSE_SECONDS, insist_later
from samekey.core.call import Call
from samekey.core.commands import Settle, SettleLater, Testify
from samekey.core.drive import Steps, adrive, do, drive
from samekey.core.errors import RecordUnreadable
from samekey.loops import Loop, ThreadBell, running, started

_log = logging.getLogger("samekey")

SETTLES_MAX = 1000  # of one guard: what 30 requests a second make in a lease
SETTLES_MAX_BYTES = 64 << 20  # of their results: 64 of the largest, or a thousand of 64 KB


class Unsettled(NamedTuple):
    """One outcome, and until when it is tried."""

    call: Call
    command: Settle | Testify
    ends: float
    tell: Callable[..., None]

    @property
    def size(self) -> int:
        return len(self.command.result or b"")


class _Settling:
    """What both colours share. `_working` and `_finishing` are written once for both."""

    _drive: Any
    _bell: Any

    def __init__(self, guard: Any) -> None:
        self._guard = guard
        self._mutex = threading.Lock()
        self._waiting: deque[Unsettled] = deque()
        self._bytes = 0
        self._bells: list[Any] = []  # of the callers of close()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, call: Call, later: SettleLater, tell: Callable[..., None]) -> None:
        """Write this outcome in the background; beyond the bounds it is given up."""
        one = Unsettled(call, later.command, time.monotonic() + later.seconds, tell)
        with self._mutex:
            room = len(self._waiting) < SETTLES_MAX and self._bytes + one.size <= SETTLES_MAX_BYTES
            if room:
                self._waiting.append(one)
                self._bytes += one.size
        if not room:
            give_up(one, "too many are waiting for the store")
        elif not self._start():
            self._drop("no thread can be started")

    def _start(self) -> bool:
        raise TypeError("a guard has a colour")

    def _working(self) -> Steps:
        """Until nothing is waiting."""
        pause = SETTLE_PAUSE_SECONDS
        while self._waiting:
            one = self._waiting[0]
            found = yield partial(self._drive, insist_later(one.call, one.command), self._straight)
            if not isinstance(found, Exception):
                pause = SETTLE_PAUSE_SECONDS
                self._remove(one)
            elif isinstance(found, RecordUnreadable):  # waiting does not repair a damaged record
                self._remove(one)
                give_up(one, type(found).__name__)
            elif one.ends <= time.monotonic():
                for other in [other for other in self._waiting if other.ends <= time.monotonic()]:
                    self._remove(other)
                    give_up(other, type(found).__name__)
            else:
                yield partial(self._pause, min(pause, max(0.0, one.ends - time.monotonic())))
                pause = min(pause * 2, SETTLE_PAUSE_MAX_SECONDS)

    def _straight(self, command: Any) -> Any:
        return self._guard.store.carry_out(command)

    def _pause(self, seconds: float) -> Any:
        return self._bell().wait(seconds)

    def _remove(self, one: Unsettled) -> None:
        with self._mutex:
            try:
                self._waiting.remove(one)
            except ValueError:
                return
            self._bytes -= one.size

    def _drop(self, why: str) -> None:
        while self._waiting:
            one = self._waiting[0]
            self._remove(one)
            give_up(one, why)

    def _over(self) -> None:
        bells, self._bells = self._bells, []
        for bell in bells:
            bell.ring()

    def finish(self) -> Any:
        """Wait until all is written or given up, at most until the last lease has ended."""
        return self._drive(self._finishing(), do)

    def _finishing(self) -> Steps:
        if not self._waiting:
            return
        bell = self._bell()
        self._bells.append(bell)  # before looking: what ends in between rings it
        self._start()  # its loop may be gone
        ends = max((one.ends for one in list(self._waiting)), default=0.0)
        while self._waiting and (left := ends - time.monotonic()) > 0:
            yield partial(bell.wait, left)


def give_up(one: Unsettled, why: str) -> None:
    """When its lease ends, its boundary says what follows."""
    one.tell("not_recorded", None, f"given up: {why}")


class Settling(_Settling):
    _drive = staticmethod(drive)
    _bell = ThreadBell
    _thread: threading.Thread | None = None

    def _start(self) -> bool:
        with self._mutex:
            if self._thread is not None:
                return True
            self._thread = threading.Thread(target=self._run, name="samekey-settle", daemon=True)
            if started(self._thread):
                return True
            self._thread = None
            return False

    def _run(self) -> None:
        while True:
            try:
                drive(self._working(), do)
            except Exception:
                _log.exception("the thread that settles in the background failed")
                self._drop("an error of samekey")
            with self._mutex:
                if not self._waiting:
                    self._thread = None
                    break
        self._over()
        self._guard._shut_if_idle()


class AsyncSettling(_Settling):
    _drive = staticmethod(adrive)
    _loop: Loop | None = None  # in which the task runs

    def _bell(self) -> Any:
        return running().bell()

    def _start(self) -> bool:
        with self._mutex:
            if self._loop is None or self._loop.closed():
                self._loop = running()
                self._loop.start(self._run)
        return True

    async def _run(self) -> None:
        try:
            await self._work()
        except BaseException as error:  # the loop ends, and close() was not awaited
            self._loop = None
            self._drop(type(error).__name__)
            raise
        finally:
            self._over()
        await self._guard._shut_if_idle()

    async def _work(self) -> None:
        while self._goes_on():  # not inside `try`: an interrupt at the end of a round would miss its handlers
            await adrive(self._working(), do)

    def _goes_on(self) -> bool:
        with self._mutex:
            if not self._waiting:
                self._loop = None
            return self._loop is not None
