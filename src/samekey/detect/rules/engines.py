"""Gaps that only MySQL or only SQLite has."""

from __future__ import annotations

from collections.abc import Iterator

from samekey.detect import names
from samekey.detect.catalog import Catalog, Engine, Key, Kind, Table
from samekey.detect.dialect import Dialect
from samekey.detect.findings import Check, Finding, Rule, Severity
from samekey.detect.rules import _fixes as fixes
from samekey.detect.rules.weak_keys import keys_of

TRANSACTIONAL = ("innodb", "rocksdb", "ndbcluster", "")


def mysql(catalog: Catalog) -> Iterator[Finding]:
    """SK201."""
    sql = Dialect(catalog)
    for table in catalog.tables:
        if table.storage.lower() not in TRANSACTIONAL:
            yield Finding(
                "SK201",
                Severity.HIGH,
                table.full_name,
                f"the engine {table.storage} has no transactions: a key stays although its effect was rolled back",
                (f"ALTER TABLE {sql.table(table)} ENGINE = InnoDB;",),
                table.full_name,
            )
    for table, key in keys_of(catalog):
        for name, length in key.prefixes:
            yield Finding(
                "SK201",
                Severity.MEDIUM,
                f"{table.full_name}.{key.name}",
                f"only the first {length} characters of {name} are compared: different keys are taken for one",
                (fixes.drop_key(sql, table, key), *fixes.unique_index(sql, table, key.columns)),
                table.full_name,
            )
        folded = [name for name in key.columns if table.column(name).folds_case and names.looks_like_key(table, name)]
        if folded and not key.prefixes:
            yield Finding(
                "SK201",
                Severity.MEDIUM,
                f"{table.full_name}.{key.name}",
                f"the collation {table.column(folded[0]).collation} folds case, and often accents and "
                f"spaces at the end: two different values of {', '.join(folded)} are one key",
                (
                    f"ALTER TABLE {sql.table(table)} MODIFY {sql.name(folded[0])} {table.column(folded[0]).type} "
                    "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL;",
                ),
                table.full_name,
            )


def sqlite(catalog: Catalog) -> Iterator[Finding]:
    """SK301."""
    for table, key in keys_of(catalog):
        yield from _null_primary(catalog, table, key)
        yield from _untyped(catalog, table, key)
        yield from _nocase(catalog, table, key)


def _null_primary(catalog: Catalog, table: Table, key: Key) -> Iterator[Finding]:
    sql = Dialect(catalog)
    empty = [name for name in key.columns if table.column(name).nullable]
    if key.primary and empty:
        yield Finding(
            "SK301",
            Severity.HIGH,
            f"{table.full_name}.{key.name}",
            f"the primary key column {', '.join(empty)} admits NULL, any number of times: SQLite allows it unless the "
            "column is NOT NULL",
            fixes.not_null(sql, table, empty),
            table.full_name,
            Check(table.full_name, tuple(map(sql.name, key.columns)), sql.any_null(empty)),
        )


def _untyped(catalog: Catalog, table: Table, key: Key) -> Iterator[Finding]:
    """A column without affinity stores 1 and '1' as two values; any column stores text and blob as two values."""
    sql = Dialect(catalog)
    loose = [name for name in key.columns if not table.strict and table.column(name).kind in (Kind.OTHER, Kind.BYTES)]
    for name in loose:
        others = tuple(sql.name(other) for other in key.columns if other != name)
        yield Finding(
            "SK301",
            Severity.MEDIUM,
            f"{table.full_name}.{key.name}",
            f"{name} has no type that SQLite enforces: 1, '1' and a blob with the same byte are three keys",
            ("-- Make the table again as STRICT, with a type for each column, and copy the rows.",),
            table.full_name,
            Check(
                table.full_name,
                (*others, f"CAST({sql.name(name)} AS TEXT)"),
                sql.all_set(key.columns),
                f"count(DISTINCT typeof({sql.name(name)})) > 1",
            ),
        )


def _nocase(catalog: Catalog, table: Table, key: Key) -> Iterator[Finding]:
    sql = Dialect(catalog)
    for name, collation in key.collations:
        if collation != "NOCASE" or key.expressions:
            continue
        others = tuple(sql.name(other) for other in key.columns if other != name)
        yield Finding(
            "SK301",
            Severity.LOW,
            f"{table.full_name}.{key.name}",
            f"NOCASE of {name} folds ASCII letters only: a letter with an accent is another key in the other case",
            ("-- Bring the values to one spelling in the application before they are stored.",),
            table.full_name,
            Check(
                table.full_name,
                (*others, sql.canonical(name)),
                sql.all_set(key.columns),
                sql.different_spellings(name),
                microseconds=3.3,
            ),
        )


RULES = (
    Rule(
        "SK201",
        "MySQL: prefix, folding collation, engine without transactions",
        "high or medium",
        (Engine.MYSQL,),
        mysql,
        False,
    ),
    Rule(
        "SK301",
        "SQLite: NULL in a primary key, no types, NOCASE",
        "high, medium or low / high",
        (Engine.SQLITE,),
        sqlite,
    ),
)
