"""SQLite's part in a caller's transaction: the store's statements on the caller's own connection to the same file."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from samekey.core.commands import StoreCommand
from samekey.core.errors import Misconfigured, StoreBusy
from samekey.core.record import Record
from samekey.core.register import Moment, seen_at
from samekey.core.transaction import Act, SavepointGone
from samekey.drivers import sqlite as driver
from samekey.loops import running
from samekey.stores._over_sync import OverSyncTransaction, PlainTransaction
from samekey.stores.sqlite._rows import execute

BUSY_PAUSE_SECONDS = 0.002  # between two tries, while another connection writes to the file

T = TypeVar("T")


def _not_sqlite3(name: str, connection: Any) -> str:
    kind = type(connection)
    refused = f"Atomic on {name} takes a sqlite3 connection, not {kind.__module__.partition('.')[0]}'s {kind.__name__}"
    if kind.__module__.partition(".")[0] == "sqlalchemy" and "Async" not in kind.__name__:
        own = "connection.connection" if kind.__name__ == "Connection" else "session.connection().connection"
        refused += f": give it {own}.driver_connection, and flush a session before the effect returns"
    return refused


class SqliteTransaction(PlainTransaction):
    """The store's commands inside a transaction that the caller began and will commit."""

    # sqlite3 `begins_by_itself` before an INSERT, and not before a SAVEPOINT, which is what comes first here.
    lost = stale = False

    def __init__(self, name: str, path: Path, moment: Callable[[], Moment], connection: Any) -> None:
        if not isinstance(connection, sqlite3.Connection):
            raise Misconfigured(_not_sqlite3(name, connection))
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

    def begin(self, patience: float) -> None:
        self._waiting(lambda: self._run("BEGIN IMMEDIATE"), patience)

    def commit(self) -> None:
        try:
            driver.patiently(lambda: self._cursor().execute("COMMIT"))
        except sqlite3.OperationalError as error:  # a constraint of the caller's own tables speaks for itself
            raise driver.store_error(self.name, error) from error

    def rollback(self) -> None:
        if self.in_transaction:
            self._run("ROLLBACK")

    def carry_out(self, *acts: Act, patience: float) -> Record | None:
        """On the caller's connection; other connections see it when the caller commits."""
        shown = [self._waiting(lambda act=act: self._carry_out_one(act), patience) for act in acts]  # type: ignore[misc]
        return next((record for record in shown if record is not None), None)

    def _carry_out_one(self, act: Act) -> Record | None:
        if isinstance(act, StoreCommand):
            moment = self._moment()
            with driver.translated(self.name), self._as_written():
                _, after = execute(self._cursor(), act, moment)
            return None if after is None else seen_at(after, moment)
        try:
            self._cursor().execute(act.sql)
        except sqlite3.Error as error:
            if "no such savepoint" in str(error):
                raise SavepointGone(str(error)) from error
            raise driver.store_error(self.name, error) from error
        return None

    def _waiting(self, work: Callable[[], T], patience: float) -> T:
        """Try again while another connection writes to the file."""
        ends = time.monotonic() + patience
        while True:
            try:
                return work()
            except StoreBusy:
                if time.monotonic() >= ends:
                    raise
            time.sleep(BUSY_PAUSE_SECONDS)

    def conflicts(self, error: BaseException) -> bool:
        return False  # one writer at a time: a transaction that waits long enough wins

    def _run(self, statement: str) -> None:
        with driver.translated(self.name):
            self._cursor().execute(statement)

    @contextmanager
    def _as_written(self) -> Iterator[None]:
        """Read our rows with the default `text_factory`. It is set on the connection, so the caller's is put back."""
        theirs = self._connection.text_factory
        if theirs is not str:
            self._connection.text_factory = str
        try:
            yield
        finally:
            self._connection.text_factory = theirs

    def _cursor(self) -> sqlite3.Cursor:
        cursor = self._connection.cursor()
        cursor.row_factory = None  # the caller's row factory is for the caller's rows only
        return cursor


class AsyncSqliteTransaction(OverSyncTransaction):
    """The same for async effects: calls on the connection are short and run in the loop; waiting is awaited."""

    immediate = True

    async def begin(self, patience: float) -> None:
        await self._do(lambda: self._sync.begin(0.0), patience)

    async def carry_out(self, *acts: Act, patience: float) -> Record | None:
        record = None
        for act in acts:
            record = await self._do(lambda act=act: self._sync.carry_out(act, patience=0.0), patience) or record  # type: ignore[misc]
        return record

    async def _do(self, work: Callable[[], T], patience: float = 0.0) -> T:
        ends = time.monotonic() + patience
        while True:
            try:
                return work()
            except StoreBusy:
                if time.monotonic() >= ends:
                    raise
            await running().sleep(BUSY_PAUSE_SECONDS)
