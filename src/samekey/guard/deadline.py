"""`Policy(store_deadline=)` and `Policy(settle_patience=)`: how long a caller waits for the store.

A store command cannot be stopped from outside: it may be on its way to the server, or written and not answered. So a
helper thread (under AsyncGuard a task of its own) carries it out, and the caller waits for it only as long as it may.
What a command does that was given up on:

- A claim may be made late. Nothing ran under it, so the helper lets it go by its attempt id. With `store_down="run"`
  the effect ran all the same: the claim stays until its lease ends, and then its boundary says what follows.
- An outcome may be written late, which is its purpose. It is tried again in the background, too (`settling.py`).
- A mark, a question or a read has no effect of its own.

A call without these two options never comes here. Neither does a store that is in this process (`in_process`): it has
no server that could hang.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from samekey.core.attempt import withdraw
from samekey.core.call import Call
from samekey.core.commands import Command, Open, Settle, Take, Testify, Wait
from samekey.core.drive import Steps, adrive, do, drive
from samekey.core.errors import SamekeyError, StoreUnavailable
from samekey.core.record import Record
from samekey.core.states import State
from samekey.loops import Loop, ThreadBell, running, started

# Helpers of one guard. A command that was given up on keeps its helper until the store's own time-outs end it, 20 s at
# most. If so many are stuck, the store is down: further calls are not kept waiting for it.
HELPERS_MAX = 256
IDLE_SECONDS = 5.0  # then a helper thread without work ends
WAIT_PART = 2  # a waiter asks for the record at least twice in each deadline, to see whether the store still answers


class Bounded:
    """A guard as one call with a deadline sees it: the same guard, and a store that answers in time or fails."""

    def __init__(self, guard: Any, call: Call) -> None:
        self._guard = guard
        self.store: Any = (AsyncBoundedStore if guard._asynchronous else BoundedStore)(guard, (call,))
        self._budget = self.store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._guard, name)


def store_of(guard: Any, calls: Sequence[Call]) -> Any:
    """The store for a batch of commands, one for each of these calls."""
    if guard._in_process or not any(call.policy.bounded for call in calls):
        return guard.store
    return (AsyncBoundedStore if guard._asynchronous else BoundedStore)(guard, calls)


class _BoundedStore:
    """What both colours share; the steps are written once, and driven by `drive` or `adrive`."""

    _drive: Any
    _errand: Callable[..., Any]
    _settle_ends: float | None = None

    def __init__(self, guard: Any, calls: Sequence[Call]) -> None:
        self._guard, self._calls = guard, calls
        deadlines = [call.policy.store_deadline_seconds for call in calls]
        self._left = min((one for one in deadlines if one is not None), default=None)  # for all commands in all
        self._deadline = self._left
        self._patience = min(call.policy.settle_patience_seconds for call in calls)

    def carry_out(self, command: Any) -> Any:
        return self._drive(self._carrying_out(command), do)

    def batch(self, commands: Sequence[Any]) -> Any:
        return self._drive(self._within(lambda: self._guard.store.batch(commands), commands), do)

    def wait(self, command: Wait, timeout: float) -> Any:
        return self._drive(self._waiting(command, timeout), do)

    def spend(self, seconds: float) -> None:
        """The caller waited so long for the claim of another caller of this process."""
        if self._left is not None:
            self._left = max(0.0, self._left - seconds)

    @property
    def seconds_left(self) -> float | None:
        return self._left

    def _carrying_out(self, command: Any) -> Steps:
        return (yield from self._within(partial(self._straight, command), (command,)))

    def _within(self, work: Callable[[], Any], commands: Sequence[Command], more: float = 0.0) -> Steps:
        """Carry it out in the time that is left. `more` seconds do not count: the store waits for another holder."""
        left = self._left
        writes = isinstance(commands[0], Settle | Testify)
        if writes:
            now = time.monotonic()
            if self._settle_ends is None:
                self._settle_ends = now + self._patience
            left = self._settle_ends - now if left is None else min(left, self._settle_ends - now)
        if left is None:
            return (yield work)
        start = time.monotonic()
        late = self._late(commands)
        try:
            if left <= 0:
                raise self._out_of_time()
            return (yield partial(self._errand, work, left + more, late))
        finally:
            self.spend(time.monotonic() - start - more)

    def _waiting(self, command: Wait, timeout: float) -> Steps:
        """Wait for another holder, in parts: the store must answer after each of them."""
        if self._deadline is None:
            return (yield partial(self._guard.store.wait, command, timeout))
        ends = time.monotonic() + timeout
        while True:
            part = max(0.0, min(ends - time.monotonic(), self._deadline / WAIT_PART))
            work = partial(_wait, self._guard, command, part)
            record: Record | None = yield from self._within(work, (command,), part)
            if time.monotonic() >= ends or not _unmoved(record, command.seen):
                return record

    def _out_of_time(self) -> StoreUnavailable:
        seconds = self._deadline if self._left is not None and self._left <= 0 else self._patience
        error = StoreUnavailable(f"the store did not answer within {seconds} s, which is as long as the policy allows")
        error.tried_seconds = self._patience  # there is no time for another try
        return error

    def _late(self, commands: Sequence[Any]) -> Callable[[], Any] | None:
        """What to do after a command that was given up on: let a claim go under which nothing runs."""
        claims = [
            (call, command)
            for call, command in zip(self._calls, commands, strict=False)
            if isinstance(command, Open | Take) and call.policy.store_down == "refuse"
        ]
        return partial(self._drive, self._letting_go(claims), do) if claims else None

    def _letting_go(self, claims: Sequence[tuple[Call, Any]]) -> Steps:
        for call, command in claims:
            try:
                yield partial(self._drive, withdraw(call, command), self._straight)
            except SamekeyError:
                pass  # the store is still down: the claim, if it was made, ends with its lease

    def _straight(self, command: Any) -> Any:
        return self._guard.store.carry_out(command)


def _wait(guard: Any, command: Wait, timeout: float) -> Any:
    return guard.store.wait(command, timeout)


def _unmoved(record: Record | None, seen: Record) -> bool:
    """Whether there is nothing new for a waiter: the same hold, or the same attempt still asks."""
    if record is None or record.state is not seen.state or record.fence != seen.fence:
        return False
    return record.lease_live if record.state is State.STARTED else record.being_asked and record.asker == seen.asker


# -- in threads ----------------------------------------------------------------------------------------------------


class BoundedStore(_BoundedStore):
    _drive = staticmethod(drive)

    def _errand(self, work: Callable[[], Any], seconds: float, late: Callable[[], Any] | None) -> Any:
        helpers: Helpers = self._guard._helpers
        errand = _Errand(work, late)
        if not helpers.take(errand):
            raise StoreUnavailable(f"{HELPERS_MAX} commands are waiting for a store that does not answer")
        try:
            errand.bell.wait(seconds)
        finally:
            given_up = errand.first.acquire(blocking=False)
        if given_up:
            raise self._out_of_time()
        if errand.error is not None:
            raise errand.error
        return errand.reply


class _Errand:
    """One command; the caller that gives up and the helper that finishes both ask for `first`: one of them gets it."""

    __slots__ = ("bell", "error", "first", "late", "reply", "work")

    def __init__(self, work: Callable[[], Any], late: Callable[[], Any] | None) -> None:
        self.work, self.late = work, late
        self.bell, self.first = ThreadBell(), threading.Lock()
        self.reply: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.reply = self.work()
        except BaseException as error:
            self.error = error
        if self.first.acquire(blocking=False):
            self.bell.ring()
        elif self.late is not None:
            try:
                self.late()
            except BaseException:  # noqa: S110 - no caller is left, and the claim ends with its lease
                pass


class Helpers:
    """The helper threads of one guard. Each step is one operation on a list, which no other thread sees half done."""

    def __init__(self) -> None:
        self._idle: list[_Helper] = []
        self._all: set[_Helper] = set()

    def take(self, errand: _Errand) -> bool:
        try:
            helper = self._idle.pop()
        except IndexError:
            if len(self._all) >= HELPERS_MAX:
                return False
            helper = _Helper(self)
            helper.errand = errand
            self._all.add(helper)
            if not started(threading.Thread(target=helper.run, name="samekey-store", daemon=True)):
                self._all.discard(helper)
                return False
            return True
        helper.errand = errand
        helper.bell.ring()
        return True


class _Helper:
    errand: _Errand | None = None

    def __init__(self, helpers: Helpers) -> None:
        self._helpers = helpers
        self.bell = ThreadBell()

    def run(self) -> None:
        helpers = self._helpers
        while True:
            errand, self.errand = self.errand, None
            if errand is not None:
                errand.run()
                del errand
                helpers._idle.append(self)
            self.bell.wait(IDLE_SECONDS)
            if self.errand is None:
                try:
                    helpers._idle.remove(self)
                except ValueError:
                    continue  # a caller has just chosen this helper: its errand is coming
                helpers._all.discard(self)
                return


# -- in tasks ------------------------------------------------------------------------------------------------------


class AsyncBoundedStore(_BoundedStore):
    _drive = staticmethod(adrive)

    async def _errand(self, work: Callable[[], Any], seconds: float, late: Callable[[], Any] | None) -> Any:
        under_way: set[Any] = self._guard._under_way
        if len(under_way) >= HELPERS_MAX:
            raise StoreUnavailable(f"{HELPERS_MAX} commands are waiting for a store that does not answer")
        loop = running()
        bell = loop.bell()

        async def carried_out() -> Any:
            return await work()

        reply = loop.start(carried_out)
        under_way.add(reply)
        reply.add_done_callback(under_way.discard)
        reply.add_done_callback(lambda _: bell.ring())
        try:
            await bell.wait(seconds)
        finally:
            if not reply.done() and late is not None:
                reply.add_done_callback(partial(_let_go, loop, late))
        if not reply.done():
            raise self._out_of_time()
        return reply.result()


def _let_go(loop: Loop, late: Callable[[], Any], _: Any) -> None:
    if not loop.closed():
        loop.start(late)
