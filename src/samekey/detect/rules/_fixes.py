"""SQL that closes a gap. A person reads it first: duplicates that are there must go before an index is built."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from samekey.detect.catalog import Engine, Key, Table
from samekey.detect.dialect import Dialect

NAME_MAX = 63  # PostgreSQL cuts longer names, MySQL refuses more than 64 characters


def index_name(table: Table, columns: Iterable[str], end: str = "key") -> str:
    name = "_".join((table.name, *columns, end))
    if len(name) <= NAME_MAX:
        return name
    return name[: NAME_MAX - 9] + "_" + hashlib.sha256(name.encode()).hexdigest()[:8]


def unique_index(
    sql: Dialect,
    table: Table,
    columns: Sequence[str],
    *,
    expressions: Sequence[str] = (),
    more: str = "",
    end: str = "key",
) -> tuple[str, ...]:
    name = sql.name(index_name(table, columns, end))
    parts = ", ".join(expressions) or sql.names(columns)
    # A partitioned table has no index CONCURRENTLY, and its key must contain the partition column.
    how = " CONCURRENTLY" if sql.engine is Engine.POSTGRES and not table.partitioned_by else ""
    return (f"CREATE UNIQUE INDEX{how} {name} ON {sql.table(table)} ({parts}){more};",)


def drop_key(sql: Dialect, table: Table, key: Key) -> str:
    what = "INDEX" if sql.engine is Engine.MYSQL else "CONSTRAINT"
    return f"ALTER TABLE {sql.table(table)} DROP {what} {sql.name(key.name)};"


def not_null(sql: Dialect, table: Table, columns: Iterable[str]) -> tuple[str, ...]:
    if sql.engine is Engine.POSTGRES:
        return tuple(f"ALTER TABLE {sql.table(table)} ALTER COLUMN {sql.name(name)} SET NOT NULL;" for name in columns)
    if sql.engine is Engine.MYSQL:
        return tuple(
            f"ALTER TABLE {sql.table(table)} MODIFY {sql.name(name)} {table.column(name).type} NOT NULL;"
            for name in columns
        )
    listed = ", ".join(columns)
    return (f"-- SQLite cannot change a column: make the table again with {listed} NOT NULL, and copy the rows.",)


def add_id(sql: Dialect, table: Table) -> tuple[str, ...]:
    later = "-- Then a unique index on the columns by which a client would recognise its own row."
    if sql.engine is Engine.SQLITE:
        return ("-- Make the table again with a PRIMARY KEY, and copy the rows.", later)
    there = next((column.name for column in table.columns if column.name.lower() == "id"), "")
    if there:
        return (f"ALTER TABLE {sql.table(table)} ADD PRIMARY KEY ({sql.name(there)});", later)
    spelled = (
        "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
        if sql.engine is Engine.POSTGRES
        else "bigint NOT NULL AUTO_INCREMENT PRIMARY KEY"
    )
    return (f"ALTER TABLE {sql.table(table)} ADD COLUMN id {spelled};", later)


def content_hash(sql: Dialect, table: Table) -> tuple[str, ...]:
    spelled = {Engine.POSTGRES: "bytea", Engine.MYSQL: "binary(32)", Engine.SQLITE: "BLOB"}[sql.engine]
    return (
        "-- Choose the columns by which a client recognises its own row, or store a hash of the request:",
        f"ALTER TABLE {sql.table(table)} ADD COLUMN payload_sha256 {spelled};",
        *unique_index(sql, table, ("payload_sha256",)),
    )
