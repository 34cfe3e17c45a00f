"""One subscriber per process, or per event loop: it hears what the scripts publish, and rings the bells here.

Threads are served by a thread of its own; tasks by their own loop, because a thread between the two would have to be
woken first. A channel for each key somebody waits for, named like the record and its database: the first who waits
subscribes, the last one leaves it. The message carries the record, so that five hundred who wait cost no read at all.
It is a hint all the same: while there is no connection waiters look again by themselves, and whenever a subscription
begins they are rung and look once more, so that nothing told in between is lost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from samekey.core.errors import SamekeyError
from samekey.core.key import Key
from samekey.core.record import Record
from samekey.drivers.redis import connect as driver
from samekey.loops import Bells, running, started
from samekey.stores.redis._records import record_of, written_at
from samekey.stores.redis._servers import Links, Memory
from samekey.stores.redis._tasks import do as async_do
from samekey.stores.redis._tasks import drive as async_drive
from samekey.stores.redis._threads import do, drive

RECONNECT_SECONDS = 0.25  # as often as waiters look again by themselves
IDLE_SECONDS = 60.0  # nobody waited for so long: the subscriber goes home, and its connection with it

_log = logging.getLogger("samekey")


class Ears:
    """Who waits for which key here, and what was told about it last; how one listens is up to the two below."""

    def __init__(self, memory: Memory, bells: Bells) -> None:
        self._memory, self.bells = memory, bells
        self._mutex = threading.Lock()
        self._waiting: dict[bytes, int] = {}  # how many wait, by digest
        self._closed = False
        self._used_at = 0.0
        self.news: dict[bytes, Record] = {}  # the last record that was told, while somebody waits for it

    @contextmanager
    def watching(self, key: Key) -> Iterator[None]:
        """Hear about this key; whoever waits for it is rung when that begins."""
        digest, counted = key.digest, False
        try:
            with self._mutex:
                if digest not in self._waiting:
                    self._say(b"SUBSCRIBE", digest)  # first: whoever is interrupted here must not leave others deaf
                self._waiting[digest], counted = self._waiting.get(digest, 0) + 1, True
                self._used_at = time.monotonic()
                if not self._closed:
                    self._begin()
            yield
        finally:
            with self._mutex:
                if counted:
                    self._waiting[digest] -= 1
                    if not self._waiting[digest]:
                        del self._waiting[digest]
                        self.news.pop(digest, None)
                        self._say(b"UNSUBSCRIBE", digest)

    def _begin(self) -> None:
        """Listen, unless we do."""
        raise NotImplementedError

    def _say(self, word: bytes, digest: bytes) -> None:
        """To the server, if we are connected: whoever connects subscribes to all that is waited for."""
        raise NotImplementedError

    def _tell_all(self, message: list[bytes]) -> None:
        """What the server said, to those who wait for it."""
        kind, channel, said = message
        digest = _digest(channel)
        if kind == b"message":
            try:
                if said:
                    self._told(digest, said)
                else:
                    self.news.pop(digest, None)
            except (SamekeyError, ValueError):
                self.news.pop(digest, None)  # somebody else's word on our channel: whoever is rung reads for itself
        elif kind != b"subscribe":
            return
        self.bells.ring(digest)

    def _told(self, digest: bytes, value: bytes) -> None:
        record = record_of(value, None, digest, now=written_at(value), lost=self._memory.lost[digest[0]])
        with self._mutex:
            if digest in self._waiting:
                self.news[digest] = record

    def _done(self) -> bool:
        """Whoever starts to wait right now finds no subscriber and looks again by itself: that is all it costs."""
        return self._closed or self._idle()

    def _idle(self) -> bool:
        if self._waiting:
            self._used_at = time.monotonic()
        return time.monotonic() - self._used_at >= IDLE_SECONDS


class Subscriber(Ears):
    """A thread, started by the first who waits; goes home when nobody does for a while."""

    def __init__(self, memory: Memory, bells: Bells) -> None:
        super().__init__(memory, bells)
        self._errands: list[tuple[bytes, bytes]] = []  # what to say on the connection, and about which channel
        self._thread: threading.Thread | None = None
        self._wake: int | None = None
        self._connected = False

    def close(self) -> None:
        self._closed = True
        with self._mutex:
            if self._wake is not None:
                os.write(self._wake, b"x")
            thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(driver.CONNECT_SECONDS)

    def _begin(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # interrupted before it was started
            self._thread = threading.Thread(target=self._run, name="samekey-subscriber", daemon=True)
            started(self._thread)  # or waiters look again by themselves

    def _say(self, word: bytes, digest: bytes) -> None:
        if not self._connected:
            return
        self._errands.append((word, self._memory.channel(digest)))
        if self._wake is not None and len(self._errands) == 1:
            os.write(self._wake, b"x")

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        ears, mouth = os.pipe()
        os.set_blocking(ears, False)
        with self._mutex:
            self._wake = mouth
        try:
            while not self._done():
                try:
                    wire = drive(Links(self._memory).listening(), do)
                except SamekeyError as error:
                    _log.debug("samekey cannot listen to %s: %s", self._memory.address.name, error)
                    time.sleep(RECONNECT_SECONDS)
                    continue
                try:
                    with self._mutex:  # a new connection hears nothing yet
                        self._connected = True
                        self._errands = [(b"SUBSCRIBE", self._memory.channel(digest)) for digest in self._waiting]
                    self._hear(wire, ears)
                except driver.Lost as lost:
                    _log.debug("samekey stopped listening to %s: %s", self._memory.address.name, lost)
                finally:
                    self._connected = False
                    wire.close()
        finally:
            with self._mutex:
                self._wake = self._thread = None
                os.close(ears)
                os.close(mouth)

    def _hear(self, wire: driver.Wire, ears: int) -> None:
        while not self._closed:
            with self._mutex:
                errands, self._errands = self._errands, []
            if errands:
                wire.send(b"".join([driver.packed(errand) for errand in errands]), 0)  # what comes is heard
            heard = wire.hear(ears, IDLE_SECONDS)
            if heard is not None:
                self._tell_all(heard)
            elif _emptied(ears):
                continue
            elif self._idle():
                return


class AsyncSubscriber(Ears):
    """A connection that the event loop itself listens to: made by the first task that waits, kept while it is used."""

    def __init__(self, memory: Memory, bells: Bells) -> None:
        super().__init__(memory, bells)
        self._wire: Any = None
        self._task: asyncio.Task[None] | None = None
        self._over = running().bell()  # rung when there is nothing more to hear

    async def close(self) -> None:
        self._closed = True
        self._over.ring()
        if self._task is not None:
            await asyncio.wait((self._task,))

    def abandon(self) -> None:
        """The loop is gone; so is whoever waited."""
        self._closed = True
        if self._wire is not None:
            self._wire.abandon()

    def heard(self, answers: list[Any]) -> None:
        for said in answers:
            if isinstance(said, list):
                self._tell_all(said)

    def lost(self, lost: driver.Lost) -> None:
        if not self._closed:
            _log.debug("samekey stopped listening to %s: %s", self._memory.address.name, lost)
        self._wire = None
        self._over.ring()

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _say(self, word: bytes, digest: bytes) -> None:
        if self._wire is not None:
            self._wire.tell(driver.packed((word, self._memory.channel(digest))))

    async def _run(self) -> None:
        while not self._done():
            try:
                wire = await async_drive(Links(self._memory).listening(), async_do)
            except SamekeyError as error:
                _log.debug("samekey cannot listen to %s: %s", self._memory.address.name, error)
                await self._over.wait(RECONNECT_SECONDS)
                continue
            try:
                self._wire = wire
                wire.listen(self)
                for digest in self._waiting:
                    self._say(b"SUBSCRIBE", digest)
                while self._wire is wire and not self._done():
                    await self._over.wait(IDLE_SECONDS)
            finally:
                await wire.close()


def older(told: Record | None, seen: Record) -> bool:
    """Whether this was told before that was seen: a message may be late."""
    return told is not None and (told.token, told.version) < (seen.token, seen.version)


def _emptied(ears: int) -> bool:
    try:
        return bool(os.read(ears, 4096))
    except BlockingIOError:
        return False


def _digest(channel: bytes) -> bytes:
    try:
        return bytes.fromhex(channel.partition(b"@")[0][-32:].decode())
    except ValueError:
        return b""
