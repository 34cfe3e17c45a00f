"""Records in PostgreSQL: the store for production, shared by every process of every machine.

Theory. Each command is one call of one function, and so one round trip and one transaction. The functions do in SQL
what `core.register` defines (see migrations/postgres). A claim reads first: a replay writes nothing, not even a
transaction id. The server's clock gives the time and its sequence the token. The fence is (token, attempt), because
after a failover the same token may be drawn again.

Each process has a few connections of its own (`_connections`), on which callers take turns: threads by `_threads`,
tasks by `_tasks`. Commands that queue up travel together. A lost reply is asked for again by attempt id (`_batches`).

Waiting: one connection per process listens (`_listener`). A waiter flags the row it waits for, and the server notifies
only about flagged rows. A notification may be lost, so waiters also read again from time to time (`stores._waiting`).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from samekey.core.commands import Read, Settle, StoreCommand, Wait
from samekey.core.errors import SamekeyError, StoreBusy, StoreUnavailable
from samekey.core.ports import Audits, Due, Health, Query, Records, Replies, Reply, listed
from samekey.core.record import Audit, Record
from samekey.core.states import Role
from samekey.drivers.postgres.address import Address, parse_url
from samekey.drivers.postgres.self_check import NOT_SHOWN, Facts
from samekey.loops import aside
from samekey.stores._waiting import async_wait, asyncio_loop, wait
from samekey.stores.postgres._batches import BATCH_MAX, Item
from samekey.stores.postgres._books import AsyncBooks, Books
from samekey.stores.postgres._connections import MOVES, READS, LoopConnections, ProcessConnections
from samekey.stores.postgres._operators import (
    DOUBTFUL,
    audit_statement,
    due_statement,
    list_statement,
    sweep_statement,
)
from samekey.stores.postgres._parking import AsyncParking, Parking
from samekey.stores.postgres._rows import record_of
from samekey.stores.postgres._tasks import AsyncSharedConnection
from samekey.stores.postgres._threads import SharedConnection
from samekey.stores.postgres._transaction import (
    IDENTITY,
    IDENTITY_BY_EPOCH,
    AsyncPostgresTransaction,
    PostgresTransaction,
    link_of,
)

_INHERITED: list[Any] = []  # connections that a forked child got from its parent: kept, so that it never closes them


class PostgresStore(Books, Parking):
    """A store for `Guard`: `PostgresStore("postgresql://app@db/shop")`. It connects when it is first used."""

    def __init__(self, url: str) -> None:
        self._address = parse_url(url)
        self.name = self._address.name
        self._process = ProcessConnections(self._address)
        self._identity: str | None = None

    @property
    def incarnation(self) -> str:
        return _incarnation(self._process.all)

    def __repr__(self) -> str:
        return f"<PostgresStore {self.name}>"

    # -- the port ------------------------------------------------------------------------------------------

    def carry_out(self, command: StoreCommand) -> Reply:
        connections = self._connections()
        kind, item = type(command), Item(command)
        if kind is Settle and command.role is not Role.OPERATOR:  # type: ignore[attr-defined]
            connections.settles.perform((item,))
        elif kind in READS:
            connections.reads.perform((item,))
        else:
            if item.digest not in connections.contended_keys:
                connections.claims.perform((item,))
            if not item.done or type(item.error) is StoreBusy:
                connections.contend(item)
        if kind in MOVES and connections.bells:
            connections.ring((item,))
        return item.reply or item.outcome()

    def wait(self, command: Wait, timeout: float) -> Record | None:
        connections = self._connections()
        connections.listener.start()  # listen, flag the row, read, sleep: in this order no wake-up is lost
        asking: list[StoreCommand] = [command]

        def look() -> Record | None:
            record: Record | None = self.carry_out(asking[0] if asking else Read(command.key))
            asking.clear()  # the row is flagged now; not if the table was locked
            return record

        return wait(command.seen, timeout, look, connections.bells)

    def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        connections = self._connections()
        items = [Item(command) for command in commands]
        for start in range(0, len(items), BATCH_MAX):
            some = items[start : start + BATCH_MAX]
            if _only_settles(some):
                connections.settles.perform(some)
            else:
                if free := [item for item in some if item.digest not in connections.contended_keys]:
                    connections.claims.perform(free)
                for item in some:
                    if not item.done or type(item.error) is StoreBusy:
                        connections.contend(item)
            connections.ring(some)
        return [item.error or item.reply for item in items]

    def list(self, query: Query) -> Records:
        rows = self._connections().operators.ask(list_statement(query))
        return listed(lambda row: record_of(row, None), rows)

    def due(self, due: Due) -> Records:
        rows = self._connections().operators.ask(due_statement(due))
        return Records(listed(lambda row: record_of(row, None), rows).records)

    def doubtful(self) -> Sequence[str]:
        return [operation for (operation,) in self._connections().operators.ask(DOUBTFUL)]

    def sweep(self, limit: int) -> int:
        ((count,),) = self._connections().operators.ask(sweep_statement(limit))
        return int(count)

    def audit(self, limit: int) -> Audits:
        return [Audit(*row) for row in self._connections().operators.ask(audit_statement(limit))]

    def health(self) -> Health:
        here = self._connections()
        here.operators.ask(("SELECT 1", ()))
        return _health(self._address, here.operators.facts, here.all)

    def join(self, connection: Any) -> PostgresTransaction:
        """This store inside the transactions of a caller's connection to the same database."""
        return PostgresTransaction(self.name, link_of(connection, asynchronous=False), self.identity)

    def identity(self, seen: str = "") -> str:
        """An id of the tables, whatever the address calls them; read again if the caller saw another one."""
        if self._identity is None or seen not in ("", self._identity):
            operators = self._connections().operators
            try:
                ((self._identity,),) = operators.ask((IDENTITY, ()))
            except SamekeyError as error:
                if getattr(error.__cause__, "sqlstate", None) not in NOT_SHOWN:
                    raise
                ((self._identity,),) = operators.ask((IDENTITY_BY_EPOCH, ()))
        return str(self._identity)

    def close(self) -> None:
        self._process.close()

    # -- connections: one set per process ------------------------------------------------------------------

    def _connections(self) -> ProcessConnections:
        here = self._process
        if here.pid != os.getpid():
            # A forked child must neither use nor close the parent's connections: that would end them for the parent.
            _INHERITED.append(here)
            here = self._process = ProcessConnections(self._address)
        if here.closed:
            raise StoreUnavailable(f"{self.name} was closed")
        return here


