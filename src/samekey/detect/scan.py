"""One scan: for each rule every duplicate row, in the database itself or in DuckDB over a thin extract.

A scan reads the whole table, or a span of time. With a state file it continues where the last one ended: the end is the
horizon (see `horizon`), which is read before the rows. The file is written after the pairs of a span are on the disk,
together with the length that the output had then. A scan that was killed repeats its last span, and cuts the output
back first, so that no pair is in the output twice.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from samekey.core.errors import Misconfigured
from samekey.detect.audit import open_database, read_catalog
from samekey.detect.catalog import Catalog, Engine
from samekey.detect.horizon import horizon
from samekey.detect.pairs import Pair, PairSql, Span, find_table
from samekey.detect.rule_file import Rule
from samekey.detect.tally import Tally
from samekey.drivers.reading import NotPermitted, Reading, StatementStopped

STATE_VERSION = 1
SLICES_MAX = 10_000  # spans of one scan: more is a typing error in --slice
SECONDS_MAX = 6 * 3600.0  # for one statement, unless the user gives a time


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for."""

    url: str
    rules: tuple[Rule, ...]
    since_seconds: float | None = None  # only second rows of the last so many seconds
    slice_seconds: float | None = None  # work in spans of this length
    state: Path | None = None
    lateness_seconds: float = 0.0
    statement_seconds: float = SECONDS_MAX
    duckdb: bool = False


class Sink(Protocol):
    """Where pairs go."""

    def pair(self, rule: Rule, pair: Pair) -> None: ...

    def place(self) -> int:
        """How long the output is; everything before is on the disk."""
        ...

    def cut(self, place: int) -> None: ...


@dataclass
class Scanned:
    """One rule's result."""

    rule: Rule
    table: str
    tally: Tally
    spans: int = 0
    until: float | None = None  # the horizon, where there is one


@dataclass
class Scan:
    database: str
    engine: Engine
    results: list[Scanned] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)

    @property
    def duplicates(self) -> int:
        return sum(one.tally.duplicates for one in self.results)


Progress = Callable[[Rule, int, int], None]  # spans of the rule that are done, and all of them


def scan(wanted: Wanted, sink: Sink, progress: Progress = lambda rule, done, spans: None) -> Scan:
    """Every rule, one after another; what could not be read is named in `incomplete`."""
    engine, reading = open_database(wanted.url)
    try:
        catalog = read_catalog(engine, reading)
        state = State.load(wanted.state, reading.name) if wanted.state else None
        if state is not None:
            sink.cut(state.place)
        done = Scan(reading.name, engine)
        # All rules are checked before the first one runs: a typing error in the last must not cost an hour.
        prepared = [_prepared(catalog, rule, wanted) for rule in wanted.rules]
        for sql in prepared:
            one = Scanned(sql.rule, sql.table.full_name, Tally(sql.rule))
            done.results.append(one)
            try:
                _scan_rule(wanted, reading, catalog, sql, one, sink, state, progress)
            except (StatementStopped, NotPermitted) as stopped:
                done.incomplete.append(f"rule {sql.rule.name}: {stopped.message}")
            done.incomplete += _left_out(wanted, reading, sql)
        return done
    finally:
        reading.close()


def _prepared(catalog: Catalog, rule: Rule, wanted: Wanted) -> PairSql:
    table = find_table(catalog, rule)
    if not table.readable:
        raise Misconfigured(f"rule {rule.name}: the role may not read {table.full_name}")
    if (wanted.state or wanted.since_seconds or wanted.slice_seconds) and rule.window_seconds is None:
        raise Misconfigured(
            f"rule {rule.name} has no window, so each row is compared with every earlier one: a span of time cannot "
            "be scanned alone. Give the rule time and window, or leave --since, --slice and --state out"
        )
    return PairSql(catalog, table, rule.bound(column.name for column in table.columns))


def _scan_rule(
    wanted: Wanted,
    reading: Reading,
    catalog: Catalog,
    sql: PairSql,
    one: Scanned,
    sink: Sink,
    state: State | None,
    progress: Progress,
) -> None:
    spans = _spans(wanted, catalog.engine, reading, sql, state)
    one.until = spans[-1].until if spans else None
    for number, span in enumerate(spans):
        progress(one.rule, number, len(spans))
        if wanted.duckdb:
            try:
                from samekey.detect.duckdb_pairs import thin_pairs
            except ModuleNotFoundError as missing:
                raise Misconfigured(f"this needs {missing.name}: pip install 'samekey[cli,scan]'") from missing

            pairs = thin_pairs(reading, sql, span, wanted.statement_seconds)
        else:
            pairs = sql_pairs(reading, sql, span, wanted.statement_seconds)
        for rows, *source in reading.rows(sql.count(span), seconds=wanted.statement_seconds, whole_table=span.whole):
            one.tally.saw(int(rows), tuple(source))
        with closing(pairs):  # before the connection is
            for pair in pairs:
                one.tally.add(pair)
                sink.pair(one.rule, pair)
        one.spans += 1
        if state is not None and span.until is not None:
            state.reached(one.rule, span.until, sink.place())
    progress(one.rule, len(spans), len(spans))


