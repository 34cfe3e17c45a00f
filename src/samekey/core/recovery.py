"""Recovery of a record whose holder is gone or whose outcome is in doubt: what its boundary allows.

Theory. A dead lease decides who looks next, never that nothing happened. So a passer-by first writes
the doubt (keeping the token, so that a late holder can still settle it), and then does only what the
terms written by the claim allow: run again where the provider dedups or repeating is harmless, ask
where the provider can be asked, and otherwise leave the record for a person. Today's declaration can
narrow that - code that no longer sends the provider key must not re-run - but never widen it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, assert_never

from samekey.core.boundary import (
    Absent,
    Conflicting,
    Declined,
    Happened,
    Kind,
    StillUnknown,
    Terms,
    Verdict,
    parse_terms,
)
from samekey.core.call import Call, encode, encode_refusal, in_doubt, retain_seconds, take
from samekey.core.commands import Ask, CallLookup, Command, Settle, Tell, Testify, Wait
from samekey.core.errors import Refused, StoreError
from samekey.core.inquiry import Inquiry
from samekey.core.next_step import agreed, never_began, way_on, within_window
from samekey.core.record import Record
from samekey.core.search import provider_term
from samekey.core.states import Role, State

ASK_SECONDS = 30.0  # how long one lookup may take before another attempt may ask
LOOK_SECONDS = 5.0  # from the first look to the second; doubles with each look, up to
LOOK_SECONDS_MAX = 3600.0
PARKED_SECONDS = 24 * 3600.0  # a parked doubt is still looked at once a day: a request may land after "absent"
LOOKS_MAX = 12  # then a doubt is parked; by the pauses above that is about two hours and a half
DOUBT_SECONDS = 24 * 3600.0  # the oldest doubt that is not parked


@dataclass(frozen=True, slots=True)
class Look:
    """One look of a worker at a record: what it can do, and how long until the next look."""

    can_run: bool  # it has the payload, and the effect to run with it
    jitter: float = 1.0  # drawn by the worker, 0.5 to 1.5: so that doubts of one moment are not all asked at one moment
    looks_max: int = LOOKS_MAX
    doubt_seconds: float = DOUBT_SECONDS


def recover(call: Call, record: Record, look: Look | None = None) -> Generator[Command, Any, Record | None]:
    """Move a record without a live holder one step on and return it; or raise InDoubt.

    With a `look` it is a worker that does so, and no caller waits: it neither waits for another attempt that asks, nor
    takes what it cannot run, and it writes into the record when the next look is due.
    """
    terms = agreed(parse_terms(record.boundary), call.terms)
    if record.state is State.STARTED:
        if never_began(terms, record):
            # The effect had not begun, so it did not happen, and the old holder's sending() fails from now on.
            return (yield from take(call, record))
        return (yield from put_in_doubt(call, record))
    if record.happened is not None:
        return (yield from adopt(call, record))
    can_ask, lease = call.boundary.asks_with is not None, call.policy.lease_seconds
    way = way_on(record, terms, call.terms, can_ask=can_ask, lease_seconds=lease)
    if look is not None and way == "runs" and not may_run(record, look):
        way = "asks" if terms.asks and can_ask else "person"
    match way:
        case "runs" if terms.kind is Kind.KEYED:
            return (yield from run_again_in_time(call, terms, record))
        case "runs":
            return (yield from run_again(call, record))
        case "asks":
            return (yield from ask(call, record, terms, look))
        case "person" if look is not None:
            return (yield from park(call, record, why_parked(call, record, terms), look))
        case "person" if terms.kind is Kind.KEYED and not within_window(terms, record, lease):
            raise in_doubt(call, record, "the provider's window is over and it cannot be asked")
        case "person" if terms.kind in (Kind.KEYED, Kind.ASKS, Kind.REPEATABLE):
            raise in_doubt(call, record, f"it was claimed as {terms.kind}, which today's code no longer declares")
        case "person":
            raise in_doubt(call, record, "no provider can be asked about it")


def put_in_doubt(call: Call, record: Record) -> Generator[Command, Any, Record | None]:
    """The lease is over, and it is unknown what the holder did."""
    doubted = yield from Settle(
        record, Role.PASSER_BY, State.IN_DOUBT, by=call.attempt, why="the lease ended", error="LeaseEnded"
    )
    if doubted is not None and doubted.state is State.IN_DOUBT:
        yield from Tell("in_doubt", doubted, "the lease ended")
    return doubted


def run_again_in_time(call: Call, terms: Terms, record: Record) -> Generator[Command, Any, Record | None]:
    """Take it for a re-run under the same provider key; check the window again, since the take may have been slow."""
    taken = yield from run_again(call, record)
    if taken is None or taken.attempt != call.attempt or within_window(terms, taken, call.policy.lease_seconds):
        return taken
    doubted = yield from Settle(
        taken, Role.HOLDER, State.IN_DOUBT, by=call.attempt, why="the provider's window ended", error=record.error
    )
    raise in_doubt(call, doubted or taken, "the provider's window ended just now")


def run_again(call: Call, record: Record) -> Generator[Command, Any, Record | None]:
    taken = yield from take(call, record)
    if taken is not None and taken.attempt == call.attempt:
        yield from Tell("taken_over", taken)
    return taken


def adopt(call: Call, record: Record) -> Generator[Command, Any, Record | None]:
    """Complete a record for which there is evidence that the effect happened."""
    evidence = record.happened
    if evidence is None:
        return record
    return (
        yield from Settle(
            record,
            Role.LOOKUP,
            State.COMPLETED,
            by=evidence.attempt,
            result=evidence.result,
            why="a late attempt reported how it ended",
            retain_seconds=call.policy.retention_seconds,
        )
    )


# -- asking ----------------------------------------------------------------------------------------------


def ask(call: Call, record: Record, terms: Terms, look: Look | None = None) -> Generator[Command, Any, Record | None]:
    """Ask the provider, one asker at a time, and write its verdict down."""
    asked = yield from Ask(record, asker=call.attempt, lease_seconds=ASK_SECONDS)
    if asked is None or asked.state is not State.IN_DOUBT or asked.fence != record.fence:
        return asked
    if asked.asker != call.attempt:
        if look is not None:
            return asked  # another attempt asks: there is nothing to do here
        later = yield from Wait(asked)
        if later is not None and later.being_asked and later.asker == asked.asker:
            raise in_doubt(call, later, "another attempt is asking the provider right now")
        return later
    # Measured by the store when the lookup starts: the time of the lookup itself must not count.
    since_lease_end = -asked.lease_left
    verdict = yield from CallLookup(asked)
    if isinstance(verdict, Absent) and believed(terms, since_lease_end):
        if look is None or look.can_run:
            return (yield from run_again(call, asked))
        return (yield from let_callers_run(call, asked))
    moved = yield from write_down(call, asked, verdict, Role.LOOKUP)
    if moved is not None and moved.state is State.IN_DOUBT and moved.fence == asked.fence:
        if look is not None:
            return (yield from look_later(call, moved, type(verdict).__name__.lower(), hopeless(verdict), look))
        ended = yield from Ask(moved, asker=call.attempt, lease_seconds=0)
        doubted = ended is not None and ended.state is State.IN_DOUBT and ended.fence == asked.fence
        if ended is None or not doubted or ended.happened is not None:
            return ended  # during the lookup an operator or a late attempt settled it
        raise in_doubt(call, ended, spoken(verdict))
    return moved


def let_callers_run(call: Call, record: Record) -> Generator[Command, Any, Record | None]:
    """A worker believes that it never happened, and cannot run it: the next caller may.

    In the same round: if a request of this one lands after all, a lookup for the next one must find it.
    """
    released = yield from Settle(
        record,
        Role.LOOKUP,
        State.RELEASED,
        by=call.attempt,
        error="Absent",
        why="the provider has no record of it",
        retain_seconds=retain_seconds(call, State.RELEASED),
    )
    if released is not None and released.state is State.RELEASED:
        yield from Tell("resolved", released, "Absent")
    return released


def ask_now(call: Call, record: Record) -> Generator[Command, Any, tuple[Record | None, Verdict | None]]:
    """Ask the provider about a record without a live holder, and write its verdict down; never run the effect.

    As `recover`, for an operator: "absent" changes nothing here, because only a caller that runs the effect may believe
    it. The verdict is None where there was nothing to ask. Raises InDoubt where the provider may not be asked.
    """
    terms = agreed(parse_terms(record.boundary), call.terms)
    if record.lease_live or record.settled or never_began(terms, record):
        return record, None
    if record.state is State.STARTED:
        doubted = yield from put_in_doubt(call, record)
        if doubted is None or doubted.state is not State.IN_DOUBT or doubted.fence != record.fence:
            return doubted, None
        record = doubted
    if record.happened is not None:
        return (yield from adopt(call, record)), None
    if record.state is not State.IN_DOUBT:
        return record, None
    if terms.kind not in (Kind.KEYED, Kind.ASKS) or not terms.asks or call.boundary.asks_with is None:
        raise in_doubt(call, record, "no provider can be asked about it")
    asked = yield from Ask(record, asker=call.attempt, lease_seconds=ASK_SECONDS)
    if asked is None or asked.state is not State.IN_DOUBT or asked.fence != record.fence:
        return asked, None
    if asked.asker != call.attempt:
        raise in_doubt(call, asked, "another attempt is asking the provider right now")
    verdict = yield from CallLookup(asked)
    moved = yield from write_down(call, asked, verdict, Role.LOOKUP)
    if moved is not None and moved.state is State.IN_DOUBT and moved.fence == asked.fence:
        moved = yield from Ask(moved, asker=call.attempt, lease_seconds=0)
    return moved, verdict


# -- a worker's looks ------------------------------------------------------------------------------------


def may_run(record: Record, look: Look) -> bool:
    """Whether a worker may run the effect again: not after a decline, which only a caller may try again."""
    return look.can_run and not (record.inquiry is not None and record.inquiry.answered)


def park(call: Call, record: Record, why: str, look: Look) -> Generator[Command, Any, Record | None]:
    """A worker cannot do anything about this one: write why, and look again in a day."""
    verdict = "" if record.inquiry is None else record.inquiry.verdict
    return (yield from look_later(call, record, verdict, why, look))


def look_later(
    call: Call, record: Record, verdict: str, why: str, look: Look
) -> Generator[Command, Any, Record | None]:
    """End the asking, and write in the same step what came of it and when the next look is due."""
    inquiry = record.inquiry or Inquiry()
    looks = inquiry.looks + 1
    if not why and (looks >= look.looks_max or record.now - record.doubt_since >= look.doubt_seconds):
        why = f"{verdict} after {looks} looks"
    pause = PARKED_SECONDS if why else min(LOOK_SECONDS_MAX, LOOK_SECONDS * 2.0 ** min(looks - 1, 20))
    seen = yield from Ask(
        record,
        asker=call.attempt,
        lease_seconds=0,
        look_after=pause * look.jitter,
        verdict=verdict,
        parked=why,
    )
    if why and not inquiry.parked and seen is not None and seen.inquiry is not None and seen.inquiry.parked:
        yield from Tell("parked", seen, why)
    return seen


def why_parked(call: Call, record: Record, terms: Terms) -> str:
    inquiry = record.inquiry
    if terms.kind is Kind.KEYED and not within_window(terms, record, call.policy.lease_seconds):
        return "the provider's window is over, and it cannot be asked"
    if inquiry is not None and inquiry.answered:
        return "declined on the re-run; an earlier attempt may have happened"
    if terms.kind in (Kind.KEYED, Kind.REPEATABLE) and call.terms.kind is terms.kind:
        return "no kept payload to run it with, and no lookup"
    if terms.kind in (Kind.KEYED, Kind.ASKS, Kind.REPEATABLE):
        return f"it was claimed as {terms.kind}, which today's code no longer declares"
    return "no provider can be asked about it"


def hopeless(verdict: Verdict) -> str:
    """Why asking again soon would not help; empty where it may."""
    match verdict:
        case Conflicting(results):
            return f"the provider has it {len(results)} times"
        case Declined():
            return "declined, and an earlier attempt may have happened"
        case _:
            return ""


def stop_asking(call: Call, record: Record) -> Generator[Command, Any, None]:
    """Interrupted during the lookup: let the next attempt ask at once."""
    try:
        yield from Ask(record, asker=call.attempt, lease_seconds=0)
    except StoreError:
        pass  # then the asking ends after ASK_SECONDS


def believed(terms: Terms, since_lease_end: float) -> bool:
    """Whether "absent" may be believed: only after the agreed time, and only where the claim and today's code agree."""
    return terms.believe_absent_after is not None and since_lease_end >= terms.believe_absent_after


