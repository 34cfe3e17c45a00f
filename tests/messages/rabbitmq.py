"""RabbitMQ for the suite: a queue of its own for each test, and the consumers of both libraries."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import uuid4

import pika

from samekey.testing.messages import Broker, Task
from samekey.testing.servers import RabbitMQ

QUORUM = {"x-queue-type": "quorum"}
DELAYED = {"x-delayed-retry-type": "all", "x-delayed-retry-min": 100, "x-delayed-retry-max": 400}


class RabbitBroker(Broker):
    """One queue; messages in its hold queues count as not forgotten."""

    consumer = "tests.messages.rabbitmq:consume"
    preload = ("samekey.messages.pika", "tests.messages.rabbitmq")
    delayed_retry = False
    settle_seconds = 0.8  # a message that leaves a hold queue is in no queue for a moment

    def __init__(
        self, server: RabbitMQ, arguments: dict[str, Any] | None = None, *, delayed_retry: bool = False
    ) -> None:
        self.server, self.delayed_retry = server, delayed_retry
        self.queue = f"q-{uuid4().hex[:12]}"
        self._connection = pika.BlockingConnection(pika.URLParameters(f"{server.url}?heartbeat=0"))
        self._channel = self._connection.channel()
        self._channel.confirm_delivery()
        self._channel.queue_declare(self.queue, durable=True, arguments=arguments or {})
        self._published = 0

    def address(self) -> dict[str, Any]:
        return {"url": f"{self.server.url}?heartbeat=4", "queue": self.queue, "delayed_retry": self.delayed_retry}

    def publish(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        properties = pika.BasicProperties(headers=dict(headers or {}), delivery_mode=2, message_id=uuid4().hex)
        self._channel.basic_publish("", self.queue, body, properties)

    def depth(self) -> int:
        return self.server.messages(self.queue)

    def close(self) -> None:
        if self._connection.is_open:
            self._channel.queue_delete(self.queue)
            self._connection.close()


def consume(handler: Any, address: dict[str, Any], stop: threading.Event, task: Task) -> None:
    from samekey.messages.pika import PikaConsumer

    parameters = pika.URLParameters(address["url"])
    consumer = PikaConsumer(
        handler, parameters, address["queue"], workers=task.threads, delayed_retry=address["delayed_retry"]
    )

    def wait() -> None:
        stop.wait()
        consumer.stop(task.grace)

    threading.Thread(target=wait, daemon=True).start()
    consumer.run()


class AioPikaBroker(RabbitBroker):
    consumer = "tests.messages.rabbitmq:aconsume"
    asynchronous = True
    preload = ("samekey.messages.aio_pika", "tests.messages.rabbitmq")


async def aconsume(handler: Any, address: dict[str, Any], stop: asyncio.Event, task: Task) -> None:
    import aio_pika

    from samekey.messages.aio_pika import AioPikaConsumer

    connection = await aio_pika.connect(address["url"])
    consumer = AioPikaConsumer(
        handler, connection, address["queue"], workers=task.threads, delayed_retry=address["delayed_retry"]
    )
    running = asyncio.ensure_future(consumer.run())
    await asyncio.wait([running, asyncio.ensure_future(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
    consumer.stop(task.grace)
    await running
    await connection.close()
