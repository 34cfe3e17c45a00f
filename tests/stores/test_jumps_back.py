"""Ctrl-C at the end of a loop's round must not skip the `with` or `try` around the loop.

Python 3.13 has no entry in its exception tables for some jumps back to the start of a loop (python/cpython#130279).
An interrupt that comes there leaves the function without `__exit__`, `except` and `finally`: a mutex stays locked, and
every later caller waits for it. A loop in a function of its own, called inside the block, is safe.
"""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

import samekey

SOURCE = Path(samekey.__file__).parent
# Where a caller's own thread, which signals may interrupt, holds a mutex or a lead, or must close the core's steps.
CHECKED = (
    "core/drive.py",
    "stores/_turns.py",
    "stores/memory.py",
    "stores/mysql/_connections.py",
    "stores/postgres/callers/psycopg.py",
    *(str(one.relative_to(SOURCE)) for one in sorted((SOURCE / "guard").glob("*.py"))),
)


def functions_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType) and not constant.co_name.startswith("<"):  # a comprehension: its own function
            yield from functions_in(constant)


def protected_lines(tree: ast.AST) -> set[int]:
    """The lines of loops and comprehensions that are inside a `with` or `try` of their own function."""
    lines: set[int] = set()
    for block in ast.walk(tree):
        if isinstance(block, ast.With | ast.AsyncWith | ast.Try):
            for node in within(block.body):
                if isinstance(node, ast.For | ast.AsyncFor | ast.While | ast.ListComp | ast.SetComp | ast.DictComp):
                    lines.update(range(node.lineno, (node.end_lineno or 0) + 1))
    return lines


def within(nodes: Sequence[ast.AST]) -> Iterator[ast.AST]:
    for node in nodes:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.GeneratorExp):
            yield node
            yield from within(list(ast.iter_child_nodes(node)))


def unprotected(code: CodeType, lines: set[int]) -> Iterator[str]:
    table: list[Any] = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    for at in dis.get_instructions(code):
        line = at.positions.lineno if at.positions else None
        if at.opname == "JUMP_BACKWARD" and line in lines:
            if not any(entry.start <= at.offset < entry.end for entry in table):
                yield f"{code.co_qualname}, line {line}"


@pytest.mark.parametrize("name", CHECKED)
def test_no_jump_back_is_outside_the_handlers_around_it(name: str):
    tree = ast.parse((SOURCE / name).read_text())
    lines = protected_lines(tree)

    assert [place for code in functions_in(compile(tree, name, "exec")) for place in unprotected(code, lines)] == []
