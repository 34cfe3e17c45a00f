"""What a report shows of many pairs, in bounded memory: how many, when, how far apart, and from which source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from samekey.detect.pairs import Pair
from samekey.detect.rule_file import Rule

SOURCES_MAX = 1000  # different sources that are counted by themselves; the rest is "other"
DAYS_MAX = 5000  # 13 years
DAY_SECONDS = 86_400
OTHER = ("other",)
K = TypeVar("K", bound=Hashable)
# Upper ends of the distances, in seconds: an immediate retry, a queue's retry, a person, a daily import.
GAPS = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0, 604_800.0)
GAP_LABELS = ("100 ms", "1 s", "10 s", "1 min", "10 min", "1 h", "6 h", "1 d", "7 d", "longer")


@dataclass
class Tally:
    rule: Rule
    rows: int = 0  # that could be duplicates
    duplicates: int = 0
    first: float | None = None  # seconds since 1970
    last: float | None = None
    by_day: Counter[int] = field(default_factory=Counter)  # days since 1970
    by_gap: Counter[int] = field(default_factory=Counter)  # position in GAP_LABELS
    by_source: Counter[tuple[str, ...]] = field(default_factory=Counter)
    rows_by_source: Counter[tuple[str, ...]] = field(default_factory=Counter)

    def saw(self, rows: int, source: tuple[Any, ...]) -> None:
        self.rows += rows
        if self.rule.source:
            _add(self.rows_by_source, _texts(source), rows, SOURCES_MAX, OTHER)

    def add(self, pair: Pair) -> None:
        self.duplicates += 1
        if self.rule.source:
            _add(self.by_source, _texts(pair.source), 1, SOURCES_MAX, OTHER)
        if pair.at is not None:
            self.first = pair.at if self.first is None else min(self.first, pair.at)
            self.last = pair.at if self.last is None else max(self.last, pair.at)
            _add(self.by_day, int(pair.at // DAY_SECONDS), 1, DAYS_MAX, 0)
        if pair.gap_seconds is not None:
            place = next((n for n, end in enumerate(GAPS) if pair.gap_seconds <= end), len(GAPS))
            self.by_gap[place] += 1

    @property
    def rate(self) -> float:
        """Duplicates for each row."""
        return self.duplicates / self.rows if self.rows else 0.0

    @property
    def above(self) -> bool:
        """Whether the rate itself is an alert."""
        return self.rule.alert_above is not None and self.rate > self.rule.alert_above


def _texts(source: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple("-" if value is None else str(value) for value in source)


def _add(counter: Counter[K], key: K, number: int, most: int, other: K) -> None:
    counter[key if key in counter or len(counter) < most else other] += number
