"""Records in a SQLite file: the embedded default, durable, shared by every process of one machine.

Every write is one compare-and-set statement: `register.apply` computes what the record becomes, and the UPDATE goes
through only if the row is still the version that this was computed from. So no transaction stays open while anything
else happens, and processes need no other agreement.

Writers take turns on one connection. A lone caller writes in its own thread. While another thread has the turn,
commands are queued, and one writer thread commits all of them together: one fsync for many claims. It waits a moment
for the callers it answered last, so that many callers share a commit. Reads have their own connection and never wait
for a writer.

Ctrl-C, or any signal whose handler raises, may interrupt every call here. So a thread takes the turn only by `with` on
the lock itself, which no signal can split, and the thread that has the turn first rolls back what an interrupted thread
began and did not end.

Waiting: a commit of this process wakes the waiters of its key at once. SQLite sends no notification about commits of
other processes. One watcher thread per store looks at a counter in shared memory (PRAGMA data_version) while a caller
waits, and reads the rows that callers wait for when the counter moved.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from samekey.core.commands import Open, Read, StoreCommand, Wait
from samekey.core.errors import StoreBusy, StoreUnavailable
from samekey.core.key import Key
from samekey.core.ports import LIST_MAX, Audits, Due, Health, Query, Records, Replies, Reply, listed
from samekey.core.record import Audit, Record
from samekey.core.register import Moment, after_loss, audit_entry, audited, expired, seen_at
from samekey.drivers import sqlite as driver
from samekey.drivers.schema import table_warnings
from samekey.loops import ThreadBell, running
from samekey.stores._over_sync import OverSync
from samekey.stores._waiting import async_wait, wait
from samekey.stores.sqlite import _rows as sql
from samekey.stores.sqlite._books import Books
from samekey.stores.sqlite._parking import Parking
from samekey.stores.sqlite._process import BATCH_MAX, Item, Process
from samekey.stores.sqlite._rows import SELECT, execute, record_of
from samekey.stores.sqlite._transaction import AsyncSqliteTransaction, SqliteTransaction

Clock = Callable[[], float]


class SqliteStore(Books, Parking):
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
        """`create=False` is for operator commands: a missing or foreign file is refused, and gets no tables."""
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
        # A read may find the record; it is never permission to run. Reading before the claim saves a statement if the
        # key is known, and costs one if it is new. The next key is often of the same kind as the last one.
        here = self._idle()
        if here is not None:
            with here.turn:
                if here.ready():
                    # Over the writing connection: the reading one would first have to load what we wrote last.
                    record = None if here.expects_new else self._select(here.writer, command.key)
                    if record is None:
                        record = self._inline(here, command, patient=True)
                    here.expects_new = record is not None and record.attempt == command.attempt
                    return record
            self._same_file()  # open the new file now, so that nothing is read from the old one
        here = self._here()
        record = self._read(here, command.key) or self._queued(here, command)
        here.expects_new = record is not None and record.attempt == command.attempt
        return record

    def wait(self, command: Wait, timeout: float) -> Record | None:
        with self._here().watch.watching(command.key.digest):
            return wait(command.seen, timeout, lambda: self._read(self._here(), command.key), self._process.bells)

    def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        replies: Replies = []
        for start in range(0, len(commands), BATCH_MAX):
            items = [Item(command, None) for command in commands[start : start + BATCH_MAX]]
            here = self._same_file()
            with here.turn:
                self._commit_together(here, items)
            replies += [item.error or item.reply for item in items]
        return replies

    def list(self, query: Query) -> Records:
        here, moment = self._here(), self._moment()
        statement, values = sql.list_statement(query, moment)
        with driver.translated(self.name):
            if query.term is None or query.noted:
                with here.reading:
                    rows = here.reader.execute(statement, values).fetchall()
            else:  # it takes a while for each record: over a connection of its own, so that no replay waits for it
                with self._searching() as searching:
                    searching.create_function("samekey_found_by", 5, sql.found_by, deterministic=True)
                    rows = searching.execute(statement, values).fetchall()
        return listed(lambda row: self._shown(record_of(row, None), moment), rows)

    def due(self, due: Due) -> Records:
        moment = self._moment()
        statement, values = sql.due_statement(due, moment)
        with driver.translated(self.name), self._searching() as searching:
            rows = searching.execute(statement, values).fetchall()
        return Records(listed(lambda row: self._shown(record_of(row, None), moment), rows).records)

    def doubtful(self) -> Sequence[str]:
        with driver.translated(self.name), self._searching() as searching:
            return [operation for (operation,) in searching.execute(sql.DOUBTFUL).fetchall()]

    def _searching(self) -> closing[sqlite3.Connection]:
        """A connection of its own: what reads every record must not keep a replay waiting."""
        self._here()
        return closing(driver.connect(self._path, synchronous=self._synchronous, read_only=True))

    def sweep(self, limit: int) -> int:
        here, clock = self._same_file(), sql.clock_of(self._moment())
        # There is no index, so this takes long in a large file: over the reading connection, so that no claim waits.
        with here.reading, driver.translated(self.name):
            past = here.reader.execute(sql.PAST_RETENTION, {**clock, "limit": max(0, min(limit, LIST_MAX))}).fetchall()
        if not past:
            return 0
        with here.turn, driver.translated(self.name):
            try:
                here.begin()
                swept = (here.writer.execute(sql.SWEEP, {**clock, "digest": digest}) for (digest,) in past)
                rows = [row for cursor in swept for row in cursor.fetchall()]
                if rows:
                    here.writer.execute(sql.RAISE_FLOOR, {"token": max(token for (token,) in rows)})
                here.commit()
            except BaseException:
                here.rollback()
                raise
            here.find_floor()
        return len(rows)

    def audit(self, limit: int) -> Audits:
        here = self._here()
        with here.reading, driver.translated(self.name):
            rows = here.reader.execute(sql.AUDITS, (max(0, min(limit, LIST_MAX)),)).fetchall()
        return [Audit(*row) for row in rows]

    def health(self) -> Health:
        here = self._here()
        with here.reading, driver.translated(self.name):
            missing = driver.missing_tables(here.reader)
        warnings = []
        if self._synchronous == "normal":
            warnings.append("synchronous=normal: a power loss may forget the last claims (a crash does not)")
        network = driver.network_file_system(self._path)
        if network:
            warnings.append(f"the file lies on {network}: SQLite's locks are not reliable over a network")
        if self._lost_at is not None:
            warnings.append("the file was replaced or restored while this process used it: claims may be missing")
        warnings += table_warnings(missing, "sqlite:///keys.db")
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
                ("audit table", "missing" if "samekey_audit" in missing else "present"),
            ),
        )

    def join(self, connection: Any) -> SqliteTransaction:
        """This store inside the caller's own transaction on the same file."""
        return SqliteTransaction(self.name, self._path, self._moment, connection)

    def close(self) -> None:
        if self._process.pid == os.getpid():  # else it belongs to the parent process, and nothing of it is open here
            self._process.close()

    # -- connections: one set per process and per file -----------------------------------------------------

    def _connect(self, before: Process | None = None) -> None:
        process = Process(self, self._wall())
        try:
            if before is not None and process.epoch == before.epoch:
                if before.restored or process.inode_and_device != before.inode_and_device:
                    process.renew_epoch(self._wall())  # it is a backup of the file that we had open
        except BaseException:
            process.close()
            raise
        if self._incarnation is not None and process.epoch != self._incarnation:
            # The store lost its memory: claims made since then ask first, where the boundary can ask.
            self._lost_at = process.born
            self._shown = self._shown_after_loss
        self._process, self._incarnation = process, process.epoch

    def _here(self) -> Process:
        here = self._process
        if here.pid != os.getpid():
            self._opening = threading.Lock()
            self._connect(here)  # forked: this Process belongs to the parent
            here = self._process
        if here.closed:
            raise StoreUnavailable(f"{self.name} was closed")
        return here

    def _same_file(self) -> Process:
        """The Process of the file at our path, for a claim or a write; opened anew if it is another file.

        Two processes with two files would both win the same key, and an answer that is settled in a deleted file is
        not recorded.
        """
        here = self._here()
        with here.turn:
            in_place = here.ready()
        return here if in_place else self._reopen(here)

    def _reopen(self, here: Process) -> Process:
        """Open the file that is at our path now; the items in the old one's queue go there too."""
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
        """The Process, if no thread has the turn to write or waits for it; else None.

        With None the command is queued, and the writer thread checks the file once for the whole queue.
        """
        here = self._process
        if here.pid != os.getpid():
            here = self._here()
        return None if here.queue or here.turn.locked() else here

    def _queued(self, here: Process, command: StoreCommand) -> Record | None:
        item = Item(command, ThreadBell())
        here.enqueue(item)
        item.wait()
        return item.outcome()

    def _inline(self, here: Process, command: StoreCommand, *, patient: bool) -> Record | None:
        """One command, committed by its own statement (or its own transaction, with an audit entry)."""
        if type(command) is not Open and audited(command):
            item = Item(command, None)
            self._commit_together(here, [item])
            return item.outcome()
        moment = self._moment()
        try:
            before, after = execute(here.cursor, command, moment)
        except sqlite3.Error as error:
            if not (patient and driver.is_busy(error)):
                raise driver.store_error(self.name, error) from error
            if type(command) is Open and (found := self._select(here.writer, command.key)) is not None:
                return found  # a record that exists is shown even while another process writes
            with driver.translated(self.name):
                before, after = driver.patiently(lambda: execute(here.cursor, command, moment))
        return self._reply(here, before, after, moment)

    def _commit_together(self, here: Process, items: Sequence[Item]) -> None:
        """Write all items in one transaction; if that fails, each by itself, so that only the faulty one fails."""
        moment = self._moment()
        moved, begun = [], False
        try:
            with driver.translated(self.name):
                here.begin()
                begun = True
                for item in items:
                    before, after = execute(here.cursor, item.command, moment)
                    entry = audit_entry(item.command, before, after, moment) if after is not before else None
                    if entry is not None:
                        here.writer.execute(sql.AUDIT, entry)
                    moved.append((item, before, after))
                here.commit()
        except BaseException as error:
            here.rollback()
            if not isinstance(error, Exception):
                raise
            if len(items) > 1 and begun:
                for item in items:
                    self._commit_together(here, [item])
                return
            for item in items:  # one item alone; or the file itself cannot be written: the same error for all, at once
                item.error = error
            return
        for item, before, after in moved:
            item.reply = self._reply(here, before, after, moment)

    def _reply(self, here: Process, before: Record | None, after: Record | None, moment: Moment) -> Record | None:
        """After the commit: wake the waiters of the key, and show the record on our clock."""
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


