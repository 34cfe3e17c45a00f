"""Connections to MySQL and MariaDB: how they are made and used.

The store uses a primary only, over connections of its own, in autocommit and READ COMMITTED: each statement is one
transaction, except for a few explicit ones. Every statement has a deadline: the server waits `LOCK_SECONDS` for a row
that another transaction holds, and a server that is silent for `SILENCE_SECONDS` counts as gone. Then the command is
sent again, and recognises itself by its attempt id.

Statements are made of names, numbers and hexadecimal alone (see `stores/mysql/_rows`): nothing has to be escaped, and
no character set or SQL mode of a caller's connection can change what they mean.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeAlias

import pymysql
from pymysql.constants import SERVER_STATUS
from pymysql.cursors import Cursor

from samekey.drivers.mysql.address import Address
from samekey.drivers.mysql.errors import translated
from samekey.drivers.mysql.self_check import Facts, greet

Connection: TypeAlias = "pymysql.connections.Connection[Cursor]"  # quoted: generic for the type checker only
Rows = list[tuple[Any, ...]]

CONNECT_SECONDS = 5  # a primary on the same network answers in milliseconds
SILENCE_SECONDS = 6  # longer than any lock is waited for; after that the server is taken for gone
DESK_SECONDS = 60  # a list over millions of records, a sweep


def connect(address: Address, *, desk: bool = False) -> tuple[Connection, Facts]:
    """A connection to the primary, checked; `desk=True` for operators, whose statements may take their time."""
    with translated(address):
        link = connect_unchecked(address, DESK_SECONDS if desk else SILENCE_SECONDS)
        try:
            return link, greet(address, lambda statement: run(link, statement)[0])
        except BaseException:
            abandon(link)
            raise


# A server's init_connect may have begun a transaction, or switched autocommit off without telling the driver: claims
# would be made in a transaction that is never committed.
_EACH_ITS_OWN = ("ROLLBACK AND NO CHAIN NO RELEASE", "SET SESSION autocommit = 1")


def connect_unchecked(address: Address, silence_seconds: int) -> Connection:
    """A connection in autocommit, without the self-check: the tables may not be there yet."""
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
    with suppress(pymysql.Error):  # it was closed already
        link.close()


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
    with suppress(pymysql.Error):  # gone: then there is none
        run(link, "DO 0")
