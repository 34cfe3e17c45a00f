"""Replicas and sentinels: WAIT, failovers, and masters that change."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest
import redis
import redis.asyncio

from samekey import AsyncGuard, Guard
from samekey.core.commands import Begin, Read, StoreCommand, Take, Testify
from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.key import make_key
from samekey.core.states import State
from samekey.stores.redis import AsyncRedisStore, RedisStore, _servers
from samekey.testing.servers import RedisServer, redis_server
from tests.servers.proxy import FaultProxy
from tests.servers.redis.helpers import FULL, LEASE, RETAIN, RIGHTS, B, opening, raw_key, settling, there
from tests.servers.redis.topologies import in_step, promote, replica, sentinel, until


def test_a_replica_is_never_asked(server):
    with redis_server() as master, replica(master) as copy, pytest.raises(StoreUnavailable, match="replica"):
        RedisStore(copy.url()).carry_out(opening())


def test_wait_replicas_counts_only_what_is_on_a_replica():
    """With a replica a claim is on it when it counts; without one nothing is claimed."""
    with redis_server() as master:
        store = RedisStore(master.url() + "?wait_replicas=1")
        with replica(master) as copy:
            held = store.carry_out(opening("both"))
            assert copy.call("EXISTS", raw_key(held)) == 1
            assert "replica(s) before it counts" in store.health().guarantee
        with pytest.raises(StoreUnavailable, match="not on 1 replica"):
            store.carry_out(opening("alone"))
        assert there(store.carry_out(Read(held.key))).fence == held.fence
        store.close()


def replicated_commands(store: RedisStore) -> Iterator[StoreCommand]:
    """A writing command of each kind that a lost reply may strike, each on a record of its own."""
    yield Take(there(store.carry_out(settling(store.carry_out(opening()), State.RELEASED))), B, "opaque", LEASE, False)
    yield Begin(store.carry_out(opening()))
    yield settling(store.carry_out(opening()))
    yield Testify((late := store.carry_out(opening())).key, B, late.token, State.COMPLETED, b"late", "too late")


@pytest.fixture
def replicated(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[RedisServer, FaultProxy, Any]]:
    """A master that is reached over a proxy, and a function that stops its one replica."""
    monkeypatch.setattr(_servers, "WAIT_MILLISECONDS", 100)
    with redis_server() as master, replica(master) as copy, FaultProxy(master.port) as proxy:

        def stop_replica() -> None:
            until(lambda: in_step(copy, master))
            os.kill(copy.pid, SIGSTOP)

        try:
            yield master, proxy, stop_replica
        finally:
            os.kill(copy.pid, SIGCONT)


def test_a_write_whose_reply_was_lost_waits_for_its_replicas(replicated):
    """Over the next connection a server has nothing to wait for: it is written once more, or does not count."""
    master, proxy, stop_replica = replicated
    through = RedisStore(f"redis://127.0.0.1:{proxy.port}?wait_replicas=1")
    commands = list(replicated_commands(RedisStore(master.url())))
    through.carry_out(Read(make_key("own", "warm")))
    stop_replica()
    for command in commands:
        proxy.lose_replies(1)

        with pytest.raises(StoreUnavailable, match="not on 1 replica"):
            through.carry_out(command)

        assert proxy.to_lose == 0
    through.close()


async def test_a_repeated_write_waits_for_its_replicas_again(replicated):
    """A write that did not count, as no replica had it, does not count either because it is found there."""
    master, _, stop_replica = replicated
    plain = RedisStore(master.url())
    store = AsyncRedisStore(master.url() + "?wait_replicas=1")
    begun, settled = plain.carry_out(opening()), plain.carry_out(opening())
    await store.carry_out(Read(make_key("own", "warm")))
    stop_replica()
    for command in (Begin(begun), settling(settled)):
        for _ in range(2):
            with pytest.raises(StoreUnavailable, match="not on 1 replica"):
                await store.carry_out(command)

    assert there(plain.carry_out(Read(begun.key))).begun_at is not None
    assert there(plain.carry_out(Read(settled.key))).state is State.COMPLETED
    await store.close()


def test_a_repeated_write_counts_when_its_replica_has_it():
    """And says the same: state, lease, answer and moves are as they were."""
    with redis_server() as master, replica(master) as copy:
        store = RedisStore(master.url() + "?wait_replicas=1")
        held = store.carry_out(opening())
        begun = [there(store.carry_out(Begin(held))) for _ in range(2)]
        settled = [there(store.carry_out(settling(held))) for _ in range(2)]

        for first, again in (begun, settled):
            assert again.version == first.version + 1
            assert again.fence == first.fence
            for name in (
                "state",
                "begun_at",
                "lease_until",
                "retain_until",
                "settled_at",
                "settled_by",
                "result",
                "moves",
            ):
                assert getattr(again, name) == getattr(first, name)
        assert there(store.carry_out(Read(held.key))).moves == settled[0].moves
        assert copy.call("GETRANGE", raw_key(held), 2, 11) == f"{settled[1].version:010}"
        assert 0 < master.call("PTTL", raw_key(held)) <= RETAIN * 1000
        store.close()


def test_a_sentinel_that_knows_no_master_is_skipped():
    """One that came back without its memory: the next one is asked, and only if none knows it, it is unknown."""
    with redis_server() as master, sentinel(master) as forgot, sentinel(master) as knows:
        forgot.call("SENTINEL", "REMOVE", "main")
        sentinels = f"127.0.0.1:{forgot.port},127.0.0.1:{knows.port}"
        store = RedisStore(f"redis://{sentinels}/0?sentinel=main")
        assert store.carry_out(opening()).state is State.STARTED
        store.close()

        with pytest.raises(Misconfigured, match="know no 'other'"):
            RedisStore(f"redis://{sentinels}/0?sentinel=other").carry_out(opening())
        with pytest.raises(StoreUnavailable):  # one of them did not say
            RedisStore(f"redis://127.0.0.1:1,127.0.0.1:{forgot.port}/0?sentinel=main").carry_out(opening())


def test_a_user_without_the_right_to_wait_is_refused_before_a_claim(server):
    """Or each claim would be written, counted as not replicated, and stuck until its lease ends."""
    server.call("ACL", "SETUSER", "hasty", "reset", "on", ">secret", *RIGHTS.split())
    store = RedisStore(f"redis://hasty:secret@127.0.0.1:{server.port}/0?wait_replicas=1")
    claim = opening()

    with pytest.raises(Misconfigured, match="wait"):
        store.carry_out(claim)

    assert server.call("EXISTS", raw_key(claim)) == 0
    store.close()


def test_a_demoted_master_is_replaced_by_the_new_one():
    """READONLY means that nothing was written: it is asked again where the master is now."""
    with redis_server() as master, replica(master) as copy, FaultProxy(master.port) as proxy:
        store = RedisStore(f"redis://127.0.0.1:{proxy.port}")  # an address that follows the master
        held = store.carry_out(opening())
        until(lambda: in_step(copy, master))
        promote(copy)
        master.call("REPLICAOF", "127.0.0.1", copy.port)
        proxy.target = ("127.0.0.1", copy.port)

        settled = there(store.carry_out(settling(held)))

        assert settled.state is State.COMPLETED
        assert settled.result == there(RedisStore(copy.url()).carry_out(Read(held.key))).result
        assert store.carry_out(opening()).after_loss
        store.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_failover_under_load_loses_no_claim_that_a_replica_had(colour):
    """The master is killed while eight callers claim and settle: they go on with the replica, no effect runs twice."""
    effects: dict[str, int] = {}
    mutex = threading.Lock()
    keys = [f"{number}" for number in range(400 if FULL else 120)]
    killed = threading.Event()

    def effect(key: str) -> str:
        with mutex:
            effects[key] = effects.get(key, 0) + 1
            if len(effects) == len(keys) // 3 and not killed.is_set():
                killed.set()
                master.call("CLIENT", "PAUSE", "60000", "WRITE")  # or a claim of another caller slips in between
                until(lambda: in_step(copy, master))
                master.stop(kill=True)
        return key

    with redis_server() as master, replica(master) as copy, sentinel(master) as watch:
        until(lambda: (row := watch.call("SENTINEL", "MASTER", "main"))[row.index("num-slaves") + 1] == "1")
        if colour == "sync":
            address = f"redis://127.0.0.1:1,127.0.0.1:{watch.port}/0?sentinel=main"  # one sentinel is away
            with Guard(address) as guard, ThreadPoolExecutor(8) as pool:

                def ask(key: str) -> Any:
                    while True:
                        with suppress(StoreUnavailable):  # nothing was run: the copy is not the master yet
                            return guard.run("own", lambda: effect(key), key=key, payload=1)

                answers = list(pool.map(ask, keys))
                again = list(pool.map(ask, keys))
        else:
            client = redis.Sentinel([("127.0.0.1", watch.port)]).master_for("main")

            async def main() -> tuple[list[Any], list[Any]]:
                async with AsyncGuard(AsyncRedisStore(client=client)) as guard:
                    gate = asyncio.Semaphore(8)

                    async def call(key: str) -> Any:
                        async def run() -> str:
                            return await asyncio.to_thread(effect, key)

                        async with gate:
                            while True:
                                with suppress(StoreUnavailable):
                                    return await guard.run("own", run, key=key, payload=1)

                    return (
                        list(await asyncio.gather(*(call(key) for key in keys))),
                        list(await asyncio.gather(*(call(key) for key in keys))),
                    )

            answers, again = asyncio.run(main())

        assert killed.is_set()
        assert copy.info("role") == "master"
    assert [one.result for one in answers] == keys
    assert [one.result for one in again] == keys
    assert set(effects.values()) == {1}
