"""JetStream on a real NATS server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import nats
import pytest

from samekey.messages.nats import NatsConsumer
from samekey.testing.messages import Broker, MessageAdapterSuite, Task
from samekey.testing.servers import NatsServer, nats_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with nats_server() as running:
        yield running


class JetStreamBroker(Broker):
    """A stream of its own for each test. Each call has a connection of its own: the suite is not async."""

    consumer = "tests.messages.test_nats:consume"
    asynchronous = True
    preload = ("samekey.messages.nats",)
    timer_seconds = 4.0
    settle_seconds = 0.5  # the counts of a consumer that was just made come late

    def __init__(self, server: NatsServer) -> None:
        self.url, self.name = server.url, f"s{uuid4().hex[:12]}"
        self._loop = asyncio.new_event_loop()
        self._client = self._loop.run_until_complete(nats.connect(self.url))
        self._stream: Any = self._client.jetstream()
        self._do(self._stream.add_stream(name=self.name, subjects=[f"{self.name}.in"]))

    def _do(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def address(self) -> dict[str, Any]:
        return {"url": self.url, "stream": self.name}

    def publish(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        self._do(self._stream.publish(f"{self.name}.in", body, headers=headers or None))

    def depth(self) -> int:
        try:
            info = self._do(self._stream.consumer_info(self.name, "suite"))
        except nats.js.errors.NotFoundError:
            return int(self._do(self._stream.stream_info(self.name)).state.messages)
        return int(info.num_pending or 0) + int(info.num_ack_pending or 0)

    def close(self) -> None:
        self._do(self._stream.delete_stream(self.name))
        self._do(self._client.close())
        self._loop.close()


async def consume(handler: Any, address: dict[str, Any], stop: asyncio.Event, task: Task) -> None:
    client = await nats.connect(address["url"])
    consumer = NatsConsumer(
        handler,
        client,
        stream=address["stream"],
        subject=f"{address['stream']}.in",
        durable="suite",
        workers=task.threads,
    )
    running = asyncio.ensure_future(consumer.run())
    await asyncio.wait([running, asyncio.ensure_future(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
    consumer.stop(task.grace)
    await running
    await client.close()


@pytest.mark.variant
class TestJetStream(MessageAdapterSuite):
    @pytest.fixture(autouse=True)
    def _server(self, server: NatsServer) -> None:
        self.server = server

    def make_broker(self) -> Broker:
        return JetStreamBroker(self.server)
