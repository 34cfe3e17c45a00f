"""The rule file: what counts as a duplicate row. One description for `scan`, `watch` and `export-job`.

A rule names a table and how two of its rows are the same: equal key columns, or equal content. Nothing here reads a
database: `Rule.bound` takes the columns that a table has and checks the rule against them.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.detect.canonical import canonical
from samekey.detect.findings import Severity

RULES_MAX = 200  # in one file
COLUMNS_MAX = 32  # in one list; PostgreSQL's own limit for an index
SOURCES_MAX = 8
FILE_MAX_BYTES = 1_000_000
WINDOW_MAX_SECONDS = 366 * 86_400.0
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)")
UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
FIELDS = frozenset(
    {
        "name", "table", "key", "content", "canonical", "ignore", "nulls", "window", "time", "row_id", "source",
        "request_id", "alert_above", "severity",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """Two rows of `table` are the same when their key columns are equal, at most `window_seconds` apart."""

    name: str
    table: str  # as the rule spells it: with or without a schema
    key: tuple[str, ...] = ()  # empty: the content, which is every column that no other field names
    canonical: frozenset[str] = frozenset()  # columns whose text is compared in its canonical form
    ignore: tuple[str, ...] = ()  # with content: columns that are not part of it
    nulls_equal: bool = False  # False: a row with NULL in a key column has no key, and is no duplicate
    window_seconds: float | None = None  # None: any distance
    time: str = ""  # the column with the time at which a row was stored
    row_id: tuple[str, ...] = ("id",)  # what identifies a row
    source: tuple[str, ...] = ()  # what sent the row: API key, region, client version
    request_id: str = ""  # the column with the key or id of the request, for the requests' stories
    alert_above: float | None = None  # duplicates per row from which the rate itself is an alert
    severity: Severity = Severity.HIGH

    @property
    def by_content(self) -> bool:
        return not self.key

    def bound(self, columns: Iterable[str]) -> Bound:
        """The rule for a table with these columns; refused when the table lacks one that the rule names."""
        there = tuple(columns)
        named = [*self.key, *self.canonical, *self.ignore, *self.row_id, *self.source, self.time, self.request_id]
        missing = sorted({name for name in named if name and name not in there})
        if missing:
            raise Misconfigured(
                f"rule {self.name}: {self.table} has no column {', '.join(missing)}; it has {', '.join(there)}"
            )
        apart = {*self.row_id, *self.ignore, *self.source, self.time, self.request_id}
        key = self.key or tuple(name for name in there if name not in apart)
        if not key:
            raise Misconfigured(f"rule {self.name}: no column of {self.table} is left for the content")
        outside = sorted(self.canonical.difference(key))
        if outside:
            raise Misconfigured(f"rule {self.name}: canonical names {', '.join(outside)}, which is not compared")
        return Bound(self, key)


@dataclass(frozen=True, slots=True)
class Bound:
    """A rule with the columns that it compares in one table."""

    rule: Rule
    key: tuple[str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that a detector must see, each once: row id, key, time, source, request id."""
        rule = self.rule
        named = (*rule.row_id, *self.key, rule.time, *rule.source, rule.request_id)
        return tuple(dict.fromkeys(name for name in named if name))

    def key_of(self, row: Mapping[str, Any]) -> tuple[Any, ...] | None:
        """The values that two duplicates have in common; None for a row that has no key."""
        values = tuple(canonical(row[name]) if name in self.rule.canonical else row[name] for name in self.key)
        return None if None in values and not self.rule.nulls_equal else values


