"""What a store holds, by state and operation; and what its guards counted, by operation, source and outcome.

The steps are written once for both colours (see `core.drive.do`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from samekey.core.books import Count, minutes_between
from samekey.core.drive import Steps
from samekey.core.errors import RecordUnreadable
from samekey.core.ports import LIST_MAX, Query, waits
from samekey.core.record import Record
from samekey.core.states import State
from samekey.ops.listing import Page, read_page
from samekey.ops.story import overdue, since

STATS_MAX = 10_000  # records of each kind that one `stats` looks at: bounds its time, and how long a store is kept busy
READINGS_MAX = 200  # of counts: two million of them, which is 14 days of a hundred series in each minute


@dataclass(slots=True)
class Stats:
    """What a store holds, as far as it was looked at."""

    by_state: Counter[State] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    oldest_doubt: Record | None = None
    overdue: list[Record] = field(default_factory=list)  # held past their lease, the longest held first
    longest: dict[str, float] = field(default_factory=dict)  # by operation: seconds from a claim to its completion
    clock: float | None = None  # the store's, when the first page was read
    unsettled_complete: bool = True  # every started and in_doubt record was looked at
    settled_complete: bool = True
    unreadable: dict[Any, RecordUnreadable] = field(default_factory=dict)  # by its place in the order


@dataclass(slots=True)
class Attempts:
    """What guards counted in a span of time: a number for each operation, source and outcome."""

    numbers: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    complete: bool = True


def counted(store: Any, limit: int) -> Steps:
    """Counts, the oldest doubt and what is held past its lease: the unsettled first, up to `limit` of each."""
    found = Stats()
    unsettled = (State.IN_DOUBT, State.STARTED)
    found.unsettled_complete = yield from _count(store, found, Query(states=unsettled), limit)
    # Then all of them, and not by state: a record in a state that this version does not know has none to ask for.
    limit += found.by_state.total()
    found.settled_complete = yield from _count(store, found, Query(), limit, but=unsettled)
    found.overdue.sort(key=since)
    return found


def _count(store: Any, found: Stats, query: Query, limit: int, but: tuple[State, ...] = ()) -> Steps:
    for _ in range(0, limit, LIST_MAX):
        page: Page = yield from read_page(store, replace(query, limit=min(limit, LIST_MAX)))
        found.unreadable |= {one.cursor: one for one in page.unreadable}
        for record in page.records:
            if record.state in but:
                continue
            found.clock = record.now if found.clock is None else found.clock
            found.by_state[record.state] += 1
            found.operations[record.key.operation] += 1
            took, name = _took(record), record.key.operation
            found.longest[name] = max(took, found.longest.get(name, 0.0))
            if record.state is State.IN_DOUBT and since(record) <= since(found.oldest_doubt or record):
                found.oldest_doubt = record
            if overdue(record) and waits(record):  # a dead hold of Repeatable ends by itself
                found.overdue.append(record)
        if page.before is None or page.cut:
            return not page.cut
        query = replace(query, before=page.before)
    return not (yield partial(store.list, replace(query, limit=1)))


def _took(record: Record) -> float:
    """How long the attempt ran that completed the record; 0 if another one, or a person, settled it."""
    if record.state is not State.COMPLETED or len(record.moves) < 2:
        return 0.0
    before, last = record.moves[-2:]
    return last.at - before.at if before.after == State.STARTED and last.who == record.attempt else 0.0


def attempts_between(store: Any, since: float, until: float, operation: str | None = None) -> Steps:
    """What guards counted from `since` to `until`. A reading has whole minutes: the next one begins after its last."""
    found = Attempts()
    _, last = minutes_between(since, until)
    for _ in range(READINGS_MAX):
        counts: list[Count] = yield partial(store.counts, since, until)
        for one in counts:
            if operation in (None, one.operation):
                found.numbers[one.operation, one.source, one.outcome] += one.number
        if not counts or counts[-1].minute >= last:
            return found
        since = (counts[-1].minute + 1) * 60.0
    found.complete = False
    return found
