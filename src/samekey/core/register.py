"""What a store does with a command, as one pure function.

A store is a register with compare-and-set. `apply` is that register's whole behaviour: the record
before, the command, the store's clock - and the record after. Memory and SQLite call it; a store that
uses SQL or Lua does the same in its own language, and the conformance suite compares the two; the
schedules play it. A refused command changes nothing and answers with what is there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from samekey.core.boundary import parse_terms, repeats
from samekey.core.commands import Ask, Begin, Deliver, Free, Open, Redact, Renew, Settle, StoreCommand, Take, Testify
from samekey.core.inquiry import DELIVERED, DUE, LATE_SECONDS, after_look, after_settle, after_testimony
from samekey.core.record import EVIDENCE_MAX, MOVES_MAX, Audit, Evidence, Move, Record
from samekey.core.search import with_terms
from samekey.core.states import (
    COMPLETED,
    EXPIRES,
    HOLDER,
    IN_DOUBT,
    OPERATOR,
    PASSER_BY,
    RELEASED,
    SETTLED,
    STARTED,
    Role,
    State,
    may,
)

AFTER_LOSS_SECONDS = 24 * 3600.0  # how long claims count as made after a loss: the usual retention


@dataclass(slots=True)
class Moment:
    """The store's clock, read once per command."""

    wall: float  # for people, retention and provider windows
    tick: float  # for leases: never steps back
    clock: str  # which tick this is; another one is another boot, and its leases are dead
    token: int  # the store's proposal for a new token


def apply(record: Record | None, command: StoreCommand, moment: Moment) -> Record | None:
    """The record after this command. The same object comes back when nothing changed."""
    if record is None and type(command) is not Open:
        return None
    after: Record | None = _RULES[type(command)](record, command, moment)
    return after


def audited(command: StoreCommand) -> bool:
    """Whether a person gave this command: then it leaves an entry in the audit log."""
    return command.role is OPERATOR if type(command) is Settle else type(command) in (Redact, Free)


def audit_entry(command: StoreCommand, before: Record | None, after: Record | None, moment: Moment) -> Audit | None:
    """The entry in the audit log for a command that changed something; only actions of people have one."""
    if type(command) is Settle and command.role is not OPERATOR:
        return None  # the common case, and never an action of a person
    match command:
        case Settle(role=Role.OPERATOR):
            action = "resolve"
        case Redact():
            action = "redact"
        case Free():
            action = "free"
        case _:
            return None
    return Audit(
        at=moment.wall,
        who=storable(command.by),
        action=action,
        operation=command.key.operation,
        tenant=command.key.tenant,
        text=command.key.text,
        before=before.state.value if before else "",
        after=after.state.value if after else "",
        why=storable(command.why),
    )


def storable(text: str) -> str:
    """Foreign text as any store can keep it: an effect's error must never stop its record from being settled."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def seen_at(record: Record, moment: Moment) -> Record:
    """The record as the store's clock shows it now: how long the lease and the asking still live."""
    wall, tick = moment.wall, moment.tick
    if record.lease_clock == moment.clock:
        left = record.lease_until - tick
        asked = record.ask_until - tick
    else:
        # Another boot: every lease of the old one is dead. How long ago it ended is unknown (a wall clock
        # may have been set back), so it counts as ended just now.
        left = asked = 0.0
    # By hand: _replace looks at all fields by name, and every reply of every store comes by here.
    return _new(Record, record[:_STORED] + (wall, left, asked, False))  # noqa: RUF005 - unpacking takes twice as long