def load(path: Path) -> tuple[Rule, ...]:
    """The rules of a file, checked. A wrong rule is refused: it would find nothing, or too much."""
    try:
        raw = path.read_bytes()
        if len(raw) > FILE_MAX_BYTES:
            raise Misconfigured(f"the rule file {path} is larger than {FILE_MAX_BYTES} bytes")
        document = tomllib.loads(raw.decode("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise Misconfigured(f"the rule file {path} cannot be read: {error}") from error
    return parse(document, str(path))


def parse(document: Mapping[str, Any], where: str) -> tuple[Rule, ...]:
    """The rules of a document that TOML or JSON gave; `where` names it in errors."""
    entries = document.get("rule")
    if set(document) != {"rule"} or not isinstance(entries, list) or not entries:
        raise Misconfigured(f"{where} has [[rule]] entries, at least one, and nothing else")
    if len(entries) > RULES_MAX:
        raise Misconfigured(f"{where} has {len(entries)} rules; at most {RULES_MAX} are read")
    rules = tuple(_rule(entry, f"{where}, rule {number}") for number, entry in enumerate(entries, 1))
    names = [rule.name for rule in rules]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Misconfigured(f"{where}: two rules have the name {', '.join(twice)}")
    return rules


def span_seconds(value: Any, where: str) -> float:
    """Seconds of a time such as 90s, 5m, 24h or 7d."""
    found = SPAN.fullmatch(value) if isinstance(value, str) else None
    seconds = float(found[1]) * UNITS[found[2]] if found else 0.0
    if not 0 < seconds <= WINDOW_MAX_SECONDS:
        raise Misconfigured(f"{where} is a time up to 366 days, such as 90s, 5m, 24h or 7d")
    return seconds


def _rule(entry: Any, where: str) -> Rule:
    if not isinstance(entry, dict):
        raise Misconfigured(f"{where}: a rule is a table of fields")
    unknown = sorted(set(entry) - FIELDS)
    if unknown:
        raise Misconfigured(f"{where}: there is no field {', '.join(unknown)}; there are {', '.join(sorted(FIELDS))}")
    name, table = entry.get("name"), entry.get("table")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise Misconfigured(f"{where}: name is 1 to 64 lower-case letters, digits, '-', '_' and '.'")
    where = f"{where} ({name})"
    if not isinstance(table, str) or not table.strip() or "\0" in table:
        raise Misconfigured(f"{where}: table is the name of a table, such as public.orders")
    key, by_content = _columns(entry, "key", where), entry.get("content", False)
    if type(by_content) is not bool or by_content == bool(key):
        raise Misconfigured(f'{where}: give either key = ["column", ...] or content = true')
    window = span_seconds(entry["window"], f"{where}: window") if "window" in entry else None
    rule = Rule(
        name,
        table,
        key,
        canonical=frozenset(_columns(entry, "canonical", where)),
        ignore=_columns(entry, "ignore", where),
        nulls_equal=_nulls(entry, by_content, where),
        window_seconds=window,
        time=_column(entry, "time", where),
        row_id=_columns(entry, "row_id", where) or ("id",),
        source=_columns(entry, "source", where, most=SOURCES_MAX),
        request_id=_column(entry, "request_id", where),
        alert_above=_share(entry, where),
        severity=_severity(entry, where),
    )
    _check(rule, where)
    return rule


def _check(rule: Rule, where: str) -> None:
    """Fields that contradict each other."""
    if rule.window_seconds is not None and not rule.time:
        raise Misconfigured(f"{where}: a window needs time, the column with the time at which a row was stored")
    if rule.key and rule.ignore:
        raise Misconfigured(f"{where}: ignore goes with content = true; key names what is compared")
    outside = sorted(rule.canonical.difference(rule.key)) if rule.key else []
    if outside:
        raise Misconfigured(f"{where}: canonical names {', '.join(outside)}, which is not in key")
    changing = sorted({*rule.row_id, rule.time}.intersection(rule.key))
    if changing:
        raise Misconfigured(f"{where}: key has {', '.join(changing)}, which differs between two duplicates")
    apart = {*rule.ignore, *rule.row_id, *rule.source, rule.time, rule.request_id}
    if not rule.key and rule.canonical & apart:
        raise Misconfigured(f"{where}: canonical names a column that is not part of the content")


def _columns(entry: Mapping[str, Any], field: str, where: str, *, most: int = COLUMNS_MAX) -> tuple[str, ...]:
    """A list of different names; one name may stand without the list."""
    given = entry.get(field, [])
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(one, str) and one and "\0" not in one for one in names):
        raise Misconfigured(f'{where}: {field} is a list of column names, such as ["id"]')
    if field in entry and not names:
        raise Misconfigured(f"{where}: {field} is empty; leave it out")
    if len(names) > most or len(set(names)) != len(names):
        raise Misconfigured(f"{where}: {field} has at most {most} columns, each once")
    return tuple(names)


def _column(entry: Mapping[str, Any], field: str, where: str) -> str:
    given = entry.get(field, "")
    if not isinstance(given, str) or (field in entry and not given) or "\0" in given:
        raise Misconfigured(f"{where}: {field} is the name of a column")
    return given


def _nulls(entry: Mapping[str, Any], by_content: bool, where: str) -> bool:
    given = entry.get("nulls", "equal" if by_content else "skip")
    if given not in ("equal", "skip"):
        raise Misconfigured(f"{where}: nulls is 'skip' (a row with NULL has no key) or 'equal'")
    return bool(given == "equal")


def _share(entry: Mapping[str, Any], where: str) -> float | None:
    given = entry.get("alert_above")
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not math.isfinite(given) or not 0 <= given < 1:
        raise Misconfigured(f"{where}: alert_above is a share of the rows from 0 up to 1, such as 0.001")
    return float(given)


def _severity(entry: Mapping[str, Any], where: str) -> Severity:
    given = entry.get("severity", "high")
    labels = {one.label: one for one in Severity}
    if not isinstance(given, str) or given not in labels:
        raise Misconfigured(f"{where}: severity is one of {', '.join(labels)}")
    return labels[given]
