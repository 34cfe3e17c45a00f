"""A whole watch: the source and the outputs that were asked for, and new connections after lost ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from samekey.core.errors import Misconfigured
from samekey.detect.catalog import Engine
from samekey.detect.opening import open_writing
from samekey.detect.watching.audit_table import AuditTableSource
from samekey.detect.watching.audit_trigger import SERVERS
from samekey.detect.watching.changes import Batch, Source, SourceLost
from samekey.detect.watching.debezium import FileSource
from samekey.detect.watching.outputs import AlertTable, Output
from samekey.detect.watching.start import Watched
from samekey.detect.watching.watcher import Watcher
from samekey.drivers.reading import CannotRead, NotPermitted, StatementStopped

AGAIN_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)  # between two tries to reach a lost source
MAX_LAG = 2_000_000_000  # bytes of WAL that a slot may retain
CATCH_UP_TRIES = 6  # then `--catch-up` ends as incomplete


class How(StrEnum):
    REPLICATION = "replication"
    AUDIT_TABLE = "audit-table"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Options of the source."""

    dsn: str | None
    how: How | None = None  # None: replication on PostgreSQL, the audit table elsewhere
    events: str | None = None
    slot: str = "samekey_watch"
    max_lag: int = MAX_LAG
    allow_unbounded: bool = False
    catch_up: bool = False
    audit_table: str = "samekey_audit"


def made_source(wanted: Wanted, watched: Watched) -> Source:
    if wanted.events is not None:
        return _event_source(wanted.events, watched)
    if wanted.dsn is None or watched.engine is None:
        raise Misconfigured("give the address of a database, or change events")
    how = wanted.how or (How.REPLICATION if watched.engine is Engine.POSTGRES else How.AUDIT_TABLE)
    tables = {table: watched.columns(table) for table in watched.bounds}
    if how is How.AUDIT_TABLE:
        return audit_source(wanted, watched)
    if watched.engine is not Engine.POSTGRES:
        raise Misconfigured("logical replication is PostgreSQL's: use --source audit-table")
    from samekey.detect.watching.postgres import PostgresSource

    return PostgresSource(
        wanted.dsn,
        wanted.slot,
        tables,
        watched.plans_of,
        max_lag=wanted.max_lag,
        allow_unbounded=wanted.allow_unbounded,
    )


def audit_source(wanted: Wanted, watched: Watched) -> AuditTableSource:
    """The follower of the audit table; it can also install and remove the triggers."""
    if wanted.dsn is None or watched.engine is None:
        raise Misconfigured("an audit table is in a database: give its address")
    audit = wanted.audit_table
    if watched.engine is Engine.POSTGRES and "." not in audit:
        audit = f"public.{audit}"
    tables = {table: watched.columns(table) for table in watched.bounds}
    link = open_writing(watched.engine, wanted.dsn)
    return AuditTableSource(SERVERS[watched.engine], link, audit, tables, watched.plans_of)


def _event_source(url: str, watched: Watched) -> Source:
    if not url.startswith("kafka://"):
        return FileSource(Path(url), watched)
    with _extra("confluent-kafka"):
        from samekey.detect.watching.confluent_kafka import KafkaSource

        return KafkaSource(url, watched)


@contextmanager
def _extra(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as missing:
        raise Misconfigured(f"this needs {missing.name}: pip install 'samekey[cli,{name}]'") from missing


def installed(wanted: Wanted, watched: Watched) -> None:
    """Make the audit table and its triggers."""
    source = audit_source(wanted, watched)
    try:
        source.install()
    finally:
        source.close()


def removed(wanted: Wanted, watched: Watched) -> None:
    """Leave nothing of the watch on the server; the state directory stays."""
    source = made_source(wanted, watched)
    try:
        source.remove()
    finally:
        source.close()


def made_outputs(engine: Engine | None, dsn: str | None, into_table: str | None, emit: Sequence[str]) -> list[Output]:
    made: list[Output] = [_topic(url) for url in emit]
    if into_table is not None:
        if engine is None or dsn is None:
            raise Misconfigured("--into-table needs the address of a database")
        made.append(AlertTable(engine, open_writing(engine, dsn), into_table))
    return made


def _topic(url: str) -> Output:
    match url.partition("://")[0]:
        case "kafka":
            with _extra("confluent-kafka"):
                from samekey.detect.watching.confluent_kafka import KafkaOutput

                return KafkaOutput(url)
        case "nats":
            with _extra("nats"):
                from samekey.detect.watching.nats import NatsOutput

                return NatsOutput(url)
        case "redis" | "rediss":
            with _extra("redis"):
                from samekey.detect.watching.redis_stream import RedisOutput

                return RedisOutput(url)
    raise Misconfigured("alerts can be sent to kafka://host/topic, nats://host/subject or redis://host?stream=name")


def watch_until(
    watcher: Watcher, wanted: Wanted, watched: Watched, *, stopped: Callable[[], bool], note: Callable[[str], None]
) -> bool:
    """Watch until `stopped`, or until everything was read. False: it ended before that, because the source is lost.

    The first connection must succeed. A connection that is lost later is made again: the server restarts, or another
    one takes its place; the watch continues at its checkpoint, or ends with a `Gap`.
    """
    tries, first = 0, True
    while not stopped():
        source: Source | None = None
        try:
            source = made_source(wanted, watched)
            watcher.open(source)
            if wanted.catch_up:
                source.mark_end()
            if not first:
                note(f"{source.name} answers again; the watch continues")
            first = False

            def done(batch: Batch, source: Source = source) -> bool:
                nonlocal tries
                tries = 0
                at_end = batch.position is not None and wanted.catch_up and source.reached_end(batch.position)
                return stopped() or at_end

            watcher.run(done)
            return True
        except (SourceLost, CannotRead, StatementStopped, NotPermitted) as error:
            if first:
                raise
            if wanted.catch_up and tries >= CATCH_UP_TRIES:
                note(error.message)
                return False
            pause = AGAIN_SECONDS[min(tries, len(AGAIN_SECONDS) - 1)]
            tries += 1
            note(f"{error.message}. Nothing is lost; trying again in {pause:g} s")
            _wait(pause, stopped)
        finally:
            if source is not None:
                source.close()
    return True


def _wait(seconds: float, stopped: Callable[[], bool]) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and not stopped():
        time.sleep(0.05)
