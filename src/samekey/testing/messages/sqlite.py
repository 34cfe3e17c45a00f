"""The business table of the scenario for `Atomic`: in the SQLite file of the records."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from typing import Any


@contextlib.contextmanager
def business(path: str) -> Iterator[Any]:
    """A transaction on the file of the records, for `Atomic`."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    finally:
        connection.close()


@contextlib.asynccontextmanager
async def async_business(path: str) -> AsyncIterator[Any]:
    """The same for an async handler; its statements are short."""
    with business(path) as connection:
        yield connection


def sql(path: str, statement: str) -> list[Any]:
    """The rows of this statement, committed."""
    connection = sqlite3.connect(path, timeout=30)
    try:
        with connection:
            return connection.execute(statement).fetchall()
    finally:
        connection.close()
