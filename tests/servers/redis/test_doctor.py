"""samekey doctor names what is wrong with a Redis server."""

from __future__ import annotations

import pytest

from tests.servers.doctor import examined
from tests.servers.redis.topologies import replica

FAULTS = {
    "evicts records": (
        {"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"},
        "it forgets records when its memory is full (maxmemory-policy allkeys-lru)",
    ),
    "evicts only what has a TTL": (
        {"maxmemory": "100mb", "maxmemory-policy": "volatile-ttl"},
        "it forgets records when its memory is full (maxmemory-policy volatile-ttl)",
    ),
    "no persistence": ({"appendonly": "no"}, "a restart forgets the claims since its last snapshot, or all of them"),
    "no fsync": ({"appendfsync": "no"}, "appendfsync is no: a power loss may forget half a minute of claims"),
}
SOUND = {"maxmemory": "0", "maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "everysec"}


@pytest.fixture
def set_to(server):
    def change(settings):
        for name, value in settings.items():
            server.call("CONFIG", "SET", name, value)

    yield change
    change(SOUND)


def test_a_sound_server_is_fine(server):
    assert examined(server.url()) == (0, "")


@pytest.mark.parametrize("fault", FAULTS)
def test_it_names_each_fault(server, set_to, fault):
    settings, sentence = FAULTS[fault]
    set_to(settings)
    code, printed = examined(server.url())

    assert code == 1
    assert f"found: {sentence}" in printed


def test_replicas_that_are_not_there(server):
    code, printed = examined(f"{server.url()}?wait_replicas=1")

    assert code == 1
    assert "found: wait_replicas=1, but 0 replica(s) follow: nothing can be claimed" in printed


def test_the_address_of_a_replica_and_a_master_that_waits_for_none(server):
    with replica(server) as copy:
        master, at_master = examined(server.url())
        code, printed = examined(copy.url())

    assert (master, code) == (1, 3)
    assert "found: it has replicas: a failover may forget the last claims" in at_master
    assert "is a replica: claims go to the master only" in printed
