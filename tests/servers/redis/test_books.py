"""Counts and findings in Redis: what they leave there, when it goes, and lost replies."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from contextlib import closing

import pytest

from samekey import AsyncGuard
from samekey.core.books import COUNTS_KEPT_SECONDS, Count, FindingQuery, make_finding
from samekey.core.errors import RecordUnreadable
from samekey.core.ports import Query
from samekey.guard import bookkeeping
from samekey.stores.redis import RedisStore, _books
from tests.servers.redis.helpers import opening
from tests.stores.wire import Wire

FINDING = make_finding("late", at=1.0, severity="low", title="x", operation="charge")


@pytest.fixture(autouse=True)
def empty(server):
    server.call("FLUSHALL")


def count(minute: int, source: str = "") -> Count:
    return Count(minute, "charge", source, "new", 1)


def test_the_counts_of_an_hour_end_with_its_last_minute(server, store):
    hour = int(time.time() // 3600)
    store.add_counts([count(hour * 60), count(hour * 60 + 59), count(hour * 60 - 1)])
    names = sorted(name for name in server.call("KEYS", "samekey:*counts*"))

    assert len(names) == 2
    assert int(server.call("EXPIRETIME", names[1])) == (hour + 1) * 3600 + COUNTS_KEPT_SECONDS
    assert int(server.call("HLEN", names[1])) == 2


def test_a_long_reading_is_cut_at_a_whole_minute(store, monkeypatch):
    """The next one begins at the minute after it, and together they are everything."""
    monkeypatch.setattr(_books, "COUNTS_MAX", 5)
    monkeypatch.setattr("samekey.core.books.COUNTS_MAX", 5)
    minute = int(time.time() // 60)
    counts = [count(minute - 3 * 1440 + 700 * number, source) for number in range(5) for source in "ab"]
    store.add_counts(counts)
    read: list[Count] = []
    for _ in range(4):
        page = store.counts(read[-1].minute * 60 + 60 if read else 0.0, math.inf)
        assert len(page) <= 5
        read += page

    assert read == counts


def test_the_books_are_not_taken_for_records(store):
    held = store.carry_out(opening("o-1"))
    store.add_counts([count(int(time.time() // 60))])
    store.keep_finding(FINDING)

    assert [one.key for one in store.list(Query())] == [held.key]


def test_findings_beyond_the_first_round_trip_are_found(store, monkeypatch):
    """Filters read on, and many findings of one moment have an order, too."""
    monkeypatch.setattr(_books, "READ_TOGETHER", 3)
    findings = [
        make_finding("late", at=5.0, severity="high" if number % 4 else "low", title="x", about=[str(number)])
        for number in range(10)
    ]
    for finding in findings:
        store.keep_finding(finding)
    low = sorted((one for one in findings if one.severity == "low"), key=lambda one: one.id, reverse=True)

    assert store.findings(FindingQuery(severity="low")) == low
    assert store.findings(FindingQuery(severity="low", before=low[0].place, limit=1)) == low[1:2]


def test_damaged_books_are_named(server, store):
    minute = int(time.time() // 60)
    store.keep_finding(FINDING)
    server.call("HSET", "samekey:{00}:findings", FINDING.id, "{")
    with pytest.raises(RecordUnreadable, match="damaged"):
        store.findings(FindingQuery())
    for field in ("{", "7", f"[{minute}]", '["a","b","c","d"]'):
        server.call("DEL", f"samekey:{{00}}:counts:{minute // 60}")
        server.call("HSET", f"samekey:{{00}}:counts:{minute // 60}", field, "1")
        with pytest.raises(RecordUnreadable, match="damaged"):
            store.counts(0, math.inf)


def test_a_lost_reply_changes_nothing_twice(server, store):
    """A finding is still new for the caller that kept it, and an acceptance is audited once."""
    store.keep_finding(make_finding("other", at=1.0, severity="low", title="x"))  # the scripts are known now
    store.keep_finding(FINDING)
    store.accept_finding(FINDING.id, by="ann", why="before", until=2e9)
    with closing(Wire(server.url())) as wire, closing(RedisStore(wire.url)) as through:
        through.counts(0, math.inf)  # connected
        new = make_finding("late", at=2.0, severity="low", title="x", about=["new"])
        wire.cut()
        assert through.keep_finding(new)
        assert not through.keep_finding(new)
        for number in (1, 2):  # the reply to its reading, and to its writing
            wire.cut(number)
            accepted = through.accept_finding(FINDING.id, by="ann", why=f"{number}", until=2e9)
            assert accepted == FINDING.accepted("ann", f"{number}", 2e9)
        assert (wire.cuts, wire.mend()) == (3, False)

    assert [one.why for one in store.audit(10)] == ["2", "1", "before"]


def test_a_guard_in_a_loop_adds_what_it_counted_by_itself(server, store, monkeypatch):
    """The store has no sync twin: the guard's thread has it written in the loop that the calls run in."""
    monkeypatch.setattr(bookkeeping, "FLUSH_SECONDS", 0.02)

    async def done() -> str:
        return "done"

    async def main() -> None:
        async with AsyncGuard(server.url()) as guard:
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
