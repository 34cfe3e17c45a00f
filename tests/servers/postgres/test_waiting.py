"""Waiting for a record: notifications, the listener, and what happens without them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from samekey.core.commands import Read, Wait
from samekey.core.errors import StoreBusy, StoreUnavailable
from samekey.core.states import State
from samekey.drivers.postgres.migrate import migrate
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore
from samekey.testing.stores.scene import settling
from tests.servers.postgres.children import child, line, tell
from tests.servers.postgres.helpers import MAJOR, sql, until

pytestmark = pytest.mark.slow


def test_no_wake_up_is_lost_between_processes(store, url, scene):
    """200 waits in another process, the settle now before, now while, now after the row is flagged."""
    chance = random.Random(1)
    late = []
    with child("wait", url, scene) as waiter:
        for number in range(200):
            held = store.carry_out(scene.opening(str(number)))
            tell(waiter, str(number))
            assert line(waiter) == "waiting"
            time.sleep(chance.random() * 0.004)  # real time: the settle comes at another moment of the wait each time
            store.carry_out(settling(held, State.COMPLETED))
            settled = time.time()
            state, woken = line(waiter)
            assert state == "completed"
            late.append(woken - settled)

    assert max(late) < 15.0  # a waiter whose wake-up is lost waits for 20 s


def test_waiters_of_one_process_cost_next_to_nothing(store, url, scene, monkeypatch):
    """100 threads wait for one key of another store: their looks travel together."""
    other = PostgresStore(url)
    held = store.carry_out(scene.opening())
    seen = other.carry_out(Read(held.key))
    assert seen is not None
    sent = []
    send = other._connections().reads._carry_out

    def counted(items: Any, turn: Any) -> Any:
        sent.append(1)
        return send(items, turn)

    monkeypatch.setattr(other._connections().reads, "_carry_out", counted)
    with ThreadPoolExecutor(100) as pool:
        waiting = [pool.submit(other.wait, Wait(seen), 10.0) for _ in range(100)]
        until(lambda: sql(url, "SELECT waited_for FROM samekey_records"))
        until(lambda: all(one.running() for one in waiting))
        store.carry_out(settling(held, State.COMPLETED, result=b"done"))
        found = [one.result(10) for one in waiting]
    other.close()

    assert {one.result for one in found if one is not None} == {b"done"}
    assert len(sent) < 100


async def test_a_task_is_woken_by_another_connection(url, scene, monkeypatch):
    """The listener's thread rings in the loop."""
    monkeypatch.setattr("samekey.stores._waiting.REREAD_SECONDS", 60.0)
    store, other = AsyncPostgresStore(url), AsyncPostgresStore(url)
    for number in range(20):
        held = await store.carry_out(scene.opening(str(number)))
        waiting = asyncio.create_task(other.wait(Wait(held), 10.0))
        await asyncio.sleep(random.random() * 0.01)  # real time: at another moment of the wait each time
        await store.carry_out(settling(held, State.COMPLETED, result=b"done"))
        woken = await asyncio.wait_for(waiting, 5)
        assert woken is not None
        assert woken.result == b"done"
    await store.close()
    await other.close()


def test_a_listener_that_could_not_start_starts_with_the_next_who_waits(url, scene, monkeypatch):
    with contextlib.closing(PostgresStore(url)) as store:
        held = store.carry_out(scene.opening())
        with monkeypatch.context() as scarce:
            scarce.setattr(os, "pipe", _no_files)
            scarce.setattr(threading, "excepthook", lambda told: None)
            assert store.wait(Wait(held), 0.01) is not None
        until(lambda: not any(thread.name == "samekey-listener" for thread in threading.enumerate()))
        assert store.wait(Wait(held), 0.01) is not None
        assert store._process.listener._listening.is_set()


def _no_files() -> Any:
    raise OSError(24, "Too many open files")


