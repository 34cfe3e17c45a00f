"""The catalog of MySQL and MariaDB, read into the model."""

from __future__ import annotations

import re
from collections import defaultdict

from samekey.detect.catalog import Catalog, Column, Engine, Key, Kind, Made, Reference, Sequence, Table, Trigger
from samekey.drivers.reading import Reading, Row

TABLES = """
SELECT table_name, engine, coalesce(table_rows, 0), auto_increment FROM information_schema.tables
WHERE table_schema = database() AND table_type = 'BASE TABLE' ORDER BY table_name
"""
COLUMNS = """
SELECT table_name, column_name, data_type, column_type, is_nullable = 'YES', column_default, extra,
       character_maximum_length, collation_name
FROM information_schema.columns WHERE table_schema = database() ORDER BY table_name, ordinal_position
"""
INDEXES = """
SELECT table_name, index_name, non_unique = 0, column_name, sub_part
FROM information_schema.statistics WHERE table_schema = database() ORDER BY table_name, index_name, seq_in_index
"""
FOREIGN = """
SELECT u.table_name, u.constraint_name, u.column_name, u.referenced_table_name, u.referenced_column_name, r.delete_rule
FROM information_schema.key_column_usage u
JOIN information_schema.referential_constraints r
  ON r.constraint_schema = u.constraint_schema AND r.constraint_name = u.constraint_name
    AND r.table_name = u.table_name
WHERE u.table_schema = database() AND u.referenced_table_schema = database()
ORDER BY u.table_name, u.constraint_name, u.ordinal_position
"""
CHECKS = """
SELECT t.table_name, c.check_clause FROM information_schema.check_constraints c
JOIN information_schema.table_constraints t
  ON t.constraint_schema = c.constraint_schema AND t.constraint_name = c.constraint_name
WHERE t.table_schema = database() AND t.constraint_type = 'CHECK'
"""
TRIGGERS = """
SELECT event_object_table, trigger_name, action_timing = 'BEFORE' AND event_manipulation = 'INSERT', action_statement
FROM information_schema.triggers WHERE trigger_schema = database() ORDER BY trigger_name
"""
PARTITIONS = """
SELECT DISTINCT table_name, partition_expression FROM information_schema.partitions
WHERE table_schema = database() AND partition_name IS NOT NULL
"""
SETTINGS = """
SELECT 'innodb_flush_log_at_trx_commit', @@GLOBAL.innodb_flush_log_at_trx_commit, 'the server'
WHERE @@GLOBAL.innodb_flush_log_at_trx_commit <> 1
"""

_GREATEST = {"tinyint": 2**7, "smallint": 2**15, "mediumint": 2**23, "int": 2**31, "bigint": 2**63}
_KINDS = {
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), Kind.TEXT),
    **dict.fromkeys(_GREATEST, Kind.INTEGER),
    **dict.fromkeys(("float", "double"), Kind.FLOAT),
    **dict.fromkeys(("date", "datetime", "timestamp"), Kind.TIME),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), Kind.BYTES),
    "decimal": Kind.EXACT,
    "uuid": Kind.UUID,
    "json": Kind.DOCUMENT,
}
_CLOCK = re.compile(r"current_timestamp|\bnow\(", re.I)
_RANDOM = re.compile(r"\b(uuid|rand|random_bytes)\(", re.I)


