"""Runs the steps of rows.py and tables.py: on SQLite, or on PostgreSQL with threads or with tasks.

Each command is one transaction. A lost connection is an error for the caller (StoreUnavailable): every command may be
sent again, because ids and operation ids decide what is new.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import resources
from typing import Any

from samekey.core.errors import Misconfigured, StoreBusy
from samekey.intake.rows import Sql, SqlSteps

Sink = Callable[[Any, Any], Any]
CONNECTIONS_MAX = 16  # of one process; a trigger holds one for a millisecond
CONNECTION_WAIT_SECONDS = 5.0


def schema() -> list[str]:
    text = (resources.files("samekey.intake") / "schema.sql").read_text(encoding="utf-8")
    lines = "\n".join(line.partition("--")[0] for line in text.splitlines())
    return [one.strip() for one in lines.split(";") if one.strip()]


def no_tables(name: str) -> Misconfigured:
    return Misconfigured(f"{name} has no intake tables. Make them with: samekey intake migrate --db {name}")


class _Texts:
    """The statements in the dialect of one database, translated once."""

    def __init__(self, replacements: dict[str, str]) -> None:
        self._replacements = replacements
        self._made: dict[str, str] = {}

    def __getitem__(self, text: str) -> str:
        made = self._made.get(text)
        if made is None:
            made = text
            for ours, theirs in self._replacements.items():
                made = made.replace(ours, theirs)
            if len(self._made) < 1000:
                self._made[text] = made
        return made


# -- SQLite --------------------------------------------------------------------------------------------------------

_SQLITE = {
    "/*locked*/": "",
    "/*skip*/": "",
    "/*now*/": "CAST((julianday('now') - 2440587.5) * 86400000000.0 AS INTEGER)",
    "AS bytea": "AS blob",
    "BYTEA": "BLOB",
}


_writers: dict[str, threading.Lock] = {}  # one per file: every intake of this process takes its turn here


class SqliteDatabase:
    """A file of this machine. One connection and one writer at a time: a transaction takes less than a millisecond.

    Two intakes of one process on one file share the lock. Each would else try again and again for the file while the
    threads of the other pass it on among themselves, and could lose for as long as that lasts.
    """

    def __init__(self, url: str, sink: Sink | None = None) -> None:
        from samekey.drivers import sqlite

        self._driver, self._address = sqlite, sqlite.parse_url(url)
        self.name = f"sqlite:///{self._address.path}"
        self._sink = sink
        self._lock = _writers.setdefault(os.path.realpath(self._address.path), threading.Lock())
        self._texts = _Texts(_SQLITE)
        self._connection: Any = None

    def migrate(self) -> None:
        with self._lock, self._driver.translated(self.name):
            self._open()

    def run(self, steps: Callable[[], SqlSteps], *, alone: bool = False) -> Any:
        with self._lock, self._driver.translated(self.name):
            connection = self._open()
            if alone:
                return self._steps(connection, steps())
            self._driver.patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
            try:
                result = self._steps(connection, steps())
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            return result

    def _steps(self, connection: Any, steps: SqlSteps) -> Any:
        reply: Any = None
        try:
            while True:
                step = steps.send(reply)
                if isinstance(step, Sql):
                    reply = connection.execute(self._texts[step.text], step.values).fetchall()
                else:
                    reply = None if self._sink is None else self._sink(connection, step.run)
        except StopIteration as stop:
            return stop.value

    def _open(self) -> Any:
        """The connection. SQLite makes its tables by itself."""
        if self._connection is None:
            connection = self._driver.connect(self._address.path, synchronous=self._address.synchronous)
            for statement in schema():
                self._driver.patiently(partial(connection.execute, self._texts[statement]))
            self._connection = connection
        return self._connection

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


class AsyncSqliteDatabase:
    """The same for tasks: a thread carries each transaction out."""

    def __init__(self, url: str, sink: Sink | None = None) -> None:
        self._sync = SqliteDatabase(url, sink)
        self.name = self._sync.name

    async def migrate(self) -> None:
        await asyncio.to_thread(self._sync.migrate)

    async def run(self, steps: Callable[[], SqlSteps], *, alone: bool = False) -> Any:
        return await asyncio.to_thread(self._sync.run, steps, alone=alone)

    async def close(self) -> None:
        await asyncio.to_thread(self._sync.close)


# -- PostgreSQL ----------------------------------------------------------------------------------------------------

_POSTGRES = {
    "/*locked*/": " FOR UPDATE",
    "/*skip*/": " FOR UPDATE SKIP LOCKED",
    "/*now*/": "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)",
    "?": "%s",
}


class PostgresDatabase:
    """Connections of this process to the primary, each used by one thread at a time."""

    def __init__(self, url: str, sink: Sink | None = None, sink_timeout: float = 5.0) -> None:
        from samekey.drivers.postgres import intake

        self._driver, self._address = intake, intake.parse_url(url)
        self.name = self._address.name
        self._sink, self._sink_timeout = sink, sink_timeout
        self._texts = _Texts(_POSTGRES)
        self._idle: list[Any] = []
        self._places = threading.Semaphore(CONNECTIONS_MAX)

    def migrate(self) -> None:
        with self._driver.translated(self._address):
            connection = self._driver.connect(self._address)
            try:
                with connection.transaction():
                    connection.execute("SELECT pg_advisory_xact_lock(hashtext('samekey_intake'))")
                    for statement in schema():
                        connection.execute(statement)
            finally:
                connection.close()

    def run(self, steps: Callable[[], SqlSteps], *, alone: bool = False) -> Any:
        if not self._places.acquire(timeout=CONNECTION_WAIT_SECONDS):
            raise StoreBusy(f"{self.name}: all {CONNECTIONS_MAX} connections are busy")
        try:
            return self._attempt(steps, alone)
        finally:
            self._places.release()

    def _attempt(self, steps: Callable[[], SqlSteps], alone: bool) -> Any:
        with self._driver.errors(self._address, no_tables):
            for _ in range(self._driver.CONFLICTS_MAX):
                kept = bool(self._idle)
                connection = self._idle.pop() if kept else self._driver.connect(self._address)
                try:
                    if alone:
                        result = self._steps(connection, steps())
                    else:
                        with connection.transaction():
                            result = self._steps(connection, steps())
                except BaseException as error:
                    if self._driver.usable(connection):
                        self._idle.append(connection)
                        if self._driver.is_conflict(error):
                            continue
                    else:
                        connection.close()
                        if kept and self._driver.is_lost(error):
                            self.close()  # the server was restarted: the other idle connections are gone too
                            continue
                    raise
                self._idle.append(connection)
                return result
            raise StoreBusy(f"{self.name}: the transaction lost {self._driver.CONFLICTS_MAX} races in a row")

    def _steps(self, connection: Any, steps: SqlSteps) -> Any:
        reply: Any = None
        bounded = False
        try:
            while True:
                step = steps.send(reply)
                if isinstance(step, Sql):
                    cursor = connection.execute(self._texts[step.text], step.values)
                    reply = cursor.fetchall() if cursor.description else []
                elif self._sink is not None:
                    if not bounded:
                        bounded = True
                        connection.execute(f"SET LOCAL lock_timeout = {int(self._sink_timeout * 1000)}")
                    reply = self._sink(connection, step.run)
                else:
                    reply = None
        except StopIteration as stop:
            return stop.value

    def close(self) -> None:
        while self._idle:
            with suppress(Exception):
                self._idle.pop().close()


class AsyncPostgresDatabase:
    """The same for the tasks of one event loop."""

    def __init__(self, url: str, sink: Sink | None = None, sink_timeout: float = 5.0) -> None:
        from samekey.drivers.postgres import intake

        self._driver, self._address = intake, intake.parse_url(url)
        self.name = self._address.name
        self._sink, self._sink_timeout = sink, sink_timeout
        self._texts = _Texts(_POSTGRES)
        self._idle: list[Any] = []
        self._places = asyncio.Semaphore(CONNECTIONS_MAX)

    async def migrate(self) -> None:
        await asyncio.to_thread(PostgresDatabase(self._address.url).migrate)

    async def run(self, steps: Callable[[], SqlSteps], *, alone: bool = False) -> Any:
        try:
            await asyncio.wait_for(self._places.acquire(), CONNECTION_WAIT_SECONDS)
        except TimeoutError:
            raise StoreBusy(f"{self.name}: all {CONNECTIONS_MAX} connections are busy") from None
        try:
            return await self._attempt(steps, alone)
        finally:
            self._places.release()

    async def _attempt(self, steps: Callable[[], SqlSteps], alone: bool) -> Any:
        with self._driver.errors(self._address, no_tables):
            for _ in range(self._driver.CONFLICTS_MAX):
                kept = bool(self._idle)
                connection = self._idle.pop() if kept else await self._driver.connect_async(self._address)
                try:
                    if alone:
                        result = await self._steps(connection, steps())
                    else:
                        async with connection.transaction():
                            result = await self._steps(connection, steps())
                except BaseException as error:
                    if self._driver.usable(connection):
                        self._idle.append(connection)
                        if self._driver.is_conflict(error):
                            continue
                    else:
                        await connection.close()
                        if kept and self._driver.is_lost(error):
                            await self.close()
                            continue
                    raise
                self._idle.append(connection)
                return result
            raise StoreBusy(f"{self.name}: the transaction lost {self._driver.CONFLICTS_MAX} races in a row")

    async def _steps(self, connection: Any, steps: SqlSteps) -> Any:
        reply: Any = None
        bounded = False
        try:
            while True:
                step = steps.send(reply)
                if isinstance(step, Sql):
                    cursor = await connection.execute(self._texts[step.text], step.values)
                    reply = await cursor.fetchall() if cursor.description else []
                elif self._sink is not None:
                    if not bounded:
                        bounded = True
                        await connection.execute(f"SET LOCAL lock_timeout = {int(self._sink_timeout * 1000)}")
                    reply = self._sink(connection, step.run)
                    if asyncio.iscoroutine(reply):
                        reply = await reply
                else:
                    reply = None
        except StopIteration as stop:
            return stop.value

    async def close(self) -> None:
        while self._idle:
            with suppress(Exception):
                await self._idle.pop().close()


__all__ = ["AsyncPostgresDatabase", "AsyncSqliteDatabase", "PostgresDatabase", "Sink", "SqliteDatabase", "schema"]
