"""Messages that are set aside: a person, or a decision about their record, must come first.

A consumer that cannot go on with a message writes it here, and only then lets the broker forget it. The id is made of
what the message is, so a consumer that crashed in between writes the same row again. `samekey redeliver` publishes the
message again and marks its row. If the message comes back to the same end, its row is open again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from samekey.core.books import kept_text
from samekey.core.errors import Misconfigured, RecordUnreadable
from samekey.core.key import NAME_MAX_BYTES
from samekey.core.record import DAMAGED, Audit

BODY_MAX_BYTES = 256 * 1024  # the largest message of SQS; a longer one stays with its broker
HEADERS_MAX_CHARS = 16_384
HEADER_MAX_CHARS = 4096  # of one value
REASON_MAX_CHARS = 500
KIND_MAX_CHARS = 32
DESTINATION_MAX_CHARS = 255
KEY_MAX_CHARS = 1024
PARKED_MAX = 1000  # in one page
REDELIVERED_KEPT_SECONDS = 14 * 24 * 3600  # a row that was redelivered is evidence for so long
REDELIVERED_FORGOTTEN_MAX = 100  # old rows that one redelivery deletes


@dataclass(frozen=True, slots=True)
class Parked:
    """One message that was set aside."""

    id: str  # `parked_id` makes one
    at: float  # when it was set aside, in seconds since 1970
    operation: str
    tenant: str | None
    key: str  # "" where the message has none that could be read
    destination: str  # the queue, topic, subject or stream that it came from
    headers: str  # JSON: names and texts
    body: bytes
    kind: str  # "in doubt", "refused", "poison", ...
    reason: str
    redelivered_at: float | None = None
    redelivered_by: str | None = None

    def __post_init__(self) -> None:
        texts: Any = (self.id, self.operation, self.key, self.destination, self.headers, self.kind, self.reason)
        body: Any = self.body
        if any(not isinstance(text, str) or "\0" in text for text in texts) or not isinstance(body, bytes):
            raise Misconfigured("a parked message is made of texts without NUL, and of bytes")
        if not math.isfinite(self.at):
            raise Misconfigured(f"a message is parked at a time in seconds since 1970, not {self.at!r}")
        if len(self.body) > BODY_MAX_BYTES:
            raise Misconfigured(f"the body has {len(self.body)} bytes; {BODY_MAX_BYTES} is the limit for parking")
        for what, text, most in (
            ("id", self.id, 64),
            ("operation", self.operation, NAME_MAX_BYTES),
            ("key", self.key, KEY_MAX_CHARS),
            ("destination", self.destination, DESTINATION_MAX_CHARS),
            ("headers", self.headers, HEADERS_MAX_CHARS),
            ("kind", self.kind, KIND_MAX_CHARS),
            ("reason", self.reason, REASON_MAX_CHARS),
        ):
            if len(text) > most:
                raise Misconfigured(f"the {what} of a parked message has {len(text)} characters; {most} is the limit")

    @property
    def place(self) -> tuple[float, str]:
        """Its place in the order; the cursor of the page after it."""
        return self.at, self.id

    @property
    def header_pairs(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(self.headers)
        return found


@dataclass(frozen=True, slots=True)
class ParkedQuery:
    """Which parked messages to list, newest first; `before` is the `place` of the last one of the page before."""

    id: str | None = None
    operation: str | None = None
    tenant: str | None = None
    key: str | None = None
    kind: str | None = None
    waiting: bool | None = None  # True: not redelivered since it was parked
    limit: int = 100
    before: tuple[float, str] | None = None

    @property
    def page_size(self) -> int:
        return max(0, min(self.limit, PARKED_MAX))

    def picks(self, parked: Parked) -> bool:
        """Whether this message is asked for; every store agrees with it."""
        return (
            self.id in (None, parked.id)
            and self.operation in (None, parked.operation)
            and self.tenant in (None, parked.tenant)
            and self.key in (None, parked.key)
            and self.kind in (None, parked.kind)
            and self.waiting in (None, parked.redelivered_at is None)
            and (self.before is None or parked.place < self.before)
        )


def make_parked(
    *,
    at: float,
    operation: str,
    tenant: str | None,
    key: str,
    destination: str,
    headers: Mapping[str, str],
    body: bytes,
    kind: str,
    reason: str,
) -> Parked:
    """A parked message of foreign texts, cut to what stores keep. Only the body is never cut: it raises if too long."""
    written = json.dumps({kept_text(name, 255): kept_text(text, HEADER_MAX_CHARS) for name, text in headers.items()})
    if len(written) > HEADERS_MAX_CHARS:
        raise Misconfigured(f"the headers have {len(written)} characters; {HEADERS_MAX_CHARS} is the limit for parking")
    return Parked(
        id=parked_id(operation, tenant, key, destination, body),
        at=at,
        operation=operation,
        tenant=tenant,
        key=kept_text(key, KEY_MAX_CHARS),
        destination=kept_text(destination, DESTINATION_MAX_CHARS),
        headers=written,
        body=body,
        kind=kind,
        reason=kept_text(reason, REASON_MAX_CHARS),
    )


def parked_id(operation: str, tenant: str | None, key: str, destination: str, body: bytes) -> str:
    """The id of this message, the same in every process: a delivery that is repeated writes the same row."""
    parts = [operation.encode(), None if tenant is None else tenant.encode()]
    parts += [key.encode("utf-8", "backslashreplace"), destination.encode("utf-8", "backslashreplace"), body]
    whole = b"".join(b"-" if part is None else b"%d:%b" % (len(part), part) for part in parts)
    return sha256(b"samekey.parked.1" + whole).hexdigest()[:32]


def parked_of(row: Sequence[Any]) -> Parked:
    """The message that a store has kept as these values."""
    try:
        return Parked(*row)
    except (Misconfigured, *DAMAGED) as error:
        raise RecordUnreadable(f"a parked message is damaged or was written by a newer version: {error}") from error


def check_redelivery(by: Any) -> None:
    if not isinstance(by, str) or not 0 < len(by) <= REASON_MAX_CHARS or "\0" in by:
        raise Misconfigured("by= names the person who redelivers")


def redelivery_entry(parked: Parked, by: str, now: float) -> Audit:
    """The entry in the audit log for a redelivery; the id of the message is in the place of the key."""
    before = "parked" if parked.redelivered_at is None else "redelivered"
    return Audit(now, by, "redeliver", parked.operation, parked.tenant, parked.id, before, "redelivered", parked.kind)
