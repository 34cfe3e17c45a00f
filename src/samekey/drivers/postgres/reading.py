"""A read-only connection to any PostgreSQL database, a standby included."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import IO

import psycopg
from psycopg import errors

from samekey.drivers.postgres.address import Address, parse_url
from samekey.drivers.postgres.connect import arguments
from samekey.drivers.postgres.errors import first_line
from samekey.drivers.reading import (
    CATALOG_SECONDS,
    CHUNK,
    LOCK_SECONDS,
    CannotRead,
    NotPermitted,
    Refused,
    Row,
    Run,
    StatementStopped,
)

CHUNKS_SINCE = 170000  # the first libpq that hands over many rows of a running statement at once

# SET LOCAL: PgBouncer in transaction mode keeps no settings of a session.
# search_path: a function of the user with the name of a built-in one must not be called.
# row_security: a policy that hides rows from this role makes the statement fail; otherwise the counts would be wrong.
_SETTINGS = """
SET LOCAL statement_timeout = {milliseconds};
SET LOCAL lock_timeout = {lock};
SET LOCAL search_path = pg_catalog;
SET LOCAL row_security = off;
SET LOCAL max_parallel_workers_per_gather = 0;
SET LOCAL standard_conforming_strings = on;
SET LOCAL datestyle = 'ISO';
"""
_NO_INDEX = """
SET LOCAL enable_indexscan = off;
SET LOCAL enable_indexonlyscan = off;
SET LOCAL enable_bitmapscan = off;
"""


class PostgresReading:
    def __init__(self, url: str) -> None:
        self._address: Address = parse_url(url)
        self.name = self._address.name
        given = arguments(self._address) | {"prepare_threshold": None}  # each statement runs once
        if given.get("target_session_attrs"):
            given["target_session_attrs"] = "any"  # a standby has the same tables
        try:
            self._connection = psycopg.connect(self._address.url, **given)
        except (psycopg.Error, OSError) as error:
            raise CannotRead(f"{self.name} cannot be read: {first_line(error)}") from error

    def rows(self, sql: str, *, seconds: float = CATALOG_SECONDS, whole_table: bool = False) -> list[Row]:
        with self._transaction(seconds, whole_table=whole_table):
            return self._connection.execute(sql.encode()).fetchall()

    def each(self, sql: str, *, seconds: float, whole_table: bool = False) -> Generator[Row, None, None]:
        # Not a server-side cursor: the planner would prefer a plan whose first rows come early.
        with self._transaction(seconds, whole_table=whole_table), self._connection.cursor() as cursor:
            yield from cursor.stream(sql.encode(), size=CHUNK if psycopg.pq.version() >= CHUNKS_SINCE else 1)

    @contextmanager
    def trial(self) -> Iterator[Run]:
        """Each statement has a savepoint of its own: one that is refused does not end the transaction."""

        def run(sql: str) -> list[Row]:
            try:
                with self._connection.transaction():
                    cursor = self._connection.execute(sql.encode())
                    return cursor.fetchall() if cursor.description else []
            except errors.UniqueViolation as error:
                raise Refused(first_line(error)) from error
            except psycopg.Error as error:
                raise StatementStopped(first_line(error)) from error

        with self._transaction(CATALOG_SECONDS, whole_table=False, read_only=False):
            yield run

    def copy_out(self, sql: str, target: IO[bytes], *, seconds: float) -> int:
        """The rows as CSV, in the server's own spelling; how many there are. Much cheaper than one row at a time."""
        with self._transaction(seconds, whole_table=True), self._connection.cursor() as cursor:
            with cursor.copy(f"COPY ({sql}) TO STDOUT (FORMAT csv)".encode()) as copy:
                for block in copy:
                    target.write(block)
            return cursor.rowcount

    @contextmanager
    def _transaction(self, seconds: float, *, whole_table: bool, read_only: bool = True) -> Iterator[None]:
        """One read-only transaction with these limits; its errors as `drivers.reading` has them."""
        settings = _SETTINGS.format(milliseconds=max(1, int(seconds * 1000)), lock=int(LOCK_SECONDS * 1000))
        try:
            with self._connection.transaction(force_rollback=True):
                self._connection.execute(f"SET TRANSACTION READ {'ONLY' if read_only else 'WRITE'}".encode())
                self._connection.execute((settings + (_NO_INDEX if whole_table else "")).encode())
                yield
        except (errors.QueryCanceled, errors.LockNotAvailable, errors.UndefinedTable, psycopg.DataError) as error:
            # The table may have been dropped since the catalog was read, and a value may be no valid text.
            raise StatementStopped(first_line(error)) from error
        except errors.InsufficientPrivilege as error:
            raise NotPermitted(first_line(error)) from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            raise CannotRead(f"{self.name} stopped answering: {first_line(error)}") from error

    def close(self) -> None:
        self._connection.close()
