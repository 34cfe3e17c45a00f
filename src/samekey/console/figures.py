"""What every page shows of the store: how much waits for a decision, which findings are open, what the store promises.

The figures are read together and shared by all requests for a moment. Where reading them takes long, a page gets the
last ones with their time, and they are read again beside it. A store that does not answer gives no figures at all: no
page may show 0 doubts where the number is not known.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from samekey.core.books import Finding
from samekey.core.boundary import repeats
from samekey.core.ports import LIST_MAX, Query, place_of
from samekey.core.record import Record
from samekey.core.states import State
from samekey.ops import AsyncOps
from samekey.ops.listing import gone
from samekey.ops.story import conflicts, doers_of

FRESH_SECONDS = 2.0  # figures of this age are shown as they are
QUICK_SECONDS = 0.05  # a reading that takes longer is done beside the page
IDLE_FACTOR = 20.0  # pause between two readings, in lengths of a reading: they take 5 % of a core at most
WAITING_MAX = 10_000  # records that wait for a decision; more are "more than 10,000"
FINDINGS_MAX = 200  # open findings that are looked at
DOUBLED_KINDS = frozenset({"conflicting", "doubled", "double", "duplicate", "duplicates"})  # the effect is there twice


@dataclass(frozen=True, slots=True)
class Figures:
    """One reading."""

    at: float  # this machine's clock
    store_at: float  # the store's clock; this machine's where no record shows it
    doubts: Sequence[Record]  # oldest first
    claims: Sequence[Record]  # held past their lease, and not harmless to repeat
    more: bool  # there are more than WAITING_MAX
    findings: Sequence[Finding]  # open, newest first
    took: float

    @property
    def doubled(self) -> list[Finding]:
        return [one for one in self.findings if one.kind in DOUBLED_KINDS]

    def about(self, digest: str) -> list[Finding]:
        """The open findings about one key."""
        return [one for one in self.findings if one.digest == digest]

    def doubles(self, record: Record) -> bool:
        """Whether the effect of this record is known to be there more than once."""
        several = len(doers_of(record)) > 1 and not repeats(record.boundary)
        return (
            several
            or conflicts(record)
            or any(one.kind in DOUBLED_KINDS for one in self.about(record.key.digest.hex()))
        )

    @property
    def signature(self) -> tuple[Any, ...]:
        """Changes with what the live updates show."""
        newest = self.doubts[-1].key.digest if self.doubts else b""
        return len(self.doubts), newest, len(self.claims), self.more, tuple(one.id for one in self.findings)


class Watch:
    """Reads the figures of one store, for one tenant or for all."""

    def __init__(self, ops: AsyncOps, tenant: str | None, clock: Callable[[], float] = time.time) -> None:
        self._ops, self._tenant, self._clock = ops, tenant, clock
        self._last: Figures | None = None
        self._reading: asyncio.Task[Figures] | None = None

    async def current(self, *, fresh: bool = False) -> Figures:
        """The figures; with `fresh` those of now, as after an action."""
        last = self._last
        if last is None or fresh:
            if fresh and self._reading is not None:
                await asyncio.wait([self._reading])  # it began before the action
            return await asyncio.shield(self._start())
        if self._clock() - last.at > max(FRESH_SECONDS, last.took * IDLE_FACTOR):
            reading = self._start()
            if last.took < QUICK_SECONDS:
                return await asyncio.shield(reading)
        return last

    def _start(self) -> asyncio.Task[Figures]:
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
            self._reading.add_done_callback(_looked_at)
        return self._reading

    async def _read(self) -> Figures:
        began = time.perf_counter()
        waiting, more = await self._waiting()
        findings = await self._ops.findings.list(accepted=False, limit=FINDINGS_MAX)
        if self._tenant is not None:
            findings = [one for one in findings if one.tenant == self._tenant]
        now = self._clock()
        self._last = Figures(
            at=now,
            store_at=waiting[0].now if waiting else now,
            doubts=[one for one in waiting if one.state is State.IN_DOUBT],
            claims=[one for one in waiting if one.state is State.STARTED],
            more=more,
            findings=findings,
            took=time.perf_counter() - began,
        )
        return self._last

    async def _waiting(self) -> tuple[list[Record], bool]:
        """What waits for a decision, oldest first; page by page, so that other requests have their turn."""
        found: list[Record] = []
        query = Query(waiting=True, oldest_first=True, tenant=self._tenant, limit=LIST_MAX)
        while len(found) <= WAITING_MAX:
            page = await self._ops.store.list(query)
            found += [one for one in page.records if not gone(one)]
            if len(page) < LIST_MAX:
                return found, page.cut
            query = Query(
                waiting=True, oldest_first=True, tenant=self._tenant, limit=LIST_MAX, before=place_of(page[-1])
            )
            await asyncio.sleep(0)
        return found[:WAITING_MAX], True


def _looked_at(task: asyncio.Task[Figures]) -> None:
    """An error of a reading beside a page is the next page's; asyncio need not complain about it."""
    if not task.cancelled():
        task.exception()
