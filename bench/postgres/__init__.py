"""What the PostgreSQL figures share: a private server that waits for its disk, and the statements one writes by hand.

Raw: INSERT .. ON CONFLICT DO NOTHING, then UPDATE .. WHERE token, each its own commit, with the same driver, the same
durability, and rows as wide as ours. It keeps no fingerprint, no lease, no story; that is the point.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import psycopg

from bench.groups.sqlite import ENVELOPE, command
from bench.measure import Effort
from samekey.core.commands import Open, Settle
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.drivers.postgres.migrate import migrate
from samekey.testing.servers import Postgres, postgres

RAW_CONNECTIONS = 32  # the best raw setting for more callers than that, too
QUICK_ROUNDS = 3
RETAIN_SECONDS = 24 * 3600.0

TABLE = """
CREATE TABLE keys (
  key    uuid PRIMARY KEY,
  state  text NOT NULL,
  token  bigint NOT NULL,
  claim  bytea NOT NULL,
  result bytea
)
"""
CLAIM = "INSERT INTO keys (key, state, token, claim) VALUES (%s, 'started', %s, %s) ON CONFLICT (key) DO NOTHING"
COMPLETE = "UPDATE keys SET state = 'completed', result = %s WHERE key = %s AND token = %s"
REPLAY = "SELECT state, token, claim, result FROM keys WHERE key = %s"

_numbers = itertools.count()


@contextmanager
def served() -> Iterator[tuple[Postgres, str]]:
    """A server with every commit on disk, and a database of it with our tables and the raw one."""
    with postgres(fsync="on", shared_buffers="256MB", max_wal_size="4GB") as server:
        yield server, new_database(server)


def new_database(server: Postgres) -> str:
    url = server.create_database()
    migrate(url)
    with psycopg.connect(url, autocommit=True) as link:
        link.execute(TABLE)
    return url


def is_quick(effort: Effort) -> bool:
    return effort.rounds <= QUICK_ROUNDS


def new_text() -> str:
    return f"ord_{os.getpid():07d}_{next(_numbers):08d}"


def claiming() -> Open:
    return command(new_text())


def completing(held: Record) -> Settle:
    return Settle(held, Role.HOLDER, State.COMPLETED, by=held.attempt, result=ENVELOPE, retain_seconds=RETAIN_SECONDS)


class Width:
    """What the raw columns are filled up with, so that a raw row has as many bytes as this completed one of ours."""

    def __init__(self, url: str, held: Record) -> None:
        with psycopg.connect(url) as link:
            row = link.execute(
                "SELECT pg_column_size(r.*) - coalesce(octet_length(result), 0), coalesce(octet_length(result), 0) "
                "FROM samekey_records AS r WHERE digest = %s",
                (UUID(bytes=held.key.digest),),
            ).fetchone()
        if row is None:
            raise LookupError("the record that was to be measured is not there")
        claimed, completed = row
        self.claim = bytes(max(0, claimed - 60))  # key, state, token and the row's own head
        self.result = bytes(completed)


def raw_connect(url: str) -> psycopg.Connection[Any]:
    return psycopg.connect(url, autocommit=True, prepare_threshold=0)


async def raw_connect_async(url: str) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=0)
