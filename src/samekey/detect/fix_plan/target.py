"""What one plan is about: a table, the columns that become unique, and the tables that refer to it."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from samekey.detect import names
from samekey.detect.catalog import Catalog, Engine, Key, Reference, Table
from samekey.detect.findings import Finding
from samekey.detect.rules._fixes import index_name

SLUG_MAX = 30  # PostgreSQL's names have 63 characters, and the plan adds to it


class NoPlan(Exception):
    """A person must do this by hand; the text says why."""


@dataclass(frozen=True, slots=True)
class Child:
    """A table with a foreign key to the target; two of one target differ in `number`."""

    number: int
    table: Table
    reference: Reference
    identity: tuple[str, ...]
    colliding: tuple[Key, ...]  # keys of it that may refuse a row when its foreign key changes


@dataclass(frozen=True, slots=True)
class Target:
    rule: str
    table: Table
    columns: tuple[str, ...]
    nulls_equal: bool
    identity: tuple[str, ...]
    children: tuple[Child, ...]
    index: str  # name of the unique index
    drops: str = ""  # name of an index that is not valid, and goes in the end

    @property
    def slug(self) -> str:
        """Part of the names of everything that the plan makes."""
        whole = "_".join((self.table.schema, self.table.name, *self.columns))
        plain = re.sub(r"[^a-z0-9_]+", "_", "_".join((self.table.name, *self.columns)).lower())
        return f"{plain[:SLUG_MAX].strip('_')}_{hashlib.sha256(whole.encode()).hexdigest()[:6]}"

    @property
    def order(self) -> tuple[str, ...]:
        """The first row by this order stays: the oldest one."""
        at = names.time_of(self.table)
        return (*([at.name] if at else ()), *self.identity)


def target_of(catalog: Catalog, found: Finding) -> Target:
    """The plan's target of a finding, or NoPlan."""
    table = catalog.table(found.table)
    if table is None or not found.unique_on:
        raise NoPlan("no set of columns can be made unique by it: read its fix")
    if found.nulls_equal and catalog.engine is not Engine.POSTGRES:
        raise NoPlan("this server has no unique index in which NULL is equal to NULL: make the columns NOT NULL")
    if table.partitioned_by or table.partition_expression or catalog.heirs.get(table.full_name):
        raise NoPlan(f"{table.full_name} has partitions or heirs, over which there is no common unique index")
    if not table.identity:
        raise NoPlan(f"{table.full_name} has no key without NULL, so no column identifies a row: add one first")
    if catalog.engine is Engine.MYSQL:
        long = [name for name in found.unique_on if re.match(r"\w*(text|blob)", table.column(name).type, re.I)]
        if long:
            raise NoPlan(f"{', '.join(long)} is a text without a length: make it a varchar first")
    invalid = next((key.name for key in table.keys if found.rule == "SK105" and found.object.endswith(key.name)), "")
    return Target(
        found.rule,
        table,
        found.unique_on,
        found.nulls_equal,
        table.identity,
        tuple(_children(catalog, table)),
        index_name(table, found.unique_on, "key"),
        invalid,
    )


def _children(catalog: Catalog, target: Table) -> list[Child]:
    found: list[Child] = []
    for table in catalog.whole_tables():
        for reference in table.references:
            if reference.table not in (target.full_name, target.name):
                continue
            to = reference.to or next((key.columns for key in target.keys if key.primary), ())
            if not table.identity:
                raise NoPlan(f"{table.full_name} refers to it and has no key without NULL: add one first")
            colliding = tuple(
                key
                for key in table.keys
                if key.columns and not key.expressions and set(key.columns) & set(reference.columns)
            )
            _check_grandchildren(catalog, table, colliding)
            whole = Reference(reference.name, reference.columns, reference.table, to, reference.on_delete)
            found.append(Child(len(found), table, whole, table.identity, colliding))
    return found


def _check_grandchildren(catalog: Catalog, table: Table, colliding: tuple[Key, ...]) -> None:
    """A row that collides is archived and deleted. What a cascade would delete with it would be in no archive."""
    if not colliding:
        return
    for other in catalog.whole_tables():
        for reference in other.references:
            cascades = reference.on_delete.upper() not in ("NO ACTION", "RESTRICT")
            if cascades and reference.table in (table.full_name, table.name):
                raise NoPlan(
                    f"rows of {table.full_name} may collide when they are joined to one parent, and {other.full_name} "
                    f"refers to them ON DELETE {reference.on_delete}: rows would be lost"
                )
