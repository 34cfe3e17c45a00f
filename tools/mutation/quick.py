"""The quick way to try a mutant: change one function in a process that has every test collected already.

A pytest session stops after its collection and serves: for each mutant it forks, gives the function its changed code
and runs the chosen tests. That takes milliseconds instead of a second. What runs at import (a class body, a constant, a
default) cannot be changed so; and what survives here is tried again in the slow way, because an import may have kept
something of the unchanged code.
"""

from __future__ import annotations

import ast
import gc
import json
import os
import resource
import sys
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from tools.mutation.mutants import Mutant
from tools.mutation.trial import (
    CPU_SECONDS,
    DATA_BYTES,
    OPTIONS,
    WAITING_SECONDS,
    Fate,
    end_group,
    path_of,
    quieten_hypothesis,
    wait_for,
)


class Quick:
    """Our side: a process that serves."""

    def __init__(self, tests: Sequence[str]) -> None:
        here, there = Pipe()
        self._pid = os.fork()
        if not self._pid:
            here.close()
            _serve(tests, there)
            os._exit(0)
        there.close()
        self._line = here
        self.names: list[str] = self._line.recv()  # of every test there is

    def tried(self, mutant: Mutant, names: Sequence[str], seconds: float) -> Fate | None:
        """What the tests say; None if it cannot be tried so."""
        self._line.send((mutant, list(names), seconds))
        fate: Fate | None = self._line.recv()
        return fate

    def close(self) -> None:
        self._line.close()
        os.waitpid(self._pid, 0)


def _serve(tests: Sequence[str], line: Connection) -> None:
    import pytest

    quieten_hypothesis()
    quiet = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(quiet, number)
    pytest.main([*OPTIONS, f"--timeout={WAITING_SECONDS}", *tests], plugins=[_Server(line)])


class _Server:
    """A pytest plugin: instead of running its tests, a session serves mutants."""

    def __init__(self, line: Connection) -> None:
        self.line = line
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_runtestloop(self, session: Any) -> bool:
        items = {item.nodeid: item for item in session.items}
        for module in [name for name in sys.modules if name.startswith("samekey.core.")]:
            _unchanged(module)
        gc.collect()
        gc.freeze()  # a child that collects must not copy the whole of us
        self.line.send(list(items))
        while True:
            try:
                mutant, names, seconds = self.line.recv()
            except EOFError:
                return True
            self.line.send(self._try(mutant, [items[name] for name in names if name in items], seconds))

    def _try(self, mutant: Mutant, items: list[Any], seconds: float) -> Fate | None:
        changed = list(_functions(mutant))
        if not changed:
            return None
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            os.close(reading)
            os.setsid()
            limit = int(CPU_SECONDS + 4 * seconds)
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
            resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES, DATA_BYTES))
            quiet = os.open(os.devnull, os.O_RDWR)
            os.dup2(quiet, 2)
            os._exit(self._judge(changed, items, writing))
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            ended = wait_for(child, CPU_SECONDS * 6 + 30 * seconds)
            heard = said.read().decode() if ended is not None else ""
        end_group(child)
        if ended is None or os.WIFSIGNALED(ended):
            return "circles", ""
        return ("survived" if os.WEXITSTATUS(ended) == 0 else "killed"), heard

    def _judge(self, changed: list[tuple[Any, Any]], items: list[Any], writing: int) -> int:
        try:
            for function, code in changed:
                function.__code__ = code
            for place, item in enumerate(items):
                following = items[place + 1] if place + 1 < len(items) else None
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if self.failed:
                    os.write(writing, self.failed[0].encode())
                    return 1
        except BaseException as error:
            os.write(writing, json.dumps(repr(error)[:100]).encode())
            return 1
        return 0


@dataclass
class _Unchanged:
    """A module as it is."""

    codes: dict[tuple[str, int], types.CodeType]
    shape: str
    functions: list[types.FunctionType]


@cache
def _unchanged(module: str) -> _Unchanged:
    path = path_of(module)
    text = path.read_text(encoding="utf-8")
    codes = _outermost(compile(text, str(path), "exec", dont_inherit=True))
    living = [one for one in gc.get_objects() if type(one) is types.FunctionType and one.__module__ == module]
    return _Unchanged(codes, _shape(ast.parse(text)), living)


def _functions(mutant: Mutant) -> Iterator[tuple[types.FunctionType, types.CodeType]]:
    """The living functions that a mutant changes, each with its new code; none if it changes more than one's code."""
    path = path_of(mutant.module)
    before = _unchanged(mutant.module)
    tree = mutant.tree(path)
    after = _outermost(compile(tree, str(path), "exec", dont_inherit=True))
    different = [name for name in before.codes if before.codes[name] != after.get(name)]
    if len(different) != 1 or different[0] not in after or _shape(tree) != before.shape:
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


def _shape(tree: ast.Module) -> str:
    """Everything but what stands in functions: if that differs, an import must run."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = []
    return ast.dump(tree)


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
