"""Connections of samekey's own to a PostgreSQL primary.

They are in autocommit: each statement is one transaction, and no transaction is ever open while anything else happens.
"""

from __future__ import annotations

from typing import Any

import psycopg

from samekey.core.drive import adrive, drive
from samekey.drivers.postgres.address import Address
from samekey.drivers.postgres.connection import AsyncConnection, Connection
from samekey.drivers.postgres.errors import translated
from samekey.drivers.postgres.exchange import COMMIT, Query
from samekey.drivers.postgres.self_check import OPERATOR_SECONDS, Facts, Purpose, self_check, synchronous_commit

CONNECT_SECONDS = 5  # whole seconds, which is libpq's rule; a primary on the same network answers in milliseconds


def connect(address: Address, purpose: Purpose, before: Facts | None) -> tuple[Connection, Facts]:
    """A connection to the primary that passed the self-check; `before`: the facts of the connection before this one."""
    with translated(address):
        connection = Connection.connect(address.url, **arguments(address))
        _set_up(address, connection, purpose)

        def row_of(step: Any) -> Any:
            return connection.execute(*step).fetchone()

        try:
            facts: Any = drive(self_check(address, purpose, before), row_of)
        except BaseException:
            connection.close()
            raise
    return connection, facts


async def connect_async(address: Address, purpose: Purpose, before: Facts | None) -> tuple[AsyncConnection, Facts]:
    """The same, awaited."""
    with translated(address):
        connection = await AsyncConnection.connect(address.url, **arguments(address))
        _set_up(address, connection, purpose)

        async def row_of(step: Any) -> Any:
            return await (await connection.execute(*step)).fetchone()

        try:
            facts: Any = await adrive(self_check(address, purpose, before), row_of)
        except BaseException:
            await connection.close()
            raise
    return connection, facts


def _set_up(address: Address, connection: Connection | AsyncConnection, purpose: Purpose) -> None:
    def on_notice(notice: psycopg.errors.Diagnostic) -> None:
        # The commit was cancelled while it waited for a standby: the server then reports success with this warning.
        if notice.source_function == "SyncRepWaitForLSN":
            connection.not_replicated = True

    connection.add_notice_handler(on_notice)
    connection.prepared = None if address.pgbouncer else set()
    if purpose.operator:
        connection.silence_seconds = OPERATOR_SECONDS + 1


def connect_listener(address: Address) -> Connection:
    """A connection that receives every notification; the caller waits on its socket."""
    with translated(address):
        connection = Connection.connect(address.url, **arguments(address))
        try:
            connection.execute("LISTEN samekey")
        except BaseException:
            connection.close()
            raise
    return connection


def arguments(address: Address) -> dict[str, Any]:
    """What psycopg's `connect` gets besides the address."""
    given = psycopg.conninfo.conninfo_to_dict(address.url)
    ours = {
        "target_session_attrs": "read-write",  # never a standby: it does not know the last claims
        "connect_timeout": CONNECT_SECONDS,
        "application_name": "samekey",
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
    }
    return {
        **{name: value for name, value in ours.items() if name not in given},
        "client_encoding": "utf8",  # samekey's texts are UTF-8, whatever the address asks for
        "autocommit": True,
        "prepare_threshold": None if address.pgbouncer else 0,
    }


def with_settings(address: Address, query: Query, durable: bool) -> Query:
    """The query as it is sent. Through PgBouncer a session keeps no settings, so each query brings its own."""
    if not address.pgbouncer:
        return query
    settings = (
        f", set_config('synchronous_commit', '{synchronous_commit(durable, 'on')}', true)"
        ", set_config('client_min_messages', 'warning', true)"  # see `_set_up`
    )
    return query._replace(sql=query.sql.replace(COMMIT.encode(), settings.encode()))
