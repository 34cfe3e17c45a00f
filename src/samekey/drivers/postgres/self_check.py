"""The self-check of every new connection to PostgreSQL: which statements it sends, and the facts it learns.

Sans-IO and without the driver: `self_check` yields statements and is sent their rows, so that it exists once for
sync and async connections.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.drivers.schema import OTHER_TABLES, check_schema, foreign_table, migrate_line, table_warnings

if TYPE_CHECKING:
    from samekey.drivers.postgres.address import Address, Durability


SCHEMA = 1  # the newest migration this version knows
STATEMENT_SECONDS = 5.0  # samekey's take milliseconds; the time a commit waits for a standby does not count
OPERATOR_SECONDS = 60.0  # a list over millions of records, a sweep
LOCK_SECONDS = 0.1  # for a row that a long transaction holds: all other callers of the connection wait meanwhile
CLAIM_LOCK_SECONDS = 0.05  # claims wait for it less, but longer than a commit takes; then they change the connection
OPERATOR_LOCK_SECONDS = 1.0

# The columns of the table of records, in order: replies are read by these positions. A newer schema may append some.
# fmt: off
COLUMNS = (
    "digest uuid", "attempt uuid", "token bigint", "created_at float8", "changed_at float8", "lease_until float8",
    "begun_at float8", "first_sent_at float8", "settled_at float8", "retain_until float8", "ask_until float8",
    "waited_for bigint", "version integer", "attempts integer", "round integer", "unsure boolean", "happened boolean",
    "state text", "operation text", "tenant text", "key text", "fingerprint bytea", "form text", "boundary text",
    "fields text", "attributes text", "settled_by text", "error text", "asker text", "result bytea", "moves text",
    "evidence jsonb", "content bytea", "payload bytea", "notes bytea", "terms uuid[]",
    "inquiry jsonb",
)
# fmt: on

# The rights that the application's role needs, as docs/postgresql.md grants them.
RIGHTS = {
    "samekey_records": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "samekey_meta": ("SELECT", "INSERT", "UPDATE"),
    "samekey_audit": ("SELECT", "INSERT"),
    "samekey_counts": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "samekey_findings": ("SELECT", "INSERT", "UPDATE"),
    "samekey_parked": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "samekey_tokens": ("USAGE",),  # a sequence
}


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a connection is for."""

    durable: bool = True  # False: a crash of the server may lose an acknowledged write
    operator: bool = False  # for operator queries, which may read whole tables and take their time
    lock_seconds: float = LOCK_SECONDS  # how long a statement waits for a row that another transaction holds


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server reported about itself when samekey connected."""

    server: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str  # as claims commit
    standbys: str  # synchronous_standby_names
    followers: int  # connected standbys, as far as this role may see
    encoding: str
    isolation: str
    missing: tuple[str, ...]  # tables without which claims work
    unlogged: bool  # whether the records are in a table that a crash of the server empties
    denied: tuple[str, ...]  # rights that this role lacks: "INSERT ON samekey_audit"
    schema: int
    incarnation: str
    lost_at: float | None  # when another incarnation was first seen, by the server's clock

    def warnings(self, durability: Durability) -> tuple[str, ...]:
        found = []
        if self.fsync != "on":
            found.append("fsync is off: a crash of the machine may lose or damage every record")
        if self.full_page_writes != "on":
            found.append("full_page_writes is off: a power loss may damage records")
        if self.unlogged:
            found.append(
                "the table samekey_records is UNLOGGED: a crash of the server empties it, and every effect may run "
                "again. Repair it with: ALTER TABLE samekey_records SET LOGGED"
            )
        if durability == "fast":
            found.append(
                "durability=fast: a crash of the server may forget the last claims, and their effects run again"
            )
        if self.encoding != "UTF8":
            found.append(f"the database is in {self.encoding}, not UTF8: some keys cannot be written")
        if self.isolation != "read committed":
            found.append(f"sessions start in {self.isolation}: a lost race ends in an error instead of a replay")
        found += table_warnings(self.missing, "postgresql://...")
        if self.denied:
            found.append(f"this role lacks rights, and commands that need them fail: GRANT {', '.join(self.denied)}")
        if self.lost_at is not None:
            found.append("the server lost its memory (failover, restore): claims since then ask first, where one can")
        return tuple(found)

    def guarantee(self, durability: Durability) -> str:
        if self.fsync != "on":
            return "claims survive crashes of clients only: the server does not wait for its disk (fsync is off)"
        if self.unlogged:
            return "claims survive crashes of clients only: a crash of the server empties its UNLOGGED table of records"
        if durability == "fast":
            return "claims survive crashes of clients; a crash of the server may lose the last ones (durability=fast)"
        answers = ", answers may be lost with it (then in doubt)" if durability == "claim-durable" else ""
        if self.standbys:
            return (
                f"claims survive crashes of clients and of the server{answers}, and a failover to a synchronous standby"
            )
        return (
            f"claims survive crashes of clients and of the server{answers}; "
            "a failover to an asynchronous standby may lose the last ones"
        )

    def listed(self) -> tuple[tuple[str, str], ...]:
        return (
            ("server", f"PostgreSQL {self.server}"),
            ("schema", str(self.schema)),
            ("audit table", "missing" if "samekey_audit" in self.missing else "present"),
            ("fsync", self.fsync),
            ("full_page_writes", self.full_page_writes),
            ("synchronous_commit", self.synchronous_commit),
            ("synchronous_standby_names", self.standbys or "none"),
            ("standbys connected", str(self.followers)),
        )


_SESSION = """
SELECT set_config('synchronous_commit', %s, false), set_config('statement_timeout', %s, false),
       set_config('lock_timeout', %s, false), set_config('default_transaction_isolation', 'read committed', false),
       set_config('idle_session_timeout', '0', false),
       -- The server reports by a warning that a commit may be missing on its standby.
       set_config('client_min_messages', 'warning', false),
       -- A plan made while the table was empty would read the whole table for ever.
       set_config('enable_seqscan', %s, false),
       -- Each statement has one good plan; planning each batch anew took longer than carrying it out.
       set_config('plan_cache_mode', %s, false)
