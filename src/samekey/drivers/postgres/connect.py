"""PostgreSQL: how it is reached, what it promises, what its errors mean, and how its tables are made.

Only a primary is ever spoken to, over connections of our own (`_psycopg_connection`), in autocommit: each statement is
one transaction, and no transaction is ever open while anything else happens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg import errors

from samekey.core.errors import Misconfigured, RecordUnreadable, StoreBusy, StoreError, StoreUnavailable
from samekey.drivers.postgres.connection import (
    AsyncConnection as AsyncConnection,
)
from samekey.drivers.postgres.connection import (
    Connection as Connection,
)
from samekey.drivers.postgres.connection import (
    Landed as Landed,
)
from samekey.drivers.postgres.connection import (
    Silent as Silent,
)
from samekey.drivers.postgres.exchange import (
    Query as Query,
)
from samekey.drivers.postgres.migrate import (
    COUNTED,
    FIRST_PAUSE_SECONDS,
    LAST_PAUSE_SECONDS,
    TRIES_MAX,
    Phase,
    Which,
    due,
)
from samekey.drivers.postgres.migrate import (
    Migration as Migration,
)
from samekey.drivers.postgres.migrate import (
    migrations as migrations,
)
from samekey.drivers.postgres.self_check import (
    DESK_SECONDS,
    Values,
    greeting,
    migrate_line,
    synchronous_commit,
)
from samekey.drivers.postgres.self_check import (
    Address as Address,
)
from samekey.drivers.postgres.self_check import (
    Durability as Durability,
)
from samekey.drivers.postgres.self_check import (
    Facts as Facts,
)
from samekey.drivers.urls import split, unsplit

DriverError = psycopg.Error

CONNECT_SECONDS = 5  # whole seconds, libpq's own rule; a primary on the same network answers in milliseconds
MIGRATION_SECONDS = 600.0  # one statement of a migration; most make new things only and take milliseconds


# -- addresses ---------------------------------------------------------------------------------------------


def parse_url(url: str) -> Address:
    """`postgresql://user@host/database?durability=claim-durable`; what is not ours is libpq's."""
    parts, options = split(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise Misconfigured("a PostgreSQL address is written postgresql://user@host/database")
    ours = {name: value for name, value in options if name in ("durability", "pgbouncer")}
    theirs = [(name, value) for name, value in options if name not in ours]
    durability = check_durability(ours.get("durability", "durable"))
    if ours.get("pgbouncer", "0") not in ("0", "1"):
        raise Misconfigured(f"pgbouncer is 1 (transaction mode) or 0, not {ours['pgbouncer']!r}")
    plain = unsplit(parts, parts.netloc, urlencode(theirs, quote_via=quote))
    try:
        known = psycopg.conninfo.conninfo_to_dict(plain)
    except psycopg.ProgrammingError as error:
        raise Misconfigured(f"this PostgreSQL address cannot be read: {_first_line(error)}") from None
    if known.get("target_session_attrs", "read-write") not in ("read-write", "primary"):
        raise Misconfigured("claims go to the primary only: leave target_session_attrs out of the store's address")
    user, at, host = parts.netloc.rpartition("@")
    shown = [(name, value) for name, value in options if name not in ("password", "sslpassword")]
    name = unsplit(parts, user.partition(":")[0] + at + host, urlencode(shown, safe="/", quote_via=quote))
    return Address(plain, name, durability, ours.get("pgbouncer") == "1")


def check_durability(given: Any) -> Durability:
    if given not in ("durable", "claim-durable", "fast"):
        raise Misconfigured(f"durability is 'durable', 'claim-durable' or 'fast', not {given!r}")
    checked: Durability = given
    return checked


# -- connections -------------------------------------------------------------------------------------------


def connect(
    address: Address, *, durable: bool = True, desk: bool = False, before: Facts | None = None
) -> tuple[Connection, Facts]:
    """A connection to the primary, checked.

    `durable=False` where an acknowledged write may be lost in a crash; `desk=True` for operators, whose
    statements may read whole tables and take their time. `before` is what the last connection had learned.
    """
    with translated(address):
        connection = Connection.connect(address.url, **_arguments(address))
        _set_up(address, connection, desk)
        try:
            steps = greeting(address, durable, desk, before)
            said: tuple[str, Values] | Facts = next(steps)
            while not isinstance(said, Facts):
                try:
                    row = connection.execute(*said).fetchone()
                except psycopg.Error as error:
                    said = steps.throw(error)
                else:
                    said = steps.send(row)
        except BaseException:
            connection.close()
            raise
    return connection, said


async def connect_async(
    address: Address, *, durable: bool = True, desk: bool = False, before: Facts | None = None
) -> tuple[AsyncConnection, Facts]:
    """The same, awaited."""
    with translated(address):
        connection = await AsyncConnection.connect(address.url, **_arguments(address))
        _set_up(address, connection, desk)
        try:
            steps = greeting(address, durable, desk, before)
            said: tuple[str, Values] | Facts = next(steps)
            while not isinstance(said, Facts):
                try:
                    row = await (await connection.execute(*said)).fetchone()
                except psycopg.Error as error:
                    said = steps.throw(error)
                else:
                    said = steps.send(row)
        except BaseException:
            await connection.close()
            raise
    return connection, said


def _set_up(address: Address, connection: Connection | AsyncConnection, desk: bool) -> None:
    def notice(told: psycopg.errors.Diagnostic) -> None:
        # Somebody cancelled our commit while it waited for a standby: the server then calls it a success.
        if told.source_function == "SyncRepWaitForLSN":
            connection.not_replicated = True

    connection.add_notice_handler(notice)
    connection.prepared = None if address.pgbouncer else set()
    if desk:
        connection.silence_seconds = DESK_SECONDS + 1


def connect_listener(address: Address) -> Connection:
    """A connection that hears every notification; the caller waits on its socket."""
    with translated(address):
        connection = Connection.connect(address.url, **_arguments(address))
        try:
            connection.execute("LISTEN samekey")
        except BaseException:
            connection.close()
            raise
    return connection


def _arguments(address: Address) -> dict[str, Any]:
    given = psycopg.conninfo.conninfo_to_dict(address.url)
    ours = {
        "target_session_attrs": "read-write",  # a standby must never be asked: it does not know the last claims
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "samekey",
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
    }
    return {
        **{name: value for name, value in ours.items() if name not in given},
        "client_encoding": "utf8",  # as our texts are written, whatever the address says
        "autocommit": True,
        "prepare_threshold": None if address.pgbouncer else 0,
    }


COMMIT_MARK = b"/*commit*/"  # where a statement may say how it commits


def worded(address: Address, query: Query, durable: bool) -> Query:
    """The query as it is sent: behind PgBouncer a session has no settings, so each one says its own."""
    if not address.pgbouncer:
        return query
    how = (
        f", set_config('synchronous_commit', '{synchronous_commit(durable, 'on')}', true)"
        ", set_config('client_min_messages', 'warning', true)"  # see `_set_up`
    )
    return query._replace(sql=query.sql.replace(COMMIT_MARK, how.encode()))


# -- errors ------------------------------------------------------------------------------------------------


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """The driver's exceptions as ours, once, at the edge."""
    try:
        yield
    except (psycopg.Error, OSError) as error:  # psycopg waits with a file of its own, and there may be none left
        raise store_error(address, error) from error


def store_error(address: Address, error: BaseException) -> StoreError | Misconfigured:
    name = address.name
    match error:
        case (
            errors.UndefinedTable() | errors.UndefinedFunction() | errors.UndefinedColumn() | errors.InvalidSchemaName()
        ):
            return Misconfigured(
                f"{name} has no samekey tables, or not all of them. Make them with: {migrate_line(name)}"
            )
        case errors.ReadOnlySqlTransaction():
            return StoreUnavailable(f"{name} is read-only now: a standby, or a primary that is being replaced")
        case errors.InsufficientPrivilege():
            return Misconfigured(f"{name}: this role may not use the samekey tables ({_first_line(error)})")
        case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification() | errors.InvalidCatalogName():
            return Misconfigured(f"{name}: {_first_line(error)}")
        case psycopg.DataError():
            return Misconfigured(f"{name} cannot keep this: {_first_line(error)}")
        case errors.DiskFull():
            return StoreUnavailable(f"the disk of {name} is full; nothing was written")
        case errors.LockNotAvailable():
            return StoreBusy(f"{name}: somebody's transaction holds the record; it is free when that one ends")
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return RecordUnreadable(f"{name} is damaged: {_first_line(error)}")
        case _:
            return StoreUnavailable(f"{name}: {_first_line(error)}")


def is_lost(error: BaseException) -> bool:
    """Whether the statement may have been carried out although its answer never came."""
    if isinstance(error, errors.AdminShutdown | errors.CrashShutdown | errors.QueryCanceled | Silent):
        return True
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        error.sqlstate is None or error.sqlstate.startswith("08") or error.sqlstate == "40003"
    )


