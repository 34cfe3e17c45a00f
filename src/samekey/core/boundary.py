"""What the effect reaches, and so what may be done after a crash.

A user declares a boundary; the claim writes its `Terms` into the record as text; recovery reads the
terms from the record. A deploy that changes the declaration changes new claims only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any

from samekey.core.errors import Misconfigured, RecordUnreadable
from samekey.core.policy import as_seconds

WINDOW_SECONDS = 24 * 3600.0  # how long most providers keep a key


class Kind(StrEnum):
    ATOMIC = "atomic"
    KEYED = "keyed"
    ASKS = "asks"
    REPEATABLE = "repeatable"
    OPAQUE = "opaque"


ATOMIC, REPEATABLE = Kind.ATOMIC, Kind.REPEATABLE  # plain names, for the code that every call passes: core/states.py


@dataclass(frozen=True, slots=True)
class Terms:
    """A boundary as the record keeps it: what it allows, without the user's functions."""

    kind: Kind
    window: float | None = None
    keeps_declines: bool = False
    asks: bool = False
    believe_absent_after: float | None = None
    marked: bool = False
    sends: bool = field(
        init=False, repr=False
    )  # the provider's window counts from the claim, because no mark gives a later time
    checked: bool = field(init=False, repr=False)  # the effect itself must do its part: a mark, or the provider's key

    def __post_init__(self) -> None:
        object.__setattr__(self, "sends", self.kind is Kind.KEYED and not self.marked)
        object.__setattr__(self, "checked", self.kind is Kind.KEYED or self.marked)

    def text(self) -> str:
        parts = [self.kind.value]
        if self.window is not None:
            parts.append(f"window={self.window!r}")
        if self.believe_absent_after is not None:
            parts.append(f"believe_absent_after={self.believe_absent_after!r}")
        # Asks always asks, so its text omits that. Keyed may have a lookup or not.
        flags = ("keeps_declines", "marked") if self.kind is Kind.ASKS else ("keeps_declines", "asks", "marked")
        parts += [name for name in flags if getattr(self, name)]
        return " ".join(parts)

    @property
    def new_round_after_decline(self) -> bool:
        """Whether the next try after a known decline uses a new provider key."""
        return self.keeps_declines or self.asks

    @property
    def truth(self) -> str:
        """Which side is right when records disagree."""
        return "the database" if self.kind is Kind.ATOMIC else "the provider"


_IN_SECONDS = frozenset({"window", "believe_absent_after"})


@lru_cache(maxsize=256)
def parse_terms(text: str) -> Terms:
    """The terms a record was claimed under; RecordUnreadable if this version does not know them."""
    kind, *rest = text.split(" ")
    facts: dict[str, Any] = {"asks": True} if kind == Kind.ASKS else {}
    try:
        for part in rest:
            name, given, value = part.partition("=")
            if bool(given) != (name in _IN_SECONDS):
                raise ValueError(part)  # damaged: a flag has no number, and a time needs one
            facts[name] = as_seconds(name, float(value), zero_allowed=True) if given else True
        return Terms(Kind(kind), **facts)
    except (ValueError, TypeError, Misconfigured):
        raise RecordUnreadable(
            f"the record was claimed under a boundary this version does not know: {text!r}"
        ) from None


def repeats(text: str) -> bool:
    """Whether these terms are Repeatable's: only then may a record end although its outcome is unknown."""
    return text.partition(" ")[0] == Kind.REPEATABLE


# -- verdicts: what a lookup may return -------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Happened:
    """It is on the provider's books; `result` becomes the key's answer."""

    result: Any = None


@dataclass(frozen=True, slots=True)
class Declined:
    """The provider refused it. `final=True` closes the key, otherwise it is free for the next try."""

    final: bool = False
    reason: str = ""

    def __post_init__(self) -> None:
        if self.final is True or self.final is False:
            return
        if self.final not in (0, 1):  # a reason given as `final` would close the key
            given = type(self.final).__name__
            raise Misconfigured(f"Declined(final=) is True or False, not {given}; a text goes to reason=")
        object.__setattr__(self, "final", bool(self.final))  # from a database that has no booleans


@dataclass(frozen=True, slots=True)
class Absent:
    """The provider has no record of it so far. A request may still be on its way."""


