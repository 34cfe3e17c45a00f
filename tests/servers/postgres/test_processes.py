"""Several processes, forks and event loops on one database."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from samekey import Guard, InDoubt, Opaque, Policy, Repeatable
from samekey.core.commands import Read, Wait
from samekey.core.errors import StoreUnavailable
from samekey.core.record import Record
from samekey.core.states import State
from samekey.drivers.postgres import connection
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore
from samekey.stores.postgres._connections import LoopConnections
from samekey.testing.stores.scene import A, B
from tests.servers.postgres.children import child, line, tell
from tests.servers.postgres.helpers import sql

pytestmark = pytest.mark.slow


@pytest.mark.minutes
def test_eight_processes_have_one_holder_for_each_key(url, scene):
    """40 keys, 8 processes, the same order: each key is held once."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(child("claim", url, scene, number)) for number in range(1, 9)]
        assert [line(one) for one in children] == ["ready"] * 8
        for one in children:
            tell(one, "go")
        held = [text for one in children for text in line(one)]

    assert sorted(held, key=int) == [str(number) for number in range(40)]


@pytest.mark.minutes
def test_eight_processes_run_one_effect(url, scene):
    """One key, 8 guards: one effect, and the same answer for all."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(child("guard", url, scene, number)) for number in range(1, 9)]
        assert [line(one) for one in children] == ["ready"] * 8
        for one in children:
            tell(one, "go")
        said = [[line(one)] for one in children]
        effects = sum(one == ["effect"] for one in said)
        answers = [line(process) if one == ["effect"] else one[0] for one, process in zip(said, children, strict=True)]

    assert effects == 1
    assert len(set(answers)) == 1


@pytest.mark.parametrize("boundary", ["opaque", "repeatable"])
def test_claims_of_a_process_killed_before_the_replies_follow_their_boundary(url, scene, boundary):
    """kill -9 right after the commit of a batch: nothing ran there, and what becomes of the keys the boundary says."""
    with child("die", url, scene, boundary) as process:
        assert process.wait(20) == -signal.SIGKILL
        assert process.stdout.read() == ""
    ran: list[int] = []
    claimed = sql(url, f"SELECT count(*) FROM samekey_records WHERE operation = '{scene.operation}'")
    with Guard(PostgresStore(url), policy=Policy(patience=5.0)) as guard:
        how = {"opaque": Opaque(), "repeatable": Repeatable()}[boundary]
        said = guard.run_many(scene.operation, lambda number: ran.append(number), range(20), key=str, boundary=how)

    assert claimed == 20
    if boundary == "opaque":
        assert ran == []
        assert {type(one) for one in said} == {InDoubt}
    else:
        assert ran == list(range(20))
        assert {one.state for one in said if not isinstance(one, Exception)} == {State.COMPLETED}


def test_run_many_claims_in_one_transaction(url, monkeypatch):
    """40 new keys: their claims are one statement; each effect is settled as soon as it ran."""
    asked: list[bytes] = []
    ask = connection.Connection.ask

    def counted(self: Any, query: Any) -> Any:
        asked.append(query.name)
        return ask(self, query)

    monkeypatch.setattr(connection.Connection, "ask", counted)
    with Guard(PostgresStore(url)) as guard:
        answers = guard.run_many("charge", lambda number: number * 2, range(40), key=str)

    assert [getattr(one, "result", one) for one in answers] == [number * 2 for number in range(40)]
    assert asked.count(b"samekey_opens") == 1
    assert set(asked) == {b"samekey_opens", b"samekey_settle"}


def test_a_forked_child_has_connections_of_its_own(store, scene):
    """The child claims over its own, and its end does not take the parent's with it."""
    store.carry_out(scene.opening("parent"))
    store.carry_out(Read(scene.key("parent")))
    pid = os.fork()
    if pid == 0:
        try:
            store.carry_out(scene.opening("child", by=B))
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(pid, 0)

    assert status == 0
    assert store.carry_out(scene.opening("child")).attempt == B
    assert store.carry_out(scene.opening("after")).attempt == A


def test_one_store_serves_several_loops(url, scene):
    """One after the other, and two at once."""
    store = AsyncPostgresStore(url)

    async def claim(text: str) -> str:
        record: Record = await store.carry_out(scene.opening(text))
        await store._loops[asyncio.get_running_loop()].close()
        return record.attempt

    assert asyncio.run(claim("one")) == A
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda text: asyncio.run(claim(text)), ("two", "three"))) == [A, A]

    async def end() -> None:
        await store.carry_out(scene.opening("four"))
        await store.close()

    asyncio.run(end())
    with pytest.raises(StoreUnavailable, match="closed"):
        asyncio.run(claim("five"))


def test_loops_of_several_threads_may_end_at_once(url, scene, monkeypatch):
    """Two threads begin a loop each, and both find the same ones gone."""
    store = AsyncPostgresStore(url)
    gone = [asyncio.new_event_loop(), asyncio.new_event_loop()]
    for number, loop in enumerate(gone):
        loop.run_until_complete(store.carry_out(scene.opening(f"gone {number}")))
    for loop in gone:
        loop.close()
    abandon = LoopConnections.abandon

    def meanwhile(links: LoopConnections) -> None:
        monkeypatch.setattr(LoopConnections, "abandon", abandon)
        abandon(links)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, store.carry_out(scene.opening("other"))).result()

    monkeypatch.setattr(LoopConnections, "abandon", meanwhile)

    assert asyncio.run(store.carry_out(scene.opening("mine"))).attempt == A
    assert not set(gone) & set(store._loops)
    asyncio.run(store.close())


async def test_who_waits_needs_no_thread_of_the_loops_own(url, scene):
    """All of them may be busy, with jobs that wait for us; and they end with the main thread."""
    store, done = AsyncPostgresStore(url), threading.Event()
    held = await store.carry_out(scene.opening())
    with ThreadPoolExecutor(1) as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        busy = asyncio.create_task(asyncio.to_thread(done.wait, 20.0))
        await asyncio.sleep(0)
        found = await store.wait(Wait(held), 0.01)
        done.set()

        assert found is not None
        assert found.state is State.STARTED
        assert await busy
    await store.close()
