"""The model that every rule reads: what a database declares about its tables. Facts only, the same for every server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property


class Engine(StrEnum):
    POSTGRES = "postgresql"
    MYSQL = "mysql"
    SQLITE = "sqlite"


class Kind(StrEnum):
    """What a column holds, as far as rules ask."""

    TEXT = "text"
    INTEGER = "integer"
    FLOAT = "float"
    EXACT = "exact"  # numeric, decimal
    TIME = "time"
    UUID = "uuid"
    BYTES = "bytes"
    DOCUMENT = "document"  # json, xml
    OTHER = "other"


class Made(StrEnum):
    """How the database fills a column by itself."""

    NO = ""
    COUNTED = "counted"  # identity, serial, AUTO_INCREMENT, rowid
    RANDOM = "random"
    CLOCK = "clock"
    COMPUTED = "computed"  # from the other columns of the row


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    type: str  # as the server spells it
    kind: Kind
    nullable: bool = True
    made: Made = Made.NO
    default: str = ""
    length: int | None = None  # characters, at most
    collation: str = ""
    folds_case: bool = False  # the column's comparison treats 'A' and 'a' as equal
    collation_changed: bool = False  # the library sorts otherwise than when the index was built


@dataclass(frozen=True, slots=True)
class Key:
    """A unique index, or the unique index of a constraint."""

    name: str
    columns: tuple[str, ...]  # without expressions
    expressions: tuple[str, ...] = ()
    primary: bool = False
    constraint: bool = False
    predicate: str = ""
    nulls_distinct: bool = True
    valid: bool = True
    deferrable: bool = False
    deferred: bool = False
    prefixes: tuple[tuple[str, int], ...] = ()  # MySQL: UNIQUE (a(5)) compares five characters
    inherited: bool = False  # attached to the key of a partitioned parent
    collations: tuple[tuple[str, str], ...] = ()  # SQLite: an index may have another collation than its column

    @property
    def partial(self) -> bool:
        """Whether some rows are outside. `WHERE c IS NOT NULL` leaves out what a unique index never compares."""
        own = re.fullmatch(r"\(*\s*[\"`]?(\w+)[\"`]?\s+IS NOT NULL\s*\)*", self.predicate, re.IGNORECASE)
        compared = own is not None and (own[1] in self.columns or own[1] in " ".join(self.expressions))
        return bool(self.predicate) and not compared

    @property
    def enforces(self) -> bool:
        """Whether it compares every row, at the moment of the insert."""
        return self.valid and not self.partial and not self.prefixes


@dataclass(frozen=True, slots=True)
class Reference:
    """A foreign key of the table that has it."""

    name: str
    columns: tuple[str, ...]
    table: str  # full name of the table that it refers to
    to: tuple[str, ...]  # columns there
    on_delete: str = "NO ACTION"


@dataclass(frozen=True, slots=True)
class Trigger:
    name: str
    before_insert: bool
    source: str
    on_replica: bool = False  # it fires for replicated rows too


@dataclass(frozen=True, slots=True)
class Sequence:
    name: str
    cycles: bool
    last: int | None  # None: not used yet, or not readable
    greatest: int
    table: str = ""
    column: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    schema: str
    name: str
    columns: tuple[Column, ...]
    keys: tuple[Key, ...] = ()
    references: tuple[Reference, ...] = ()
    indexed: frozenset[str] = frozenset()  # columns that some index begins with
    checks: tuple[str, ...] = ()
    triggers: tuple[Trigger, ...] = ()
    insert_rules: tuple[str, ...] = ()
    rows: float = 0.0  # estimated by the server; 0 where it has no estimate
    readable: bool = True
    logged: bool = True
    partition_of: str = ""
    partitioned_by: tuple[str, ...] = ()  # columns; empty for a table without partitions
    partition_expression: bool = False
    inherits: tuple[str, ...] = ()
    storage: str = ""  # MySQL's storage engine
    strict: bool = False  # SQLite
    without_rowid: bool = False
    subscriptions: tuple[str, ...] = ()
    published: tuple[tuple[str, frozenset[str]], ...] = ()  # publication -> its columns

    @property
    def full_name(self) -> str:
        return f"{self.schema}.{self.name}" if self.schema else self.name

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    @property
    def foreign(self) -> frozenset[str]:
        """Columns of foreign keys."""
        return frozenset(name for reference in self.references for name in reference.columns)

    @property
    def identity(self) -> tuple[str, ...]:
        """Columns that tell every row from every other: the primary key, or another key that has no NULL."""
        keys = sorted(self.enforced, key=lambda key: not key.primary)
        sound = (key for key in keys if key.columns and not key.expressions and not key.deferrable)
        fit = (key.columns for key in sound if not any(self.column(name).nullable for name in key.columns))
        return next(fit, ())

    @property
    def enforced(self) -> tuple[Key, ...]:
        return tuple(key for key in self.keys if key.enforces)

    @property
    def content(self) -> tuple[Column, ...]:
        """The columns that a client fills: a retry sends the same values again."""
        return tuple(column for column in self.columns if column.made is Made.NO)


@dataclass(frozen=True)
class Catalog:
    engine: Engine
    version: str
    tables: tuple[Table, ...]
    sequences: tuple[Sequence, ...] = ()
    unsafe: tuple[tuple[str, str, str], ...] = ()  # (setting, value, whom it concerns) that loses commits
    hidden: str = ""  # why tables may be missing from this catalog
    unicode: bool = True  # the server's texts are UTF-8
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)  # full name -> full names of its partitions

    @cached_property
    def _named(self) -> dict[str, Table]:
        return {table.full_name: table for table in self.tables}

    @cached_property
    def heirs(self) -> dict[str, tuple[str, ...]]:
        """Full name -> full names of its partitions, and of the tables that inherit from it."""
        below = {parent: list(parts) for parent, parts in self.parts.items()}
        for table in self.tables:
            for parent in table.inherits:
                below.setdefault(parent, []).append(table.full_name)
        return {parent: tuple(children) for parent, children in below.items()}

    def table(self, full_name: str) -> Table | None:
        return self._named.get(full_name)

    def whole_tables(self) -> Iterator[Table]:
        """Tables as a client sees them: a partition is a part of its parent."""
        return (table for table in self.tables if not table.partition_of)
