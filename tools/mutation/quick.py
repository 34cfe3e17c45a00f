"""The quick way to try a mutant: change one function in a process that has every test collected already.

A pytest session stops after its collection and serves: for each mutant it forks, gives the function its changed code
and runs the chosen tests. That takes milliseconds instead of a second. What runs at import (a class body, a constant, a
default) cannot be changed so.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from tools.mutation.child import Fate, in_a_child
from tools.mutation.mutants import Mutant
from tools.mutation.seen import LOOKED_SECONDS, OPTIONS, path_of, quieten_hypothesis

# Of one test, beside ten times what it takes with nothing changed: then it goes in circles, or waits for nobody.
CIRCLES_SECONDS = 3.0
WAITS_SECONDS = 8.0


class Quick:
    """Our side: a process that serves."""

    def __init__(self, tests: Sequence[str], seconds: Mapping[str, float]) -> None:
        here, there = Pipe()
        self._pid = os.fork()
        if not self._pid:
            here.close()
            _serve(tests, there, seconds)
            os._exit(0)
        there.close()
        self._line = here
        self.names: list[str] = self._line.recv()  # of every test there is

    def tried(self, mutant: Mutant | None, names: Sequence[str], seconds: float) -> Fate | None:
        """What the tests say; None if it cannot be tried so."""
        self._line.send((mutant, list(names), seconds))
        fate: Fate | None = self._line.recv()
        return fate

    def close(self) -> None:
        self._line.close()
        os.waitpid(self._pid, 0)


def _serve(tests: Sequence[str], line: Connection, seconds: Mapping[str, float]) -> None:
    import pytest

    quieten_hypothesis()
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(quiet, number)
    pytest.main([*OPTIONS, *tests], plugins=[_Server(line, seconds)])


class _Server:
    """A pytest plugin: instead of running its tests, a session serves mutants."""

    def __init__(self, line: Connection, seconds: Mapping[str, float]) -> None:
        self.line = line
        self.seconds = seconds
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtestloop(self, session: Any) -> bool:
        import pytest

        items = {item.nodeid: item for item in session.items}
        for item in session.items:
            item.add_marker(pytest.mark.timeout(self._limit(item, WAITS_SECONDS)), append=False)
        for module in [name for name in sys.modules if name.startswith("samekey.core.")]:
            _unchanged(module)
        first = session.items[0]
        first.config.hook.pytest_runtest_protocol(item=first, nextitem=None)  # what is loaded for a test is loaded now
        gc.collect()
        gc.freeze()  # a child that collects must not copy the whole of us
        self.line.send(list(items))
        while True:
            try:
                mutant, names, seconds = self.line.recv()
            except EOFError:
                return True
            self.line.send(self._try(mutant, [items[name] for name in names if name in items], seconds))

    def _try(self, mutant: Mutant | None, items: list[Any], seconds: float) -> Fate | None:
        changed = [] if mutant is None else list(_functions(mutant))
        if mutant is not None and not changed:
            return None
        return in_a_child(lambda: self._judge(changed, items), seconds)

    def _judge(self, changed: list[tuple[Any, Any]], items: list[Any]) -> str | None:
        for function, code in changed:
            function.__code__ = code
        for item, following in zip(items, [*items[1:], None], strict=True):
            signal.setitimer(signal.ITIMER_PROF, self._limit(item, CIRCLES_SECONDS))  # at its end we are gone
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.failed:
                return self.failed[0]
        return None

    def _limit(self, item: Any, least: float) -> float:
        return least + 10 * self.seconds.get(item.nodeid, LOOKED_SECONDS)


@dataclass
class _Unchanged:
    """A module as it is."""

    codes: dict[tuple[str, int], types.CodeType]
    functions: list[types.FunctionType]


@cache
def _unchanged(module: str) -> _Unchanged:
    path = path_of(module)
    codes = _outermost(compile(path.read_text(encoding="utf-8"), str(path), "exec", dont_inherit=True))
    living = [one for one in gc.get_objects() if type(one) is types.FunctionType and one.__module__ == module]
    return _Unchanged(codes, living)


def _functions(mutant: Mutant) -> Iterator[tuple[types.FunctionType, types.CodeType]]:
    """The living functions that a mutant changes, each with its new code; none if it changes more than one's code."""
    if mutant.at_import:
        return
    before = _unchanged(mutant.module)
    after = _outermost(mutant.code(path_of(mutant.module)))
    different = [name for name in before.codes if before.codes[name] != after.get(name)]
    if len(different) != 1 or different[0] not in after:
        return
    old, new = before.codes[different[0]], after[different[0]]
    instead = dict(_pairs(old, new))
    for one in before.functions:
        made = instead.get(one.__code__)
        if made is not None and made.co_freevars == one.__code__.co_freevars:
            yield one, made


def _pairs(old: types.CodeType, new: types.CodeType) -> Iterator[tuple[types.CodeType, types.CodeType]]:
    """A function's code before and after, and that of the functions inside it, some of which live already."""
    yield old, new
    inner = [[one for one in code.co_consts if isinstance(one, types.CodeType)] for code in (old, new)]
    if len(inner[0]) == len(inner[1]):
        for before, after in zip(*inner, strict=True):
            yield from _pairs(before, after)


def _outermost(code: types.CodeType, within: str = "") -> dict[tuple[str, int], types.CodeType]:
    """The functions of a module and of its classes, by name and first line; not those inside other functions."""
    found: dict[tuple[str, int], types.CodeType] = {}
    for one in code.co_consts:
        if not isinstance(one, types.CodeType):
            continue
        if one.co_flags & 0x2:  # a function has fast locals, a class body has none
            found[(one.co_qualname, one.co_firstlineno)] = one
        else:
            found |= _outermost(one)
    return found


assert sys.version_info >= (3, 11), "co_qualname"  # noqa: S101
