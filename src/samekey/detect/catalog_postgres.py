"""PostgreSQL's catalog, read into the model. A role that may only connect can read all of it, except sequences."""

from __future__ import annotations

import re
from collections import defaultdict

from samekey.core.errors import Misconfigured
from samekey.detect.catalog import Catalog, Column, Engine, Key, Kind, Made, Reference, Sequence, Table, Trigger
from samekey.drivers.reading import Reading, Row

OLDEST = 150000  # the first with NULLS NOT DISTINCT, and with a collation version for each database

SERVER = """
SELECT current_setting('server_version_num')::int, current_setting('server_version'),
       current_setting('server_encoding') = 'UTF8'
"""

# Tables that an extension owns are the extension's affair.
TABLES = """
SELECT c.oid, n.nspname, c.relname, c.relpersistence, c.relispartition, c.reltuples::float8,
       has_table_privilege(c.oid, 'SELECT'), p.partattrs::int2[]
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_partitioned_table p ON p.partrelid = c.oid
WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't'
  AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
  AND NOT EXISTS (
    SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
ORDER BY n.nspname, c.relname
"""

COLUMNS = """
SELECT a.attrelid, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), b.typname, a.attnotnull,
       a.attidentity <> '', a.attgenerated <> '', pg_get_expr(d.adbin, d.adrelid),
       CASE WHEN b.typname IN ('varchar', 'bpchar') AND a.atttypmod > 4 THEN a.atttypmod - 4 END,
       l.collname, coalesce(NOT l.collisdeterministic, false),
       coalesce(l.collversion IS DISTINCT FROM pg_collation_actual_version(l.oid) AND l.collversion IS NOT NULL, false)
         OR (l.collname = 'default' AND (SELECT e.datcollversion IS DISTINCT FROM
             pg_database_collation_actual_version(e.oid) AND e.datcollversion IS NOT NULL
             FROM pg_database e WHERE e.datname = current_database()))
FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid AND c.relkind IN ('r', 'p')
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.oid END
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attrelid, a.attnum
"""

INDEXES = """
SELECT i.indrelid, x.relname, i.indisunique, i.indisprimary, i.indisvalid AND i.indisready AND i.indislive,
       i.indnullsnotdistinct, (i.indkey::int2[])[0:i.indnkeyatts - 1],
       ARRAY(SELECT pg_get_indexdef(i.indexrelid, k + 1, true) FROM generate_series(0, i.indnkeyatts - 1) k
             WHERE (i.indkey::int2[])[k] = 0),
       pg_get_expr(i.indpred, i.indrelid), coalesce(o.condeferrable, false), coalesce(o.condeferred, false),
       o.oid IS NOT NULL, EXISTS (SELECT FROM pg_inherits h WHERE h.inhrelid = i.indexrelid)
FROM pg_index i
JOIN pg_class x ON x.oid = i.indexrelid
JOIN pg_class c ON c.oid = i.indrelid AND c.relkind IN ('r', 'p')
LEFT JOIN pg_constraint o ON o.conindid = i.indexrelid AND o.contype IN ('p', 'u')
ORDER BY x.relname
"""

CONSTRAINTS = """
SELECT o.conrelid, pg_get_constraintdef(o.oid) FROM pg_constraint o WHERE o.contype = 'c' AND o.conrelid <> 0
"""

# conparentid: the foreign key of a partition is a copy of its parent's.
REFERENCES = """
SELECT o.conrelid, o.conname, o.conkey::int2[], o.confrelid, o.confkey::int2[],
       CASE o.confdeltype WHEN 'c' THEN 'CASCADE' WHEN 'n' THEN 'SET NULL' WHEN 'd' THEN 'SET DEFAULT'
         WHEN 'r' THEN 'RESTRICT' ELSE 'NO ACTION' END
FROM pg_constraint o WHERE o.contype = 'f' AND o.conparentid = 0 ORDER BY o.conname
"""

PARENTS = """
SELECT h.inhrelid, h.inhparent FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhrelid AND c.relkind IN ('r', 'p')
ORDER BY h.inhrelid, h.inhseqno
"""

