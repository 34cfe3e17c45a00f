"""A message of SQS, as a consumer or a Lambda function gets it. Pure."""

from __future__ import annotations

from typing import Any

from samekey.messages._message import Message

TRIES = "samekey-tries"  # tries that ended, in messages that were sent anew


def message_of(received: dict[str, Any], source: str, since: float) -> Message:
    """One message as SQS delivers it, to a consumer or to a Lambda function."""
    attributes = received.get("Attributes") or received.get("attributes") or {}
    given = received.get("MessageAttributes") or received.get("messageAttributes") or {}
    headers = {}
    for name, value in given.items():
        text = value.get("StringValue", value.get("stringValue"))
        if text is not None:
            headers[name] = str(text)
    count = headers.get(TRIES, "0")
    tries = int(attributes.get("ApproximateReceiveCount", 1)) + (int(count) if count.isdecimal() else 0)
    body = received.get("Body", received.get("body", ""))
    id = received.get("MessageId", received.get("messageId", ""))
    return Message(str(body).encode(), headers, source, tries, str(id), (received, since))
