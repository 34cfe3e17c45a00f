"""Rates over time, from the counts that guards write into the store: charts, replay rates, normal bands.

Counts are kept by the minute for 14 days. Whole hours that are over are read once and kept in a short form; the last
two hours are read again, because guards write a few seconds late.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field

from samekey.core.books import COUNTS_KEPT_SECONDS, Count
from samekey.core.ports import AsyncStore

HOUR = 60  # minutes
OPEN_HOURS = 2  # hours whose counts may still grow
FRESH_SECONDS = 2.0
BAND_LEAST = 20  # attempts of an hour that make a rate
BAND_HOURS_LEAST = 6  # hours that make a band
POINTS = {3600: 1, 24 * 3600: 10, 7 * 24 * 3600: 60, 14 * 24 * 3600: 120}  # span -> minutes of a point

AGAIN = ("replayed", "waited")  # answered without an effect
SHOWN = ("new", "replayed", "waited", "reused", "refused", "in_doubt")


@dataclass(slots=True)
class Hour:
    """The counts of one hour."""

    minutes: dict[int, Counter[str]] = field(default_factory=dict)
    sources: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    operations: Counter[str] = field(default_factory=Counter)

    def add(self, count: Count) -> None:
        self.minutes.setdefault(count.minute, Counter())[count.outcome] += count.number
        self.sources[count.source][count.outcome] += count.number
        self.operations[count.operation] += count.number


@dataclass(frozen=True, slots=True)
class Series:
    """One outcome over time: a number a minute at each point."""

    outcome: str
    total: int
    values: list[float]

    @property
    def top(self) -> float:
        return max(self.values, default=0.0)

    @property
    def last(self) -> float:
        return self.values[-1] if self.values else 0.0


@dataclass(frozen=True, slots=True)
class Band:
    """The replay rate of one source, and between which rates it usually is."""

    source: str
    attempts: int
    rate: float | None  # of the last hour; None with too few attempts
    low: float | None
    high: float | None
    hourly: list[float | None]  # the last 24 hours

    @property
    def above(self) -> bool:
        return self.rate is not None and self.high is not None and self.rate > self.high


@dataclass(frozen=True, slots=True)
class Rates:
    """What was counted in a span of time."""

    since: float
    until: float
    times: list[float]
    series: list[Series]
    totals: Counter[str]
    bands: list[Band]
    operations: Counter[str]

    @property
    def not_repeated(self) -> int:
        return sum(self.totals[outcome] for outcome in AGAIN)


class Counting:
    """The counts of one store."""

    def __init__(self, store: AsyncStore, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._hours: dict[int, Hour] = {}
        self._whole: set[int] = set()  # hours that were over when they were read
        self._read_at = 0.0
        self._turn = asyncio.Lock()

    async def rates(self, span_seconds: int) -> Rates:
        async with self._turn:
            now = self._clock()
            await self._fill(now, min(max(span_seconds, 24 * 3600), COUNTS_KEPT_SECONDS))
        return self._rates(now, span_seconds)

    @property
    def operations(self) -> set[str]:
        """The operations that were counted, as far as they were read."""
        return {name for hour in self._hours.values() for name in hour.operations}

    async def _fill(self, now: float, span_seconds: int) -> None:
        last = int(now // 3600)
        first = int((now - span_seconds) // 3600)
        missing = [hour for hour in range(first, last - OPEN_HOURS + 1) if hour not in self._whole]
        if now - self._read_at > FRESH_SECONDS:
            missing += list(range(last - OPEN_HOURS + 1, last + 2))  # and what a clock ahead of ours has counted
            self._read_at = now
        for begin, end in _spans(missing):
            fresh = {hour: Hour() for hour in range(begin, end)}
            async for count in self._counts(begin * 3600.0, end * 3600.0):
                fresh[count.minute // HOUR].add(count)
            self._hours |= fresh
            self._whole.update(hour for hour in fresh if hour <= last - OPEN_HOURS)
        for hour in [one for one in self._hours if one < last - COUNTS_KEPT_SECONDS // 3600]:
            del self._hours[hour]
            self._whole.discard(hour)

    async def _counts(self, since: float, until: float) -> AsyncIterator[Count]:
        while since < until:
            counts = await self._store.counts(since, until)
            for count in counts:
                yield count
            if not counts:
                return
            since = (counts[-1].minute + 1) * 60.0

    def _rates(self, now: float, span_seconds: int) -> Rates:
        step = POINTS.get(span_seconds, 10)
        last = int(now // 60) // step * step
        first = last - span_seconds // 60 + step
        points = range(first, last + 1, step)
        numbers: dict[str, Counter[int]] = {outcome: Counter() for outcome in SHOWN}
        totals: Counter[str] = Counter()
        operations: Counter[str] = Counter()
        for hour, counted in self._hours.items():
            if (hour + 1) * HOUR <= first or hour * HOUR > last + step:
                continue
            operations.update(counted.operations)
            for minute, outcomes in counted.minutes.items():
                if first <= minute < last + step:
                    totals.update(outcomes)
                    for outcome in SHOWN:
                        numbers[outcome][minute // step * step] += outcomes[outcome]
        minutes = [min(step, max(1, int(now // 60) + 1 - point)) for point in points]
        series = [
            Series(
                outcome,
                totals[outcome],
                [numbers[outcome][point] / long for point, long in zip(points, minutes, strict=True)],
            )
            for outcome in SHOWN
        ]
        return Rates(
            since=first * 60.0,
            until=now,
            times=[point * 60.0 for point in points],
            series=series,
            totals=totals,
            bands=self._bands(now),
            operations=operations,
        )

    def _bands(self, now: float) -> list[Band]:
        """By source: the last hour against all hours before it."""
        last = int(now // 3600)
        sources = {source for hour in range(last - 24, last + 1) for source in self._hours.get(hour, Hour()).sources}
        bands = [self._band(source, last) for source in sources]
        return sorted(bands, key=lambda band: (not band.above, -band.attempts, band.source))

    def _band(self, source: str, last: int) -> Band:
        def rate(*hours: int) -> tuple[float | None, int]:
            total: Counter[str] = Counter()
            for hour in hours:
                total.update(self._hours.get(hour, Hour()).sources.get(source, ()))
            attempts = total.total()
            return (sum(total[one] for one in AGAIN) / attempts if attempts >= BAND_LEAST else None), attempts

        now, _ = rate(last - 1, last)
        before = sorted(
            known for hour in self._hours if hour < last - 1 for known in [rate(hour)[0]] if known is not None
        )
        enough = len(before) >= BAND_HOURS_LEAST
        return Band(
            source=source,
            attempts=rate(*range(last - 23, last + 1))[1],
            rate=now,
            low=before[len(before) // 20] if enough else None,
            high=before[-1 - len(before) // 20] if enough else None,
            hourly=[rate(hour)[0] for hour in range(last - 23, last + 1)],
        )


def _spans(hours: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Runs of neighbouring hours, as (first, after the last)."""
    begin = end = None
    for hour in sorted(set(hours)):
        if begin is None or hour != end:
            if begin is not None and end is not None:
                yield begin, end
            begin = hour
        end = hour + 1
    if begin is not None and end is not None:
        yield begin, end