_new = tuple.__new__  # for named tuples whose fields are known to be all there: calling the class takes twice as long
_at = Record._fields.index
_STATE, _TOKEN, _VERSION, _CHANGED_AT, _MOVES = map(_at, ("state", "token", "version", "changed_at", "moves"))
_UNSURE, _RESULT, _ERROR, _ROUND = map(_at, ("unsure", "result", "error", "round"))
_RETAIN_UNTIL, _SETTLED_BY, _SETTLED_AT = map(_at, ("retain_until", "settled_by", "settled_at"))
_ASKER, _ASK_UNTIL = map(_at, ("asker", "ask_until"))
_FIRST_SENT_AT, _ATTRIBUTES = map(_at, ("first_sent_at", "attributes"))
_CONTENT, _PAYLOAD, _NOTES, _TERMS = map(_at, ("content", "payload", "notes", "terms"))
_INQUIRY = _at("inquiry")
_ATTEMPTS = frozenset(
    {Role.HOLDER, Role.PASSER_BY}
)  # a lookup and an operator decide about the whole key, and the move names them
_TEXT = {state: str(state) for state in State}  # plain text, which every store writes as it is
_STORED = len(Record._fields) - 4  # the fields before now, lease_left, ask_left and after_loss
_UNOPENED: list[Any] = [None] * _UNSURE + list(Record._field_defaults.values())  # as a claim finds it, to be filled in


def after_loss(created_at: float, lost_at: float | None) -> bool:
    """Whether a record was made soon after the store lost its memory.

    Such a key may have been claimed before the loss, and its effect may have run. So the claim asks first, where the
    boundary can ask. That is also true of an attempt which takes the record over: the first holder may have crashed
    before it asked.
    """
    return lost_at is not None and lost_at <= created_at < lost_at + AFTER_LOSS_SECONDS


def expired(record: Record, moment: Moment) -> bool:
    """Past retention. Started and in_doubt never are: unknown is never forgotten.

    The one exception is a dead hold of Repeatable. It may run again in any case, so its record says nothing that a new
    claim does not.
    """
    if record.retain_until is None or record.retain_until > moment.wall:
        return False
    if record.state is STARTED:
        return repeats(record.boundary) and not lease_live(record, moment)
    return record.state in EXPIRES


def lease_live(record: Record, moment: Moment) -> bool:
    return record.lease_clock == moment.clock and record.lease_until > moment.tick


def same_fence(record: Record, seen: Record) -> bool:
    # Both: after a failover the same token numbers came again, and a zombie's was accepted.
    return record.token == seen.token and record.attempt == seen.attempt


def _open(record: Record | None, command: Open, moment: Moment) -> Record:
    if record is not None and not expired(record, moment):
        return record
    wall, token, version = moment.wall, moment.token, 1
    if record is not None:
        token, version = max(record.token + 1, token), record.version + 1
    opened = _UNOPENED.copy()
    digest, form, fields, content = command.intent.fingerprint()
    opened[:_UNSURE] = (
        command.key,
        STARTED,
        token,
        command.attempt,
        digest,
        form,
        fields,
        command.boundary,
        version,
        1,  # attempts
        wall,  # created
        wall,  # changed
        moment.tick + command.lease_seconds,
        moment.clock,
    )
    if command.sends:
        opened[_FIRST_SENT_AT] = wall
    if command.retain_seconds and repeats(command.boundary):
        opened[_RETAIN_UNTIL] = wall + command.retain_seconds
    opened[_ATTRIBUTES] = command.attributes
    opened[_MOVES] = (_new(Move, (wall, token, "", "started", command.attempt, "")),)
    opened[_CONTENT], opened[_PAYLOAD] = content, command.payload
    return _new(Record, opened)


