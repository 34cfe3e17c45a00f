"""Redis before PostgreSQL: the contract in both colours on real servers, and what a front in trouble costs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from samekey import AsyncGuard, Atomic, Guard
from samekey.core.commands import Free, Read
from samekey.core.key import make_key
from samekey.core.layers import MayStillReplay
from samekey.drivers.postgres.migrate import migrate
from samekey.guard.store_urls import open_store
from samekey.testing.servers import RedisServer, postgres, redis_server
from samekey.testing.stores import AsyncStoreSuite, StoreSuite
from tests.servers.proxy import FaultProxy
from tests.servers.redis.topologies import redis_cluster

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def database():
    with postgres() as server:
        yield server


@pytest.fixture(scope="module")
def back(database):
    url = database.create_database()
    migrate(url)
    return url


@pytest.fixture(scope="module")
def front() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture
def address(front: RedisServer, back: str) -> str:
    return f"{front.url()} {back}"


class TestLayered(StoreSuite):
    random_steps = 600

    @pytest.fixture(autouse=True)
    def _here(self, address: str):
        self.url = address

    def make_store(self):
        return open_store(self.url, asynchronous=False)

    def address(self):
        return ("tests.servers.layered.test_layered:layered", self.url)


class TestAsyncLayered(AsyncStoreSuite):
    @pytest.fixture(autouse=True)
    def _here(self, address: str):
        self.url = address

    async def make_store(self):
        return open_store(self.url, asynchronous=True)

    def address(self):
        return ("tests.servers.layered.test_layered:async_layered", self.url)


def layered(url):
    return open_store(url, asynchronous=False)


def async_layered(url):
    return open_store(url, asynchronous=True)


def durable(guard) -> Any:
    """The PostgreSQL store of a guard with a front."""
    return guard.store._back


# Our tables alone: transaction ids of the whole server also count its autovacuum.
NOTE_WRITES = """
CREATE TABLE writes (xid xid8);
CREATE FUNCTION note_write() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.writes VALUES (pg_current_xact_id());
    RETURN NULL;
END $$;
DO $$
DECLARE one regclass;
BEGIN
    FOR one IN SELECT oid FROM pg_class WHERE relname LIKE 'samekey\\_%' AND relkind IN ('r', 'p')
        AND relname <> 'samekey_counts' LOOP  -- a guard writes its counts when it is closed, in its own time
        EXECUTE format('CREATE TRIGGER note_write AFTER INSERT OR UPDATE OR DELETE ON %s', one)
            || ' EXECUTE FUNCTION note_write()';
    END LOOP;
END $$;
"""


def test_a_replay_costs_the_database_nothing(address, back):
    with Guard(address) as guard:
        guard.run("replayed", lambda: 7, key="o-1", payload=1)
        gone = durable(guard)._connections().claims

        def fail(*_):
            pytest.fail("the database was asked")

        perform, gone.perform = gone.perform, fail
        try:
            answers = [guard.run("replayed", pytest.fail, key="o-1", payload=1) for _ in range(50)]
        finally:
            gone.perform = perform

    assert {answer.result for answer in answers} == {7}


def test_a_storm_from_four_processes_is_two_writes(address, back, tmp_path):
    with Guard(back) as first:
        first.store.health()  # the first self-check of a new database records it there
    with psycopg.connect(back, autocommit=True) as connection:
        connection.execute(NOTE_WRITES)
    with ThreadPoolExecutor(4) as pool:
        ended = list(pool.map(lambda _: storm(address, tmp_path), range(4)))
    with psycopg.connect(back) as connection:
        (writes,) = connection.execute("SELECT count(DISTINCT xid) FROM writes").fetchone() or (None,)

    effects = sum(int(one.split()[0]) for one in ended)
    answered = sum(int(one.split()[1]) for one in ended)
    assert (effects, answered) == (1, 1000)
    assert writes == 2


def storm(address: str, meeting: Path) -> str:
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", STORM, address, str(meeting)], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout


STORM = """
import asyncio, os, pathlib, sys
from samekey import AsyncGuard

meeting = pathlib.Path(sys.argv[2])

async def main():
    effects = []
    async def effect():
        effects.append(1)
        while len(list(meeting.iterdir())) < 4:  # every process is here
            await asyncio.sleep(0.005)
        return 7
    async with AsyncGuard(sys.argv[1]) as guard:
        await guard.store.health()
        (meeting / str(os.getpid())).touch()
        answers = await asyncio.gather(
            *[guard.run("storm", effect, key="o-1", payload=1) for _ in range(250)]
        )
    print(len(effects), sum(answer.result == 7 for answer in answers))