TRIGGERS = """
SELECT t.tgrelid, t.tgname, (t.tgtype & 2) <> 0 AND (t.tgtype & 4) <> 0, p.prosrc, t.tgenabled IN ('A', 'R')
FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid WHERE NOT t.tgisinternal ORDER BY t.tgname
"""

RULES = "SELECT ev_class, rulename FROM pg_rewrite WHERE ev_type = '3' AND ev_enabled <> 'D' ORDER BY rulename"

SEQUENCES = """
SELECT s.schemaname, s.sequencename, s.cycle, s.last_value,
       least(s.max_value, CASE a.atttypid WHEN 21 THEN 32767 WHEN 23 THEN 2147483647 ELSE s.max_value END),
       n.nspname, c.relname, a.attname
FROM pg_sequences s
JOIN pg_class q ON q.relname = s.sequencename AND q.relkind = 'S'
JOIN pg_namespace m ON m.oid = q.relnamespace AND m.nspname = s.schemaname
LEFT JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = q.oid
  AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i')
LEFT JOIN pg_class c ON c.oid = d.refobjid
LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.refobjsubid
WHERE s.schemaname NOT LIKE 'pg\\_%'
ORDER BY 1, 2
"""

# Settings of the server itself, and those of a role or database.
SETTINGS = """
SELECT name, setting, 'the server' FROM pg_settings
WHERE (name, setting) IN (('fsync', 'off'), ('full_page_writes', 'off'), ('synchronous_commit', 'off'))
  AND source NOT IN ('database', 'user', 'database user')
UNION ALL
SELECT split_part(s, '=', 1), split_part(s, '=', 2),
       CASE WHEN r.setrole = 0 THEN 'the database' ELSE 'the role ' || pg_get_userbyid(r.setrole) END
FROM pg_db_role_setting r CROSS JOIN unnest(r.setconfig) s
WHERE s = 'synchronous_commit=off'
  AND (r.setdatabase = 0 OR r.setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database()))
"""

SUBSCRIPTIONS = """
SELECT r.srrelid, s.subname FROM pg_subscription_rel r JOIN pg_subscription s ON s.oid = r.srsubid
ORDER BY s.subname
"""

PUBLICATIONS = """
SELECT r.prrelid, p.pubname, r.prattrs::int2[] FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
WHERE r.prattrs IS NOT NULL ORDER BY p.pubname
"""

_KINDS = {
    **dict.fromkeys(("text", "varchar", "bpchar", "citext", "name"), Kind.TEXT),
    **dict.fromkeys(("int2", "int4", "int8"), Kind.INTEGER),
    **dict.fromkeys(("float4", "float8"), Kind.FLOAT),
    **dict.fromkeys(("timestamp", "timestamptz", "date"), Kind.TIME),
    **dict.fromkeys(("json", "jsonb", "xml"), Kind.DOCUMENT),
    "numeric": Kind.EXACT,
    "uuid": Kind.UUID,
    "bytea": Kind.BYTES,
}
_CLOCK = re.compile(
    r"\b(now|clock_timestamp|statement_timestamp|transaction_timestamp)\(\)|CURRENT_(TIMESTAMP|DATE)", re.I
)
_RANDOM = re.compile(r"\b(gen_random_uuid|uuid_generate_v\d\w*|uuidv\d|random|gen_random_bytes)\(", re.I)


