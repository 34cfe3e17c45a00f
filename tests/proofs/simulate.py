"""Simulate: one seed is one run of real guards in a world of faults, and a broken promise is a short story.

    python -m tests.proofs.simulate --runs 100000 --jobs 2     # seeds 0..99999
    python -m tests.proofs.simulate --seed 4711                # that run again, told in words

Theory. A run has a few client processes, a store, a provider, and faults between them. The clients are real guards
(`simulation/stepping.py`). The store is the real register; in one world of four it is the durable store of the real
layered store. The promises are those of `schedules/search.py`; they are checked after every write and at every end of
a call. Events wait in a heap, ordered by the time at which they happen. Each event decides what follows by drawing
numbers. A number near zero always means the harmless choice - no fault, no delay - so a run whose numbers are replaced
by zeros is a shorter story of the same kind.

Swarm: each run first draws which kinds of fault can happen in it at all; runs with few kinds go deeper into those.
At the end the faults stop, messages still on their way are lost, and a fresh caller comes, which must get an answer.

A failover replaces the store by an asynchronous replica: the last writes are gone, and their tokens are given out
again. Fewer promises hold then (`promises.LOST`); an effect at a provider that dedups still happens once.

Three windows are not played, because guarantees.md promises nothing in them: a proxy's copy of a request that was
declined lands after the customer topped up; a failover loses the round in which a new provider key was made; and a key
that was freed is used again while the provider remembers a decline from before it was freed.

    simulation/stage.py      the heap and the clock; clients, their tasks, crashes, pauses, cancellations
    simulation/durable.py    the store that grants claims: its register, its clock, its waiters, its replica
    simulation/front.py      the front of a layered store: it forgets, goes back in time, is away, is written late
    simulation/provider.py   requests on their way, and the books
    simulation/promises.py   which promise is checked after which event
    simulation/faults.py     which faults there are, how likely each is, and how long it lasts

This file counts runs, shares them among processes, and shortens a run that broke a promise: the numbers that a run
drew are its tape, and every part of the tape that can be replaced by zeros, with the same promise still broken, was
not needed for it.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.proofs.simulation.promises import Broken
from tests.proofs.simulation.stage import BOUNDARIES, Simulation
from tests.proofs.simulation.stepping import stepping

__all__ = ["Run", "Total", "boundary_of", "layered_of", "play", "shrink", "simulate", "main"]

CHUNK = 500  # runs that a process does before it reports
TRIES_MAX = 400  # runs that a shrinking may cost


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one seed."""

    seed: int
    boundary: str
    layered: bool
    events: int
    broken: str  # the promise, or nothing
    detail: str = ""
    reached: frozenset[str] = frozenset()
    story: tuple[str, ...] = ()
    tape: tuple[float, ...] = ()

    def explain(self) -> str:
        """The story of the run, in words."""
        layers = ", layered" if self.layered else ""
        head = f"seed {self.seed} ({self.boundary}{layers}): {self.detail or 'every promise held'}"
        chosen = "" if self.boundary == boundary_of(self.seed) else f" --boundary '{self.boundary}'"
        if self.layered != layered_of(self.seed):
            chosen += " --layered" if self.layered else " --no-layered"
        again = f"again with: python -m tests.proofs.simulate --seed {self.seed}{chosen}"
        return "\n".join([head, *self.story, again])


class Tape:
    """The numbers that a run draws: from a seed, or those of an earlier run and then zeros."""

    def __init__(self, seed: int, given: Iterable[float] | None = None) -> None:
        self._given = None if given is None else iter(given)
        self._random = random.Random(seed).random
        self.drawn: list[float] = []

    def draw(self) -> float:
        number = self._random() if self._given is None else next(self._given, 0.0)
        self.drawn.append(number)
        return number


def boundary_of(seed: int) -> str:
    """Every boundary has its turn."""
    names = list(BOUNDARIES)
    return names[seed % len(names)]


def layered_of(seed: int) -> bool:
    """And each of them every fourth time behind a front: such a run takes as long as three others."""
    return seed // len(BOUNDARIES) % 4 == 3


def play(
    seed: int,
    *,
    boundary: str = "",
    layered: bool | None = None,
    told: bool = False,
    tape: Iterable[float] | None = None,
) -> Run:
    """One run; `told`: with its story and its tape. Boundary and layers are the seed's own, unless given."""
    name, story = boundary or boundary_of(seed), list[str]()
    layers = layered_of(seed) if layered is None else layered
    recorder = Tape(seed, tape) if told or tape is not None else None
    draw = random.Random(seed).random if recorder is None else recorder.draw
    simulation = Simulation(BOUNDARIES[name], draw, layered=layers, story=story if told else None)
    broken, detail = "", ""
    with stepping(simulation):
        try:
            simulation.play()
        except Broken as error:
            broken, detail = error.promise, str(error)
    simulation.close()
    drawn = () if recorder is None else tuple(recorder.drawn)
    reached = frozenset(simulation.reached)
    return Run(seed, name, layers, simulation.events, broken, detail, reached, tuple(story), drawn)


