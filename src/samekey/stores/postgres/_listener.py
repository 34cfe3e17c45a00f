"""One listener per process: a thread that receives the notifications of the server and wakes the waiters here.

An event loop is woken once, however many of its tasks wait for a record (`LoopBells`).

A notification is a hint and never the truth: a waiter that is woken reads the record. While the listener has no
connection, waiters read again from time to time; when it has one again, it wakes all of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import threading
import time
from typing import Any

from samekey.core.errors import SamekeyError
from samekey.drivers.postgres.address import Address
from samekey.drivers.postgres.connect import CONNECT_SECONDS, connect_listener
from samekey.drivers.postgres.errors import DriverError
from samekey.loops import Bell, Bells, started

LISTEN_SECONDS = 1.0  # how long a first waiter waits for the listener before it goes on without
RECONNECT_SECONDS = 0.25  # as often as waiters look again by themselves
IDLE_SECONDS = 60.0  # after this long without a waiter the listener ends and closes its connection

_log = logging.getLogger("samekey")


class Listener:
    """Started by the first waiter; ends when there was no waiter for a while."""

    def __init__(self, address: Address, bells: Bells) -> None:
        self._address, self._bells = address, bells
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._listening = threading.Event()
        self._closed = False
        self._used_at = 0.0
        self._wake: int | None = None

    def start(self) -> None:
        """Start listening, and wait a moment until it works: a waiter flags its row only after that."""
        if self._address.pgbouncer:
            return
        self.start_soon()
        self._listening.wait(LISTEN_SECONDS)

    def start_soon(self) -> threading.Event:
        """The same without waiting; the event is set when it listens."""
        with self._starting:
            self._used_at = time.monotonic()
            if not (self._closed or self._address.pgbouncer or (self._thread and self._thread.is_alive())):
                self._thread = threading.Thread(target=self._run, name="samekey-listener", daemon=True)
                started(self._thread)  # if no thread can be started, waiters read again from time to time
        return self._listening

    def close(self) -> None:
        self._closed = True
        with self._starting:
            if self._wake is not None:
                os.write(self._wake, b"x")
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(CONNECT_SECONDS)

    def _run(self) -> None:
        wake_read, wake_write = os.pipe()
        with self._starting:
            self._wake = wake_write
        try:
            while not (self._closed or self._idle()):
                try:
                    connection = connect_listener(self._address)
                except SamekeyError as error:
                    _log.debug("samekey cannot listen to %s: %s", self._address.name, error)
                    time.sleep(RECONNECT_SECONDS)
                    continue
                try:
                    self._listening.set()
                    self._bells.ring_all()  # for notifications that were sent while there was no connection
                    self._receive(connection, wake_read)
                except (DriverError, OSError) as error:
                    _log.debug("samekey stopped listening to %s: %s", self._address.name, error)
                finally:
                    self._listening.clear()
                    connection.close()
        finally:
            with self._starting:
                self._wake = self._thread = None
                os.close(wake_read)
                os.close(wake_write)

    def _receive(self, connection: Any, wake_read: int) -> None:
        link = connection.pgconn
        poll = select.poll()  # not select(), which takes no descriptor above 1023
        poll.register(link.socket, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        while not self._closed:
            while (notice := link.notifies()) is not None:
                self._bells.ring(_digest(notice.extra))
            if poll.poll(IDLE_SECONDS * 1000):
                link.consume_input()  # raises when the server is gone
            elif self._idle():
                return

    def _idle(self) -> bool:
        """A caller that starts to wait right now finds no listener and reads again from time to time: no more."""
        if len(self._bells):
            self._used_at = time.monotonic()
        return time.monotonic() - self._used_at >= IDLE_SECONDS


class LoopBells(Bells):
    """The bells of one event loop. Among those of the process they are one for each digest."""

    def __init__(self, loop: asyncio.AbstractEventLoop, bells: Bells) -> None:
        super().__init__()
        self.loop, self._bells = loop, bells
        self._relays: dict[bytes, _Relay] = {}

    def add(self, digest: bytes, bell: Bell) -> bool:
        first = super().add(digest, bell)
        if first:
            relay = self._relays[digest] = _Relay(self, digest)
            self._bells.add(digest, relay)
        return first

    def remove(self, digest: bytes, bell: Bell) -> bool:
        last = super().remove(digest, bell)
        if last:
            self._bells.remove(digest, self._relays.pop(digest))
        return last


class _Relay:
    """Rung by any thread, it rings the bells of one digest in their loop."""

    __slots__ = ("_bells", "_digest")

    def __init__(self, bells: LoopBells, digest: bytes) -> None:
        self._bells, self._digest = bells, digest

    def ring(self) -> None:
        try:
            self._bells.loop.call_soon_threadsafe(self._bells.ring, self._digest)
        except RuntimeError:
            pass  # the loop is closed: it has no waiters


def _digest(payload: bytes) -> bytes:
    try:
        return bytes.fromhex(payload.decode())
    except ValueError:
        return b""  # another program uses the channel too