class AsyncPostgresStore(AsyncBooks, AsyncParking):
    """A store for `AsyncGuard`, on asyncio: a set of connections for each event loop that uses it."""

    def __init__(self, url: str) -> None:
        # The sync twin listens, and renews leases from the timer's thread while a loop is busy. It connects only when
        # it has something to do.
        self.sync = PostgresStore(url)
        self._address = self.sync._address
        self.name = self.sync.name
        self._loops: dict[asyncio.AbstractEventLoop, LoopConnections] = {}
        self._closed = False

    @property
    def incarnation(self) -> str:
        return _incarnation(
            [connection for connections in list(self._loops.values()) for connection in connections.all]
        )

    def __repr__(self) -> str:
        return f"<AsyncPostgresStore {self.name}>"

    async def carry_out(self, command: StoreCommand) -> Reply:
        connections = self._connections()
        kind, item = type(command), Item(command)
        if kind is Settle and command.role is not Role.OPERATOR:  # type: ignore[attr-defined]
            await connections.settles.perform((item,))
        elif kind in READS:
            await connections.reads.perform((item,))
        else:
            if item.digest not in connections.contended_keys:
                await connections.claims.perform((item,))
            if not item.done or type(item.error) is StoreBusy:
                await connections.contend(item)
        if kind in MOVES and self.sync._process.bells:
            self.sync._process.ring((item,))
        return item.reply or item.outcome()

    async def wait(self, command: Wait, timeout: float) -> Record | None:
        connections, here = self._connections(), self.sync._connections()
        listening = here.listener.start_soon()
        if not listening.is_set() and not self._address.pgbouncer:
            await connections.until_listening(listening)
        asking: list[StoreCommand] = [command]

        async def look() -> Record | None:
            record: Record | None = await self.carry_out(asking[0] if asking else Read(command.key))
            asking.clear()
            return record

        return await async_wait(command.seen, timeout, look, connections.bells)

    async def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        connections = self._connections()
        items = [Item(command) for command in commands]
        for start in range(0, len(items), BATCH_MAX):
            some = items[start : start + BATCH_MAX]
            if _only_settles(some):
                await connections.settles.perform(some)
            else:
                if free := [item for item in some if item.digest not in connections.contended_keys]:
                    await connections.claims.perform(free)
                for item in some:
                    if not item.done or type(item.error) is StoreBusy:
                        await connections.contend(item)
            self.sync._process.ring(some)
        return [item.error or item.reply for item in items]

    async def list(self, query: Query) -> Records:
        rows = await self._connections().operators.ask(list_statement(query))
        return listed(lambda row: record_of(row, None), rows)

    async def due(self, due: Due) -> Records:
        rows = await self._connections().operators.ask(due_statement(due))
        return Records(listed(lambda row: record_of(row, None), rows).records)

    async def doubtful(self) -> Sequence[str]:
        return [operation for (operation,) in await self._connections().operators.ask(DOUBTFUL)]

    async def sweep(self, limit: int) -> int:
        ((count,),) = await self._connections().operators.ask(sweep_statement(limit))
        return int(count)

    async def audit(self, limit: int) -> Audits:
        return [Audit(*row) for row in await self._connections().operators.ask(audit_statement(limit))]

    async def health(self) -> Health:
        connections = self._connections()
        await connections.operators.ask(("SELECT 1", ()))
        return _health(self._address, connections.operators.facts, connections.all)

    def join(self, connection: Any) -> AsyncPostgresTransaction:
        """This store inside the transactions of a caller's async connection to the same database."""
        return AsyncPostgresTransaction(self.name, link_of(connection, asynchronous=True), self.identity)

    async def identity(self, seen: str = "") -> str:
        """An id of the tables; the sync twin keeps it, and needs a connection for it only once."""
        known = self.sync._identity
        if known is None or seen not in ("", known):
            known = await asyncio.to_thread(self.sync.identity, seen)
        return known

    async def close(self) -> None:
        self._closed = True
        running = asyncio._get_running_loop()  # none under trio, where nothing was opened
        while self._loops:
            loop, connections = self._loops.popitem()
            if loop is running and connections.pid == os.getpid():
                await connections.close()
            else:
                connections.abandon()
        await aside(self.sync.close)()

    def _connections(self) -> LoopConnections:
        if self._closed:
            raise StoreUnavailable(f"{self.name} was closed")
        loop = asyncio_loop(self.name)
        connections = self._loops.get(loop)
        if connections is not None and connections.pid == os.getpid():
            return connections
        for one in list(self._loops):  # other threads begin and end theirs meanwhile
            gone = self._loops.pop(one, None) if one.is_closed() else None
            if gone is not None:
                gone.abandon()
        if connections is not None:
            _INHERITED.append(connections)
        connections = self._loops[loop] = LoopConnections(self._address, self.sync._connections().bells)
        return connections


