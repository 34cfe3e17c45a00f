"""Pages of records and the sweep."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from samekey.core.ports import Query
from samekey.core.states import State
from samekey.stores.postgres import PostgresStore
from samekey.testing.stores.scene import B, settling
from tests.servers.postgres.helpers import sql

pytestmark = pytest.mark.slow


def test_sweeping_while_claims_run(store, url, scene):
    """Expired records go, and the keys that are claimed anew at the same time are held, every one of them."""
    texts = [str(number) for number in range(400)]
    held = store.batch([scene.opening(text) for text in texts])
    store.batch([settling(one, State.COMPLETED, retain=0.001) for one in held])
    time.sleep(0.01)
    swept = []
    begun, over = threading.Event(), threading.Event()

    def sweep() -> None:
        with contextlib.closing(PostgresStore(url)) as sweeper:
            while not over.is_set():
                swept.append(sweeper.sweep(20))
                begun.set()

    with ThreadPoolExecutor(9) as pool:
        sweeping = pool.submit(sweep)
        begun.wait()
        anew = list(pool.map(lambda text: store.carry_out(scene.opening(text, by=B)), texts))
        over.set()
        sweeping.result()

    assert {one.attempt for one in anew} == {B}
    assert {store.carry_out(scene.opening(text)).fence for text in texts} == {one.fence for one in anew}
    assert 20 <= sum(swept) <= 400
    tokens = {one.key.text: one.token for one in held}
    assert all(one.token > tokens[one.key.text] for one in anew)


def test_a_sweep_keeps_its_limit_whatever_the_plan(store, url, scene):
    """In a small table that was never analyzed the limit was looked for row by row: five of five went."""
    held = store.batch([scene.opening(str(number)) for number in range(5)])
    store.batch([settling(one, State.COMPLETED, retain=0.001) for one in held])
    time.sleep(0.01)

    assert [store.sweep(2) for _ in range(4)] == [2, 2, 1, 0]


def test_a_row_that_somebody_writes_is_swept_the_next_time(store, url, scene):
    held = store.carry_out(scene.opening())
    store.carry_out(settling(held, State.COMPLETED, retain=0.001))
    time.sleep(0.01)
    with psycopg.connect(url) as rival:
        rival.execute("SELECT 1 FROM samekey_records FOR UPDATE")
        assert store.sweep(100) == 0

    assert store.sweep(100) == 1


def test_old_records_are_found_beyond_the_newest(store, url, scene):
    """A page looks at the newest first; what is older is found too, in order."""
    for number in range(6):
        store.carry_out(scene.opening(str(number)))
    sql(url, "UPDATE samekey_records SET created_at = created_at - 100000 * key::int")

    found = store.list(Query(operation=scene.operation, limit=4))
    rest = store.list(Query(operation=scene.operation, limit=4, before=(found[-1].created_at, found[-1].key.digest)))

    assert [one.key.text for one in (*found, *rest)] == ["0", "1", "2", "3", "4", "5"]
