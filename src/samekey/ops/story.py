"""The history of a key, from its record alone: who claimed it, what happened, whose turn it is, what to do next.

Pure: a record in, text out. The record carries the store's clock (`now`), so every age is shown on that clock.
What a caller would do next is decided in `core/recovery.py`; here it is only described, and the tests hold the two
together.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import NamedTuple, assert_never

from samekey.core import notes
from samekey.core.boundary import Kind, Terms, parse_terms
from samekey.core.errors import RecordUnreadable
from samekey.core.fingerprint import ADOPTED
from samekey.core.next_step import within_window
from samekey.core.policy import LEASE_SECONDS
from samekey.core.record import Evidence, Move, Record
from samekey.core.states import Role, State, may

SHORT = 8  # characters of an attempt id or a mark: enough to tell two apart, short enough to read out

_ATTEMPT = re.compile(r"[0-9a-f]{32}")


class Resolution(StrEnum):
    """How an operator may resolve a doubt."""

    HAPPENED = "happened"
    REFUSED = "refused"
    NOT_DONE = "not_done"

    @property
    def state(self) -> State:
        return {
            Resolution.HAPPENED: State.COMPLETED,
            Resolution.REFUSED: State.CLOSED,
            Resolution.NOT_DONE: State.RELEASED,
        }[self]

    @property
    def flag(self) -> str:
        return f"--{self.value.replace('_', '-')}"


class Whose(StrEnum):
    """Whose turn it is."""

    NONE = "no one"  # it is over
    HOLDER = "the holder"
    CALLER = "the next caller"  # recovers it by itself, as its boundary allows
    ASKER = "the attempt that is asking the provider"
    PERSON = "a person"


class Turn(NamedTuple):
    whose: Whose
    says: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The facts about a key for people; `lines()` is the whole text."""

    title: str
    summary: str
    story: tuple[str, ...]
    boundary: str
    turn: Turn
    truth: str
    details: tuple[str, ...]  # what it can be found by at the provider, and what the call and its effect noted
    warnings: tuple[str, ...]
    next: tuple[str, ...]

    def lines(self) -> list[str]:
        lines = [self.title, self.summary, "", "What happened"]
        lines += [f"  {line}" for line in self.story]
        lines += ["", "State", f"  boundary: {self.boundary}"]
        lines += [f"  whose turn: {self.turn.whose}: {self.turn.says}", f"  truth: {self.truth}"]
        lines += [f"  {line}" for line in self.details]
        lines += [f"  warning: {line}" for line in self.warnings]
        lines += ["", "What to do next"]
        return lines + [f"  {line}" for line in self.next]


def explain(record: Record, *, store: str = "") -> Explanation:
    """The story of this record; `store` is the address to put into the command lines."""
    terms = parse_terms(record.boundary)
    turn = whose_turn(record)
    return Explanation(
        title=str(record.key),
        summary=_summary(record),
        story=tuple(_story(record)),
        boundary=f"{record.boundary}: {_described(terms)}",
        turn=turn,
        truth=terms.truth,
        details=tuple(_details(record, terms)),
        warnings=tuple(_warnings(record, terms)),
        next=tuple(_next(record, terms, turn, store)),
    )


def _summary(record: Record) -> str:
    meaning = "the holder is gone, or too slow" if overdue(record) else _MEANING[record.state]
    return f"{record.state} for {span(record.now - since(record))}: {meaning}"


_MEANING = {
    State.STARTED: "an attempt holds the key, under a lease",
    State.COMPLETED: "the effect happened",
    State.CLOSED: "refused for good",
    State.RELEASED: "known not to have happened, free to take",
    State.IN_DOUBT: "it is unknown whether it happened",
}


