"""Changes of a PostgreSQL database by logical replication: a publication with a column list, and a slot of our own.

The slot keeps WAL on the server until the watch confirms it. So the watch refuses to start where the server would keep
it without limit, and drops its own slot when the slot retains more than `max_lag` bytes: a full disk of the database is
worse than a gap, and the gap is reported.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.detect.catalog import Engine
from samekey.detect.dialect import quoted
from samekey.detect.watching.changes import Batch, Gap, SourceLost
from samekey.detect.watching.pgoutput import HEARTBEAT, Decoder, PlansOf, lsn_number
from samekey.drivers.postgres.address import parse_url
from samekey.drivers.postgres.replication import ReplicationStream
from samekey.drivers.postgres.writing import PostgresWriting
from samekey.drivers.reading import CannotRead, StatementStopped

HEARTBEAT_SECONDS = 10.0
SLOT = re.compile(r"[a-z0-9_]{1,63}")
OLDEST = 150000  # the first with column lists
MAX_LAG = 2_000_000_000  # bytes

_SETTINGS = """
SELECT current_setting('server_version_num')::int, current_setting('wal_level'),
       (SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'),
       (SELECT system_identifier::text FROM pg_control_system())
"""
_SLOT = """
SELECT confirmed_flush_lsn::text, coalesce(wal_status, ''), active,
       pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::bigint, plugin, database = current_database()
FROM pg_replication_slots WHERE slot_name = %s
"""


class PostgresSource:
    def __init__(
        self, url: str, slot: str, tables: Mapping[str, Sequence[str]], plans_of: PlansOf, *,
        max_lag: int = MAX_LAG, allow_unbounded: bool = False, heartbeat_seconds: float = HEARTBEAT_SECONDS,
    ) -> None:  # fmt: skip
        """`tables`: full name -> the columns that the rules need."""
        if not SLOT.fullmatch(slot):
            raise Misconfigured("a slot has lower-case letters, digits and underscores in its name, 63 at most")
        self._address = parse_url(url)
        self.name, self._slot, self._tables = self._address.name, slot, tables
        self._max_lag, self._allow_unbounded = max_lag, allow_unbounded
        self._heartbeat_seconds = heartbeat_seconds
        self._decoder = Decoder(plans_of)
        self._side = PostgresWriting(url)  # for heartbeats and questions about the slot
        self._stream: ReplicationStream | None = None
        self._retained = self._end = 0
        self.identity = ""
        try:
            self._check_server()
        except BaseException:
            self._side.close()
            raise

    # -- start --------------------------------------------------------------------------------------------------------

    def _check_server(self) -> None:
        ((version, level, kept, system),) = self._side.run(_SETTINGS)
        self.identity = f"postgresql {system} slot {self._slot}"
        if version < OLDEST:
            raise Misconfigured(f"{self.name} is older than PostgreSQL 15: it has no publications with column lists")
        if level != "logical":
            raise Misconfigured(
                f"{self.name} has wal_level = {level}; logical replication needs 'logical' and a restart. "
                "Where that is not allowed, use --source audit-table"
            )
        if kept == -1 and not self._allow_unbounded:
            raise Misconfigured(
                f"{self.name} has max_slot_wal_keep_size = -1: while the watch is down, its slot would fill the "
                "server's disk. Set a limit (ALTER SYSTEM SET max_slot_wal_keep_size = '10GB'), or give "
                "--allow-unbounded-wal"
            )

    def open(self, position: str | None) -> str:
        self._publish()
        slot = self._slot_facts()
        if slot is None:
            if position is not None:
                raise Gap(f"the slot {self._slot} is gone: changes after {position} may not have been seen")
            ((start,),) = self._side.run(
                "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (self._slot,)
            )
            position = str(start)
        else:
            confirmed, kept, active, self._retained, plugin, here = slot
            if plugin != "pgoutput" or not here:
                raise Misconfigured(
                    f"the slot {self._slot} is used for something else: choose another name with --slot"
                )
            if active:
                raise Misconfigured(f"the slot {self._slot} is in use by another connection")
            if kept == "lost" or confirmed is None:
                self.drop_slot()
                raise Gap(f"the server has removed WAL that the slot {self._slot} needed: changes were not seen")
            if position is None:
                self.drop_slot()  # of a watch whose state directory is gone: its position means nothing here
                return self.open(None)
            if lsn_number(confirmed) > lsn_number(position):
                self.drop_slot()
                raise Gap(f"the slot {self._slot} is at {confirmed}, after the checkpoint at {position}")
        self._connect(position)
        return position

    def _publish(self) -> None:
        """The publication, with exactly the columns that the rules need. It is made again when it differs."""
        wanted = ", ".join(f"{_table(name)} ({_columns(columns)})" for name, columns in sorted(self._tables.items()))
        there = self._side.run(
            "SELECT schemaname || '.' || tablename, attnames::text[] FROM pg_publication_tables WHERE pubname = %s",
            (self._slot,),
        )
        if {name: set(columns) for name, columns in there} == {name: set(one) for name, one in self._tables.items()}:
            return
        with self._side.transaction():
            self._side.run(f"DROP PUBLICATION IF EXISTS {_quoted(self._slot)}")
            self._side.run(
                f"CREATE PUBLICATION {_quoted(self._slot)} FOR TABLE {wanted} "
                "WITH (publish = 'insert', publish_via_partition_root = true)"
            )

    def _connect(self, position: str) -> None:
        self._stream = ReplicationStream(self._address)
        self._stream.start(self._slot, position, self._slot)

    # -- the stream ---------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        assert self._stream is not None, "open() comes first"  # noqa: S101 - a wrong order of calls is a bug
        feed, take = self._decoder.feed, self._decoder.take
        beat = 0.0
        try:
            for messages in self._stream.messages():
                for message in messages:
                    if feed(message):
                        yield take()
                if not self._decoder.inside:
                    yield take()
                elif not messages:
                    yield Batch()
                if time.monotonic() - beat >= self._heartbeat_seconds:
                    self._heartbeat()
                    beat = time.monotonic()
        except (CannotRead, StatementStopped) as error:
            raise SourceLost(error.message) from error

    def _heartbeat(self) -> None:
        """Write a message into the log: a stream that is quiet differs from one that does not move."""
        now = str(int(time.time() * 1e6))
        self._side.run("SELECT pg_logical_emit_message(false, %s, %s)", (HEARTBEAT.decode(), now))
        facts = self._slot_facts()
        if facts is None:
            raise Gap(f"the slot {self._slot} was dropped while the watch ran")
        self._retained = facts[3] or 0
        if self._retained > self._max_lag:
            self.close()
            self._side = PostgresWriting(self._address.url)
            self.drop_slot()
            raise Gap(
                f"the slot {self._slot} retained {self._retained} bytes of WAL, more than --max-lag {self._max_lag}: "
                "it was dropped, so that the server's disk does not fill"
            )

    def confirm(self, position: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.confirm(lsn_number(position))
        except CannotRead as error:
            raise SourceLost(error.message) from error

    def mark_end(self) -> None:
        now = str(int(time.time() * 1e6))
        ((end,),) = self._side.run("SELECT pg_logical_emit_message(false, %s, %s)::text", (HEARTBEAT.decode(), now))
        self._end = lsn_number(str(end))

    def reached_end(self, position: str) -> bool:
        return lsn_number(position) >= self._end

    def gauges(self) -> dict[str, float]:
        return {"samekey_slot_retained_bytes": float(self._retained)}

    # -- the slot -----------------------------------------------------------------------------------------------------

    def _slot_facts(self) -> tuple[Any, ...] | None:
        found = self._side.run(_SLOT, (self._slot,))
        return found[0] if found else None

    def drop_slot(self) -> None:
        """Drop our own slot; another connection may still be ending."""
        for _ in range(50):
            try:
                self._side.run(
                    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
                    (self._slot,),
                )
                return
            except StatementStopped:
                time.sleep(0.1)
        raise SourceLost(f"the slot {self._slot} is in use, and could not be dropped")

    def remove(self) -> None:
        """Leave nothing of the watch on the server."""
        self.drop_slot()
        self._side.run(f"DROP PUBLICATION IF EXISTS {_quoted(self._slot)}")

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self._side.close()


def _quoted(name: str) -> str:
    return quoted(name, Engine.POSTGRES)


def _table(full_name: str) -> str:
    schema, _, name = full_name.partition(".")
    return f"{_quoted(schema)}.{_quoted(name)}"


def _columns(names: Sequence[str]) -> str:
    return ", ".join(map(_quoted, names))