class AsyncSqliteStore(OverSync[SqliteStore]):
    """A store for `AsyncGuard` on the same file; no event loop waits for the disk."""

    def __init__(
        self, path: str | Path, *, synchronous: driver.Synchronous = "full", clock: Clock | None = None
    ) -> None:
        super().__init__(SqliteStore(path, synchronous=synchronous, clock=clock))

    @classmethod
    def from_url(cls, url: str) -> AsyncSqliteStore:
        address = driver.parse_url(url)
        return cls(address.path, synchronous=address.synchronous)

    async def carry_out(self, command: StoreCommand) -> Reply:
        kind = type(command)
        if kind is Read or kind is Open:
            record = self.sync._read(self.sync._here(), command.key)
            if record is not None or kind is Read:
                return record
        here = self.sync._idle() if self.sync._synchronous == "normal" else None
        if here is not None:
            # Without an fsync the write takes less time than a switch to another thread.
            with here.turn:
                try:
                    if here.ready():
                        return self.sync._inline(here, command, patient=False)
                except StoreBusy:
                    pass  # the writer thread waits for the file, and the event loop does not
            self.sync._same_file()
        loop = running()
        item = Item(command, loop.bell())
        self.sync._here().enqueue(item, soon=loop.soon)
        await item.arrive()
        return item.outcome()

    async def wait(self, command: Wait, timeout: float) -> Record | None:
        with self.sync._here().watch.watching(command.key.digest):
            return await async_wait(
                command.seen, timeout, lambda: self.carry_out(Read(command.key)), self.sync._process.bells
            )

    async def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        here, loop = self.sync._here(), running()
        items = [Item(command, loop.bell()) for command in commands]
        here.enqueue(*items, soon=loop.soon)
        for item in items:
            await item.arrive()
        return [item.error or item.reply for item in items]

    def join(self, connection: Any) -> AsyncSqliteTransaction:
        """This store inside the caller's own transaction on the same file."""
        return AsyncSqliteTransaction(self.sync.join(connection))
