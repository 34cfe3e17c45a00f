"""The one statement that inserts a row or gives the row that is there, for PostgreSQL.

On a replay no row is written, no trigger fires and nothing is replicated. (A sequence of a default still counts on: the
server takes its number before it looks for the conflict.) A row that another transaction committed while the statement
ran is a conflict that the statement's snapshot does not show: then it has no answer, and is sent again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from samekey.core.errors import Misconfigured, StoreBusy

ROUNDS_MAX = 10  # each lost round means that another transaction committed or removed the same key meanwhile


class Outcome(StrEnum):
    INSERTED = "inserted"
    UPDATED = "updated"
    EXISTING = "existing"  # nothing was written


@dataclass(frozen=True, slots=True)
class Stored:
    """The row as it is now, and what this call did."""

    outcome: Outcome
    row: dict[str, Any]

    @property
    def inserted(self) -> bool:
        return self.outcome is Outcome.INSERTED


@dataclass(frozen=True, slots=True)
class Statement:
    sql: str
    values: tuple[Any, ...]  # in the order of the placeholders


def quoted(name: str) -> str:
    if not name or "\0" in name:
        raise Misconfigured("a name of a table or column is empty, or has a NUL character")
    return '"' + name.replace('"', '""') + '"'


def table_name(table: str) -> str:
    """`orders` or `public.orders`."""
    return ".".join(quoted(part) for part in table.split("."))


def make(
    table: str,
    values: Mapping[str, Any],
    key: Sequence[str],
    placeholder: Callable[[int], str],
    *,
    update: Sequence[str] = (),
) -> Statement:
    """`table` is quoted already. `update`: columns that are written when they differ; none: the row stays as it is."""
    if not key or not set(key) <= set(values):
        raise Misconfigured("key names at least one column, and values has a value for each of them")
    if any(values[name] is None for name in key):
        raise Misconfigured("a key column is None: NULL is never equal to NULL, so the row would be inserted again")
    columns = list(values)
    numbered = [placeholder(number) for number in range(len(columns))]
    same = " AND ".join(f"t.{quoted(name)} = {placeholder(len(columns) + n)}" for n, name in enumerate(key))
    conflict = ", ".join(map(quoted, key))
    action = "DO NOTHING"
    if update:
        ours = ", ".join(f"t.{quoted(name)}" for name in update)
        theirs = ", ".join(f"excluded.{quoted(name)}" for name in update)
        sets = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in update)
        action = f"DO UPDATE SET {sets} WHERE ROW({ours}) IS DISTINCT FROM ROW({theirs})"
    sql = (
        f"WITH new AS (INSERT INTO {table} AS t ({', '.join(map(quoted, columns))}) VALUES ({', '.join(numbered)}) "
        f"ON CONFLICT ({conflict}) {action} "
        "RETURNING CASE WHEN t.xmax = 0 THEN 'inserted' ELSE 'updated' END AS samekey_outcome, t.*) "
        "SELECT * FROM new UNION ALL "
        f"SELECT 'existing', t.* FROM {table} t WHERE {same} AND NOT EXISTS (SELECT FROM new)"
    )
    return Statement(sql, (*values.values(), *(values[name] for name in key)))


def stored(names: Sequence[str], row: Sequence[Any]) -> Stored:
    return Stored(Outcome(row[0]), dict(zip(names[1:], row[1:], strict=True)))


def lost(table: str) -> StoreBusy:
    return StoreBusy(f"{table}: another transaction keeps inserting and removing this key; try again")


def updated_columns(values: Mapping[str, Any], key: Sequence[str]) -> list[str]:
    """Every column that is no part of the key."""
    rest = [name for name in values if name not in key]
    if not rest:
        raise Misconfigured("values has the key alone: there is nothing to update")
    return rest
