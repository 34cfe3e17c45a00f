"""What the tests of PostgreSQL share."""

from __future__ import annotations

import os
import time
from typing import Any

import psycopg

MAJOR = int(os.environ.get("SAMEKEY_TEST_PG_MAJOR", "18"))

# A claim by hand: its values are digest, operation, key and attempt.
CLAIM = (
    "SELECT samekey_open(%s, %s, NULL, %s, %s, '', '1', NULL, 'opaque', 30, false, NULL, NULL, NULL, NULL, NULL, NULL)"
)


def sql(url: str, statement: str) -> Any:
    """The first column of the first row, where there is one."""
    with psycopg.connect(url, autocommit=True) as link:
        done = link.execute(statement.encode())
        row = done.fetchone() if done.description else None
        return row[0] if row else None


def attempt(number: int) -> str:
    return f"{number:032x}"


def until(look: Any, seconds: float = 10.0) -> Any:
    """What `look` returns as soon as that is true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError("it never came")


def until_past(url: str, column: str) -> None:
    """Return when no record has this time within the next second: short leases and retentions are over then."""
    now = "date_part('epoch', clock_timestamp())"
    until(lambda: sql(url, f"SELECT count(*) = 0 FROM samekey_records WHERE {column} BETWEEN {now} AND {now} + 1"))


def until_ended(url: str, pid: int) -> None:
    """Return when this backend of the server has ended."""
    until(lambda: sql(url, f"SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}"))
