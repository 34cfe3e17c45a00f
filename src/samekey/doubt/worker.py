"""The recovery worker: looks at dead holds and doubts without waiting for a client to come back.

It decides nothing: `core.pursuit` does, by the boundary that the claim wrote. A worker finds what is due, keeps to the
rate of each operation, and drives. Several workers may run: the store lets one ask about a doubt at a time, and shards
by the first byte of the digest save them from meeting; a worker without work takes from the other shards.

A look that fails, or that leaves the record as it was, writes nothing: the record stays due. The worker leaves it alone
for a while (`Pauses`) and reads past it, so it neither keeps the worker busy nor hides the records that come after it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from samekey.core.boundary import Lookup
from samekey.core.errors import Misconfigured, SamekeyError, StoreError
from samekey.core.ports import Due, Query, Records
from samekey.core.pursuit import Pursued
from samekey.core.record import Record
from samekey.core.recovery import DOUBT_SECONDS, LOOKS_MAX, Look
from samekey.doubt.late import async_deliver, deliver
from samekey.doubt.pace import Bucket, Pauses, SlowDown
from samekey.guard.guards import AsyncGuard, Guard
from samekey.guard.operations import Declared
from samekey.guard.pursuing import async_pursue_record, declared_for, pursue_record

PAGE = 200  # records of one operation in one round: then it is the next operation's turn
EVERY_SECONDS = 5.0  # between two rounds that found nothing
AT_ONCE = 8  # looks under way at a time: lookups wait for the network
PARKED_PAGES_MAX = 50  # pages read to count what is parked

_log = logging.getLogger("samekey")


@dataclass
class Tally:
    """What a worker did so far."""

    looked: int = 0
    how: Counter[str] = field(default_factory=Counter)  # as `Pursued.how` says
    verdicts: Counter[str] = field(default_factory=Counter)
    refused: int = 0  # another worker asked first
    errors: int = 0
    late: int = 0  # late truths delivered to a function
    findings: int = 0  # late truths without a function
    undeclared: set[str] = field(default_factory=set)  # operations with records, which the guard does not declare

    def add(self, pursued: Pursued) -> None:
        self.looked += 1
        self.how[pursued.how] += 1
        inquiry = None if pursued.after is None else pursued.after.inquiry
        if pursued.how in ("asked", "parked") and inquiry is not None:
            self.verdicts[inquiry.verdict or "none"] += 1
        if pursued.how == "left":
            self.refused += 1

    def as_object(self) -> dict[str, Any]:
        return {
            "looked": self.looked,
            "recovered": dict(sorted(self.how.items())),
            "verdicts": dict(sorted(self.verdicts.items())),
            "asks_refused": self.refused,
            "errors": self.errors,
            "late_truths": self.late,
            "findings": self.findings,
            "undeclared": sorted(self.undeclared),
        }


class _Worker:
    """What both colours share: the settings, the rates, and the tally."""

    def __init__(
        self,
        guard: Any,
        *,
        shard: tuple[int, int] = (0, 1),
        rates: Mapping[str, float] | None = None,
        quiet: float = 0.0,
        at_once: int = AT_ONCE,
        looks_max: int = LOOKS_MAX,
        doubt_seconds: float = DOUBT_SECONDS,
        operations: Iterable[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        number, of = shard
        if not (0 <= number < of <= 256):
            raise Misconfigured(f"shard= is (number, of), with 0 <= number < of <= 256, not {shard!r}")
        if not 1 <= at_once <= 256:
            raise Misconfigured(f"at_once= is a number from 1 to 256, not {at_once!r}")
        self.guard = guard
        self.tally = Tally()
        self._shard, self._quiet, self._at_once = shard, quiet, at_once
        self._looks_max, self._doubt_seconds = looks_max, doubt_seconds
        self._only = None if operations is None else frozenset(operations)
        self._rates, self._clock = dict(rates or {}), clock
        self._buckets: dict[str, Bucket] = {}
        self._pauses: dict[str | None, Pauses] = {}  # by operation; None: late truths
        self._random = random.Random()  # noqa: S311 - jitter, nothing secret
        self._mutex = threading.Lock()

    def _bucket(self, operation: str) -> Bucket:
        bucket = self._buckets.get(operation)
        if bucket is None:
            rate = self._rates.get(operation)
            bucket = self._buckets[operation] = Bucket(rate and rate / self._shard[1], self._clock)
        return bucket

    def _look(self) -> Look:
        jitter = self._random.uniform(0.5, 1.5)
        return Look(can_run=False, jitter=jitter, looks_max=self._looks_max, doubt_seconds=self._doubt_seconds)

    def _declared(self, names: Iterable[str]) -> dict[str, Declared]:
        """The operations to look at, with their rules; those without are reported once."""
        found: dict[str, Declared] = {}
        for name in names:
            if self._only is not None and name not in self._only:
                continue
            declared = declared_for(self.guard, name)
            if declared is not None:
                found[name] = declared
            elif name not in self.tally.undeclared:
                self.tally.undeclared.add(name)
                _log.warning("%s has records, and this guard does not declare it: see guard.declare", name)
        return found

    def _due(self, name: str | None, shard: tuple[int, int] | None = None) -> Due:
        """A page of this operation, or of late truths, after what is left alone for now."""
        pauses = self._paused(name)
        limit = PAGE + len(pauses) + pauses.unreadable
        return Due(name, limit=limit, quiet=self._quiet, shard=shard or self._shard, late=name is None)

    def _paused(self, name: str | None) -> Pauses:
        return self._pauses.setdefault(name, Pauses(self._clock))

    def _todo(self, name: str | None, found: Records) -> list[Record]:
        """What of this page is not left alone."""
        pauses, unreadable = self._paused(name), len(found) - len(found.records)
        if unreadable > pauses.unreadable:
            self.tally.errors += unreadable - pauses.unreadable
            _log.warning("%d records that are due cannot be read: samekey doctor names them", unreadable)
            pauses.unreadable = unreadable
        return [one for one in found.records if not pauses.pauses(one.key.digest)][:PAGE]

    def _allowed(self, name: str, found: Records) -> Iterator[Record]:
        """Those that the rate of the operation allows now."""
        bucket = self._bucket(name)
        for record in self._todo(name, found):
            if not bucket.take():
                return
            yield record

    def _still(self, name: str, found: Records) -> bool:
        """Whether this page has a record that was not tried and failed."""
        pauses = self._paused(name)
        return not pauses.full and any(one.key.digest not in pauses for one in found.records)

    def _other_shard(self) -> tuple[int, int] | None:
        number, of = self._shard
        return None if of == 1 else ((number + self._random.randrange(1, of)) % of, of)

    def _failed(self, name: str | None, record: Record, error: Exception) -> bool:
        """Leave the record alone for a while; whether it was the first time."""
        with self._mutex:
            self.tally.errors += 1
        _log.warning("a look at a record of %s ended in %s", record.key.operation, type(error).__name__)
        return self._paused(name).add(record.key.digest)

    def _looked(self, record: Record, pursued: Pursued) -> bool:
        """Count a look; whether it went on: a record that is as it was is still due, and is left alone for a while."""
        with self._mutex:
            self.tally.add(pursued)
        pauses = self._paused(record.key.operation)
        if pursued.after is not None and pursued.after.version == record.version:
            return pauses.add(record.key.digest)
        pauses.drop(record.key.digest)
        return True

    def _delivered(self, record: Record, by_function: bool) -> bool:
        if by_function:
            self.tally.late += 1
        else:
            self.tally.findings += 1
        self._paused(None).drop(record.key.digest)
        return True

    def _slow_down(self, operation: str, error: SlowDown) -> None:
        self._bucket(operation).pause(error.retry_after)


class Worker(_Worker):
    """For `Guard`: `run()` in a thread or a process of its own, or `round()` from a scheduler."""

    guard: Guard

    def __init__(self, guard: Guard, **settings: Any) -> None:
        if not isinstance(guard, Guard):
            raise Misconfigured(f"Worker takes a Guard, not {type(guard).__name__}; AsyncWorker takes an AsyncGuard")
        super().__init__(guard, **settings)
        self._stop = threading.Event()

    def run(self, *, every: float = EVERY_SECONDS) -> Tally:
        """Look at what is due until `stop()`; what is under way is finished."""
        while not self._stop.is_set():
            try:
                looked = self.round()
            except StoreError as error:
                _log.warning("the store did not answer a worker: %s", type(error).__name__)
                self.tally.errors += 1
                looked = 0
            if not looked:
                self._stop.wait(every)
        return self.tally

    def run_once(self) -> Tally:
        """Look at everything that is due now, and come back."""
        while not self._stop.is_set():
            if not self.round() and not self._waits_for_rate():
                break
        return self.tally

    def stop(self) -> None:
        self._stop.set()

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def round(self) -> int:
        """One page of each operation; how many records went on, or failed for the first time."""
        declared = self._declared(self.guard.store.doubtful())
        looked = sum(self._round_of(name, one, self._shard) for name, one in declared.items())
        other = self._other_shard() if not looked else None
        if other is not None:
            looked = sum(self._round_of(name, one, other) for name, one in declared.items())
        return looked + self._deliver()

    def parked(self) -> int:
        """How many doubts are parked, of those that are read for it."""
        query, count = Query(waiting=True, limit=1000), 0
        for _ in range(PARKED_PAGES_MAX):
            page = self.guard.store.list(query)
            count += sum(1 for one in page.records if one.inquiry is not None and one.inquiry.parked)
            if len(page) < query.size:
                break
            last = page.records[-1]
            query = Query(waiting=True, limit=1000, before=(last.created_at, last.key.digest))
        return count

    def _round_of(self, name: str, declared: Declared, shard: tuple[int, int]) -> int:
        todo = list(self._allowed(name, self.guard.store.due(self._due(name, shard))))
        if not todo:
            return 0
        with ThreadPoolExecutor(min(self._at_once, len(todo)), thread_name_prefix="samekey-worker") as pool:
            return sum(pool.map(lambda record: self._look_at(record, declared), todo))

    def _look_at(self, record: Record, declared: Declared) -> bool:
        name = record.key.operation
        if self._stop.is_set():
            return False
        try:
            pursued = pursue_record(self.guard, record, declared, self._look(), self._wrap(name))
        except SamekeyError as error:
            return self._failed(name, record, error)
        return self._looked(record, pursued)

    def _wrap(self, operation: str) -> Callable[[Lookup], Lookup]:
        def wrap(lookup: Lookup) -> Lookup:
            def paced(record: Any) -> Any:
                try:
                    return lookup(record)
                except SlowDown as slow:
                    self._slow_down(operation, slow)
                    raise

            return paced

        return wrap

    def _waits_for_rate(self) -> bool:
        """Whether a rate alone keeps the worker from what is due: then wait a moment, and go on."""
        waits = [bucket.wait_seconds() for bucket in self._buckets.values()]
        longest = max(waits, default=0.0)
        if longest <= 0:
            return False
        self._stop.wait(min(longest, 1.0))
        names = self._declared(self.guard.store.doubtful())
        return any(self._still(name, self.guard.store.due(self._due(name))) for name in names)

    def _deliver(self) -> int:
        went_on = 0
        for record in self._todo(None, self.guard.store.due(self._due(None))):
            if self._stop.is_set():
                break
            try:
                went_on += self._delivered(record, deliver(self.guard, record))
            except Exception as error:  # of the user's function: the truth stays due
                went_on += self._failed(None, record, error)
        return went_on


class AsyncWorker(_Worker):
    """The same for `AsyncGuard`, as a task."""

    guard: AsyncGuard

    def __init__(self, guard: AsyncGuard, **settings: Any) -> None:
        if not isinstance(guard, AsyncGuard):
            raise Misconfigured(f"AsyncWorker takes an AsyncGuard, not {type(guard).__name__}")
        super().__init__(guard, **settings)
        self._stopped = False
        self._wake: asyncio.Event | None = None

    async def run(self, *, every: float = EVERY_SECONDS) -> Tally:
        """Look at what is due until `stop()`; what is under way is finished."""
        while not self._stopped:
            try:
                looked = await self.round()
            except StoreError as error:
                _log.warning("the store did not answer a worker: %s", type(error).__name__)
                self.tally.errors += 1
                looked = 0
            if not looked:
                await self._pause(every)
        return self.tally

    async def run_once(self) -> Tally:
        """Look at everything that is due now, and come back."""
        while not self._stopped:
            if not await self.round() and not await self._waits_for_rate():
                break
        return self.tally

    def stop(self) -> None:
        self._stopped = True
        if self._wake is not None:
            self._wake.set()

    @property
    def stopped(self) -> bool:
        return self._stopped

    async def round(self) -> int:
        """One page of each operation; how many records went on, or failed for the first time."""
        declared = self._declared(await self.guard.store.doubtful())
        looked = 0
        for name, one in declared.items():
            looked += await self._round_of(name, one, self._shard)
        other = self._other_shard() if not looked else None
        if other is not None:
            for name, one in declared.items():
                looked += await self._round_of(name, one, other)
        return looked + await self._deliver()

    async def parked(self) -> int:
        """How many doubts are parked, of those that are read for it."""
        query, count = Query(waiting=True, limit=1000), 0
        for _ in range(PARKED_PAGES_MAX):
            page = await self.guard.store.list(query)
            count += sum(1 for one in page.records if one.inquiry is not None and one.inquiry.parked)
            if len(page) < query.size:
                break
            last = page.records[-1]
            query = Query(waiting=True, limit=1000, before=(last.created_at, last.key.digest))
        return count

    async def _round_of(self, name: str, declared: Declared, shard: tuple[int, int]) -> int:
        todo = list(self._allowed(name, await self.guard.store.due(self._due(name, shard))))
        went_on = 0
        for start in range(0, len(todo), self._at_once):
            looks = [self._look_at(one, declared) for one in todo[start : start + self._at_once]]
            went_on += sum(await asyncio.gather(*looks))
        return went_on

    async def _look_at(self, record: Record, declared: Declared) -> bool:
        name = record.key.operation
        if self._stopped:
            return False
        try:
            pursued = await async_pursue_record(self.guard, record, declared, self._look(), self._wrap(name))
        except SamekeyError as error:
            return self._failed(name, record, error)
        return self._looked(record, pursued)

    def _wrap(self, operation: str) -> Callable[[Lookup], Lookup]:
        def wrap(lookup: Lookup) -> Lookup:
            async def paced(record: Any) -> Any:
                try:
                    verdict = lookup(record)
                    return await verdict if hasattr(verdict, "__await__") else verdict
                except SlowDown as slow:
                    self._slow_down(operation, slow)
                    raise

            return paced

        return wrap

    async def _waits_for_rate(self) -> bool:
        waits = [bucket.wait_seconds() for bucket in self._buckets.values()]
        longest = max(waits, default=0.0)
        if longest <= 0:
            return False
        await self._pause(min(longest, 1.0))
        for name in self._declared(await self.guard.store.doubtful()):
            if self._still(name, await self.guard.store.due(self._due(name))):
                return True
        return False

    async def _pause(self, seconds: float) -> None:
        self._wake = self._wake or asyncio.Event()
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            pass

    async def _deliver(self) -> int:
        went_on = 0
        for record in self._todo(None, await self.guard.store.due(self._due(None))):
            if self._stopped:
                break
            try:
                went_on += self._delivered(record, await async_deliver(self.guard, record))
            except Exception as error:  # of the user's function: the truth stays due
                went_on += self._failed(None, record, error)
        return went_on
