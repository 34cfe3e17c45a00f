"""Operator queries: lists with damaged records, and lists while records go."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from samekey import FOREVER
from samekey.core.commands import Renew, Testify
from samekey.core.errors import RecordUnreadable
from samekey.core.ports import Query, Records
from samekey.core.record import Record
from samekey.core.states import State
from samekey.ops import Ops
from samekey.stores.redis import AsyncRedisStore
from samekey.stores.redis._requests import READ
from tests.servers.redis.helpers import listing_with, opening, raw_key, settling, there
from tests.servers.redis.topologies import until


@pytest.mark.parametrize("states", [(), (State.STARTED,)], ids=["walk", "index"])
@pytest.mark.parametrize("limit", [1, 2, 3, 10])
def test_a_damaged_record_does_not_hide_the_others_from_an_operator(server, store, states, limit):
    """Each is named once, by its key or by where Redis has it, and the rest is listed."""
    server.call("FLUSHALL")
    held = [store.carry_out(opening(f"o-{number}")) for number in range(7)]
    server.call("SETRANGE", raw_key(held[2]), 120, "{" * 40)  # whose it is can be read
    server.call("SET", raw_key(held[4]), "x")
    server.call("SET", raw_key(held[5]), "")
    server.call("SET", raw_key(held[6]), "y" * 300)
    named: list[str] = []
    listed: list[Record] = []
    before = None
    for _ in range(20):
        page = Ops(store).list_records(Query(states=states, limit=limit, before=before))
        listed += page.records
        named += map(str, page.unreadable)
        before = page.before
        if before is None:
            break

    assert [record.key for record in listed] == [held[number].key for number in (3, 1, 0)]
    damaged = [2, 4, 6] if not states else [2, 4, 5, 6]
    assert sorted(at for at, one in enumerate(held) if any(raw_key(one) in text for text in named)) == damaged
    assert len(named) == len(damaged)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_page_has_an_error_in_the_place_of_a_damaged_record(server, store, colour):
    """One call returns the whole page: the other records are read, and the error has the place of the damaged one."""
    server.call("FLUSHALL")
    ended = [there(store.carry_out(settling(store.carry_out(opening(f"o-{number}"))))) for number in range(3)]
    server.call("SETRANGE", raw_key(ended[1]), 120, "{" * 40)

    async def listed() -> Records:
        ours = AsyncRedisStore(server.url())
        try:
            return await ours.list(Query(limit=10))
        finally:
            await ours.close()

    newest, damaged, oldest = asyncio.run(listed()) if colour == "async" else store.list(Query(limit=10))

    assert isinstance(newest, Record)
    assert isinstance(oldest, Record)
    assert (newest.key, oldest.key) == (ended[2].key, ended[0].key)
    assert isinstance(damaged, RecordUnreadable)
    assert damaged.cursor == (ended[1].created_at, ended[1].key.digest)


@pytest.mark.parametrize("gone", [1, 5, 12])
def test_a_list_goes_on_when_records_are_deleted_meanwhile(server, store, monkeypatch, gone):
    """Freed, or past its retention, between the scan of all keys and the reads: the next ones take their places."""
    server.call("FLUSHALL")
    ended = [there(store.carry_out(settling(store.carry_out(opening(f"o-{number}"))))) for number in range(20)]
    leaving = [raw_key(one) for one in reversed(ended[-gone:])]

    def before_a_read(asked: Any) -> None:
        if asked.script is READ and leaving:
            server.call("DEL", *leaving)
            leaving.clear()

    monkeypatch.setattr("samekey.stores.redis.store.listing", listing_with(before_a_read))
    listed: list[Record] = []
    before = None
    for _ in range(20):
        page = Ops(store).list_records(Query(limit=5, before=before))
        listed += page.records
        before = page.before
        if before is None:
            break

    assert [record.key for record in listed] == [one.key for one in reversed(ended[:-gone])]


@pytest.mark.parametrize("asked", [{}, {"error": "TimeoutError"}, {"term": b"x" * 16}], ids=["walk", "error", "term"])
def test_a_search_without_an_index_looks_at_a_bounded_number_of_records(server, store, monkeypatch, asked):
    """And the page says that it was cut; by digest, or among what is held, nothing has to be searched."""
    server.call("FLUSHALL")
    for number in range(12):
        held = store.carry_out(opening(f"o-{number}"))
        store.carry_out(settling(held)) if number else None
    whole = Ops(store).list_records(Query(**asked))
    for bound in ("SCAN_COUNT", "WALKED_MAX", "SEARCHED_MAX"):
        monkeypatch.setattr(f"samekey.stores.redis._operators.{bound}", 3)

    page = Ops(store).list_records(Query(**asked))

    assert (whole.cut, page.cut) == (False, True)
    assert len(page.entries) <= len(whole.entries)
    for quick in (Query(digest=held.key.digest), Query(waiting=True), Query(states=(State.STARTED,))):
        assert not store.list(quick).cut


# -- holds that end by themselves ----------------------------------------------------------------------------------


def milliseconds(server: Any, record: Record) -> int:
    return int(server.call("PTTL", raw_key(record)))


def test_only_a_hold_of_repeatable_has_a_ttl(server, store):
    """Lease and retention, counted anew by a renewal; a doubt has none, and what is settled has its own."""
    opaque = there(store.carry_out(replace(opening("opaque"), retain_seconds=90.0)))
    held = there(store.carry_out(replace(opening("a", boundary="repeatable"), retain_seconds=90.0)))
    assert milliseconds(server, opaque) == -1
    assert 80_000 < milliseconds(server, held) <= 90_000

    renewed = there(store.carry_out(Renew(held, 30.0, 500.0)))
    assert 490_000 < milliseconds(server, held) <= 500_000
    longer = there(store.carry_out(Renew(held, 900.0, 0.0)))  # never while the lease lives
    assert 890_000 < milliseconds(server, held) <= 900_000
    assert longer.retain_until == renewed.retain_until

    doubt = there(store.carry_out(settling(held, State.IN_DOUBT)))
    assert (milliseconds(server, held), doubt.retain_until) == (-1, None)


def test_a_thousand_years_are_kept_as_any_other_time(server, store):
    held = there(store.carry_out(opening("forever")))
    ended = there(store.carry_out(replace(settling(held), retain_seconds=FOREVER.total_seconds())))

    assert ended.retain_until is not None
    assert ended.retain_until > ended.now + 999 * 365 * 86400
    assert milliseconds(server, ended) > 999 * 365 * 86400 * 1000
    again = there(store.carry_out(Testify(ended.key, "b" * 32, ended.token, State.CLOSED, None, "late")))
    assert abs((again.retain_until or 0.0) - ended.retain_until) < 0.01


def test_a_sweep_removes_what_an_ended_hold_left_in_the_index(server, store):
    server.call("FLUSHALL")
    kept = there(store.carry_out(opening("kept")))
    gone = [replace(opening(f"{n}", boundary="repeatable", lease=0.001), retain_seconds=0.001) for n in range(5)]
    store.batch(gone)
    until(lambda: not any(server.call("EXISTS", raw_key(one)) for one in gone))
    entries = ("ZCARD", raw_key(gone[0]).rpartition(":")[0] + ":unsettled")
    assert server.call(*entries) == 1

    assert store.sweep(100) == 0

    assert server.call(*entries) == 0
    assert [one.key for one in store.list(Query(states=(State.STARTED,)))] == [kept.key]
