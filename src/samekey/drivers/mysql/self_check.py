"""The self-check of every new connection to MySQL or MariaDB: session settings, and what the server reports.

Without the driver: it is given a function that runs a statement and returns its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.drivers.mysql.address import Address
from samekey.drivers.schema import OTHER_TABLES, check_schema, migrate_line
from samekey.drivers.schema import RECORD_COLUMNS as ALL_COLUMNS

Run = Callable[[str], list[tuple[Any, ...]]]

SCHEMA = 1  # the newest migration this version knows
LOCK_SECONDS = 1  # for a row that another transaction holds; the server takes whole seconds only
IDLE_SECONDS = 300  # then the server hangs up: a client that vanished in a transaction holds its rows no longer
PACKET_MIN_BYTES = 4 << 20  # a result of the default limit (1 MiB) in hexadecimal, and the record's story
# The server has one clock. What a claim is found by has columns of its own, and so has the end of a hold.
RECORD_COLUMNS = (
    *(column for column in ALL_COLUMNS if column != "lease_clock"),
    *("hold_until", "provider", "request"),
)
TABLES = ("samekey_records", "samekey_meta", "samekey_terms", *OTHER_TABLES)


@dataclass(frozen=True, slots=True)
class Facts:
    """What the server reported about itself when we connected."""

    server: str
    flush_log: str  # innodb_flush_log_at_trx_commit
    doublewrite: str
    binlog: bool
    sync_binlog: str
    max_packet: int
    schema: int
    epoch: str
    place: str  # which server: two of them can hold the same epoch, one being the other's copy
    born: float  # when the tables were made
    lost_at: float | None  # when another server was first seen in place of the one before

    @property
    def incarnation(self) -> str:
        return f"{self.place}/{self.epoch[:8]}"

    def warnings(self) -> tuple[str, ...]:
        found = []
        if self.flush_log != "1":
            found.append(
                f"innodb_flush_log_at_trx_commit is {self.flush_log}: a power loss may forget the last second of claims"
            )
        if self.binlog and self.sync_binlog != "1":
            found.append(
                f"sync_binlog is {self.sync_binlog}: after a power loss a replica may know what its primary forgot"
            )
        if self.doublewrite.lower() in ("off", "0"):
            found.append("innodb_doublewrite is off: a power loss may damage records")
        if self.max_packet < PACKET_MIN_BYTES:
            found.append(
                f"max_allowed_packet is {self.max_packet} bytes: a result of more than about {self.max_packet // 2} "
                "cannot be kept; raise it, or lower Policy.result_max_bytes"
            )
        if self.lost_at is not None:
            found.append(
                "another server or other tables answer than before: claims since then ask first, where one can"
            )
        return tuple(found)

    def guarantee(self) -> str:
        if self.flush_log == "0":
            return "claims survive crashes of clients; a crash of the server may lose the last second of them"
        power = "and of the server" if self.flush_log == "1" else "and of the server, not all power losses"
        return (
            f"claims survive crashes of clients {power}; a failover to an asynchronous replica may lose the last ones"
        )

    def listed(self) -> tuple[tuple[str, str], ...]:
        return (
            ("server", self.server),
            ("schema", str(self.schema)),
            ("innodb_flush_log_at_trx_commit", self.flush_log),
            ("innodb_doublewrite", self.doublewrite),
            ("sync_binlog", self.sync_binlog if self.binlog else "no binary log"),
            ("max_allowed_packet", str(self.max_packet)),
        )


# Leases and tokens are judged by UTC; a lost race is a row that is there, never an error about a locked gap.
_SESSION = (
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
    "SET SESSION time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
    # A server may be set to begin the next transaction with each COMMIT, which would stay open; or to show few rows.
    "completion_type = 'NO_CHAIN', sql_select_limit = 18446744073709551615, "
    f"innodb_lock_wait_timeout = {LOCK_SECONDS}, lock_wait_timeout = {LOCK_SECONDS}, wait_timeout = {IDLE_SECONDS}",
)

_VARIABLES = """
SHOW GLOBAL VARIABLES WHERE Variable_name IN (
  'version', 'version_comment', 'innodb_flush_log_at_trx_commit', 'innodb_doublewrite', 'log_bin', 'sync_binlog',
  'binlog_format', 'max_allowed_packet', 'read_only', 'super_read_only', 'innodb_read_only', 'hostname', 'port',
  'server_id', 'server_uuid'
)
"""

_TABLES = f"""
SELECT table_name, engine FROM information_schema.tables
 WHERE table_schema = DATABASE() AND table_name IN ({", ".join(f"'{name}'" for name in TABLES)})
"""  # noqa: S608 - constants only

_COLUMNS = """
SELECT column_name, is_nullable = 'NO' AND column_default IS NULL AND extra NOT LIKE '%auto_increment%'
  FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'samekey_records'
