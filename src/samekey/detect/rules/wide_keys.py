"""Unique keys that a retry passes by: a column in them is new each time, or they hold for a part of the rows."""

from __future__ import annotations

from collections.abc import Iterator

from samekey.detect import names
from samekey.detect.catalog import Catalog, Engine, Key, Kind, Made, Table
from samekey.detect.dialect import Dialect
from samekey.detect.findings import EVERYWHERE, POSTGRES, Check, Finding, Rule, Severity
from samekey.detect.rules import _fixes as fixes
from samekey.detect.rules.weak_keys import keys_of


def diluted(catalog: Catalog) -> Iterator[Finding]:
    """SK109."""
    sql = Dialect(catalog)
    for table, key in keys_of(catalog):
        new = [name for name in key.columns if _new_each_time(table, name) and name not in table.partitioned_by]
        rest = tuple(name for name in key.columns if name not in new)
        if not new or not _is_a_key(table, rest) or not key.enforces or key.expressions:
            continue
        yield Finding(
            "SK109",
            Severity.HIGH,
            f"{table.full_name}.{key.name}",
            f"{', '.join(new)} has a new value in each attempt, so the key never meets its own retry",
            fixes.unique_index(sql, table, rest),
            table.full_name,
            Check(table.full_name, tuple(map(sql.name, rest)), sql.all_set(rest)),
            unique_on=rest,
        )


def _new_each_time(table: Table, name: str) -> bool:
    column = table.column(name)
    if column.made in (Made.CLOCK, Made.RANDOM, Made.COUNTED):
        return True
    return column.kind is Kind.TIME and bool(names.TIME.search(name))


def _is_a_key(table: Table, rest: tuple[str, ...]) -> bool:
    """Whether a client could recognise its row by these columns, and no other key compares them already."""
    if not any(names.looks_like_key(table, name) for name in rest):
        return False
    return not any(set(key.columns) <= set(rest) for key in table.enforced if key.columns)


def per_partition(catalog: Catalog) -> Iterator[Finding]:
    """SK110."""
    sql = Dialect(catalog)
    for table, key in keys_of(catalog):
        shared = [name for name in key.columns if name in table.partitioned_by]
        rest = tuple(name for name in key.columns if name not in shared)
        if not shared or not rest or all(names.TENANT.search(name) for name in shared) or not _is_a_key(table, rest):
            continue
        columns = ", ".join(f"{sql.name(name)} {table.column(name).type}" for name in rest)
        claims = sql.name(f"{table.name}_keys")
        where = f"{sql.name(table.schema)}.{claims}" if table.schema else claims
        yield Finding(
            "SK110",
            Severity.HIGH,
            f"{table.full_name}.{key.name}",
            f"the key contains {', '.join(shared)}, the partition column: a retry in another partition passes",
            (
                f"CREATE TABLE {where} ({columns}, PRIMARY KEY ({sql.names(rest)}));",
                f"-- Insert into {table.name}_keys first, in the transaction that inserts into {table.name}.",
            ),
            table.full_name,
            Check(table.full_name, tuple(map(sql.name, rest)), sql.all_set(rest)),
        )


def siblings_differ(catalog: Catalog) -> Iterator[Finding]:
    """SK111."""
    sql = Dialect(catalog)
    for parent in catalog.parts:
        leaves = [table for table in map(catalog.table, catalog.parts[parent]) if table]
        carried = {_signature(key): key for table in leaves for key in table.keys if key.valid and not key.inherited}
        for table in leaves:
            for signature, key in carried.items():
                if (
                    any(_signature(own) == signature for own in table.keys if own.valid)
                    or key.expressions
                    or key.predicate
                ):
                    continue
                yield Finding(
                    "SK111",
                    Severity.HIGH,
                    table.full_name,
                    f"a sibling partition has a unique key on {', '.join(key.columns)}, and this partition has none",
                    fixes.unique_index(sql, table, key.columns),
                    table.full_name,
                    Check(table.full_name, tuple(map(sql.name, key.columns)), sql.all_set(key.columns)),
                    unique_on=key.columns,
                )


def _signature(key: Key) -> tuple[object, ...]:
    return frozenset(key.columns), key.expressions, key.predicate


def inheritance(catalog: Catalog) -> Iterator[Finding]:
    """SK112."""
    sql = Dialect(catalog)
    parents = {parent for table in catalog.tables for parent in table.inherits}
    for table, key in keys_of(catalog):
        if table.full_name not in parents or not key.enforces or key.expressions:
            continue
        if all(table.column(name).made is Made.COUNTED for name in key.columns):
            continue  # the children draw their ids from the parent's sequence
        yield Finding(
            "SK112",
            Severity.HIGH,
            f"{table.full_name}.{key.name}",
            "tables inherit from this one, and a unique key is not inherited: a child can store the same key again",
            (
                "-- Partitions have a common key; a plain table of claims works too:",
                f"CREATE TABLE {sql.name(table.schema)}.{sql.name(table.name + '_keys')} ("
                + ", ".join(f"{sql.name(name)} {table.column(name).type}" for name in key.columns)
                + f", PRIMARY KEY ({sql.names(key.columns)}));",
            ),
            table.full_name,
            Check(table.full_name, tuple(map(sql.name, key.columns)), sql.all_set(key.columns)),
        )


RULES = (
    Rule("SK109", "key diluted by a value that is new each time", "high / high", EVERYWHERE, diluted),
    Rule("SK110", "unique within a partition only", "high / high", (Engine.POSTGRES, Engine.MYSQL), per_partition),
    Rule("SK111", "sibling partitions have different unique keys", "high / high", POSTGRES, siblings_differ),
    Rule("SK112", "key of a parent is not inherited", "high / high", POSTGRES, inheritance),
)
