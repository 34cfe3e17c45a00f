"""Records in PostgreSQL: the truth in production, shared by every process of every machine.

Theory. Each command is one call of one function, and so one round trip and one transaction; the functions say in
SQL what `core.register` says (see migrations/postgres). A claim reads first: a replay writes nothing, not even
a transaction id. What the server's clock says is the time, what its sequence says is the token, and the fence is
(token, attempt): after a failover the same numbers came again.

Each process has a few connections of its own, each a lane on which callers take turns (see `_postgres_lanes` and
`_postgres_tasks`): claims, settles and reads do not wait for each other. A lost reply is asked again by attempt id
(`_postgres_batches`).

Waiting: one connection per process listens. A waiter flags the row it waits for, and only flagged rows are
notified about; a slow re-read is the truth (`_postgres_listen`, `_waiting`).
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from samekey.core.commands import Ask, Free, Read, Renew, Settle, StoreCommand, Take, Wait
from samekey.core.errors import SamekeyError, StoreBusy, StoreUnavailable
from samekey.core.ports import Audits, Health, Query, Records, Replies, Reply, listed
from samekey.core.record import Record
from samekey.core.states import Role
from samekey.drivers.postgres.address import Address, parse_url
from samekey.drivers.postgres.self_check import CLAIM_LOCK_SECONDS, Facts
from samekey.loops import Bells, aside
from samekey.stores._turns import Waking
from samekey.stores._waiting import async_wait, asyncio_loop, wait
from samekey.stores.postgres._batches import BATCH_MAX, Job
from samekey.stores.postgres._listener import LISTEN_SECONDS, Listener, LoopBells
from samekey.stores.postgres._operators import audit_of, audit_statement, list_statement, sweep_statement
from samekey.stores.postgres._rows import record_of
from samekey.stores.postgres._tasks import AsyncSharedConnection, Round
from samekey.stores.postgres._threads import SharedConnection
from samekey.stores.postgres._transaction import (
    IDENTITY,
    IDENTITY_UNTOLD,
    NOT_TOLD,
    AsyncPostgresTransaction,
    PostgresTransaction,
    link_of,
)

_INHERITED: list[Any] = []  # what a forked child got from its parent and must not touch

_MOVES = frozenset({Take, Settle, Ask, Free})  # what those who wait, wait for

CONTENDED_MAX = 1000  # keys in open transactions that are remembered; more are only slower
LISTEN_LOOK_SECONDS = 0.01  # how often a first waiter looks whether the listener is there: connecting takes about that


class PostgresStore:
    """A store for `Guard`: `PostgresStore("postgresql://app@db/shop")`. It connects when it is first used."""

    def __init__(self, url: str) -> None:
        self._address = parse_url(url)
        self.name = self._address.name
        self._here = _Here(self._address)
        self._identity: str | None = None

    @property
    def incarnation(self) -> str:
        return _incarnation(self._here.connections)

    def __repr__(self) -> str:
        return f"<PostgresStore {self.name}>"

    # -- the port ------------------------------------------------------------------------------------------

    def carry_out(self, command: StoreCommand) -> Reply:
        links = self._links()
        kind, job = type(command), Job(command)
        if kind is Settle and command.role is not Role.OPERATOR:  # type: ignore[attr-defined]
            links.settles.perform((job,))
        elif kind is Read or kind is Renew:  # a renewal never waits for a claim
            links.reads.perform((job,))
        else:
            if job.digest not in links.contended_keys:
                links.claims.perform((job,))
            if not job.done or type(job.error) is StoreBusy:
                links.contend(job)
        if kind in _MOVES and links.bells:
            links.ring((job,))
        return job.reply or job.outcome()

    def wait(self, command: Wait, timeout: float) -> Record | None:
        links = self._links()
        links.listener.start()  # listen, flag the row, read, sleep: in this order no wake-up is lost
        asking: list[StoreCommand] = [command]

        def look() -> Record | None:
            record = self._do(links.reads, asking[0] if asking else Read(command.key))
            asking.clear()  # flagged, where it still goes on; not so where the table was locked
            return record

        return wait(command.seen, timeout, look, links.bells)

    def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        links = self._links()
        jobs = [Job(command) for command in commands]
        for start in range(0, len(jobs), BATCH_MAX):
            some = jobs[start : start + BATCH_MAX]
            if _only_settles(some):
                links.settles.perform(some)
            else:
                if free := [job for job in some if job.digest not in links.contended_keys]:
                    links.claims.perform(free)
                for job in some:
                    if not job.done or type(job.error) is StoreBusy:
                        links.contend(job)
            links.ring(some)
        return [job.error or job.reply for job in jobs]

    def list(self, query: Query) -> Records:
        rows = self._links().operators.ask(list_statement(query))
        return listed(lambda row: record_of(row, None), rows)

    def sweep(self, limit: int) -> int:
        ((count,),) = self._links().operators.ask(sweep_statement(limit))
        return int(count)

    def audit(self, limit: int) -> Audits:
        return [audit_of(row) for row in self._links().operators.ask(audit_statement(limit))]

    def health(self) -> Health:
        here = self._links()
        here.operators.ask(("SELECT 1", ()))
        return _health(self._address, here.operators.facts, here.connections)

    def join(self, connection: Any) -> PostgresTransaction:
        """This store inside the transactions of a caller's connection to the same database."""
        return PostgresTransaction(self.name, link_of(connection, asynchronous=False), self.identity)

    def identity(self, seen: str = "") -> str:
        """Which tables these are, whatever the address calls them; looked at again where others were seen."""
        if self._identity is None or seen not in ("", self._identity):
            operators = self._links().operators
            try:
                ((self._identity,),) = operators.ask((IDENTITY, ()))
            except SamekeyError as error:
                if getattr(error.__cause__, "sqlstate", None) not in NOT_TOLD:
                    raise
                ((self._identity,),) = operators.ask((IDENTITY_UNTOLD, ()))
        return str(self._identity)

    def close(self) -> None:
        self._here.close()

    # -- connections: one set per process ------------------------------------------------------------------

    def _links(self) -> _Here:
        here = self._here
        if here.pid != os.getpid():
            # Forked: the parent's connections are its own, and a goodbye from here would end them.
            _INHERITED.append(here)
            here = self._here = _Here(self._address)
        if here.closed:
            raise StoreUnavailable(f"{self.name} was closed")
        return here

    def _do(self, connection: SharedConnection, command: StoreCommand) -> Record | None:
        job = Job(command)
        connection.perform((job,))
        self._here.ring((job,))
        return job.outcome()


