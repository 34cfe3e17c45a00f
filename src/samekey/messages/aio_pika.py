"""RabbitMQ by aio-pika: a consumer that handles each message once. What each action becomes is in `_rabbit.py`.

    connection = await aio_pika.connect_robust("amqp://...")
    consumer = AioPikaConsumer(handler, connection, "orders", workers=16)
    await consumer.run()

Do not use `message.process()` beside it: it rejects with each exception, and each reject costs a life.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, DeliveryMode
from aiormq.exceptions import AMQPError, ChannelInvalidStateError

from samekey.core.errors import Misconfigured
from samekey.messages import _rabbit
from samekey.messages._ack import Action
from samekey.messages._message import Message
from samekey.messages.handler import AsyncHandler

_log = logging.getLogger("samekey.messages")

LOOK_SECONDS = 0.1
TROUBLE_SECONDS = 1.0
GRACE_SECONDS = 30.0
_GONE = (AMQPError, ChannelInvalidStateError, ConnectionError, RuntimeError)


class AioPikaConsumer:
    """Consumes one queue until `stop()`.

    workers           effects that run at once; as many messages are prefetched
    delayed_retry     the queue was declared with x-delayed-retry-type=all (RabbitMQ 4.3)
    parked, dead      queues for what is set aside, where the handler has park="broker" or dead="broker"
    consumer_timeout  the broker's own: after it a delivery is taken away, so a lease must be shorter
    """

    def __init__(
        self,
        handler: AsyncHandler,
        connection: AbstractConnection,
        queue: str,
        *,
        workers: int = 16,
        delayed_retry: bool = False,
        parked: str | None = None,
        dead: str | None = None,
        consumer_timeout: float = _rabbit.CONSUMER_TIMEOUT_SECONDS,
    ) -> None:
        if handler.lease_seconds >= consumer_timeout:
            raise Misconfigured(
                f"the lease ({handler.lease_seconds:.0f} s) must be shorter than the consumer timeout of RabbitMQ "
                f"({consumer_timeout:.0f} s): a delivery cannot be extended there"
            )
        self._handler, self._connection, self._queue = handler, connection, queue
        self._workers, self._delayed_retry = workers, delayed_retry
        self._places = {"park": parked or f"{queue}.parked", "dead": dead or f"{queue}.dead"}
        self._stopped, self._grace = asyncio.Event(), GRACE_SECONDS
        self._down = self._renew = False
        self._channel: Any = None
        self._publishing: Any = None
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Finish what runs within so many seconds, give back the rest, and let `run` return."""
        self._grace = grace
        self._stopped.set()

    async def run(self) -> None:
        """Consume until `stop()`; a lost channel is made again."""
        while not self._stopped.is_set():
            try:
                await self._consume()
            except _GONE as error:
                _log.warning("the connection to RabbitMQ was lost, and is made again: %s", type(error).__name__)
                await self._pause(TROUBLE_SECONDS)

    async def _consume(self) -> None:
        self._renew = False
        self._channel = channel = await self._connection.channel(publisher_confirms=False)
        self._publishing = await self._connection.channel(publisher_confirms=True)
        try:
            await channel.set_qos(prefetch_count=self._workers)
            queue = await channel.get_queue(self._queue, ensure=False)
            tag = await queue.consume(self._delivered)
            while not self._stopped.is_set() and not self._renew and not channel.is_closed:
                await self._pause(LOOK_SECONDS)
                if self._down:
                    await queue.cancel(tag)
                    while not self._stopped.is_set() and not await self._handler.well():
                        await self._pause(TROUBLE_SECONDS)
                    self._down, self._renew = False, True
            if self._stopped.is_set():
                await queue.cancel(tag)
                await self._finish()
            elif self._tasks:
                # What was left without an answer goes back to the queue with its channel; what runs ends first.
                await asyncio.wait(self._tasks)
        finally:
            for one in (channel, self._publishing):
                if not one.is_closed:
                    await one.close()

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            pass

    async def _delivered(self, delivered: AbstractIncomingMessage) -> None:
        task = asyncio.ensure_future(self._work(self._channel, delivered))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self, channel: AbstractChannel, delivered: AbstractIncomingMessage) -> None:
        names = ("message_id", "correlation_id", "content_type", "reply_to", "type", "app_id")
        named = {name: getattr(delivered, name) for name in names}
        message = _rabbit.message_of(delivered.body, delivered.headers, self._queue, named)
        message.raw = (channel, delivered)
        try:
            action = await self._handler.process(message)
        except Exception as error:
            _log.error("a message of %s was left without an answer", self._queue, exc_info=error)
            action = Action("silent", stop=True)
        await self._answer(message, action)

    async def _answer(self, message: Message, action: Action) -> None:
        """Write first, acknowledge second."""
        channel, delivered = message.raw
        self._down |= action.stop
        try:
            action = await self._written(message, action)
        except Exception as error:
            _log.warning("a message of %s could not be published again, and is given back: %r", self._queue, error)
            action = Action("later")
        if channel is not self._channel or channel.is_closed:
            return  # the broker has given the message to another consumer
        try:
            match action.verb:
                case "ack" | "park" | "dead":
                    await delivered.ack()
                case "later" if action.counted:
                    await delivered.reject(requeue=True)
                case "later":
                    await delivered.nack(requeue=True)
                case "silent":
                    self._renew = True
        except _GONE:
            self._renew = True

    async def _written(self, message: Message, action: Action) -> Action:
        delivered = message.raw[1]
        if action.verb == "later" and not _rabbit.goes_back(action, delayed_retry=self._delayed_retry):
            name, arguments = _rabbit.hold_queue(self._queue, _rabbit.hold_ms(action.seconds))
            await self._publish(name, arguments, delivered, _rabbit.again(delivered.headers, message, action))
            return Action("ack", stop=action.stop)
        place = {"park": self._handler.parks_in, "dead": self._handler.dead_in}.get(action.verb)
        if place == "broker":
            headers = _rabbit.aside(delivered.headers, message, action)
            await self._publish(self._places[action.verb], {}, delivered, headers)
        return action

    async def _publish(self, queue: str, arguments: Any, delivered: Any, headers: dict[str, Any]) -> None:
        await self._publishing.declare_queue(queue, durable=True, arguments=arguments)
        names = (
            "content_type",
            "content_encoding",
            "priority",
            "correlation_id",
            "reply_to",
            "message_id",
            "timestamp",
        )
        kept = {name: getattr(delivered, name) for name in (*names, "timestamp", "app_id")}
        again = aio_pika.Message(delivered.body, headers=headers, delivery_mode=DeliveryMode.PERSISTENT, **kept)
        await self._publishing.default_exchange.publish(again, routing_key=queue, mandatory=True)

    async def _finish(self) -> None:
        """Take no more, finish what runs, and give back the rest: it goes back when the channel is closed."""
        self._handler.stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace)
        for message, action in await self._handler.cut():
            await self._answer(message, action)
