"""Records in MySQL or MariaDB, shared by every process of every machine.

`core.register` computes what a record becomes. A command reads the record and the server's clock; then one statement
writes the new record, if the row is still the version that this was computed from (`_rows`). So the rules exist once,
no transaction is open while anything else happens, and a replay is a plain read. A claim's write is an INSERT: the
attempt that inserts holds the key.

Each process has a few connections, which commands borrow; a command whose reply was lost is sent again and recognises
itself by its attempt id (`_connections`).

Waiting: a commit of this process wakes the waiters of its key at once. MySQL sends no notification about commits of
other processes. One watcher thread per process reads all rows that callers wait for, in one query every 15 ms. In any
case each waiter re-reads its record from time to time (`_waiting`).

The async store is the sync one in a few threads of its own: see docs/decisions/0017.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from samekey.core.commands import Read, StoreCommand, Wait
from samekey.core.errors import StoreUnavailable
from samekey.core.ports import Audits, Due, Health, Query, Records, Replies, Reply, listed
from samekey.core.record import Record
from samekey.drivers.mysql.address import parse_url
from samekey.loops import aside, running
from samekey.stores._over_sync import OverSync
from samekey.stores._waiting import async_wait, wait
from samekey.stores.mysql._books import Books
from samekey.stores.mysql._connections import CLAIMS, Closed, Links
from samekey.stores.mysql._parking import Parking
from samekey.stores.mysql._rows import DOUBTFUL, audits, due_statement, list_statement, moment_of, record_of, sweep
from samekey.stores.mysql._transaction import AsyncMysqlTransaction, MysqlTransaction

T = TypeVar("T")

BATCH_MAX = 256  # commands in one transaction: bounds how long the first of them waits for the last
BATCH_BYTES_MAX = 1 << 20  # results in one transaction: they travel as hexadecimal, in packets of a limited size

_INHERITED: list[Any] = []  # what a forked child got from its parent and must not touch


class MysqlStore(Books, Parking):
    """A store for `Guard`: `MysqlStore("mysql://app@db/shop")`. It connects when it is first used."""

    def __init__(self, url: str) -> None:
        self._address = parse_url(url)
        self.name = self._address.name
        self._here = Links(self._address)

    @property
    def incarnation(self) -> str:
        facts = self._here.facts
        return "" if facts is None else facts.incarnation

    def __repr__(self) -> str:
        return f"<MysqlStore {self.name}>"

    # -- the port ------------------------------------------------------------------------------------------

    def carry_out(self, command: StoreCommand) -> Reply:
        return self._links().perform(command)

    def wait(self, command: Wait, timeout: float) -> Record | None:
        links = self._links()
        with links.watch.watching(command.key.digest):
            return wait(command.seen, timeout, lambda: self.carry_out(Read(command.key)), links.bells)

    def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        return [reply for part in _parts(commands) for reply in self._links().perform_all(part)]

    def list(self, query: Query) -> Records:
        links = self._links()
        (rows, _), _ = links.insist(lambda run: run(list_statement(query)), desk=True)
        return listed(lambda row: links.shown(record_of(row, None), moment_of(row)), rows)

    def due(self, due: Due) -> Records:
        links = self._links()
        (rows, _), _ = links.insist(lambda run: run(due_statement(due)), desk=True)
        return Records(listed(lambda row: links.shown(record_of(row, None), moment_of(row)), rows).records)

    def doubtful(self) -> Sequence[str]:
        (rows, _), _ = self._links().insist(lambda run: run(DOUBTFUL), desk=True)
        return sorted(operation.decode() for (operation,) in rows)

    def sweep(self, limit: int) -> int:
        return self._links().insist(lambda run: sweep(run, limit))[0]

    def audit(self, limit: int) -> Audits:
        return self._links().insist(lambda run: audits(run, limit), desk=True)[0]

    def health(self) -> Health:
        links = self._links()
        with links.own(desk=True):
            pass  # a new connection looks anew
        facts = links.facts
        if facts is None:
            raise StoreUnavailable(f"{self.name} was closed")
        return Health(
            store=self.name,
            guarantee=facts.guarantee(),
            incarnation=facts.incarnation,
            warnings=facts.warnings(),
            facts=facts.listed(),
        )

    def join(self, connection: Any) -> MysqlTransaction:
        """This store inside the caller's own transaction on the same database."""
        return MysqlTransaction(self._links, self._address, connection)

    def close(self) -> None:
        self._here.close()

    # -- connections: one set per process ------------------------------------------------------------------

    def _links(self) -> Links:
        here = self._here
        if here.pid != os.getpid():
            # Forked: the connections belong to the parent, and closing them here would end them there.
            _INHERITED.append(here)
            here = self._here = Links(self._address)
        if here.closed:
            raise Closed(f"{self.name} was closed")
        return here


class AsyncMysqlStore(OverSync[MysqlStore]):
    """A store for `AsyncGuard`, on asyncio and trio: no event loop ever waits for the network."""

    def __init__(self, url: str) -> None:
        super().__init__(MysqlStore(url))

    async def carry_out(self, command: StoreCommand) -> Reply:
        return await self._aside(lambda: self.sync._links().perform(command), claim=isinstance(command, CLAIMS))

    async def wait(self, command: Wait, timeout: float) -> Record | None:
        links = self.sync._links()
        with links.watch.watching(command.key.digest):
            return await async_wait(command.seen, timeout, lambda: self.carry_out(Read(command.key)), links.bells)

    async def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        return await self._aside(lambda: self.sync.batch(commands))

    def join(self, connection: Any) -> AsyncMysqlTransaction:
        """This store inside the caller's own transaction, on the caller's PyMySQL connection."""
        return AsyncMysqlTransaction(self.sync.join(connection))

    async def close(self) -> None:
        if not self.sync._here.closed:
            await super().close()

    async def _aside(self, work: Callable[[], T], *, claim: bool = False) -> T:
        """Run `work` in one of the store's threads. If the caller is cancelled, the statement is still carried out."""
        bell = running().bell()
        try:
            future = self.sync._links().workers(claim=claim).submit(work)
        except RuntimeError:
            # The main thread has ended, and with it all pools. An effect in another thread must still be settled.
            return await aside(work)()
        future.add_done_callback(lambda _: bell.ring())
        while not future.done():
            await bell.wait(1.0)  # the thread rings; the time-out is for a bell that rang before we waited
        return future.result()


def _parts(commands: Sequence[StoreCommand]) -> list[list[StoreCommand]]:
    """The commands in the same order, in transactions of a bounded size."""
    parts: list[list[StoreCommand]] = [[]]
    size = 0
    for command in commands:
        more = command.bulk
        if parts[-1] and (len(parts[-1]) >= BATCH_MAX or size + more > BATCH_BYTES_MAX):
            parts.append([])
            size = 0
        parts[-1].append(command)
        size += more
    return parts
