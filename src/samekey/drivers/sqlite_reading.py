"""A read-only connection to any SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

from samekey.drivers.reading import CATALOG_SECONDS, LOCK_SECONDS, CannotRead, Refused, Row, Run, StatementStopped
from samekey.drivers.sqlite import is_busy, parse_url

STEPS = 10_000  # instructions between two looks at the clock: about a millisecond


class SqliteReading:
    """`functions`: name -> (number of arguments, function), for what SQLite's own SQL lacks."""

    def __init__(self, url: str, functions: Mapping[str, tuple[int, Callable[..., Any]]]) -> None:
        path = parse_url(url).path
        self.name = f"sqlite:///{path}"
        self._deadline, self._functions = 0.0, functions
        self._uri = path.absolute().as_uri() + "?mode=ro"
        if not path.is_file():
            raise CannotRead(f"{path} does not exist, or is no file")  # SQLite would make an empty one
        try:
            self._connection = sqlite3.connect(self._uri, uri=True, timeout=LOCK_SECONDS, isolation_level=None)
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
        with self._limited(seconds):
            return self._connection.execute(sql).fetchall()

    def each(self, sql: str, *, seconds: float, whole_table: bool = False) -> Generator[Row, None, None]:
        with self._limited(seconds), closing(self._connection.execute(sql)) as cursor:
            yield from cursor

    @contextmanager
    def trial(self) -> Iterator[Run]:
        """A database in memory; the file is `src` there, read-only."""
        memory = sqlite3.connect("file::memory:", uri=True, isolation_level=None)

        def run(sql: str) -> list[Row]:
            try:
                return memory.execute(sql).fetchall()
            except sqlite3.IntegrityError as error:
                if "UNIQUE" not in str(error):
                    raise StatementStopped(str(error)) from error
                raise Refused(str(error)) from error
            except sqlite3.Error as error:
                raise StatementStopped(str(error)) from error

        with closing(memory):
            for name, (arguments, function) in self._functions.items():
                memory.create_function(name, arguments, function, deterministic=True)
            memory.execute("ATTACH ? AS src", (self._uri,))
            yield run

    @contextmanager
    def _limited(self, seconds: float) -> Iterator[None]:
        """So much time for one statement; its errors as `drivers.reading` has them."""
        self._deadline = time.monotonic() + seconds
        try:
            yield
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
