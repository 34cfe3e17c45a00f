"""Lanes: the connections of a process, and the threads that want to use them at the same time.

Flush on free, no timer. A lone caller's command goes out at once, inline. While the lane is busy commands queue up, and
when it is free they travel together in one pipeline: the thread at the head of the queue leads, sends for all, answers
all, and hands the lead on. Tasks have lanes of their own (`_redis_tasks`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any

from samekey.core.errors import SamekeyError, StoreUnavailable
from samekey.drivers.redis.errors import DriverError
from samekey.drivers.redis.wire import Lost, Wire
from samekey.stores.redis._batches import BATCH_BYTES_MAX, BATCH_MAX, Closed, Item, Pause, carrying_out, weight
from samekey.stores.redis._discovery import Connect, HangUp, Receive, Send
from samekey.stores.redis._knowledge import Knowledge
from samekey.stores.redis._requests import SELF_CHECK
from samekey.stores.redis._servers import Servers

TURN_SECONDS = 60.0  # many times what the commands before us may take; only for a leader that vanished


class Asked:
    """What one caller wants, and how it is told that it is its turn, or over."""

    __slots__ = ("again", "behind", "bell", "items", "told")

    def __init__(self, items: Sequence[Item], behind: Sequence[Item] | None) -> None:
        self.items = items
        self.behind = behind  # whose turn it was when we came
        self.bell = threading.Lock()  # held until rung: the cheapest thing a thread can sleep on
        self.bell.acquire()
        self.told = False  # somebody else did it for us
        self.again = False  # or not all of it

    def ring(self) -> None:
        if self.bell.locked():  # twice is once
            self.bell.release()


class ThreadQueue:
    """Connections that threads take turns on.

    An interrupt (Ctrl-C, a signal handler that raises) may strike between any two steps. So whose turn it is, is one
    field, and whoever finds its own items there when it ends passes the turn on, once more if it was interrupted at it.
    Nobody leaves the queue but by itself, or to be told.
    """

    def __init__(self, known: Knowledge) -> None:
        self._known = known
        self.servers = Servers(known)
        self._mutex = threading.Lock()
        self._queue: deque[Asked] = deque()
        self._leader: Sequence[Item] | None = None  # whose turn it is: the very items that it came with
        self._closed = False

    def perform(self, items: Sequence[Item], *, look: bool = False) -> None:
        """Carry these out, alone or together with whatever others want at the same time."""
        asked: Asked | None = None
        others: list[Asked] | None = None
        try:
            with self._mutex:
                if self._leader is None:
                    self._leader = items
                else:
                    asked = Asked(items, self._leader)
                    self._queue.append(asked)
            if asked is not None:
                self._await_turn(asked)
            if self._leader is items:
                if look:
                    self._drive(self.servers.checking_all())
                else:
                    if self._queue:
                        others = []
                        self._gather(items, asked, others)
                    if others or len(items) != 1 or not self._alone(items[0]):
                        everything = [*items, *(item for one in others or () for item in one.items)]
                        self._drive(carrying_out(everything, self.servers, self._known))
        finally:
            try:
                if asked is None or not asked.told:
                    self._pass_on(items, asked, others)
            except BaseException:
                self._pass_on(items, asked, others)
                raise
        if asked is not None and asked.again:
            self._perform_again([item for item in items if not item.done])

    def _perform_again(self, items: Sequence[Item]) -> None:
        """Whoever did it for us was interrupted, and what became of it is not known."""
        for item in items:
            for request in item.requests:
                request.lost = True
        self.perform(items)

    def _alone(self, item: Item) -> bool:
        """The short way for one command over one good connection; where anything is odd, `carrying_out` goes on."""
        connection = self.servers.simple_connection()
        if connection is None:
            return False
        if not item.requests:  # else somebody has begun it for us, and was interrupted
            item.advance(None)
        while not item.done and not item.several:
            (request,) = item.requests
            if request.script is SELF_CHECK:
                return False
            try:
                connection.wire.send(self.servers.packed(connection, request), 1)
                (reply,) = connection.wire.receive(1)
            except Lost:
                request.lost = True
                self.servers.drop(connection)
                return False
            if reply.__class__ is not list:
                return False  # asked again, the short of it: every request recognises itself
            item.advance(reply)
        return item.done

    def check_servers(self) -> None:
        """Ask the servers again who they are."""
        self.perform([], look=True)  # no items: nobody can do it for us

    def close(self) -> None:
        self._closed = True
        for connection in list(self.servers.connections.values()):
            connection.wire.close()

    # -- taking turns --------------------------------------------------------------------------------------

    def _await_turn(self, asked: Asked) -> None:
        """Until it is our turn, or somebody else did it for us."""
        if asked.bell.acquire(timeout=TURN_SECONDS):
            return
        with self._mutex:
            if self._leader is asked.items:
                return
            if self._leader is asked.behind and asked in self._queue:
                # It vanished, or it takes far too long: either way its connections stay its own.
                self.servers = Servers(self._known)
                self._leader = asked.items
                return
        raise StoreUnavailable(f"no turn on a connection to {self._known.address.name} in {TURN_SECONDS:.0f} s")

    def _gather(self, mine: Sequence[Item], asked: Asked | None, others: list[Asked]) -> None:
        """Those whose items go together with ours."""
        count, carried = len(mine), weight(mine)
        with self._mutex:
            if asked is not None:
                self._queue.remove(asked)
            while self._queue and count < BATCH_MAX and carried < BATCH_BYTES_MAX and self._queue[0].items:
                others.append(self._queue[0])  # noted first: whoever is noted is told
                self._queue.popleft()
                count += len(others[-1].items)
                carried += weight(others[-1].items)

    def _pass_on(self, items: Sequence[Item], asked: Asked | None, others: list[Asked] | None) -> None:
        """Those we did it for are told, and if it is our turn, the next one leads. Twice is once."""
        queue = self._queue
        with self._mutex:
            if others:
                for one in others:
                    if queue and queue[0] is one:
                        queue.popleft()
                    one.again = not all(item.done for item in one.items)  # we were interrupted: it asks for itself
                    one.told = True
                    one.ring()
            if asked is not None and asked in queue:
                queue.remove(asked)
            if self._leader is items:
                self._leader = queue[0].items if queue else None
            if queue and queue[0].items is self._leader:
                queue[0].ring()

    # -- sending -------------------------------------------------------------------------------------------

    def _drive(self, steps: Generator[Any, Any, Any]) -> None:
        drive(steps, self._do)

    def _do(self, step: Any) -> Any:
        if self._closed and isinstance(step, Connect):
            raise Closed(f"{self._known.address.name} was closed")
        return do(step)


def drive(steps: Generator[Any, Any, Any], perform: Callable[[Any], Any]) -> Any:
    """Carry out what it yields, in this thread; what it returns."""
    try:
        step = next(steps)
        while True:
            try:
                reply = perform(step)
            except (DriverError, Lost, SamekeyError, OSError) as error:
                step = steps.throw(error)
            else:
                step = steps.send(reply)
    except StopIteration as stop:
        return stop.value
    finally:
        steps.close()


def do(step: Any) -> Any:
    match step:
        case Send(wire, data, replies):
            return wire.send(data, replies)
        case Receive(wire, sent):
            return wire.receive(sent)
        case HangUp(wire):
            return wire.close()
        case Pause(seconds):
            return time.sleep(seconds)
        case Connect(place):
            wire = Wire(place)
            wire.connect()
            return wire
