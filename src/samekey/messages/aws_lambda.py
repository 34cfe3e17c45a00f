"""AWS Lambda with an SQS trigger: a function that handles each message of a batch once.

    consume = sqs_batch(handler)

    def lambda_handler(event, context):
        return consume(event, context)

The event source mapping must have `ReportBatchItemFailures`. A message that is not in the answer's list is deleted by
Lambda; one that is in it comes again when its visibility timeout ends, and that counts as a receive.

| action         | the answer                                   |
|----------------|----------------------------------------------|
| ack            | not in the list                              |
| later          | in the list; every receive counts            |
| park, dead     | written first, then not in the list          |
| silent         | in the list                                  |

If no message could be handled, every message is in the list. An exception would do the same, and count as an error of
the function. The visibility timeout of the queue must be longer than the timeout of the function and than the lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.messages._sqs import message_of
from samekey.messages.handler import Handler

Failures = dict[str, list[dict[str, str]]]

TOGETHER = 10  # messages between two looks at the time that the function has left
MARGIN_SECONDS = 5.0  # with less time than this no new message is begun


def sqs_batch(handler: Handler, *, margin: float = MARGIN_SECONDS) -> Callable[..., Failures]:
    """The function for Lambda. The messages are handled in order; claims and settles of ten go out together."""
    if "broker" in (handler.parks_in, handler.dead_in):
        raise Misconfigured("a Lambda function has no connection to a queue: the handler parks in the store")

    def consume(event: dict[str, Any], context: Any = None) -> Failures:
        records = event.get("Records", [])
        failed: list[dict[str, str]] = []
        for start in range(0, len(records), TOGETHER):
            some = records[start : start + TOGETHER]
            if _seconds_left(context) < margin:
                failed += [{"itemIdentifier": one["messageId"]} for one in some]
                continue
            actions = handler.process_many([message_of(one, _source(one), time.monotonic()) for one in some])
            for one, action in zip(some, actions, strict=True):
                if action.verb not in ("ack", "park", "dead"):
                    failed.append({"itemIdentifier": one["messageId"]})
        return {"batchItemFailures": failed}

    return consume


def _seconds_left(context: Any) -> float:
    left = getattr(context, "get_remaining_time_in_millis", None)
    return float("inf") if left is None else float(left()) / 1000


def _source(record: dict[str, Any]) -> str:
    return str(record.get("eventSourceARN", "")).rpartition(":")[2]
