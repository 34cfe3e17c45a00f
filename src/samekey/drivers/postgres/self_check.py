"""What is said on every new connection to PostgreSQL, and what is learned from it: the self-check.

Sans-IO and without the driver: `greeting` yields statements and is sent their rows, so that it exists once for both
colours.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.drivers.schema import check_schema
from samekey.drivers.schema import migrate_line as migrate_line

Durability = Literal["durable", "claim-durable", "fast"]
Values = tuple[Any, ...]

SCHEMA = 1  # the newest migration this version knows
STATEMENT_SECONDS = 5.0  # ours take milliseconds; it does not count while a commit waits for a standby
DESK_SECONDS = 60.0  # a list over millions of records, a sweep
LOCK_SECONDS = 0.1  # for a row that somebody's long transaction holds: everybody else on the lane waits behind us
DESK_LOCK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """A checked place, without our own options in it."""

    url: str  # for libpq
    name: str  # for people: no password
    durability: Durability = "durable"
    pgbouncer: bool = False  # in transaction mode: nothing may depend on the session


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server said about itself when we connected."""

    server: str
    fsync: str
    full_page_writes: str
    synchronous_commit: str  # as our claims have it
    standbys: str  # synchronous_standby_names
    followers: int  # connected standbys, as far as this role may see
    encoding: str
    isolation: str
    schema: int
    incarnation: str
    lost_at: float | None  # when another incarnation was first seen, by the server's clock

    def warnings(self, durability: Durability) -> tuple[str, ...]:
        found = []
        if self.fsync != "on":
            found.append("fsync is off: a crash of the machine may lose or damage every record")
        if self.full_page_writes != "on":
            found.append("full_page_writes is off: a power loss may damage records")
        if durability == "fast":
            found.append(
                "durability=fast: a crash of the server may forget the last claims, and their effects run again"
            )
        if self.encoding != "UTF8":
            found.append(f"the database is in {self.encoding}, not UTF8: some keys cannot be written")
        if self.isolation != "read committed":
            found.append(f"sessions start in {self.isolation}: lost races are told as errors instead of as replays")
        if self.lost_at is not None:
            found.append("the server lost its memory (failover, restore): claims since then ask first, where one can")
        return tuple(found)

    def guarantee(self, durability: Durability) -> str:
        if self.fsync != "on":
            return "claims survive crashes of clients only: the server does not wait for its disk (fsync is off)"
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
       -- That a commit may be missing on its standby is told by a warning.
       set_config('client_min_messages', 'warning', false),
       -- A plan made while the table was empty would read all of it for ever.
       set_config('enable_seqscan', %s, false),
       -- Each of our statements has one good plan; to make it anew for every batch took longer than to carry it out.
       set_config('plan_cache_mode', %s, false)
"""

_FACTS = """
SELECT current_setting('server_version'), current_setting('fsync'), current_setting('full_page_writes'),
       current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),
       current_setting('server_encoding'), current_setting('default_transaction_isolation'), pg_is_in_recovery(),
       to_regclass('samekey_meta') IS NOT NULL, (SELECT count(*) FROM pg_stat_replication)
"""

_SCHEMA = """
SELECT (SELECT value FROM samekey_meta WHERE name = 'schema'),
       (SELECT value FROM samekey_meta WHERE name = 'oldest_client'),
       -- Restored from a dump, the tables have the epoch that they had, and another oid.
       (SELECT value FROM samekey_meta WHERE name = 'epoch') || '/' || to_regclass('samekey_records')::oid
"""

# The timeline of the file that is written now: the control file's own is that of the last checkpoint, and late.
_INCARNATION = """
SELECT system_identifier::text || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) FROM pg_control_system()
"""


_NOT_TOLD = ("0A000", "42501", "42883", "55000")  # not supported, not permitted, not there, not now


def greeting(
    address: Address, durable: bool, desk: bool, before: Facts | None
) -> Generator[tuple[str, Values] | Facts, Any, None]:
    """What is said on every new connection, one statement after the other, and at the end what was learned.

    `before` is what the connection before this one had learned.
    """
    facts = yield _FACTS, ()
    *known, in_recovery, migrated, followers = facts
    if in_recovery:
        raise StoreUnavailable(f"{address.name} is a standby: claims go to the primary only")
    if not migrated:
        raise Misconfigured(f"{address.name} has no samekey tables. Make them with: {migrate_line(address.name)}")
    schema, oldest_client, epoch = yield _SCHEMA, ()
    check_schema(address.name, int(schema or 0), int(oldest_client or 0), SCHEMA)
    wanted = synchronous_commit(durable, known[3])
    if not address.pgbouncer:
        milliseconds = (
            f"{seconds * 1000:.0f}"
            for seconds in ((DESK_SECONDS, DESK_LOCK_SECONDS) if desk else (STATEMENT_SECONDS, LOCK_SECONDS))
        )
        yield _SESSION, (wanted, *milliseconds, "on" if desk else "off", "auto" if desk else "force_generic_plan")
        known[6] = "read committed"
    try:
        (incarnation,) = yield _INCARNATION, ()
    except Exception as error:
        if getattr(error, "sqlstate", None) not in _NOT_TOLD:
            raise
        incarnation = "unknown"  # a managed server that does not tell: the tables' own epoch has to do
    incarnation = f"{incarnation}/{epoch}"
    known_before = None if before is None else before.incarnation
    (lost_at,) = yield "SELECT samekey_greet(%s::text, %s::text)", (incarnation, known_before)
    server, fsync, full_page_writes, _, standbys, encoding, isolation = known
    yield Facts(
        server=server.partition(" ")[0],
        fsync=fsync,
        full_page_writes=full_page_writes,
        synchronous_commit=wanted,
        standbys=standbys,
        followers=followers,
        encoding=encoding,
        isolation=isolation,
        schema=int(schema),
        incarnation=incarnation,
        lost_at=lost_at,
    )


def synchronous_commit(durable: bool, found: str) -> str:
    """What our statements commit with: never less than the promise, and as much more as the server is set to."""
    if not durable:
        return "off"
    return found if found == "remote_apply" else "on"
