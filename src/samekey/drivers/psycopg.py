"""PostgreSQL: how it is reached, what it promises, what its errors mean, and how its tables are made.

Only a primary is ever spoken to, over connections of our own, in autocommit: each statement is one
transaction, and no transaction is ever open while anything else happens. A statement has a deadline on both
sides: the server's `statement_timeout` (which never strikes during a commit), and ours, a little later,
for a server that says nothing any more. Ours closes the connection; it never sends a cancel, because a cancelled
commit is kept by the primary and may be missing on its standby. Whoever asked asks again, by attempt id.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg import errors, waiting

from samekey.core.errors import Misconfigured, RecordUnreadable, StoreError, StoreUnavailable
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
from samekey.drivers._psycopg_link import ROWS, exchange
from samekey.drivers._psycopg_link import (
    Query as Query,
)

DriverError = psycopg.Error
Landed = Callable[[Any, psycopg.Error | None], None]

CONNECT_SECONDS = 5  # whole seconds, libpq's own rule; a primary on the same network answers in milliseconds
SILENCE_SECONDS = 6.0  # after that the server is taken for gone, whatever the network says
MIGRATION_LOCK = 0x73616D656B6579  # "samekey"
MIGRATION_LOCK_SECONDS = 30.0
_WAIT_INTERVAL = 0.1  # how often a waiting thread looks up, for Ctrl-C and for its deadline


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


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """A connection whose statements have a deadline, and are never cancelled."""

    silence_seconds: float | None = None
    not_replicated = False
    prepared: set[bytes] | None = None  # what `ask` has prepared in this session; None behind PgBouncer
    _poll: Any = None

    def ask(self, query: Query) -> Any:
        """The rows of this query, as libpq has them; whoever sends others' statements too has no use for cursors."""
        if self._poll is None:
            self._poll = select.poll()
        steps, socket, registered = exchange(self.pgconn, query, self.prepared), self.pgconn.socket, 0
        milliseconds = (self.silence_seconds or SILENCE_SECONDS) * 1000
        try:
            writes = next(steps)
            while True:
                wanted = select.POLLIN | select.POLLOUT if writes else select.POLLIN
                if wanted != registered:
                    self._poll.register(socket, wanted)
                    registered = wanted
                if not self._poll.poll(milliseconds):
                    raise Silent(f"no answer within {milliseconds / 1000:.0f} s")
                writes = steps.send(None)
        except StopIteration as stop:
            return _checked(self, stop.value)
        except BaseException as error:
            if not isinstance(error, psycopg.Error) or isinstance(error, Silent):
                self.pgconn.finish()  # in the middle of a statement: what it did is asked over another connection
            raise

    def wait(self, gen: Any, interval: float = _WAIT_INTERVAL, timeout: float | None = None) -> Any:
        try:
            return waiting.wait(_bounded(gen, self.silence_seconds or SILENCE_SECONDS), self.pgconn.socket, interval)
        except BaseException as error:
            if not isinstance(error, psycopg.Error) or isinstance(error, Silent):
                self.pgconn.finish()  # in the middle of a statement: what it did is asked over another connection
            raise