"""

_NEEDED = ", ".join(f"('{name}', '{right}')" for name, rights in RIGHTS.items() for right in rights)

_FACTS = f"""
SELECT current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'),
       current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
       current_setting('server_encoding'), current_setting('default_transaction_isolation'),
       (SELECT coalesce(string_agg(name, ','), '') FROM unnest('{{{", ".join(OTHER_TABLES)}}}'::text[]) AS name
         WHERE to_regclass(name) IS NULL),
       EXISTS (SELECT FROM pg_class WHERE relpersistence = 'u' AND (oid = to_regclass('samekey_records')
         OR oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = to_regclass('samekey_records')))),
       (SELECT coalesce(string_agg(needed || ' ON ' || name, ',' ORDER BY name, needed), '')
          FROM (VALUES {_NEEDED}) AS rights (name, needed)
         WHERE NOT CASE needed WHEN 'USAGE' THEN has_sequence_privilege(to_regclass(name), needed)
                               ELSE has_table_privilege(to_regclass(name), needed) END),
       pg_is_in_recovery(), (SELECT count(*) FROM pg_stat_replication)
"""  # noqa: S608 - constants only

_COLUMNS = """(
  SELECT coalesce(
    string_agg(
      attname || ' ' || replace(format_type(atttypid, NULL), 'double precision', 'float8'), ',' ORDER BY attnum),
    '')
  FROM pg_attribute WHERE attrelid = to_regclass('{}') AND attnum > 0 AND NOT attisdropped
)"""
# A role does not see tables of a schema that it may not use, or that is not in its search_path; pg_class lists them.
_ELSEWHERE = """(
  SELECT min(relnamespace::regnamespace::text) FROM pg_class WHERE relname = 'samekey_records' AND relkind IN ('r', 'p')
)"""
_TABLES = f"SELECT {_COLUMNS.format('samekey_meta')}, {_COLUMNS.format('samekey_records')}, {_ELSEWHERE}"

_SCHEMA = """
SELECT (SELECT value FROM samekey_meta WHERE name = 'schema'),
       (SELECT value FROM samekey_meta WHERE name = 'oldest_client'),
       -- Tables that were restored from a dump keep their epoch and have another oid.
       (SELECT value FROM samekey_meta WHERE name = 'epoch') || '/' || to_regclass('samekey_records')::oid
