"""Call sites joined with the catalog and the rows: which key is missing, since when rows are doubled, and a pair."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.detect import names
from samekey.detect.call_sites import Site, read
from samekey.detect.catalog import Catalog, Kind, Table
from samekey.detect.dialect import Dialect
from samekey.detect.findings import Finding, Severity
from samekey.detect.pairs import PairSql, Span
from samekey.detect.rule_file import Rule
from samekey.detect.rules._fixes import unique_index
from samekey.detect.tally import Tally
from samekey.drivers.reading import NotPermitted, Reading, StatementStopped

SECONDS = 60.0  # for the pairs of one call site


@dataclass(frozen=True, slots=True)
class Located:
    """A finding in the code: where, and what the rows show about it."""

    finding: Finding
    file: Path
    line: int
    function: str
    duplicates: int | None = None  # None: not counted
    since: float | None = None
    until: float | None = None
    pair: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None  # row ids of the first one


def located(folder: Path, catalog: Catalog, reading: Reading | None) -> tuple[list[Located], list[str]]:
    """Every call site that a unique key does not cover; with `reading` the rows are looked at too."""
    if not folder.exists():
        raise Misconfigured(f"there is no folder {folder}")
    sites, problems = read(folder)
    found = []
    for site in sites:
        table = table_of(catalog, site.model)
        columns = tuple(dict.fromkeys(filter(None, (_column(table, name) for name in site.columns)))) if table else ()
        if site.rule in ("SK401", "SK402") and table and _covered(table, columns):
            continue
        one = Located(_finding(catalog, site, table, columns), site.file, site.line, site.function)
        if reading is not None and table is not None and columns and site.rule in ("SK401", "SK402"):
            try:
                one = _counted(one, catalog, reading, table, columns)
            except (StatementStopped, NotPermitted) as stopped:
                problems.append(f"{site.file}:{site.line}: {table.full_name} was not counted: {stopped.message}")
        found.append(one)
    found.sort(key=lambda one: (not one.duplicates, -one.finding.severity, str(one.file), one.line))
    return found, problems


def table_of(catalog: Catalog, model: str) -> Table | None:
    """The table of a model class or the table of that name, if there is exactly one candidate."""
    if not model:
        return None
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", model).lower()
    wanted = {model.lower(), snake, snake.replace("_", ""), f"{snake}s", f"{snake}es", re.sub("y$", "ies", snake)}
    tables = list(catalog.whole_tables())
    exact = [table for table in tables if table.name.lower() in wanted]
    # Django names a table app_model.
    prefixed = [table for table in tables if table.name.lower().endswith((f"_{model.lower()}", f"_{snake}"))]
    return (exact or prefixed)[0] if len(exact or prefixed) == 1 else None


def _column(table: Table | None, name: str) -> str:
    """The column of a field: a foreign key `order` is the column order_id."""
    there = {column.name for column in table.columns} if table else set()
    return next((one for one in (name, f"{name}_id") if one in there), "")


def _covered(table: Table, columns: tuple[str, ...]) -> bool:
    """Whether a unique key refuses the second row."""
    return any(
        key.columns and not key.expressions and set(key.columns) <= set(columns)
        and not any(table.column(name).nullable and key.nulls_distinct for name in key.columns if not key.primary)
        for key in table.enforced
    )  # fmt: skip


def _finding(catalog: Catalog, site: Site, table: Table | None, columns: tuple[str, ...]) -> Finding:
    sql = Dialect(catalog)
    fix: tuple[str, ...] = ()
    if site.rule in ("SK401", "SK402") and table and columns:
        fix = unique_index(sql, table, columns)
    elif site.rule == "SK406":
        fix = ("-- samekey.detect.prevent.insert_or_get returns the row, and whether it was inserted.",)
    elif site.rule in ("SK403", "SK404"):
        fix = ("-- Make the key before the loop, store it with the order, and send it with every attempt.",)
    elif site.rule == "SK405":
        fix = ("-- @guard.once(name=..., key=...), or one of samekey.messages.",)
    severity = Severity.MEDIUM if site.rule in ("SK405", "SK406") else Severity.HIGH
    at, unique = table.full_name if table else "", columns if site.rule in ("SK401", "SK402") else ()
    place = f"{site.file}:{site.line}"
    return Finding(site.rule, severity, place, site.why, fix, at, unique_on=unique, file=str(site.file), line=site.line)


def _counted(one: Located, catalog: Catalog, reading: Reading, table: Table, columns: tuple[str, ...]) -> Located:
    if not table.identity:
        return one
    at = names.time_of(table)
    time = at.name if at is not None and at.kind is Kind.TIME and at.type.lower() != "date" else ""
    rule = Rule("code", table.full_name, columns, time=time, row_id=table.identity)
    if set(rule.row_id) & set(columns):
        return one
    sql, tally = PairSql(catalog, table, rule.bound(column.name for column in table.columns)), Tally(rule)
    first = None
    for row in reading.each(sql.pairs(Span()), seconds=SECONDS, whole_table=True):
        pair = sql.read(row)
        if first is None or (pair.at or 0.0) < (first.at or 0.0):
            first = pair
        tally.add(pair)
    return replace(
        one, duplicates=tally.duplicates, since=tally.first, until=tally.last,
        pair=(first.earlier, first.row) if first else None,
    )  # fmt: skip
