"""RabbitMQ by pika: a consumer that handles each message once. What each action becomes is in `_rabbit.py`.

    consumer = PikaConsumer(handler, pika.URLParameters("amqp://..."), "orders", workers=4)
    signal.signal(signal.SIGTERM, lambda *_: consumer.stop())
    consumer.run()

Effects run in threads, so the connection answers heartbeats whatever they take. Declare the queue yourself: a quorum
queue with a delivery limit and a dead-letter exchange is the safe choice.
"""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from typing import Any

import pika
from pika.exceptions import AMQPError

from samekey.core.errors import Misconfigured
from samekey.messages import _rabbit
from samekey.messages._ack import Action
from samekey.messages._message import Message
from samekey.messages._threads import Threads
from samekey.messages.handler import Handler

_log = logging.getLogger("samekey.messages")

LOOK_SECONDS = 0.1  # how soon a stop is noticed
RECONNECT_SECONDS = 1.0
GRACE_SECONDS = 30.0


class PikaConsumer:
    """Consumes one queue until `stop()`.

    workers           effects that run at once; as many messages are prefetched
    delayed_retry     the queue was declared with x-delayed-retry-type=all (RabbitMQ 4.3)
    parked, dead      queues for what is set aside, where the handler has park="broker" or dead="broker"
    consumer_timeout  the broker's own: after it a delivery is taken away, so a lease must be shorter
    """

    def __init__(
        self,
        handler: Handler,
        parameters: pika.connection.Parameters,
        queue: str,
        *,
        workers: int = 4,
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
        self._handler, self._parameters, self._queue = handler, parameters, queue
        self._workers, self._delayed_retry = workers, delayed_retry
        self._places = {"park": parked or f"{queue}.parked", "dead": dead or f"{queue}.dead"}
        self._publisher = _Publisher(parameters)
        self._stop = threading.Event()
        self._grace = GRACE_SECONDS
        self._down = self._renew = False
        self._at_work = 0  # deliveries of this channel whose action was not carried out yet
        self._connection: Any = None
        self._channel: Any = None

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Finish what runs within so many seconds, give back the rest, and let `run` return. Safe in a signal."""
        self._grace = grace
        self._stop.set()

    def run(self) -> None:
        """Consume until `stop()`; a lost connection is made again."""
        pool = Threads(self._workers, "samekey-pika")
        try:
            while not self._stop.is_set():
                try:
                    self._consume(pool)
                except AMQPError as error:
                    _log.warning("the connection to RabbitMQ was lost, and is made again: %s", type(error).__name__)
                    self._stop.wait(RECONNECT_SECONDS)
        finally:
            pool.close()
            self._publisher.close()

    def _consume(self, pool: Threads) -> None:
        self._connection = connection = pika.BlockingConnection(self._parameters)
        try:
            self._open(pool)
            while not self._stop.is_set():
                connection.process_data_events(time_limit=LOOK_SECONDS)
                if self._renew and not self._at_work:
                    # What was left without an answer goes back to the queue with its channel.
                    self._channel.close()
                    self._open(pool)
                if self._down and self._handler.well():
                    self._down = False
                    self._renew = True
            self._finish()
        finally:
            if connection.is_open:
                connection.close()

    def _open(self, pool: Threads) -> None:
        self._renew, self._at_work = False, 0
        self._channel = channel = self._connection.channel()
        channel.basic_qos(prefetch_count=self._workers)
        channel.add_on_cancel_callback(lambda _: self._cancelled(channel))
        channel.basic_consume(self._queue, partial(self._delivered, pool))

    def _delivered(self, pool: Threads, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        names = ("message_id", "correlation_id", "content_type", "reply_to", "type", "app_id")
        named = {name: getattr(properties, name) for name in names}
        message = _rabbit.message_of(body, properties.headers, self._queue, named)
        message.raw = (channel, method.delivery_tag, properties)
        self._at_work += 1
        pool.submit(partial(self._work, message))

    def _work(self, message: Message) -> None:
        """In a thread of the pool."""
        try:
            action = self._handler.process(message)
        except BaseException as error:
            _log.error("a message of %s was left without an answer", self._queue, exc_info=error)
            action = Action("silent", stop=True)
        self._answer(message, action)

    def _answer(self, message: Message, action: Action) -> None:
        """Write first, in this thread; then the thread of the connection acknowledges."""
        try:
            action = self._written(message, action)
        except Exception as error:
            _log.warning("a message of %s could not be published again, and is given back: %r", self._queue, error)
            action = Action("later", stop=action.stop)
        connection = self._connection
        try:
            connection.add_callback_threadsafe(partial(self._translate, message, action))
        except AMQPError:
            pass  # the connection is gone, and the broker gives the message to another consumer

    def _written(self, message: Message, action: Action) -> Action:
        properties = message.raw[2]
        if action.verb == "later" and not _rabbit.goes_back(action, delayed_retry=self._delayed_retry):
            delay = _rabbit.hold_ms(action.seconds)
            name, arguments = _rabbit.hold_queue(self._queue, delay)
            headers = _rabbit.again(properties.headers, message, action)
            self._publisher.publish(name, arguments, message.body, properties, headers)
            return Action("ack", stop=action.stop)
        place = {"park": self._handler.parks_in, "dead": self._handler.dead_in}.get(action.verb)
        if place == "broker":
            headers = _rabbit.aside(properties.headers, message, action)
            self._publisher.publish(self._places[action.verb], {}, message.body, properties, headers)
        return action

    def _translate(self, message: Message, action: Action) -> None:
        """In the thread of the connection."""
        channel, tag, _ = message.raw
        if channel is not self._channel:
            return  # of a channel that is gone: the broker has given the message to another consumer
        self._at_work -= 1
        if action.stop and not self._down:
            self._down = True
            for consumer in channel.consumer_tags:
                channel.basic_cancel(consumer)
        if not channel.is_open:
            return
        match action.verb:
            case "ack" | "park" | "dead":
                channel.basic_ack(tag)
            case "later" if action.counted:
                channel.basic_reject(tag, requeue=True)
            case "later":
                channel.basic_nack(tag, requeue=True)
            case "silent":
                self._renew = True

    def _cancelled(self, channel: Any) -> None:
        """The broker took this consumer's deliveries away: this consumer answers for them no more."""
        if channel is self._channel:
            _log.warning("RabbitMQ cancelled the consumer of %s: it is made again", self._queue)
            self._at_work, self._renew = 0, True

    def _finish(self) -> None:
        """Take no more, finish what runs, and give back the rest: it goes back when the channel is closed."""
        channel = self._channel
        self._handler.stopping = True
        for consumer in channel.consumer_tags:
            channel.basic_cancel(consumer)
        deadline = time.monotonic() + self._grace
        while self._at_work and time.monotonic() < deadline:
            self._connection.process_data_events(time_limit=LOOK_SECONDS)
        for message, action in self._handler.cut():
            self._answer(message, action)
        self._connection.process_data_events(time_limit=0)


class _Publisher:
    """Publishes with confirms, over a connection of its own; threads take turns."""

    def __init__(self, parameters: Any) -> None:
        self._parameters = parameters
        self._mutex = threading.Lock()
        self._connection: Any = None
        self._channel: Any = None

    def publish(self, queue: str, arguments: dict[str, Any], body: bytes, properties: Any, headers: Any) -> None:
        """Declare the queue, and return when the broker has the message."""
        with self._mutex:
            for last in (False, True):
                try:
                    channel = self._open()
                    channel.queue_declare(queue, durable=True, arguments=arguments)
                    properties = pika.BasicProperties(**{**_named(properties), "headers": headers, "delivery_mode": 2})
                    channel.basic_publish("", queue, body, properties, mandatory=True)
                    return
                except AMQPError:
                    self._shut()
                    if last:
                        raise

    def close(self) -> None:
        with self._mutex:
            self._shut()

    def _open(self) -> Any:
        if self._channel is None or not self._channel.is_open:
            self._shut()
            self._connection = pika.BlockingConnection(self._parameters)
            self._channel = self._connection.channel()
            self._channel.confirm_delivery()
        return self._channel

    def _shut(self) -> None:
        connection, self._connection, self._channel = self._connection, None, None
        try:
            if connection is not None and connection.is_open:
                connection.close()
        except AMQPError:
            pass


def _named(properties: Any) -> dict[str, Any]:
    """The properties of a message that go along when it is published again; not its expiration."""
    names = ("content_type", "content_encoding", "priority", "correlation_id", "reply_to", "message_id", "timestamp")
    return {name: getattr(properties, name) for name in (*names, "type", "app_id")}
