"""Sweeping PostgreSQL, with the table of records in one piece and in hash partitions."""

from __future__ import annotations

import contextlib
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from samekey.core.commands import Read
from samekey.core.errors import Misconfigured
from samekey.core.ports import Query
from samekey.core.record import Record
from samekey.core.states import State
from samekey.drivers.postgres.migrate import migrate
from samekey.ops.sweeping import sweeping
from samekey.stores.postgres import PostgresStore
from samekey.testing.servers import postgres
from samekey.testing.stores.scene import B, Scene, settling
from tests.servers.postgres.helpers import CLAIM, until_past

pytestmark = pytest.mark.slow

LIVES = 200 if os.environ.get("SAMEKEY_BUDGET") == "full" else 10


@pytest.fixture(scope="module")
def server():
    with postgres() as running:
        yield running


@pytest.fixture(scope="module", params=[0, 8], ids=["one-piece", "partitions"])
def url(server, request: pytest.FixtureRequest):
    address = server.create_database()
    migrate(address, partitions=request.param)
    return address


@pytest.fixture
def store(url):
    with psycopg.connect(url, autocommit=True) as link:
        link.execute("TRUNCATE samekey_records")
    with contextlib.closing(PostgresStore(url)) as one:
        yield one


@pytest.fixture
def scene():
    return Scene(0.02)


def past_retention(store: PostgresStore, url: str, scene: Scene, count: int) -> list[Any]:
    """So many records whose retention is over."""
    held = store.batch([scene.opening(str(number)) for number in range(count)])
    store.batch([settling(one, State.COMPLETED, retain=0.001) for one in held if isinstance(one, Record)])
    until_past(url, "retain_until")
    return held


def test_a_claim_never_vanishes_while_two_sweepers_sweep(store, url, scene):
    """Keys are claimed, end, expire and are claimed anew, over and over: what was claimed is there, and held."""
    over = threading.Event()
    swept: list[int] = []

    def sweep() -> None:
        with contextlib.closing(PostgresStore(url)) as sweeper:
            while not over.is_set():
                swept.append(sweeper.sweep(7))

    def live(number: int) -> list[str]:
        """Lives of one key; what went wrong in them."""
        wrong = []
        for life in range(LIVES):
            me = f"{number * 1000 + life + 1:032x}"
            held = store.carry_out(scene.opening(str(number), by=me))
            while held.attempt != me:  # the life before is not over yet
                held = store.carry_out(scene.opening(str(number), by=me))
            found = store.carry_out(Read(held.key))
            if found is None or found.attempt != me or found.state is not State.STARTED:
                wrong.append(f"{held} became {found}")
            store.carry_out(settling(held, State.COMPLETED, retain=0.001))
        return wrong

    with ThreadPoolExecutor(10) as pool:
        sweepers = [pool.submit(sweep) for _ in range(2)]
        wrong = [one for many in pool.map(live, range(8)) for one in many]
        over.set()
        for sweeper in sweepers:
            sweeper.result()

    assert wrong == []
    assert sum(swept) > 0


def test_a_key_that_is_made_anew_between_the_read_and_the_delete_stays(store, url, scene):
    """The sweep finds the row past its retention; before it deletes, the key is claimed again."""
    (old,) = past_retention(store, url, scene, 1)
    with psycopg.connect(url) as sweeper:
        # The first half of the sweep, as it stands in the function, but without its lock: a read.
        seen = sweeper.execute(
            "SELECT digest, token, attempt, date_part('epoch', clock_timestamp()) FROM samekey_records "
            "WHERE retain_until <= date_part('epoch', clock_timestamp())"
        ).fetchone()
        assert seen is not None
        anew = store.carry_out(scene.opening("0", by=B))
        gone = sweeper.execute(
            "DELETE FROM samekey_records WHERE digest = %s AND token = %s AND attempt = %s AND retain_until <= %s", seen
        ).rowcount

    assert (anew.attempt, gone) == (B, 0)
    assert anew.token > old.token
    assert store.sweep(10) == 0


def test_a_row_that_a_claim_is_writing_is_left_out_and_nobody_waits(store, url, scene):
    """The claim's transaction is still open: the sweep takes the others, and the claim goes on."""
    past_retention(store, url, scene, 5)
    key = scene.key("3")
    with psycopg.connect(url) as claim:
        claim.execute(
            CLAIM,
            (key.digest.hex(), key.operation, key.text, B),
        )
        assert store.sweep(100) == 4
        claim.commit()

    assert store.sweep(100) == 0
    found = store.carry_out(Read(key))
    assert found is not None
    assert (found.attempt, found.state) == (B, State.STARTED)


def test_two_sweepers_share_the_work(store, url, scene):
    """Every record is swept by one of them, and neither waits for the other."""
    past_retention(store, url, scene, 600)

    def sweep(_: int) -> int:
        with contextlib.closing(PostgresStore(url)) as sweeper:
            return sum(step.gone for step in sweeping(sweeper, piece=20))

    with ThreadPoolExecutor(2) as pool:
        shares = list(pool.map(sweep, range(2)))

    assert sum(shares) + store.sweep(1000) == 600
    assert store.list(Query(operation=scene.operation)) == []


def test_a_sweep_touches_what_it_deletes_and_little_else(store, url, scene):
    """However many records there are: rows read by all its statements, as the server counts them."""
    past_retention(store, url, scene, 2000)
    store.close()  # what it read is counted by now
    counted = (
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int FROM pg_stat_user_tables "
        "WHERE relname LIKE 'samekey_records%%'",
        (),
    )
    with contextlib.closing(PostgresStore(url)) as sweeper:
        desk = sweeper._connections().operators

        def rows_read() -> int:
            desk.ask(("SELECT pg_stat_force_next_flush()", ()))
            ((count,),) = desk.ask(counted)
            return int(count)

        before = rows_read()
        swept = sweeper.sweep(50)
        touched = rows_read() - before

    assert swept == 50
    assert touched <= 50 + 50 + 8 + 20  # found, deleted, one for each partition, and some to spare


def test_partitions_are_chosen_with_the_first_migration(server, url):
    """A table that is there keeps its shape, and whoever asks for another is told."""
    address = server.create_database()
    assert len(migrate(address, partitions=4)) >= 1
    assert migrate(address, partitions=4) == []
    with pytest.raises(Misconfigured, match="chosen with the first migration"):
        migrate(address, partitions=8)
    with pytest.raises(Misconfigured, match="chosen with the first"):
        migrate(address, partitions=8, dry_run=True)
    with pytest.raises(Misconfigured, match="from 2 to 1024"):
        migrate(server.create_database(), partitions=5000)


def test_every_partition_gets_its_share_and_a_claim_touches_one(store, url, scene):
    store.batch([scene.opening(str(number)) for number in range(400)])
    with psycopg.connect(url) as link:
        counts = [row[0] for row in link.execute("SELECT count(*) FROM samekey_records GROUP BY tableoid ORDER BY 1")]
        plan = str(
            link.execute(
                "EXPLAIN SELECT * FROM samekey_records WHERE digest = %s::uuid", (scene.key("1").digest.hex(),)
            ).fetchall()
        )

    assert sum(counts) == 400
    assert len(counts) in (1, 8)
    assert min(counts) > 400 / len(counts) / 2
    assert plan.count("Scan") == 1