def _details(record: Record, terms: Terms) -> Iterator[str]:
    if terms.kind not in (Kind.ATOMIC, Kind.REPEATABLE):
        yield f"provider key: {record.provider_key()}"
    if record.attributes:
        yield "attributes: " + ", ".join(f"{name}={value}" for name, value in record.attributes)
    if record.notes is not None:
        try:
            noted = notes.decode(record.notes)
        except RecordUnreadable:
            yield "notes: encrypted"
        else:
            yield "notes: " + ", ".join(f"{name}={value}" for name, value in noted.items())
    if record.form == ADOPTED:
        yield "adopted from another table of keys: its payload cannot be compared, so every payload gets its answer"


# -- whose turn it is --------------------------------------------------------------------------------------------


def whose_turn(record: Record) -> Turn:
    """Who moves next, and what they will do: what `recover` will decide, described in advance."""
    terms = parse_terms(record.boundary)
    if record.state is State.RELEASED and record.happened is None:
        return Turn(Whose.CALLER, "the next call with this key runs")
    match record.state:
        case State.COMPLETED if record.result is not None:
            return Turn(Whose.NONE, f"every call with this key gets the kept result, until {_retained(record)}")
        case State.COMPLETED:
            return Turn(Whose.NONE, "calls with this key learn that it happened and that its result was not kept")
        case State.CLOSED:
            return Turn(Whose.NONE, f"every call with this key gets the refusal, until {_retained(record)}")
        case State.STARTED if record.lease_live:
            ends = when(record.now + record.lease_left)
            return Turn(Whose.HOLDER, f"attempt {record.attempt[:SHORT]} is alive until {ends}, or longer if it renews")
        case State.STARTED if terms.marked and record.begun_at is None and not record.unsure:
            return Turn(Whose.CALLER, "it had not begun to send, so it did not happen: the next call takes it over")
        case State.STARTED:
            recovery = _recovery(record, terms)
            return recovery._replace(says=f"its lease is over, so it counts as in doubt; {recovery.says}")
        case State.IN_DOUBT | State.RELEASED:
            return _recovery(record, terms)
        case _:
            assert_never(record.state)


def _recovery(record: Record, terms: Terms) -> Turn:
    if record.happened is not None:
        seen = f"attempt {record.happened.attempt[:SHORT]} reported, too late, that it happened"
        return Turn(Whose.CALLER, f"{seen}: the next call adopts that")
    if record.being_asked:
        return Turn(
            Whose.ASKER,
            f"attempt {(record.asker or '')[:SHORT]} is asking, until {when(record.now + record.ask_left)} at most",
        )
    if conflicts(record):
        return Turn(Whose.PERSON, "the provider has it more than once: refund all but one")
    inside = within_window(terms, record, LEASE_SECONDS)
    match terms.kind:
        case Kind.REPEATABLE:
            return Turn(Whose.CALLER, "repeating is declared harmless: the next call runs it again")
        case Kind.KEYED if inside:
            return Turn(Whose.CALLER, "the next call runs it again under the same provider key; the provider dedups")
        case Kind.KEYED | Kind.ASKS if terms.asks:
            return Turn(Whose.CALLER, f"the next call asks the provider; {_absent(terms)}")
        case Kind.KEYED:
            return Turn(Whose.PERSON, "the provider's window is over, and it cannot be asked")
        case Kind.ASKS | Kind.OPAQUE | Kind.ATOMIC:
            return Turn(Whose.PERSON, "no provider can be asked about it, and it never runs again by itself")
        case _:
            assert_never(terms.kind)


def _absent(terms: Terms) -> str:
    if terms.believe_absent_after is None:
        return "if the provider has no record of it, a person must decide"
    return f"'absent' is believed {span(terms.believe_absent_after)} after the lease ended, and then it runs again"


# -- what happened -----------------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """One line of a key's history: when, what kind of fact it is, and the sentence."""

    at: float
    kind: str  # the state that a move led to; "sent" or "evidence"
    text: str


