"""Why an operator's command was not carried out."""

from __future__ import annotations

from samekey.core.errors import CallerError, Uncertain
from samekey.core.record import Record
from samekey.ops.story import last_move


class NoSuchKey(CallerError):
    """There is no record of this key (any more)."""


class CannotResolve(CallerError):
    """This record needs no decision, or contradicts this one; nothing was written."""

    record: Record


class MovedOn(Uncertain):
    """The record is no longer what the operator was shown; nothing was written. Look again."""

    record: Record | None


def moved_on(seen: Record, now: Record | None) -> MovedOn:
    state = "it is gone" if now is None else f"it is now {now.state}, {last_move(now)}"
    return MovedOn(f"{seen.key} moved on since you looked: {state}; nothing was written", record=now)
