"""Counts in a SQLite file: old minutes go in small steps, and a file that was replaced gets the counts."""

from __future__ import annotations

import math
import os
import sqlite3
from contextlib import closing

import pytest

from samekey.core.books import Count
from samekey.core.errors import RecordUnreadable
from samekey.stores.sqlite import SqliteStore
from samekey.testing.clock import ManualClock

NOW = 1_700_000_000.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.db"


def count(minute: float, source: str = "") -> Count:
    return Count(int(minute), "charge", source, "new", 1)


def test_each_addition_forgets_some_minutes_that_are_too_old(path):
    """A thousand at a time: no claim waits long for it. A reader sees none of them before that."""
    clock = ManualClock(NOW)
    with closing(SqliteStore(path, clock=clock)) as store, closing(sqlite3.connect(path)) as link:
        for part in range(3):
            store.add_counts([count(clock() // 60 + part, f"{number}") for number in range(500)])
        clock.advance(15 * 24 * 3600)
        assert store.counts(0, math.inf) == []
        left = []
        for _ in range(2):
            store.add_counts([count(clock() // 60)])
            left += link.execute("SELECT count(*) FROM samekey_counts").fetchone()

    assert left == [501, 1]


def test_counts_go_to_the_file_that_is_there(path):
    with closing(SqliteStore(path, clock=ManualClock(NOW))) as store:
        store.add_counts([count(NOW // 60)])
        for name in (path, f"{path}-wal", f"{path}-shm"):
            os.unlink(name)
        store._process._look_again_at = 0.0  # a millisecond later
        store.add_counts([count(NOW // 60, "anew")])

        assert [one.source for one in store.counts(0, math.inf)] == ["anew"]


def test_a_damaged_row_is_named(path):
    with closing(SqliteStore(path, clock=ManualClock(NOW))) as store, closing(sqlite3.connect(path)) as link:
        link.execute("INSERT INTO samekey_counts VALUES (?, 'charge', '', 'new', -5)", (NOW // 60,))
        link.commit()

        with pytest.raises(RecordUnreadable, match="a row of the counts"):
            store.counts(0, math.inf)
