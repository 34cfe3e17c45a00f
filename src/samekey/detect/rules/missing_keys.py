"""Tables that store a retry as a new row: no key at all, a business key without a constraint, an id alone."""

from __future__ import annotations

import re
from collections.abc import Iterator

from samekey.detect import names
from samekey.detect.catalog import Catalog, Column, Kind, Made, Table
from samekey.detect.dialect import Dialect
from samekey.detect.findings import EVERYWHERE, Check, Finding, Rule, Severity
from samekey.detect.rules import _fixes as fixes

WHOLE_ROW_MICROSECONDS = 3.2
_ID = re.compile(r"(^|_)(id|uuid|guid)$", re.I)


def no_key(catalog: Catalog) -> Iterator[Finding]:
    """SK101."""
    sql = Dialect(catalog)
    for table in catalog.whole_tables():
        if (
            not table.columns
            or table.keys
            or any(_keyed(catalog, part) for part in catalog.parts.get(table.full_name, ()))
        ):
            continue
        yield Finding(
            "SK101",
            Severity.HIGH,
            table.full_name,
            "the table has no unique key: a retried insert is a new row, and no column marks it as a repetition",
            fixes.add_id(sql, table),
            table.full_name,
            Check(
                table.full_name,
                tuple(sql.exactly(column) for column in table.columns),
                microseconds=WHOLE_ROW_MICROSECONDS,
            ),
        )


def _keyed(catalog: Catalog, part: str) -> bool:
    table = catalog.table(part)
    return bool(table and table.keys)


def business_key(catalog: Catalog) -> Iterator[Finding]:
    """SK107."""
    sql = Dialect(catalog)
    known = _known_keys(catalog)
    for table in catalog.whole_tables():
        for column in business_columns(table):
            tenant = names.tenant_of(table)
            columns = (tenant, column.name) if tenant and tenant != column.name else (column.name,)
            elsewhere = known.get(column.name.lower(), "")
            if elsewhere.startswith(f"{table.full_name}."):
                elsewhere = ""
            strong = bool(names.STRONG.search(column.name))
            yield Finding(
                "SK107",
                Severity.LOW if elsewhere else Severity.HIGH if strong else Severity.MEDIUM,
                f"{table.full_name}.{column.name}",
                f"{column.name} looks like the key of a request, and no constraint keeps two rows from having one value"
                + (f"; {elsewhere} has such a key, so this may be a reference to it" if elsewhere else ""),
                fixes.unique_index(sql, table, columns),
                table.full_name,
                # A reference repeats by nature: its repetitions are no evidence.
                None
                if elsewhere
                else Check(table.full_name, tuple(map(sql.name, columns)), f"{sql.name(column.name)} IS NOT NULL"),
                unique_on=() if elsewhere else columns,
            )


def business_columns(table: Table) -> list[Column]:
    """Columns with the name of a business key that are in no unique key of any kind."""
    if not table.keys:
        return []  # SK101
    covered = {name for key in table.keys for name in key.columns}
    spelled = " ".join(part for key in table.keys for part in key.expressions)
    return [
        column
        for column in table.columns
        if column.name not in covered
        and column.name not in table.foreign
        and column.made is Made.NO
        and column.kind in (Kind.TEXT, Kind.UUID, Kind.INTEGER, Kind.BYTES, Kind.OTHER)
        and not re.search(rf"\b{re.escape(column.name)}\b", spelled)
        and (names.STRONG.search(column.name) or (names.MEDIUM.search(column.name) and column.kind is not Kind.INTEGER))
    ]


def _known_keys(catalog: Catalog) -> dict[str, str]:
    """Names of columns that seem to refer to a key of one column, and that key: `event_id` to `events.id`."""
    known: dict[str, str] = {}
    for table in catalog.whole_tables():
        for key in table.enforced:
            if len(key.columns) != 1 or key.expressions:
                continue
            name, stem = key.columns[0], table.name.lower()
            if name != "id":
                known.setdefault(name.lower(), f"{table.full_name}.{name}")
            else:
                for one in {stem, stem.removesuffix("s"), stem.removesuffix("es")}:
                    known.setdefault(f"{one}_id", f"{table.full_name}.id")
    return known


def surrogate_only(catalog: Catalog) -> Iterator[Finding]:
    """SK108."""
    sql = Dialect(catalog)
    for table in catalog.whole_tables():
        made = [all(table.column(name).made is not Made.NO for name in key.columns) for key in table.keys]
        if not table.keys or not all(made) or any(key.expressions for key in table.keys) or business_columns(table):
            continue
        content = table.content
        if not content or all(column.name in table.foreign for column in content):
            continue
        at = names.time_of(table)
        known_type = at is not None and at.type.lower() != "date"
        yield Finding(
            "SK108",
            Severity.LOW,
            table.full_name,
            "only a value that the database makes is unique: the same content can be stored any number of times",
            fixes.content_hash(sql, table),
            table.full_name,
            Check(
                table.full_name,
                tuple(sql.exactly(column) for column in content if at is None or column.name != at.name),
                within_a_day=sql.name(at.name) if at is not None and known_type else "",
                microseconds=WHOLE_ROW_MICROSECONDS,
            )
            if any(at is None or column.name != at.name for column in content)
            else None,
        )


def two_contents(catalog: Catalog) -> Iterator[Finding]:
    """SK127."""
    sql = Dialect(catalog)
    known = _known_keys(catalog)
    for table in catalog.whole_tables():
        candidates = business_columns(table) if table.keys else [one for one in table.content if _ID.search(one.name)]
        for column in candidates:
            tenant = names.tenant_of(table)
            keys = (tenant, column.name) if tenant and tenant != column.name else (column.name,)
            others = [one for one in table.content if one.name not in keys and one.kind is not Kind.TIME]
            if (
                not _ID.search(column.name)
                or column.name in table.foreign
                or column.name.lower() in known
                or not others
            ):
                continue
            yield Finding(
                "SK127",
                Severity.HIGH,
                f"{table.full_name}.{column.name}",
                f"rows with one {column.name} have different contents: the id was reused, or two clients made the same",
                fixes.unique_index(sql, table, keys),
                table.full_name,
                Check(
                    table.full_name,
                    tuple(map(sql.name, keys)),
                    f"{sql.name(column.name)} IS NOT NULL",
                    contents=tuple(sql.exactly(one) for one in others),
                    microseconds=WHOLE_ROW_MICROSECONDS,
                ),
                only_confirmed=True,
            )


RULES = (
    Rule("SK101", "no unique key at all", "high / high", EVERYWHERE, no_key),
    Rule("SK107", "business key column without a constraint", "high, medium or low / high", EVERYWHERE, business_key),
    Rule("SK127", "one id, two different contents", "- / high", EVERYWHERE, two_contents),
    Rule("SK108", "only a generated id is unique", "low / high", EVERYWHERE, surrogate_only),
)
