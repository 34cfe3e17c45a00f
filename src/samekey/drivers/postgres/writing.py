"""A connection that writes to any PostgreSQL database."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors

from samekey.drivers.postgres.address import parse_url
from samekey.drivers.postgres.connect import arguments
from samekey.drivers.postgres.errors import first_line
from samekey.drivers.reading import CannotRead, NotPermitted, Row, StatementStopped


class PostgresWriting:
    def __init__(self, url: str) -> None:
        address = parse_url(url)
        self.name, self._address = address.name, address
        try:
            given = arguments(address) | {"prepare_threshold": None}
            self._connection = psycopg.connect(address.url, **given)
        except (psycopg.Error, OSError) as error:
            raise CannotRead(f"{self.name} cannot be reached: {first_line(error)}") from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except errors.InsufficientPrivilege as error:
            raise NotPermitted(f"{self.name}: {first_line(error)}") from error
        except (psycopg.OperationalError, psycopg.InterfaceError) as error:
            if self._connection.broken or self._connection.closed:
                raise CannotRead(f"{self.name} stopped answering: {first_line(error)}") from error
            raise StatementStopped(first_line(error)) from error
        except (psycopg.Error, OSError) as error:
            raise StatementStopped(first_line(error)) from error

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._translated():
            done = self._connection.execute(sql.encode(), values if values else None)
            return done.fetchall() if done.description else []

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._translated(), self._connection.cursor() as cursor:
            cursor.executemany(sql.encode(), rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._translated(), self._connection.transaction():
            yield

    def copy_in(self, sql: str, parts: Iterable[bytes]) -> None:
        """COPY ... FROM STDIN, with these parts of its text."""
        with self._translated(), self._connection.cursor() as cursor, cursor.copy(sql.encode()) as copy:
            for part in parts:
                copy.write(part)

    def stream(self, sql: str, size: int = 5000) -> Iterator[list[Row]]:
        """The rows of a SELECT in lists, through a server-side cursor."""
        with (
            self._translated(),
            self._connection.transaction(),
            self._connection.cursor(name="samekey_rows") as cursor,
        ):
            cursor.execute(sql.encode())
            while rows := cursor.fetchmany(size):
                yield rows

    def close(self) -> None:
        self._connection.close()
