"""`Ops` and `AsyncOps`: the operator's view of one store. The steps are in the files of this room, once for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samekey.core.commands import Read
from samekey.core.drive import Steps, adrive, do, drive
from samekey.core.errors import RecordUnreadable
from samekey.core.key import Key
from samekey.core.ports import LIST_MAX, AsyncStore, Audits, Query, Store
from samekey.core.record import Record
from samekey.ops._refusals import NoSuchKey
from samekey.ops.adopting import Adopted, Row, adopting
from samekey.ops.counting import STATS_MAX, Attempts, Stats, attempts_between, counted
from samekey.ops.deciding import NOT_GIVEN, check, freeing, redacting, resolving
from samekey.ops.doubles import DOUBLES_MAX, Doubles, doubled
from samekey.ops.findings import AsyncFindings, Findings
from samekey.ops.listing import Page, Search, all_of, listed, searched
from samekey.ops.story import Resolution

AllOf = tuple[list[Record], list[RecordUnreadable], bool]


class Ops:
    """The operator's view of one store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.findings = Findings(store)

    def list_records(self, query: Query) -> Page:
        """One page of records; those past retention count as gone, as they do for callers."""
        page: Page = _now(listed(self.store, query))
        return page

    def search(self, search: Search) -> Page:
        """One page of a search, also by notes and by several terms."""
        page: Page = _now(searched(self.store, search))
        return page

    def all_of(self, search: Search, most: int) -> AllOf:
        """All records of a search, up to `most`; the damaged ones; and whether there may be more."""
        found: AllOf = _now(all_of(self.store, search, most))
        return found

    def find(
        self, text: str, *, operation: str | None = None, tenant: str | None = None, since: float | None = None
    ) -> Page:
        """Every record of this key text, whatever its operation or tenant where none is given.

        No store has an index for it: without `since` every record is read.
        """
        return self.list_records(Query(text=text, operation=operation, tenant=tenant, since=since, limit=LIST_MAX))

    def show(self, key: Key) -> Record:
        return _there(key, self.store.carry_out(Read(key)))

    def check(
        self, record: Record, resolution: Resolution, *, mark_seen: str | None = None, lease_is_over: bool = False
    ) -> None:
        """Raise what `resolve` would raise about this record; `mark_seen` is from an earlier look."""
        check(record, resolution, mark_seen=mark_seen, lease_is_over=lease_is_over)

    def resolve(
        self,
        seen: Record,
        resolution: Resolution,
        *,
        who: str,
        why: str,
        result: Any = NOT_GIVEN,
        lease_is_over: bool = False,
    ) -> Record:
        """Write down how a doubt ended, and return the record after that.

        `seen` is the record the operator was shown. Raises CannotResolve if it needs no decision, MovedOn if
        it is no longer the record that was shown; then nothing is written. `lease_is_over` decides also while a lease
        lives: the operator knows that its holder is gone, and a clock that was set back keeps it alive.
        """
        steps = resolving(self.store, seen, resolution, who=who, why=why, result=result, lease_is_over=lease_is_over)
        after: Record = _now(steps)
        return after

    def redact(self, seen: Record, *, who: str, why: str) -> Record:
        """Drop the stored results of a settled record; the record stays, so nothing can run twice."""
        after: Record = _now(redacting(self.store, seen, who=who, why=why))
        return after

    def free(self, seen: Record, *, who: str, why: str) -> None:
        """Remove a settled or released record: the key may run again.

        `seen` is the record the operator was shown. Raises MovedOn if anything was written since: a late "it
        happened" would be deleted unread.
        """
        _now(freeing(self.store, seen, who=who, why=why))

    def audit(self, limit: int = LIST_MAX) -> Audits:
        """The last actions of operators, newest first."""
        return self.store.audit(limit)

    def stats(self, limit: int = STATS_MAX) -> Stats:
        """Counts, the oldest doubt and what is held past its lease: the unsettled first, up to `limit` of each."""
        found: Stats = _now(counted(self.store, limit))
        return found

    def attempts(self, since: float, until: float, *, operation: str | None = None) -> Attempts:
        """What guards counted between two times, in seconds since 1970."""
        found: Attempts = _now(attempts_between(self.store, since, until, operation))
        return found

    def doubles(self, query: Query, limit: int = DOUBLES_MAX) -> Doubles:
        """Contents that came under several keys, among the records of a span of time."""
        found: Doubles = _now(doubled(self.store, query, limit))
        return found

    def adopt(self, rows: Sequence[Row], *, why: str, retain_seconds: float) -> Adopted:
        """Write some rows of another table of keys as records; keys that have a record keep it."""
        adopted: Adopted = _now(adopting(self.store, rows, why=why, retain_seconds=retain_seconds))
        return adopted


class AsyncOps:
    """The same, awaited."""

    def __init__(self, store: AsyncStore) -> None:
        self.store = store
        self.findings = AsyncFindings(store)

    async def list_records(self, query: Query) -> Page:
        page: Page = await _later(listed(self.store, query))
        return page

    async def search(self, search: Search) -> Page:
        page: Page = await _later(searched(self.store, search))
        return page

    async def all_of(self, search: Search, most: int) -> AllOf:
        found: AllOf = await _later(all_of(self.store, search, most))
        return found

    async def find(
        self, text: str, *, operation: str | None = None, tenant: str | None = None, since: float | None = None
    ) -> Page:
        query = Query(text=text, operation=operation, tenant=tenant, since=since, limit=LIST_MAX)
        return await self.list_records(query)

    async def show(self, key: Key) -> Record:
        return _there(key, await self.store.carry_out(Read(key)))

    def check(
        self, record: Record, resolution: Resolution, *, mark_seen: str | None = None, lease_is_over: bool = False
    ) -> None:
        check(record, resolution, mark_seen=mark_seen, lease_is_over=lease_is_over)

    async def resolve(
        self,
        seen: Record,
        resolution: Resolution,
        *,
        who: str,
        why: str,
        result: Any = NOT_GIVEN,
        lease_is_over: bool = False,
    ) -> Record:
        steps = resolving(self.store, seen, resolution, who=who, why=why, result=result, lease_is_over=lease_is_over)
        after: Record = await _later(steps)
        return after

    async def redact(self, seen: Record, *, who: str, why: str) -> Record:
        after: Record = await _later(redacting(self.store, seen, who=who, why=why))
        return after

    async def free(self, seen: Record, *, who: str, why: str) -> None:
        await _later(freeing(self.store, seen, who=who, why=why))

    async def audit(self, limit: int = LIST_MAX) -> Audits:
        return await self.store.audit(limit)

    async def stats(self, limit: int = STATS_MAX) -> Stats:
        found: Stats = await _later(counted(self.store, limit))
        return found

    async def attempts(self, since: float, until: float, *, operation: str | None = None) -> Attempts:
        found: Attempts = await _later(attempts_between(self.store, since, until, operation))
        return found

    async def doubles(self, query: Query, limit: int = DOUBLES_MAX) -> Doubles:
        found: Doubles = await _later(doubled(self.store, query, limit))
        return found

    async def adopt(self, rows: Sequence[Row], *, why: str, retain_seconds: float) -> Adopted:
        adopted: Adopted = await _later(adopting(self.store, rows, why=why, retain_seconds=retain_seconds))
        return adopted


def _now(steps: Steps) -> Any:
    return drive(steps, do)


async def _later(steps: Steps) -> Any:
    return await adrive(steps, do)


def _there(key: Key, record: Record | None) -> Record:
    if record is None:
        raise NoSuchKey(f"there is no record of {key}", key=key.text)
    return record
