"""Atomic on PostgreSQL against the user's own transaction plus one insert.

By hand: the same statements over the same driver as it is by default (it prepares a statement after five uses), and one
row more in the same commit, as wide as our record is in the end - what a careful person writes to remember a key. It
waits for nobody, keeps no answer and replays nothing; that is the point. Beside an effect of n statements by hand there
are three trips (BEGIN, the insert, COMMIT), with `Atomic("session")` two, with `guard.on` three.
The disk is waited for (fsync on, synchronous_commit on), because nobody commits an order without.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg

from bench.figures import Experiment, Figure, Reading, at_most
from bench.measure import Effort, Lap, Work, cpu_ratios, interleave, microseconds, sync_laps, wall_ratios
from samekey import Atomic, Guard
from samekey.drivers.postgres.migrate import migrate
from samekey.testing.servers import postgres

_numbers = itertools.count()

TABLES = """
CREATE TABLE orders (id text PRIMARY KEY, amount int NOT NULL);
CREATE TABLE lines (id text, sku text, amount int);
CREATE TABLE stock (sku text PRIMARY KEY, amount bigint NOT NULL);
INSERT INTO stock VALUES ('apple', 0);
CREATE TABLE keys (key text PRIMARY KEY, kept bytea NOT NULL);
"""
RESULT = {"id": "ord_00000001", "amount": 1999, "paid": True}

Statements = Callable[[psycopg.Connection[Any], str], dict[str, object]]


def small_order(connection: psycopg.Connection[Any], key: str) -> dict[str, object]:
    """An order with a line, and the stock it takes: three statements."""
    connection.execute("INSERT INTO orders VALUES (%s, 1999)", (key,))
    connection.execute("INSERT INTO lines VALUES (%s, 'apple', 1)", (key,))
    connection.execute("UPDATE stock SET amount = amount - 1 WHERE sku = 'apple'")
    return RESULT


def single_row(connection: psycopg.Connection[Any], key: str) -> dict[str, object]:
    """The smallest there is: one statement."""
    connection.execute("INSERT INTO orders VALUES (%s, 1999)", (key,))
    return RESULT


def compared(statements: Statements) -> Callable[[Effort], Sequence[Reading]]:
    def run(effort: Effort) -> Sequence[Reading]:
        with database() as url, Guard(url) as guard, psycopg.connect(url) as mine, psycopg.connect(url) as theirs:

            @guard.once(name="order", key="key", boundary=Atomic("session"))
            def order(session: psycopg.Connection[Any], key: str) -> dict[str, object]:
                return statements(session, key)

            order(mine, new_key())
            kept = bytes(our_width(mine))
            mine.rollback()

            def by_decorator(operations: int) -> Work:
                keys = [new_key() for _ in range(operations)]
                return lambda: [order(mine, key) for key in keys]

            def in_callers(operations: int) -> Work:
                keys = [new_key() for _ in range(operations)]

                def work() -> None:
                    for key in keys:
                        inside = guard.on(mine)
                        inside.run("order", lambda key=key: statements(mine, key), key=key, payload={"key": key})  # type: ignore[misc]
                        mine.commit()

                return work

            def by_hand(operations: int) -> Work:
                keys = [new_key() for _ in range(operations)]

                def work() -> None:
                    for key in keys:
                        theirs.execute("INSERT INTO keys VALUES (%s, %s)", (key, kept))
                        statements(theirs, key)
                        theirs.commit()

                return work

            decorated, joined, bare = interleave(effort, by_decorator, in_callers, by_hand).laps
            disk = f"machine.fsync took {statistics.median(sync_laps(9)):.2f} ms"
        return [
            ratio(decorated, bare, f"{len(kept)} bytes kept; {disk}"),
            ratio(joined, bare, disk),
            client(decorated, bare),
        ]

    return run


def ratio(ours: Sequence[Lap], bare: Sequence[Lap], more: str) -> Reading:
    ratios = wall_ratios(ours, bare)
    mine, other = (statistics.median(lap.wall for lap in laps) * 1e6 for laps in (ours, bare))
    return Reading(statistics.median(ratios), ratios, f"{mine:.0f} against {other:.0f} us; {more}")


def client(ours: Sequence[Lap], bare: Sequence[Lap]) -> Reading:
    ratios = cpu_ratios(ours, bare)
    note = f"{microseconds(ours):.0f} against {microseconds(bare):.0f} us CPU"
    return Reading(statistics.median(ratios), ratios, note)


def our_width(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute("SELECT max(pg_column_size(r.*)) FROM samekey_records AS r").fetchone()
    return 0 if row is None else int(row[0])


def new_key() -> str:
    return f"ord_{os.getpid()}_{next(_numbers):08d}"


@contextmanager
def database() -> Iterator[str]:
    with postgres(fsync="on", synchronous_commit="on") as server:
        url = server.create_database()
        migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TABLES)
        yield url


HAND = "the same transaction by hand, plus one insert"
EXPERIMENTS = (
    Experiment(
        (
            Figure("postgres.atomic", "x", f'{HAND}; three statements, Atomic("session")', at_most(1.15)),
            Figure("postgres.atomic.on", "x", "the same with guard.on(connection) in the caller's transaction"),
            Figure("postgres.atomic.cpu", "x CPU", f'{HAND}; three statements, Atomic("session"); the client'),
        ),
        compared(small_order),
    ),
    Experiment(
        (
            Figure("postgres.atomic.smallest", "x", f'{HAND}; one statement, Atomic("session")'),
            Figure("postgres.atomic.smallest.on", "x", "the same with guard.on(connection)"),
            Figure("postgres.atomic.smallest.cpu", "x CPU", f'{HAND}; one statement, Atomic("session"); the client'),
        ),
        compared(single_row),
    ),
)
