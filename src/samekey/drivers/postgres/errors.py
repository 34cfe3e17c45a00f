"""What PostgreSQL's errors mean: for the caller, for the statement, and for the connection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
from psycopg import errors

from samekey.core.errors import Misconfigured, RecordUnreadable, StoreBusy, StoreError, StoreUnavailable
from samekey.drivers.schema import migrate_line

if TYPE_CHECKING:
    from samekey.drivers.postgres.address import Address

DriverError = psycopg.Error

# libpq's texts for a server that target_session_attrs rules out; such an error has no SQLSTATE.
_NO_PRIMARY = ("session is read-only", "server is in hot standby mode")


class Silent(psycopg.OperationalError):
    """The server did not answer in time."""


@contextmanager
def translated(address: Address) -> Iterator[None]:
    """Raise the driver's exceptions as samekey's."""
    try:
        yield
    except (psycopg.Error, OSError) as error:  # psycopg opens a file to wait with, and there may be none left
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
            return Misconfigured(f"{name}: this role may not use the samekey tables ({first_line(error)})")
        case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification() | errors.InvalidCatalogName():
            return Misconfigured(f"{name}: {first_line(error)}")
        case psycopg.DataError():
            return Misconfigured(f"{name} cannot keep this: {first_line(error)}")
        case errors.DiskFull():
            return StoreUnavailable(f"the disk of {name} is full; nothing was written")
        case errors.LockNotAvailable():
            return StoreBusy(f"{name}: another transaction holds the record; it is free when that transaction ends")
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return RecordUnreadable(f"{name} is damaged: {first_line(error)}")
        case errors.InvalidSqlStatementName() | errors.DuplicatePreparedStatement():
            return StoreUnavailable(f"{name}: {first_line(error)}")
        case psycopg.ProgrammingError() | psycopg.IntegrityError():
            # The server is up, so this is no outage: `store_down="run"` would run without a guard for ever.
            return Misconfigured(
                f"{name} refused a statement of samekey, so its samekey tables are not as `samekey migrate` made them "
                f"({first_line(error)})"
            )
        case psycopg.OperationalError() if any(text in str(error) for text in _NO_PRIMARY):
            return StoreUnavailable(
                f"{name}: no server of this address takes writes. It is a standby, or set to read-only, and claims go "
                f"to the primary only ({first_line(error)})"
            )
        case _:
            return StoreUnavailable(f"{name}: {first_line(error)}")


def is_lost(error: BaseException) -> bool:
    """Whether the server may have carried out the statement although its reply never came."""
    if isinstance(error, errors.AdminShutdown | errors.CrashShutdown | errors.QueryCanceled | Silent):
        return True
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and (
        error.sqlstate is None or error.sqlstate.startswith("08") or error.sqlstate == "40003"
    )


_OTHER_SESSION = (
    errors.ReadOnlySqlTransaction  # the server was demoted: the next connection finds the new primary
    | errors.InvalidSqlStatementName  # DISCARD ALL was sent on this session
    | errors.DuplicatePreparedStatement
    | errors.FeatureNotSupported  # "cached plan must not change result type": the tables were made anew
)


def is_conflict(error: BaseException) -> bool:
    """Whether nothing was written, and the same statement may be sent again at once."""
    return isinstance(error, errors.DeadlockDetected | errors.SerializationFailure | _OTHER_SESSION)


def is_spent(error: BaseException) -> bool:
    """Whether the connection can no longer be used."""
    return (is_lost(error) and not isinstance(error, errors.QueryCanceled)) or isinstance(error, _OTHER_SESSION)


def first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