def read(reading: Reading) -> Catalog:
    """The database that the address names. The server shows only tables on which the role has some right."""
    ((version, database),) = reading.rows("SELECT version(), database()")
    columns, indexes = _grouped(reading.rows(COLUMNS)), _grouped(reading.rows(INDEXES))
    foreign, checks = _grouped(reading.rows(FOREIGN)), _grouped(reading.rows(CHECKS))
    triggers = _grouped(reading.rows(TRIGGERS))
    partitions: dict[str, str | None] = dict(reading.rows(PARTITIONS))
    tables, sequences = [], []
    for name, storage, rows, counter in reading.rows(TABLES):
        fields = tuple(_column(row) for row in columns[name])
        split_by = partitions.get(name) or ""
        by = [field.name for field in fields if re.search(rf"\b{re.escape(field.name)}\b", split_by)]
        tables.append(
            Table(
                "",
                name,
                fields,
                keys=_keys(indexes[name]),
                references=_references(foreign[name]),
                indexed=frozenset(row[2] for row in indexes[name] if row[2]),
                checks=tuple(str(row[0]) for row in checks[name]),
                triggers=tuple(Trigger(row[0], bool(row[1]), row[2]) for row in triggers[name]),
                rows=float(rows),
                partitioned_by=tuple(by),
                storage=storage or "",
            )
        )
        sequences += _counter(name, fields, counter)
    return Catalog(
        Engine.MYSQL,
        version,
        tuple(tables),
        sequences=tuple(sequences),
        unsafe=tuple((str(a), str(b), str(c)) for a, b, c in reading.rows(SETTINGS)),
        hidden=_hidden(reading, database),
    )


def _hidden(reading: Reading, database: str) -> str:
    """Why tables may be missing, or nothing if the role may read every table of this database."""
    everything = re.compile(
        rf"GRANT (?:.*\bSELECT\b|ALL PRIVILEGES).* ON (?:\*\.\*|[`\"]?{re.escape(database)}[`\"]?\.\*) TO ", re.I
    )
    grants = [str(row[0]).replace("\\", "") for row in reading.rows("SHOW GRANTS")]
    if any(everything.match(grant) for grant in grants):
        return ""
    return f"this role has no SELECT on all of {database}: the server hides tables without a grant"


def _grouped(rows: list[Row]) -> defaultdict[str, list[Row]]:
    found = defaultdict[str, list[Row]](list)
    for row in rows:
        found[row[0]].append(row[1:])
    return found


def _column(row: Row) -> Column:
    name, data_type, spelled, nullable, default, extra, length, collation = row
    default, extra = str(default or ""), str(extra or "").lower()
    made = Made.NO
    if "auto_increment" in extra:
        made = Made.COUNTED
    elif "virtual" in extra or "stored" in extra:
        made = Made.COMPUTED
    elif _RANDOM.search(default):
        made = Made.RANDOM
    elif _CLOCK.search(default):
        made = Made.CLOCK
    kind = _KINDS.get(data_type.lower(), Kind.OTHER)
    return Column(
        name,
        str(spelled),
        kind,
        nullable=bool(nullable),
        made=made,
        default=default,
        length=int(length) if length and kind is Kind.TEXT else None,
        collation=collation or "",
        folds_case=(collation or "").endswith("_ci"),
    )


def _references(rows: list[Row]) -> tuple[Reference, ...]:
    parts = defaultdict[str, list[Row]](list)
    for row in rows:
        parts[row[0]].append(row)
    return tuple(
        Reference(name, tuple(row[1] for row in found), found[0][2], tuple(row[3] for row in found), found[0][4])
        for name, found in parts.items()
    )


def _keys(rows: list[Row]) -> tuple[Key, ...]:
    parts = defaultdict[str, list[Row]](list)
    for name, unique, *part in rows:
        if unique:
            parts[name].append(tuple(part))
    return tuple(
        Key(
            name,
            tuple(column for column, _ in columns if column),
            expressions=tuple("(expression)" for column, _ in columns if not column),
            primary=name == "PRIMARY",
            constraint=True,
            prefixes=tuple((column, int(prefix)) for column, prefix in columns if prefix),
        )
        for name, columns in parts.items()
    )


def _counter(table: str, fields: tuple[Column, ...], counter: int | None) -> list[Sequence]:
    """AUTO_INCREMENT as a sequence: the last number is one below the next."""
    for field in fields:
        if field.made is Made.COUNTED and counter:
            spelled = field.type.lower()
            greatest = _GREATEST[re.split(r"\W", spelled)[0]] * (2 if "unsigned" in spelled else 1) - 1
            return [Sequence(f"{table}.{field.name}", False, counter - 1, greatest, table, field.name)]
    return []
