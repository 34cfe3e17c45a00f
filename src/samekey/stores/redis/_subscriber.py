"""One subscriber per process, or per event loop: it receives what the scripts publish, and wakes the waiters.

Threads are served by a subscriber thread. Tasks are served by their own loop: a thread in between would have to be
woken first. Each key that is waited for has a channel, named like the record and its database. The first waiter
subscribes, the last one unsubscribes. The message contains the record, so that five hundred waiters need no read.

A message is only a hint. Without a connection the waiters read again by themselves. When a subscription begins they
are woken and read once more, so that a message that was published before is not missed.
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

from samekey.core.drive import adrive, do, drive
from samekey.core.errors import SamekeyError
from samekey.core.key import Key
from samekey.core.record import Record
from samekey.drivers.redis.connect import CONNECT_SECONDS
from samekey.drivers.redis.wire import Lost, Wire, packed
from samekey.loops import Bells, running, started
from samekey.stores.redis import _tasks, _threads
from samekey.stores.redis._knowledge import Knowledge
from samekey.stores.redis._records import record_of, written_at
from samekey.stores.redis._servers import Servers

RECONNECT_SECONDS = 0.25  # as often as waiters read again by themselves
IDLE_SECONDS = 60.0  # after so long without a waiter the subscriber ends, and closes its connection

_log = logging.getLogger("samekey")


class _Subscriptions:
    """The keys that are waited for, and the last message about each; the two classes below do the receiving."""

    def __init__(self, known: Knowledge, bells: Bells) -> None:
        self._known, self.bells = known, bells
        self._mutex = threading.Lock()
        self._waiting: dict[bytes, int] = {}  # how many waiters, by digest
        self._closed = False
        self._used_at = 0.0
        self.latest: dict[bytes, Record] = {}  # the last published record of each key that is waited for

    @contextmanager
    def watching(self, key: Key) -> Iterator[None]:
        """Receive messages about this key. Its waiters are woken when the subscription begins."""
        digest, counted = key.digest, False
        try:
            with self._mutex:
                if digest not in self._waiting:
                    # Before the count: after an interrupt here the next waiter subscribes again.
                    self._send(b"SUBSCRIBE", digest)
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
                        self.latest.pop(digest, None)
                        self._send(b"UNSUBSCRIBE", digest)

    def _begin(self) -> None:
        """Start receiving, unless it is running."""
        raise NotImplementedError

    def _send(self, command: bytes, digest: bytes) -> None:
        """Send to the server if connected. A new connection subscribes to every key that is waited for."""
        raise NotImplementedError

    def _receive(self, message: list[bytes]) -> None:
        """Keep the record of a message, and wake the waiters of its key."""
        kind, channel, content = message
        digest = _digest(channel)
        if kind == b"message":
            try:
                if content:
                    self._keep(digest, content)
                else:
                    self.latest.pop(digest, None)
            except (SamekeyError, ValueError):
                self.latest.pop(digest, None)  # another program's message on this channel: the waiters read
        elif kind != b"subscribe":
            return
        self.bells.ring(digest)

    def _keep(self, digest: bytes, value: bytes) -> None:
        record = record_of(value, None, digest, now=written_at(value), lost=self._known.lost[digest[0]])
        with self._mutex:
            if digest in self._waiting:
                self.latest[digest] = record

    def _done(self) -> bool:
        """Whether to end. A waiter that starts at this moment has no subscriber, and reads again by itself."""
        return self._closed or self._idle()

    def _idle(self) -> bool:
        if self._waiting:
            self._used_at = time.monotonic()
        return time.monotonic() - self._used_at >= IDLE_SECONDS


class Subscriber(_Subscriptions):
    """A thread, started by the first waiter; ends after a while without waiters."""

    def __init__(self, known: Knowledge, bells: Bells) -> None:
        super().__init__(known, bells)
        self._to_send: list[tuple[bytes, bytes]] = []  # command and channel
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
            thread.join(CONNECT_SECONDS)

    def _begin(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # an interrupt may have struck before its start
            self._thread = threading.Thread(target=self._run, name="samekey-subscriber", daemon=True)
            started(self._thread)  # without a thread the waiters read again by themselves

    def _send(self, command: bytes, digest: bytes) -> None:
        if not self._connected:
            return
        self._to_send.append((command, self._known.channel(digest)))
        if self._wake is not None and len(self._to_send) == 1:
            os.write(self._wake, b"x")

    # -- the thread ------------------------------------------------------------------------------------------

    def _run(self) -> None:
        wakeup, wake = os.pipe()
        os.set_blocking(wakeup, False)
        with self._mutex:
            self._wake = wake
        try:
            while not self._done():
                try:
                    wire: Any = drive(Servers(self._known, _threads.NETWORK).connecting_subscriber(), do)
                except SamekeyError as error:
                    _log.debug("samekey cannot subscribe at %s: %s", self._known.address.name, error)
                    time.sleep(RECONNECT_SECONDS)
                    continue
                try:
                    with self._mutex:  # a new connection has no subscriptions
                        self._connected = True
                        self._to_send = [(b"SUBSCRIBE", self._known.channel(digest)) for digest in self._waiting]
                    self._receive_all(wire, wakeup)
                except Lost as lost:
                    _log.debug("samekey lost its subscriptions at %s: %s", self._known.address.name, lost)
                finally:
                    self._connected = False
                    wire.close()
        finally:
            with self._mutex:
                self._wake = self._thread = None
                os.close(wakeup)
                os.close(wake)

    def _receive_all(self, wire: Wire, wakeup: int) -> None:
        while not self._closed:
            with self._mutex:
                commands, self._to_send = self._to_send, []
            if commands:
                wire.send(b"".join([packed(command) for command in commands]), 0)  # confirmed by messages
            message = wire.next_message(wakeup, IDLE_SECONDS)
            if message is not None:
                self._receive(message)
            elif _emptied(wakeup):
                continue
            elif self._idle():
                return


class AsyncSubscriber(_Subscriptions):
    """A connection that the event loop itself reads: made for the first task that waits, kept while it is used."""

    def __init__(self, known: Knowledge, bells: Bells) -> None:
        super().__init__(known, bells)
        self._wire: Any = None
        self._task: asyncio.Task[None] | None = None
        self._over = running().bell()  # rung when the connection was lost or the store was closed

    async def close(self) -> None:
        self._closed = True
        self._over.ring()
        if self._task is not None:
            await asyncio.wait((self._task,))

    def abandon(self) -> None:
        """Give the connection up: the loop is closed, and its tasks are gone."""
        self._closed = True
        if self._wire is not None:
            self._wire.abandon()

    def receive(self, answers: list[Any]) -> None:
        for message in answers:
            if isinstance(message, list):
                self._receive(message)

    def lose(self, lost: Lost) -> None:
        if not self._closed:
            _log.debug("samekey lost its subscriptions at %s: %s", self._known.address.name, lost)
        self._wire = None
        self._over.ring()

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _send(self, command: bytes, digest: bytes) -> None:
        if self._wire is not None:
            self._wire.send_unanswered(packed((command, self._known.channel(digest))))

    async def _run(self) -> None:
        while not self._done():
            try:
                wire: Any = await adrive(Servers(self._known, _tasks.NETWORK).connecting_subscriber(), do)
            except SamekeyError as error:
                _log.debug("samekey cannot subscribe at %s: %s", self._known.address.name, error)
                await self._over.wait(RECONNECT_SECONDS)
                continue
            try:
                self._wire = wire
                wire.listen(self)
                for digest in self._waiting:
                    self._send(b"SUBSCRIBE", digest)
                while self._wire is wire and not self._done():
                    await self._over.wait(IDLE_SECONDS)
            finally:
                await wire.close()


def older(message: Record | None, seen: Record) -> bool:
    """Whether a published record is older than what the waiter saw: a message may be late."""
    return message is not None and (message.token, message.version) < (seen.token, seen.version)


def _emptied(wakeup: int) -> bool:
    try:
        return bool(os.read(wakeup, 4096))
    except BlockingIOError:
        return False


def _digest(channel: bytes) -> bytes:
    try:
        return bytes.fromhex(channel.partition(b"@")[0][-32:].decode())
    except ValueError:
        return b""