"""

# The timeline of the WAL file that is written now: the control file's own is that of the last checkpoint, and late.
_INCARNATION = """
SELECT system_identifier::text || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) FROM pg_control_system()
"""


NOT_SHOWN = ("0A000", "42501", "42883", "55000")  # not supported, not permitted, no such function, not now


def self_check(address: Address, purpose: Purpose, before: Facts | None) -> Generator[Any, Any, Facts]:
    """Yield the statements for a new connection one after the other, each with its values; returns the facts.

    `before` are the facts of the connection before this one. Raises Misconfigured where the tables are missing, are not
    samekey's, or do not fit this version.
    """
    *known, in_recovery, followers = yield _FACTS, ()
    if in_recovery:
        raise StoreUnavailable(f"{address.name} is a standby: claims go to the primary only")
    meta, records, place = yield _TABLES, ()
    _check_tables(address.name, meta, records, place)
    schema, oldest_client, epoch = yield _SCHEMA, ()
    check_schema(address.name, int(schema or 0), int(oldest_client or 0), SCHEMA)
    wanted = synchronous_commit(purpose.durable, known[3])
    if not address.pgbouncer:
        limits, plans = (STATEMENT_SECONDS, purpose.lock_seconds), ("off", "force_generic_plan")
        if purpose.operator:
            limits, plans = (OPERATOR_SECONDS, OPERATOR_LOCK_SECONDS), ("off", "auto")
        milliseconds = (f"{seconds * 1000:.0f}" for seconds in limits)
        yield _SESSION, (wanted, *milliseconds, *plans)
        known[6] = "read committed"
    try:
        (incarnation,) = yield _INCARNATION, ()
    except Exception as error:
        if getattr(error, "sqlstate", None) not in NOT_SHOWN:
            raise
        incarnation = "unknown"  # some managed servers refuse; then only the tables' own epoch identifies the data
    incarnation = f"{incarnation}/{epoch}"
    known_before = None if before is None else before.incarnation
    (lost_at,) = yield "SELECT samekey_greet(%s::text, %s::text)", (incarnation, known_before)
    server, fsync, full_page_writes, _, standbys, encoding, isolation, missing, unlogged, denied = known
    return Facts(
        server=server.partition(" ")[0],
        fsync=fsync,
        full_page_writes=full_page_writes,
        synchronous_commit=wanted,
        standbys=standbys,
        followers=followers,
        encoding=encoding,
        isolation=isolation,
        missing=tuple(filter(None, missing.split(","))),
        unlogged=unlogged,
        denied=tuple(filter(None, denied.split(","))),
        schema=int(schema),
        incarnation=incarnation,
        lost_at=lost_at,
    )


def _check_tables(name: str, meta: str, records: str, schema: str | None) -> None:
    """Raise unless both tables are there, with samekey's columns first."""
    if records and not records.startswith(",".join(COLUMNS)):
        raise foreign_table(name, "samekey_records")
    if meta and not meta.startswith("name text,value text"):
        raise foreign_table(name, "samekey_meta")
    if schema is not None and not (meta or records):
        raise Misconfigured(
            f"{name}: the samekey tables are in the schema {schema}, and this role does not see them. "
            f"GRANT USAGE ON SCHEMA {schema} to it, or put that schema on its search_path. "
            f"Where these are the tables of another application, make your own with: {migrate_line(name)}"
        )
    if not (meta and records):
        raise Misconfigured(f"{name} has no samekey tables. Make them with: {migrate_line(name)}")


def synchronous_commit(durable: bool, found: str) -> str:
    """How samekey's statements commit: never less safely than promised, and as much safer as the server is set to."""
    if not durable:
        return "off"
    return found if found == "remote_apply" else "on"
