"""A worker at one record: the steps of `recover` without a caller.

A worker must not call `attempt`: that opens. A record that was freed or swept between the worker's list and its call
would be made anew, and the effect would run although no client asked for it. So a worker reads, moves what is without a
live holder one step on at a time, runs only what it took out of doubt, and stops at everything that waits for a caller.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from samekey.core.attempt import ROUNDS_MAX, let_go, run_held
from samekey.core.call import Call, Failed
from samekey.core.commands import Command, Read
from samekey.core.errors import Fenced, InDoubt, InProgress
from samekey.core.record import Record
from samekey.core.recovery import Look, look_later, recover
from samekey.core.states import State

PAYLOAD_DIFFERS = "the kept payload is not the one that the key was claimed with"


@dataclass(frozen=True, slots=True)
class Pursued:
    """What became of the record that a worker looked at."""

    before: Record | None
    after: Record | None
    ran: bool = False  # the effect was run

    @property
    def how(self) -> str:
        """gone, left, adopted, completed, closed, released, asked, or parked."""
        before, after = self.before, self.after
        if after is None:
            return "gone"
        if before is None or after.version == before.version:
            return "left"
        match after.state:
            case State.COMPLETED:
                return "completed" if self.ran else "adopted"
            case State.IN_DOUBT:
                inquiry = after.inquiry
                if inquiry is not None and inquiry.parked:
                    return "parked"
                return "asked" if inquiry is not None and inquiry.looks else "left"
            case State.STARTED:
                return "left"
            case other:
                return str(other)


def pursue(call: Call, look: Look) -> Generator[Command, Any, Pursued]:
    """Look at the record of this call once, and do about it what its boundary allows."""
    found: Record | None = yield from Read(call.key)
    record, parks = found, ""
    if look.can_run and record is not None and not call.intent.matches(record.fingerprint, record.form):
        look, parks = replace(look, can_run=False), PAYLOAD_DIFFERS
    try:
        for _ in range(ROUNDS_MAX):
            if record is not None and record.attempt == call.attempt and record.state is State.STARTED:
                return (yield from run_taken(call, found, record, look))
            if record is None or done_with(record, look):
                break
            if parks and record.state is State.IN_DOUBT and record.happened is None:
                record = yield from look_later(call, record, "", parks, look)
                break
            seen = record
            record = yield from recover(call, record, look)
            if record is not None and stays_a_doubt(seen, record):
                break
    except (InDoubt, InProgress, Fenced):
        record = yield from Read(call.key)
    return Pursued(found, record)


def done_with(record: Record, look: Look) -> bool:
    """Whether the record waits for no worker: it ended, it is held, it is free for a caller, or another one asks."""
    if record.settled or record.lease_live or record.being_asked:
        return True
    if record.state is State.RELEASED:
        return record.happened is None
    return not look.can_run and record.ends_by_itself


def stays_a_doubt(seen: Record, record: Record) -> bool:
    """Whether this round was the look itself: it found a doubt and left one, without new evidence."""
    if seen.state is not State.IN_DOUBT or record.state is not State.IN_DOUBT:
        return False
    return record.happened is None or seen.happened is not None


def run_taken(call: Call, found: Record | None, held: Record, look: Look) -> Generator[Command, Any, Pursued]:
    """We hold it: run the effect, or let it go where we cannot."""
    if not look.can_run or not held.lease_live:
        try:
            after = yield from let_go(call, held)
        except InProgress:
            after = yield from Read(call.key)
        return Pursued(found, after)
    ended = yield from run_held(call, held)
    record: Record | None = yield from Read(call.key)
    if isinstance(ended, Failed) and record is not None and record.state is State.IN_DOUBT:
        if record.attempt == call.attempt and not record.being_asked:
            answered = record.inquiry is not None and record.inquiry.answered
            why = "declined on the re-run; an earlier attempt may have happened" if answered else ""
            record = yield from look_later(call, record, f"ran: {record.error or 'unknown'}", why, look)
    return Pursued(found, record, ran=True)
