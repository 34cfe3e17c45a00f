"""The plan on PostgreSQL, for psql.

No duplicate can come in between the clean-up and the index. A trigger refuses new ones first: it takes a lock on the
key, so two inserts of one key come one after another, and looks for another row. Making the trigger waits for every
transaction that wrote before it, so the clean-up sees all rows. A writer in REPEATABLE READ looks at an older state and
may pass the trigger. Then the index is not built, the file ends with an error, and a second run cleans up that row too:
the index decides, the trigger only keeps the number of runs small.
"""

from __future__ import annotations

from collections.abc import Iterator

from samekey.detect.dialect import text
from samekey.detect.fix_plan.cleaning import SCHEMA, Cleaning

BATCH = 500  # rows too many in one transaction: some ten milliseconds of row locks
ROUNDS_MAX = 20  # looks at the table; each one after the first is for rows that changed meanwhile


def apply(cleaning: Cleaning) -> Iterator[str]:
    target, n, table = cleaning.target, cleaning.sql.name, cleaning.table
    schema = n(target.table.schema)
    helper, function, trigger = f"sk_{target.slug}_idx", f"{SCHEMA}.{n(target.slug + '_guard')}", f"zz_{target.slug}"
    keys = cleaning.sql.names(target.columns)
    yield "-- 1. Tables of the plan: they stay, for the undo."
    yield "SET lock_timeout = '5s'; -- a plan never makes your writers queue for longer; run the file again"
    yield f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};"
    for statement in cleaning.tables():
        yield f"{statement};"
    yield "-- 2. From here on a new duplicate is refused with unique_violation."
    yield _drop_invalid(target.table.schema, helper)
    yield "SET lock_timeout = 0; -- an index that is built concurrently waits for transactions, and blocks none"
    yield f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {n(helper)} ON {table} ({keys});"
    yield "SET lock_timeout = '5s';"
    yield _guard(cleaning, function)
    yield (
        f"CREATE OR REPLACE TRIGGER {n(trigger)} BEFORE INSERT OR UPDATE OF {keys} ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION {function}();"
    )
    yield f"-- 3. Archive, re-point children, delete: {BATCH} rows in one transaction each."
    yield _clean(cleaning)
    yield "-- 4. The unique index."
    yield _drop_invalid(target.table.schema, target.index)
    nulls = " NULLS NOT DISTINCT" if target.nulls_equal else ""
    yield "SET lock_timeout = 0;"
    yield f"CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS {n(target.index)} ON {table} ({keys}){nulls};"
    yield _check_valid(target.table.schema, target.index)
    yield "-- 5. The index has taken over."
    yield "SET lock_timeout = '5s';"
    yield f"DROP TRIGGER IF EXISTS {n(trigger)} ON {table};"
    yield f"DROP FUNCTION IF EXISTS {function}();"
    yield f"DROP INDEX CONCURRENTLY IF EXISTS {schema}.{n(helper)};"
    if target.drops:
        yield f"DROP INDEX CONCURRENTLY IF EXISTS {schema}.{n(target.drops)};"


def undo(cleaning: Cleaning) -> Iterator[str]:
    target, n = cleaning.target, cleaning.sql.name
    yield "SET lock_timeout = '5s';"
    yield "BEGIN;"
    yield f"DROP TRIGGER IF EXISTS {n(f'zz_{target.slug}')} ON {cleaning.table};"
    yield f"DROP FUNCTION IF EXISTS {SCHEMA}.{n(target.slug + '_guard')}();"
    yield f"DROP INDEX IF EXISTS {n(target.table.schema)}.{n(target.index)};"
    for statement in cleaning.undo():
        yield f"{statement};"
    yield "COMMIT;"
    yield f"DROP INDEX CONCURRENTLY IF EXISTS {n(target.table.schema)}.{n(f'sk_{target.slug}_idx')};"


def _guard(cleaning: Cleaning, function: str) -> str:
    target, n = cleaning.target, cleaning.sql.name
    names = [n(name) for name in target.columns]
    compare = "IS NOT DISTINCT FROM" if target.nulls_equal else "="
    same = " AND ".join(f"t.{name} {compare} NEW.{name}" for name in names)
    unchanged = " AND ".join(f"NEW.{name} IS NOT DISTINCT FROM OLD.{name}" for name in names)
    keyless = " OR ".join(f"NEW.{name} IS NULL" for name in names)
    own = " AND ".join(f"t.{n(name)} IS NOT DISTINCT FROM NEW.{n(name)}" for name in target.identity)
    skip = "" if target.nulls_equal else f"  IF {keyless} THEN RETURN NEW; END IF;\n"
    row = ", ".join(f"NEW.{name}" for name in names)
    message = text(f"samekey: {target.table.name} has a row with this key, and a unique index is being built")
    return (
        f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER\n"
        "SET search_path = pg_catalog AS $guard$ BEGIN\n"
        f"  IF TG_OP = 'UPDATE' AND {unchanged} THEN RETURN NEW; END IF;\n"
        f"{skip}"
        f"  PERFORM pg_advisory_xact_lock(hashtextextended(ROW({row})::text, TG_RELID::bigint));\n"
        f"  IF EXISTS (SELECT FROM {cleaning.table} t WHERE {same} AND NOT ({own})) THEN\n"
        f"    RAISE unique_violation USING MESSAGE = {message}, CONSTRAINT = {text(target.index)};\n"
        "  END IF;\n"
        "  RETURN NEW;\n"
        "END $guard$;"
    )


def _clean(cleaning: Cleaning) -> str:
    count = range(len(cleaning.target.identity))
    ids = ", ".join(f"p{number}" for number in count)
    row = ids if len(count) == 1 else f"({ids})"
    steps = "".join(f"      {statement};\n" for statement in cleaning.batch())
    return (
        "DO $clean$ DECLARE rounds int := 0; found bigint; BEGIN\n"
        "  LOOP\n"
        f"    {cleaning.find()};\n"
        f"    EXIT WHEN NOT EXISTS (SELECT FROM {cleaning.map} WHERE state = 0);\n"
        "    rounds := rounds + 1;\n"
        f"    IF rounds > {ROUNDS_MAX} THEN RAISE 'rows change too fast: run the file again'; END IF;\n"
        "    COMMIT;\n"
        "    LOOP\n"
        f"      UPDATE {cleaning.map} SET state = 1 WHERE {row} IN\n"
        f"        (SELECT {ids} FROM {cleaning.map} WHERE state = 0 ORDER BY {ids} LIMIT {BATCH});\n"
        "      GET DIAGNOSTICS found = ROW_COUNT;\n"
        "      EXIT WHEN found = 0;\n"
        f"      PERFORM * FROM ({cleaning.lock()}) locked;\n"
        f"{steps}"
        "      COMMIT;\n"
        "    END LOOP;\n"
        "  END LOOP;\n"
        "END $clean$;"
    )


def _drop_invalid(schema: str, index: str) -> str:
    """An index that was left by a build that failed: IF NOT EXISTS would take it for a good one."""
    name = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, index))
    return (
        "DO $drop$ BEGIN\n"
        f"  IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass({text(name)}) AND NOT indisvalid) THEN\n"
        f"    DROP INDEX {name};\n"
        "  END IF;\n"
        "END $drop$;"
    )


def _check_valid(schema: str, index: str) -> str:
    name = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, index))
    return (
        "DO $check$ BEGIN\n"
        f"  IF NOT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass({text(name)})\n"
        "      AND indisvalid AND indisready AND indisunique) THEN\n"
        "    RAISE 'the unique index is not valid: run this file again';\n"
        "  END IF;\n"
        "END $check$;"
    )
