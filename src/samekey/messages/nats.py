"""NATS JetStream by nats-py: a pull consumer that handles each message once.

    consumer = NatsConsumer(handler, await nats.connect(), stream="ORDERS", subject="orders.*", durable="billing")
    await consumer.run()

| action         | JetStream                                                                                         |
|----------------|---------------------------------------------------------------------------------------------------|
| ack            | ack, and waits for the server's answer                                                            |
| later, free    | every delivery counts there, so the message is held (+WPI) and looked at again by this consumer   |
| later, counted | -NAK with the delay                                                                               |
| given back     | -NAK; it counts                                                                                   |
| park, dead     | written first (to the store, or published), then +TERM with the reason                            |
| silent         | nothing: the server delivers it again when AckWait is over                                        |

+WPI is answered for old deliveries too, and extends the new holder's AckWait. So it is sent only right after our own
lease was renewed, and its answer proves nothing: the record decides.
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig
from nats.js.errors import NotFoundError

from samekey.core.errors import Misconfigured
from samekey.messages._ack import Action
from samekey.messages._message import Message
from samekey.messages.handler import AsyncHandler

_log = logging.getLogger("samekey.messages")

TRIES = "samekey-tries"
FETCH_SECONDS = 0.5
ANSWER_SECONDS = 5.0
TROUBLE_SECONDS = 1.0
GRACE_SECONDS = 30.0


class NatsConsumer:
    """Consumes one durable consumer of a stream until `stop()`; the consumer is made if there is none.

    workers        effects that run at once; max_ack_pending of the durable consumer is four times that
    ack_wait       seconds after which an unanswered delivery comes again; the lease if not given
    parked, dead   subjects for what is set aside, where the handler has park="broker" or dead="broker"
    """

    def __init__(
        self,
        handler: AsyncHandler,
        client: Client,
        *,
        stream: str,
        subject: str,
        durable: str,
        workers: int = 4,
        ack_wait: float | None = None,
        parked: str | None = None,
        dead: str | None = None,
    ) -> None:
        self._ack_wait = handler.lease_seconds * 4 / 3 if ack_wait is None else ack_wait
        if self._ack_wait < handler.lease_seconds:
            raise Misconfigured(
                f"ack_wait ({self._ack_wait:.0f} s) must not be shorter than the lease ({handler.lease_seconds:.0f} s)"
            )
        self._handler, self._client = handler, client
        self._stream, self._subject, self._durable, self._workers = stream, subject, durable, workers
        self._places = {"park": parked or f"{stream}.parked", "dead": dead or f"{stream}.dead"}
        self._stopped, self._down = asyncio.Event(), False
        self._grace = GRACE_SECONDS
        self._slots = asyncio.Semaphore(workers)
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self, grace: float = GRACE_SECONDS) -> None:
        """Finish what runs within so many seconds, give back the rest, and let `run` return."""
        self._grace = grace
        self._stopped.set()

    async def run(self) -> None:
        """Consume until `stop()`."""
        stream = self._client.jetstream()
        config = ConsumerConfig(
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._ack_wait,
            max_deliver=-1,  # the handler counts: JetStream would keep the message and deliver it to no consumer
            max_ack_pending=self._workers * 4,
        )
        subscription = await stream.pull_subscribe(self._subject, self._durable, stream=self._stream, config=config)
        advisory = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{self._stream}.{self._durable}"
        advised = await self._client.subscribe(advisory, cb=self._advised)
        try:
            while not self._stopped.is_set():
                if self._down and not await self._well():
                    continue
                if not await self._slot():
                    continue
                delivered = await self._fetched(subscription)
                if delivered is None:
                    self._slots.release()
                    continue
                task = asyncio.ensure_future(self._work(delivered))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            await self._finish()
        finally:
            await advised.unsubscribe()
            await subscription.unsubscribe()

    async def _well(self) -> bool:
        if await self._handler.well():
            self._down = False
            return True
        await asyncio.wait([asyncio.ensure_future(self._stopped.wait())], timeout=TROUBLE_SECONDS)
        return False

    async def _slot(self) -> bool:
        """Whether an effect may begin; looks up from time to time, so that a stop is noticed."""
        try:
            await asyncio.wait_for(self._slots.acquire(), FETCH_SECONDS)
        except TimeoutError:
            return False
        return True

    async def _fetched(self, subscription: Any) -> Any:
        try:
            (delivered,) = await subscription.fetch(1, timeout=FETCH_SECONDS)
            return delivered
        except (TimeoutError, NatsError) as error:
            if not isinstance(error, TimeoutError):
                _log.warning("NATS did not answer, and is asked again: %s", type(error).__name__)
                await asyncio.sleep(FETCH_SECONDS)
            return None

    async def _work(self, delivered: Any) -> None:
        """One delivery. While it is held for another holder of its key it takes no slot."""
        headers = {name: str(value) for name, value in (delivered.headers or {}).items()}
        tries = delivered.metadata.num_delivered + _number(headers.get(TRIES))
        message = Message(delivered.data, headers, delivered.subject, tries, delivered.reply, delivered)

        async def extend() -> None:
            await self._client.request(delivered.reply, b"+WPI", timeout=ANSWER_SECONDS)

        try:
            while True:
                try:
                    action = await self._handler.process(message, extend=extend)
                except Exception as error:
                    _log.error("a message of %s was left without an answer", self._stream, exc_info=error)
                    action = Action("silent", stop=True)
                self._down |= action.stop
                if action.verb != "later" or action.counted or self._stopped.is_set():
                    break
                self._slots.release()
                try:
                    await self._hold(action.seconds, extend)
                finally:
                    await self._slots.acquire()
        finally:
            self._slots.release()
        await self._answer(message, action)

    async def _hold(self, seconds: float, extend: Any) -> None:
        """Keep the delivery for so long, at no cost: +WPI does not count."""
        left = max(seconds, 0.01)
        while left > 0 and not self._stopped.is_set():
            try:
                await extend()
            except NatsError:
                return  # the consumer is gone: the delivery, too
            part = min(left, self._ack_wait / 3, FETCH_SECONDS)
            await asyncio.sleep(part)
            left -= part

    async def _answer(self, message: Message, action: Action) -> None:
        delivered = message.raw
        try:
            match action.verb:
                case "ack":
                    await delivered.ack_sync(timeout=ANSWER_SECONDS)
                case "later":
                    await delivered.nak(delay=action.seconds or None)
                case "park" | "dead":
                    place = self._handler.parks_in if action.verb == "park" else self._handler.dead_in
                    if place == "broker":
                        headers = {**message.headers, "samekey-reason": action.reason, "samekey-origin": message.source}
                        await self._client.jetstream().publish(self._places[action.verb], message.body, headers=headers)
                    reason = action.reason.replace("\n", " ").encode()
                    await self._client.request(delivered.reply, b"+TERM " + reason, timeout=ANSWER_SECONDS)
        except (TimeoutError, NatsError) as error:
            # The message is not lost: it comes again when AckWait is over.
            _log.warning("NATS did not take the answer %s for a message: %s", action.verb, type(error).__name__)

    async def _advised(self, advisory: Any) -> None:
        """A durable consumer of another making has a max_deliver, and reached it: the message is parked."""
        facts = json.loads(advisory.data)
        try:
            kept = await self._client.jetstream().get_msg(self._stream, int(facts["stream_seq"]))
        except NotFoundError:
            return
        headers = {name: str(value) for name, value in (kept.headers or {}).items()}
        message = Message(kept.data or b"", headers, kept.subject or self._subject, int(facts["deliveries"]))
        reason = f"delivered {facts['deliveries']} times, and no more"
        await self._handler.keep(message, Action("park", kind="max deliveries", reason=reason), None)

    async def _finish(self) -> None:
        self._handler.stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._grace)
        for message, action in await self._handler.cut():
            await self._answer(message, action)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=ANSWER_SECONDS)


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() else 0
