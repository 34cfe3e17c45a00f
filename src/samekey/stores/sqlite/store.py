"""Records in a SQLite file: the embedded default, durable, shared by every process of one machine.

Theory. Every write is one compare-and-set statement: `register.apply` says what the record becomes, and
the UPDATE goes through only if the row is still the very version it was computed from. So no transaction
is ever open while anything else happens, and processes need no other agreement.

Writers take turns on one connection. A lone writer writes inline, in its own thread: no hop. When the
connection is taken, commands queue up and one writer thread commits all of them together: one fsync for
many claims. It waits a moment for those whom it answered last, so that a crowd comes in one piece. Reads
have their own connection and never wait for a writer.

Ctrl-C, or any signal whose handler raises, may come out of every call here. So the turn is only taken by `with`
and the lock itself, which no signal comes between, and whoever has it first rolls back what was begun before him
and never ended.

Waiting: a commit of this process rings the bell of its key at once. For commits of other processes SQLite
has no bell; one watcher thread per store looks at a counter in shared memory (PRAGMA data_version) while
somebody waits, and reads the waited-for rows when it moved.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from samekey.core.commands import Open, Read, StoreCommand, Wait
from samekey.core.errors import StoreUnavailable
from samekey.core.key import Key
from samekey.core.ports import LIST_MAX, Audits, Health, Query, Records, Replies, Reply, listed
from samekey.core.record import Audit, Record
from samekey.core.register import Moment, after_loss, audit_entry, audited, expired, seen_at
from samekey.drivers import sqlite as driver
from samekey.loops import ThreadBell, aside, running
from samekey.stores._waiting import async_wait, wait
from samekey.stores.sqlite._process import BATCH_MAX, Job, Process
from samekey.stores.sqlite._rows import (
    AUDIT,
    AUDITS,
    PAST_RETENTION,
    RAISE_FLOOR,
    SELECT,
    SWEEP,
    execute,
    list_statement,
    record_of,
)
from samekey.stores.sqlite._transaction import AsyncSqliteTransaction, SqliteTransaction

Clock = Callable[[], float]


class SqliteStore:
    """A store for `Guard`: `SqliteStore("keys.db")`, or by address `sqlite:///keys.db`."""

    def __init__(
        self,
        path: str | Path,
        *,
        synchronous: driver.Synchronous = "full",
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._path = Path(path).absolute()
        self._synchronous = driver.check_synchronous(synchronous)
        self._create = create
        suffix = "" if synchronous == "full" else f"?synchronous={synchronous}"
        self.name = f"sqlite:///{quote(str(self._path))}{suffix}"
        self._wall = clock or time.time
        self._clock_id, self._tick = ("manual", clock) if clock else driver.lease_clock()
        self._incarnation: str | None = None
        self._lost_at: float | None = None
        self._shown: Callable[[Record, Moment], Record] = seen_at
        self._opening = threading.Lock()
        self._connect()

    @classmethod
    def from_url(cls, url: str, *, create: bool = True) -> SqliteStore:
        """`create=False` is for those who only look: a missing or foreign file is refused, not made ours."""
        address = driver.parse_url(url)
        return cls(address.path, synchronous=address.synchronous, create=create)

    @property
    def incarnation(self) -> str:
        return self._incarnation or ""

    def __repr__(self) -> str:
        return f"<SqliteStore {self.name}>"

    # -- the port ------------------------------------------------------------------------------------------

    def carry_out(self, command: StoreCommand) -> Reply:
        if type(command) is Open:
            return self._open(command)
        if type(command) is Read:
            return self._read(self._here(), command.key)
        here = self._idle()
        if here is not None:
            with here.turn:
                if here.ready():
                    return self._inline(here, command, patient=True)
            self._same_file()
        return self._queued(self._here(), command)

    def _open(self, command: Open) -> Record | None:
        # A read may be a short cut to a record that is there; it is never permission to run. Whether it goes before the
        # claim only saves a statement: what the last key was, new or known, the next one often is.
        here = self._idle()
        if here is not None:
            with here.turn:
                if here.ready():
                    # Over the writing connection: the other one would first have to learn what we wrote last.
                    record = None if here.expects_new else self._select(here.writer, command.key)
                    if record is None:
                        record = self._inline(here, command, patient=True)
                    here.expects_new = record is not None and record.attempt == command.attempt
                    return record
            self._same_file()  # opened here, so that nothing is read from the old one; then it is the writer's turn
        here = self._here()
        record = self._read(here, command.key) or self._queued(here, command)
        here.expects_new = record is not None and record.attempt == command.attempt
        return record

    def wait(self, command: Wait, timeout: float) -> Record | None:
        with self._here().watched(command.key.digest):
            return wait(command.seen, timeout, lambda: self._read(self._here(), command.key), self._process.bells)

    def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        replies: Replies = []
        for start in range(0, len(commands), BATCH_MAX):
            jobs = [Job(command, None) for command in commands[start : start + BATCH_MAX]]
            here = self._same_file()
            with here.turn:
                self._commit_together(here, jobs)
            replies += [job.error or job.reply for job in jobs]
        return replies

    def list(self, query: Query) -> Records:
        here, moment = self._here(), self._moment()
        statement, values = list_statement(query, moment.wall)
        with here.reading, driver.translated(self.name):
            rows = here.reader.execute(statement, values).fetchall()
        return listed(lambda row: self._shown(record_of(row, None), moment), rows)

    def sweep(self, limit: int) -> int:
        here, now = self._same_file(), self._wall()
        # Found from end to end, which takes long in a large file: over the reading connection, so that no claim waits.
        with here.reading, driver.translated(self.name):
            past = here.reader.execute(PAST_RETENTION, {"now": now, "limit": max(0, min(limit, LIST_MAX))}).fetchall()
        if not past:
            return 0
        with here.turn, driver.translated(self.name):
            try:
                here.begin()
                rows = [row for (digest,) in past for row in here.writer.execute(SWEEP, (digest, now)).fetchall()]
                if rows:
                    here.writer.execute(RAISE_FLOOR, {"token": max(token for (token,) in rows)})
                here.commit()
            except BaseException:
                here.rollback()
                raise
            here.find_floor()
        return len(rows)

    def audit(self, limit: int) -> Audits:
        here = self._here()
        with here.reading, driver.translated(self.name):
            rows = here.reader.execute(AUDITS, (max(0, min(limit, LIST_MAX)),)).fetchall()
        return [Audit(*row) for row in rows]

    def health(self) -> Health:
        here = self._here()
        with here.reading, driver.translated(self.name):
            audited = here.reader.execute("SELECT 1 FROM sqlite_master WHERE name = 'samekey_audit'").fetchone()
        warnings = []
        if self._synchronous == "normal":
            warnings.append("synchronous=normal: a power loss may forget the last claims (a crash does not)")
        network = driver.network_file_system(self._path)
        if network:
            warnings.append(f"the file lies on {network}: SQLite's locks are not reliable over a network")
        if self._lost_at is not None:
            warnings.append("the file was replaced or restored while this process used it: claims may be missing")
        if not audited:
            warnings.append(
                "the table samekey_audit is missing: resolve, redact and free fail; "
                "its statement is in: samekey migrate --sql --store sqlite:///keys.db"
            )
        power = "and power losses" if self._synchronous == "full" else "of processes, not all power losses"
        return Health(
            store=self.name,
            guarantee=f"claims survive crashes {power}, and are shared by all processes of this machine",
            incarnation=here.epoch,
            warnings=tuple(warnings),
            facts=(
                ("file", str(self._path)),
                ("sqlite", sqlite3.sqlite_version),
                ("schema", str(driver.SCHEMA)),
                ("synchronous", self._synchronous),
                ("boot", self._clock_id),
                ("audit table", "present" if audited else "missing"),
            ),
        )

    def join(self, connection: Any) -> SqliteTransaction:
        """This store inside the caller's own transaction on the same file."""
        return SqliteTransaction(self.name, self._path, self._moment, connection)

    def close(self) -> None:
        if self._process.pid == os.getpid():  # else it is the parent's: nothing of it is open here
            self._process.close()

    # -- connections: one set per process and per file -----------------------------------------------------

    def _connect(self, before: Process | None = None) -> None:
        process = Process(
            self._path,
            self._synchronous,
            self.name,
            commit=self._commit_together,
            reopen=self._reopen,
            create=self._create,
            now=self._wall(),
        )
        try:
            if before is not None and process.epoch == before.epoch:
                if before.restored or process.inode_and_device != before.inode_and_device:
                    process.renew_epoch(self._wall())  # it is a backup of the file that we had open
        except BaseException:
            process.close()
            raise
        if self._incarnation is not None and process.epoch != self._incarnation:
            # The store lost its memory: all that was claimed since asks first, where it can.
            self._lost_at = process.born
            self._shown = self._shown_after_loss
        self._process, self._incarnation = process, process.epoch

    def _here(self) -> Process:
        here = self._process
        if here.pid != os.getpid():
            self._opening = threading.Lock()
            self._connect(here)  # forked: what we see is the parent's
            here = self._process
        if here.closed:
            raise StoreUnavailable(f"{self.name} was closed")
        return here

    def _same_file(self) -> Process:
        """Before a claim or a write: if the file at our path is no longer the one we have open, open that one.

        Two processes with two files would both win the same key, and an answer settled in a file that is gone
        is not recorded.
        """
        here = self._here()
        with here.turn:
            in_place = here.ready()
        return here if in_place else self._reopen(here)

    def _reopen(self, here: Process) -> Process:
        """Open the file that is there now; who waits in the old one's queue goes along."""
        with self._opening:
            if self._process is here:
                self._connect(here)
        there = self._process
        here.close(heir=there)
        return there

    # -- writing -------------------------------------------------------------------------------------------

    def _read(self, here: Process, key: Key) -> Record | None:
        with here.reading, driver.translated(self.name):
            return self._select(here.reader, key)

    def _select(self, connection: sqlite3.Connection, key: Key) -> Record | None:
        try:
            row = connection.execute(SELECT, (key.digest,)).fetchone()
        except sqlite3.Error as error:
            raise driver.store_error(self.name, error) from error
        if row is None:
            return None
        record, moment = record_of(row, key), self._moment()
        return None if expired(record, moment) else self._shown(record, moment)

    def _idle(self) -> Process | None:
        """Ours, if nobody has the turn to write or waits for it. Else the writer thread looks which file is there, once
        for all who wait, and just before it writes."""
        here = self._process
        if here.pid != os.getpid():
            here = self._here()
        return None if here.queue or here.turn.locked() else here

    def _queued(self, here: Process, command: StoreCommand) -> Record | None:
        job = Job(command, ThreadBell())
        here.enqueue(job)
        job.wait()
        return job.outcome()

    def _inline(self, here: Process, command: StoreCommand, *, patient: bool) -> Record | None:
        """One command, committed by its own statement (or its own transaction, with an audit entry)."""
        if type(command) is not Open and audited(command):
            job = Job(command, None)
            self._commit_together(here, [job])
            return job.outcome()
        moment = self._moment()
        try:
            before, after = execute(here.cursor, command, moment)
        except sqlite3.Error as error:
            if not (patient and driver.is_busy(error)):
                raise driver.store_error(self.name, error) from error
            if type(command) is Open and (found := self._select(here.writer, command.key)) is not None:
                return found  # a record that is there is shown while another process writes
            with driver.translated(self.name):
                before, after = driver.patiently(lambda: execute(here.cursor, command, moment))
        return self._told(here, before, after, moment)

    def _commit_together(self, here: Process, jobs: Sequence[Job]) -> None:
        """All of them in one transaction; if it fails, each by itself, so that one's failure is its own."""
        moment = self._moment()
        moved, begun = [], False
        try:
            with driver.translated(self.name):
                here.begin()
                begun = True
                for job in jobs:
                    before, after = execute(here.cursor, job.command, moment)
                    entry = audit_entry(job.command, before, after, moment) if after is not before else None
                    if entry is not None:
                        here.writer.execute(AUDIT, entry)
                    moved.append((job, before, after))
                here.commit()
        except BaseException as error:
            here.rollback()
            if not isinstance(error, Exception):
                raise
            if len(jobs) > 1 and begun:
                for job in jobs:
                    self._commit_together(here, [job])
                return
            for job in jobs:  # alone; or the file itself cannot be written: one answer for all, at once
                job.error = error
            return
        for job, before, after in moved:
            job.reply = self._told(here, before, after, moment)

    def _told(self, here: Process, before: Record | None, after: Record | None, moment: Moment) -> Record | None:
        """After the commit: ring for those who wait, and show the record on our clock."""
        if after is None:
            if before is not None:
                here.bells.ring(before.key.digest)
                here.floor = max(here.floor, before.token)
            return None
        if after is not before:
            here.bells.ring(after.key.digest)
            if after.token > here.newest[1]:
                here.newest = (after.key.digest, after.token)
        return self._shown(after, moment)

    def _moment(self) -> Moment:
        wall = self._wall()
        token, floor = int(wall * 1_000_000), self._process.floor
        return Moment(wall, self._tick(), self._clock_id, token if token > floor else floor + 1)

    def _shown_after_loss(self, record: Record, moment: Moment) -> Record:
        shown = seen_at(record, moment)
        return shown._replace(after_loss=True) if after_loss(record.created_at, self._lost_at) else shown


