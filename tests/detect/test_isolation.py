"""The lines of docs/root-causes.md about isolation, on PostgreSQL: two transactions, each statement in its turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import psycopg
import pytest
from psycopg import IsolationLevel

INSERT = "INSERT INTO slots VALUES (1)"


@pytest.fixture(scope="module")
def url(samekey_postgres):
    return samekey_postgres.create_database()


def connect(url: str, level: IsolationLevel) -> psycopg.Connection:
    link = psycopg.connect(url)
    link.isolation_level = level
    return link


def table(url: str, *, unique: bool) -> None:
    with psycopg.connect(url, autocommit=True) as link:
        link.execute("DROP TABLE IF EXISTS slots")
        link.execute(f"CREATE TABLE slots (slot int {'UNIQUE' if unique else ''})".encode())


def count(url: str) -> int:
    with psycopg.connect(url) as link:
        found = link.execute("SELECT count(*) FROM slots").fetchone()
    assert found is not None
    return int(found[0])


def look_then_insert(url: str, level: IsolationLevel, look: str) -> None:
    with closing(connect(url, level)) as first, closing(connect(url, level)) as second:
        assert first.execute(look.encode()).fetchall() == second.execute(look.encode()).fetchall() == []
        for link in (first, second):
            link.execute(INSERT)
            link.commit()


@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ])
def test_a_look_and_then_an_insert_lets_both_insert(url, level):
    table(url, unique=False)
    look_then_insert(url, level, "SELECT slot FROM slots WHERE slot = 1")

    assert count(url) == 2


def test_for_update_locks_no_row_that_does_not_exist(url):
    table(url, unique=False)
    look_then_insert(url, IsolationLevel.READ_COMMITTED, "SELECT slot FROM slots WHERE slot = 1 FOR UPDATE")

    assert count(url) == 2


def test_serializable_rolls_one_back(url):
    table(url, unique=False)
    with pytest.raises(psycopg.errors.SerializationFailure):
        look_then_insert(url, IsolationLevel.SERIALIZABLE, "SELECT slot FROM slots WHERE slot = 1")

    assert count(url) == 1


def at_the_same_moment(url: str, statement: str) -> psycopg.Error | None:
    """The second statement waits for the first transaction, which then commits."""
    failed: list[psycopg.Error] = []

    def run(done: Callable[[], object]) -> None:
        with psycopg.connect(url) as link:
            try:
                link.execute(statement.encode())
            except psycopg.Error as error:
                failed.append(error)
            done()

    with psycopg.connect(url) as first, psycopg.connect(url, autocommit=True) as watch:
        first.execute(statement.encode())
        ended = threading.Event()
        thread = threading.Thread(target=run, args=(ended.set,), daemon=True)
        thread.start()
        name = first.info.dbname
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"
        while not ended.is_set() and watch.execute(waiting, (name,)).fetchone() == (0,):
            pass
        first.commit()
        thread.join(60)
    return failed[0] if failed else None


def test_a_unique_key_and_on_conflict_store_one_row_without_an_error(url):
    table(url, unique=True)

    assert at_the_same_moment(url, f"{INSERT} ON CONFLICT DO NOTHING") is None
    assert count(url) == 1


@pytest.mark.parametrize("unique", [True, False])
def test_merge_gives_an_error_or_two_rows(url, unique):
    table(url, unique=unique)
    rows = "MERGE INTO slots USING (VALUES (1)) n (slot) ON slots.slot = n.slot"
    merge = f"{rows} WHEN NOT MATCHED THEN INSERT VALUES (n.slot)"
    error = at_the_same_moment(url, merge)

    assert isinstance(error, psycopg.errors.UniqueViolation) is unique
    assert count(url) == (1 if unique else 2)
