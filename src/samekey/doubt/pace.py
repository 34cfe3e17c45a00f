"""How fast a worker goes: a token bucket for each operation, and a pause for each record whose look failed."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

from samekey.core.errors import Misconfigured

RATE_MAX = 10_000.0  # looks per second; beyond it a number is a mistake
SLOW_DOWN_SECONDS = 5.0  # after "too many requests" that does not say how long
PAUSE_SECONDS, PAUSE_MAX_SECONDS = 5.0, 3600.0  # after the first failure, doubled by each further one up to the second
PAUSED_MAX = 800  # records remembered for one operation; with them a page still fits into what a store lists


class SlowDown(Exception):
    """Raised by a lookup: the provider wants fewer requests. No doubt of the operation is asked for so long."""

    def __init__(self, retry_after: float = SLOW_DOWN_SECONDS) -> None:
        super().__init__(f"the provider wants a pause of {retry_after:g} s")
        self.retry_after = retry_after


def parse_rate(text: str) -> float:
    """Looks per second.

    >>> parse_rate("20/s"), parse_rate("30/min")
    (20.0, 0.5)
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)/(s|min|h)", text)
    if found is None:
        raise Misconfigured(f"a rate is written as 20/s, 30/min or 100/h, not {text!r}")
    rate = float(found[1]) / {"s": 1, "min": 60, "h": 3600}[found[2]]
    if not 0 < rate <= RATE_MAX:
        raise Misconfigured(f"a rate is more than 0 and at most {RATE_MAX:.0f}/s, not {text!r}")
    return rate


class Bucket:
    """So many looks per second, with a burst of one second's worth; shared by the threads of a worker."""

    def __init__(self, rate: float | None, clock: Callable[[], float]) -> None:
        self.rate, self._clock = rate, clock
        self._tokens, self._at = max(rate or 0.0, 1.0), clock()
        self._mutex = threading.Lock()

    def take(self) -> bool:
        """Whether one look may begin now."""
        if self.rate is None and self._at <= self._clock():
            return True
        with self._mutex:
            now = self._clock()
            if now < self._at:
                return False  # the provider wanted a pause
            rate = self.rate
            if rate is None:
                return True
            self._tokens = min(max(rate, 1.0), self._tokens + (now - self._at) * rate)
            self._at = now
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True

    def wait_seconds(self) -> float:
        """About how long until a look may begin."""
        with self._mutex:
            paused = self._at - self._clock()
            if paused > 0:
                return paused
            return 0.0 if self.rate is None else max(0.0, (1.0 - self._tokens) / self.rate)

    def pause(self, seconds: float) -> None:
        """Empty it: no look begins before so many seconds have passed."""
        with self._mutex:
            self._tokens, self._at = 0.0, max(self._at, self._clock() + max(0.0, seconds))


class Pauses:
    """Records of one operation whose look failed and wrote nothing: the store goes on listing them as due.

    Each is left alone for a while, which doubles with each failure. Where too many fail, the worker forgets those whose
    pause is over; a record that fits nowhere is tried again in the next round.
    """

    def __init__(self, clock: Callable[[], float], most: int = PAUSED_MAX) -> None:
        self.unreadable = 0  # rows seen in one page that are no records: they hide the rows after them
        self._clock, self._most = clock, most
        self._paused: dict[bytes, tuple[int, float]] = {}  # failures so far, and when the pause is over
        self._mutex = threading.Lock()

    def __len__(self) -> int:
        return len(self._paused)

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._paused

    @property
    def full(self) -> bool:
        return len(self._paused) >= self._most

    def pauses(self, digest: bytes) -> bool:
        """Whether this record is to be left alone now."""
        _, until = self._paused.get(digest, (0, 0.0))
        return self._clock() < until

    def add(self, digest: bytes) -> bool:
        """Remember a failure; whether the record was not remembered before, and there was room for it."""
        with self._mutex:
            now, (times, _) = self._clock(), self._paused.pop(digest, (0, 0.0))
            room = not self.full
            if not room:
                over = next((one for one, (_, until) in self._paused.items() if until <= now), None)
                if over is None:
                    return False
                del self._paused[over]
            pause = min(PAUSE_MAX_SECONDS, PAUSE_SECONDS * 2.0 ** min(times, 30))
            self._paused[digest] = (times + 1, now + pause)
            return room and not times

    def drop(self, digest: bytes) -> None:
        with self._mutex:
            self._paused.pop(digest, None)