def _take(record: Record, command: Take, moment: Moment) -> Record:
    seen = command.seen
    if not same_fence(record, seen) or record.state is not seen.state or record.happened is not None:
        return record
    if not may(Role.PASSER_BY, record.state, State.STARTED):
        return record
    if record.state is State.STARTED and (
        lease_live(record, moment)
        or not parse_terms(record.boundary).marked
        or record.begun_at is not None
        or record.unsure  # "this attempt had not begun" is no fact about the one before it
    ):
        return record
    from_doubt = record.state is State.IN_DOUBT
    why = "taken over" if record.state is not State.RELEASED else ""
    token = max(record.token + 1, moment.token)
    move = Move(moment.wall, token, _TEXT[record.state], "started", storable(command.attempt), why)
    taken = _moved(record, State.STARTED, move)
    # The unresolved attempt stays under the terms it was made under; a fresh start has today's.
    boundary = record.boundary if from_doubt else command.boundary
    ends = command.retain_seconds and repeats(boundary)
    return Record._make(taken).changed(
        attempt=command.attempt,
        boundary=boundary,
        attempts=record.attempts + 1,
        lease_until=moment.tick + command.lease_seconds,
        lease_clock=moment.clock,
        unsure=record.unsure or from_doubt,
        begun_at=None,
        # Out of doubt the provider's window still counts from the first send.
        first_sent_at=record.first_sent_at if from_doubt else (moment.wall if command.sends else None),
        settled_by=None,
        settled_at=None,
        retain_until=moment.wall + command.retain_seconds if ends else None,
        error=None,
        asker=None,
        ask_until=0.0,
        terms=with_terms(record.terms, command.terms) if command.terms else record.terms,
    )


def _begin(record: Record, command: Begin, moment: Moment) -> Record:
    if not same_fence(record, command.seen) or record.state is not State.STARTED:
        return record
    if record.begun_at is not None:
        return record  # our own earlier try got through
    if not lease_live(record, moment) or record.happened is not None:
        return record
    return record.changed(
        begun_at=moment.wall,
        first_sent_at=record.first_sent_at if record.first_sent_at is not None else moment.wall,
        version=record.version + 1,
        changed_at=moment.wall,
    )


def _renew(record: Record, command: Renew, moment: Moment) -> Record:
    if not same_fence(record, command.seen) or record.state is not State.STARTED or not lease_live(record, moment):
        return record
    ends = command.retain_seconds and repeats(record.boundary)
    return record.changed(
        lease_until=moment.tick + command.lease_seconds,
        version=record.version + 1,
        changed_at=moment.wall,
        retain_until=moment.wall + command.retain_seconds if ends else record.retain_until,
    )


def _settle(record: Record, command: Settle, moment: Moment) -> Record:
    role, state, seen = command.role, command.state, command.seen
    before, wall = record.state, moment.wall
    if not same_fence(record, seen) or not may(role, before, state):
        return record
    if role is PASSER_BY:
        if state is STARTED:
            return record  # starting is a take: it draws a new token
        if lease_live(record, moment):
            return record  # the holder renewed since we looked
        record = _rebased(record, moment)
    if role is OPERATOR and before is not seen.state:
        return record  # a person decided about the state that was shown: it must be unchanged
    by, error = storable(command.by), command.error
    if error is not None:
        error = storable(error)
    who = by if role in _ATTEMPTS else f"{role}:{by}"
    why = storable(command.why) or error or ""
    settled = _moved(record, state, _new(Move, (wall, record.token, _TEXT[before], _TEXT[state], who, why)))
    settled[_RESULT] = command.result
    settled[_ERROR] = error
    settled[_ASKER], settled[_ASK_UNTIL] = None, 0.0
    if state is IN_DOUBT:
        settled[_RETAIN_UNTIL] = None
    else:
        settled[_RETAIN_UNTIL] = wall + command.retain_seconds
        settled[_SETTLED_BY], settled[_SETTLED_AT] = by, wall
        if role not in _ATTEMPTS or command.answered:
            settled[_UNSURE] = False  # the provider or a person decided about the whole key
        if state is not RELEASED:
            settled[_PAYLOAD] = None  # kept for a next run, and there is none
    if state is COMPLETED and role is HOLDER and before is STARTED and command.to_caller:
        settled[_INQUIRY] = None  # the caller gets the answer
    else:
        inquiry = after_settle(
            record.inquiry,
            before,
            state,
            role,
            error=error,
            answered=command.answered,
            to_caller=command.to_caller,
            wall=wall,
        )
        settled[_INQUIRY] = inquiry
        if inquiry is not None and inquiry.late:
            settled[_RETAIN_UNTIL] = wall + max(command.retain_seconds, LATE_SECONDS)
    if command.next_round:
        settled[_ROUND] += 1
    if command.notes is not None:
        settled[_NOTES] = command.notes
    if command.terms:
        settled[_TERMS] = with_terms(record.terms, command.terms)
    return _new(Record, settled)


