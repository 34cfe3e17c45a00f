"""What a command costs, and how commands travel together."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from samekey.core.commands import Read, Renew
from samekey.core.errors import Misconfigured
from samekey.core.ports import Query
from samekey.core.record import Record
from samekey.core.register import apply
from samekey.core.states import Role, State
from samekey.drivers.postgres import exchange
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore
from samekey.testing.stores.agreement import _compare, _moment
from samekey.testing.stores.scene import A, B, settling
from tests.servers.postgres.helpers import attempt, sql, until_past

pytestmark = pytest.mark.slow


def test_a_replay_writes_nothing(store, url, scene):
    """No transaction id, no number from the sequence: alone and in a batch, a replay is a read."""
    held = store.carry_out(scene.opening("one"))
    store.carry_out(settling(held, State.COMPLETED, result=b"done"))
    seen = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text || ' ' || (SELECT last_value FROM samekey_tokens)"
    before = sql(url, seen)

    for number in range(20):
        assert store.carry_out(scene.opening("one", by=attempt(number))).result == b"done"
    store.batch([scene.opening("one", by=attempt(number)) for number in range(20)])

    assert sql(url, seen) == before


def test_each_command_is_one_round_trip(store, scene, monkeypatch):
    """Claim, replay, settle and read: the connection is waited for once for each of them."""
    waits = []
    answer = exchange._answer
    first = store.carry_out(scene.opening("first"))  # connects, and prepares
    store.carry_out(Read(first.key))
    store.carry_out(settling(first, State.COMPLETED))

    def counted(link: Any) -> Any:
        waits.append(1)
        return answer(link)

    monkeypatch.setattr(exchange, "_answer", counted)

    held = store.carry_out(scene.opening("second"))
    assert len(waits) == 1
    store.carry_out(settling(held, State.COMPLETED, result=b"done"))
    assert len(waits) == 2
    store.carry_out(scene.opening("second", by=B))
    store.carry_out(Read(held.key))
    assert len(waits) == 4


def test_threads_share_their_commits(store, url, scene):
    """Flush on free: what queues up while the connection is busy goes out as one transaction."""
    store.carry_out(scene.opening("connected"))
    before = int(sql(url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
    with ThreadPoolExecutor(64) as pool:
        held = list(
            pool.map(lambda number: store.carry_out(scene.opening(str(number), by=attempt(number))), range(512))
        )

    assert [one.attempt for one in held] == [attempt(number) for number in range(512)]
    assert int(sql(url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")) - before < 256


async def test_tasks_share_their_commits(url, scene):
    """The same among tasks: 512 claims at once are a handful of transactions."""
    store = AsyncPostgresStore(url)
    await store.carry_out(scene.opening("connected"))
    before = int(sql(url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
    commands = [scene.opening(str(number), by=attempt(number)) for number in range(512)]
    held = await asyncio.gather(*(store.carry_out(command) for command in commands))
    await asyncio.gather(*(store.carry_out(settling(one, State.COMPLETED)) for one in held))
    await store.close()

    assert int(sql(url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")) - before < 16


def test_a_batch_of_settles_does_what_the_register_says(store, url, scene):
    """Every role and every move, all in one statement: each row becomes what the pure function makes of it."""
    store.batch([scene.opening(f"{role} {one} {other}") for role in Role for one in State for other in State])
    commands = []
    for role in Role:
        for before in State:
            for after in State:
                seen = store.carry_out(Read(scene.key(f"{role} {before} {after}")))
                if before is not State.STARTED:
                    seen = store.carry_out(settling(seen, before, result=b"before", error="Before"))
                elif role is Role.PASSER_BY:
                    seen = store.carry_out(Renew(seen, 0.001))
                commands.append(
                    settling(seen, after, role=role, by=B, result=b"after", error="After", why="w", next_round=True)
                )
    until_past(url, "lease_until")
    commands = [replace(command, seen=store.carry_out(Read(command.key))) for command in commands]  # dead by now

    replies = store.batch(commands)

    for command, reply in zip(commands, replies, strict=True):
        expected = apply(command.seen, command, _moment(command.seen, reply))
        _compare(expected, reply, command.seen, str(command))
        _compare(reply, store.carry_out(Read(command.key)), command.seen, str(command))


def test_a_batch_of_opens_does_what_the_register_says(store, url, scene):
    """New keys, keys in every state, expired ones and twice the same, all in one batch."""
    texts = []
    for state in State:
        for retain in (60.0, 0.001):
            held = store.carry_out(scene.opening(f"{state} {retain}"))
            if state is not State.STARTED:
                store.carry_out(settling(held, state, result=b"old", retain=retain))
            texts.append(f"{state} {retain}")
    until_past(url, "retain_until")
    whole = {one.key.text: one for one in store.list(Query(operation=scene.operation))}
    commands = [scene.opening(text, by=B, sends=True) for text in (*texts, "new 1", "new 2", "new 1")]

    replies = store.batch(commands)

    for command, reply in zip(commands, replies, strict=True):
        seen = whole.get(command.key.text)  # an expired one is not listed: it is as good as new
        _compare(apply(seen, command, _moment(seen, reply)), reply, seen, str(command))
        _compare(reply, store.carry_out(Read(command.key)), seen, str(command))
    assert {one.key.text for one in replies if isinstance(one, Record) and one.attempt == B} == {
        *("new 1", "new 2", "completed 0.001", "closed 0.001", "released 0.001")
    }


def test_a_poisoned_row_fails_alone(store, url, scene):
    """The server refuses one row of a batch: that one is answered with its error, the others are carried out."""
    sql(url, "ALTER TABLE samekey_records ADD CHECK (boundary <> 'poison')")
    commands = [scene.opening(str(number), boundary="poison" if number == 7 else "opaque") for number in range(16)]

    replies = store.batch([*commands, scene.opening("nul", boundary="nul \x00 inside")])

    assert [number for number, one in enumerate(replies) if isinstance(one, Exception)] == [7, 16]
    assert {one.state for one in replies if not isinstance(one, Exception)} == {State.STARTED}
    assert len(store.list(Query(operation=scene.operation))) == 15


def test_a_poisoned_row_of_a_neighbour_is_not_ours(store, url, scene):
    """Threads whose commands happen to travel together do not share a failure."""
    sql(url, "ALTER TABLE samekey_records ADD CHECK (boundary <> 'poison')")
    store.carry_out(scene.opening("connected"))

    def claim(number: int) -> Any:
        try:
            boundary = "poison" if number % 8 == 0 else "opaque"
            return store.carry_out(scene.opening(str(number), boundary=boundary)).state.value
        except Misconfigured:
            return "refused"

    with ThreadPoolExecutor(32) as pool:
        said = list(pool.map(claim, range(128)))

    assert said == ["refused" if number % 8 == 0 else "started" for number in range(128)]


@pytest.mark.parametrize("verb", ["open", "settle"])
def test_batches_in_opposite_order_do_not_deadlock(url, scene, verb):
    """Keys are sorted on the way: two processes with the same keys, one backwards, both get through."""
    stores = [PostgresStore(url), PostgresStore(url)]
    for round_ in range(5):
        opens = [scene.opening(f"{round_} {number}", by=A) for number in range(200)]
        if verb == "open":
            lists = [opens, [replace(one, attempt=B) for one in reversed(opens)]]
        else:
            held = stores[0].batch(opens)
            settles = [settling(one, State.COMPLETED) for one in held if isinstance(one, Record)]
            lists = [settles, settles[::-1]]
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda pair: pair[0].batch(pair[1]), zip(stores, lists, strict=True))

        assert not [one for one in (*first, *second) if isinstance(one, Exception)]
        assert [one.fence for one in first] == [one.fence for one in reversed(second)]
    for one in stores:
        one.close()
    assert "deadlock" not in str(
        sql(url, "SELECT coalesce(sum(deadlocks), 0) FROM pg_stat_database WHERE deadlocks > 0")
    )


def test_a_large_batch_of_large_results_is_split(store, scene):
    """Results travel in bounded statements, whatever the batch."""
    held = store.batch([scene.opening(str(number)) for number in range(12)])
    result = os.urandom(1 << 20)

    ended = store.batch([settling(one, State.COMPLETED, result=result) for one in held])

    assert all(one.result == result for one in ended)
