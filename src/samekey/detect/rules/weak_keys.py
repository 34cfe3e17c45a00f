"""Unique keys that do not compare every pair of rows as their owner expects."""

from __future__ import annotations

from collections.abc import Iterator

from samekey.detect import names
from samekey.detect.catalog import Catalog, Engine, Key, Kind, Table
from samekey.detect.dialect import Dialect, text
from samekey.detect.findings import EVERYWHERE, POSTGRES, Check, Finding, Rule, Severity
from samekey.detect.rules import _fixes as fixes
from samekey.detect.rules.missing_keys import WHOLE_ROW_MICROSECONDS, business_columns

SENTINELS = (
    "", "null", "none", "nil", "n/a", "na", "nan", "undefined", "unknown", "-", "0",
    "00000000-0000-0000-0000-000000000000",
)  # fmt: skip


def keys_of(catalog: Catalog) -> Iterator[tuple[Table, Key]]:
    """Every unique key, once: that of a partition is a copy of its parent's."""
    for table in catalog.tables:
        for key in table.keys:
            if not key.inherited:
                yield table, key


def nullable(catalog: Catalog) -> Iterator[Finding]:
    """SK102."""
    sql = Dialect(catalog)
    for table, key in keys_of(catalog):
        empty = [name for name in key.columns if table.column(name).nullable]
        # A primary key admits NULL on SQLite only: SK301.
        if not empty or key.primary or not key.nulls_distinct or not key.valid or key.partial:
            continue
        if any(set(other.columns) <= set(key.columns) - set(empty) for other in table.enforced if other.columns):
            continue  # another key compares these rows
        several = len(key.columns) + len(key.expressions) > 1
        listed = ", ".join(empty)
        yield Finding(
            "SK102",
            Severity.HIGH if several else Severity.MEDIUM,
            f"{table.full_name}.{key.name}",
            f"{listed} may be NULL, and NULL is never equal to NULL: such rows are not compared",
            _nullable_fix(sql, table, key, empty),
            table.full_name,
            _nullable_check(sql, table, key, empty, several=several),
            unique_on=key.columns if several and not key.expressions else (),
            nulls_equal=True,
        )


def _nullable_check(sql: Dialect, table: Table, key: Key, empty: list[str], *, several: bool) -> Check | None:
    if several and not key.expressions:
        return Check(table.full_name, tuple(map(sql.name, key.columns)), sql.any_null(empty))
    content = [column for column in table.content if column.name not in key.columns]
    if key.expressions or not content:
        return None
    at = names.time_of(table)
    same = tuple(sql.exactly(column) for column in content if at is None or column.name != at.name)
    if not same:
        return None
    return Check(table.full_name, same, sql.any_null(empty), microseconds=WHOLE_ROW_MICROSECONDS)


def _nullable_fix(sql: Dialect, table: Table, key: Key, empty: list[str]) -> tuple[str, ...]:
    instead: tuple[str, ...] = ()
    if sql.engine is Engine.POSTGRES and not key.expressions:
        made = fixes.unique_index(sql, table, key.columns, more=" NULLS NOT DISTINCT", end="null_key")
        instead = ("-- Or, where NULL is a value of its own:", *made)
    return (*fixes.not_null(sql, table, empty), *instead)


def partial(catalog: Catalog) -> Iterator[Finding]:
    """SK103."""
    sql = Dialect(catalog)
    for table, key in keys_of(catalog):
        if not key.partial or any(set(other.columns) <= set(key.columns) for other in table.enforced if other.columns):
            continue
        deleted = bool(names.DELETED.search(key.predicate))
        yield Finding(
            "SK103",
            Severity.LOW if deleted else Severity.MEDIUM,
            f"{table.full_name}.{key.name}",
            f"only rows with {key.predicate} are compared"
            + (": a row that was deleted in this way can be stored again" if deleted else
               "; ON CONFLICT DO NOTHING without a target stores a duplicate of any other row"),
            fixes.unique_index(sql, table, key.columns, end="whole_key") if key.columns and not deleted else (),
            table.full_name,
            # A deleted row repeats by nature.
            None if deleted or not key.columns or key.expressions
            else Check(table.full_name, tuple(map(sql.name, key.columns)), sql.all_set(key.columns)),
            unique_on=() if deleted or key.expressions else key.columns,
        )  # fmt: skip


