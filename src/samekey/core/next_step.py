"""What a next call with a key can do about its record: pure, from the record and from what today's code declares.

`recover` obeys it, errors and adapters report it. The terms that the claim wrote into the record count; today's
declaration may narrow them (code that no longer sends the provider key must not run again), never widen them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from samekey.core.boundary import Kind, Terms, parse_terms
from samekey.core.record import Record
from samekey.core.states import State

WayOn = Literal["runs", "asks", "person"]
Next = Literal["answers", "runs", "asks", "person"]


def next_step(record: Record | None, today: Terms, *, can_ask: bool, lease_seconds: float) -> Next:
    """What a next call can do, once the hold on the record (if there is one) has ended.

    "answers": it gets the kept answer. "runs": it runs the effect. "asks": it asks the provider first. "person": the
    record stays in doubt until a person resolves it. The record is the last one that was seen: the next call decides
    on the one that it finds.
    """
    if record is None:
        return "runs"
    if record.settled or record.happened is not None:
        return "answers"
    if record.state is State.RELEASED:
        return "runs"
    terms = agreed(parse_terms(record.boundary), today)
    if record.state is State.STARTED and never_began(terms, record):
        return "runs"
    return way_on(record, terms, today, can_ask=can_ask, lease_seconds=lease_seconds)


def way_on(record: Record, terms: Terms, today: Terms, *, can_ask: bool, lease_seconds: float) -> WayOn:
    """What may be done about a doubt; `terms` are the agreed ones."""
    if terms.kind is Kind.REPEATABLE and today.kind is Kind.REPEATABLE:
        return "runs"
    if terms.kind is Kind.KEYED and today.kind is Kind.KEYED and within_window(terms, record, lease_seconds):
        return "runs"
    if terms.kind in (Kind.KEYED, Kind.ASKS) and terms.asks and can_ask:
        return "asks"
    return "person"


def seconds_until(record: Record | None) -> float:
    """How long a next call would only wait: for the end of a hold, or of another caller's question to the provider."""
    if record is None:
        return 0.0
    if record.lease_live:
        return record.lease_left
    return record.ask_left if record.being_asked else 0.0


def agreed(claimed: Terms, today: Terms) -> Terms:
    """The claim's terms, with no longer a window and no quicker a belief than today's code declares.

    A developer shortens the one, or takes the other back, because it was wrong: also for what is in doubt by then.
    """
    window, belief = claimed.window, claimed.believe_absent_after
    if window is not None and today.window is not None:
        window = min(window, today.window)
    if belief is not None:
        belief = None if today.believe_absent_after is None else max(belief, today.believe_absent_after)
    return replace(claimed, window=window, believe_absent_after=belief)


def never_began(terms: Terms, record: Record) -> bool:
    """Whether a marked effect had not reached its mark: nothing was sent, so it certainly did not happen."""
    return terms.marked and record.begun_at is None and not record.unsure and record.happened is None


def within_window(terms: Terms, record: Record, lease_seconds: float) -> bool:
    """Whether the provider still knows the key of the first send, and will for as long as a lease lasts."""
    if record.first_sent_at is None or terms.window is None:
        return True  # nothing was ever sent
    return record.now + lease_seconds < record.first_sent_at + terms.window