def is_conflict(error: BaseException) -> bool:
    """Whether nothing was written, and the same statement may be sent again at once."""
    return isinstance(
        error,
        errors.DeadlockDetected
        | errors.SerializationFailure
        | errors.ReadOnlySqlTransaction  # demoted under us: the next connection finds the new primary
        | errors.InvalidSqlStatementName  # somebody said DISCARD ALL
        | errors.DuplicatePreparedStatement
        | errors.FeatureNotSupported,  # "cached plan must not change result type": the tables were made anew
    )


def is_spent(error: BaseException) -> bool:
    """Whether the connection is of no use any more."""
    return (is_lost(error) and not isinstance(error, errors.QueryCanceled)) or isinstance(
        error,
        errors.ReadOnlySqlTransaction
        | errors.InvalidSqlStatementName
        | errors.DuplicatePreparedStatement
        | errors.FeatureNotSupported,
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# -- migrations --------------------------------------------------------------------------------------------


class HeldUp(StoreUnavailable):
    """A table was busy each time: not everything was migrated. Nothing is half done; try again."""


def migrate(
    url: str,
    *,
    phase: Which = "all",
    dry_run: bool = False,
    partitions: int = 0,
    known: Sequence[Migration] | None = None,
    told: Callable[[Migration], None] = lambda migration: None,
) -> list[Migration]:
    """Bring the database to our schema; the migrations that were (or with `dry_run` would be) carried out.

    Several processes may try at once: one migrates, the others wait and find it done. `told` hears of each one when it
    is committed; `known` are the migrations there are.
    """
    address = parse_url(url)
    if known is None:
        known = migrations(partitions=partitions)
    with translated(address), _migrating(address) as link:
        wanted = due(known, _done(link), phase, address.name)
        if partitions:
            _check_partitions(address, link, partitions, first=known[0] in wanted)
        if dry_run:
            return wanted
        made = []
        for migration in wanted:
            if _carry_out(address, link, migration, known):
                made.append(migration)
                told(migration)
        return made


@contextmanager
def _migrating(address: Address) -> Iterator[Connection]:
    with Connection.connect(address.url, **{**_arguments(address), "prepare_threshold": None}) as link:
        link.silence_seconds = MIGRATION_SECONDS
        yield link


def _carry_out(address: Address, link: Connection, migration: Migration, known: Sequence[Migration]) -> bool:
    """Whether it was us; somebody else may have been faster."""
    *turn, sql = migration.statements()
    pause = FIRST_PAUSE_SECONDS
    for tries in range(1, TRIES_MAX + 1):
        try:
            with link.transaction():
                _take_turn(address, link, turn)
                if migration not in due(known, _done(link), "all", address.name):
                    return False
                _execute(address, link, sql)
                if migration in due(known, _done(link), "all", address.name):
                    raise ValueError(f"{migration.number:04} {migration.title} does not count itself")
                return True
        except errors.LockNotAvailable as busy:
            if tries == TRIES_MAX:
                raise HeldUp(
                    f"{address.name}: {migration.number:04} {migration.title} found its tables busy {tries} times "
                    f"({_first_line(busy)}); nothing of it was done, try again"
                ) from busy
        time.sleep(pause)
        pause = min(pause * 2, LAST_PAUSE_SECONDS)
    raise AssertionError("the last try returns or raises")


def _execute(address: Address, link: Connection, sql: str) -> None:
    try:
        link.execute(sql.encode())
    except errors.InvalidSchemaName as error:
        raise Misconfigured(
            f"{address.name}: there is no schema to make the tables in ({_first_line(error)}). Make the first one of "
            "the search_path with CREATE SCHEMA, or name another"
        ) from error


def _take_turn(address: Address, link: Connection, turn: Sequence[str]) -> None:
    try:
        for statement in turn:
            link.execute(statement.encode())
    except errors.LockNotAvailable as busy:
        raise HeldUp(f"{address.name}: somebody else has been migrating it for a long time; try again") from busy


def _done(link: Connection) -> dict[Phase, int]:
    # Asked of the catalogue itself: within a transaction to_regclass remembers that there was no such table, also when
    # whoever we waited for has made it.
    visible = "SELECT FROM pg_class WHERE relname = 'samekey_meta' AND pg_table_is_visible(oid)"
    if link.execute(visible).rowcount == 0:
        return {"pre": 0, "post": 0}
    rows = dict(link.execute("SELECT name, value FROM samekey_meta").fetchall())
    return {phase: int(rows.get(name, 0)) for phase, name in COUNTED.items()}


def _check_partitions(address: Address, link: Connection, wanted: int, *, first: bool) -> None:
    """A table that is there keeps its shape: who asks for another one must not believe that it was made."""
    row = link.execute("SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass('samekey_records')").fetchone()
    there = row[0] if row else 0
    if not first and there != wanted:
        raise Misconfigured(
            f"{address.name} has its table of records already, in {there or 1} piece{'s' if there > 1 else ''}: "
            "partitions are chosen with the first migration"
        )