def bytes_compared(catalog: Catalog) -> Iterator[Finding]:
    """SK104."""
    sql = Dialect(catalog)
    for table, key in keys_of(catalog):
        if not key.valid or key.expressions:
            continue
        for name in key.columns:
            column = table.column(name)
            if column.kind is not Kind.TEXT or column.folds_case or column.made.value or name in table.foreign:
                continue
            others = tuple(sql.name(other) for other in key.columns if other != name)
            seen = "case, kind of space or invisible characters"
            yield Finding(
                "SK104",
                Severity.LOW,
                f"{table.full_name}.{key.name}",
                f"{name} is compared byte for byte: values that differ in {seen} are different keys",
                _canonical_fix(sql, table, key, name),
                table.full_name,
                Check(
                    table.full_name,
                    (*others, sql.canonical(name)),
                    " AND ".join((sql.all_set(key.columns), *([f"({key.predicate})"] if key.partial else ()))),
                    sql.different_spellings(name),
                    microseconds=3.3,
                ),
            )


def _canonical_fix(sql: Dialect, table: Table, key: Key, name: str) -> tuple[str, ...]:
    if sql.engine is Engine.MYSQL:
        return (
            f"ALTER TABLE {sql.table(table)} ADD COLUMN {sql.name(name + '_canonical')} varchar(255) "
            f"GENERATED ALWAYS AS (LOWER(TRIM({sql.name(name)}))) STORED;",
            *fixes.unique_index(sql, table, [*(one for one in key.columns if one != name), f"{name}_canonical"]),
        )
    trimmed = "trim" if sql.engine is Engine.SQLITE else "btrim"
    parts = [f"lower({trimmed}({sql.name(one)}))" if one == name else sql.name(one) for one in key.columns]
    return (
        "-- Bring the values to one spelling in the application, and compare them without case and outer spaces:",
        *fixes.unique_index(sql, table, key.columns, expressions=parts, end="canonical_key"),
    )


def invalid(catalog: Catalog) -> Iterator[Finding]:
    """SK105."""
    sql = Dialect(catalog)
    for table, key in keys_of(catalog):
        if key.valid:
            continue
        again = fixes.unique_index(sql, table, key.columns) if key.columns and not key.expressions else ()
        how = "" if table.partitioned_by else "CONCURRENTLY "
        yield Finding(
            "SK105",
            Severity.CRITICAL,
            f"{table.full_name}.{key.name}",
            "the unique index is not valid: it was never finished, and does not keep duplicates out",
            (f"DROP INDEX {how}{sql.name(table.schema)}.{sql.name(key.name)};", *again),
            table.full_name,
            Check(
                table.full_name,
                tuple(map(sql.name, key.columns)),
                " AND ".join((sql.all_set(key.columns), *([f"({key.predicate})"] if key.predicate else ()))),
            )
            if key.columns and not key.expressions
            else None,
            Severity.CRITICAL,
            unique_on=() if key.expressions or key.predicate else key.columns,
            nulls_equal=not key.nulls_distinct,
        )  # fmt: skip


def deferrable(catalog: Catalog) -> Iterator[Finding]:
    """SK106."""
    sql = Dialect(catalog)
    for table, key in keys_of(catalog):
        if not key.deferrable:
            continue
        kind = "PRIMARY KEY" if key.primary else "UNIQUE"
        yield Finding(
            "SK106",
            Severity.HIGH if key.deferred else Severity.MEDIUM,
            f"{table.full_name}.{key.name}",
            "the constraint is DEFERRABLE: ON CONFLICT is refused, and a duplicate may be reported at COMMIT, "
            "after the effect",
            (
                fixes.drop_key(sql, table, key),
                f"ALTER TABLE {sql.table(table)} ADD CONSTRAINT {sql.name(key.name)} {kind} ({sql.names(key.columns)}) "
                "NOT DEFERRABLE;",
            ),
            table.full_name,
        )


def float_in_key(catalog: Catalog) -> Iterator[Finding]:
    """SK116."""
    sql = Dialect(catalog)
    for table, key in keys_of(catalog):
        floats = [name for name in key.columns if table.column(name).kind is Kind.FLOAT]
        if not floats or not key.valid or key.expressions:
            continue
        keys = tuple(sql.rounded(name) if name in floats else sql.name(name) for name in key.columns)
        yield Finding(
            "SK116",
            Severity.MEDIUM,
            f"{table.full_name}.{key.name}",
            f"{', '.join(floats)} is a binary fraction: 0.1 + 0.2 is not 0.3, so a retry may have a new key",
            _numeric_fix(sql, table, floats),
            table.full_name,
            Check(table.full_name, keys, sql.all_set(key.columns)),
        )


