"""The plan on MySQL and MariaDB, for their command line client (which knows DELIMITER).

Triggers refuse new duplicates before the clean-up begins, with a locking read: it sees rows that were committed a
moment ago, and keeps others from inserting the same key. In READ COMMITTED there are no locks on gaps, and two inserts
at the same moment may pass. Then the index is not built, the file ends with an error, and a second run cleans up that
row too.
"""

from __future__ import annotations

from collections.abc import Iterator

from samekey.detect.dialect import text
from samekey.detect.fix_plan.cleaning import Cleaning


def apply(cleaning: Cleaning) -> Iterator[str]:
    target, n, table = cleaning.target, cleaning.sql.name, cleaning.table
    helper, keys = f"sk_{target.slug}_idx", cleaning.sql.names(target.columns)
    yield "-- 1. Tables of the plan: they stay, for the undo."
    yield "SET SESSION lock_wait_timeout = 5; -- a plan never makes your writers queue for longer; run the file again"
    for statement in cleaning.tables():
        yield f"{statement};"
    yield "-- 2. From here on a new duplicate is refused with error 1062."
    yield from _unless_there(cleaning, helper, f"CREATE INDEX {n(helper)} ON {table} ({keys})")
    yield from _guards(cleaning)
    yield "-- 3. Archive, re-point children, delete: one transaction."
    yield "START TRANSACTION;"
    yield f"{cleaning.find()};"
    yield f"{cleaning.take()};"
    yield f"SELECT count(*) AS locked FROM ({cleaning.lock()}) x;"
    for statement in cleaning.batch():
        yield f"{statement};"
    yield "COMMIT;"
    yield "-- 4. The unique index. If it finds a duplicate, nothing is built: run the file again."
    yield "SET SESSION lock_wait_timeout = 3600;"
    build = f"CREATE UNIQUE INDEX {n(target.index)} ON {table} ({keys}) ALGORITHM = INPLACE LOCK = NONE"
    yield from _unless_there(cleaning, target.index, build)
    yield "-- 5. The index has taken over."
    yield from _drop_guards(cleaning)
    yield from _if_there(cleaning, helper, f"DROP INDEX {n(helper)} ON {table}")


def undo(cleaning: Cleaning) -> Iterator[str]:
    target, n, table = cleaning.target, cleaning.sql.name, cleaning.table
    yield from _drop_guards(cleaning)
    yield from _if_there(cleaning, target.index, f"DROP INDEX {n(target.index)} ON {table}")
    yield "SET SESSION foreign_key_checks = 0; -- rows that are put back may refer to each other"
    yield "START TRANSACTION;"
    for statement in cleaning.undo():
        yield f"{statement};"
    yield "COMMIT;"
    yield "SET SESSION foreign_key_checks = 1;"
    helper = f"sk_{target.slug}_idx"
    yield from _if_there(cleaning, helper, f"DROP INDEX {n(helper)} ON {table}")


def _guards(cleaning: Cleaning) -> Iterator[str]:
    target, n = cleaning.target, cleaning.sql.name
    names = [n(name) for name in target.columns]
    same = " AND ".join(f"t.{name} = NEW.{name}" for name in names)
    own = " AND ".join(f"t.{n(name)} = OLD.{n(name)}" for name in target.identity)
    changed = " OR ".join(f"NOT (NEW.{name} <=> OLD.{name})" for name in names)
    message = text("samekey: another row has this key, and a unique index is being built")
    refuse = f"SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1062, MESSAGE_TEXT = {message};"
    yield from _drop_guards(cleaning)
    yield "DELIMITER //"
    yield (
        f"CREATE TRIGGER {n(f'zz_{target.slug}_i')} BEFORE INSERT ON {cleaning.table} FOR EACH ROW BEGIN\n"
        f"  IF EXISTS (SELECT 1 FROM {cleaning.table} t WHERE {same} LOCK IN SHARE MODE) THEN {refuse} END IF;\nEND//"
    )
    yield (
        f"CREATE TRIGGER {n(f'zz_{target.slug}_u')} BEFORE UPDATE ON {cleaning.table} FOR EACH ROW BEGIN\n"
        f"  IF ({changed}) AND EXISTS (SELECT 1 FROM {cleaning.table} t WHERE {same} AND NOT ({own})\n"
        f"    LOCK IN SHARE MODE) THEN {refuse} END IF;\nEND//"
    )
    yield "DELIMITER ;"


def _drop_guards(cleaning: Cleaning) -> Iterator[str]:
    for letter in "iu":
        yield f"DROP TRIGGER IF EXISTS {cleaning.sql.name(f'zz_{cleaning.target.slug}_{letter}')};"


def _unless_there(cleaning: Cleaning, index: str, statement: str) -> Iterator[str]:
    yield from _prepared(cleaning, index, "'DO 0'", text(statement))


def _if_there(cleaning: Cleaning, index: str, statement: str) -> Iterator[str]:
    yield from _prepared(cleaning, index, text(statement), "'DO 0'")


def _prepared(cleaning: Cleaning, index: str, there: str, not_there: str) -> Iterator[str]:
    """MySQL has no IF NOT EXISTS for an index."""
    yield (
        "SET @samekey = IF(EXISTS (SELECT 1 FROM information_schema.statistics WHERE table_schema = database() "
        f"AND table_name = {text(cleaning.target.table.name)} AND index_name = {text(index)}),\n"
        f"  {there},\n  {not_there});"
    )
    yield "PREPARE samekey FROM @samekey;"
    yield "EXECUTE samekey;"
    yield "DEALLOCATE PREPARE samekey;"