def read(reading: Reading) -> Catalog:
    """The whole catalog, in a dozen queries."""
    rows = reading.rows
    ((number, version, unicode),) = rows(SERVER)
    if number < OLDEST:
        raise Misconfigured(f"this server is PostgreSQL {version}: `samekey db audit` reads PostgreSQL 15 and newer")
    columns = _columns(rows(COLUMNS))
    indexes, constraints, parents = _grouped(rows(INDEXES)), _grouped(rows(CONSTRAINTS)), _grouped(rows(PARENTS))
    references = _grouped(rows(REFERENCES))
    triggers, rules = _grouped(rows(TRIGGERS)), _grouped(rows(RULES))
    subscriptions, publications = _grouped(rows(SUBSCRIPTIONS)), _grouped(rows(PUBLICATIONS))
    found = rows(TABLES)
    names = {row[0]: f"{row[1]}.{row[2]}" for row in found}
    tables, parts = [], defaultdict[str, list[str]](list)
    for oid, schema, name, persistence, is_partition, rows_estimated, readable, partition_attributes in found:
        named = {number: column.name for number, column in columns[oid].items()}
        above = [names[parent] for (parent,) in parents[oid] if parent in names]
        if is_partition and above:
            parts[above[0]].append(f"{schema}.{name}")
        tables.append(
            Table(
                schema,
                name,
                tuple(columns[oid].values()),
                keys=tuple(_key(row, named) for row in indexes[oid] if row[1]),
                references=tuple(
                    Reference(
                        fk,
                        tuple(named[one] for one in of),
                        names[other],
                        tuple(columns[other][one].name for one in to),
                        on_delete,
                    )
                    for fk, of, other, to, on_delete in references[oid]
                    if other in names
                ),
                indexed=frozenset(named[row[5][0]] for row in indexes[oid] if row[5] and row[5][0] in named),
                checks=tuple(row[0] for row in constraints[oid]),
                triggers=tuple(Trigger(*row) for row in triggers[oid]),
                insert_rules=tuple(row[0] for row in rules[oid]),
                rows=max(rows_estimated, 0.0),
                readable=readable,
                logged=persistence != "u",
                partition_of=above[0] if is_partition and above else "",
                partitioned_by=tuple(named[one] for one in partition_attributes or () if one),
                partition_expression=0 in (partition_attributes or ()),
                inherits=() if is_partition else tuple(above),
                subscriptions=tuple(row[0] for row in subscriptions[oid]),
                published=tuple(
                    (row[0], frozenset(named[one] for one in row[1] if one in named)) for row in publications[oid]
                ),
            )
        )
    return Catalog(
        Engine.POSTGRES,
        version,
        tuple(tables),
        sequences=tuple(_sequence(row) for row in rows(SEQUENCES)),
        unsafe=tuple((str(a), str(b), str(c)) for a, b, c in rows(SETTINGS)),
        unicode=unicode,
        parts={parent: tuple(children) for parent, children in parts.items()},
    )


def _grouped(rows: list[Row]) -> defaultdict[int, list[Row]]:
    """The rows by their first field, an oid, without it."""
    found = defaultdict[int, list[Row]](list)
    for row in rows:
        found[row[0]].append(row[1:])
    return found


def _columns(rows: list[Row]) -> defaultdict[int, dict[int, Column]]:
    found = defaultdict[int, dict[int, Column]](dict)
    for table, number, name, spelled, base, required, identity, computed, default, length, *collated in rows:
        collation, folds, changed = collated
        found[table][number] = Column(
            name,
            spelled,
            _KINDS.get(base, Kind.OTHER),
            nullable=not required,
            made=_made(identity, computed, default or ""),
            default=default or "",
            length=length,
            collation=collation or "",
            folds_case=base == "citext" or bool(folds),
            collation_changed=bool(changed),
        )
    return found


def _made(identity: bool, computed: bool, default: str) -> Made:
    if identity or "nextval(" in default:
        return Made.COUNTED
    if computed:
        return Made.COMPUTED
    if _RANDOM.search(default):
        return Made.RANDOM
    return Made.CLOCK if _CLOCK.search(default) else Made.NO


def _key(row: Row, named: dict[int, str]) -> Key:
    (
        name,
        _,
        primary,
        valid,
        nulls_equal,
        numbers,
        expressions,
        predicate,
        deferrable,
        deferred,
        constraint,
        attached,
    ) = row
    return Key(
        name,
        tuple(named[one] for one in numbers if one),
        expressions=tuple(expressions),
        primary=primary,
        constraint=constraint,
        predicate=predicate or "",
        nulls_distinct=not nulls_equal,
        valid=valid,
        deferrable=deferrable,
        deferred=deferred,
        inherited=attached,
    )


def _sequence(row: Row) -> Sequence:
    schema, name, cycles, last, greatest, table_schema, table, column = row
    owner = f"{table_schema}.{table}" if table else ""
    return Sequence(f"{schema}.{name}", cycles, last, greatest, owner, column or "")
