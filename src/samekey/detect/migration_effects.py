"""What a migration file would do, before it runs: its statements change the catalog, and the rules look at that.

What is not understood is named, never taken for harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from samekey.detect.catalog import Catalog, Column, Engine, Key, Kind, Made, Table
from samekey.detect.dialect import Dialect
from samekey.detect.findings import Check, Finding, Severity
from samekey.detect.migrations import (
    ADD_COLUMN,
    ADD_KEY,
    ALTER,
    CREATE_INDEX,
    CREATE_TABLE,
    KEYWORDS,
    NAME,
    Statement,
    bare,
    inside,
    parts,
)

_DROP_INDEX = re.compile(rf"DROP\s+INDEX\s+(?:CONCURRENTLY\s+)?(?:IF\s+EXISTS\s+)?({NAME})", re.I)
_DROP_KEY = re.compile(rf"DROP\s+(?:CONSTRAINT|INDEX|KEY)\s+(?:IF\s+EXISTS\s+)?({NAME})", re.I)
_NOT_NULL = re.compile(rf"ALTER\s+(?:COLUMN\s+)?({NAME})\s+(SET|DROP)\s+NOT\s+NULL", re.I)
_TIMES = re.compile(r"\b(now\(\)|current_timestamp|clock_timestamp\(\))", re.I)


def applied(catalog: Catalog, todo: Iterable[Statement]) -> tuple[Catalog, list[str]]:
    """The catalog as it would be after these statements, and the ones that were not understood."""
    tables = {table.name.lower(): table for table in catalog.tables}
    unknown: list[str] = []
    for one in todo:
        if not _apply(catalog, tables, one.text) and re.match(
            r"\s*(CREATE|ALTER|DROP)\b.*\b(TABLE|INDEX)\b", one.text, re.I
        ):
            unknown.append(f"{one.file}:{one.line}: not understood: {one.text.splitlines()[0][:60]}")
    return replace(catalog, tables=tuple(tables.values())), unknown


def _apply(catalog: Catalog, tables: dict[str, Table], text: str) -> bool:
    if found := CREATE_TABLE.match(text):
        made = _table(catalog, found[1], inside(text, found.end() - 1))
        tables[made.name.lower()] = replace(made, logged=not re.match(r"CREATE\s+UNLOGGED", text, re.I))
        return True
    if found := CREATE_INDEX.match(text):
        table = tables.get(bare(found[4]))
        if found[1] and table is not None:
            columns = [part.strip() for part, _ in parts(inside(text, found.end() - 1))]
            tables[table.name.lower()] = replace(table, keys=(*table.keys, _index(found[3] or "", columns, text)))
        return table is not None or not found[1]
    if found := _DROP_INDEX.match(text):
        for name, table in tables.items():
            tables[name] = replace(table, keys=tuple(key for key in table.keys if key.name.lower() != bare(found[1])))
        return True
    if found := ALTER.match(text):
        table = tables.get(bare(found[1]))
        if table is None:
            return False
        changed = _altered(catalog, table, found[2])
        if changed is not None:
            tables[table.name.lower()] = changed
        return changed is not None
    return False


def _index(name: str, columns: list[str], text: str) -> Key:
    plain = [part for part in columns if re.fullmatch(rf"({NAME})(\s+(ASC|DESC|NULLS\s+\w+))*", part, re.I)]
    predicate = re.search(
        r"\)\s*(?:INCLUDE\s*\([^)]*\)\s*)?(?:NULLS\s+NOT\s+DISTINCT\s*)?WHERE\s+(.+)$", text, re.I | re.S
    )
    return Key(
        bare(name),
        tuple(bare(re.split(r"\s", part)[0]) for part in plain),
        expressions=tuple(part for part in columns if part not in plain),
        predicate=predicate[1].strip() if predicate else "",
        nulls_distinct=not re.search(r"NULLS\s+NOT\s+DISTINCT", text, re.I),
    )


def _altered(catalog: Catalog, table: Table, actions: str) -> Table | None:
    known = False
    for action, _ in parts(actions):
        action = action.strip()
        if key := ADD_KEY.match(action):
            names = tuple(bare(part) for part in key[2].split(","))
            primary = bool(re.search(r"PRIMARY\s+KEY", action, re.I))
            made = Key(bare(key[1] or "_".join((table.name, *names, "key"))), names, primary=primary, constraint=True,
                       nulls_distinct=not re.search(r"NULLS\s+NOT\s+DISTINCT", action, re.I),
                       deferrable=bool(re.search(r"(?<!NOT )DEFERRABLE", action, re.I)))  # fmt: skip
            table, known = replace(table, keys=(*table.keys, made)), True
        elif dropped := _DROP_KEY.match(action):
            kept = tuple(one for one in table.keys if one.name.lower() != bare(dropped[1]))
            table, known = replace(table, keys=kept), True
        elif null := _NOT_NULL.match(action):
            table = _with(table, bare(null[1]), nullable=null[2].upper() == "DROP")
            known = True
        elif added := ADD_COLUMN.match(action):
            column = _column(catalog, added[1], added[2])
            keys = (*table.keys, *_column_keys(table.name, column.name, added[2]))
            table, known = replace(table, columns=(*table.columns, column), keys=keys), True
        else:
            known = known or not re.match(r"(ADD|DROP|ALTER)\b", action, re.I)
    return table if known else None


def _with(table: Table, name: str, *, nullable: bool) -> Table:
    columns = tuple(replace(one, nullable=nullable) if one.name.lower() == name else one for one in table.columns)
    return replace(table, columns=columns)


def _table(catalog: Catalog, name: str, body: str) -> Table:
    schema = re.sub(r"[\"`]", "", name.rpartition(".")[0]) or ("public" if catalog.engine is Engine.POSTGRES else "")
    short, columns, keys = bare(name), list[Column](), list[Key]()
    for part, _ in parts(body):
        text = part.strip()
        if KEYWORDS.match(text):
            if key := re.match(rf"(?:CONSTRAINT\s+({NAME})\s+)?(UNIQUE|PRIMARY\s+KEY)[^(]*\(([^)]*)\)", text, re.I):
                names = tuple(bare(one) for one in key[3].split(","))
                keys.append(Key(bare(key[1] or "_".join((short, *names, "key"))), names,
                                primary=key[2].upper().startswith("PRIMARY"), constraint=True,
                                nulls_distinct=not re.search(r"NULLS\s+NOT\s+DISTINCT", text, re.I)))  # fmt: skip
        elif found := re.match(rf"({NAME})\s*(.*)", text, re.S):
            columns.append(_column(catalog, found[1], found[2]))
            keys += _column_keys(short, columns[-1].name, found[2])
    primary = {name for key in keys if key.primary for name in key.columns}
    if catalog.engine is not Engine.SQLITE:
        columns = [replace(one, nullable=False) if one.name in primary else one for one in columns]
    return Table(schema, short, tuple(columns), tuple(keys))


def _column_keys(table: str, column: str, text: str) -> list[Key]:
    if re.search(r"\bPRIMARY\s+KEY\b", text, re.I):
        return [Key(f"{table}_pkey", (column,), primary=True, constraint=True)]
    return [Key(f"{table}_{column}_key", (column,), constraint=True)] if re.search(r"\bUNIQUE\b", text, re.I) else []


def _column(catalog: Catalog, name: str, text: str) -> Column:
    spelled = re.split(
        r"\b(?:NOT|NULL|DEFAULT|PRIMARY|UNIQUE|REFERENCES|CHECK|GENERATED|COLLATE|CONSTRAINT)\b", text, flags=re.I
    )
    kind, counted = (
        _kind(spelled[0]),
        re.search(r"\b(IDENTITY|AUTO_INCREMENT|AUTOINCREMENT)\b|^\s*\w*serial\b", text, re.I),
    )
    rowid = catalog.engine is Engine.SQLITE and re.match(r"\s*INTEGER\s+PRIMARY\s+KEY", text, re.I)
    made = Made.COUNTED if counted or rowid else Made.NO
    if made is Made.NO and re.search(r"\b(gen_random_uuid|uuid_generate_v\w+|uuid|random)\(\)", text, re.I):
        made = Made.RANDOM
    if made is Made.NO and (default := re.search(r"\bDEFAULT\s+(.*)", text, re.I)) and _TIMES.search(default[1]):
        made = Made.CLOCK
    required = bool(re.search(r"\bNOT\s+NULL\b|\bPRIMARY\s+KEY\b", text, re.I)) or bool(counted or rowid)
    length = re.search(r"char\w*\s*\(\s*(\d+)", spelled[0], re.I)
    return Column(bare(name), spelled[0].strip(), kind, nullable=not required, made=made,
                  length=int(length[1]) if length else None)  # fmt: skip


def _kind(spelled: str) -> Kind:
    lowered = spelled.strip().lower()
    for parts_of_name, kind in (
        (("timestamp", "datetime", "date"), Kind.TIME), (("json", "xml"), Kind.DOCUMENT), (("uuid",), Kind.UUID),
        (("int", "serial"), Kind.INTEGER), (("char", "text", "citext", "clob"), Kind.TEXT),
        (("real", "float", "double"), Kind.FLOAT), (("numeric", "decimal", "money"), Kind.EXACT),
        (("bytea", "blob", "binary"), Kind.BYTES),
    ):  # fmt: skip
        if any(part in lowered for part in parts_of_name):
            return kind
    return Kind.OTHER


def lint(before: Catalog, after: Catalog, found_before: list[Finding], found_after: list[Finding]) -> list[Finding]:
    """Gaps that the file would make, unique keys that it would remove, and keys that the rows would refuse."""
    known = {(one.rule, one.object) for one in found_before}
    made = [replace(one, check=None) for one in found_after if (one.rule, one.object) not in known]
    for table in before.tables:
        then = after.table(table.full_name)
        if then is None:
            continue
        for key in table.keys:
            kept = any(set(one.columns) <= set(key.columns) and one.enforces for one in then.keys if one.columns)
            if key.columns and not kept:
                why = f"the migration removes the unique key on {', '.join(key.columns)}"
                named = f"{table.full_name}.{key.name}"
                made.append(Finding("SK130", Severity.HIGH, named, why, table=table.full_name))
        made += _refused(before, table, then)
    return made


def _refused(before: Catalog, table: Table, then: Table) -> Iterator[Finding]:
    """A unique key on a table with rows: it is counted whether it can be built."""
    sql, there = Dialect(before), {column.name for column in table.columns}
    for key in then.keys[len(table.keys) :] if len(then.keys) > len(table.keys) else ():
        if key.expressions or key.predicate or not set(key.columns) <= there:
            continue
        where = "" if not key.nulls_distinct else sql.all_set(key.columns)
        yield Finding(
            "SK132",
            Severity.HIGH,
            f"{table.full_name}.{key.name}",
            f"rows have equal values in {', '.join(key.columns)}: the migration cannot build its unique key",
            table=table.full_name,
            check=Check(table.full_name, tuple(map(sql.name, key.columns)), where),
            only_confirmed=True,
            unique_on=key.columns,
            nulls_equal=not key.nulls_distinct,
        )
