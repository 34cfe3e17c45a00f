"""Keys that other transactions hold, and a server without a free connection: no unrelated call waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from samekey import AsyncGuard, Guard, State
from samekey.core.commands import Read, Renew
from samekey.core.errors import StoreBusy
from samekey.core.key import Key
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore
from samekey.testing.servers import USER
from samekey.testing.stores.scene import LEASE, A, B, Scene
from tests.servers.postgres.helpers import CLAIM, sql

pytestmark = pytest.mark.slow

BLOCKED = [f"blocked {number}" for number in range(5)]


@contextlib.contextmanager
def claimed_in_a_transaction(url: str, keys: list[Key]) -> Iterator[None]:
    """An open transaction that has claimed these keys, as `Atomic` does; it is rolled back at the end."""
    with psycopg.connect(url) as rival:
        for key in keys:
            rival.execute(
                CLAIM,
                (key.digest.hex(), key.operation, key.text, B),
            )
        yield
        rival.rollback()


class Watched:
    """Counts the commands about each key on one connection."""

    def __init__(self, connection: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tries: list[str] = []
        perform = connection.perform

        def watched(items: Any, *more: Any) -> Any:
            self.tries += [item.command.key.text for item in items]
            return perform(items, *more)

        monkeypatch.setattr(connection, "perform", watched)


def test_claims_of_keys_in_open_transactions_leave_the_connection_of_the_claims(store, url, scene, monkeypatch):
    """Each of them is tried there once. Its next tries have a connection of their own, until the key is free."""
    store.carry_out(scene.opening("connected"))
    claims = Watched(store._connections().claims, monkeypatch)

    def claim(text: str) -> Any:
        with contextlib.suppress(StoreBusy):
            return store.carry_out(scene.opening(text))

    with claimed_in_a_transaction(url, [scene.key(text) for text in BLOCKED]), ThreadPoolExecutor(5) as pool:
        for _ in range(3):
            assert list(pool.map(claim, BLOCKED)) == [None] * 5
        assert sorted(claims.tries) == BLOCKED
        assert store.carry_out(scene.opening("unrelated")).attempt == A
        replies = store.batch([scene.opening(text) for text in ("one", *BLOCKED, "two")])
        assert [isinstance(one, StoreBusy) for one in replies] == [False, *[True] * 5, False]
        assert sorted(claims.tries) == sorted(["one", "two", "unrelated", *BLOCKED])

    assert [store.carry_out(scene.opening(text)).attempt for text in BLOCKED] == [A] * 5
    assert store._connections().contended_keys == set()
    assert store.carry_out(scene.opening(BLOCKED[0])).attempt == A
    assert claims.tries[-1] == BLOCKED[0]


async def test_tasks_do_not_wait_for_keys_in_open_transactions_either(url, scene, monkeypatch):
    store = AsyncPostgresStore(url)
    await store.carry_out(scene.opening("connected"))
    claims = Watched(store._connections().claims, monkeypatch)
    with claimed_in_a_transaction(url, [scene.key(text) for text in BLOCKED]):
        for _ in range(3):
            tried = await asyncio.gather(
                *(store.carry_out(scene.opening(text)) for text in BLOCKED), return_exceptions=True
            )
            assert [type(one) for one in tried] == [StoreBusy] * 5
        assert sorted(claims.tries) == BLOCKED
        assert (await store.carry_out(scene.opening("unrelated"))).attempt == A
        replies = await store.batch([scene.opening(text) for text in ("one", *BLOCKED, "two")])
        assert [isinstance(one, StoreBusy) for one in replies] == [False, *[True] * 5, False]

    assert [(await store.carry_out(scene.opening(text))).attempt for text in BLOCKED] == [A] * 5
    assert store._connections().contended_keys == set()
    await store.close()


def test_a_renewal_does_not_wait_for_claims(store, scene, monkeypatch):
    """The leader of the claims is stuck in a statement: a holder's lease is renewed all the same."""
    held = store.carry_out(scene.opening("held"))
    claims = store._connections().claims
    carry_out, stuck, over = claims._carry_out, threading.Event(), threading.Event()

    def slow(items: Any, turn: Any) -> None:
        stuck.set()
        assert over.wait(20)
        carry_out(items, turn)

    monkeypatch.setattr(claims, "_carry_out", slow)
    with ThreadPoolExecutor(2) as pool:
        claim = pool.submit(store.carry_out, scene.opening("other"))
        assert stuck.wait(10)
        renewal = pool.submit(store.carry_out, Renew(held, LEASE))
        try:
            renewed = renewal.result(10)
        finally:
            over.set()
        claim.result(10)

    assert (renewed.attempt, renewed.version) == (A, held.version + 1)


