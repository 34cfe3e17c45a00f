"""SQL that finds every row with an earlier row of the same key, and what one such pair is.

One window function does it: within the rows of a key, in the order of their times, each row is compared with the row
before it. A GROUP BY with the first and the last time would miss a duplicate whose key also has an old, legitimate row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.detect.catalog import Catalog, Engine, Kind, Table
from samekey.detect.dialect import Dialect
from samekey.detect.rule_file import Bound, Rule
from samekey.drivers.reading import Row


@dataclass(frozen=True, slots=True)
class Pair:
    """Two rows that are one by the rule; the second one is too many."""

    row: tuple[Any, ...]  # the values of row_id
    earlier: tuple[Any, ...]
    at: float | None  # seconds since 1970, of the second row; None: the rule has no time, or the row has none
    gap_seconds: float | None
    key: tuple[Any, ...]
    source: tuple[Any, ...] = ()
    earlier_source: tuple[Any, ...] = ()
    request: Any = None
    earlier_request: Any = None


@dataclass(frozen=True, slots=True)
class Span:
    """Second rows stored from `since` on and before `until`, in seconds since 1970; None is no limit."""

    since: float | None = None
    until: float | None = None

    @property
    def whole(self) -> bool:
        return self.since is None and self.until is None


def find_table(catalog: Catalog, rule: Rule) -> Table:
    """The table that a rule names, with or without its schema."""
    found = [table for table in catalog.whole_tables() if rule.table in (table.full_name, table.name)]
    exact = [table for table in found if table.full_name == rule.table]
    if len(exact or found) != 1:
        problem = "is in several schemas: write schema.table" if found else "was not found, or the role may not see it"
        raise Misconfigured(f"rule {rule.name}: the table {rule.table} {problem}")
    return (exact or found)[0]


class PairSql:
    """The statements of one rule on one table."""

    def __init__(self, catalog: Catalog, table: Table, bound: Bound) -> None:
        self.sql, self.table, self.bound, self.rule = Dialect(catalog), table, bound, bound.rule
        if self.rule.time and catalog.engine is not Engine.SQLITE:
            time = table.column(self.rule.time)
            if time.kind is not Kind.TIME:
                raise Misconfigured(f"rule {self.rule.name}: {time.name} is {time.type}; time must be a time")

    @property
    def keys(self) -> list[str]:
        """What two duplicates have in common, as SQL."""
        return [
            self.sql.canonical(name) if name in self.rule.canonical else self.sql.exactly(self.table.column(name))
            for name in self.bound.key
        ]

    def pairs(self, span: Span) -> str:
        """Every pair of the span; the columns are in the order that `read` takes them."""
        rule, name = self.rule, self.sql.name
        own = [name(one) for one in (*rule.row_id, *rule.source, *([rule.request_id] if rule.request_id else ()))]
        time, keys = self.at if rule.time else "NULL", self.keys
        order = ", ".join([*([time] if rule.time else ()), *map(name, rule.row_id)])
        over = f"OVER (PARTITION BY {', '.join(keys)} ORDER BY {order})"
        inner = [
            *(f"{column} AS r{number}" for number, column in enumerate(own)),
            *(f"lag({column}) {over} AS e{number}" for number, column in enumerate(own)),
            *([f"{time} AS t", f"lag({time}) {over} AS s"] if rule.time else ["NULL AS t", "NULL AS s"]),
            *(f"{key} AS k{number}" for number, key in enumerate(keys)),
        ]
        outer = [
            *(f"r{number}" for number in range(len(own))),
            *(f"e{number}" for number in range(len(own))),
            self._seconds("t") if rule.time else "NULL",
            self._distance() if rule.time else "NULL",
            *(f"k{number}" for number in range(len(keys))),
        ]
        near = ["e0 IS NOT NULL", *self._near(), *self._limits("t", span.since, span.until)]
        source = self.source(whole=span.whole)
        return (
            f"SELECT {', '.join(outer)} FROM (SELECT {', '.join(inner)} FROM {source}{self._where(span)}) x "
            f"WHERE {' AND '.join(near)}"
        )

    def read(self, row: Row) -> Pair:
        ids, sources = len(self.rule.row_id), len(self.rule.source)
        width = ids + sources + bool(self.rule.request_id)
        own, earlier, (at, gap), key = (
            row[:width],
            row[width : 2 * width],
            row[2 * width : 2 * width + 2],
            row[2 * width + 2 :],
        )
        return Pair(
            tuple(own[:ids]),
            tuple(earlier[:ids]),
            None if at is None else float(at),
            None if gap is None else float(gap),
            tuple(key),
            tuple(own[ids : ids + sources]),
            tuple(earlier[ids : ids + sources]),
            own[-1] if self.rule.request_id else None,
            earlier[-1] if self.rule.request_id else None,
        )

    def count(self, span: Span) -> str:
        """How many rows the span has, for each source: what a rate is a share of."""
        columns = ", ".join(map(self.sql.name, self.rule.source))
        limits = [*self._keyed(), *(self._limits(self.at, span.since, span.until) if self.rule.time else ())]
        where = f" WHERE {' AND '.join(limits)}" if limits else ""
        grouped = f" GROUP BY {columns}" if columns else ""
        return (
            f"SELECT count(*){', ' + columns if columns else ''} FROM {self.source(whole=span.whole)}{where}{grouped}"
        )

    # -- for the thin extract ------------------------------------------------------------------------------------------

    @property
    def extras(self) -> int:
        """Columns of a row beside its id and key: the sources, and the request id."""
        return len(self.rule.source) + bool(self.rule.request_id)

    def thin(self, span: Span, seed: int) -> str:
        """Row id, keyed hash, microseconds since 1970, of every row that can be in a pair."""
        time = self.sql.microseconds(self.at) if self.rule.time else "NULL"
        columns = [*map(self.sql.name, self.rule.row_id), self.sql.keyed_hash(self.keys, seed), time]
        return f"SELECT {', '.join(columns)} FROM {self.source(whole=span.whole)}{self._where(span)}"

    def lookup(self, ids: list[tuple[str, ...]]) -> str:
        """These rows: the texts of their ids, sources, request id, key."""
        rule, name = self.rule, self.sql.name
        columns = [
            *(self.sql.as_text(name(one)) for one in rule.row_id),
            *map(name, (*rule.source, *([rule.request_id] if rule.request_id else ()))),
            *self.keys,
        ]
        kinds = [self.table.column(one) for one in rule.row_id]
        rows = [[self.sql.literal(value, column) for value, column in zip(one, kinds, strict=True)] for one in ids]
        if len(kinds) == 1:
            where = f"{name(rule.row_id[0])} IN ({', '.join(row[0] for row in rows)})"
        else:
            listed = ", ".join(f"({', '.join(row)})" for row in rows)
            values = f"(VALUES {listed})" if self.sql.engine is Engine.SQLITE else f"({listed})"
            where = f"({self.sql.names(rule.row_id)}) IN {values}"
        return f"SELECT {', '.join(columns)} FROM {self.sql.table(self.table)} WHERE {where}"

    def first_time(self) -> str:
        return f"SELECT {self._seconds(f'min({self.at})')} FROM {self.sql.table(self.table)}"

    def timeless(self) -> str:
        """A row without a time: it belongs to no span."""
        return f"SELECT 1 FROM {self.sql.table(self.table)} WHERE {self.at} IS NULL LIMIT 1"

    def source(self, *, whole: bool) -> str:
        return self.sql.source(self.table) if whole else self.sql.table(self.table)

    # -- parts ---------------------------------------------------------------------------------------------------------

    @property
    def at(self) -> str:
        """The time of a row as the server compares it; on SQLite, where a time has no type, as seconds since 1970."""
        column = self.sql.name(self.rule.time)
        if self.sql.engine is not Engine.SQLITE:
            return column
        return (
            f"CASE WHEN typeof({column}) IN ('integer', 'real') THEN {column} "
            f"ELSE round((julianday({column}) - 2440587.5) * 86400.0, 3) END"
        )

    def _seconds(self, time: str) -> str:
        match self.sql.engine:
            case Engine.POSTGRES:
                return f"extract(epoch FROM {time})::float8"
            case Engine.MYSQL:
                return f"CAST(UNIX_TIMESTAMP({time}) AS DOUBLE)"
            case Engine.SQLITE:
                return time

    def _distance(self) -> str:
        match self.sql.engine:
            case Engine.POSTGRES:
                return "extract(epoch FROM t - s)::float8" if self._has_clock else "(t - s) * 86400.0"
            case Engine.MYSQL:
                return "TIMESTAMPDIFF(MICROSECOND, s, t) / 1e6"
            case Engine.SQLITE:
                return "t - s"

    def _near(self) -> list[str]:
        """At most the window apart. A time that is not known counts as near: a duplicate is not left out for it."""
        window = self.rule.window_seconds
        if window is None:
            return []
        match self.sql.engine:
            case Engine.POSTGRES if self._has_clock:
                near = f"t - s <= interval '{window} seconds'"
            case Engine.POSTGRES:
                near = f"(t - s) * 86400.0 <= {window}"
            case Engine.MYSQL:
                near = f"TIMESTAMPDIFF(MICROSECOND, s, t) <= {window * 1e6:.0f}"
            case Engine.SQLITE:
                near = f"t - s <= {window}"
        return [f"coalesce({near}, true)"]

    @property
    def _has_clock(self) -> bool:
        return self.table.column(self.rule.time).type.lower() != "date"

    def _where(self, span: Span) -> str:
        """Rows that can be in a pair of the span: the first row of a pair may be a window older."""
        since = None if span.since is None else span.since - (self.rule.window_seconds or 0.0)
        limits = [*self._keyed(), *(self._limits(self.at, since, span.until) if self.rule.time else ())]
        return f" WHERE {' AND '.join(limits)}" if limits else ""

    def _keyed(self) -> Iterator[str]:
        if not self.rule.nulls_equal:
            yield self.sql.all_set(self.bound.key)

    def _limits(self, time: str, since: float | None, until: float | None) -> Iterator[str]:
        for limit, sign in ((since, ">="), (until, "<")):
            if limit is not None:
                yield f"{time} {sign} {self._moment(limit)}"

    def _moment(self, seconds: float) -> str:
        match self.sql.engine:
            case Engine.POSTGRES:
                zoned = "with time zone" in self.table.column(self.rule.time).type
                return f"to_timestamp({seconds:.6f})" + ("" if zoned else "::timestamp")
            case Engine.MYSQL:
                return f"FROM_UNIXTIME({seconds:.6f})"
            case Engine.SQLITE:
                return f"{seconds:.6f}"
