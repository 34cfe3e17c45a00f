"""A clock that moves only when a test moves it."""

from __future__ import annotations

import math
import threading


class ManualClock:
    """Seconds that move only by `advance`; give it to a store as its `clock`.

    >>> clock = ManualClock(100)
    >>> clock.advance(30)
    130.0
    >>> clock()
    130.0
    """

    def __init__(self, start: float = 0.0) -> None:
        self._seconds = float(start)
        self._mutex = threading.Lock()

    def __call__(self) -> float:
        with self._mutex:
            return self._seconds

    def __repr__(self) -> str:
        return f"<ManualClock at {self()} s>"

    def advance(self, seconds: float) -> float:
        """Move on by this many seconds and return the new time; never back, as a lease clock never steps back."""
        if not seconds >= 0 or math.isinf(seconds):
            raise ValueError(f"a clock moves on by zero or more seconds, not {seconds!r}")
        with self._mutex:
            self._seconds += seconds
            return self._seconds
