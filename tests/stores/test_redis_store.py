"""The Redis store keeps the contract, in both colours: on Valkey, and on the oldest and a newer Redis."""

from __future__ import annotations

import pytest

from samekey.stores.redis import AsyncRedisStore, RedisStore
from samekey.testing.redis_servers import redis_server
from samekey.testing.servers import NoServer
from samekey.testing.store_suite import AsyncStoreSuite, StoreSuite


@pytest.fixture(scope="module", params=["valkey-9", "redis-7", "redis-6"])
def address(request: pytest.FixtureRequest):
    """One server for both suites: no scenario needs an empty one."""
    try:
        with redis_server(request.param) as server:
            yield server.url()
    except NoServer as missing:
        pytest.skip(str(missing))


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
    def _here(self, address: str):
        self.url = address

    async def make_store(self):
        return AsyncRedisStore(self.url)

    def address(self):
        return ("samekey.stores.redis:AsyncRedisStore", self.url)
