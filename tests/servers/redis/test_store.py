"""The Redis store keeps the contract, in both colours: on Valkey, on newer and older Redis, on a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from samekey.stores.redis import AsyncRedisStore, RedisStore
from samekey.testing.servers import redis_server
from samekey.testing.stores import AsyncStoreSuite, StoreSuite
from tests.servers.redis.topologies import redis_cluster

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
ALL = [pytest.param(one, marks=pytest.mark.variant) for one in ("valkey-9", "redis-7", "redis-6", "cluster")]


@pytest.fixture(scope="module", params=ALL if FULL else ["redis-7"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """One server for a suite: no scenario needs an empty one."""
    yield from running(request)


@pytest.fixture(scope="module", params=ALL if FULL else ["valkey-9"])
def async_address(request: pytest.FixtureRequest) -> Iterator[str]:
    yield from running(request)


def running(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cluster":
        with redis_cluster(3) as nodes:
            yield f"redis://127.0.0.1:{nodes[0].port}?cluster=1"
        return
    with redis_server(request.param) as server:
        yield server.url()


class TestRedisStore(StoreSuite):
    expires_by_itself = True

    @pytest.fixture(autouse=True)
    def _here(self, address: str):
        self.url = address

    def make_store(self):
        return RedisStore(self.url)

    def address(self):
        return ("samekey.stores.redis:RedisStore", self.url)


class TestAsyncRedisStore(AsyncStoreSuite):
    expires_by_itself = True

    @pytest.fixture(autouse=True)
    def _here(self, async_address: str):
        self.url = async_address

    async def make_store(self):
        return AsyncRedisStore(self.url)

    def address(self):
        return ("samekey.stores.redis:AsyncRedisStore", self.url)
