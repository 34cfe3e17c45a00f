"""The connections of a process, shared by its threads: `stores._turns` has the rules of their turns.

A lone command over one good connection takes the short way: packed, sent, read. Everything else (several commands, no
connection yet, an error, a lost reply) goes through a batch. Tasks have connections of their own (`_tasks`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from samekey.core.drive import do, drive
from samekey.drivers.redis.connect import Place
from samekey.drivers.redis.wire import Lost, Wire
from samekey.stores._turns import Turns
from samekey.stores.redis._batches import BATCH_BYTES_MAX, BATCH_MAX, Item, carrying_out, weight
from samekey.stores.redis._discovery import Network
from samekey.stores.redis._knowledge import Knowledge
from samekey.stores.redis._requests import SELF_CHECK
from samekey.stores.redis._servers import Servers


class ThreadQueue(Turns[Item]):
    """Carries out the commands of the threads of a process, one batch after the other.

    After an interrupt (Ctrl-C, a signal handler that raises) a connection may have replies that no caller has read.
    `Wire` hangs up at the next use then, and the commands are sent again: each recognises its own earlier write.
    """

    def __init__(self, known: Knowledge) -> None:
        super().__init__(known.address.name, batch_max=BATCH_MAX, bytes_max=BATCH_BYTES_MAX)
        self._known = known
        self.servers = Servers(known, NETWORK)

    def check_servers(self) -> None:
        self.perform([], lambda turn: drive(self.servers.checking_all(), do))

    def close(self) -> None:
        self.servers.closed = True
        for connection in list(self.servers.connections.values()):
            connection.wire.close()

    def _carry_out(self, items: Sequence[Item], turn: Sequence[Item]) -> None:
        servers = self.servers  # of this turn: a thread that takes the turn over makes its own
        if len(items) != 1 or not _alone(items[0], servers):
            drive(carrying_out(items, servers, self._known), do)

    def _leave_connection(self) -> None:
        closed, self.servers = self.servers.closed, Servers(self._known, NETWORK)
        self.servers.closed = closed

    def _weight(self, items: Sequence[Item]) -> int:
        return weight(items)

    def _perform_rest(self, items: Sequence[Item]) -> None:
        for item in items:
            for request in item.requests:
                request.lost = True
        self.perform(items)


def _alone(item: Item, servers: Servers) -> bool:
    """Carry out one command the short way; returns False if a batch must continue."""
    connection = servers.simple_connection()
    if connection is None:
        return False
    if not item.requests:  # else a leader began it, and was interrupted
        item.advance(None)
    while not item.done and not item.several:
        (request,) = item.requests
        if request.script is SELF_CHECK:
            return False
        try:
            connection.wire.send(servers.packed(connection, request), 1)
            (reply,) = connection.wire.receive(1)
        except Lost:
            request.lost = True
            servers.drop(connection)
            return False
        if reply.__class__ is not list:
            return False  # the batch sends it again, which is safe: every request recognises its own write
        item.advance(reply)
    return item.done


def _connect(place: Place) -> Wire:
    wire = Wire(place)
    wire.connect()
    return wire


NETWORK = Network(_connect, time.sleep)
