"""What the tests say of a mutant: those that come by it, the ones that told before first, until one fails.

Two ways to try it. The quick one changes a function in a process that has every test collected (see quick.py). The slow
one, here, imports the changed module anew, in a fork of a process that has pytest and every third-party library loaded
but nothing of samekey: for what runs at import, and for what nothing else has killed.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from typing import Any

from tools.mutation.child import Fate, in_a_child
from tools.mutation.mutants import Mutant
from tools.mutation.seen import OPTIONS, SLOW_SECONDS, WAITING_SECONDS, Seen, path_of, quieten_hypothesis

FIRST = 15  # of the tests that told before, in the same function and in the same file, if they are quick
FEW_SECONDS = 0.3  # of tests in the first batch of the slow way; each batch after it has eight times as much

# Tries a mutant, or the unchanged program, on tests that take so many seconds; None if it cannot be tried so.
Way = Callable[[Mutant | None, Sequence[str], float], Fate | None]


@dataclass(frozen=True)
class Told:
    """What became of a mutant."""

    fate: str  # killed, survived, circles (stopped by a limit), unseen (no test comes by)
    by: str = ""  # the test that told
    tests: int = 0
    seconds: float = 0.0
    budget: float = 0.0  # seconds of tests that it was given

    @property
    def alive(self) -> bool:
        return self.fate in ("survived", "unseen")


class Trials:
    """Tries mutants one after the other, and learns which tests tell."""

    def __init__(self, seen: Seen, quick: Way) -> None:
        self._seen = seen
        self._quick = quick
        self._telling: dict[str, Counter[str]] = {}
        self._trusted: set[tuple[Way, str]] = set()
        self._liars: set[str] = set()

    def trial(self, mutant: Mutant, budget: float, *, slowly: bool) -> Told:
        """Try a mutant on `budget` seconds of tests; `slowly`: import it anew, whatever it is."""
        started = time.monotonic()
        first, then = self._ordered(mutant)
        names = self._within([*first, *then], budget)
        fate, by, tried = ("survived", "", 0) if names else ("unseen", "", 0)
        if names and not slowly and not self._seen.at_import(mutant):
            quickly = self._tried(self._quick, mutant, names)
            if quickly is not None:
                fate, by, tried = *quickly, len(names)
                names = []
        for batch in self._batches(names[: len(first)], names[len(first) :]):
            fate, by = self._tried(slow, mutant, batch) or ("survived", "")
            tried += len(batch)
            if fate != "survived":
                break
        self.learn(mutant, by)
        return Told(fate, by, tried, round(time.monotonic() - started, 2), budget)

    def learn(self, mutant: Mutant, by: str) -> None:
        """That this test told of this mutant: its neighbours meet it first."""
        for place in _places(mutant):
            self._telling.setdefault(place, Counter())[by] += 1

    def _ordered(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        names = [name for name in self._seen.of(mutant) if name not in self._liars]
        among = set(names)
        first: dict[str, None] = {}
        for place in _places(mutant):
            told = [name for name, _ in self._telling.get(place, Counter()).most_common() if name in among]
            first |= dict.fromkeys([name for name in told if self._seen.sum([name]) <= SLOW_SECONDS][:FIRST])
        return list(first), [name for name in names if name not in first]

    def _tried(self, way: Way, mutant: Mutant, names: Sequence[str]) -> Fate | None:
        """A test that tells for the first time must pass where nothing is changed, or it is never asked again."""
        left = [name for name in names if name not in self._liars]
        while True:
            told = way(mutant, left, self._seen.sum(left))
            if told is None or told[0] != "killed" or told[1] not in left or (way, told[1]) in self._trusted:
                return told
            before = left[: left.index(told[1]) + 1]
            unchanged = way(None, before, self._seen.sum(before))
            if unchanged is not None and unchanged[0] == "survived":
                self._trusted.add((way, told[1]))
                return told
            print(f"fails without a mutant, and is left out: {told[1]}", file=sys.stderr, flush=True)
            self._liars.add(told[1])
            left.remove(told[1])

    def _within(self, names: Sequence[str], budget: float) -> list[str]:
        """As many as the budget allows, in their order; it always allows one."""
        chosen: list[str] = []
        spent = 0.0
        for name in names:
            spent += self._seen.sum([name])
            if chosen and spent > budget:
                break
            chosen.append(name)
        return chosen

    def _batches(self, first: list[str], names: Sequence[str]) -> Iterator[list[str]]:
        """Those that told before; then the others in their order, at first few: each batch is an import of its own."""
        if first:
            yield first
        batch: list[str] = []
        spent, room = 0.0, FEW_SECONDS
        for name in names:
            batch.append(name)
            spent += self._seen.sum([name])
            if spent > room:
                yield batch
                batch, spent, room = [], 0.0, room * 8
        if batch:
            yield batch


def _places(mutant: Mutant) -> tuple[str, str]:
    return f"{mutant.module} {mutant.within}", mutant.module


# -- the slow way ----------------------------------------------------------------------------------------------


def prepare(loaded: Iterable[str]) -> None:
    """Load what every test needs and no mutant touches."""
    for name in ("pytest", *loaded):
        try:
            importlib.import_module(name)
        except Exception:  # noqa: S110 - a part of a library that only its own code can import
            pass
    quieten_hypothesis()
    gc.collect()
    gc.freeze()  # a child that collects must not copy the whole of us


def slow(mutant: Mutant | None, names: Sequence[str], seconds: float) -> Fate:
    return in_a_child(lambda: _judge(mutant, names), seconds)


def _judge(mutant: Mutant | None, names: Sequence[str]) -> str | None:
    import pytest

    if mutant is not None:
        sys.meta_path.insert(0, _Instead(mutant))
        importlib.import_module(mutant.module)  # before pytest, whose own way to import goes past ours
    chosen = _Chosen(names)
    files = dict.fromkeys(name.partition("::")[0] for name in names)
    ended = pytest.main([*OPTIONS, f"--timeout={WAITING_SECONDS}", "-x", *files], plugins=[chosen])
    if chosen.failed:
        return chosen.failed[0]
    return None if ended == 0 else f"outside a test: pytest ended with {ended}"


class _Chosen:
    """A pytest plugin: only these tests, in this order; and who failed."""

    def __init__(self, names: Sequence[str]) -> None:
        self.places = {name: place for place, name in enumerate(names)}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.places), key=lambda item: self.places[item.nodeid]
        )

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)


class _Instead(MetaPathFinder):
    """Finds the changed module before the real one."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant = mutant

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != self.mutant.module:
            return None
        file = path_of(fullname)
        code = self.mutant.code(file)

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, name: str) -> Any:
                return code

        return importlib.machinery.ModuleSpec(fullname, Loader(fullname, str(file)), origin=str(file))
