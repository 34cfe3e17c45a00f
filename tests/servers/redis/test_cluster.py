"""A cluster: keys on several servers, slots that move, and servers that are away."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from signal import SIGCONT, SIGSTOP
from typing import Any
from uuid import uuid4

import pytest
import redis
import redis.asyncio

from samekey import AsyncGuard, Guard
from samekey.core.commands import Free, Read, Renew, Wait
from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.ports import Query
from samekey.core.record import Record
from samekey.core.states import State
from samekey.drivers.redis.wire import slot_of
from samekey.stores import _waiting
from samekey.stores.redis import AsyncRedisStore, RedisStore, _discovery
from samekey.stores.redis._batches import REDIRECTS_MAX
from samekey.stores.redis._requests import SLOTS
from samekey.testing.servers import RedisServer
from tests.servers.redis.helpers import FULL, LEASE, channel, listing_with, opening, raw_key, settling, there
from tests.servers.redis.topologies import cluster_node, redis_cluster, until


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster(3) as nodes:
        yield nodes


def cluster_url(nodes: list[RedisServer]) -> str:
    return "redis://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes[:2]) + "?cluster=1"


def test_a_cluster_keeps_each_key_where_it_belongs(cluster):
    """Records lie on all three masters; they are claimed together, settled, listed, published and audited."""
    store, other = RedisStore(cluster_url(cluster)), RedisStore(cluster_url(cluster))
    replies = store.batch([opening(f"cluster {number}") for number in range(60)])
    held = [one for one in replies if isinstance(one, Record)]
    assert len(held) == 60
    assert all(int(node.call("DBSIZE")) > 60 for node in cluster)  # markers, sets and records
    assert len(store.list(Query(states=(State.STARTED,), operation="own", limit=1000))) == 60

    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.wait, Wait(held[0]), 20.0)
        until(lambda: any(node.call("PUBSUB", "NUMSUB", channel(held[0]))[1] for node in cluster))
        for one in held:
            assert there(store.carry_out(settling(one))).state is State.COMPLETED
        assert there(waiting.result()).result == b"done"

    assert len(store.list(Query(operation="own", limit=1000))) == 60
    for one in held[:5]:
        store.carry_out(Free(there(store.carry_out(Read(one.key))), "ada", "again"))
    assert len([one for one in store.audit(1000) if one.action == "free"]) == 5
    assert "servers" in dict(store.health().facts)
    assert dict(store.health().facts)["servers"] == "3"
    for each in (store, other):
        each.close()


def test_a_cluster_that_is_rearranged_is_followed(cluster):
    """While a slot is on its way, and after it has moved, the key is asked for where it is."""
    store = RedisStore(cluster_url(cluster))
    held = store.carry_out(opening("on the move"))
    tag = raw_key(held).split("}")[0] + "}"
    slot = cluster[0].call("CLUSTER", "KEYSLOT", tag)
    owners = {node.call("CLUSTER", "MYID"): node for node in cluster}
    source = next(node for node in cluster if raw_key(held) in node.call("KEYS", "*"))
    target = next(node for node in cluster if node is not source)
    ids = {id(node): name for name, node in owners.items()}
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[id(source)])
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[id(target)])
    for key in source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.call("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)

    renewed = there(store.carry_out(Renew(held, LEASE)))  # ASK
    assert renewed.version == held.version + 1

    for node in (target, source, *cluster):
        node.call("CLUSTER", "SETSLOT", slot, "NODE", ids[id(target)])
    assert there(store.carry_out(settling(held))).state is State.COMPLETED  # MOVED
    store.close()


def give_away(record: Record, source: RedisServer, target: RedisServer) -> int:
    """Move all keys of this record's slot, and leave it open; the slot."""
    slot = slot_of(raw_key(record).encode())
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.call("CLUSTER", "MYID"))
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.call("CLUSTER", "MYID"))
    for key in source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.call("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
    return slot


@contextmanager
def growing_cluster() -> Iterator[list[RedisServer]]:
    """Two masters, and a third one that has no slots yet."""
    with redis_cluster(2) as nodes, cluster_node() as new:
        new.call("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, nodes[0].settings["cluster-port"])
        until(lambda: all(str(node.call("CLUSTER", "NODES")).count(" connected") == 3 for node in (*nodes, new)))
        until(lambda: "cluster_state:ok" in new.call("CLUSTER", "INFO"))
        yield [*nodes, new]


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_the_first_slot_that_moves_to_a_new_server_is_followed(colour):
    """A server without slots has no markers to check: the store waits for no reply to that."""

    async def called(one: Any) -> Any:
        return await one if inspect.isawaitable(one) else one

    async def moving(nodes: list[RedisServer]) -> None:
        store = (AsyncRedisStore if colour == "async" else RedisStore)(cluster_url(nodes))
        held = await called(store.carry_out(opening()))
        give_away(held, next(node for node in nodes if raw_key(held) in node.call("KEYS", "*")), nodes[2])

        assert (await called(store.carry_out(Renew(held, LEASE)))).version == held.version + 1
        assert (await called(store.carry_out(settling(held)))).state is State.COMPLETED
        assert [one.key for one in await called(store.list(Query(limit=10)))] == [held.key]
        await called(store.close())

    with growing_cluster() as nodes:
        asyncio.run(moving(nodes))


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("over", [True, False], ids=["moved", "moving"])
def test_a_record_that_moves_while_a_list_is_made_is_listed_once(monkeypatch, direction, over):
    """From a server that was not looked at yet to one that was, and the other way round."""
    with redis_cluster(2) as nodes:
        store = RedisStore(cluster_url(nodes))
        source, target = nodes[::direction]
        ended = [there(store.carry_out(settling(store.carry_out(opening())))) for _ in range(40)]
        (moving, *_) = (one for one in ended if raw_key(one) in source.call("KEYS", "*"))
        looks: list[str] = []

        def before_a_scan(asked: Any) -> None:
            if asked.arguments[:1] == (b"SCAN",):
                looks.append(asked.server)
                if len(set(looks)) == 2 and len(looks) == 2:
                    slot = give_away(moving, source, target)
                    for node in (target, source) if over else ():
                        node.call("CLUSTER", "SETSLOT", slot, "NODE", target.call("CLUSTER", "MYID"))

        monkeypatch.setattr("samekey.stores.redis.store.listing", listing_with(before_a_scan))
        listed: Any = store.list(Query(limit=100))

        assert sorted(one.key.text for one in listed) == sorted(one.key.text for one in ended)
        looks.clear()
        store.close()


def test_a_waiter_is_woken_when_no_server_of_the_address_is_left(monkeypatch):
    """The subscriber connects to the servers that the store found since, as commands do."""
    monkeypatch.setattr(_waiting, "REREAD_SECONDS", 60.0)
    with redis_cluster(3) as (leaves, *stay):
        for node in stay:
            node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
        store, other = RedisStore(cluster_url([leaves])), RedisStore(cluster_url(stay))
        records = [store.carry_out(opening()) for _ in range(40)]
        (held, *_) = (one for one in records if raw_key(one) in stay[0].call("KEYS", "*"))
        assert other.carry_out(Read(held.key)) is not None
        leaves.stop(kill=True)

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.wait, Wait(held), 20.0)
            until(lambda: any(node.call("PUBSUB", "NUMSUB", channel(held))[1] for node in stay))
            other.carry_out(settling(held))
            assert there(waiting.result()).result == b"done"
        for each in (store, other):
            each.close()


def test_servers_that_each_name_the_other_are_asked_until_they_agree(cluster):
    """The one that gave a slot away hears of it first, and for a moment each says that the other has it."""
    store = RedisStore(cluster_url(cluster))
    held = store.carry_out(opening("between two"))
    slot = slot_of(raw_key(held).encode())
    source = next(node for node in cluster if raw_key(held) in node.call("KEYS", "*"))
    target = next(node for node in cluster if node is not source)
    giver, taker = source.call("CLUSTER", "MYID"), target.call("CLUSTER", "MYID")
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", giver)
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", taker)
    for key in source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.call("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
    source.call("CLUSTER", "SETSLOT", slot, "NODE", taker)

    def sent_away() -> int:
        return int(target.info("cmdstat_evalsha").partition("rejected_calls=")[2].partition(",")[0] or 0)

    before = sent_away()
    with ThreadPoolExecutor(1) as pool:
        settling_it = pool.submit(store.carry_out, settling(held))
        until(lambda: settling_it.done() or sent_away() > before + REDIRECTS_MAX)
        for node in (target, *cluster):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", taker)

        assert there(settling_it.result()).state is State.COMPLETED
    store.close()


def test_a_server_that_knows_no_cluster_is_skipped(cluster):
    """One that came back without its memory has no slots to tell of: the next one is asked."""
    with cluster_node() as forgot:
        store = RedisStore(f"redis://127.0.0.1:{forgot.port},127.0.0.1:{cluster[0].port}?cluster=1")

        assert store.carry_out(opening()).state is State.STARTED
        store.close()


def test_the_keys_of_other_masters_work_while_one_is_away(cluster):
    """In one batch: the keys of the one cannot be had, those of the others can, also from servers not met before."""
    for node in cluster:
        node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
    claims = sorted((opening() for _ in range(60)), key=lambda one: slot_of(raw_key(one).encode()))
    store = RedisStore(cluster_url(cluster[1:]))
    cluster[0].stop(kill=True)  # it has the lowest slots, and is asked first
    try:
        replies = store.batch(claims)
    finally:
        cluster[0].start()
        until(lambda: all("cluster_state:ok" in node.call("CLUSTER", "INFO") for node in cluster))

    assert {type(one) for one in replies} == {StoreUnavailable, Record}
    store.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_master_that_hangs_is_avoided_for_a_while(cluster, monkeypatch, colour):
    """Commands about its keys fail at once then, and the keys of the other servers do not wait for it."""
    monkeypatch.setattr("samekey.drivers.redis.connect.ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("samekey.stores.redis._batches.REASK_SECONDS", 0.0)
    monkeypatch.setattr(_discovery, "SILENT_SECONDS", 600.0)

    for node in cluster:
        node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")

    async def called(one: Any) -> Any:
        return await one if inspect.isawaitable(one) else one

    async def hanging() -> None:
        store = (AsyncRedisStore if colour == "async" else RedisStore)(cluster_url(cluster[1:]))
        held = await called(store.batch([opening() for _ in range(60)]))
        (hers, *_) = (one for one in held if raw_key(one) in cluster[0].call("KEYS", "*"))
        (others, *_) = (one for one in held if raw_key(one) in cluster[1].call("KEYS", "*"))
        os.kill(cluster[0].pid, SIGSTOP)
        try:
            for why in ("no answer|timed out", "Timeout", "did not answer a moment ago"):
                replies = await called(store.batch([Renew(hers, LEASE), Renew(others, LEASE)]))
                assert isinstance(replies[0], StoreUnavailable)
                assert re.search(why, str(replies[0]))
                assert replies[1].lease_live
        finally:
            os.kill(cluster[0].pid, SIGCONT)
        until(lambda: all("cluster_state:ok" in node.call("CLUSTER", "INFO") for node in cluster))
        known = (store.sync if isinstance(store, AsyncRedisStore) else store)._process_now().known
        known.silent.clear()  # the while is over
        assert (await called(store.carry_out(Renew(hers, LEASE)))).lease_live
        await called(store.close())

    asyncio.run(hanging())


def test_a_cluster_whose_servers_hide_their_hosts(cluster):
    """Then it is the host of the question: a cluster with one address for all, or of one server that met no other."""
    for node in cluster:
        node.call("CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint")
    try:
        store = RedisStore(cluster_url(cluster))
        replies = store.batch([opening() for _ in range(60)])
    finally:
        for node in cluster:
            node.call("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")

    assert {type(one) for one in replies} == {Record}
    store.close()


def test_one_server_of_a_cluster_is_refused_with_the_option_to_add(cluster):
    with pytest.raises(Misconfigured, match=re.escape("?cluster=1")):
        RedisStore(cluster[0].url()).carry_out(opening())


def test_health_ignores_servers_that_have_no_keys_any_more():
    """A master whose slots have moved on, or that another one replaced, says nothing about the store any more."""
    with redis_cluster(2) as (stays, leaves):
        leaves.call("CONFIG", "SET", "appendonly", "no")
        store = RedisStore(cluster_url([stays, leaves]))
        assert "no claim is safe" in store.health().guarantee
        leaves.call("FLUSHALL")
        name = stays.call("CLUSTER", "MYID")
        stays.call("CLUSTER", "BUMPEPOCH")  # or the other server's claim to its slots would win
        for slot in sorted(set(SLOTS)):
            for node in (stays, leaves):
                node.call("CLUSTER", "SETSLOT", slot, "NODE", name)

        health = store.health()
        assert dict(health.facts)["servers"] == "1"
        assert "no claim is safe" not in health.guarantee
        store.close()


def test_a_cluster_client_of_the_user(cluster):
    client = redis.RedisCluster(host="127.0.0.1", port=cluster[0].port)
    with Guard(RedisStore(client=client)) as guard:
        assert guard.run("own", lambda: 1, key=uuid4().hex, payload=1).result == 1
    client.close()


async def test_an_async_cluster_client_of_the_user(cluster):
    client = redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster[0].port)
    async with AsyncGuard(AsyncRedisStore(client=client)) as guard:

        async def effect() -> int:
            return 1

        assert (await guard.run("own", effect, key=uuid4().hex, payload=1)).result == 1
    await client.aclose()


@pytest.mark.slow
@pytest.mark.skipif(not FULL, reason="seconds of a cluster's own failover: make proof")
def test_a_cluster_fails_over():
    """A master is killed, its replica takes over: the same store goes on, and says that something may be lost."""
    with redis_cluster(3, replicas=1) as nodes:
        store = RedisStore(cluster_url(nodes[1:]))
        held = store.carry_out(opening("kept"))
        source = next(node for node in nodes[:3] if raw_key(held) in node.call("KEYS", "*"))
        until(lambda: any(raw_key(held) in node.call("KEYS", "*") for node in nodes[3:]))
        source.stop(kill=True)
        for _ in range(20):
            try:
                settled = store.carry_out(settling(held))
                break
            except StoreUnavailable:
                continue
        assert there(settled).state is State.COMPLETED
        store.close()
