"""One content under several keys, by where it came from: mostly a client that makes a new key for each retry.

Records are compared from the newest backwards, beside the requests and at a measured pace: up to COMPARED_MAX of them,
of the last COMPARED_SECONDS. A page shows what was compared so far, and says how far that is. Later visits read only
what is new.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from samekey.core.key import Key
from samekey.core.ports import AsyncStore, Query, place_of
from samekey.core.record import Record
from samekey.core.states import State
from samekey.ops.listing import gone

COMPARED_MAX = 50_000  # about 50 MB
COMPARED_SECONDS = 7 * 24 * 3600.0
PAGE = 500
PATIENCE_SECONDS = 0.1  # that a page waits for the first results
PACE = 2.0  # pause after each page, in lengths of reading it
OVERLAP_SECONDS = 60.0  # read again: claims that committed late
GROUPS_SHOWN = 20

# What a split is called, and the attributes that may carry it.
SPLITS = {
    "client_version": ("Client version", ("client_version",)),
    "endpoint": ("Endpoint", ("endpoint", "route", "source")),
    "tenant": ("Tenant", ()),
    "api_key_id": ("API key", ("api_key_id",)),
    "region": ("Region", ("region",)),
}


class Seen(NamedTuple):
    """What is remembered of a record."""

    key: Key
    state: State
    at: float
    attributes: tuple[tuple[str, str], ...]

    def of(self, split: str) -> str:
        if split == "tenant":
            return self.key.tenant or ""
        own = dict(self.attributes)
        return next((own[name] for name in SPLITS[split][1] if name in own), "")


@dataclass(frozen=True, slots=True)
class Share:
    """How many records of one value are repeats."""

    value: str
    repeats: int
    records: int


@dataclass(frozen=True, slots=True)
class Compared:
    """What was compared so far."""

    records: int
    since: float | None
    reading: bool
    groups: Sequence[Sequence[Seen]]  # the newest first; the first of each is the oldest record
    repeats: int
    days: Sequence[tuple[int, int]]  # day since 1970, repeats
    shares: Sequence[Share]


@dataclass(slots=True)
class Comparing:
    """Compares the records of one store."""

    store: AsyncStore
    tenant: str | None = None
    clock: Callable[[], float] = time.time
    _seen: dict[bytes, tuple[tuple[str, str | None, bytes], Seen]] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None
    _newest: float | None = None
    _oldest: float | None = None

    async def compared(self, split: str) -> Compared:
        if self._task is None or self._task.done():
            if self._task is not None and not self._task.cancelled() and self._task.exception() is not None:
                error, self._task = self._task.exception(), None
                raise error  # type: ignore[misc] # it was checked above
            self._task = asyncio.get_running_loop().create_task(self._read())
        await asyncio.wait([self._task], timeout=PATIENCE_SECONDS)
        return self._summed(split, reading=not self._task.done())

    async def _read(self) -> None:
        """From the newest record back to what is known, or to the limits."""
        end = self.clock() - COMPARED_SECONDS
        until = end if self._newest is None else max(end, self._newest - OVERLAP_SECONDS)
        query = Query(limit=PAGE, since=until)
        newest = self._newest
        while len(self._seen) < COMPARED_MAX:
            began = time.perf_counter()
            page = await self.store.list(query)
            for record in page.records:
                self._add(record)
                newest = max(newest or 0.0, record.created_at)
            if page:
                self._oldest = min(self._oldest or place_of(page[-1])[0], place_of(page[-1])[0])
            if len(page) < PAGE:
                break
            query = replace(query, before=place_of(page[-1]))
            await asyncio.sleep((time.perf_counter() - began) * PACE)
        self._newest = newest
        self._forget(end)

    def _add(self, record: Record) -> None:
        key = record.key
        if record.content is None or gone(record) or self.tenant not in (None, key.tenant):
            return
        if record.state in (State.RELEASED, State.CLOSED):
            return  # known to have had no effect
        content = (key.operation, key.tenant, record.content)
        self._seen[key.digest] = content, Seen(key, record.state, record.created_at, record.attributes)

    def _forget(self, end: float) -> None:
        too_many = len(self._seen) - COMPARED_MAX
        old = [digest for digest, (_, seen) in self._seen.items() if seen.at < end]
        if too_many > len(old):
            old = sorted(self._seen, key=lambda digest: self._seen[digest][1].at)[:too_many]
        for digest in old:
            del self._seen[digest]

    def _summed(self, split: str, *, reading: bool) -> Compared:
        groups: defaultdict[tuple[str, str | None, bytes], list[Seen]] = defaultdict(list)
        for content, seen in self._seen.values():
            groups[content].append(seen)
        several = [sorted(group, key=lambda seen: seen.at) for group in groups.values() if len(group) > 1]
        several.sort(key=lambda group: group[-1].at, reverse=True)
        repeats = [seen for group in several for seen in group[1:]]
        records = Counter(seen.of(split) for _, seen in self._seen.values())
        by_value = Counter(seen.of(split) for seen in repeats)
        days = Counter(int(seen.at // 86400) for seen in repeats)
        today = int(self.clock() // 86400)
        first = int((self._oldest or self.clock()) // 86400)
        return Compared(
            records=len(self._seen),
            since=self._oldest,
            reading=reading,
            groups=several[:GROUPS_SHOWN],
            repeats=len(repeats),
            days=[(day, days[day]) for day in range(max(min(first, today - 6), today - 30), today + 1)],
            shares=[Share(value, number, records[value]) for value, number in by_value.most_common(20)],
        )
