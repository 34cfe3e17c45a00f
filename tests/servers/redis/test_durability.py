"""Servers that forget, restart, are full, or are set up so that they may lose a claim."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from samekey import Absent, Asks, Guard, Keyed, Repeatable
from samekey.core.commands import Read
from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.key import make_key
from samekey.core.ports import Query
from samekey.core.record import Record
from samekey.core.states import State
from samekey.stores.redis import RedisStore
from samekey.testing.servers import RedisServer, flavours, redis_server
from tests.servers.proxy import FaultProxy
from tests.servers.redis.helpers import opening, settling, there
from tests.servers.redis.topologies import replica, until


@pytest.fixture
def wiped() -> Iterator[RedisServer]:
    """A server for one test, which may leave it wiped."""
    with redis_server() as running:
        yield running


def test_a_wiped_server_is_noticed_at_the_next_claim(wiped):
    """FLUSHALL under our hands: what is claimed since says so, for everybody who still knew the old store."""
    server = wiped
    knew, knew_too = RedisStore(server.url()), RedisStore(server.url())
    assert not knew.carry_out(opening()).after_loss
    assert not knew_too.carry_out(opening()).after_loss

    server.call("FLUSHALL")

    claimed = [knew.carry_out(opening(str(number))) for number in range(50)]
    assert all(one.after_loss for one in claimed)
    assert knew_too.carry_out(opening()).after_loss
    assert any("lost its memory" in warning for warning in knew.health().warnings)
    newcomer = RedisStore(server.url())
    assert there(newcomer.carry_out(Read(claimed[0].key))).after_loss
    for one in (knew, knew_too, newcomer):
        one.close()


def test_an_operation_with_a_lookup_asks_after_a_loss(wiped):
    """Asks asks before it runs, because the claim that is gone may have been its own."""
    server = wiped
    asked: list[str] = []

    def lookup(record: Record) -> Absent:
        asked.append(record.key.text)
        return Absent()

    guard = Guard(server.url())
    boundary = Asks(lookup, believe_absent_after=0.001)
    guard.run("own", lambda: 1, key="before", payload=1, boundary=boundary)
    assert asked == []

    server.call("FLUSHALL")
    guard.run("own", lambda: 2, key="after", payload=1, boundary=boundary)

    assert asked == ["after"]
    guard.close()


def test_a_restart_may_have_forgotten_something():
    """Killed with everysec it keeps its records, but the last ones may be missing."""
    with redis_server() as server:
        store = RedisStore(server.url())
        held = store.carry_out(opening("kept"))
        before = store.health().incarnation
        until(lambda: server.info("aof_buffer_length") == "0")  # while the disk is busy, Redis holds it back
        server.restart(kill=True)

        assert there(store.carry_out(Read(held.key))).fence == held.fence
        assert store.health().incarnation != before
        assert store.carry_out(opening("new")).after_loss
        assert there(store.carry_out(settling(held))).state is State.COMPLETED
        store.close()


def test_a_restart_of_a_server_that_syncs_always_forgets_nothing():
    with redis_server(appendfsync="always") as server:
        store = RedisStore(server.url())
        held = store.carry_out(opening("kept"))
        server.restart(kill=True)

        assert there(store.carry_out(Read(held.key))).fence == held.fence
        assert not store.carry_out(opening("new")).after_loss
        assert "of its machine" in store.health().guarantee
        store.close()


def test_commands_wait_for_a_server_that_restarts():
    """A caller whose reply was lost sends its command again until the server is back."""
    with redis_server() as server:
        store = RedisStore(server.url())
        held = store.carry_out(opening())
        with FaultProxy(server.port) as proxy, ThreadPoolExecutor(1) as pool:
            through = RedisStore(f"redis://127.0.0.1:{proxy.port}")
            through.carry_out(Read(held.key))
            proxy.hold()
            settled = pool.submit(through.carry_out, settling(held))
            until(lambda: through._process.queue._leader is not None)
            until(lambda: server.info("aof_buffer_length") == "0")
            server.stop(kill=True)
            proxy.release()
            server.start()

            assert there(settled.result()).state is State.COMPLETED
            through.close()
        store.close()


@pytest.mark.parametrize(
    "settings",
    [
        {"appendonly": "no"},
        {"maxmemory": "100mb", "maxmemory_policy": "allkeys-lru"},
        {"maxmemory": "100mb", "maxmemory_policy": "volatile-ttl"},
    ],
    ids=["no-aof", "allkeys-lru", "volatile-ttl"],
)
def test_a_server_that_forgets_is_refused_for_what_must_not_run_twice(settings):
    """Opaque and Asks are refused, before anything is claimed; what may run again, or who says so, is not."""
    with redis_server(**settings) as server:
        with Guard(server.url()) as guard:
            with pytest.raises(Misconfigured, match="allow_volatile"):
                guard.run("own", lambda: 1, key="opaque", payload=1)
            with pytest.raises(Misconfigured, match="Keyed, Repeatable, Atomic"):
                guard.run("own", lambda: 1, key="asks", payload=1, boundary=Asks(lambda record: Absent()))
            assert server.call("KEYS", "samekey:*:????????????????????????????????") == []
            assert guard.run("own", lambda: 1, key="keyed", payload=1, boundary=Keyed()).result == 1
            assert guard.run("own", lambda: 1, key="repeatable", payload=1, boundary=Repeatable()).result == 1
        with Guard(server.url() + "?allow_volatile=1") as guard:
            assert guard.run("own", lambda: 1, key="allowed", payload=1).result == 1
        with Guard(RedisStore(server.url(), allow_volatile=True)) as guard:
            assert guard.run("own", lambda: 1, key="allowed too", payload=1).result == 1
        store = RedisStore(server.url())
        assert "no claim is safe here" in store.health().guarantee
        store.close()


def test_a_full_server_writes_nothing():
    """Out of memory without eviction: the claim fails as a whole, and what is there stays."""
    with redis_server(maxmemory="100mb", maxmemory_policy="noeviction") as server:
        store = RedisStore(server.url())
        held = store.carry_out(opening("kept"))
        server.call("CONFIG", "SET", "maxmemory", "1")

        with pytest.raises(StoreUnavailable, match="memory"):
            store.carry_out(opening("refused"))

        assert store.carry_out(Read(make_key("own", "refused"))) is None
        server.call("CONFIG", "SET", "maxmemory", "100mb")
        assert there(store.carry_out(settling(held))).state is State.COMPLETED
        assert list(store.list(Query(states=(State.STARTED,)))) == []
        store.close()


@pytest.mark.parametrize("flavour", sorted(flavours()))
def test_a_script_without_memory_is_reported_as_full_memory(flavour):
    with redis_server(flavour, maxmemory="100mb", maxmemory_policy="noeviction") as server:
        store = RedisStore(server.url())
        store.carry_out(opening())
        server.call("CONFIG", "SET", "maxmemory", "1")

        with pytest.raises(StoreUnavailable, match="memory"):
            store.carry_out(opening())
        store.close()


@pytest.mark.parametrize("loss", ["failover", "restart", "wipe"])
def test_a_redis_that_lost_a_claim_charges_twice(loss):
    """The window of a Redis that is the only store: the process that claimed is gone, and so is the claim."""
    ran: list[str] = []

    def charge(address: str) -> None:
        with Guard(address) as guard:  # a process that starts now, and has nothing to compare with
            guard.run("window", lambda: ran.append(address), key="o-1", payload={})

    volatile = {"appendonly": "no"} if loss == "restart" else {}
    with redis_server(**volatile) as master, replica(master) as copy:
        address = f"{master.url()}?allow_volatile=1" if volatile else master.url()
        if loss == "failover":
            copy.call("REPLICAOF", "NO", "ONE")  # it hears nothing from here on, and is chosen all the same
        charge(address)
        if loss == "restart":
            master.restart()
        elif loss == "wipe":
            master.call("FLUSHALL")
        charge(copy.url() if loss == "failover" else address)

    assert len(ran) == 2
