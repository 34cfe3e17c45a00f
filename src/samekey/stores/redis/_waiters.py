"""Vigils: the tasks of one event loop that wait for one key.

One subscription, one look and one timer for all of them, however many they are: whoever waits has a future and nothing
else to do, and is handed the record by the one who looked. Whether it is news is decided once for all who saw the same.
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


class _Company:
    """Those who saw the same: what is news for one of them is news for all."""

    __slots__ = ("seen", "waiting")

    def __init__(self, seen: Record) -> None:
        self.seen = seen
        self.waiting: dict[asyncio.Future[Record | None], float] = {}  # until when each waits


class Vigil:
    """It begins with the first who waits, and ends after the last: `over` is called then."""

    def __init__(self, key: Key, subscriber: AsyncSubscriber, read: Read, over: Callable[[], object]) -> None:
        self._key, self._subscriber, self._read, self._over = key, subscriber, read, over
        self._loop = asyncio.get_running_loop()
        self._bell = running().bell()
        self._waiting: dict[Hashable, _Company] = {}  # by what they saw
        self._joined = True
        self._watch: asyncio.Task[None] | None = None

    async def wait(self, seen: Record, timeout: float) -> Record | None:
        """The record when it moved on, or as it is when the time is over."""
        future: asyncio.Future[Record | None] = self._loop.create_future()
        name = (seen.state, seen.token, seen.attempt, seen.version, seen.asker)  # all that a look is compared with
        company = self._waiting.get(name)
        if company is None:
            company = self._waiting[name] = _Company(seen)
        company.waiting[future] = self._loop.time() + timeout
        if self._watch is None:  # not before somebody waits: a loop may begin its tasks at once (eager_task_factory)
            self._watch = self._loop.create_task(self._keep())
        elif not self._joined:
            self._joined = True
            self._bell.ring()
        try:
            return await future
        finally:
            if company.waiting.pop(future, None) is not None and not company.waiting:  # cancelled, the last of them
                self._dissolve(name, company)

    async def _keep(self) -> None:
        subscriber, digest = self._subscriber, self._key.digest
        with subscriber.watching(self._key):
            last: Record | None = None
            subscriber.bells.add(digest, self._bell)  # before the first read: a ring in between is not lost
            try:
                while self._waiting:
                    # Whoever has just come wants a read: what was told may be older than what it saw.
                    joined, self._joined = self._joined, False
                    news = subscriber.news.get(digest)
                    told, last = (None if joined or news is last else news), news
                    record = told or await self._read()
                    pause = self._tell(record, told=told is not None)
                    if self._waiting and not self._joined:
                        await self._bell.wait(pause)
            except Exception as error:
                for future in self._everyone():
                    if not future.done():
                        future.set_exception(own_copy(error))
                self._waiting.clear()
            finally:
                subscriber.bells.remove(digest, self._bell)
                self._over()
                for future in self._everyone():
                    future.cancel()  # the loop is being closed under us

    def _tell(self, record: Record | None, *, told: bool) -> float:
        """Hand it to all for whom it moved on or whose time is over; for how long the others may sleep."""
        now = self._loop.time()
        ends = []
        for name, company in list(self._waiting.items()):
            waiting, seen = company.waiting, company.seen
            if moved_on(record, seen) and not (told and older(record, seen)):
                over = list(waiting)
                waiting.clear()
            else:
                over = [future for future, deadline in waiting.items() if now >= deadline]
                for future in over:
                    del waiting[future]
            if waiting:
                ends.append(min(waiting.values()))
            else:
                del self._waiting[name]
            for future in over:
                if not future.done():  # cancelled
                    future.set_result(record)
        return pause_seconds(record, min(ends, default=now) - now)

    def _dissolve(self, name: Hashable, company: _Company) -> None:
        if self._waiting.get(name) is company:
            del self._waiting[name]
        if not self._waiting:
            self._bell.ring()  # nobody is left

    def _everyone(self) -> list[asyncio.Future[Record | None]]:
        return [future for company in self._waiting.values() for future in company.waiting]