def _only_settles(items: Sequence[Item]) -> bool:
    return all(isinstance(item.command, Settle) and item.command.role is not Role.OPERATOR for item in items)


def _incarnation(connections: Sequence[SharedConnection | AsyncSharedConnection]) -> str:
    """That of the connection with the latest loss; "" before there is a connection."""
    newest = _newest(connections)
    return "" if newest is None else newest.incarnation


def _newest(connections: Sequence[SharedConnection | AsyncSharedConnection]) -> Facts | None:
    """Of the connection with the latest loss: what one self-check found counts for all connections."""
    known = [connection.facts for connection in connections if connection.facts is not None]
    return max(known, key=lambda facts: facts.lost_at or 0.0, default=None)


def _health(
    address: Address, facts: Facts | None, connections: Sequence[SharedConnection | AsyncSharedConnection]
) -> Health:
    newest = _newest(connections)
    if facts is None or newest is None:
        raise StoreUnavailable(f"{address.name} was closed")
    facts = replace(facts, incarnation=newest.incarnation, lost_at=newest.lost_at)
    warnings = facts.warnings(address.durability)
    if address.pgbouncer:
        warnings = (*warnings, "through PgBouncer there are no notifications: waiters read again every 250 ms")
    return Health(
        store=address.name,
        guarantee=facts.guarantee(address.durability),
        incarnation=facts.incarnation,
        warnings=warnings,
        facts=(*facts.listed(), ("durability", address.durability)),
    )
