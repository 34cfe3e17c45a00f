"""MySQL and MariaDB: how they are reached, what they promise, what their errors mean, and how their tables are made.

The store uses a primary only, over connections of its own, in autocommit and READ COMMITTED: each statement is one
transaction, except for a few explicit ones. Every statement has a deadline: the server waits `LOCK_SECONDS` for a row
that another transaction holds, and a server that is silent for `SILENCE_SECONDS` counts as gone. Then the command is
sent again, and recognises itself by its attempt id.

Statements are made of names, numbers and hexadecimal alone (see `stores/mysql/_rows`): nothing has to be escaped, and
no character set or SQL mode of a caller's connection can change what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Any, TypeAlias
from urllib.parse import quote, unquote, urlencode

import pymysql
from pymysql.constants import CR, ER, SERVER_STATUS
from pymysql.cursors import Cursor

from samekey.core.errors import Misconfigured, RecordUnreadable, StoreBusy, StoreError, StoreUnavailable
from samekey.drivers.mysql.self_check import (
    IDLE_SECONDS as IDLE_SECONDS,
)
from samekey.drivers.mysql.self_check import SCHEMA, greet
from samekey.drivers.mysql.self_check import (
    Address as Address,
)
from samekey.drivers.mysql.self_check import (
    Facts as Facts,
)
from samekey.drivers.mysql.self_check import (
    place_of as place_of,
)
from samekey.drivers.schema import migrate_line, newer
from samekey.drivers.urls import split, unsplit

Connection: TypeAlias = "pymysql.connections.Connection[Cursor]"  # quoted: generic for the type checker only
DriverError = pymysql.Error
Rows = list[tuple[Any, ...]]

CONNECT_SECONDS = 5  # a primary on the same network answers in milliseconds
SILENCE_SECONDS = 6  # longer than any lock is waited for; after that the server is taken for gone
DESK_SECONDS = 60  # a list over millions of records, a sweep
MIGRATION_LOCK_SECONDS = 30

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key")


# -- addresses ---------------------------------------------------------------------------------------------


def parse_url(url: str) -> Address:
    """`mysql://user:password@host:3306/database`, also `?unix_socket=/run/mysqld/mysqld.sock`, `?ssl_ca=ca.pem`."""
    parts, given = split(url)
    database = unquote(parts.path.removeprefix("/"))
    user, at, host = parts.netloc.rpartition("@")
    options = dict(given)
    shown = {option: value for option, value in options.items() if option in OPTIONS}  # no secret in any of them
    name = unsplit(parts, user.partition(":")[0] + at + host, urlencode(shown, safe="/", quote_via=quote))
    if parts.scheme not in ("mysql", "mariadb") or not database or "/" in database:
        raise Misconfigured(f"{name!r} is no MySQL address: write mysql://user@host/database")
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise Misconfigured(f"unknown option {unknown[0]!r} in {name!r}; there are: {', '.join(OPTIONS)}")
    try:
        port = parts.port or 3306
    except ValueError:
        raise Misconfigured(f"{name!r} has a port that is no number") from None
    arguments: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database,
        **options,
    }
    if "ssl_ca" in options:
        arguments["ssl_verify_cert"] = arguments["ssl_verify_identity"] = True  # else it would prove nothing
    elif not ("ssl_cert" in options or "ssl_key" in options) and (
        "unix_socket" in options or arguments["host"] in LOOPBACK
    ):
        arguments["ssl_disabled"] = True  # the connection stays on this machine, and a TLS context takes 30 ms to make
    return Address(name, {name: value for name, value in arguments.items() if value != ""})


# -- connections -------------------------------------------------------------------------------------------


def connect(address: Address, *, desk: bool = False) -> tuple[Connection, Facts]:
    """A connection to the primary, checked; `desk=True` for operators, whose statements may take their time."""
    with translated(address):
        link = _connect(address, DESK_SECONDS if desk else SILENCE_SECONDS)
        try:
            return link, greet(address, lambda statement: run(link, statement)[0])
        except BaseException:
            abandon(link)
            raise


# A server's init_connect may have begun a transaction, or switched autocommit off without telling the driver: claims
# would be made in a transaction that is never committed.
_EACH_ITS_OWN = ("ROLLBACK AND NO CHAIN NO RELEASE", "SET SESSION autocommit = 1")


def _connect(address: Address, silence_seconds: int) -> Connection:
    link: Connection = pymysql.connect(
        **address.arguments,
        charset="utf8mb4",
        autocommit=True,
        connect_timeout=CONNECT_SECONDS,
        read_timeout=silence_seconds,
        write_timeout=silence_seconds,
        cursorclass=Cursor,
        program_name="samekey",
    )
    try:
        for statement in _EACH_ITS_OWN:
            run(link, statement)
    except BaseException:
        abandon(link)
        raise
    return link


def run(link: Connection, statement: str) -> tuple[Rows, int]:
    """The rows of a statement, and how many it changed."""
    try:
        cursor = link.cursor(Cursor)  # the caller's own kind of cursor is for the caller's rows
        changed = cursor.execute(statement)
        return list(cursor.fetchall()) if cursor.description else [], changed
    except pymysql.Error:
        raise
    except BaseException:  # interrupted (Ctrl-C, a time limit): its reply would answer the next statement
        abandon(link)
        raise


def abandon(link: Connection) -> None:
    """Close the socket without a goodbye: the connection may be in the middle of a statement."""
    link._force_close()  # type: ignore[attr-defined]


def close(link: Connection) -> None:
    """Close the connection politely, if it is still open."""
    try:
        link.close()
    except pymysql.Error:
        pass  # it was closed already


def is_connection(given: Any) -> bool:
    return isinstance(given, pymysql.connections.Connection)


def in_transaction(link: Connection) -> bool:
    """Whether a transaction is open, as the server last reported it."""
    status: int = link.server_status  # type: ignore[attr-defined]
    return link.open and bool(status & SERVER_STATUS.SERVER_STATUS_IN_TRANS)


def is_stale(link: Connection) -> bool:
    """Whether the last reply did not report it: a SELECT that begins a transaction does not, nor does an error."""
    last = link._result  # type: ignore[attr-defined]
    return link.open and (last is None or last.server_status is None)


def refresh(link: Connection) -> None:
    """Let the server report again whether a transaction is open."""
    try:
        run(link, "DO 0")
    except pymysql.Error:
        pass  # gone: then there is none


# -- errors ------------------------------------------------------------------------------------------------

_NOT_THERE = {ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR}
_NOT_ALLOWED = {
    ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR,
    ER.SPECIFIC_ACCESS_DENIED_ERROR, 1698,
}  # fmt: skip
_ELSEWHERE = _NOT_THERE | _NOT_ALLOWED | {ER.BAD_DB_ERROR, ER.NO_DB_ERROR, ER.UNKNOWN_SYSTEM_VARIABLE}
_SESSION_FORBIDS = {ER.TOO_BIG_SELECT, 1792}  # max_join_size; a read-only transaction
_TIMED_OUT = {1969, 3024}  # MariaDB's max_statement_time, MySQL's max_execution_time
_READ_ONLY = {ER.OPTION_PREVENTS_STATEMENT, 1836}
_FULL = {ER.DISK_FULL, ER.RECORD_FILE_FULL}
_CANNOT_KEEP = {ER.DATA_TOO_LONG, ER.TRUNCATED_WRONG_VALUE_FOR_FIELD, ER.WARN_DATA_OUT_OF_RANGE}
_DAMAGED = {ER.NOT_KEYFILE, ER.CRASHED_ON_USAGE, ER.CRASHED_ON_REPAIR, 1712, 1932}
_HELD = {ER.LOCK_WAIT_TIMEOUT, 3572}  # waited in vain; MySQL's answer to NOWAIT (MariaDB gives the first one)
_TOO_MANY = {ER.CON_COUNT_ERROR, ER.TOO_MANY_USER_CONNECTIONS, ER.USER_LIMIT_REACHED}
_CHANGED_SINCE = ER.CHECKREAD  # MariaDB's innodb_snapshot_isolation: the row moved on since the transaction began
_NOT_CERTIFIED = 3101  # MySQL's group replication: another primary wrote the same row first
_LOST = {
    CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_SERVER_LOST_EXTENDED, ER.SERVER_SHUTDOWN, ER.QUERY_INTERRUPTED,
    ER.NEW_ABORTING_CONNECTION, ER.NET_READ_ERROR, ER.NET_READ_INTERRUPTED, ER.NET_ERROR_ON_WRITE,
    ER.NET_WRITE_INTERRUPTED, 1927, 4031, 0,
}  # fmt: skip


def number(error: BaseException) -> int:
    """The server's or the client's own number of this error; 0 for a connection that is closed."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """The driver's exceptions as ours, once, at the edge."""
    try:
        yield
    except pymysql.Error as error:
        raise store_error(address, error) from error


