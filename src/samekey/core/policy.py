"""How long, how patient, and what a failure means: the numbers and lists a user may set."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from samekey.core.errors import Misconfigured, NotDone, Refused

LEASE_SECONDS = 30.0  # an honest holder is done by then; a dead one blocks the key no longer
PATIENCE_SECONDS = 5.0  # what a client waits before it retries
RETENTION_SECONDS = 24 * 3600.0  # 24-72 h is usual; never below the provider's own window
RESULT_MAX_BYTES = 1 << 20
SECONDS_MAX = 10 * 366 * 24 * 3600.0  # ten years: beyond it a number is a mistake, not a wish

# How libraries call a timeout: few derive it from TimeoutError.
TIMEOUT_WORDS = ("timeout", "timedout", "deadlineexceeded", "tooslow")
# These ran out before there was a connection, so nothing was sent; a list may name them, each by itself.
# Not ConnectionTimeout: some raise that when an answer does not come.
UNSENT_TIMEOUTS = frozenset({"ConnectTimeout", "ConnectTimeoutError", "PoolTimeout"})


@dataclass(frozen=True, slots=True)
class Policy:
    """Seconds or timedelta; `releases` and `closes` list your own exception types.

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
    lease_seconds: float = field(init=False, repr=False, default=0.0)
    patience_seconds: float = field(init=False, repr=False, default=0.0)
    retention_seconds: float = field(init=False, repr=False, default=0.0)

    def __post_init__(self) -> None:
        for name in ("lease", "patience", "retention"):
            seconds = as_seconds(name, getattr(self, name), zero_allowed=name == "patience")
            object.__setattr__(self, name, seconds)
            object.__setattr__(self, f"{name}_seconds", seconds)
        for name in ("releases", "closes"):
            object.__setattr__(self, name, _exception_types(name, getattr(self, name)))
        both = set(self.releases) & set(self.closes)
        if both:
            names = ", ".join(sorted(one.__name__ for one in both))
            raise Misconfigured(f"{names} stands in both releases= and closes=: an error means one thing")
        if self.store_down not in ("refuse", "run"):
            raise Misconfigured(f"store_down must be 'refuse' or 'run', not {self.store_down!r}")
        limit: Any = self.result_max_bytes
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise Misconfigured(f"result_max_bytes must be a positive number, not {limit!r}")

    def meaning(self, error: BaseException, *, inner: bool) -> Literal["closes", "releases", "unknown"]:
        """What this error says about the effect that raised it.

        A word that already left another guard spoke for that guard's effect, not for this one: an inner
        mailer's NotDone must not release the outer charge (unless `trust_inner` says so).
        """
        if inner and not self.trust_inner:
            return "unknown"
        if is_timeout(type(error)) and not isinstance(error, self._unsent()):
            return "unknown"  # also where a list names its parent: nobody knows is what a timeout says
        # The caller's own lists first: they are more specific than our two words. And in them the nearest class, as
        # in a row of `except`: whoever closes PaymentError and releases its child NoFunds means both.
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
    """Whether this type, or any that it is a kind of, is a timeout: TimeoutError, or so called."""
    names = (one.__name__.lower().replace("_", "") for one in kind.__mro__)
    return any(word in name for name in names for word in TIMEOUT_WORDS)


def as_seconds(name: str, value: Any, *, zero_allowed: bool = False) -> float:
    """Seconds as a float; raises Misconfigured for anything that is not a plain, finite, positive time."""
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Misconfigured(f"{name} must be seconds or a timedelta, not {type(value).__name__}")
    if not 0 <= value <= SECONDS_MAX or (value == 0 and not zero_allowed):  # nor NaN
        least = "zero or more" if zero_allowed else "more than zero"
        said = f", not {value!r}" if -SECONDS_MAX < value < 1000 * SECONDS_MAX or value != value else ""
        raise Misconfigured(f"{name} must be {least} and at most ten years{said}")
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
                f"{name}= must not list {one.__name__}: after a timeout nobody knows whether it happened. "
                f"Only what ends before anything is sent may be listed: {unsent}"
            )
        if one is Exception:
            raise Misconfigured(f"{name}= must not list Exception itself: then nothing would be unknown")
    return types
