"""Vigils: the tasks of one event loop that wait for one key.

One subscription, one look and one timer for all of them, however many they are: whoever waits has a future and nothing
else to do, and is handed the record by the one who looked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from samekey.core.key import Key
from samekey.core.record import Record
from samekey.loops import running
from samekey.stores._redis_listen import older
from samekey.stores._waiting import moved_on, pause_seconds

if TYPE_CHECKING:
    from samekey.stores._redis_listen import Subscriber

Read = Callable[[], Awaitable[Record | None]]


class Vigil:
    """It begins with the first who waits, and ends after the last: `over` is called then."""

    def __init__(self, key: Key, subscriber: Subscriber, read: Read, over: Callable[[], object]) -> None:
        self._key, self._subscriber, self._read, self._over = key, subscriber, read, over
        self._loop = asyncio.get_running_loop()
        self._bell = running().bell()
        self._waiting: dict[asyncio.Future[Record | None], tuple[Record, float]] = {}  # what each saw, until when
        self._joined = True
        self._watch = self._loop.create_task(self._keep())

    async def wait(self, seen: Record, timeout: float) -> Record | None:
        """The record when it moved on, or as it is when the time is over."""
        future: asyncio.Future[Record | None] = self._loop.create_future()
        self._waiting[future] = (seen, self._loop.time() + timeout)
        if not self._joined:
            self._joined = True
            self._bell.ring()
        try:
            return await future
        finally:
            if self._waiting.pop(future, None) is not None and not self._waiting:
                self._bell.ring()  # cancelled, and nobody is left

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
                for future in self._waiting:
                    if not future.done():
                        future.set_exception(error)
                self._waiting.clear()
            finally:
                subscriber.bells.remove(digest, self._bell)
                self._over()
                for future in self._waiting:
                    future.cancel()  # the loop is being closed under us

    def _tell(self, record: Record | None, *, told: bool) -> float:
        """Hand it to all for whom it moved on or whose time is over; for how long the others may sleep."""
        now = self._loop.time()
        first = now
        for future, (seen, deadline) in list(self._waiting.items()):
            if (moved_on(record, seen) and not (told and older(record, seen))) or now >= deadline:
                del self._waiting[future]
                if not future.done():
                    future.set_result(record)
            else:
                first = deadline if first == now else min(first, deadline)
        return pause_seconds(record, first - now)