"""

_META = "SELECT CAST(name AS BINARY), CAST(value AS BINARY) FROM samekey_meta"

# Kept in the table, so that a process started after the failover knows it too. One finds out, the others wait for it:
# a claim made in between must count as one after the loss.
_PLACE_HELD = "SELECT CAST(value AS BINARY) FROM samekey_meta WHERE name = 'place' FOR UPDATE"
_FIRST_PLACE = "INSERT IGNORE INTO samekey_meta (name, value) VALUES ('place', X'%s')"
_NEW_PLACE = "UPDATE samekey_meta SET value = X'%s' WHERE name = 'place'"
_LOST = """
INSERT INTO samekey_meta (name, value)
VALUES ('lost_at', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))
ON DUPLICATE KEY UPDATE value = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))
"""


def greet(address: Address, run: Run) -> Facts:
    """Set the session up, and refuse a server that cannot be the store."""
    for statement in _SESSION:
        run(statement)
    found = {str(name).lower(): str(value) for name, value in run(_VARIABLES)}
    for setting in ("read_only", "super_read_only", "innodb_read_only"):
        if found.get(setting, "OFF").upper() not in ("OFF", "0"):
            raise StoreUnavailable(f"{address.name} is read-only ({setting}): claims go to the primary only")
    if found.get("log_bin") == "ON" and found.get("binlog_format") == "STATEMENT":
        raise Misconfigured(
            f"{address.name} has binlog_format=STATEMENT, which cannot log READ COMMITTED: set it to ROW or MIXED"
        )
    _check_tables(address, {str(name).lower(): engine for name, engine in run(_TABLES)})
    _check_columns(address, {str(name).lower(): bool(required) for name, required in run(_COLUMNS)})
    here, version = _place_of(found), found["version"]
    meta = _meta(run)
    check_schema(address.name, int(meta.get("schema", 0)), int(meta.get("oldest_client", 0)), SCHEMA)
    if "last_token" not in meta or "epoch" not in meta:
        raise Misconfigured(f"{address.name}: the table samekey_meta is not ours, or rows of it are gone")
    if meta.get("place") != here:
        _moved_to(here, "place" in meta, run)
        meta = _meta(run)
    return Facts(
        server=f"{'MariaDB' if 'mariadb' in version.lower() else 'MySQL'} {version.partition('-')[0]}",
        flush_log=found["innodb_flush_log_at_trx_commit"],
        doublewrite=found["innodb_doublewrite"],
        binlog=found.get("log_bin") == "ON",
        sync_binlog=found["sync_binlog"],
        max_packet=int(found["max_allowed_packet"]),
        schema=int(meta["schema"]),
        epoch=meta["epoch"],
        place=here,
        born=int(meta.get("born", 0)) / 1e6,
        lost_at=int(meta["lost_at"]) / 1e6 if "lost_at" in meta else None,
    )


def place_of(known: str) -> str:
    """The SQL expression that gives this place on its server; one row, whatever the session's limits are."""
    found = "CONCAT_WS(':', @@hostname, @@port, @@server_id)" if ":" in known else "@@server_uuid"
    return f"CAST({found} AS BINARY)"


def _place_of(found: Mapping[str, str]) -> str:
    # MariaDB has no id of its own.
    return found.get("server_uuid") or f"{found['hostname']}:{found['port']}:{found['server_id']}"


def _moved_to(here: str, known: bool, run: Run) -> None:
    written = here.encode().hex()
    if not known:
        run(_FIRST_PLACE % written)
        return
    run("BEGIN")
    ((before,),) = run(_PLACE_HELD)
    if before.decode() != here:
        run(_LOST)
        run(_NEW_PLACE % written)
    run("COMMIT")


def _meta(run: Run) -> dict[str, str]:
    return {name.decode(): value.decode() for name, value in run(_META)}


def _check_columns(address: Address, required: Mapping[str, bool]) -> None:
    """A later version may add columns, but none that this version would have to fill in."""
    ours = set(RECORD_COLUMNS)
    odd = sorted(ours - set(required)) or sorted(name for name, must in required.items() if must and name not in ours)
    if odd:
        raise Misconfigured(
            f"the table samekey_records of {address.name} is not ours (column {odd[0]}): rename it and make ours with: "
            f"{migrate_line(address.name)}"
        )


def _check_tables(address: Address, engines: Mapping[str, str]) -> None:
    if not all(name in engines for name in TABLES):
        raise Misconfigured(f"{address.name} has no samekey tables. Make them with: {migrate_line(address.name)}")
    for name, engine in engines.items():
        if str(engine).lower() != "innodb":
            raise Misconfigured(
                f"the table {name} of {address.name} is kept by {engine}, which forgets: make it InnoDB"
            )
