"""May this request be sent again, and when? Statuses and errors in, seconds to wait out.

    answer                      with a key, or a method that may be repeated        a POST without a key
    nothing was sent            again                                               again
    none or half, 408 500 502   again: the key protects an effect that happened     never: it may have happened
        504
    409                         again, with a key only: another attempt is running  never
    409, a problem without      never: in doubt, or done and not kept; a person     never
        a Retry-After           decides
    425 429 503                 again, after Retry-After                            never
    422 and the rest            never: the request must change                      never

A Retry-After that is longer than the longest wait ends the retries: the server asked for none before it. So does the
end of the lease, inside a guarded effect: after it, another attempt may run.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from samekey.core.errors import Misconfigured

REPEATABLE_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
RETRIED = frozenset({408, 425, 429, 500, 502, 503, 504})
IN_PROGRESS = 409  # in the draft: the first request is still running; the only client error without a correction
PROBLEM = "application/problem+json"  # a server that sends one adds Retry-After where a retry helps
DOUBLED_MAX = 100  # times: a float cannot be doubled much more often
RETRY_AFTER_MAX_CHARS = 64  # an HTTP date has 29


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """How often a request is tried, and how long it waits. `attempts` counts the first one: 1 never retries."""

    attempts: int = 4
    first_wait_seconds: float = 0.5  # doubled each time, and shortened at random so that many clients spread out
    longest_wait_seconds: float = 30.0  # of one wait; a longer Retry-After ends the retries
    patience_seconds: float = 60.0  # of all waits together

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise Misconfigured("attempts is a whole number from 1 on: the first one counts")
        waits = (self.first_wait_seconds, self.longest_wait_seconds, self.patience_seconds)
        if not all(isinstance(one, int | float) for one in waits):
            raise Misconfigured(f"waits are numbers of seconds, not {waits!r}")
        if not 0 <= self.first_wait_seconds <= self.longest_wait_seconds <= self.patience_seconds:
            raise Misconfigured("first_wait_seconds <= longest_wait_seconds <= patience_seconds, and none below 0")


@dataclass(slots=True)
class Course:
    """One operation that is being sent: how often it was tried, how long it waited."""

    retry: Retry
    method: str
    keyed: bool
    replayable: bool  # its body can be sent a second time
    lease_left: Callable[[], float | None]  # seconds that are left of the hold around it, if there is one
    attempts: int = 0
    waited: float = 0.0

    def after_error(self, *, sent: bool, chance: float | None = None) -> float | None:
        """Seconds until the next attempt after an error, None to give up; `sent` is False only if certain."""
        if sent and not self._repeatable:
            return None
        return self._next(None, chance)

    def after_answer(
        self, status: int, header: Callable[[str], str | None], *, now: float | None = None, chance: float | None = None
    ) -> float | None:
        """Seconds until the next attempt after an answer, None if this answer is final."""
        if not self._repeatable or not (status in RETRIED or (status == IN_PROGRESS and self.keyed)):
            return None
        later = header("Retry-After")
        if status == IN_PROGRESS and later is None and PROBLEM in (header("Content-Type") or "").lower():
            return None
        now = datetime.now(UTC).timestamp() if now is None else now
        return self._next(retry_after(later, header("Date"), now=now), chance)

    @property
    def may_repeat(self) -> bool:
        """Whether it may be sent again at all."""
        return self._repeatable and self.replayable

    @property
    def _repeatable(self) -> bool:
        return self.keyed or self.method in REPEATABLE_METHODS

    def _next(self, asked_wait: float | None, chance: float | None) -> float | None:
        chance = random.random() if chance is None else chance  # noqa: S311 - spreads a crowd of clients
        self.attempts += 1
        retry = self.retry
        if self.attempts >= retry.attempts or not self.replayable:
            return None
        doubled = retry.first_wait_seconds * 2.0 ** min(self.attempts - 1, DOUBLED_MAX)
        wait = min(doubled, retry.longest_wait_seconds) * (1 + chance) / 2
        if asked_wait is not None:
            wait = asked_wait + wait * chance  # never before it, and not all clients at the same moment
        if (asked_wait or 0.0) > retry.longest_wait_seconds or self.waited + wait > retry.patience_seconds:
            return None
        lease = self.lease_left()
        if lease is not None and wait >= lease:
            return None
        self.waited += wait
        return wait


def retry_after(value: str | None, date: str | None = None, *, now: float) -> float | None:
    """Seconds to wait by a Retry-After header: a number, or a date, compared with the sender's own clock.

    >>> retry_after("120", now=0.0)
    120.0
    >>> retry_after("Fri, 31 Dec 1999 23:59:59 GMT", "Fri, 31 Dec 1999 23:59:29 GMT", now=0.0)
    30.0
    """
    if value is None or len(value) > RETRY_AFTER_MAX_CHARS:
        return None
    value = value.strip()
    if value.isascii() and value.isdecimal():
        return float(value)
    until = _moment(value)
    if until is None:
        return None
    sent = None if date is None else _moment(date)  # the server's clock: ours may differ by minutes
    return max(0.0, until - (now if sent is None else sent))


def _moment(text: str) -> float | None:
    try:
        found = parsedate_to_datetime(text)
        return (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
