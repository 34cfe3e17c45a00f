"""How long, how patient, and what a failure means: the numbers and lists a user may set."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import Any, Literal

from samekey.core.errors import Misconfigured, NotDone, Refused

LEASE_SECONDS = 30.0  # an honest holder is done by then; a dead one blocks the key no longer
PATIENCE_SECONDS = 5.0  # what a client waits before it retries
RETENTION_SECONDS = 24 * 3600.0  # 24-72 h is usual; never below the provider's own window
RESULT_MAX_BYTES = 1 << 20
SECONDS_MAX = 10 * 366 * 24 * 3600.0  # ten years: beyond it a number is a mistake, not a wish
FOREVER = timedelta(days=365_250)  # a thousand years: the one retention beyond ten

# How libraries call a timeout: few derive it from TimeoutError.
TIMEOUT_PARTS = ("timeout", "timedout", "deadlineexceeded", "tooslow")
# These ran out before there was a connection, so nothing was sent; a list may name them, each by itself.
# Not ConnectionTimeout: some raise that when an answer does not come.
UNSENT_TIMEOUTS = frozenset({"ConnectTimeout", "ConnectTimeoutError", "PoolTimeout"})


@dataclass(frozen=True, slots=True)
class Policy:
    """Seconds or timedelta; `releases` and `closes` list your own exception types.

    `store_deadline` bounds the time that one call spends on store commands and reconnects in all; waiting for another
    holder of the key is `patience`, and does not count while the store answers. `settle_patience` is how long a
    finished answer waits for its record: then it goes out with `recorded=False`, and the record is written in the
    background. None: no bound, and as long as a lease.

    >>> Policy(lease=10, patience=2).lease
    10.0
    """

    lease: float | timedelta = LEASE_SECONDS
    patience: float | timedelta = PATIENCE_SECONDS
    retention: float | timedelta = RETENTION_SECONDS
    releases: tuple[type[Exception], ...] = ()
    closes: tuple[type[Exception], ...] = ()
    store_down: Literal["refuse", "run"] = "refuse"
    result_max_bytes: int = RESULT_MAX_BYTES
    trust_inner: bool = False
    store_deadline: float | timedelta | None = None
    settle_patience: float | timedelta | None = None
    keep_payload: bool = False
    redact: Callable[[Any], Any] | None = None
    lease_seconds: float = field(init=False, repr=False, default=0.0)
    patience_seconds: float = field(init=False, repr=False, default=0.0)
    retention_seconds: float = field(init=False, repr=False, default=0.0)
    store_deadline_seconds: float | None = field(init=False, repr=False, default=None)
    settle_patience_seconds: float = field(init=False, repr=False, default=0.0)
    bounded: bool = field(init=False, repr=False, default=False)  # whether a caller may give up on a store command

    def __post_init__(self) -> None:
        for name in ("lease", "patience", "retention"):
            given = getattr(self, name)
            if name == "retention" and given in (FOREVER, FOREVER.total_seconds()):
                seconds = FOREVER.total_seconds()
            else:
                seconds = as_seconds(name, given, zero_allowed=name == "patience")
            object.__setattr__(self, name, seconds)
            object.__setattr__(self, f"{name}_seconds", seconds)
        for name in ("store_deadline", "settle_patience"):
            given = getattr(self, name)
            if given is not None:
                object.__setattr__(self, name, as_seconds(name, given, zero_allowed=name == "settle_patience"))
        bounds = (self.lease, self.store_deadline, self.settle_patience)
        object.__setattr__(self, "store_deadline_seconds", self.store_deadline)
        object.__setattr__(self, "settle_patience_seconds", min(one for one in bounds if one is not None))
        object.__setattr__(self, "bounded", self.settle_patience_seconds < self.lease_seconds)
        for name in ("releases", "closes"):
            object.__setattr__(self, name, _exception_types(name, getattr(self, name)))
        both = set(self.releases) & set(self.closes)
        if both:
            names = ", ".join(sorted(one.__name__ for one in both))
            raise Misconfigured(f"{names} is in both releases= and closes=: an error has one meaning")
        if self.store_down not in ("refuse", "run"):
            raise Misconfigured(f"store_down must be 'refuse' or 'run', not {self.store_down!r}")
        redact: Any = self.redact
        if redact is not None and (not callable(redact) or iscoroutinefunction(redact)):
            raise Misconfigured("redact= takes a plain function of the result, which returns what may be kept of it")
        limit: Any = self.result_max_bytes
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise Misconfigured(f"result_max_bytes must be a positive number, not {limit!r}")

    def meaning(self, error: BaseException, *, inner: bool) -> Literal["closes", "releases", "unknown"]:
        """What this error means for the effect that raised it.

        An error that already left another guard reports on that guard's effect, not on this one: an inner
        mailer's NotDone must not release the outer charge (unless `trust_inner` is set).
        """
        if inner and not self.trust_inner:
            return "unknown"
        if is_timeout(type(error)) and not isinstance(error, self._unsent()):
            return "unknown"  # also where a list names its parent class: after a timeout the outcome is unknown
        # The caller's own lists come first: they are more specific than Refused and NotDone. Within them the nearest
        # class decides, as in a row of `except`: a policy may close PaymentError and release its subclass NoFunds.
        for kind in type(error).__mro__:
            if kind in self.closes:
                return "closes"
            if kind in self.releases:
                return "releases"
        if isinstance(error, Refused):
            return "closes"
        if isinstance(error, NotDone):
            return "releases"
        return "unknown"

    def _unsent(self) -> tuple[type[Exception], ...]:
        return tuple(one for one in (*self.releases, *self.closes) if one.__name__ in UNSENT_TIMEOUTS)


def is_timeout(kind: type[BaseException]) -> bool:
    """Whether this type or a base of it is a timeout: TimeoutError, or a class with such a name."""
    names = (one.__name__.lower().replace("_", "") for one in kind.__mro__)
    return any(part in name for name in names for part in TIMEOUT_PARTS)


def as_seconds(name: str, value: Any, *, zero_allowed: bool = False) -> float:
    """Seconds as a float; raises Misconfigured for anything that is not a plain, finite, positive time."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Misconfigured(f"{name} must be seconds or a timedelta, not {type(value).__name__}")
    if not 0 <= value <= SECONDS_MAX or (value == 0 and not zero_allowed):  # nor NaN
        least = "zero or more" if zero_allowed else "more than zero"
        given = f", not {value!r}" if -SECONDS_MAX < value < 1000 * SECONDS_MAX or value != value else ""
        raise Misconfigured(f"{name} must be {least} and at most ten years{given}")
    return float(value)


def _exception_types(name: str, given: Any) -> tuple[type[Exception], ...]:
    if isinstance(given, type):
        given = (given,)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise Misconfigured(f"{name}= takes exception types, not {given!r}")
    types = tuple(given)
    for one in types:
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise Misconfigured(f"{name}= takes exception types, not {one!r}")
        if is_timeout(one) and one.__name__ not in UNSENT_TIMEOUTS:
            # The third outcome of a network call.
            unsent = ", ".join(sorted(UNSENT_TIMEOUTS))
            raise Misconfigured(
                f"{name}= must not list {one.__name__}: after a timeout it is unknown whether the effect happened. "
                f"Only timeouts before anything is sent may be listed: {unsent}"
            )
        if one is Exception:
            raise Misconfigured(f"{name}= must not list Exception itself: then nothing would be unknown")
    return types