def write_down(call: Call, record: Record, verdict: Verdict, role: Role) -> Generator[Command, Any, Record | None]:
    """Write the provider's verdict into the record and return it."""
    match verdict:
        case Happened(result):
            envelope, error = encode(call, record, result)
            state = State.COMPLETED
        case Declined() if record.unsure:
            return record  # one of several requests under this key was declined; another may still land
        case Declined(final=True, reason=reason):
            envelope = encode_refusal(call, record, Refused(reason))
            state, error = State.CLOSED, "Declined"
        case Declined():
            envelope, state, error = None, State.RELEASED, "Declined"
        case Absent() | StillUnknown():
            return record
        case Conflicting(results):
            kept = yield from Testify(
                record.key,
                call.attempt,
                record.token,
                State.IN_DOUBT,
                None,
                f"the provider has it {len(results)} times",
            )
            yield from Tell("conflicting", kept or record, f"{len(results)} results")
            return kept
        case _:
            assert_never(verdict)
    next_round = state is State.RELEASED and may_rotate(record, parse_terms(record.boundary))
    settled = yield from Settle(
        record,
        role,
        state,
        by=call.attempt,
        result=envelope,
        error=error,
        why=f"the provider says {type(verdict).__name__.lower()}",
        retain_seconds=call.policy.retention_seconds,
        next_round=next_round,
        terms=(provider_term(record.key, record.round + 1),) if next_round else (),
    )
    if settled is not None:
        yield from Tell("resolved", settled, type(verdict).__name__)
    return settled


def may_rotate(record: Record, terms: Terms) -> bool:
    """Whether the next try after a known decline uses a new provider key.

    After the store lost its memory, a forgotten attempt may still happen under the old key. Only that key prevents a
    second effect where the provider dedups, and only that reference finds the first one where the provider is asked.
    """
    return terms.new_round_after_decline and not record.after_loss


def spoken(verdict: Verdict) -> str:
    match verdict:
        case Absent():
            return "the provider has no record of it, and it may still arrive there"
        case StillUnknown(reason):
            return f"the provider does not know{f' ({reason})' if reason else ''}"
        case Conflicting(results):
            return f"the provider has it {len(results)} times: refund all but one"
        case Declined():
            return "the provider declined it, but an earlier attempt under the same key may still land"
        case _:
            return f"the provider says {type(verdict).__name__.lower()}"