def sql_pairs(reading: Reading, sql: PairSql, span: Span, seconds: float) -> Generator[Pair, None, None]:
    with closing(reading.each(sql.pairs(span), seconds=seconds, whole_table=span.whole)) as rows:
        for row in rows:
            yield sql.read(row)


def _spans(wanted: Wanted, engine: Engine, reading: Reading, sql: PairSql, state: State | None) -> list[Span]:
    """What is left to do, in order. The horizon comes first: rows are read after it."""
    if state is None and wanted.since_seconds is None and wanted.slice_seconds is None:
        return [Span()]
    if state is not None:
        until = horizon(engine, reading, sql.table, wanted.lateness_seconds)
    else:
        ((until,),) = reading.rows(_NOW[engine])
    since = state.since(sql.rule) if state is not None else None
    if since is None and wanted.since_seconds is not None:
        since = float(until) - wanted.since_seconds
    if wanted.slice_seconds is None:
        return [Span(since, until)] if since is None or since < until else []
    if since is None:
        ((first,),) = reading.rows(sql.first_time(), seconds=wanted.statement_seconds)
        since = float(until if first is None else first)
    return _sliced(since, float(until), wanted.slice_seconds)


_NOW = {
    Engine.POSTGRES: "SELECT extract(epoch FROM now())::float8 + 0.001",
    Engine.MYSQL: "SELECT CAST(UNIX_TIMESTAMP(NOW(6)) AS DOUBLE) + 0.001",
    Engine.SQLITE: "SELECT (julianday('now') - 2440587.5) * 86400.0 + 0.001",
}


def _sliced(since: float, until: float, length: float) -> list[Span]:
    if (until - since) / length > SLICES_MAX:
        raise Misconfigured(f"--slice makes more than {SLICES_MAX} spans: take a longer one")
    spans, at = [], since
    while at < until:
        spans.append(Span(at, min(at + length, until)))
        at += length
    return spans


def _left_out(wanted: Wanted, reading: Reading, sql: PairSql) -> list[str]:
    """Rows without a time belong to no span: only a scan of the whole table compares them."""
    spanned = wanted.state or wanted.since_seconds or wanted.slice_seconds
    if not spanned or not sql.table.column(sql.rule.time).nullable:
        return []
    try:
        found = reading.rows(sql.timeless(), seconds=wanted.statement_seconds)
    except (StatementStopped, NotPermitted) as stopped:
        return [f"rule {sql.rule.name}: {stopped.message}"]
    return [f"rule {sql.rule.name}: rows without {sql.rule.time} were not compared"] if found else []


@dataclass
class State:
    """How far each rule came. A rule that was changed begins again."""

    path: Path
    database: str
    place: int = 0  # length of the output
    reached_by: dict[str, tuple[str, float]] = field(default_factory=dict)  # rule -> (its definition, until)

    @classmethod
    def load(cls, path: Path, database: str) -> State:
        if not path.exists():
            return cls(path, database)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            if document["version"] != STATE_VERSION or document["database"] != database:
                raise Misconfigured(f"the state file {path} is of another version, or of {document['database']}")
            reached = {name: (str(made), float(until)) for name, (made, until) in document["rules"].items()}
            return cls(path, database, int(document["place"]), reached)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Misconfigured(f"the state file {path} cannot be read: {error}") from error

    def since(self, rule: Rule) -> float | None:
        made, until = self.reached_by.get(rule.name, ("", 0.0))
        return until if made == _definition(rule) else None

    def reached(self, rule: Rule, until: float, place: int) -> None:
        """Written beside the old file and moved over it: a reader sees the old state or the new one."""
        self.place, self.reached_by[rule.name] = place, (_definition(rule), until)
        document: dict[str, Any] = {
            "version": STATE_VERSION,
            "database": self.database,
            "place": place,
            "rules": {name: list(reached) for name, reached in sorted(self.reached_by.items())},
        }
        beside = self.path.with_name(self.path.name + ".new")
        with beside.open("w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)


def _definition(rule: Rule) -> str:
    """What decides which rows are duplicates: if it changes, the older rows count again."""
    parts = (rule.table, rule.key, sorted(rule.canonical), rule.ignore, rule.nulls_equal, rule.window_seconds,
             rule.time, rule.row_id, rule.source if rule.by_content else ())  # fmt: skip
    return sha256(repr(parts).encode()).hexdigest()[:16]
