"""What an operator may do: look, read the story of a key, and decide how a doubt ended.

Looking changes nothing. A decision is written only if the record is still as the operator saw it, and always with a
name and a reason; the store keeps it in its audit log. A decision never overrules a holder that is alive.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from samekey.core.boundary import parse_terms
from samekey.core.commands import Free, Read, Redact, Settle
from samekey.core.envelope import encode
from samekey.core.errors import CallerError, Misconfigured, RecordUnreadable, Refused, Uncertain
from samekey.core.key import Key
from samekey.core.policy import RESULT_MAX_BYTES
from samekey.core.ports import LIST_MAX, Query, Store
from samekey.core.record import Record
from samekey.core.refusal import encode_refusal
from samekey.core.shapes import NotStorable
from samekey.core.states import EXPIRES, Role, State
from samekey.ops.story import (
    Explanation,
    Resolution,
    Turn,
    Whose,
    explain,
    last_move,
    mark,
    objection,
    overdue,
    since,
    span,
    waits,
    when,
    whose_turn,
)

__all__ = [
    "CannotResolve",
    "Explanation",
    "MovedOn",
    "NOT_GIVEN",
    "NoSuchKey",
    "Ops",
    "Page",
    "STATS_MAX",
    "Stats",
    "Turn",
    "Whose",
    "Resolution",
    "explain",
    "mark",
    "objection",
    "overdue",
    "since",
    "span",
    "waits",
    "when",
    "whose_turn",
]

# A record does not know its policy's retention, and forgetting too early means a second effect. So a person's decision
# is kept longer than under any usual policy (24-72 h).
RESOLVED_RETAIN_SECONDS = 30 * 24 * 3600.0
TEXT_MAX_CHARS = 500  # of a name or a reason: a record carries its last 16 moves in every read
STATS_MAX = 10_000  # records of each kind that one `stats` looks at: bounds its time, and how long a store is kept busy


class NoSuchKey(CallerError):
    """There is no record of this key (any more)."""


class CannotResolve(CallerError):
    """This record needs no decision, or contradicts this one; nothing was written."""

    record: Record


class MovedOn(Uncertain):
    """The record is no longer what the operator was shown; nothing was written. Look again."""

    record: Record | None


NOT_GIVEN: Any = object()  # no result: None is one


class Page(NamedTuple):
    """Some entries, newest first; `before` is the cursor of the next page, None at the end."""

    entries: list[Record | RecordUnreadable]  # a row that is damaged, or of a newer version, is in its place
    before: tuple[float, bytes] | None

    @property
    def records(self) -> list[Record]:
        return [one for one in self.entries if isinstance(one, Record)]

    @property
    def unreadable(self) -> list[RecordUnreadable]:
        return [one for one in self.entries if isinstance(one, RecordUnreadable)]


@dataclass(slots=True)
class Stats:
    """What a store holds, as far as it was looked at."""

    by_state: Counter[State] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    oldest_doubt: Record | None = None
    overdue: list[Record] = field(default_factory=list)  # held past their lease, the longest held first
    unsettled_complete: bool = True  # every started and in_doubt record was looked at
    settled_complete: bool = True
    unreadable: dict[Any, RecordUnreadable] = field(default_factory=dict)  # by its place in the order


class Ops:
    """The operator's view of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def list_records(self, query: Query) -> Page:
        """One page of records; those past retention count as gone, as they do for callers."""
        page = self._page(query)
        more = page.before is not None and self._more(replace(query, before=page.before))
        return page if more else page._replace(before=None)

    def _more(self, query: Query) -> bool:
        return bool(self.store.list(replace(query, limit=1)))

    def _page(self, query: Query) -> Page:
        """One page of records; `before` is None only if the page is not full, so the next one may be empty."""
        found = self.store.list(query)
        entries = [one for one in found if isinstance(one, RecordUnreadable) or not _gone(one)]
        full = 0 < min(query.limit, LIST_MAX) <= len(found)
        return Page(entries, _place(found[-1]) if full else None)

    def find(self, text: str, *, operation: str | None = None, tenant: str | None = None) -> Page:
        """Every record of this key text, whatever its operation or tenant where none is given."""
        return self.list_records(Query(text=text, operation=operation, tenant=tenant, limit=LIST_MAX))

    def show(self, key: Key) -> Record:
        record: Record | None = self.store.carry_out(Read(key))
        if record is None:
            raise NoSuchKey(f"there is no record of {key}", key=key.text)
        return record

    def check(self, record: Record, resolution: Resolution, *, mark_seen: str | None = None) -> None:
        """Raise what `resolve` would raise about this record; `mark_seen` is from an earlier look."""
        if mark_seen is not None and mark(record) != mark_seen:
            raise _moved_on(record, record)
        reason = objection(record, resolution)
        if reason is not None:
            raise CannotResolve(f"{record.key} cannot be resolved as {resolution.value}: {reason}", record=record)

    def resolve(self, seen: Record, resolution: Resolution, *, who: str, why: str, result: Any = NOT_GIVEN) -> Record:
        """Write down how a doubt ended, and return the record after that.

        `seen` is the record the operator was shown. Raises CannotResolve if it needs no decision, MovedOn if
        it is no longer the record that was shown; then nothing is written.
        """
        who, why = _text("name (who)", who), _text("reason (why)", why)
        self.check(seen, resolution)
        envelope, error = _kept(seen, resolution, result)
        terms = parse_terms(seen.boundary)
        now: Record | None = self.store.carry_out(Read(seen.key))
        if now is None or mark(now) != mark(seen):
            raise _moved_on(seen, now)
        if now.state is State.STARTED:
            self.check(now, resolution)  # renewed since it was shown: the holder is alive after all
            now = self._doubt(now, who)
        after: Record | None = self.store.carry_out(
            Settle(
                now,
                Role.OPERATOR,
                resolution.state,
                by=who,
                result=envelope,
                error=error,
                why=why,
                retain_seconds=max(RESOLVED_RETAIN_SECONDS, terms.window or 0.0),
                # The doubt may have been a decline whose reply was lost. It is still on the provider's books, so the
                # next try needs another reference: a lookup would take the old decline for the new request's.
                next_round=resolution is Resolution.NOT_DONE and terms.new_round_after_decline,
            )
        )
        ours = (resolution.state.value, f"{Role.OPERATOR}:{who}", why)
        if after is None or after.fence != now.fence or [(m.after, m.who, m.why) for m in after.moves[-1:]] != [ours]:
            raise _moved_on(seen, after)
        return after

    def redact(self, seen: Record, *, who: str, why: str) -> Record:
        """Drop the stored results of a settled record; the record stays, so nothing can run twice."""
        who, why = _text("name (who)", who), _text("reason (why)", why)
        after: Record | None = self.store.carry_out(Redact(seen, by=who, why=why))
        if after is None or after.fence != seen.fence:
            raise _moved_on(seen, after)
        if not after.settled:
            raise CannotResolve(f"{after.key} is {after.state}: only a settled record has a result", record=after)
        return after

    def free(self, seen: Record, *, who: str, why: str) -> None:
        """Remove a settled or released record: the key may run again.

        `seen` is the record the operator was shown. Raises MovedOn if anything was written since: a late "it
        happened" would be deleted unread.
        """
        who, why = _text("name (who)", who), _text("reason (why)", why)
        now: Record | None = self.store.carry_out(Read(seen.key))
        if now is None or (mark(now) != mark(seen) and now.state in EXPIRES):
            raise _moved_on(seen, now)
        left = self.store.carry_out(Free(seen, by=who, why=why))
        if left is not None and left.state not in EXPIRES:
            raise CannotResolve(f"{left.key} is {left.state}: resolve it first", record=left)
        if left is not None:
            raise _moved_on(seen, left)

    def sweep(self, limit: int = LIST_MAX) -> int:
        """Delete up to `limit` records past retention; how many it were."""
        return self.store.sweep(limit)

    def stats(self, limit: int = STATS_MAX) -> Stats:
        """Counts, the oldest doubt and what is held past its lease: the unsettled first, up to `limit` of each."""
        found = Stats()
        unsettled = (State.IN_DOUBT, State.STARTED)
        found.unsettled_complete = self._count(found, Query(states=unsettled), limit)
        # Then all of them, and not by state: a record in a state that this version does not know has none to ask for.
        limit += found.by_state.total()
        found.settled_complete = self._count(found, Query(), limit, but=unsettled)
        found.overdue.sort(key=since)
        return found

    def _count(self, found: Stats, query: Query, limit: int, but: tuple[State, ...] = ()) -> bool:
        for _ in range(0, limit, LIST_MAX):
            page = self._page(replace(query, limit=min(limit, LIST_MAX)))
            found.unreadable |= {one.cursor: one for one in page.unreadable}
            for record in page.records:
                if record.state in but:
                    continue
                found.by_state[record.state] += 1
                found.operations[record.key.operation] += 1
                if record.state is State.IN_DOUBT and since(record) <= since(found.oldest_doubt or record):
                    found.oldest_doubt = record
                if overdue(record):
                    found.overdue.append(record)
            if page.before is None:
                return True
            query = replace(query, before=page.before)
        return not self._more(query)

    def _doubt(self, held: Record, who: str) -> Record:
        """The holder is gone: write the doubt down first, as any passer-by would, and then the decision."""
        doubted: Record | None = self.store.carry_out(
            Settle(
                held,
                Role.PASSER_BY,
                State.IN_DOUBT,
                by=f"{Role.OPERATOR}:{who}",
                error="LeaseEnded",
                why="the lease ended",
            )
        )
        if doubted is None or doubted.state is not State.IN_DOUBT or doubted.fence != held.fence:
            raise _moved_on(held, doubted)
        return doubted