def store_error(address: Address, error: pymysql.Error) -> StoreError | Misconfigured:
    name, code = address.name, number(error)
    if code in _NOT_THERE:
        return Misconfigured(f"{name} has no samekey tables, or not all of them. Make them with: {migrate_line(name)}")
    if code in _NOT_ALLOWED or code == ER.BAD_DB_ERROR:
        return Misconfigured(f"{name}: {_message(error)}")
    if code in _SESSION_FORBIDS:
        return Misconfigured(
            f"{name}: this session or transaction forbids a claim, which is a write: {_message(error)}"
        )
    if code in _READ_ONLY:
        return StoreUnavailable(f"{name} is read-only now: a replica, or a primary that is being replaced")
    if code in _HELD:
        return StoreBusy(f"{name}: another transaction holds the record; it is free when that transaction ends")
    if code in _FULL:
        return StoreUnavailable(f"the disk of {name} is full; nothing was written")
    if code == ER.NET_PACKET_TOO_LARGE:
        return Misconfigured(f"the record is larger than the max_allowed_packet of {name}: raise it there")
    if code in _CANNOT_KEEP:
        return Misconfigured(f"{name} cannot keep this: {_message(error)}")
    if code in _DAMAGED:
        return RecordUnreadable(f"{name} is damaged: {_message(error)}")
    return StoreUnavailable(f"{name}: {_message(error)}")