class _Here:
    """Everything that belongs to one process; connections are made when they are first needed."""

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
        self.connections = (claims, self.settles, self.reads, self.operators, self.contended)
        self.bells = Bells()
        self.listener = Listener(address, self.bells)

    def contend(self, job: Job) -> None:
        """Carry out a claim whose row another transaction holds, on a connection of its own.

        A key that is claimed in an open transaction of a caller's (`Atomic`) stays locked until that transaction ends.
        On the connection of the claims every try would make all other claims wait.
        """
        _contended(self.contended_keys, job)
        self.contended.perform((job,))
        if type(job.error) is not StoreBusy:
            self.contended_keys.discard(job.digest)

    def ring(self, jobs: Sequence[Job]) -> None:
        """Those who wait in this process need no notification."""
        if len(self.bells):
            for job in jobs:
                if type(job.command) in _MOVES:
                    self.bells.ring(job.command.key.digest)

    def close(self) -> None:
        self.closed = True
        if self.pid == os.getpid():
            self.listener.close()
            for connection in self.connections:
                connection.close()


class AsyncPostgresStore:
    """A store for `AsyncGuard`, on asyncio: a set of connections for each event loop that uses it."""

    def __init__(self, url: str) -> None:
        # The sync twin listens, and renews leases from the timer's thread while a loop is busy; it connects
        # only when it has something to do.
        self.sync = PostgresStore(url)
        self._address = self.sync._address
        self.name = self.sync.name
        self._loops: dict[asyncio.AbstractEventLoop, _Loop] = {}
        self._closed = False

    @property
    def incarnation(self) -> str:
        return _incarnation([connection for links in list(self._loops.values()) for connection in links.connections])

    def __repr__(self) -> str:
        return f"<AsyncPostgresStore {self.name}>"

    async def carry_out(self, command: StoreCommand) -> Reply:
        links = self._links()
        kind, job = type(command), Job(command)
        if kind is Settle and command.role is not Role.OPERATOR:  # type: ignore[attr-defined]
            await links.settles.perform((job,))
        elif kind is Read or kind is Renew:  # a renewal never waits for a claim
            await links.reads.perform((job,))
        else:
            if job.digest not in links.contended_keys:
                await links.claims.perform((job,))
            if not job.done or type(job.error) is StoreBusy:
                await links.contend(job)
        if kind in _MOVES and self.sync._here.bells:
            self.sync._here.ring((job,))
        return job.reply or job.outcome()

    async def wait(self, command: Wait, timeout: float) -> Record | None:
        links, here = self._links(), self.sync._links()
        listening = here.listener.start_soon()
        if not listening.is_set() and not self._address.pgbouncer:
            await links.hearing(listening)
        asking: list[StoreCommand] = [command]

        async def look() -> Record | None:
            record = await self._do(links.reads, asking[0] if asking else Read(command.key))
            asking.clear()
            return record

        return await async_wait(command.seen, timeout, look, links.bells(here))

    async def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        links = self._links()
        jobs = [Job(command) for command in commands]
        for start in range(0, len(jobs), BATCH_MAX):
            some = jobs[start : start + BATCH_MAX]
            if _only_settles(some):
                await links.settles.perform(some)
            else:
                if free := [job for job in some if job.digest not in links.contended_keys]:
                    await links.claims.perform(free)
                for job in some:
                    if not job.done or type(job.error) is StoreBusy:
                        await links.contend(job)
            self.sync._here.ring(some)
        return [job.error or job.reply for job in jobs]

    async def list(self, query: Query) -> Records:
        rows = await self._links().operators.ask(list_statement(query))
        return listed(lambda row: record_of(row, None), rows)

    async def sweep(self, limit: int) -> int:
        ((count,),) = await self._links().operators.ask(sweep_statement(limit))
        return int(count)

    async def audit(self, limit: int) -> Audits:
        return [audit_of(row) for row in await self._links().operators.ask(audit_statement(limit))]

    async def health(self) -> Health:
        links = self._links()
        await links.operators.ask(("SELECT 1", ()))
        return _health(self._address, links.operators.facts, links.connections)

    def join(self, connection: Any) -> AsyncPostgresTransaction:
        """This store inside the transactions of a caller's async connection to the same database."""
        return AsyncPostgresTransaction(self.name, link_of(connection, asynchronous=True), self.identity)

    async def identity(self, seen: str = "") -> str:
        """Which tables these are; the sync twin knows, and needs a connection for it only once."""
        known = self.sync._identity
        if known is None or seen not in ("", known):
            known = await asyncio.to_thread(self.sync.identity, seen)
        return known

    async def close(self) -> None:
        self._closed = True
        running = asyncio._get_running_loop()  # none under trio, where nothing was opened
        while self._loops:
            loop, links = self._loops.popitem()
            if loop is running and links.pid == os.getpid():
                await links.close()
            else:
                links.abandon()
        await aside(self.sync.close)()

    def _links(self) -> _Loop:
        if self._closed:
            raise StoreUnavailable(f"{self.name} was closed")
        loop = asyncio_loop(self.name)
        links = self._loops.get(loop)
        if links is not None and links.pid == os.getpid():
            return links
        for one in list(self._loops):  # other threads begin and end theirs meanwhile
            gone = self._loops.pop(one, None) if one.is_closed() else None
            if gone is not None:
                gone.abandon()
        if links is not None:
            _INHERITED.append(links)
        links = self._loops[loop] = _Loop(self._address)
        return links

    async def _do(self, connection: AsyncSharedConnection, command: StoreCommand) -> Record | None:
        job = Job(command)
        await connection.perform((job,))
        self.sync._here.ring((job,))
        return job.outcome()