# -- what may be decided about a record -----------------------------------------------------------------------------


def _kept(record: Record, resolution: Resolution, result: Any) -> tuple[bytes | None, str | None]:
    """What callers will get: the envelope, or why there is none."""
    if resolution is not Resolution.HAPPENED:
        if result is not NOT_GIVEN:
            raise Misconfigured(f"a result goes with happened, not with {resolution.value}")
        if resolution is Resolution.NOT_DONE:
            return None, None
        # Neither the operator's name nor the reason: this text is shown to the caller's customers.
        return encode_refusal(Refused("refused, as an operator found out"), max_bytes=RESULT_MAX_BYTES), "Resolved"
    if result is NOT_GIVEN:
        if record.happened is not None and record.happened.result is not None:
            return record.happened.result, None
        return None, "resolved by an operator, without a result"
    try:
        return encode(result, max_bytes=RESULT_MAX_BYTES), None
    except NotStorable as not_storable:
        raise Misconfigured(f"the result cannot be kept: {not_storable}") from not_storable


def _text(what: str, given: str) -> str:
    text = given.strip()
    if not text:
        raise Misconfigured(f"an operator's decision needs a {what}")
    if not text.isprintable():  # also lone surrogates, which a terminal's broken bytes become
        raise Misconfigured(f"the {what} holds characters that cannot be printed")
    if len(text) > TEXT_MAX_CHARS:
        raise Misconfigured(f"the {what} is {len(text)} characters long; {TEXT_MAX_CHARS} is the limit")
    return text


def _moved_on(seen: Record, now: Record | None) -> MovedOn:
    state = "it is gone" if now is None else f"it is now {now.state}, {last_move(now)}"
    return MovedOn(f"{seen.key} moved on since you looked: {state}; nothing was written", record=now)


def _place(one: Record | RecordUnreadable) -> tuple[float, bytes] | None:
    """The cursor of the page that follows this one."""
    return one.cursor if isinstance(one, RecordUnreadable) else (one.created_at, one.key.digest)


def _gone(record: Record) -> bool:
    return record.state in EXPIRES and record.retain_until is not None and record.retain_until <= record.now
