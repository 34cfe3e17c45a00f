"""A figure: one number with its unit, what it is held against, and the target it has to meet.

Figures are declared before anything runs, so that `--list` can show them; an experiment is one run that
fills in several of them. A target is met or it is not; the 25 % margin for a noisy machine is printed
beside that, never in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from bench.measure import Effort

MARGIN = 0.25  # PERFORMANCE.md gates with it: this much a shared machine does to a ratio


@dataclass(frozen=True, slots=True)
class Target:
    """`gates=False`: shown and judged, but no reason to fail the run."""

    sense: Literal["<=", ">=", "=="]
    limit: float
    gates: bool = True

    def __str__(self) -> str:
        return f"{self.sense} {self.limit:g}"

    def met(self, value: float, *, margin: float = 0.0) -> bool:
        match self.sense:
            case "<=":
                return value <= self.limit * (1 + margin)
            case ">=":
                return value >= self.limit / (1 + margin)
            case "==":
                return value == self.limit


def at_most(limit: float, *, gates: bool = True) -> Target:
    return Target("<=", limit, gates)


def at_least(limit: float, *, gates: bool = True) -> Target:
    return Target(">=", limit, gates)


def exactly(limit: float) -> Target:
    return Target("==", limit)


@dataclass(frozen=True, slots=True)
class Figure:
    """What is measured; without a target it only informs."""

    id: str  # begins with its group's name
    unit: str
    against: str
    target: Target | None = None


class Reading(NamedTuple):
    """What was found; `samples` are the rounds behind the value."""

    value: float
    samples: Sequence[float] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Experiment:
    """One run that fills in all of its figures, in their order."""

    figures: tuple[Figure, ...]
    run: Callable[[Effort], Sequence[Reading]]


@dataclass(frozen=True, slots=True)
class Result:
    group: str
    figure: Figure
    reading: Reading | None  # None: the experiment failed, and `error` says how
    error: str = ""

    @property
    def ok(self) -> bool | None:
        """Whether the target is met as it is written; None where there is none."""
        return self._judged(0.0)

    @property
    def within_margin(self) -> bool | None:
        return self._judged(MARGIN)

    @property
    def fails(self) -> bool:
        """Whether the run as a whole has to fail for it."""
        if self.reading is None:
            return True
        return self.figure.target is not None and self.figure.target.gates and not self.ok

    def _judged(self, margin: float) -> bool | None:
        if self.figure.target is None:
            return None
        return self.reading is not None and self.figure.target.met(self.reading.value, margin=margin)