def shrink(seed: int, *, boundary: str = "", layered: bool | None = None) -> Run:
    """The same broken promise with as few faults as can be found: the run that tells it."""
    best = play(seed, boundary=boundary, layered=layered, told=True)
    if not best.broken:
        return best
    tries, size = 0, max(1, len(best.tape) // 2)
    while size and tries < TRIES_MAX:
        for start in range(0, len(best.tape), size):
            tape = (*best.tape[:start], *[0.0] * size, *best.tape[start + size :])
            if any(best.tape[start : start + size]):
                tries += 1
                shorter = play(seed, boundary=boundary, layered=layered, told=True, tape=tape[: len(best.tape)])
                if shorter.broken == best.broken and len(shorter.story) <= len(best.story):
                    best = shorter
            if start + size >= len(best.tape):
                break
        size //= 2
    return best


# -- many ------------------------------------------------------------------------------------------------------------


@dataclass
class Total:
    """What many runs came to."""

    runs: int = 0
    events: int = 0
    cpu_seconds: float = 0.0
    broken: list[int] = field(default_factory=list)  # seeds
    reached: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        bound = "" if self.broken else f"; 95 % sure that fewer than {3 / max(self.runs, 1):.1e} of such runs break one"
        return (
            f"{self.runs:,} schedules, {self.events:,} events, {self.cpu_seconds:.0f} CPU seconds: "
            f"{len(self.broken)} broken promises{bound}"
        )

    def add(self, other: Total) -> None:
        self.runs += other.runs
        self.events += other.events
        self.cpu_seconds += other.cpu_seconds
        self.broken += other.broken
        self.reached.update(other.reached)


def simulate(seeds: range, *, jobs: int = 1, seconds: float | None = None) -> Iterator[Total]:
    """The total so far, after each chunk; ends with the seeds, with the time, or with the first broken promise."""
    chunks = (seeds[start : start + CHUNK] for start in range(0, len(seeds), CHUNK))
    total, ends = Total(), None if seconds is None else time.monotonic() + seconds

    def go_on(some: Total) -> bool:
        total.add(some)
        return not total.broken and (ends is None or time.monotonic() < ends)

    if jobs == 1:
        for chunk in chunks:
            more = go_on(_some(chunk))
            yield total
            if not more:
                return
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for some in pool.imap_unordered(_some, chunks):
            more = go_on(some)
            yield total
            if not more:
                return


def _some(seeds: range) -> Total:
    total, began = Total(), time.process_time()
    collects = gc.isenabled()
    gc.disable()
    gc.freeze()  # what is there already is not looked through again and again
    try:
        with _silence():
            _play_all(seeds, total)
    finally:
        gc.collect()
        gc.unfreeze()
        if collects:
            gc.enable()
    total.cpu_seconds = time.process_time() - began
    return total


def _play_all(seeds: range, total: Total) -> None:
    for seed in seeds:
        run = play(seed)
        total.runs += 1
        total.events += run.events
        total.reached.update(run.reached)
        if run.broken:
            total.broken.append(seed)


@contextmanager
def _silence() -> Iterator[None]:
    """Lookups raise here by the thousand, and each is logged."""
    log = logging.getLogger("samekey")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0: every promise held, 1: one was broken, and its story was told."""
    parser = argparse.ArgumentParser(prog="python -m tests.proofs.simulate", description="Simulate real guards.")
    parser.add_argument("--seed", type=int, help="play this one and tell its story")
    parser.add_argument("--boundary", choices=list(BOUNDARIES), default="", help="of that one, instead of its own")
    parser.add_argument("--layered", action=argparse.BooleanOptionalAction, help="and with a front, or without one")
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="the seed to begin with")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--seconds", type=float, help="stop after so much time, even if there are runs left")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        with _silence():
            run = shrink(given.seed, boundary=given.boundary, layered=given.layered)
        print(run.explain())
        return 1 if run.broken else 0
    total = Total()
    for total in simulate(range(given.first, given.first + given.runs), jobs=given.jobs, seconds=given.seconds):
        print(f"\r{total}", end="", file=sys.stderr)
    print(f"\r{total}")
    for what, times in sorted(total.reached.items()):
        print(f"  {times:9,}  {what}")
    if total.broken:
        with _silence():
            print(shrink(min(total.broken)).explain())
    return 1 if total.broken else 0


if __name__ == "__main__":
    sys.exit(main())
