"""A server for each file of tests, and a store on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from samekey.stores.redis import RedisStore
from samekey.testing.servers import RedisServer, redis_server


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:  # from a wheel that the tests depend on: where it is missing, they fail
        yield running


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    ours = RedisStore(server.url())
    yield ours
    ours.close()