async def test_a_task_s_renewal_does_not_wait_for_claims(url, scene, monkeypatch):
    store = AsyncPostgresStore(url)
    held = await store.carry_out(scene.opening("held"))
    monkeypatch.setattr(store._connections().claims, "flush", lambda: None)  # what is queued there is never sent
    claim = asyncio.create_task(store.carry_out(scene.opening("other")))
    await asyncio.sleep(0)

    renewed = await asyncio.wait_for(store.carry_out(Renew(held, LEASE)), 10)

    assert not claim.done()
    claim.cancel()
    assert renewed.version == held.version + 1
    monkeypatch.undo()
    store._connections().claims.flush()
    await store.close()


@pytest.fixture
def one_connection(url) -> Iterator[str]:
    """The address for a role that may have one connection."""
    sql(url, "DROP ROLE IF EXISTS narrow; CREATE ROLE narrow LOGIN CONNECTION LIMIT 1")
    sql(url, "GRANT USAGE ON SCHEMA public TO narrow")
    for kind in ("TABLES", "SEQUENCES"):
        sql(url, f"GRANT ALL ON ALL {kind} IN SCHEMA public TO narrow")
    yield url.replace(f"{USER}@", "narrow@")
    sql(url, "DROP OWNED BY narrow; DROP ROLE narrow")


def test_a_settle_and_a_renewal_go_over_the_connection_that_is_open(one_connection, url, scene):
    """The server refuses a second connection: the effect's answer is recorded over that of its claim."""
    store = PostgresStore(one_connection)
    with Guard(store) as guard:
        for number in range(3):
            answer = guard.run("charge", lambda: "paid", key=str(number), payload={})
            assert (answer.state, answer.result) == (State.COMPLETED, "paid")
        held = store.carry_out(scene.opening("held"))
        assert store.carry_out(Renew(held, LEASE)).version == held.version + 1
        assert store.carry_out(Read(held.key)).attempt == A
        assert sql(url, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'narrow'") == 1


async def test_tasks_settle_over_the_connection_that_is_open(one_connection, scene):
    async def effect() -> str:
        return "paid"

    store = AsyncPostgresStore(one_connection)
    async with AsyncGuard(store) as guard:
        for number in range(3):
            answer = await guard.run("charge", effect, key=str(number), payload={})
            assert (answer.state, answer.result) == (State.COMPLETED, "paid")
        held = await store.carry_out(scene.opening("held"))
        assert (await store.carry_out(Renew(held, LEASE))).version == held.version + 1


def test_the_spare_connection_is_left_when_the_server_has_room_again(one_connection, url, scene: Scene, monkeypatch):
    monkeypatch.setattr("samekey.stores.postgres._threads.SPARE_SECONDS", 0.0)
    with contextlib.closing(PostgresStore(one_connection)) as store:
        held = store.carry_out(scene.opening("held"))
        assert store.carry_out(Read(held.key)).attempt == A
        assert not store._connections().reads.is_open
        sql(url, "ALTER ROLE narrow CONNECTION LIMIT 5")

        assert store.carry_out(Read(held.key)).attempt == A
        assert store._connections().reads.is_open
