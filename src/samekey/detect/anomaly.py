"""Is this rate higher than usual? A negative-binomial tail over a baseline that learns, in plain Python.

Counts come in buckets: of `n` requests `k` were duplicates (or replays, or conflicts). The baseline share is a slow
average that leaves the last minutes out, so that a spike does not become normal while it lasts. Real rates drift, so
counts vary more than Poisson's: `phi` is that surplus, from quantiles of a week of minutes, which past spikes hardly
move. The score of a bucket is -log10 of the probability that a usual rate gives so many; above 6 it is an alarm.

Poisson's tail and CUSUM gave 35 to 138 false alarms a week on the same traffic (`tests/detect/test_anomaly.py` has the
model). A rise of three times cannot be caught in a minute with less than one false alarm a week: this does not try.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

ALARM = 6.0  # of the score: one in a million buckets
LEAST = 3  # events in a window before it can be an alarm
WEEK_MINUTES = 7 * 24 * 60
SCORE_MAX = 300.0


@dataclass(frozen=True, slots=True)
class Settings:
    windows: tuple[int, ...]  # seconds; the highest score counts
    half_life: float  # seconds, of the baseline
    prior: tuple[float, float]  # events and requests that are believed before any are seen
    phi: float | None = None  # None: learned
    lag: float = 300.0  # seconds that the baseline leaves out
    warm_up: float = 600.0  # seconds without a score


REPLAYS = Settings(windows=(10, 30, 60), half_life=6 * 3600, prior=(1, 1000))
# Duplicate effects are rare: one in 100,000 is usual, so the surplus cannot be learned from them.
DUPLICATES = Settings(windows=(60,), half_life=24 * 3600, prior=(1, 100_000), phi=0.25, warm_up=0.0)


class Anomaly:
    """One signal with one label."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._late: deque[tuple[float, int, int]] = deque()  # buckets that are not in the baseline yet
        self._recent: deque[tuple[float, int, int]] = deque()  # buckets of the longest window
        self._late_span = self._recent_span = 0.0
        self._events, self._requests = 0.0, 0.0
        self._minute = [0.0, 0, 0.0]  # seconds, events, expected
        self._ratios: deque[float] = deque(maxlen=WEEK_MINUTES)
        self._inverse: deque[float] = deque(maxlen=WEEK_MINUTES)
        self._learned = settings.phi if settings.phi is not None else 0.1
        self._seen = 0.0
        self.score = 0.0

    @property
    def share(self) -> float:
        """The usual share of events."""
        events, requests = self._settings.prior
        return (self._events + events) / (self._requests + requests)

    @property
    def phi(self) -> float:
        return self._learned

    def band(self, requests: float) -> tuple[float, float]:
        """The usual share, two deviations to both sides, for so many requests."""
        mean = self.share * max(requests, 1.0)
        spread = 2 * math.sqrt(mean + self.phi * mean * mean)
        return max(0.0, mean - spread) / max(requests, 1.0), (mean + spread) / max(requests, 1.0)

    def observe(self, k: int, n: int, seconds: float = 10.0) -> float:
        """Take a bucket of `n` requests with `k` events; its score."""
        settings = self._settings
        self._seen += seconds
        self._recent.append((seconds, k, n))
        self._recent_span += seconds
        while self._recent_span > settings.windows[-1] and len(self._recent) > 1:
            self._recent_span -= self._recent.popleft()[0]
        self.score = self._score() if self._seen > settings.warm_up else 0.0
        self._learn(k, n, seconds)
        return self.score

    def _score(self) -> float:
        best, share, phi = 0.0, self.share, self.phi
        windows = iter(self._settings.windows)
        window = next(windows)
        span = events = requests = 0.0
        for seconds, k, n in reversed(self._recent):
            while span + seconds > window and span:
                best = max(best, _score_of(int(events), share * requests, phi))
                window = next(windows)
            span, events, requests = span + seconds, events + k, requests + n
        return min(max(best, _score_of(int(events), share * requests, phi)), SCORE_MAX)

    def _learn(self, k: int, n: int, seconds: float) -> None:
        settings = self._settings
        self._late.append((seconds, k, n))
        self._late_span += seconds
        while self._late_span > settings.lag:
            passed, events, requests = self._late.popleft()
            self._late_span -= passed
            kept = 0.5 ** (passed / settings.half_life)
            self._events, self._requests = self._events * kept + events, self._requests * kept + requests
        if settings.phi is not None or self._seen <= settings.warm_up:
            return
        minute = self._minute
        minute[0], minute[1], minute[2] = minute[0] + seconds, minute[1] + k, minute[2] + self.share * n
        if minute[0] >= 60:
            if minute[2] > 0:
                self._ratios.append(minute[1] / minute[2])
                self._inverse.append(1 / minute[2])
            self._minute = [0.0, 0, 0.0]
            if len(self._ratios) % 60 == 0:
                self._learned = self._surplus()

    def _surplus(self) -> float:
        """How much more the counts vary than Poisson's; quantiles, so that a spike of the week does not count."""
        ordered = sorted(self._ratios)
        low, high = (ordered[int(part * (len(ordered) - 1))] for part in (0.16, 0.84))
        return max(0.1, 1.5 * ((high - low) / 2) ** 2 - sum(self._inverse) / len(self._inverse))


def _score_of(events: int, mean: float, phi: float) -> float:
    return -log10_tail(events, mean, phi) if events >= LEAST else 0.0


def log10_tail(k: int, mean: float, phi: float) -> float:
    """log10 of the probability of `k` or more events when `mean` are usual; 0 for a count that is not high."""
    if mean <= 0:
        return -SCORE_MAX if k else 0.0
    if k <= mean:
        return 0.0
    size = 1 / phi
    grows = mean / (mean + size)
    first = (
        math.lgamma(k + size)
        - math.lgamma(size)
        - math.lgamma(k + 1)
        + size * math.log(size / (mean + size))
        + k * math.log(grows)
    )
    term = total = 1.0
    for place in range(k, k + 100_000):  # each term is smaller than the one before, because k is above the mean
        term *= grows * (place + size) / (place + 1)
        total += term
        if term < total * 1e-9:
            break
    return min(0.0, (first + math.log(total)) / math.log(10))
