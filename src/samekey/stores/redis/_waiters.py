"""The tasks of one event loop that wait for one key.

They share one subscription, one read and one timer, however many they are: each waiter has only a future, and the
watching task gives it the record. Whether the record has moved on is decided once for all waiters that saw the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import TYPE_CHECKING

from samekey.core.key import Key
from samekey.core.record import Record
from samekey.loops import running
from samekey.stores._failures import own_copy
from samekey.stores._waiting import moved_on, pause_seconds
from samekey.stores.redis._subscriber import older

if TYPE_CHECKING:
    from samekey.stores.redis._subscriber import AsyncSubscriber

Read = Callable[[], Awaitable[Record | None]]
_Group = tuple[Record, dict["asyncio.Future[Record | None]", float]]  # what they saw, and the deadline of each waiter


class Waiters:
    """Begins with the first waiter of a key; `over` is called after the last one."""

    def __init__(self, key: Key, subscriber: AsyncSubscriber, read: Read, over: Callable[[], object]) -> None:
        self._key, self._subscriber, self._read, self._over = key, subscriber, read, over
        self._loop = asyncio.get_running_loop()
        self._bell = running().bell()
        self._groups: dict[Hashable, _Group] = {}  # the waiters that saw the same record, by what they saw
        self._joined = True
        self._watch: asyncio.Task[None] | None = None

    async def wait(self, seen: Record, timeout: float) -> Record | None:
        """The record when it has moved on, or as it is after `timeout` seconds."""
        future: asyncio.Future[Record | None] = self._loop.create_future()
        name = (seen.state, seen.token, seen.attempt, seen.version, seen.asker)  # all that a read is compared with
        _, deadlines = group = self._groups.setdefault(name, (seen, {}))
        deadlines[future] = self._loop.time() + timeout
        if self._watch is None:  # started after the first waiter is there: a loop may run it at once
            self._watch = self._loop.create_task(self._keep_watch())
        elif not self._joined:
            self._joined = True
            self._bell.ring()
        try:
            return await future
        finally:
            if deadlines.pop(future, None) is not None and not deadlines:  # the last one was cancelled
                if self._groups.get(name) is group:
                    del self._groups[name]
                if not self._groups:
                    self._bell.ring()

    async def _keep_watch(self) -> None:
        subscriber, digest = self._subscriber, self._key.digest
        with subscriber.watching(self._key):
            last: Record | None = None
            subscriber.bells.add(digest, self._bell)  # before the first read: a ring in between is not lost
            try:
                while self._groups:
                    # A waiter that has just joined needs a read: a message may be older than what it saw.
                    joined, self._joined = self._joined, False
                    latest = subscriber.latest.get(digest)
                    message, last = (None if joined or latest is last else latest), latest
                    record = message or await self._read()
                    pause = self._wake(record, from_message=message is not None)
                    if self._groups and not self._joined:
                        await self._bell.wait(pause)
            except Exception as error:
                for future in self._futures():
                    if not future.done():
                        future.set_exception(own_copy(error))
                self._groups.clear()
            finally:
                subscriber.bells.remove(digest, self._bell)
                self._over()
                for future in self._futures():
                    future.cancel()  # the loop is being closed

    def _wake(self, record: Record | None, *, from_message: bool) -> float:
        """Give the record to all waiters that it moved on for or whose time is over; how long the others may sleep."""
        now = self._loop.time()
        ends = []
        for name, (seen, deadlines) in list(self._groups.items()):
            if moved_on(record, seen) and not (from_message and older(record, seen)):
                over = list(deadlines)
                deadlines.clear()
            else:
                over = [future for future, deadline in deadlines.items() if now >= deadline]
                for future in over:
                    del deadlines[future]
            if deadlines:
                ends.append(min(deadlines.values()))
            else:
                del self._groups[name]
            for future in over:
                if not future.done():  # else cancelled
                    future.set_result(record)
        return pause_seconds(record, min(ends, default=now) - now)

    def _futures(self) -> list[asyncio.Future[Record | None]]:
        return [future for _, deadlines in self._groups.values() for future in deadlines]
