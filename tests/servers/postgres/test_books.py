"""Counts and findings in PostgreSQL: neither they nor claims wait for each other, and old minutes go in steps."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from samekey import AsyncGuard
from samekey.core.books import Count, FindingQuery, make_finding
from samekey.core.errors import StoreUnavailable
from samekey.core.states import State
from samekey.guard import bookkeeping
from samekey.stores.postgres._books import findings_statement
from samekey.testing.stores.scene import A, settling
from tests.servers.postgres.helpers import sql, until

pytestmark = pytest.mark.slow


def count(source: str = "") -> Count:
    return Count(int(time.time() // 60), "charge", source, "new", 1)


def test_counts_and_findings_do_not_wait_for_claims(store, url, scene):
    """Not even for a table of records that is locked as a whole."""
    store.add_counts([count()])
    with psycopg.connect(url) as rival:
        rival.execute("LOCK TABLE samekey_records")
        store.add_counts([count()])
        finding = make_finding("late", at=1.0, severity="low", title="x")
        assert store.keep_finding(finding)
        assert store.accept_finding(finding.id, by="ann", why="known", until=2e9) is not None
        assert sum(one.number for one in store.counts(0, math.inf)) == 2


def test_claims_do_not_wait_for_counts(store, url, scene):
    """While another transaction holds the counts, this process claims and settles; its counts fail in the end."""
    store.add_counts([count()])
    with psycopg.connect(url) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute("SELECT 1 FROM samekey_counts FOR UPDATE")
        adding = pool.submit(store.add_counts, [count()])
        until(lambda: sql(url, "SELECT count(*) FROM pg_locks WHERE NOT granted"))
        held = store.carry_out(scene.opening())
        assert held.attempt == A
        assert store.carry_out(settling(held, State.COMPLETED)).state is State.COMPLETED
        assert not adding.done()
        with pytest.raises(StoreUnavailable):
            adding.result(10)

    store.add_counts([count()])
    assert sum(one.number for one in store.counts(0, math.inf)) == 2


def test_each_addition_forgets_some_minutes_that_are_too_old(store, url):
    """A thousand at a time, whatever the plan; a reader sees none of them before that."""
    old = int(time.time() // 60) - 15 * 1440
    sql(url, f"INSERT INTO samekey_counts SELECT {old}, 'charge', g::text, 'new', 1 FROM generate_series(1, 1500) AS g")
    assert store.counts(0, math.inf) == []
    left = []
    for _ in range(2):
        store.add_counts([count()])
        left.append(sql(url, "SELECT count(*) FROM samekey_counts"))

    assert left == [501, 1]


def test_old_minutes_that_another_writer_deletes_are_left_to_it(store, url):
    sql(url, "INSERT INTO samekey_counts VALUES (1, 'charge', '', 'new', 1)")
    with psycopg.connect(url) as rival:
        rival.execute("SELECT 1 FROM samekey_counts FOR UPDATE")
        store.add_counts([count()])

    assert [one.number for one in store.counts(0, math.inf)] == [1]


def test_a_page_of_findings_reads_its_index(store, url):
    """However many there are, a page reads about as many rows as it shows."""
    sql(
        url,
        "INSERT INTO samekey_findings SELECT g::text, g, 'late', 'low', 'charge', NULL, '', 'x', '{}', '', ''"
        " FROM generate_series(1, 20000) AS g",
    )
    sql(url, "ANALYZE samekey_findings")
    query = FindingQuery(limit=10, before=(19_000.0, "19000"))
    with psycopg.connect(url) as link:
        statement, values = findings_statement(query)
        plan = "\n".join(line for (line,) in link.execute(f"EXPLAIN {statement}".encode(), values))

    assert [one.id for one in store.findings(query)] == [str(18_999 - number) for number in range(10)]
    assert "samekey_found" in plan
    assert "Sort" not in plan


def test_a_guard_in_a_loop_adds_what_it_counted_by_itself(store, url, monkeypatch):
    """The store has no sync twin: the guard's thread has it written in the loop that the calls run in."""
    monkeypatch.setattr(bookkeeping, "FLUSH_SECONDS", 0.02)

    async def done() -> str:
        return "done"

    async def main() -> None:
        async with AsyncGuard(url) as guard:
            for key in ("o-1", "o-2", "o-1"):
                await guard.run("mail", done, key=key, payload=1)
            for _ in range(500):
                if await asyncio.to_thread(store.counts, 0, math.inf):
                    return
                await asyncio.sleep(0.01)

    asyncio.run(main())

    found: Counter[str] = Counter()
    for one in store.counts(0, math.inf):
        found[one.outcome] += one.number  # they may be of two minutes
    assert found == {"new": 2, "replayed": 1}
