"""Insert a row once, over a psycopg connection; in the caller's transaction, which the caller commits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.rows import tuple_row

from samekey.detect.prevent._statement import (
    ROUNDS_MAX,
    Statement,
    Stored,
    lost,
    make,
    stored,
    table_name,
    updated_columns,
)


def _statement(table: str, values: Mapping[str, Any], key: Sequence[str], *, update: bool) -> Statement:
    columns = updated_columns(values, key) if update else []
    made = make(table_name(table), dict.fromkeys(values) | dict(values), key, lambda n: "\0", update=columns)
    # Only now are the placeholders written: a % in a name is doubled for psycopg.
    return Statement(made.sql.replace("%", "%%").replace("\0", "%s"), made.values)


class Inserter:
    """`Inserter(connection).insert_or_get("orders", {...}, key=["order_ref"])`; the key needs a unique index."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def insert_or_get(self, table: str, values: Mapping[str, Any], *, key: Sequence[str]) -> Stored:
        """The row that is there, or a new one. A row that is there is not written."""
        return self._run(table, _statement(table, values, key, update=False))

    def insert_or_update(self, table: str, values: Mapping[str, Any], *, key: Sequence[str]) -> Stored:
        """A new row, or the row that is there with these values; it is written only if one of them differs."""
        return self._run(table, _statement(table, values, key, update=True))

    def _run(self, table: str, statement: Statement) -> Stored:
        for _ in range(ROUNDS_MAX):
            with self._connection.cursor(row_factory=tuple_row) as cursor:
                row = cursor.execute(statement.sql.encode(), statement.values).fetchone()
                if row is not None:
                    return stored([column.name for column in cursor.description or ()], row)
        raise lost(table)


class AsyncInserter:
    """The same, awaited."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def insert_or_get(self, table: str, values: Mapping[str, Any], *, key: Sequence[str]) -> Stored:
        return await self._run(table, _statement(table, values, key, update=False))

    async def insert_or_update(self, table: str, values: Mapping[str, Any], *, key: Sequence[str]) -> Stored:
        return await self._run(table, _statement(table, values, key, update=True))

    async def _run(self, table: str, statement: Statement) -> Stored:
        for _ in range(ROUNDS_MAX):
            async with self._connection.cursor(row_factory=tuple_row) as cursor:
                row = await (await cursor.execute(statement.sql.encode(), statement.values)).fetchone()
                if row is not None:
                    return stored([column.name for column in cursor.description or ()], row)
        raise lost(table)
