"""Which promise is checked after which event of a simulation.

The promises are those of `schedules/search.py`. This file lists which of them an event can break at all: the others
look at facts that the event does not change. A layered store has another promise in the place of "every answer is what
the record says": every answer is what the durable store says, or said within the last `front_ttl`.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

from samekey.core.record import Record
from tests.proofs.schedules.scene import Move, Scene
from tests.proofs.schedules.search import (
    PROMISES,
    Promise,
    closed_is_true,
    completed_is_true,
    ends_well,
    evidence_heard,
    evidence_kept,
    fenced,
    heals,
    invents_nothing,
    one_answer,
    one_effect,
    released_is_true,
    settled_is_final,
)

WRITTEN: tuple[Promise, ...] = (
    settled_is_final,
    fenced,
    completed_is_true,
    released_is_true,
    closed_is_true,
    evidence_kept,
    evidence_heard,
    invents_nothing,
)
LANDED: tuple[Promise, ...] = (one_effect, released_is_true, closed_is_true)  # a charge makes no other one untrue
ENDED: tuple[Promise, ...] = (one_answer, evidence_kept, ends_well, heals)
assert {*WRITTEN, *LANDED, *ENDED} == {*PROMISES}

LOST: frozenset[Promise] = frozenset((fenced, ends_well, heals, settled_is_final, evidence_heard))
_NO_WORLD: Any = None  # promises ask it only about callers, and a simulation's scene lists none


class Broken(BaseException):
    """A promise was broken; the run is over. No `except Exception` of the code under play may swallow it."""

    def __init__(self, promise: str, detail: str) -> None:
        super().__init__(f"{promise.replace('_', ' ')}: {detail}")
        self.promise = promise


class Promises:
    """Those that hold in one run, so far."""

    def __init__(self, kept: frozenset[Promise]) -> None:
        self.keep(kept)

    def keep(self, kept: frozenset[Promise]) -> None:
        self.kept = kept
        self._written = tuple(one for one in WRITTEN if one in kept)
        self._landed = tuple(one for one in LANDED if one in kept)
        self._ended = tuple(one for one in ENDED if one in kept)

    def written(self, before: Scene, move: Move) -> None:
        _hold(self._written, before, move)

    def landed(self, before: Scene, move: Move) -> None:
        _hold(self._landed, before, move)

    def ended(self, move: Move) -> None:
        _hold(self._ended, move.scene, move)


def _hold(promises: tuple[Promise, ...], before: Scene, move: Move) -> None:
    for promise in promises:
        detail = promise(_NO_WORLD, before, move)
        if detail is not None:
            raise Broken(promise.__name__, detail)


class Truth(NamedTuple):
    """What the durable store said, and from when to when."""

    said: tuple[str, bytes]
    since: float
    until: float


class Truths:
    """Every answer that the durable store ever had."""

    def __init__(self) -> None:
        self._all: list[Truth] = []

    def now(self, record: Record | None, now: float) -> None:
        said = (str(record.state), record.result or b"") if record is not None and record.settled else None
        last = self._all[-1] if self._all else None
        if last is not None and last.until == inf:
            if last.said == said:
                return
            self._all[-1] = last._replace(until=now)
        if said is not None:
            self._all.append(Truth(said, now, inf))

    def true_within(self, said: tuple[str, bytes], since: float) -> bool:
        """Whether the durable store said so at any moment since then."""
        return any(truth.said == said and truth.until >= since for truth in self._all)
