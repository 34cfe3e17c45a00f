"""Which connections a process and an event loop have, and what each is for.

Claims, settles and reads do not wait for each other. Renewals go with the reads: a renewal that waited for claims could
come too late for its lease. A claim whose row another transaction holds moves to a connection of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence

from samekey.core.commands import Ask, Free, Settle, Take
from samekey.core.errors import StoreBusy
from samekey.drivers.postgres.address import Address
from samekey.drivers.postgres.self_check import CLAIM_LOCK_SECONDS
from samekey.loops import Bells
from samekey.stores._turns import Waking
from samekey.stores.postgres._batches import Item
from samekey.stores.postgres._listener import LISTEN_SECONDS, Listener, LoopBells
from samekey.stores.postgres._tasks import AsyncSharedConnection, Round
from samekey.stores.postgres._threads import SharedConnection

MOVES = frozenset({Take, Settle, Ask, Free})  # the commands whose effect waiters wait for

CONTENDED_MAX = 1000  # keys in open transactions that are remembered; more are only slower
LISTEN_LOOK_SECONDS = 0.01  # how often a first waiter checks for the listener: connecting takes about that long


class ProcessConnections:
    """The connections of one process, its waiters and its listener; each connection is opened when first needed."""

    def __init__(self, address: Address) -> None:
        self.pid = os.getpid()
        self.closed = False
        waking = Waking()
        claims_durable = address.durability != "fast"
        self.claims = claims = SharedConnection(
            address, waking, durable=claims_durable, lock_seconds=CLAIM_LOCK_SECONDS
        )
        self.settles = SharedConnection(address, waking, durable=address.durability == "durable", spare=claims)
        self.reads = SharedConnection(address, waking, spare=claims)
        self.operators = SharedConnection(address, operator=True)
        self.contended = SharedConnection(address, durable=claims_durable, batch_max=1, spare=claims)
        self.contended_keys: set[bytes] = set()
        self.all = (claims, self.settles, self.reads, self.operators, self.contended)
        self.bells = Bells()
        self.listener = Listener(address, self.bells)

    def contend(self, item: Item) -> None:
        """Carry out a claim whose row another transaction holds, on a connection of its own.

        A key that is claimed in an open transaction of a caller's (`Atomic`) stays locked until that transaction ends.
        On the connection of the claims every try would make all other claims wait.
        """
        _contended(self.contended_keys, item)
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


class LoopConnections:
    """The connections of one event loop of one process."""

    def __init__(self, address: Address) -> None:
        self.pid = os.getpid()
        self._bells: LoopBells | None = None
        round = Round()
        claims_durable = address.durability != "fast"
        self.claims = claims = AsyncSharedConnection(
            address, round, durable=claims_durable, lock_seconds=CLAIM_LOCK_SECONDS
        )
        self.settles = AsyncSharedConnection(address, round, durable=address.durability == "durable", spare=claims)
        self.reads = AsyncSharedConnection(address, round, spare=claims)
        self.operators = AsyncSharedConnection(address, round, operator=True)
        self.contended = AsyncSharedConnection(address, round, durable=claims_durable, batch_max=1, spare=claims)
        self.contended_keys: set[bytes] = set()
        self.all = (claims, self.settles, self.reads, self.operators, self.contended)

    async def contend(self, item: Item) -> None:
        """As `ProcessConnections.contend`."""
        _contended(self.contended_keys, item)
        await self.contended.perform((item,))
        if type(item.error) is not StoreBusy:
            self.contended_keys.discard(item.digest)

    def bells(self, process: ProcessConnections) -> LoopBells:
        if self._bells is None:
            self._bells = LoopBells(asyncio.get_running_loop(), process.bells)
        return self._bells

    async def hearing(self, listening: threading.Event) -> None:
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


def _contended(keys: set[bytes], item: Item) -> None:
    """Note the key as contended, and make the item ready for its next try."""
    if len(keys) >= CONTENDED_MAX:
        keys.clear()  # each of them is noted again at its next try
    keys.add(item.digest)
    item.error, item.done = None, False