def timeline(record: Record) -> list[Entry]:
    """What the record knows of its history, oldest first."""
    lines: list[Entry] = []
    if record.moves and record.moves[0].before:
        text = "claimed for the first time (its first moves are no longer kept)"
        lines.append(Entry(record.created_at, State.STARTED.value, text))
    starts = [number for number, move in enumerate(record.moves) if move.after == State.STARTED]
    for number, move in enumerate(record.moves):
        under = f", under {record.boundary}" if starts and number == starts[-1] else ""
        lines.append(Entry(move.at, str(move.after), f"{_moved(move)}{under}"))
    if record.begun_at is not None:
        lines.append(Entry(record.begun_at, "sent", "the holder marked that it now sends (held.sending)"))
    lines += [Entry(one.at, "evidence", _testified(one)) for one in record.evidence]
    lines.sort(key=lambda one: one.at)  # stable: moves of the same moment keep their order
    return lines


def _story(record: Record) -> Iterator[str]:
    return (f"{when(at)}  {span(record.now - at):>9} ago  {text}" for at, _, text in timeline(record))


def _moved(move: Move) -> str:
    who, why = speaker(move.who), f" ({move.why})" if move.why else ""
    match (move.before, move.after):
        case ("", State.STARTED):
            return f"claimed by {who}, token {move.token}"
        case (State.RELEASED, State.STARTED):
            return f"taken by {who}, token {move.token}: it was free"
        case (_, State.STARTED):
            return f"taken over by {who}, token {move.token}, out of {move.before}"
        case (_, State.IN_DOUBT):
            return f"put in doubt by {who}{why}"
        case (before, after) if before == after:
            return f"{who}: {move.why}"
        case _:
            return f"{move.after}, says {who}{why}"


def _testified(one: Evidence) -> str:
    if one.state is State.IN_DOUBT:
        return f"evidence, found by {speaker(one.attempt)}: {one.why}"
    return f"evidence: {speaker(one.attempt)} reports {one.state} ({one.why})"


def speaker(who: str) -> str:
    """A move's `who` for people."""
    role, colon, name = who.partition(":")
    if colon and role == "operator":
        return f"{name} (operator)"
    if colon and role == "lookup":
        return f"the provider, asked by {speaker(name)}"
    return f"attempt {who[:SHORT]}" if _ATTEMPT.fullmatch(who) else who


def _described(terms: Terms) -> str:
    match terms.kind:
        case Kind.ATOMIC:
            text = "effect and record commit together"
        case Kind.KEYED:
            text = f"the provider dedups on our key for {span(terms.window or 0.0)}"
        case Kind.ASKS:
            text = "the provider can be asked"
        case Kind.REPEATABLE:
            text = "running twice is harmless"
        case Kind.OPAQUE:
            text = "after a crash no provider can be asked"
        case _:
            assert_never(terms.kind)
    return f"{text}; the holder marks before it sends" if terms.marked else text


def _warnings(record: Record, terms: Terms) -> Iterator[str]:
    doers = doers_of(record)
    if len(doers) > 1 and terms.kind is not Kind.REPEATABLE:
        names = ", ".join(one[:SHORT] for one in sorted(doers))
        yield f"{len(doers)} attempts report that they did it ({names}): look for a double, and propose a refund"
    if doers and record.state in (State.CLOSED, State.RELEASED):
        yield f"it is {record.state}, yet attempt {min(doers)[:SHORT]} reports that it happened"
    if conflicts(record):
        yield "the provider has it more than once: the double effect is there already"
    if record.unsure and record.state is State.STARTED:
        yield "an earlier attempt of this key may have happened too"


def doers_of(record: Record) -> frozenset[str]:
    """The attempts that report that they did it themselves: more than one may be a double effect."""
    settled = {move.who for move in record.moves if move.after == State.COMPLETED and _ATTEMPT.fullmatch(move.who)}
    return frozenset(settled | {one.attempt for one in record.evidence if one.state is State.COMPLETED})


