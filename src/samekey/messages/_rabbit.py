"""What both RabbitMQ adapters share: how tries are counted, and the queues in which messages wait. Pure.

| action         | quorum queue with delayed retry (4.3)        | every other queue                                   |
|----------------|----------------------------------------------|-----------------------------------------------------|
| ack            | basic.ack                                    | basic.ack                                           |
| later, free    | basic.nack(requeue): x-delivery-count + 0    | published to a hold queue, confirmed, then acked    |
| later, counted | basic.reject(requeue): x-delivery-count + 1  | the same, with a higher `samekey-tries`             |
| given back     | basic.nack(requeue)                          | basic.nack(requeue); a quorum queue counts it       |
| park, dead     | written first, then acked                    | written first, then acked                           |
| silent         | nothing; the channel is renewed              | nothing; the channel is renewed                     |

A message waits in a hold queue whose TTL is the delay, and whose dead letters go back to its queue. There is one hold
queue for each delay, because a queue expires messages at its head only. The delays are powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from samekey.messages._ack import Action
from samekey.messages._message import Message

TRIES = "samekey-tries"  # tries that ended, in messages that were published again
REASON = "samekey-reason"
KIND = "samekey-kind"
ORIGIN = "samekey-origin"
CONSUMER_TIMEOUT_SECONDS = 1800.0  # RabbitMQ's own: an unacknowledged delivery is taken away after 30 minutes
HOLD_MIN_MS = 125
HOLD_MAX_MS = 2**20  # 17 minutes
HOLD_UNUSED_MS = 3_600_000  # an empty hold queue is deleted after so long without use


def message_of(body: bytes, headers: Mapping[str, Any] | None, queue: str, properties: Mapping[str, Any]) -> Message:
    """One delivery as the handler sees it; `properties` are those that have a name of their own in AMQP."""
    given = headers or {}
    tries = 1 + _number(given.get(TRIES)) + _number(given.get("x-delivery-count"))
    texts = {str(name): str(value) for name, value in given.items() if isinstance(value, (str, int, float, bytes))}
    named = {name: str(value) for name, value in properties.items() if value is not None}
    return Message(body, {**named, **texts}, queue, tries, named.get("message_id", ""))


def again(headers: Mapping[str, Any] | None, message: Message, action: Action) -> dict[str, Any]:
    """The headers of a message that is published again: its own, and how many tries ended."""
    own = ("x-death", "x-delivery", "x-acquired", "x-first-", "x-last-")  # written by the broker
    kept = {name: value for name, value in (headers or {}).items() if not name.startswith(own)}
    return {**kept, TRIES: message.tries if action.counted else message.tries - 1}


def aside(headers: Mapping[str, Any] | None, message: Message, action: Action) -> dict[str, Any]:
    """The headers of a message that is parked or dead."""
    return {**again(headers, message, action), REASON: action.reason, KIND: action.kind, ORIGIN: message.source}


def hold_ms(seconds: float) -> int:
    """The delay of the hold queue for a wait of this length: never shorter, at most twice as long."""
    wanted = min(max(seconds * 1000, HOLD_MIN_MS), HOLD_MAX_MS)
    return int(2 ** math.ceil(math.log2(wanted)))


def hold_queue(queue: str, delay_ms: int) -> tuple[str, dict[str, Any]]:
    """Name and arguments of the hold queue with this delay."""
    arguments = {
        "x-message-ttl": delay_ms,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": queue,
        "x-expires": delay_ms + HOLD_UNUSED_MS,
    }
    return f"{queue}.later.{delay_ms}", arguments


def goes_back(action: Action, *, delayed_retry: bool) -> bool:
    """Whether a later message is given back to its queue, rather than published to a hold queue."""
    return delayed_retry or (action.seconds == 0 and not action.counted)


def _number(value: Any) -> int:
    try:
        return max(0, int(value))
    except (TypeError, ValueError):
        return 0
