"""What the errors of MySQL and MariaDB mean: which ones lost a reply, which may be repeated, and ours for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pymysql
from pymysql.constants import CR, ER

from samekey.core.errors import Misconfigured, RecordUnreadable, StoreBusy, StoreError, StoreUnavailable
from samekey.drivers.mysql.address import Address
from samekey.drivers.schema import migrate_line

DriverError = pymysql.Error

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


def number(error: BaseException | None) -> int:
    """The server's or the client's own number of this error; 0 for a closed connection, -1 if it is not PyMySQL's."""
    if not isinstance(error, pymysql.Error):
        return -1
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
    return number(error) in _LOST


def is_conflict(error: BaseException) -> bool:
    """Whether nothing was written, and the same statement may be sent again at once."""
    return is_rolled_back(error) or number(error) in _READ_ONLY or number(error) == ER.TABLE_DEF_CHANGED


def is_rolled_back(error: BaseException) -> bool:
    """Whether the server gave up the whole transaction for the sake of another one."""
    return number(error) in (ER.LOCK_DEADLOCK, _CHANGED_SINCE, _NOT_CERTIFIED)


def is_busy(error: BaseException) -> bool:
    """Whether another transaction holds the row; this one goes on all the same."""
    return number(error) in _HELD


def is_at_its_limit(error: BaseException | None) -> bool:
    """Whether the server refused a connection only because there are so many already."""
    return number(error) in _TOO_MANY


def is_timed_out(error: BaseException) -> bool:
    """Whether the session allows its statements less time than this one took: in a claim, waiting for a row."""
    return number(error) in _TIMED_OUT


def is_elsewhere(error: BaseException) -> bool:
    """Whether this connection sees no tables of ours, or is to another kind of server."""
    return number(error) in _ELSEWHERE


def is_spent(error: BaseException) -> bool:
    """Whether the connection is of no use any more: gone, or to a server that was demoted."""
    return is_lost(error) or number(error) in _READ_ONLY


def no_such_savepoint(error: BaseException) -> bool:
    return number(error) == ER.SP_DOES_NOT_EXIST


def _message(error: BaseException) -> str:
    text = str(error.args[1]) if len(error.args) > 1 else ""
    return (text.strip() or type(error).__name__).splitlines()[0]