class _Loop:
    """Everything that belongs to one event loop of one process."""

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
        self.connections = (claims, self.settles, self.reads, self.operators, self.contended)

    async def contend(self, job: Job) -> None:
        """As `_Here.contend`."""
        _contended(self.contended_keys, job)
        await self.contended.perform((job,))
        if type(job.error) is not StoreBusy:
            self.contended_keys.discard(job.digest)

    def bells(self, here: _Here) -> LoopBells:
        if self._bells is None:
            self._bells = LoopBells(asyncio.get_running_loop(), here.bells)
        return self._bells

    async def hearing(self, listening: threading.Event) -> None:
        """Wait for the listener, in no thread of the loop's own: others may keep those busy, or have ended them."""
        for _ in range(round(LISTEN_SECONDS / LISTEN_LOOK_SECONDS)):
            if listening.is_set():
                return
            await asyncio.sleep(LISTEN_LOOK_SECONDS)

    async def close(self) -> None:
        for connection in self.connections:
            await connection.close()

    def abandon(self) -> None:
        if self.pid == os.getpid():
            for connection in self.connections:
                connection.abandon()


def _contended(keys: set[bytes], job: Job) -> None:
    """Note the key as contended, and make the job ready for its next try."""
    if len(keys) >= CONTENDED_MAX:
        keys.clear()  # each of them is noted again at its next try
    keys.add(job.digest)
    job.error, job.done = None, False


def _only_settles(jobs: Sequence[Job]) -> bool:
    return all(isinstance(job.command, Settle) and job.command.role is not Role.OPERATOR for job in jobs)


def _incarnation(connections: Sequence[SharedConnection | AsyncSharedConnection]) -> str:
    """As whichever connection learned last; "" before there is one."""
    known = [connection.facts for connection in connections if connection.facts is not None]
    return _newest(known).incarnation if known else ""


def _newest(known: Sequence[Facts]) -> Facts:
    return max(known, key=lambda facts: facts.lost_at or 0.0)


def _health(
    address: Address, facts: Facts | None, connections: Sequence[SharedConnection | AsyncSharedConnection]
) -> Health:
    if facts is None:
        raise StoreUnavailable(f"{address.name} was closed")
    # A loss that another connection heard of is one for all.
    newest = _newest([facts, *(connection.facts for connection in connections if connection.facts is not None)])
    facts = replace(facts, incarnation=newest.incarnation, lost_at=newest.lost_at)
    warnings = facts.warnings(address.durability)
    if address.pgbouncer:
        warnings = (*warnings, "behind PgBouncer nobody is notified: waiters look again every 250 ms")
    return Health(
        store=address.name,
        guarantee=facts.guarantee(address.durability),
        incarnation=facts.incarnation,
        warnings=warnings,
        facts=(*facts.listed(), ("durability", address.durability)),
    )