asyncio.run(main())
"""


@pytest.mark.parametrize("trouble", ["wiped", "killed"])
def test_a_front_in_trouble_costs_speed_and_nothing_else(back, trouble):
    with redis_server() as front, Guard(f"{front.url()} {back}") as guard:
        effects: list[int] = []
        for number in range(40):
            if number % 10 == 5:
                if trouble == "wiped":
                    front.call("FLUSHALL")
                elif number == 15:
                    front.stop(kill=True)
                elif number == 35:
                    front.start()
            for _ in range(2):
                guard.run(trouble, partial(effects.append, number), key=f"o-{number}", payload=number)

    assert effects == list(range(40))


async def test_the_async_store_goes_on_without_its_front(back):
    with redis_server() as front:
        async with AsyncGuard(f"{front.url()} {back}") as guard:
            effects = []

            async def effect():
                effects.append(1)

            await guard.run("alone", effect, key="o-1", payload=1)
            await asyncio.to_thread(front.stop, kill=True)
            await guard.run("alone", effect, key="o-1", payload=1)
            await guard.run("alone", effect, key="o-2", payload=1)

    assert len(effects) == 2


def test_a_front_that_says_nothing_costs_a_moment_once_in_a_while(back):
    """Connected and silent, as over a broken network: each key runs once, and is replayed by the database."""
    effects: list[str] = []

    def call(guard: Guard, key: str) -> bool:
        return guard.run("silent", lambda: effects.append(key), key=key, payload=1).replayed

    with (
        redis_server() as front,
        FaultProxy(front.port) as wire,
        Guard(f"redis://127.0.0.1:{wire.port} {back}") as guard,
    ):
        call(guard, "warm")
        wire.hold()
        replayed = [call(guard, key) for key in ("o-1", "o-2", "o-1", "o-2")]
        wire.release()

    assert replayed == [False, False, True, True]
    assert effects == ["warm", "o-1", "o-2"]


def test_replies_lost_by_either_layer_double_nothing(front, database, back):
    effects: list[str] = []
    port = int(back.rpartition(":")[2].partition("/")[0])
    with FaultProxy(front.port) as near, FaultProxy(port) as far:
        durable_url = back.replace(f":{port}/", f":{far.port}/")
        with Guard(f"redis://127.0.0.1:{near.port} {durable_url}") as guard:
            for number in range(12):
                key = f"o-{number // 2}"
                guard.run("lost", partial(effects.append, key), key=key, payload=1)
                (near, far)[number % 2].lose_replies(1)

    assert effects == [f"o-{number}" for number in range(6)]


def test_free_raises_when_the_front_could_not_be_updated(back):
    with redis_server() as front, Guard(f"{front.url()} {back}") as guard:
        guard.run("freed", lambda: 7, key="o-1", payload=1)
        seen = guard.store.carry_out(Read(make_key("freed", "o-1")))
        assert seen is not None
        front.stop(kill=True)

        with pytest.raises(MayStillReplay):
            guard.store.carry_out(Free(seen, "ada", "refunded"))


def test_after_a_promotion_of_the_database_old_entries_are_checked(front, database):
    """Another timeline is another incarnation: what the front says about the old one counts for nothing."""
    url = database.create_database()
    migrate(url)
    with Guard(f"{front.url()} {url}") as guard:
        guard.run("promoted", lambda: 7, key="o-1", payload=1)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("DELETE FROM samekey_records")  # what a lost second of an async standby is
        assert guard.run("promoted", pytest.fail, key="o-1", payload=1).replayed  # within front_ttl

        lane = durable(guard)._connections().claims
        lane.facts = replace(lane.facts, incarnation="another timeline", lost_at=1e12)
        assert not guard.run("promoted", lambda: 8, key="o-1", payload=1).replayed


def test_the_front_may_be_a_cluster(back):
    with redis_cluster(3) as nodes, Guard(f"redis://127.0.0.1:{nodes[0].port}?cluster=1 {back}") as guard:
        for number in range(20):
            assert not guard.run("cluster", lambda: 7, key=f"o-{number}", payload=1).replayed
            assert guard.run("cluster", pytest.fail, key=f"o-{number}", payload=1).replayed


def test_atomic_takes_a_connection_to_the_durable_store(address: str, back: str):
    with Guard(address) as guard, psycopg.connect(back) as connection:

        @guard.once(name="atomic", key="order_id", boundary=Atomic("db"))
        def order(db: Any, order_id: str) -> str:
            return order_id

        assert [order(connection, "sync"), order(connection, "sync")] == ["sync", "sync"]
        assert guard.on(connection).run("atomic on", lambda: 1, key="sync", payload={}).result == 1


async def test_atomic_takes_a_connection_to_the_durable_store_under_async_guard(address: str, back: str):
    async with AsyncGuard(address) as guard, await psycopg.AsyncConnection.connect(back) as connection:

        @guard.once(name="atomic", key="order_id", boundary=Atomic("db"))
        async def order(db: Any, order_id: str) -> str:
            return order_id

        assert [await order(connection, "async"), await order(connection, "async")] == ["async", "async"]
        await connection.execute("SELECT 1")
        answer = await guard.on(connection).run("atomic on", lambda: order_of("o-1"), key="async", payload={})
        assert answer.result == "o-1"


async def order_of(name: str) -> str:
    return name
