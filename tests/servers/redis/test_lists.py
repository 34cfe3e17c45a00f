"""Operator queries: lists with damaged records, and lists while records go."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from samekey.core.errors import RecordUnreadable
from samekey.core.ports import Query, Records
from samekey.core.record import Record
from samekey.core.states import State
from samekey.ops import Ops
from samekey.stores.redis import AsyncRedisStore
from samekey.stores.redis._requests import READ
from tests.servers.redis.helpers import listing_with, opening, raw_key, settling, there


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