def test_a_full_queue_of_notifications_stops_no_settle(own_server, scene):
    """It is everybody's: who listens and never ends a transaction fills it, and no commit that notifies succeeds."""
    if MAJOR < 17:
        pytest.skip("before PostgreSQL 17 the queue has 8 GB")
    own_server.sql("ALTER SYSTEM SET max_notify_queue_pages = 64")
    own_server.restart("fast")
    url = own_server.create_database()
    migrate(url)
    with contextlib.closing(PostgresStore(url)) as store, psycopg.connect(url, autocommit=True) as stuck:
        stuck.execute("LISTEN elsewhere")
        stuck.execute("BEGIN")
        stuck.execute("SELECT 1")
        with psycopg.connect(url, autocommit=True) as noisy, contextlib.suppress(psycopg.errors.ProgramLimitExceeded):
            for number in itertools.count():
                noisy.execute("SELECT pg_notify('elsewhere', %s)", (f"{number:07000}",))
        held = store.carry_out(scene.opening())
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.wait, Wait(held), 20.0)
            until(lambda: sql(url, "SELECT waited_for FROM samekey_records"))
            settled = store.carry_out(settling(held, State.COMPLETED, result=b"done"))
            found = waiting.result(10)

    assert settled is not None
    assert found is not None
    assert settled.result == found.result == b"done"


def test_a_waiter_is_not_held_up_by_a_rival_transaction(store, url, scene):
    """A row that cannot be flagged is looked at again and again; nobody's read waits for it."""
    held = store.carry_out(scene.opening())
    with psycopg.connect(url) as rival:
        rival.execute("SELECT 1 FROM samekey_records FOR UPDATE")
        start = time.monotonic()
        found = store.wait(Wait(held), 0.3)

    assert found is not None
    assert found.fence == held.fence
    assert time.monotonic() - start < 1.0


def test_a_waiter_outlasts_a_table_that_is_locked(store, url, scene):
    """VACUUM FULL and migrations lock all of it: who waits anyhow looks again, as long as it would have waited."""
    held = store.carry_out(scene.opening())
    with psycopg.connect(url) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute("LOCK TABLE samekey_records IN ACCESS EXCLUSIVE MODE")
        start = time.monotonic()
        with pytest.raises(StoreBusy):
            store.wait(Wait(held), 0.5)
        assert time.monotonic() - start > 0.5
        waiting = pool.submit(store.wait, Wait(held), 20.0)
        for stands in (True, False):  # it waited for the table, and was turned away
            until(lambda stands=stands: sql(url, _LOCKED_OUT) is stands)
        rival.rollback()
        store.carry_out(settling(held, State.COMPLETED, result=b"done"))
        found = waiting.result(10)

    assert found is not None
    assert found.result == b"done"


async def test_a_task_that_waits_outlasts_a_table_that_is_locked(url, scene):
    store = AsyncPostgresStore(url)
    held = await store.carry_out(scene.opening())
    with psycopg.connect(url) as rival:
        rival.execute("LOCK TABLE samekey_records IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreBusy):
            await store.wait(Wait(held), 0.5)
        waiting = asyncio.create_task(store.wait(Wait(held), 20.0))
        await asyncio.to_thread(until, lambda: sql(url, _LOCKED_OUT))
    await store.carry_out(settling(held, State.COMPLETED, result=b"done"))
    found = await asyncio.wait_for(waiting, 10)
    await store.close()

    assert found is not None
    assert found.result == b"done"


_LOCKED_OUT = """
SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'samekey' AND wait_event_type = 'Lock'
"""


def test_a_closed_store_says_so_at_once(url, scene):
    store = PostgresStore(url)
    store.carry_out(scene.opening())
    store.close()
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match="closed"):
        store.carry_out(scene.opening())
    assert time.monotonic() - start < 1


def test_nobody_is_notified_when_nobody_waits(store, url, scene):
    with psycopg.connect(url, autocommit=True) as ear:
        ear.execute("LISTEN samekey")
        held = store.carry_out(scene.opening())
        store.carry_out(settling(held, State.COMPLETED))

        assert list(ear.notifies(timeout=0.1)) == []