def conflicts(record: Record) -> bool:
    """Whether a lookup found the effect more than once."""
    return any(one.state is State.IN_DOUBT for one in record.evidence)


# -- what to do next ---------------------------------------------------------------------------------------------


def _next(record: Record, terms: Terms, turn: Turn, store: str) -> Iterator[str]:
    if record.lease_live:
        yield "nothing: wait for the holder, or for the end of its lease"
        return
    if record.settled:
        yield "nothing: it is over"
        return
    if record.state is State.RELEASED and record.happened is None:
        yield "call again with the same key and payload; if it happened after all, resolve it:"
    else:
        if turn.whose is Whose.CALLER:
            yield "call again with the same key and payload; or, if that call will never come:"
        books = "in the database" if terms.kind is Kind.ATOMIC else "on the provider's books"
        yield f"look {books}, for this key or the provider key {record.provider_key()}; then resolve it:"
    for resolution in Resolution:
        if objection(record, resolution) is None:
            yield resolve_line(record, resolution, store=store)


def resolve_line(record: Record, resolution: Resolution, *, store: str = "") -> str:
    """The exact command; `--seen` makes it fail if the record moves on before it is typed."""
    key = record.key
    names, options = [key.operation, key.text], [resolution.flag, "--why", "how you know", "--seen", mark(record)]
    options += ["--tenant", key.tenant] if key.tenant else []
    options += ["--store", store] if store else []
    dashed = any(name.startswith("-") for name in names)
    return shlex.join(["samekey", "resolve", *([*options, "--", *names] if dashed else [*names, *options])])


def objection(record: Record, resolution: Resolution, *, lease_is_over: bool = False) -> str | None:
    """Why an operator may not decide this about the record; None if it is allowed.

    `lease_is_over`: the operator knows that the holder is gone. A clock that was set back keeps a lease alive for long.
    """
    if record.lease_live and not lease_is_over:
        until = when(record.now + record.lease_left)
        return f"the holder is alive until {until}, or longer if it renews: wait for it to settle"
    before = State.IN_DOUBT if record.state is State.STARTED else record.state
    if not may(Role.OPERATOR, before, resolution.state):
        return f"it is already {before}: there is no doubt to resolve"
    if record.happened is not None and resolution is not Resolution.HAPPENED:
        # The core would adopt the evidence anyway: with "it happened" in the record the key never runs again.
        return (
            f"attempt {record.happened.attempt[:SHORT]} has reported that it happened: resolve it as happened, "
            "and undo the effect itself if it must not stay"
        )
    return None


# -- facts about a record ----------------------------------------------------------------------------------------


def mark(record: Record) -> str:
    """Eight digits that change with everything an operator decides on: hold, state, moves, evidence.

    Not the version: a renewal, or one more unanswered question to the provider, changes nothing of the story.
    """
    story = (record.fence, record.state.value, tuple(record.moves[-1:]), len(record.evidence))
    return hashlib.sha256(repr(story).encode()).hexdigest()[:SHORT]


def overdue(record: Record) -> bool:
    """Held past its lease: the holder is gone, or too slow to be relied on."""
    return record.state is State.STARTED and not record.lease_live


def since(record: Record) -> float:
    """When the record came into its state; a renewal or a question changes a record, not its state."""
    return record.moves[-1].at if record.moves else record.changed_at


def last_move(record: Record) -> str:
    return (
        f"by {speaker(record.moves[-1].who)} at {when(record.moves[-1].at)}" if record.moves else "by an unknown move"
    )


def _retained(record: Record) -> str:
    return "it is freed" if record.retain_until is None else when(record.retain_until)


def when(at: float) -> str:
    """A moment in UTC, to the second."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"@{at!r}"  # a damaged clock: better a number than no story


def span(seconds: float) -> str:
    """A length of time in its two largest units."""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h" if hours else f"{days} d"
    if hours:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{minutes} min" if minutes else f"{whole} s"
