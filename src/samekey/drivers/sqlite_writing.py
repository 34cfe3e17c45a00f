"""A connection that writes to any SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from samekey.drivers.reading import CannotRead, Row, StatementStopped
from samekey.drivers.sqlite import parse_url

BUSY_SECONDS = 5.0


class SqliteWriting:
    def __init__(self, url: str) -> None:
        path = parse_url(url).path
        self.name = f"sqlite:///{path}"
        if not path.is_file():
            raise CannotRead(f"{path} does not exist, or is no file")
        try:
            self._connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        except sqlite3.Error as error:
            raise CannotRead(f"{self.name} cannot be opened: {error}") from error

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StatementStopped(f"{self.name}: {error}") from error

    def run(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        with self._translated():
            return self._connection.execute(sql.replace("%s", "?") if values else sql, tuple(values)).fetchall()

    def run_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._translated() if self._connection.in_transaction else self.transaction():
            self._connection.executemany(sql.replace("%s", "?"), rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._translated():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()