def _numeric_fix(sql: Dialect, table: Table, floats: list[str]) -> tuple[str, ...]:
    altered = f"ALTER TABLE {sql.table(table)}"
    if sql.engine is Engine.POSTGRES:
        cast = [(sql.name(name), f"round({sql.name(name)}::numeric, 6)") for name in floats]
        return tuple(f"{altered} ALTER COLUMN {name} TYPE numeric USING {value};" for name, value in cast)
    if sql.engine is Engine.MYSQL:
        return tuple(f"{altered} MODIFY {sql.name(name)} decimal(20, 6) NOT NULL;" for name in floats)
    return ("-- Make the table again with an INTEGER of the smallest unit, and copy the rows.",)


def sentinels(catalog: Catalog) -> Iterator[Finding]:
    """SK120."""
    sql = Dialect(catalog)
    listed = ", ".join(map(text, SENTINELS))
    for table in catalog.whole_tables():
        in_keys = [name for key in table.keys for name in key.columns if names.looks_like_key(table, name)]
        wanted = dict.fromkeys([*in_keys, *(column.name for column in business_columns(table))])
        for name in wanted:
            if table.column(name).kind not in (Kind.TEXT, Kind.UUID):
                continue
            spelled = f"lower(trim({_as_text(sql, name)}))"
            yield Finding(
                "SK120",
                Severity.MEDIUM,
                f"{table.full_name}.{name}",
                f"{name} has values that mean 'no key': every request without one has the same key",
                (f"-- Store NULL, or refuse the request. Then: CHECK ({spelled} NOT IN ('', 'null', 'n/a', ...))",),
                table.full_name,
                Check(table.full_name, (spelled,), f"{spelled} IN ({listed})", "count(*) > 0", "count(*)"),
                Severity.MEDIUM,
                only_confirmed=True,
            )


def _as_text(sql: Dialect, name: str) -> str:
    return f"{sql.name(name)}::text" if sql.engine is Engine.POSTGRES else sql.name(name)


def collation_changed(catalog: Catalog) -> Iterator[Finding]:
    """SK122."""
    sql = Dialect(catalog)
    for table, key in keys_of(catalog):
        changed = [name for name in key.columns if table.column(name).collation_changed]
        if not changed or not key.valid:
            continue
        yield Finding(
            "SK122",
            Severity.CRITICAL,
            f"{table.full_name}.{key.name}",
            f"the library sorts {', '.join(changed)} otherwise than when this index was built: it may miss a duplicate",
            (
                "-- Remove the duplicates first, then:",
                f"REINDEX INDEX CONCURRENTLY {sql.name(table.schema)}.{sql.name(key.name)};",
                "-- Only when every index is built again: ALTER COLLATION ... REFRESH VERSION (or ALTER DATABASE ...).",
            ),
            table.full_name,
            None
            if key.expressions
            else Check(
                table.full_name,
                tuple(map(sql.name, key.columns)),
                " AND ".join((sql.all_set(key.columns), *([f"({key.predicate})"] if key.predicate else ()))),
            ),
            Severity.CRITICAL,
        )


RULES = (
    Rule("SK102", "unique over columns that may be NULL", "high, single column medium / high", EVERYWHERE, nullable),
    Rule("SK103", "partial unique index", "medium, soft delete low / high", (Engine.POSTGRES, Engine.SQLITE), partial),
    Rule("SK104", "text key compares bytes", "low / high", EVERYWHERE, bytes_compared),
    Rule("SK105", "unique index is not valid", "critical / critical", POSTGRES, invalid),
    Rule("SK106", "deferrable unique constraint", "medium, deferred high", POSTGRES, deferrable, confirms=False),
    Rule("SK116", "binary fraction in a unique key", "medium / high", EVERYWHERE, float_in_key),
    Rule("SK120", "values that mean 'no key'", "- / medium", EVERYWHERE, sentinels),
    Rule("SK122", "collation changed below an index", "critical / critical", POSTGRES, collation_changed),
)
