"""What is known about a doubt besides its state: the looks at it so far, and what was reported to its callers.

Rare, so a record has it or not: a key that is claimed and completed never does. `register` computes it, the store keeps
it in one optional place, and writes it with the move that causes it. Late truth is such a fact: the write that first
makes the record show that the effect happened, although its callers got another answer, also marks that as due.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from samekey.core.states import CLOSED, COMPLETED, HOLDER, IN_DOUBT, RELEASED, STARTED, Role, State

LATE_SECONDS = 30 * 24 * 3600.0  # how long a record is kept at least while its late truth is not delivered
DUE, DELIVERED = "due", "delivered"  # of `late`
FAILED, UNKNOWN = "failed", "unknown"  # of `reported`: failed is the stronger one, and stays


class Inquiry(NamedTuple):
    """The looks at a doubt, and what was reported to its callers."""

    look_at: float | None = None  # when a worker looks next, on the store's wall clock; None: when the lease is over
    looks: int = 0
    verdict: str = ""  # of the last look
    parked: str = ""  # why workers look once a day only
    answered: bool = False  # the last attempt got an answer, and it was no: the doubt is about an earlier attempt
    reported: str = ""  # "failed" or "unknown"; "" where the caller has its answer
    reported_at: float = 0.0
    reported_error: str = ""
    late: str = ""  # "due": it happened, and the callers got another answer; then "delivered"

    def text(self) -> str:
        """As JSON, without the fields that have their usual value."""
        usual = Inquiry._field_defaults
        return json.dumps({name: value for name, value in self._asdict().items() if value != usual[name]})


def read_inquiry(text: str | bytes | None) -> Inquiry | None:
    """The inquiry that was written as this text; ValueError or TypeError where it is none."""
    if text is None:
        return None
    return inquiry_of(json.loads(text))


def inquiry_of(facts: dict[str, Any] | None) -> Inquiry | None:
    if facts is None:
        return None
    inquiry = Inquiry(**facts)
    if inquiry.look_at is not None:
        inquiry = inquiry._replace(look_at=float(inquiry.look_at))
    return inquiry._replace(reported_at=float(inquiry.reported_at), looks=int(inquiry.looks))


def after_settle(
    inquiry: Inquiry | None,
    before: State,
    state: State,
    role: Role,
    *,
    error: str | None,
    answered: bool,
    to_caller: bool,
    wall: float,
) -> Inquiry | None:
    """The inquiry after a settle. `to_caller`: a caller waits for the outcome that this settle writes."""
    kept = inquiry or Inquiry()
    if state is IN_DOUBT:
        if kept.reported != FAILED:
            kept = kept._replace(reported=UNKNOWN, reported_at=wall, reported_error=error or "")
        return kept._replace(answered=answered)
    reported = Inquiry(reported=kept.reported, reported_at=kept.reported_at, reported_error=kept.reported_error)
    if state is RELEASED:
        if role is HOLDER and to_caller and error is not None:
            reported = Inquiry(reported=FAILED, reported_at=wall, reported_error=error)
        return reported if reported.reported else None
    if state is COMPLETED:
        if role is HOLDER and to_caller and before is STARTED:
            return None  # the caller gets the answer
        if not reported.reported:
            reported = reported._replace(reported=UNKNOWN, reported_at=wall)
        return reported._replace(late=DUE)
    return reported if reported.reported else None


def after_testimony(inquiry: Inquiry | None, before: State, state: State, wall: float) -> Inquiry | None:
    """A closed record is not rewritten, so evidence that the effect happened is the late truth itself."""
    if before is not CLOSED or state is not COMPLETED or (inquiry is not None and inquiry.late):
        return inquiry
    kept = inquiry or Inquiry()
    return kept._replace(reported=FAILED, reported_at=kept.reported_at or wall, late=DUE)


def after_look(inquiry: Inquiry | None, *, look_after: float, verdict: str, parked: str, wall: float) -> Inquiry:
    kept = inquiry or Inquiry()
    return kept._replace(look_at=wall + look_after, looks=kept.looks + 1, verdict=verdict, parked=parked)
