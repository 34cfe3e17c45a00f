"""The audit trigger: SQL that makes, follows, prunes and removes it on each server.

Each inserted row goes, with the columns of the rules only, into one table as a JSON object. PostgreSQL has a trigger
per statement, which costs a third of a trigger per row; MySQL and SQLite know triggers per row only.

Rows are read up to a horizon: a point before which every transaction has ended. A row number or a time alone would skip
rows, because a transaction may commit after another one that began later. `horizon` returns (position, microseconds).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

from samekey.detect.catalog import Engine
from samekey.detect.dialect import quoted, text
from samekey.drivers.writing import Writing

MARGIN_SECONDS = 2  # MySQL: its list of transactions is up to 0.1 s old, and their start has whole seconds


class Server(Protocol):
    engine: Engine

    def create(self, audit: str, epoch: str) -> list[str]: ...
    def trigger(self, audit: str, table: str, columns: Sequence[str]) -> list[str]: ...
    def drop_trigger(self, table: str) -> list[str]: ...
    def installed(self, table: str) -> str:
        """A SELECT of one number: how many enabled audit triggers the table has."""
        ...

    def horizon(self, link: Writing, audit: str) -> tuple[int, int]: ...
    def read(self, audit: str) -> str:
        """Rows with `%s` <= position < `%s`, at most as many as the third value: position, table, row."""
        ...


def trigger_name(table: str, part: str = "") -> str:
    digest = hashlib.blake2b(table.encode(), digest_size=6).hexdigest()
    return f"samekey_audit_{digest}{part}"


def table_name(full_name: str, engine: Engine) -> str:
    return ".".join(quoted(part, engine) for part in full_name.split(".", 1))


class PostgresServer:
    engine = Engine.POSTGRES

    def create(self, audit: str, epoch: str) -> list[str]:
        name = table_name(audit, self.engine)
        return [
            f"CREATE TABLE IF NOT EXISTS {name} (at bigint NOT NULL, seq bigint GENERATED ALWAYS AS IDENTITY, "
            "table_name text NOT NULL, row_values text NOT NULL, stored_at timestamptz NOT NULL DEFAULT "
            "clock_timestamp(), PRIMARY KEY (at, seq))",
            f"INSERT INTO {name} (at, table_name, row_values) SELECT 0, '', {text(epoch)} "
            f"WHERE NOT EXISTS (SELECT FROM {name} WHERE at = 0)",
        ]

    def trigger(self, audit: str, table: str, columns: Sequence[str]) -> list[str]:
        name, on = trigger_name(table), table_name(table, self.engine)
        schema = audit.partition(".")[0]
        function = f"{quoted(schema, self.engine)}.{quoted(name, self.engine)}"
        pairs = ", ".join(f"{text(one)}, {quoted(one, self.engine)}::text" for one in columns)
        body = (
            f"BEGIN INSERT INTO {table_name(audit, self.engine)} (at, table_name, row_values) "
            f"SELECT pg_current_xact_id()::text::bigint, {text(table)}, json_build_object({pairs})::text "
            "FROM samekey_new_rows; RETURN NULL; END"
        )
        return [
            # Its owner's rights: the application's role needs none on the audit table.
            f"CREATE OR REPLACE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER "
            f"SET search_path = pg_catalog, pg_temp AS {text(body)}",
            f"DROP TRIGGER IF EXISTS {quoted(name, self.engine)} ON {on}",
            f"CREATE TRIGGER {quoted(name, self.engine)} AFTER INSERT ON {on} "
            f"REFERENCING NEW TABLE AS samekey_new_rows FOR EACH STATEMENT EXECUTE FUNCTION {function}()",
        ]

    def drop_trigger(self, table: str) -> list[str]:
        name = quoted(trigger_name(table), self.engine)
        return [f"DROP TRIGGER IF EXISTS {name} ON {table_name(table, self.engine)}"]

    def installed(self, table: str) -> str:
        return (
            f"SELECT count(*) FROM pg_trigger WHERE tgname = {text(trigger_name(table))} "
            f"AND tgrelid = {text(table_name(table, self.engine))}::regclass AND tgenabled IN ('O', 'A')"
        )

    def horizon(self, link: Writing, audit: str) -> tuple[int, int]:
        """Every transaction before the oldest running one has ended: its rows are visible, or never will be."""
        ((position, now),) = link.run(
            "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint, "
            "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        )
        return int(position), int(now)

    def read(self, audit: str) -> str:
        return (
            f"SELECT at, table_name, row_values, (extract(epoch FROM stored_at) * 1000000)::bigint "
            f"FROM {table_name(audit, self.engine)} WHERE at >= %s AND at < %s AND at > 0 ORDER BY at, seq"
        )


class MysqlServer:
    engine = Engine.MYSQL

    def create(self, audit: str, epoch: str) -> list[str]:
        name = table_name(audit, self.engine)
        return [
            f"CREATE TABLE IF NOT EXISTS {name} (seq BIGINT AUTO_INCREMENT PRIMARY KEY, at BIGINT NOT NULL, "
            "table_name VARCHAR(255) CHARACTER SET utf8mb4 NOT NULL, row_values LONGTEXT CHARACTER SET utf8mb4 "
            "NOT NULL, KEY (at)) ENGINE=InnoDB",
            f"INSERT INTO {name} (at, table_name, row_values) SELECT 0, '', {text(epoch)} FROM DUAL "
            f"WHERE NOT EXISTS (SELECT 1 FROM {name} WHERE at = 0)",
        ]

    def trigger(self, audit: str, table: str, columns: Sequence[str]) -> list[str]:
        name = quoted(trigger_name(table), self.engine)
        pairs = ", ".join(f"{text(one)}, CAST(NEW.{quoted(one, self.engine)} AS CHAR)" for one in columns)
        # SYSDATE, not NOW: the statement may have begun before its transaction is listed.
        return [
            f"DROP TRIGGER IF EXISTS {name}",
            f"CREATE TRIGGER {name} AFTER INSERT ON {table_name(table, self.engine)} FOR EACH ROW "
            f"INSERT INTO {table_name(audit, self.engine)} (at, table_name, row_values) VALUES "
            f"(CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), {text(table)}, JSON_OBJECT({pairs}))",
        ]

    def drop_trigger(self, table: str) -> list[str]:
        return [f"DROP TRIGGER IF EXISTS {quoted(trigger_name(table), self.engine)}"]

    def installed(self, table: str) -> str:
        return (
            "SELECT count(*) FROM information_schema.triggers WHERE trigger_schema = DATABASE() "
            f"AND trigger_name = {text(trigger_name(table))}"
        )

    def horizon(self, link: Writing, audit: str) -> tuple[int, int]:
        """Before the start of the oldest transaction that is listed as running; needs the PROCESS privilege."""
        ((now, oldest),) = link.run(
            "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), "
            "(SELECT CAST(UNIX_TIMESTAMP(MIN(trx_started)) * 1000000 AS SIGNED) FROM information_schema.innodb_trx)"
        )
        ends = int(now) if oldest is None else min(int(now), int(oldest))
        return ends - MARGIN_SECONDS * 1_000_000, int(now)

    def read(self, audit: str) -> str:
        return (
            f"SELECT at, table_name, row_values, at FROM {table_name(audit, self.engine)} "
            "WHERE at >= %s AND at < %s AND at > 0 ORDER BY at, seq"
        )


class SqliteServer:
    engine = Engine.SQLITE

    def create(self, audit: str, epoch: str) -> list[str]:
        name = table_name(audit, self.engine)
        return [
            f"CREATE TABLE IF NOT EXISTS {name} (at INTEGER PRIMARY KEY AUTOINCREMENT, table_name TEXT NOT NULL, "
            "row_values TEXT NOT NULL, stored_at REAL NOT NULL)",
            f"INSERT OR IGNORE INTO {name} (at, table_name, row_values, stored_at) VALUES (0, '', {text(epoch)}, 0)",
        ]

    def trigger(self, audit: str, table: str, columns: Sequence[str]) -> list[str]:
        name = quoted(trigger_name(table), self.engine)
        pairs = ", ".join(f"{text(one)}, {self._value(one)}" for one in columns)
        return [
            f"DROP TRIGGER IF EXISTS {name}",
            f"CREATE TRIGGER {name} AFTER INSERT ON {table_name(table, self.engine)} BEGIN "
            f"INSERT INTO {table_name(audit, self.engine)} (table_name, row_values, stored_at) VALUES ({text(table)}, "
            f"json_object({pairs}), (julianday('now') - 2440587.5) * 86400); END",
        ]

    def _value(self, column: str) -> str:
        """A BLOB in JSON is an error, and would make the application's INSERT fail."""
        name = f"NEW.{quoted(column, self.engine)}"
        return f"CASE typeof({name}) WHEN 'blob' THEN 'x' || hex({name}) WHEN 'null' THEN NULL ELSE {name} || '' END"

    def drop_trigger(self, table: str) -> list[str]:
        return [f"DROP TRIGGER IF EXISTS {quoted(trigger_name(table), self.engine)}"]

    def installed(self, table: str) -> str:
        return f"SELECT count(*) FROM sqlite_schema WHERE type = 'trigger' AND name = {text(trigger_name(table))}"

    def horizon(self, link: Writing, audit: str) -> tuple[int, int]:
        """One transaction writes at a time, so row numbers are in the order of commits."""
        ((last, now),) = link.run(
            f"SELECT coalesce(max(at), 0), CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER) "
            f"FROM {table_name(audit, self.engine)}"
        )
        return int(last) + 1, int(now)

    def read(self, audit: str) -> str:
        return (
            f"SELECT at, table_name, row_values, CAST(stored_at * 1000000 AS INTEGER) "
            f"FROM {table_name(audit, self.engine)} WHERE at >= %s AND at < %s AND at > 0 ORDER BY at"
        )


SERVERS: dict[Engine, Server] = {one.engine: one for one in (PostgresServer(), MysqlServer(), SqliteServer())}
