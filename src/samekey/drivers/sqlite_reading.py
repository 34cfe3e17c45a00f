"""A read-only connection to any SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping
from typing import Any

from samekey.drivers.reading import CATALOG_SECONDS, LOCK_SECONDS, CannotRead, Row, StatementStopped
from samekey.drivers.sqlite import is_busy, parse_url

STEPS = 10_000  # instructions between two looks at the clock: about a millisecond


class SqliteReading:
    """`functions`: name -> (number of arguments, function), for what SQLite's own SQL lacks."""

    def __init__(self, url: str, functions: Mapping[str, tuple[int, Callable[..., Any]]]) -> None:
        path = parse_url(url).path
        self.name = f"sqlite:///{path}"
        self._deadline = 0.0
        if not path.is_file():
            raise CannotRead(f"{path} does not exist, or is no file")  # SQLite would make an empty one
        try:
            self._connection = sqlite3.connect(
                path.absolute().as_uri() + "?mode=ro", uri=True, timeout=LOCK_SECONDS, isolation_level=None
            )
            for name, (arguments, function) in functions.items():
                self._connection.create_function(name, arguments, function, deterministic=True)
            self._connection.execute("PRAGMA query_only = ON")
            self._connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            self._connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            self._connection.set_progress_handler(lambda: time.monotonic() > self._deadline, STEPS)
        except sqlite3.Error as error:
            if hasattr(self, "_connection"):
                self._connection.close()
            raise CannotRead(f"{self.name} cannot be read: {error}") from error

    def rows(self, sql: str, *, seconds: float = CATALOG_SECONDS, whole_table: bool = False) -> list[Row]:
        """`whole_table` is in the statement itself here: NOT INDEXED."""
        self._deadline = time.monotonic() + seconds
        try:
            return self._connection.execute(sql).fetchall()
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_INTERRUPT:
                raise StatementStopped("the time was over") from error
            if code == sqlite3.SQLITE_ERROR or is_busy(error):
                # The table was dropped since the catalog was read, or a text is not UTF-8 and no function can read it.
                raise StatementStopped(str(error)) from error
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
                raise CannotRead(f"{self.name} cannot be read: {error}") from error
            raise

    def close(self) -> None:
        self._connection.set_progress_handler(None, 0)
        self._connection.close()