class AsyncSqliteStore:
    """A store for `AsyncGuard` on the same file; no event loop ever waits for the disk."""

    def __init__(
        self, path: str | Path, *, synchronous: driver.Synchronous = "full", clock: Clock | None = None
    ) -> None:
        self.sync = SqliteStore(path, synchronous=synchronous, clock=clock)
        self.name = self.sync.name

    @classmethod
    def from_url(cls, url: str) -> AsyncSqliteStore:
        address = driver.parse_url(url)
        return cls(address.path, synchronous=address.synchronous)

    @property
    def incarnation(self) -> str:
        return self.sync.incarnation

    def __repr__(self) -> str:
        return f"<AsyncSqliteStore {self.name}>"

    async def carry_out(self, command: StoreCommand) -> Reply:
        kind = type(command)
        if kind is Read or kind is Open:
            record = self.sync._read(self.sync._here(), command.key)
            if record is not None or kind is Read:
                return record
        here = self.sync._idle() if self.sync._synchronous == "normal" else None
        if here is not None:
            # Without an fsync the write is shorter than a hop to another thread.
            with here.turn:
                try:
                    if here.ready():
                        return self.sync._inline(here, command, patient=False)
                except StoreUnavailable as error:
                    if not (isinstance(error.__cause__, driver.DriverError) and driver.is_busy(error.__cause__)):
                        raise
            self.sync._same_file()
        loop = running()
        job = Job(command, loop.bell())
        self.sync._here().enqueue(job, soon=loop.soon)
        await job.arrive()
        return job.outcome()

    async def wait(self, command: Wait, timeout: float) -> Record | None:
        with self.sync._here().watched(command.key.digest):
            return await async_wait(
                command.seen, timeout, lambda: self.carry_out(Read(command.key)), self.sync._process.bells
            )

    async def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        here, loop = self.sync._here(), running()
        jobs = [Job(command, loop.bell()) for command in commands]
        here.enqueue(*jobs, soon=loop.soon)
        for job in jobs:
            await job.arrive()
        return [job.error or job.reply for job in jobs]

    async def list(self, query: Query) -> Records:
        return await aside(lambda: self.sync.list(query))()

    async def sweep(self, limit: int) -> int:
        return await aside(lambda: self.sync.sweep(limit))()

    async def audit(self, limit: int) -> Audits:
        return await aside(lambda: self.sync.audit(limit))()

    async def health(self) -> Health:
        return self.sync.health()

    def join(self, connection: Any) -> AsyncSqliteTransaction:
        """This store inside the caller's own transaction on the same file."""
        return AsyncSqliteTransaction(self.sync.join(connection))

    async def close(self) -> None:
        await aside(self.sync.close)()
