"""Redis streams on a real Redis 7."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis

from samekey.messages.redis_streams import RedisStreamsConsumer
from samekey.testing.messages import Broker, MessageAdapterSuite, Task
from samekey.testing.servers import RedisServer, redis_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server("redis-7") as running:
        yield running


class StreamBroker(Broker):
    consumer = "tests.messages.test_redis_streams:consume"
    preload = ("samekey.messages.redis_streams",)
    timer_seconds = 4.0

    def __init__(self, server: RedisServer) -> None:
        self._url, self.stream = server.url(), f"s-{uuid4().hex[:12]}"
        self._redis = redis.Redis.from_url(self._url)
        self._redis.xgroup_create(self.stream, "suite", id="0", mkstream=True)

    def address(self) -> dict[str, Any]:
        return {"url": self._url, "stream": self.stream, "min_idle": None}

    def publish(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        fields: Any = {"body": body, **(headers or {})}
        self._redis.xadd(self.stream, fields)

    def depth(self) -> int:
        (group,) = self._redis.xinfo_groups(self.stream)
        return int(group["pending"]) + int(group["lag"] or 0)

    def close(self) -> None:
        self._redis.delete(self.stream)
        self._redis.close()


def consume(handler: Any, address: dict[str, Any], stop: threading.Event, task: Task) -> None:
    client = redis.Redis.from_url(address["url"])
    consumer = RedisStreamsConsumer(
        handler, client, address["stream"], "suite", consumer=f"c-{os.getpid()}", workers=task.threads
    )

    def wait() -> None:
        stop.wait()
        consumer.stop(task.grace)

    threading.Thread(target=wait, daemon=True).start()
    consumer.run()


@pytest.mark.variant
class TestRedisStreams(MessageAdapterSuite):
    @pytest.fixture(autouse=True)
    def _server(self, server: RedisServer) -> None:
        self.server = server

    def make_broker(self) -> Broker:
        return StreamBroker(self.server)