def _ask(record: Record, command: Ask, moment: Moment) -> Record:
    if not same_fence(record, command.seen) or record.state is not State.IN_DOUBT:
        return record
    asked = record.lease_clock == moment.clock and record.ask_until > moment.tick
    if record.asker is not None and record.asker != command.asker and asked:
        return record
    ends, inquiry = command.lease_seconds == 0, record.inquiry
    looked = ends and command.look_after is not None
    if ends and record.asker != command.asker and not looked:
        return record
    if ends and command.look_after is not None:
        inquiry = after_look(
            inquiry,
            look_after=command.look_after,
            verdict=storable(command.verdict),
            parked=storable(command.parked),
            wall=moment.wall,
        )
    return _rebased(record, moment).changed(
        asker=None if ends else command.asker,
        ask_until=0.0 if ends else moment.tick + command.lease_seconds,
        version=record.version + 1,
        changed_at=moment.wall,
        inquiry=inquiry,
    )


def _deliver(record: Record, command: Deliver, moment: Moment) -> Record:
    inquiry = record.inquiry
    if not same_fence(record, command.seen) or inquiry is None or inquiry.late != DUE:
        return record
    return record.changed(inquiry=inquiry._replace(late=DELIVERED), version=record.version + 1, changed_at=moment.wall)


def _testify(record: Record, command: Testify, moment: Moment) -> Record:
    if record.settled_by == command.attempt and record.state is command.state:
        return record  # the record has it already
    if any(one.attempt == command.attempt for one in record.evidence) or len(record.evidence) >= EVIDENCE_MAX:
        return record
    evidence = Evidence(
        moment.wall, command.token, command.attempt, command.state, command.result, storable(command.why)
    )
    inquiry = after_testimony(record.inquiry, record.state, command.state, moment.wall)
    retain = record.retain_until
    if inquiry is not record.inquiry and retain is not None:
        retain = max(retain, moment.wall + LATE_SECONDS)
    return record.changed(
        evidence=(*record.evidence, evidence),
        version=record.version + 1,
        changed_at=moment.wall,
        inquiry=inquiry,
        retain_until=retain,
    )


def _redact(record: Record, command: Redact, moment: Moment) -> Record:
    if not same_fence(record, command.seen) or record.state not in SETTLED:
        return record
    state, who, why = _TEXT[record.state], storable(command.by), storable(f"redacted: {command.why}")
    redacted = _moved(record, record.state, Move(moment.wall, record.token, state, state, who, why))
    return Record._make(redacted).changed(
        result=None,
        error="the result was redacted",
        payload=None,
        evidence=tuple(one._replace(result=None) for one in record.evidence),
    )


def _free(record: Record, command: Free, moment: Moment) -> Record | None:
    if not same_fence(record, command.seen) or record.state not in EXPIRES:
        return record  # started and in_doubt: resolve first
    if record.version != command.seen.version:
        return record  # evidence that the operator has not read would go with the record
    return None


def _moved(record: Record, state: State, move: Move) -> list[Any]:
    """The record's fields after a move, still to be edited: a settle is written for every call, and quickly."""
    fields: list[Any] = list(record)
    fields[_STATE] = state
    fields[_TOKEN] = move.token
    fields[_VERSION] += 1
    fields[_CHANGED_AT] = move.at
    fields[_MOVES] = (*record.moves[1 - MOVES_MAX :], move)
    return fields


def _rebased(record: Record, moment: Moment) -> Record:
    """A lease of another boot counts as ended now: from here its age can be counted."""
    if record.lease_clock == moment.clock:
        return record
    return record.changed(lease_until=moment.tick, lease_clock=moment.clock)


_RULES: dict[type[StoreCommand], Any] = {
    Open: _open,
    Take: _take,
    Begin: _begin,
    Renew: _renew,
    Settle: _settle,
    Ask: _ask,
    Deliver: _deliver,
    Testify: _testify,
    Redact: _redact,
    Free: _free,
}