def is_lost(error: BaseException) -> bool:
    """Whether the statement may have been carried out although its answer never came."""
    return isinstance(error, pymysql.Error) and number(error) in _LOST


def is_conflict(error: BaseException) -> bool:
    """Whether nothing was written, and the same statement may be sent again at once."""
    return isinstance(error, pymysql.Error) and (
        is_rolled_back(error) or number(error) in _READ_ONLY or number(error) == ER.TABLE_DEF_CHANGED
    )


def is_rolled_back(error: BaseException) -> bool:
    """Whether the server gave up the whole transaction for the sake of another one."""
    return isinstance(error, pymysql.Error) and number(error) in (ER.LOCK_DEADLOCK, _CHANGED_SINCE, _NOT_CERTIFIED)


def is_busy(error: BaseException) -> bool:
    """Whether another transaction holds the row; this one goes on all the same."""
    return isinstance(error, pymysql.Error) and number(error) in _HELD


def is_at_its_limit(error: BaseException | None) -> bool:
    """Whether the server refused a connection only because there are so many already."""
    return isinstance(error, pymysql.Error) and number(error) in _TOO_MANY


def is_timed_out(error: BaseException) -> bool:
    """Whether the session allows its statements less time than this one took: in a claim, waiting for a row."""
    return isinstance(error, pymysql.Error) and number(error) in _TIMED_OUT


def is_elsewhere(error: BaseException) -> bool:
    """Whether this connection sees no tables of ours, or is to another kind of server."""
    return isinstance(error, pymysql.Error) and number(error) in _ELSEWHERE


def is_spent(error: BaseException) -> bool:
    """Whether the connection is of no use any more: gone, or to a server that was demoted."""
    return is_lost(error) or (isinstance(error, pymysql.Error) and number(error) in _READ_ONLY)


def no_such_savepoint(error: BaseException) -> bool:
    return isinstance(error, pymysql.Error) and number(error) == ER.SP_DOES_NOT_EXIST


def _message(error: BaseException) -> str:
    text = str(error.args[1]) if len(error.args) > 1 else ""
    return (text.strip() or type(error).__name__).splitlines()[0]


# -- migrations --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    title: str
    sql: str


def migrations() -> list[Migration]:
    """All of them, as shipped, in order: plain SQL, to be printed for Alembic, Django or Flyway as well."""
    folder = resources.files("samekey.stores") / "migrations" / "mysql"
    files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [
        Migration(int(name[:4]), name[5:-4].replace("_", " "), (folder / name).read_text(encoding="utf-8"))
        for name in files
    ]


def migrate(url: str, *, dry_run: bool = False) -> list[Migration]:
    """Bring the database to our schema; the migrations that were (or with `dry_run` would be) carried out.

    Several processes may try at once: one migrates, the others wait and find it done. One that is interrupted is
    carried out again from its beginning: every statement may be run twice.
    """
    address = parse_url(url)
    with translated(address):
        link = _connect(address, MIGRATION_LOCK_SECONDS + SILENCE_SECONDS)
        try:
            if dry_run:
                return _missing(address, link)
            name = "CONCAT('samekey ', LEFT(SHA2(DATABASE(), 256), 40))"  # a lock is the whole server's
            if run(link, f"SELECT GET_LOCK({name}, {MIGRATION_LOCK_SECONDS})")[0] != [(1,)]:
                raise StoreUnavailable(
                    f"{address.name}: another process has been migrating it for {MIGRATION_LOCK_SECONDS} s"
                )
            missing = _missing(address, link)
            for migration in missing:
                for statement in statements(migration.sql):
                    run(link, statement)
            return missing
        finally:
            close(link)  # and with it the lock


def statements(sql: str) -> list[str]:
    """A migration's statements, one by one: the server takes no more at once."""
    plain = "\n".join(line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return [statement.strip() for statement in plain.split(";\n") if statement.strip()]


def _missing(address: Address, link: Connection) -> list[Migration]:
    found = 0
    there, _ = run(
        link,
        "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'samekey_meta'",
    )
    if there:
        rows, _ = run(link, "SELECT CAST(value AS BINARY) FROM samekey_meta WHERE name = 'schema'")
        found = int(rows[0][0]) if rows else 0
    if found > SCHEMA:
        raise newer(address.name, found, SCHEMA)
    return [one for one in migrations() if one.number > found]
