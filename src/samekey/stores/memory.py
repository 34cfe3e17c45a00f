"""Records in this process's memory: for tests and single-process tools; gone when the process is.

One dict, one mutex held for a few microseconds and never across a wait. `MemoryStore` and
`AsyncMemoryStore` may share their memory: `AsyncMemoryStore(store)`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar
from uuid import uuid4

from samekey.core.books import (
    COUNTS_FORGOTTEN_MAX,
    COUNTS_MAX,
    Count,
    Finding,
    FindingQuery,
    acceptance_entry,
    check_acceptance,
    counts_of,
    kept_minutes,
    merged,
    minutes_between,
)
from samekey.core.commands import Open, Read, StoreCommand, Wait
from samekey.core.errors import Misconfigured, RecordUnreadable, SamekeyError
from samekey.core.key import Key
from samekey.core.parking import (
    REDELIVERED_FORGOTTEN_MAX,
    REDELIVERED_KEPT_SECONDS,
    Parked,
    ParkedQuery,
    check_redelivery,
    redelivery_entry,
)
from samekey.core.ports import Audits, Due, Health, Query, Records, Replies, Reply, no_transactions
from samekey.core.record import Audit, Record
from samekey.core.register import Moment, apply, audit_entry, expired, seen_at
from samekey.core.states import IN_DOUBT, STARTED
from samekey.loops import Bells
from samekey.stores._over_sync import OverSync
from samekey.stores._waiting import async_wait, wait

T = TypeVar("T")

Clock = Callable[[], float]


def check_url(url: str) -> None:
    if url not in ("memory:", "memory://"):
        raise Misconfigured("memory:// takes no path: each such store has its own memory")


class MemoryStore:
    """A store for `Guard`. `clock` is for tests: seconds that only move when a test moves them."""

    in_process = True  # it always answers: no deadline needs a helper thread

    def __init__(self, clock: Clock | None = None) -> None:
        self.name = "memory://"
        self._incarnation = uuid4().hex
        self._records: dict[bytes, Record] = {}
        self._audit: Audits = []
        self._counts: dict[tuple[int, str, str, str], int] = {}  # by series; about in the order of the minutes
        self._findings: dict[str, Finding] = {}
        self._parked: dict[str, Parked] = {}
        self._mutex = threading.Lock()
        self.bells = Bells()
        self._wall = clock or time.time
        self._tick = clock or time.monotonic
        self._token = 0
        _ALL.add(self)

    @classmethod
    def from_url(cls, url: str) -> MemoryStore:
        check_url(url)
        return cls()

    @property
    def incarnation(self) -> str:
        return self._incarnation

    def __repr__(self) -> str:
        return f"<MemoryStore: {len(self._records)} records, gone when this process ends>"

    def carry_out(self, command: StoreCommand) -> Reply:
        key = command.key
        if type(command) is Read:
            return self._read(key)
        digest = key.digest
        with self._mutex:
            moment = Moment(self._wall(), self._tick(), "", self._token + 1)
            records = self._records
            before = records.get(digest)
            if before is not None and before.key is not key:
                self._same_key(key, before)
            after = apply(before, command, moment)
            if after is before:
                return None if before is None else seen_at(before, moment)
            if after is None:
                del records[digest]
            else:
                records[digest] = after
                if after.token > self._token:
                    self._token = after.token
            if type(command) is not Open:
                entry = audit_entry(command, before, after, moment)
                if entry is not None:
                    self._audit.append(entry)
        self.bells.ring(digest)
        return None if after is None else seen_at(after, moment)

    def wait(self, command: Wait, timeout: float) -> Record | None:
        return wait(command.seen, timeout, lambda: self._read(command.key), self.bells)

    def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        replies: Replies = []
        for command in commands:
            try:
                replies.append(self.carry_out(command))
            except SamekeyError as error:
                replies.append(error)
        return replies

    def list(self, query: Query) -> Records:
        moment = self._moment()
        with self._mutex:
            here = list(self._records.values())
        found = [seen_at(record, moment) for record in here if not expired(record, moment)]
        return query.page(one for one in found if query.picks(one))

    def due(self, due: Due) -> Records:
        moment = self._moment()
        with self._mutex:
            here = list(self._records.values())
        return due.page(seen_at(record, moment) for record in here if not expired(record, moment))

    def doubtful(self) -> Sequence[str]:
        with self._mutex:
            here = list(self._records.values())
        return sorted({one.key.operation for one in here if one.state in (STARTED, IN_DOUBT)})

    def sweep(self, limit: int) -> int:
        moment = self._moment()
        with self._mutex:
            gone = _expired(self._records, moment)[: max(0, limit)]
            for digest in gone:
                del self._records[digest]
        return len(gone)

    def audit(self, limit: int) -> Audits:
        return self._audit[: -max(0, limit) - 1 : -1]

    def note_action(self, entry: Audit) -> None:
        with self._mutex:
            self._audit.append(entry._replace(at=self._wall()))

    def add_counts(self, counts: Sequence[Count]) -> None:
        first, last = kept_minutes(self._wall())
        with self._mutex:
            _add_counts(self._counts, counts, first, last)

    def counts(self, since: float, until: float) -> Sequence[Count]:
        first, last = minutes_between(since, until)
        first = max(first, kept_minutes(self._wall())[0])
        with self._mutex:
            here = list(self._counts.items())
        found = [(*series, number) for series, number in here if first <= series[0] <= last]
        return counts_of(sorted(found)[: COUNTS_MAX + 1])

    def keep_finding(self, finding: Finding) -> bool:
        with self._mutex:
            new = finding.id not in self._findings
            self._findings.setdefault(finding.id, finding)
            return new

    def findings(self, query: FindingQuery) -> Sequence[Finding]:
        now = self._wall()
        with self._mutex:
            here = list(self._findings.values())
        found = [finding for finding in here if query.picks(finding, now)]
        found.sort(key=lambda finding: finding.place, reverse=True)
        return found[: query.page_size]

    def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Finding | None:
        check_acceptance(by, why, until)
        with self._mutex:
            before = self._findings.get(id)
            if before is None:
                return None
            after = self._findings[id] = before.accepted(by, why, until)
            self._audit.append(acceptance_entry(before, after, self._wall()))
            return after

    def park(self, parked: Parked) -> None:
        with self._mutex:
            self._parked[parked.id] = parked

    def parked(self, query: ParkedQuery) -> Sequence[Parked]:
        with self._mutex:
            found = [parked for parked in self._parked.values() if query.picks(parked)]
        found.sort(key=lambda parked: parked.place, reverse=True)
        return found[: query.page_size]

    def redelivered(self, id: str, *, by: str) -> Parked | None:
        check_redelivery(by)
        now = self._wall()
        with self._mutex:
            before = self._parked.get(id)
            if before is None:
                return None
            after = self._parked[id] = replace(before, redelivered_at=now, redelivered_by=by)
            self._audit.append(redelivery_entry(before, by, now))
            for old in _long_redelivered(self._parked, now - REDELIVERED_KEPT_SECONDS):
                del self._parked[old]
            return after

    def health(self) -> Health:
        return Health(
            store=self.name,
            guarantee="claims last as long as this process and are seen by it alone",
            incarnation=self._incarnation,
            warnings=("records are gone when this process ends",),
        )

    def join(self, connection: Any) -> Any:
        raise no_transactions(self.name)

    def close(self) -> None:
        """Nothing to close; the records live as long as this object."""

    def _read(self, key: Key) -> Record | None:
        moment = self._moment()
        record = self._same_key(key, self._records.get(key.digest))
        return None if record is None or expired(record, moment) else seen_at(record, moment)

    def _same_key(self, key: Key, found: Record | None) -> Record | None:
        if found is not None and found.key != key:
            raise RecordUnreadable(f"the record found for {key} belongs to {found.key}: two keys with one digest")
        return found

    def _moment(self) -> Moment:
        return Moment(self._wall(), self._tick(), "", self._token + 1)


class AsyncMemoryStore(OverSync[MemoryStore]):
    """A store for `AsyncGuard`, with its own memory or that of a MemoryStore."""

    in_process = True

    def __init__(self, shared: MemoryStore | None = None, *, clock: Clock | None = None) -> None:
        super().__init__(shared if shared is not None else MemoryStore(clock))

    @classmethod
    def from_url(cls, url: str) -> AsyncMemoryStore:
        check_url(url)
        return cls()

    async def carry_out(self, command: StoreCommand) -> Reply:
        return self.sync.carry_out(command)

    async def wait(self, command: Wait, timeout: float) -> Record | None:
        return await async_wait(command.seen, timeout, lambda: self.carry_out(Read(command.key)), self.sync.bells)

    async def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        return self.sync.batch(commands)

    def join(self, connection: Any) -> Any:
        return self.sync.join(connection)

    async def _aside(self, work: Callable[[], T]) -> T:
        return work()


_ALL: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _expired(records: dict[bytes, Record], moment: Moment) -> list[bytes]:
    """Called with the mutex held. A loop with a condition is a function of its own there: see `_turns.py`."""
    return [digest for digest, record in records.items() if expired(record, moment)]


def _add_counts(kept: dict[tuple[int, str, str, str], int], counts: Sequence[Count], first: int, last: int) -> None:
    """Add what lies between these minutes, and forget some of what is older; called with the mutex held."""
    for count in merged(counts):
        if first <= count.minute <= last:
            kept[count.series] = kept.get(count.series, 0) + count.number
    for series in list(islice(kept, COUNTS_FORGOTTEN_MAX)):
        if series[0] >= first:
            break
        del kept[series]


def _long_redelivered(parked: dict[str, Parked], before: float) -> list[str]:
    """Called with the mutex held, as `_expired`."""
    old = (id for id, one in parked.items() if one.redelivered_at is not None and one.redelivered_at < before)
    return list(islice(old, REDELIVERED_FORGOTTEN_MAX))


def _after_fork_in_child() -> None:
    """A copy of the records, and of a mutex that some thread of the parent may have held."""
    for store in _ALL:
        store._mutex, store.bells = threading.Lock(), Bells()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
