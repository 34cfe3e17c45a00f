"""Which connections a process and an event loop have, and what each is for.

Claims, settles and reads do not wait for each other. A claim whose row another transaction holds moves to a connection
of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

from samekey.core.commands import Ask, Free, Read, Renew, Settle, Take, Wait
from samekey.core.errors import StoreBusy
from samekey.drivers.postgres.address import Address
from samekey.drivers.postgres.self_check import CLAIM_LOCK_SECONDS, Purpose
from samekey.loops import Bells
from samekey.stores._turns import Waking
from samekey.stores.postgres._batches import Item
from samekey.stores.postgres._listener import LISTEN_SECONDS, Listener, LoopBells
from samekey.stores.postgres._tasks import AsyncSharedConnection, Round
from samekey.stores.postgres._threads import SharedConnection

READS = frozenset({Read, Wait, Renew})  # a renewal that waited for claims could come too late for its lease
MOVES = frozenset({Take, Settle, Ask, Free})  # the commands whose effect waiters wait for

CONTENDED_MAX = 1000  # keys in open transactions that are remembered; more are only slower
LISTEN_LOOK_SECONDS = 0.01  # how often a first waiter checks for the listener: connecting takes about that long

C = TypeVar("C")


class _Connections(Generic[C]):
    """One connection for each purpose, opened when it is first needed."""

    def __init__(self, address: Address, make: Callable[..., C]) -> None:
        self.pid = os.getpid()
        claims_durable = address.durability != "fast"
        self.claims = claims = make(Purpose(durable=claims_durable, lock_seconds=CLAIM_LOCK_SECONDS))
        self.settles = make(Purpose(durable=address.durability == "durable"), spare=claims)
        self.reads = make(Purpose(), spare=claims)
        self.operators = make(Purpose(operator=True))
        self.contended = make(Purpose(durable=claims_durable), spare=claims, batch_max=1)
        self.contended_keys: set[bytes] = set()
        self.all = (claims, self.settles, self.reads, self.operators, self.contended)

    def _note_contended(self, item: Item) -> None:
        """Note its key as contended, and make the item ready for its next try."""
        if len(self.contended_keys) >= CONTENDED_MAX:
            self.contended_keys.clear()  # each of them is noted again at its next try
        self.contended_keys.add(item.digest)
        item.error, item.done = None, False


class ProcessConnections(_Connections[SharedConnection]):
    """The connections of one process, its waiters and its listener."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, partial(SharedConnection, address, Waking()))
        self.closed = False
        self.bells = Bells()
        self.listener = Listener(address, self.bells)

    def contend(self, item: Item) -> None:
        """Carry out a claim whose row another transaction holds, on a connection of its own.

        A key that is claimed in an open transaction of a caller's (`Atomic`) stays locked until that transaction ends.
        On the connection of the claims every try would make all other claims wait.
        """
        self._note_contended(item)
        self.contended.perform((item,))
        if type(item.error) is not StoreBusy:
            self.contended_keys.discard(item.digest)

    def ring(self, items: Sequence[Item]) -> None:
        """Wake the waiters of this process, which then need no notification from the server."""
        if len(self.bells):
            for item in items:
                if type(item.command) in MOVES:
                    self.bells.ring(item.command.key.digest)

    def close(self) -> None:
        self.closed = True
        if self.pid == os.getpid():
            self.listener.close()
            for connection in self.all:
                connection.close()


class LoopConnections(_Connections[AsyncSharedConnection]):
    """The connections of one event loop of one process."""

    def __init__(self, address: Address, bells: Bells) -> None:
        round = Round()
        super().__init__(address, partial(AsyncSharedConnection, address, round))
        self.bells = LoopBells(round.loop, bells)

    async def contend(self, item: Item) -> None:
        """As `ProcessConnections.contend`."""
        self._note_contended(item)
        await self.contended.perform((item,))
        if type(item.error) is not StoreBusy:
            self.contended_keys.discard(item.digest)

    async def until_listening(self, listening: threading.Event) -> None:
        """Wait for the listener without a thread of the loop's executor: its threads may all be busy, or ended."""
        for _ in range(round(LISTEN_SECONDS / LISTEN_LOOK_SECONDS)):
            if listening.is_set():
                return
            await asyncio.sleep(LISTEN_LOOK_SECONDS)

    async def close(self) -> None:
        for connection in self.all:
            await connection.close()

    def abandon(self) -> None:
        if self.pid == os.getpid():
            for connection in self.all:
                connection.abandon()
