"""Insert a row once, over a SQLAlchemy connection or session on PostgreSQL; in the caller's transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from samekey.core.errors import Misconfigured
from samekey.detect.prevent._statement import ROUNDS_MAX, Stored, lost, make, quoted, stored, updated_columns


def _statement(
    table: Table, values: Mapping[str, Any], key: Sequence[str], *, update: bool
) -> tuple[Any, dict[str, Any]]:
    unknown = sorted(set(values) - set(table.columns.keys()))
    if unknown:
        raise Misconfigured(f"{table.name} has no column {', '.join(unknown)}")
    name = ".".join(quoted(part) for part in (table.schema, table.name) if part)
    columns = updated_columns(values, key) if update else []
    given = dict(values)
    made = make(name, given, key, lambda number: f"\0{number}\0", update=columns)
    # A colon in a name would be taken for a parameter.
    sql = made.sql.replace(":", "\\:")
    order = [*given, *key]
    for number in range(len(order)):
        sql = sql.replace(f"\0{number}\0", f":samekey_{number}")
    # The column's own type: JSON, dates and enums are bound as SQLAlchemy binds them elsewhere.
    bound = [bindparam(f"samekey_{n}", type_=table.columns[name].type) for n, name in enumerate(order)]
    return text(sql).bindparams(*bound), {f"samekey_{n}": value for n, value in enumerate(made.values)}


def _check(dialect: str) -> None:
    if dialect != "postgresql":
        raise Misconfigured(f"this statement is PostgreSQL's; the connection is {dialect}")


class Inserter:
    """`Inserter(session).insert_or_get(orders, {...}, key=["order_ref"])`; the key needs a unique index."""

    def __init__(self, connection: Connection | Session) -> None:
        self._connection = connection
        _check(connection.get_bind().dialect.name if isinstance(connection, Session) else connection.dialect.name)

    def insert_or_get(self, table: Table, values: Mapping[str, Any], *, key: Sequence[str]) -> Stored:
        """The row that is there, or a new one. A row that is there is not written."""
        return self._run(table, *_statement(table, values, key, update=False))

    def insert_or_update(self, table: Table, values: Mapping[str, Any], *, key: Sequence[str]) -> Stored:
        """A new row, or the row that is there with these values; it is written only if one of them differs."""
        return self._run(table, *_statement(table, values, key, update=True))

    def _run(self, table: Table, statement: Any, values: dict[str, Any]) -> Stored:
        for _ in range(ROUNDS_MAX):
            result = self._connection.execute(statement, values)
            row = result.fetchone()
            if row is not None:
                return stored(list(result.keys()), tuple(row))
        raise lost(table.name)


class AsyncInserter:
    """The same, awaited."""

    def __init__(self, connection: AsyncConnection | AsyncSession) -> None:
        self._connection = connection
        bind = connection.get_bind() if isinstance(connection, AsyncSession) else connection
        _check(bind.dialect.name)

    async def insert_or_get(self, table: Table, values: Mapping[str, Any], *, key: Sequence[str]) -> Stored:
        return await self._run(table, *_statement(table, values, key, update=False))

    async def insert_or_update(self, table: Table, values: Mapping[str, Any], *, key: Sequence[str]) -> Stored:
        return await self._run(table, *_statement(table, values, key, update=True))

    async def _run(self, table: Table, statement: Any, values: dict[str, Any]) -> Stored:
        for _ in range(ROUNDS_MAX):
            result = await self._connection.execute(statement, values)
            row = result.fetchone()
            if row is not None:
                return stored(list(result.keys()), tuple(row))
        raise lost(table.name)