@dataclass(frozen=True, slots=True)
class StillUnknown:
    """The provider does not know either."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class Conflicting:
    """The provider has it more than once: the double effect already happened."""

    results: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        results: Any = self.results
        if not isinstance(results, Iterable) or isinstance(results, (str, bytes, Mapping)):
            given = type(results).__name__
            raise Misconfigured(f"Conflicting takes the results the provider has, as in (first, second), not {given}")
        object.__setattr__(self, "results", tuple(results))


Verdict = Happened | Declined | Absent | StillUnknown | Conflicting
Lookup = Callable[[Any], Any]  # record -> Verdict, or an awaitable of one under AsyncGuard


# -- boundaries: what a user declares ---------------------------------------------------------------


@dataclass(frozen=True)
class Boundary:
    """Base of the five boundaries."""

    @property
    def terms(self) -> Terms:
        raise TypeError("use one of Atomic, Keyed, Asks, Repeatable, Opaque")

    @property
    def asks_with(self) -> Lookup | None:
        return None


@dataclass(frozen=True)
class Atomic(Boundary):
    """Effect and record commit together, on the connection passed in the parameter of this name."""

    parameter: str

    def __post_init__(self) -> None:
        if not self.parameter or not str(self.parameter).isidentifier():
            raise Misconfigured("Atomic takes the name of the parameter that carries the connection or session")

    @property
    def terms(self) -> Terms:
        return Terms(Kind.ATOMIC)


@dataclass(frozen=True)
class Keyed(Boundary):
    """The provider dedups on `held.provider_key()` for `window` seconds."""

    window: float | timedelta = WINDOW_SECONDS
    keeps_declines: bool = False
    lookup: Lookup | None = None
    marked: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", as_seconds("Keyed window", self.window))
        if self.lookup is not None:
            _check_lookup(self.lookup)

    @property
    def terms(self) -> Terms:
        return Terms(
            Kind.KEYED,
            window=as_seconds("Keyed window", self.window),
            keeps_declines=self.keeps_declines,
            asks=self.lookup is not None,
            marked=self.marked,
        )

    @property
    def asks_with(self) -> Lookup | None:
        return self.lookup


@dataclass(frozen=True)
class Asks(Boundary):
    """The provider can be asked: `lookup(record)` returns a verdict.

    `ask_at_once`: when the effect ends in an error that leaves its outcome open, such as a timeout, and its lease has
    time left, ask before the caller gets that error. What the provider has on its books is the answer.
    """

    lookup: Lookup
    believe_absent_after: float | timedelta | None = None
    marked: bool = False
    ask_at_once: bool = False

    def __post_init__(self) -> None:
        _check_lookup(self.lookup)
        if self.believe_absent_after is not None:
            seconds = as_seconds("believe_absent_after", self.believe_absent_after)
            object.__setattr__(self, "believe_absent_after", seconds)

    @property
    def terms(self) -> Terms:
        believe = self.believe_absent_after
        return Terms(
            Kind.ASKS,
            asks=True,
            believe_absent_after=None if believe is None else as_seconds("believe_absent_after", believe),
            marked=self.marked,
        )

    @property
    def asks_with(self) -> Lookup | None:
        return self.lookup


@dataclass(frozen=True)
class Repeatable(Boundary):
    """Running twice is harmless: any error of the effect frees the key, and a dead hold is run again."""

    @property
    def terms(self) -> Terms:
        return Terms(Kind.REPEATABLE)


@dataclass(frozen=True)
class Opaque(Boundary):
    """No provider can be asked: after a crash the key is in doubt, for a person or a reconciliation."""

    marked: bool = False

    @property
    def terms(self) -> Terms:
        return Terms(Kind.OPAQUE, marked=self.marked)


@dataclass(frozen=True)
class Compensatable(Boundary):
    """As `inner`; when it turns out too late that the effect happened, `compensate(truth)` undoes it.

    It runs as an operation of its own, `<name>.compensate`, under the key that the provider knows the effect by, with
    its own boundary. `when(truth)` decides whether it runs; without it, it runs if the callers got a failure.
    """

    inner: Boundary
    compensate: Callable[[Any], Any]
    when: Callable[[Any], bool] | None = None
    boundary: Boundary = Opaque()

    def __post_init__(self) -> None:
        if not isinstance(self.inner, (Keyed, Asks, Opaque)):
            raise Misconfigured("Compensatable takes Keyed, Asks or Opaque as its inner boundary")
        given: tuple[Any, ...] = (self.compensate, self.when or self.compensate)
        if not all(map(callable, given)):
            raise Misconfigured("compensate= and when= are functions of the late truth")

    @property
    def terms(self) -> Terms:
        return self.inner.terms

    @property
    def asks_with(self) -> Lookup | None:
        return self.inner.asks_with

    def wants(self, truth: Any) -> bool:
        return bool(truth.reported == "failed" if self.when is None else self.when(truth))


def asks_at_once(boundary: Boundary) -> bool:
    inner = boundary.inner if isinstance(boundary, Compensatable) else boundary
    return isinstance(inner, Asks) and inner.ask_at_once


def _check_lookup(lookup: Any) -> None:
    if not callable(lookup):
        raise Misconfigured(f"a lookup is a function of the record, not {lookup!r}")
