"""What differs between two databases and concerns uniqueness: keys that only one of them has, and their columns."""

from __future__ import annotations

from collections.abc import Iterator

from samekey.core.errors import Misconfigured
from samekey.detect.catalog import Catalog, Column, Key, Table
from samekey.detect.findings import Finding, Severity

Signature = tuple[object, ...]


def drift(catalog: Catalog, other: Catalog) -> list[Finding]:
    """SK130 and SK131: what `catalog` has otherwise than `other`. A table that only one of them has is no drift."""
    if catalog.engine is not other.engine:
        raise Misconfigured(
            f"{catalog.engine.value} and {other.engine.value} have no common catalog: compare equal servers"
        )
    found: list[Finding] = []
    for table in catalog.whole_tables():
        there = other.table(table.full_name)
        if there is not None:
            found += [*_keys(table, there), *_columns(table, there)]
    return found


def _signature(key: Key) -> Signature:
    """The name does not count, nor does the order of the columns."""
    return (
        frozenset(key.columns), frozenset(key.expressions), key.predicate, key.nulls_distinct or key.primary, key.valid,
        key.deferrable, key.deferred, key.prefixes,
    )  # fmt: skip


def _keys(table: Table, there: Table) -> Iterator[Finding]:
    here, others = {_signature(key): key for key in table.keys}, {_signature(key): key for key in there.keys}
    for signature in others.keys() - here.keys():
        key = others[signature]
        yield Finding(
            "SK130",
            Severity.HIGH,
            f"{table.full_name}.{key.name}",
            f"the other database has a unique key on {_shown(key)}, and this one has none like it{_near(key, table)}",
            table=table.full_name,
            unique_on=key.columns if not key.expressions and not key.predicate else (),
            nulls_equal=not key.nulls_distinct,
        )
    for signature in here.keys() - others.keys():
        key = here[signature]
        yield Finding(
            "SK130",
            Severity.MEDIUM,
            f"{table.full_name}.{key.name}",
            f"this database has a unique key on {_shown(key)}, and the other one has none like it{_near(key, there)}",
            table=table.full_name,
        )


def _shown(key: Key) -> str:
    parts = ", ".join((*key.columns, *key.expressions))
    notes = [
        f" WHERE {key.predicate}" * bool(key.predicate),
        " NULLS NOT DISTINCT" * (not key.nulls_distinct),
        " DEFERRABLE" * key.deferrable,
        " (not valid)" * (not key.valid),
    ]
    return f"({parts}){''.join(notes)}"


def _near(key: Key, table: Table) -> str:
    """A key on the same columns that differs in something else."""
    near = next((one for one in table.keys if set(one.columns) == set(key.columns)), None)
    return f": it has {_shown(near)}" if near and key.columns else ""


def _columns(table: Table, there: Table) -> Iterator[Finding]:
    keyed = {name for one in (table, there) for key in one.keys for name in key.columns}
    others = {column.name: column for column in there.columns}
    for column in table.columns:
        other = others.get(column.name)
        if column.name not in keyed or other is None:
            continue
        differs = [text for text in _differences(column, other) if text]
        if differs:
            yield Finding(
                "SK131",
                Severity.HIGH,
                f"{table.full_name}.{column.name}",
                f"{column.name} is part of a unique key, and differs from the other database: {'; '.join(differs)}",
                table=table.full_name,
            )


def _differences(column: Column, other: Column) -> Iterator[str]:
    if column.nullable != other.nullable:
        yield f"{'may' if column.nullable else 'may not'} be NULL here"
    if column.type != other.type:
        yield f"{column.type} here, {other.type} there"
    if column.collation and other.collation and column.collation != other.collation:
        yield f"collation {column.collation} here, {other.collation} there"
