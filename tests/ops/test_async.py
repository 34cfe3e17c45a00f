"""AsyncOps decides as Ops does: the same steps, awaited."""

from __future__ import annotations

import asyncio
import time

import pytest

from samekey.core.books import Count
from samekey.core.ports import Query
from samekey.core.states import State
from samekey.ops import AsyncOps, CannotResolve, MovedOn, NoSuchKey, Resolution, Search
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from tests.ops.scene import Clock, Scene


@pytest.fixture
def store():
    return MemoryStore(Clock())


@pytest.fixture
def scene(store):
    return Scene(store)


@pytest.fixture
def ops(store):
    return AsyncOps(AsyncMemoryStore(store))


def test_it_looks_as_ops_does(scene, ops):
    doubt, paid = scene.in_doubt("o-1"), scene.completed("o-2")

    async def look():
        page = await ops.list_records(Query(limit=1))
        found = await ops.find("o-1", operation="charge")
        searched = await ops.search(Search(Query(), digest=paid.key.digest.hex()[:7]))
        everything, damaged, cut = await ops.all_of(Search(Query(waiting=True)), 10)
        stats = await ops.stats()
        return page, found, searched, everything, damaged, cut, stats, await ops.show(doubt.key)

    page, found, searched, everything, damaged, cut, stats, shown = asyncio.run(look())
    assert page.before is not None
    assert [one.key.text for one in found.records] == ["o-1"]
    assert [one.key.text for one in searched.records] == ["o-2"]
    assert ([one.key.text for one in everything], damaged, cut) == (["o-1"], [], False)
    assert stats.by_state == {State.IN_DOUBT: 1, State.COMPLETED: 1}
    assert shown.state is State.IN_DOUBT


def test_it_decides_as_ops_does(scene, ops):
    doubt = scene.in_doubt("o-1")

    async def decide():
        ops.check(doubt, Resolution.HAPPENED)
        after = await ops.resolve(doubt, Resolution.HAPPENED, who="ann", why="on the statement", result=1)
        with pytest.raises(MovedOn):
            await ops.resolve(doubt, Resolution.NOT_DONE, who="bob", why="w")
        redacted = await ops.redact(after, who="ann", why="w")
        await ops.free(redacted, who="ann", why="w")
        with pytest.raises(NoSuchKey):
            await ops.show(doubt.key)
        return after, redacted, await ops.audit()

    after, redacted, audit = asyncio.run(decide())
    assert (after.state, redacted.result) == (State.COMPLETED, None)
    assert [entry.action for entry in audit] == ["free", "redact", "resolve"]


def test_what_is_not_settled_is_not_redacted_or_freed(scene, ops):
    doubt = scene.in_doubt()
    with pytest.raises(CannotResolve, match="only a settled record"):
        asyncio.run(ops.redact(doubt, who="ann", why="w"))
    with pytest.raises(CannotResolve, match="resolve it first"):
        asyncio.run(ops.free(doubt, who="ann", why="w"))


def test_attempts_and_doubles_are_read_in_their_span(scene, ops, store):
    minute = int(time.time()) // 60
    store.add_counts([Count(minute, "charge", "web", "new", 2), Count(minute, "mail", "", "replayed", 1)])
    scene.completed("o-1")
    scene.completed("o-2")

    async def read():
        some = await ops.attempts(minute * 60, minute * 60 + 60, operation="charge")
        return some, await ops.attempts(0, 60), await ops.doubles(Query(since=0.0))

    some, none, doubles = asyncio.run(read())
    assert (some.numbers, some.complete) == ({("charge", "web", "new"): 2}, True)
    assert none.numbers == {}
    assert [one.number for one in doubles.found] == [2]
