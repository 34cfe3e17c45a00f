"""Amazon SQS by boto3: a consumer that handles each message once.

    consumer = SqsConsumer(handler, boto3.client("sqs"), "https://sqs.../orders", workers=4)
    consumer.run()

| action         | SQS                                                                                               |
|----------------|---------------------------------------------------------------------------------------------------|
| ack            | DeleteMessage                                                                                     |
| later, free    | every receive counts, so the message is sent anew with DelaySeconds, then the old one is deleted  |
| later, counted | ChangeMessageVisibility                                                                           |
| given back     | ChangeMessageVisibility 0; it counts                                                              |
| park, dead     | written first (to the store, or SendMessage), then DeleteMessage                                  |
| silent         | nothing: the message is visible again when its timeout ends                                       |

A message can be invisible for 12 hours at most. Shortly before that the effect is fenced, and the message is parked.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

from samekey.messages._ack import Action
from samekey.messages._message import Message
from samekey.messages._polling import PollingConsumer
from samekey.messages._sqs import TRIES, message_of
from samekey.messages.handler import Handler

RECEIVE_MAX = 10  # of one call
WAIT_SECONDS = 1  # of one call, so that a stop is noticed
DELAY_MAX_SECONDS = 900
INVISIBLE_MAX_SECONDS = 12 * 3600
CEILING_SECONDS = INVISIBLE_MAX_SECONDS - 600


class SqsConsumer(PollingConsumer):
    """Consumes one queue until `stop()`.

    visibility    seconds after which an unanswered message is visible again; 4/3 of the lease if not given
    parked, dead  addresses of queues for what is set aside, where the handler has park="broker" or dead="broker"
    """

    def __init__(
        self,
        handler: Handler,
        client: Any,
        queue_url: str,
        *,
        workers: int = 4,
        visibility: float | None = None,
        parked: str | None = None,
        dead: str | None = None,
        clock: Any = time.monotonic,
    ) -> None:
        seconds = math.ceil(handler.lease_seconds * 4 / 3) if visibility is None else visibility
        super().__init__(handler, workers=workers, timer_seconds=seconds, source=queue_url.rpartition("/")[2])
        self._client, self._url, self._visibility = client, queue_url, math.ceil(seconds)
        self._places = {"park": parked, "dead": dead}
        self._clock = clock

    def poll(self, most: int) -> Sequence[Message]:
        received = self._client.receive_message(
            QueueUrl=self._url,
            MaxNumberOfMessages=min(most, RECEIVE_MAX),
            WaitTimeSeconds=WAIT_SECONDS,
            VisibilityTimeout=self._visibility,
            AttributeNames=["ApproximateReceiveCount", "MessageGroupId", "MessageDeduplicationId"],
            MessageAttributeNames=["All"],
        )
        return [message_of(one, self._source, self._clock()) for one in received.get("Messages", ())]

    def extend(self, message: Message) -> None:
        since = message.raw[1]
        left = CEILING_SECONDS - (self._clock() - since)
        if left <= 0:
            self._ceiling(message)
            return
        self._visible(message, min(self._visibility, left + 600))

    def translate(self, message: Message, action: Action) -> None:
        match action.verb:
            case "later" if action.counted or (action.seconds == 0 and not action.stop):
                self._visible(message, action.seconds)
                return
            case "later":
                self._send(self._url, message, {TRIES: str(message.tries - 1)}, min(action.seconds, DELAY_MAX_SECONDS))
            case "park" | "dead":
                place = self._places[action.verb]
                kept = self._handler.parks_in if action.verb == "park" else self._handler.dead_in
                if kept == "broker":
                    if place is None:
                        raise ValueError(f"give {action.verb}= the address of a queue")
                    self._send(place, message, {"samekey-reason": action.reason, "samekey-origin": self._source}, 0)
        self._client.delete_message(QueueUrl=self._url, ReceiptHandle=message.raw[0]["ReceiptHandle"])

    def _visible(self, message: Message, seconds: float) -> None:
        self._client.change_message_visibility(
            QueueUrl=self._url, ReceiptHandle=message.raw[0]["ReceiptHandle"], VisibilityTimeout=math.ceil(seconds)
        )

    def _send(self, url: str, message: Message, more: dict[str, str], delay: float) -> None:
        received = message.raw[0]
        own = {name: value for name, value in received.get("MessageAttributes", {}).items() if name not in more}
        texts = {name: {"DataType": "String", "StringValue": text or " "} for name, text in more.items()}
        group = received.get("Attributes", {}).get("MessageGroupId")
        fifo = {} if group is None else {"MessageGroupId": group, "MessageDeduplicationId": f"{message.id}-{delay}"}
        late = {} if group is not None else {"DelaySeconds": math.ceil(delay)}  # a FIFO queue has no delay of its own
        self._client.send_message(
            QueueUrl=url, MessageBody=received["Body"], MessageAttributes={**own, **texts}, **fifo, **late
        )

    def _ceiling(self, message: Message) -> None:
        """No message is invisible for more than 12 hours: fence the effect, and park the message."""
        for one, _ in self._handler.cut_one(message):
            parked = Action("park", kind="12 h ceiling", reason="12 h ceiling: the effect ran too long", row="16")
            self._answer(one, self._handler.keep(one, parked, self._handler.call_for(one)))
