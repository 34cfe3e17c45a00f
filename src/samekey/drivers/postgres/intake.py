"""Connections for the intake: like the store's, without its self-check (the intake's tables are its own)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import errors as server_errors
from psycopg.pq import TransactionStatus

from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.drivers.postgres.address import Address, parse_url
from samekey.drivers.postgres.connect import arguments
from samekey.drivers.postgres.connection import AsyncConnection, Connection
from samekey.drivers.postgres.errors import first_line, is_conflict, is_lost, translated

__all__ = [
    "CONFLICTS_MAX",
    "connect",
    "connect_async",
    "errors",
    "is_conflict",
    "is_lost",
    "parse_url",
    "translated",
    "usable",
]

CONFLICTS_MAX = 5  # deadlocks and serialization failures of one command


def connect(address: Address) -> Connection:
    return Connection.connect(address.url, **arguments(address))


async def connect_async(address: Address) -> AsyncConnection:
    return await AsyncConnection.connect(address.url, **arguments(address))


def usable(connection: Any) -> bool:
    return not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE


@contextmanager
def errors(address: Address, no_tables: Callable[[str], Misconfigured]) -> Iterator[None]:
    """Raise the driver's exceptions as samekey's; the sink's own exceptions pass."""
    try:
        yield
    except server_errors.UndefinedTable as error:
        if "samekey_intake" in first_line(error):
            raise no_tables(address.name) from error
        raise StoreUnavailable(f"{address.name}: {first_line(error)}") from error
    except (psycopg.Error, OSError) as error:
        raise StoreUnavailable(f"{address.name}: {first_line(error)}") from error
