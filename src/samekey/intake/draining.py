"""The drain loop: turns of the environments, pauses after trouble, upkeep, and a stop within a deadline."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from samekey.core.errors import SamekeyError
from samekey.intake import admin, drainer
from samekey.intake.drainer import Drained, Rules, Turns
from samekey.intake.intake import Intake

IDLE_SECONDS = 0.05  # between two looks at an empty buffer
PAUSE_SECONDS = 0.1  # after an error; doubled up to the next one
PAUSE_MAX_SECONDS = 5.0
TEND_SECONDS = 1.0

_log = logging.getLogger("samekey")


class Drain:
    """Drains the buffer of an intake, in this thread: `run(stop)` until the event is set, or `once()`."""

    def __init__(self, intake: Intake, environments: Sequence[str] | None = None) -> None:
        self._intake, self._only = intake, environments
        self._turns = Turns(intake.settings.drain_quantum)
        self._rules = Rules(for_good, note=intake._note)
        self._tended: dict[str, float] = {}
        self.total = Drained()
        self.pauses = 0

    def run(self, stop: threading.Event) -> None:
        pause = PAUSE_SECONDS
        while not stop.is_set():
            try:
                done = self.once()
                self.tend()
            except SamekeyError as error:
                self.pauses += 1
                _log.warning("intake: the drainer pauses for %.1f s (%s)", pause, type(error).__name__)
                stop.wait(pause)
                pause = min(pause * 2, PAUSE_MAX_SECONDS)
                continue
            pause = PAUSE_SECONDS
            if not done.popped:
                stop.wait(IDLE_SECONDS)

    def once(self) -> Drained:
        """One turn of every environment."""
        settings, whole = self._intake.settings, Drained()
        for environment, quantum in self._turns.next(self.environments()):
            while quantum > 0:
                count = min(quantum, settings.drain_batch)
                done: Drained = self._intake.run(drainer.drain(environment, count, settings.drain_lease, self._rules))
                whole = whole.plus(done)
                quantum -= count
                if done.popped < count:
                    break
        self.total = self.total.plus(whole)
        return whole

    def until_empty(self, seconds: float = 60.0) -> Drained:
        """Drain until every environment is empty."""
        ends, whole = time.monotonic() + seconds, Drained()
        while time.monotonic() < ends:
            done = self.once()
            whole = whole.plus(done)
            if not done.popped:
                break
        return whole

    def tend(self) -> None:
        """Once a second: the filter of known keys, and runs whose time to live has ended."""
        now = time.monotonic()
        for environment in self.environments():
            if self._tended.get(environment, 0.0) + TEND_SECONDS <= now:
                self._tended[environment] = now
                if self._intake.in_redis:
                    self._intake.run(drainer.tend_filter(environment))
        if self._tended.get("", 0.0) + TEND_SECONDS <= now:
            self._tended[""] = now
            self._intake.run(drainer.expire(time.time(), self._intake.context()))

    def environments(self) -> list[str]:
        if self._only is not None:
            return list(self._only)
        found = self._intake.carry_out(admin.Environments())
        return [name for name, _ in found] or [self._intake.environment]


def for_good(error: BaseException) -> bool:
    """Whether the database refused the row itself. An error of the sink, or an unknown one, may pass."""
    cause = error.__cause__ if isinstance(error, SamekeyError) else error
    state = getattr(cause, "sqlstate", None)
    if state is not None:
        return str(state)[:2] in ("22", "23")
    return type(cause).__name__ == "IntegrityError" or isinstance(cause, UnicodeEncodeError)
