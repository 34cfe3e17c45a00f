"""SQLite's schema, read into the model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from samekey.detect.catalog import Catalog, Column, Engine, Key, Kind, Made, Reference, Table, Trigger
from samekey.drivers.reading import Reading

_CLOCK = re.compile(r"current_(timestamp|date|time)|\b(datetime|date|strftime|julianday|unixepoch)\s*\(", re.I)
_RANDOM = re.compile(r"\brandom(blob)?\s*\(", re.I)
_PREDICATE = re.compile(r"\)\s*WHERE\s+(.+)$", re.I | re.S)
_LENGTH = re.compile(r"CHAR\w*\s*\(\s*(\d+)\s*\)", re.I)


def read(reading: Reading) -> Catalog:
    """Every table of the file, with its indexes and triggers."""
    ((version,),) = reading.rows("SELECT sqlite_version()")
    listed = reading.rows("SELECT name, wr, strict FROM pragma_table_list WHERE schema = 'main' AND type = 'table'")
    created: dict[str, str | None] = dict(
        reading.rows("SELECT name, sql FROM sqlite_schema WHERE type IN ('table', 'index')")
    )
    tables = [
        _table(reading, name, created, without_rowid=bool(wr), strict=bool(strict))
        for name, wr, strict in sorted(listed)
        if not name.startswith("sqlite_")
    ]
    return Catalog(Engine.SQLITE, version, tuple(tables))


def _table(reading: Reading, name: str, created: dict[str, str | None], *, without_rowid: bool, strict: bool) -> Table:
    quoted = _text(name)
    sql = created.get(name) or ""
    fields = reading.rows(
        f'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo({quoted}) ORDER BY cid'
    )
    first_of_index: dict[str, str] = {}
    keys = _keys(reading, quoted, created, first_of_index)
    primary = tuple(row[0] for row in sorted((row for row in fields if row[4]), key=lambda row: row[4]))
    # INTEGER PRIMARY KEY is the rowid: it has no index of its own, is never NULL, and SQLite counts it up.
    rowid = len(primary) == 1 and not without_rowid and _type_of(fields, primary[0]) == "INTEGER"
    if rowid or (primary and not any(key.primary for key in keys)):
        keys = (Key("PRIMARY KEY", primary, primary=True, constraint=True), *keys)
    collations = {column: collation for key in keys for column, collation in key.collations}
    columns = tuple(
        _column(
            row,
            never_null=bool(row[2]) or (rowid and row[0] in primary) or (without_rowid and row[0] in primary),
            rowid=rowid and row[0] in primary,
            collation=collations.get(row[0], ""),
        )
        for row in fields
    )
    return Table(
        "",
        name,
        columns,
        keys=keys,
        references=_references(reading, quoted),
        indexed=frozenset({*first_of_index.values(), *primary[:1]}),
        checks=tuple(_checks(sql)),
        triggers=tuple(
            Trigger(trigger, bool(re.search(r"\bBEFORE\s+INSERT\b", source, re.I)), source)
            for trigger, source in reading.rows(
                f"SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = {quoted} ORDER BY name"
            )
        ),
        rows=_rows(reading, name, without_rowid=without_rowid),
        strict=strict,
        without_rowid=without_rowid,
    )


def _references(reading: Reading, quoted: str) -> tuple[Reference, ...]:
    """`to` is empty where the foreign key names no column: it means the primary key of the other table."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for row in reading.rows(
        f'SELECT id, "table", "from", "to", on_delete FROM pragma_foreign_key_list({quoted}) ORDER BY id, seq'
    ):
        found.setdefault(row[0], []).append(row)
    return tuple(
        Reference(
            f"foreign key {number}",
            tuple(row[2] for row in rows),
            rows[0][1],
            tuple(row[3] for row in rows if row[3]),
            rows[0][4],
        )
        for number, rows in found.items()
    )


def _checks(sql: str) -> Iterator[str]:
    """What is between the parentheses of each CHECK."""
    for found in re.finditer(r"\bCHECK\s*\(", sql, re.I):
        depth, end = 1, found.end()
        while depth and end < len(sql):
            depth += {"(": 1, ")": -1}.get(sql[end], 0)
            end += 1
        yield sql[found.end() : end - 1]


def _type_of(fields: list[tuple[object, ...]], name: str) -> str:
    return next(str(row[1]).upper() for row in fields if row[0] == name)


def _keys(
    reading: Reading, quoted: str, created: dict[str, str | None], first_of_index: dict[str, str]
) -> tuple[Key, ...]:
    keys = []
    for name, unique, origin, partial in reading.rows(
        f'SELECT name, "unique", origin, partial FROM pragma_index_list({quoted}) ORDER BY name'
    ):
        parts = reading.rows(
            f"SELECT cid, name, coll FROM pragma_index_xinfo({_text(name)}) WHERE key = 1 ORDER BY seqno"
        )
        columns = tuple(row[1] for row in parts if row[0] >= 0)
        if columns and parts[0][0] >= 0:
            first_of_index[name] = columns[0]
        if not unique:
            continue
        predicate = _PREDICATE.search(created.get(name) or "") if partial else None
        keys.append(
            Key(
                name,
                columns,
                expressions=tuple(created.get(name) or "" for row in parts if row[0] < 0),
                primary=origin == "pk",
                constraint=origin in ("pk", "u"),
                predicate=predicate[1].strip() if predicate else "",
                collations=tuple((row[1], row[2].upper()) for row in parts if row[0] >= 0),
            )
        )
    return tuple(keys)


def _column(row: tuple[object, ...], *, never_null: bool, rowid: bool, collation: str) -> Column:
    name, spelled, default, hidden = str(row[0]), str(row[1]), str(row[3] or ""), row[5]
    length = _LENGTH.search(spelled)
    return Column(
        name,
        spelled,
        _kind(spelled.upper()),
        nullable=not never_null,
        made=_made(default, rowid=rowid, computed=hidden in (2, 3)),
        default=default,
        length=int(length[1]) if length else None,
        collation=collation,
        folds_case=collation == "NOCASE",
    )


def _made(default: str, *, rowid: bool, computed: bool) -> Made:
    if rowid:
        return Made.COUNTED
    if computed:
        return Made.COMPUTED
    if _RANDOM.search(default):
        return Made.RANDOM
    return Made.CLOCK if _CLOCK.search(default) else Made.NO


def _kind(spelled: str) -> Kind:
    """SQLite's own rules of affinity, with the names of times and documents that it stores as text."""
    if "DATE" in spelled or "TIME" in spelled:
        return Kind.TIME
    if "JSON" in spelled:
        return Kind.DOCUMENT
    if "UUID" in spelled:
        return Kind.UUID
    if "INT" in spelled:
        return Kind.INTEGER
    if any(part in spelled for part in ("CHAR", "CLOB", "TEXT")):
        return Kind.TEXT
    if "BLOB" in spelled:
        return Kind.BYTES
    if any(part in spelled for part in ("REAL", "FLOA", "DOUB")):
        return Kind.FLOAT
    return Kind.EXACT if "NUMERIC" in spelled or "DECIMAL" in spelled else Kind.OTHER


def _rows(reading: Reading, name: str, *, without_rowid: bool) -> float:
    """The greatest rowid: read from the end of the table, and seldom far above the number of rows."""
    if without_rowid:
        return 0.0
    quoted = '"' + name.replace('"', '""') + '"'
    ((greatest,),) = reading.rows(f"SELECT max(rowid) FROM main.{quoted}")
    return float(greatest or 0)


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
