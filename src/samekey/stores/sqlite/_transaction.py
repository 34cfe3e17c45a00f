"""SQLite's part in a caller's transaction: the store's statements on the caller's own connection to the same file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samekey.core.commands import Read, StoreCommand
from samekey.core.errors import Misconfigured, StoreError, StoreUnavailable
from samekey.core.record import Record
from samekey.core.register import Moment, expired, seen_at
from samekey.core.transaction import Act, SavepointGone
from samekey.drivers import sqlite as driver
from samekey.stores.sqlite._rows import SELECT, execute, record_of


class SqliteTransaction:
    """The store's commands inside a transaction that the caller began and will commit."""

    marks_ahead = commits_along = writes_late = False  # nothing here crosses a network: each act by itself
    begins_by_itself = False  # sqlite3's own rules begin one before an INSERT, and not before a SAVEPOINT
    lost = stale = False

    def __init__(self, name: str, path: Path, moment: Callable[[], Moment], connection: Any) -> None:
        if not isinstance(connection, sqlite3.Connection):
            raise Misconfigured(f"Atomic on {name} takes a sqlite3 connection, not {type(connection).__name__}")
        self.name = name
        self._path = path  # of the store's own file
        self._moment = moment
        self.connection = self._connection = connection

    def same_database(self) -> bool:
        """Whether the connection's main database is the store's own file."""
        with self._as_written():
            listed = self._cursor().execute("PRAGMA database_list").fetchall()
        for _, name, file in listed:
            if name == "main":
                return bool(file) and Path(file).exists() and os.path.samefile(file, self._path)
        return False

    @property
    def in_transaction(self) -> bool:
        try:
            return self._connection.in_transaction
        except sqlite3.ProgrammingError:
            return False  # closed, and what was in it rolled back

    def look_again(self) -> None:
        """There is nothing else to see."""

    def begin(self) -> None:
        self._run("BEGIN IMMEDIATE")

    def commit(self) -> None:
        try:
            driver.patiently(lambda: self._cursor().execute("COMMIT"))
        except sqlite3.OperationalError as error:  # a constraint of the caller's own tables speaks for itself
            raise driver.store_error(self.name, error) from error

    def rollback(self) -> None:
        if self.in_transaction:
            self._run("ROLLBACK")

    def carry_out(self, *acts: Act, patience: float) -> Record | None:
        """On the caller's connection; seen by others when the caller commits."""
        record = None
        for act in acts:
            if isinstance(act, StoreCommand):
                record = self._perform(act)
                continue
            try:
                self._run(act.sql)
            except StoreUnavailable as error:
                if "no such savepoint" in str(error.__cause__):
                    raise SavepointGone(str(error.__cause__)) from error
                raise
        return record

    def write_pending(self) -> None:
        """Nothing is written late."""

    def effect_returned(self) -> None:
        """sqlite3 writes nothing late."""

    def conflicts(self, error: BaseException) -> bool:
        return False  # one writer at a time: whoever waits long enough wins

    def worth_waiting(self, error: StoreError) -> bool:
        return isinstance(error.__cause__, sqlite3.Error) and driver.is_busy(error.__cause__)

    def _perform(self, command: StoreCommand) -> Record | None:
        moment = self._moment()
        with driver.translated(self.name), self._as_written():
            if isinstance(command, Read):
                row = self._cursor().execute(SELECT, (command.key.digest,)).fetchone()
                record = None if row is None else record_of(row, command.key)
                return None if record is None or expired(record, moment) else seen_at(record, moment)
            _, after = execute(self._cursor(), command, moment)
        return None if after is None else seen_at(after, moment)

    def _run(self, statement: str) -> None:
        with driver.translated(self.name):
            self._cursor().execute(statement)

    @contextmanager
    def _as_written(self) -> Iterator[None]:
        """What the caller makes of texts is for the caller's rows, too; only the connection can be told."""
        theirs = self._connection.text_factory
        if theirs is not str:
            self._connection.text_factory = str
        try:
            yield
        finally:
            self._connection.text_factory = theirs

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the caller's own row factory is for the caller's rows
        return cursor


class AsyncSqliteTransaction:
    """The same for async effects: the connection's own calls are short and stay in the loop, the waiting does not."""

    marks_ahead = commits_along = writes_late = False
    begins_by_itself = False
    lost = stale = False
    immediate = True

    def __init__(self, sync: SqliteTransaction) -> None:
        self._sync = sync
        self.name = sync.name
        self.connection = sync.connection
        self.conflicts, self.worth_waiting = sync.conflicts, sync.worth_waiting

    @property
    def in_transaction(self) -> bool:
        return self._sync.in_transaction

    async def same_database(self) -> bool:
        return self._sync.same_database()

    async def look_again(self) -> None:
        """There is nothing else to see."""

    async def begin(self) -> None:
        self._sync.begin()

    async def commit(self) -> None:
        self._sync.commit()

    async def rollback(self) -> None:
        self._sync.rollback()

    async def carry_out(self, *acts: Act, patience: float) -> Record | None:
        return self._sync.carry_out(*acts, patience=patience)

    async def write_pending(self) -> None:
        """Nothing is written late."""

    async def effect_returned(self) -> None:
        self._sync.effect_returned()