class AsyncConnection(psycopg.AsyncConnection[tuple[Any, ...]]):
    """The same, awaited.

    While `ask` is used the event loop watches the socket all the time: to begin and to end watching costs as much as a
    statement. The driver's own cursors watch it too, so `rest` first.
    """

    silence_seconds: float | None = None
    not_replicated = False
    prepared: set[bytes] | None = None
    _loop: asyncio.AbstractEventLoop | None = None  # whose eyes are on the socket
    _steps: Generator[bool, None, Any] | None = None
    _landed: Landed | None = None
    _alarm: asyncio.TimerHandle | None = None
    _watched = -1  # libpq forgets its socket when the server hangs up
    _writes = False

    async def ask(self, query: Query) -> Any:
        """The rows of this query, as libpq has them."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def landed(answer: Any, error: psycopg.Error | None) -> None:
            if answered.done():
                return
            if error is None:
                answered.set_result(answer)
            else:
                answered.set_exception(error)

        self.start(query, landed)
        try:
            return await answered
        except asyncio.CancelledError:
            self.drop()  # in the middle of a statement: what it did is asked over another connection
            raise

    def start(self, query: Query, landed: Landed) -> None:
        """Send it. `landed` is called with its rows or its error: by the event loop, or here if it cannot be sent."""
        loop = asyncio.get_running_loop()
        self._landed = landed
        self._steps = exchange(self.pgconn, query, self.prepared)
        seconds = self.silence_seconds or SILENCE_SECONDS
        self._alarm = loop.call_later(seconds, self._land, None, Silent(f"no answer within {seconds:.0f} s"))
        if self._loop is None:
            self._watched = self.pgconn.socket
            loop.add_reader(self._watched, self._step)
            self._loop = loop
        self._step()

    def _step(self) -> None:
        """Something came, or the socket takes more."""
        try:
            if self._steps is None:
                self.pgconn.consume_input()  # nothing was asked: a notice, or the server's goodbye
                return
            writes = self._steps.send(None)
        except StopIteration as stop:
            try:
                answer = _checked(self, stop.value)
            except psycopg.Error as error:
                self._land(None, error)
            else:
                self._land(answer, None)
        except psycopg.Error as error:
            self.rest()  # a socket that ended is readable for ever
            self._land(None, error)
        else:
            if writes != self._writes and self._loop is not None:
                if writes:
                    self._loop.add_writer(self._watched, self._step)
                else:
                    self._loop.remove_writer(self._watched)
                self._writes = writes

    def _land(self, answer: Any, error: psycopg.Error | None) -> None:
        landed, self._landed, self._steps = self._landed, None, None
        if self._alarm is not None:
            self._alarm.cancel()
        if isinstance(error, Silent):
            self.drop()
        if landed is not None:
            landed(answer, error)

    def rest(self) -> None:
        """Let nobody watch the socket."""
        loop, self._loop = self._loop, None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._watched)
            loop.remove_writer(self._watched)
        self._writes = False

    def drop(self) -> None:
        """Hang up without a goodbye, and without a word to whoever waits."""
        self._landed = self._steps = None
        if self._alarm is not None:
            self._alarm.cancel()
        self.rest()
        self.pgconn.finish()

    async def close(self) -> None:
        self.rest()
        await super().close()

    async def wait(self, gen: Any, interval: float = _WAIT_INTERVAL, timeout: float | None = None) -> Any:
        try:
            return await waiting.wait_async(
                _bounded(gen, self.silence_seconds or SILENCE_SECONDS), self.pgconn.socket, interval
            )
        except BaseException as error:
            if not isinstance(error, psycopg.Error) or isinstance(error, Silent):
                self.pgconn.finish()
            raise


class Silent(psycopg.OperationalError):
    """The server did not answer in time."""


def _checked(connection: Connection | AsyncConnection, answer: Any) -> Any:
    if answer.status != ROWS:
        raise errors.error_from_result(answer)
    check_replicated(connection)
    return answer


def _bounded(gen: Any, seconds: float) -> Generator[Any, Any, Any]:
    """The driver's own steps; when nothing comes for too long, an error instead of the next one."""
    deadline = time.monotonic() + seconds
    try:
        state = next(gen)
        while True:
            ready = yield state
            if not ready and time.monotonic() > deadline:
                raise Silent(f"no answer within {seconds:.0f} s")
            state = gen.send(ready)
    except StopIteration as stop:
        return stop.value


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


def check_replicated(connection: Connection | AsyncConnection) -> None:
    """After each statement: a commit that its standby may not have is a lost reply, to be asked again by a write."""
    if connection.not_replicated:
        connection.not_replicated = False
        raise Silent("the commit was cancelled while it waited for a synchronous standby")


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
