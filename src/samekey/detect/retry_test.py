"""Would a retried insert be stored twice? Tried on an empty copy of each table, in a transaction that is rolled back.

A row of the table, or a made-up one if it has none, is inserted into the copy twice. The second time it has what a
retry has: the same values from the client, and new ones from the database (the next number, another random id, a later
time). The copy has the valid unique keys of the table, and no trigger and no foreign key of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from samekey.detect.catalog import Catalog, Column, Engine, Key, Kind, Made, Table
from samekey.detect.dialect import Dialect
from samekey.detect.findings import Finding, Severity
from samekey.drivers.reading import Reading, Refused, Run, StatementStopped

COPY, ROW = "samekey_trial", "samekey_trial_row"
TABLES_MAX = 5000


class Verdict(StrEnum):
    REFUSED = "refused"
    STORED_TWICE = "stored twice"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Tried:
    table: str
    verdict: Verdict
    why: str  # which row showed it, or why it is not known
    made_up: bool = False  # the table has no row: the values are ours


def try_all(catalog: Catalog, reading: Reading, chosen: set[str]) -> list[Tried]:
    tables = [one for one in catalog.whole_tables() if one.full_name in chosen and one.columns][:TABLES_MAX]
    with reading.trial() as run:
        return [_Trial(catalog, table, run).verdict() for table in tables]


def as_findings(tried: list[Tried]) -> list[Finding]:
    """SK129."""
    return [
        Finding(
            "SK129",
            Severity.HIGH,
            one.table,
            f"the same insert, sent twice, was stored twice: {one.why}",
            table=one.table,
        )
        for one in tried
        if one.verdict is Verdict.STORED_TWICE
    ]


class _Trial:
    def __init__(self, catalog: Catalog, table: Table, run: Run) -> None:
        self.engine, self.table, self.run, self.sql = catalog.engine, table, run, Dialect(catalog)
        self.source = f"src.{self.sql.name(table.name)}" if self.engine is Engine.SQLITE else self.sql.table(table)
        temp = "pg_temp." if self.engine is Engine.POSTGRES else ""
        self.copy, self.row = f"{temp}{COPY}", f"{temp}{ROW}"

    def verdict(self) -> Tried:
        name = self.table.full_name
        try:
            self._make_copy()
            tried, made_up = 0, not self.run(f"SELECT 1 FROM {self.source} LIMIT 1")
            for label, where in [("a made-up row", "")] if made_up else self._samples():
                if not self._take(where, made_up=made_up):
                    continue
                tried += 1
                if self._stored_twice():
                    return Tried(name, Verdict.STORED_TWICE, label, made_up)
            return Tried(name, Verdict.REFUSED, f"{tried} rows tried", made_up)
        except StatementStopped as error:
            return Tried(name, Verdict.UNKNOWN, error.message)
        except Refused as error:  # the first insert into an empty copy
            return Tried(name, Verdict.UNKNOWN, error.message)

    def _make_copy(self) -> None:
        for name in (COPY, ROW):
            self.run(f"DROP {'TEMPORARY ' if self.engine is Engine.MYSQL else ''}TABLE IF EXISTS "
                     f"{'pg_temp.' if self.engine is Engine.POSTGRES else ''}{name}")  # fmt: skip
        plain = f"AS SELECT * FROM {self.source} WHERE 1 = 0"
        if self.engine is Engine.MYSQL:
            self.run(f"CREATE TEMPORARY TABLE {COPY} LIKE {self.source}")
            self.run(f"CREATE TEMPORARY TABLE {ROW} {plain}")
            return
        if self.engine is Engine.POSTGRES:
            # Not INCLUDING INDEXES: an index that is not valid would be valid in the copy.
            self.run(f"CREATE TEMP TABLE {COPY} (LIKE {self.source} INCLUDING CONSTRAINTS INCLUDING GENERATED)")
            self.run(f"CREATE TEMP TABLE {ROW} {plain}")
        else:
            self.run(f"CREATE TEMP TABLE {COPY} {plain}")
            self.run(f"CREATE TEMP TABLE {ROW} {plain}")
        for number, key in enumerate(self.table.keys):
            if key.valid:
                self.run(self._index(number, key))

    def _index(self, number: int, key: Key) -> str:
        """The key on the copy. SQLite's expressions are the whole statement that made the index."""
        if self.engine is Engine.SQLITE and key.expressions:
            inside = key.expressions[0].partition("(")[2].rpartition(")")[0]
            parts = [inside] if not key.predicate else [inside.partition(") WHERE")[0]]
        else:
            collations = dict(key.collations)
            parts = [
                self.sql.name(name) + (f" COLLATE {collations[name]}" if name in collations else "")
                for name in key.columns
            ]
            parts += [f"({one})" for one in key.expressions]
        nulls = "" if key.nulls_distinct else " NULLS NOT DISTINCT"
        where = f" WHERE {key.predicate}" if key.predicate else ""
        name = f"temp.k{number}" if self.engine is Engine.SQLITE else f"samekey_trial_{number}"
        return f"CREATE UNIQUE INDEX {name} ON {COPY} ({', '.join(parts)}){nulls}{where}"

    def _samples(self) -> Iterator[tuple[str, str]]:
        """A row, a row for each side of a predicate, and a row with NULL in each key column that admits it."""
        yield "any row", "1 = 1"
        for key in self.table.keys:
            if key.predicate:
                yield f"a row outside {key.name}", f"NOT coalesce(({key.predicate}), false)"
            for name in key.columns:
                if self.table.column(name).nullable and not key.primary:
                    yield f"a row without {name}", f"{self.sql.name(name)} IS NULL"

    def _take(self, where: str, *, made_up: bool) -> bool:
        """One row into the row table; False if there is none like it."""
        self.run(f"DELETE FROM {self.row}")
        self.run(f"DELETE FROM {self.copy}")
        if made_up:
            names = self.sql.names(column.name for column in self.table.columns)
            values = ", ".join(self._made_up(column) for column in self.table.columns)
            self.run(f"INSERT INTO {self.row} ({names}) SELECT {values}")
        else:
            self.run(f"INSERT INTO {self.row} SELECT * FROM {self.source} WHERE {where} LIMIT 1")
        return bool(self.run(f"SELECT 1 FROM {self.row}"))

    def _stored_twice(self) -> bool:
        columns = [column for column in self.table.columns if column.made is not Made.COMPUTED]
        names = self.sql.names(column.name for column in columns)
        self.run(f"INSERT INTO {self.copy} ({names}) SELECT {names} FROM {self.row}")
        again = ", ".join(self._again(column) for column in columns)
        try:
            self.run(f"INSERT INTO {self.copy} ({names}) SELECT {again} FROM {self.row}")
        except Refused:
            return False
        return True

    def _again(self, column: Column) -> str:
        """The column's value in a retry."""
        name = self.sql.name(column.name)
        if column.made is Made.COUNTED:
            return f"{name} + 1"
        if column.made is Made.RANDOM:
            return self._random(column)
        if column.made is Made.CLOCK or (column.kind is Kind.TIME and column.name in self.table.partitioned_by):
            return self._later(name, column)
        return name

    def _random(self, column: Column) -> str:
        """The default itself: it makes another value. A default that is not an expression here is kept as it is."""
        return f"({column.default})" if column.default else self.sql.name(column.name)

    def _later(self, name: str, column: Column) -> str:
        """A day later: the retry may come after midnight, in the next partition."""
        match self.engine:
            case Engine.POSTGRES:
                return f"({name} + interval '1 day')::{column.type}"
            case Engine.MYSQL:
                return f"{name} + INTERVAL 1 DAY"
            case Engine.SQLITE:
                return f"datetime({name}, '+1 day')"

    def _made_up(self, column: Column) -> str:
        if column.made is Made.COMPUTED:
            return "NULL"
        if column.made is Made.NO and column.nullable:
            return "NULL" if any(column.name in key.columns for key in self.table.keys) else self._value(column)
        return self._value(column)

    def _value(self, column: Column) -> str:
        """Some value of the column's type."""
        texts = {
            Kind.TIME: "'2026-01-01 00:00:00'", Kind.UUID: "'00000000-0000-0000-0000-000000000001'",
            Kind.DOCUMENT: "'{}'", Kind.TEXT: "'1'",
        }  # fmt: skip
        value = texts.get(column.kind, "1" if column.kind is not Kind.BYTES else "'1'")
        if self.engine is not Engine.POSTGRES:
            return value
        return f"NULL::{column.type}" if column.kind is Kind.OTHER and column.nullable else f"{value}::{column.type}"
