"""PostgreSQL: how it is reached, what it promises, what its errors mean, and how its tables are made.

Only a primary is ever spoken to, over connections of our own (`_psycopg_connection`), in autocommit: each statement is
one transaction, and no transaction is ever open while anything else happens.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import errors

from samekey.core.errors import Misconfigured, RecordUnreadable, StoreError, StoreUnavailable
from samekey.drivers._psycopg_connection import (
    AsyncConnection as AsyncConnection,
)
from samekey.drivers._psycopg_connection import (
    Connection as Connection,
)
from samekey.drivers._psycopg_connection import (
    Landed as Landed,
)
from samekey.drivers._psycopg_connection import (
    Silent as Silent,
)
from samekey.drivers._psycopg_greeting import (
    DESK_SECONDS,
    LOCK_SECONDS,
    SCHEMA,
    Values,
    greeting,
    migrate_line,
    synchronous_commit,
)
from samekey.drivers._psycopg_greeting import (
    Address as Address,
)
from samekey.drivers._psycopg_greeting import (
    Durability as Durability,
)
from samekey.drivers._psycopg_greeting import (
    Facts as Facts,
)
from samekey.drivers._psycopg_exchange import (
    Query as Query,
)

DriverError = psycopg.Error

CONNECT_SECONDS = 5  # whole seconds, libpq's own rule; a primary on the same network answers in milliseconds
MIGRATION_LOCK = 0x73616D656B6579  # "samekey"
MIGRATION_LOCK_SECONDS = 30.0


# -- addresses ---------------------------------------------------------------------------------------------


def parse_url(url: str) -> Address:
    """`postgresql://user@host/database?durability=claim-durable`; what is not ours is libpq's."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise Misconfigured(f"{url!r} is no PostgreSQL address: write postgresql://user@host/database")
    options = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in options if name in ("durability", "pgbouncer")}
    theirs = [(name, value) for name, value in options if name not in ours]
    durability = check_durability(ours.get("durability", "durable"))
    if ours.get("pgbouncer", "0") not in ("0", "1"):
        raise Misconfigured(f"pgbouncer is 1 (transaction mode) or 0, not {ours['pgbouncer']!r}")
    plain = urlunsplit(parts._replace(query=urlencode(theirs, quote_via=quote), fragment=""))
    try:
        known = psycopg.conninfo.conninfo_to_dict(plain)
    except psycopg.ProgrammingError as error:
        raise Misconfigured(f"this PostgreSQL address cannot be read: {_first_line(error)}") from None
    if known.get("target_session_attrs", "read-write") not in ("read-write", "primary"):
        raise Misconfigured("claims go to the primary only: leave target_session_attrs out of the store's address")
    user, at, host = parts.netloc.rpartition("@")
    shown = [(name, value) for name, value in options if name not in ("password", "sslpassword")]
    name = urlunsplit(
        parts._replace(netloc=user.partition(":")[0] + at + host, query=urlencode(shown, safe="/", quote_via=quote))
    )
    return Address(plain, name, durability, ours.get("pgbouncer") == "1")


def check_durability(given: Any) -> Durability:
    if given not in ("durable", "claim-durable", "fast"):
        raise Misconfigured(f"durability is 'durable', 'claim-durable' or 'fast', not {given!r}")
    checked: Durability = given
    return checked


# -- connections -------------------------------------------------------------------------------------------


def connect(address: Address, *, durable: bool = True, desk: bool = False) -> tuple[Connection, Facts]:
    """A connection to the primary, checked.

    `durable=False` where an acknowledged write may be lost in a crash; `desk=True` for operators, whose
    statements may read whole tables and take their time.
    """
    with translated(address):
        connection = Connection.connect(address.url, **_arguments(address))
        _set_up(address, connection, desk)
        try:
            steps = greeting(address, durable, desk)
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


async def connect_async(address: Address, *, durable: bool = True, desk: bool = False) -> tuple[AsyncConnection, Facts]:
    """The same, awaited."""
    with translated(address):
        connection = await AsyncConnection.connect(address.url, **_arguments(address))
        _set_up(address, connection, desk)
        try:
            steps = greeting(address, durable, desk)
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
        "client_encoding": "utf8",
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
    }
    return {
        **{name: value for name, value in ours.items() if name not in given},
        "autocommit": True,
        "prepare_threshold": None if address.pgbouncer else 0,
    }


COMMIT_MARK = b"/*commit*/"  # where a statement may say how it commits


def worded(address: Address, query: Query, durable: bool) -> Query:
    """The query as it is sent: behind PgBouncer a session has no settings, so each one says its own."""
    if not address.pgbouncer:
        return query
    how = f", set_config('synchronous_commit', '{synchronous_commit(durable, 'on')}', true)"
    return query._replace(sql=query.sql.replace(COMMIT_MARK, how.encode()))


# -- errors ------------------------------------------------------------------------------------------------


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """The driver's exceptions as ours, once, at the edge."""
    try:
        yield
    except psycopg.Error as error:
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
            return StoreUnavailable(
                f"{name}: another transaction holds the record for longer than {LOCK_SECONDS:.0f} s"
            )
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
        | errors.DuplicatePreparedStatement,
    )


def is_spent(error: BaseException) -> bool:
    """Whether the connection is of no use any more."""
    return (is_lost(error) and not isinstance(error, errors.QueryCanceled)) or isinstance(
        error,
        errors.ReadOnlySqlTransaction | errors.InvalidSqlStatementName | errors.DuplicatePreparedStatement,
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


# -- migrations --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    title: str
    sql: str


def migrations() -> list[Migration]:
    """All of them, as shipped, in order: plain SQL, to be printed for Alembic, Django or Flyway as well."""
    folder = resources.files("samekey.stores") / "migrations" / "postgres"
    files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [
        Migration(int(name[:4]), name[5:-4].replace("_", " "), (folder / name).read_text(encoding="utf-8"))
        for name in files
    ]


def migrate(url: str, *, dry_run: bool = False) -> list[Migration]:
    """Bring the database to our schema; the migrations that were (or with `dry_run` would be) carried out.

    Each is one transaction. Several processes may try at once: one migrates, the others wait and find it done.
    """
    address = parse_url(url)
    with (
        translated(address),
        psycopg.connect(address.url, **{**_arguments(address), "prepare_threshold": None}) as link,
    ):
        if dry_run:
            return _missing(address, link)
        link.execute("SELECT set_config('lock_timeout', %s, false)", (f"{int(MIGRATION_LOCK_SECONDS * 1000)}",))
        with link.transaction():
            # Held until the end of the transaction, so that it is safe behind PgBouncer too.
            link.execute("SELECT pg_advisory_xact_lock(%s)", (MIGRATION_LOCK,))
            missing = _missing(address, link)
            for migration in missing:
                link.execute(migration.sql.encode())
        return missing


def _missing(address: Address, link: psycopg.Connection[Any]) -> list[Migration]:
    there = link.execute("SELECT to_regclass('samekey_meta') IS NOT NULL").fetchone()
    found = 0
    if there and there[0]:
        row = link.execute("SELECT value FROM samekey_meta WHERE name = 'schema'").fetchone()
        found = int(row[0]) if row else 0
    if found > SCHEMA:
        raise Misconfigured(
            f"{address.name} was migrated by a newer samekey (schema {found}, this one knows {SCHEMA}): upgrade samekey"
        )
    return [one for one in migrations() if one.number > found]
