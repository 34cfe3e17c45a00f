"""The pages that promise something name what shows it, and it is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tools.states_diagram import PAGE, page_with

ROOT = Path(__file__).parents[2]
NAMED = sorted(
    {
        reference
        for page in (ROOT / "docs").rglob("*.md")
        for reference in re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", page.read_text(encoding="utf-8"))
    }
)


def test_the_guarantees_name_their_tests():
    assert len([one for one in NAMED if "::" in one]) >= 15


@pytest.mark.parametrize("reference", NAMED)
def test_a_named_test_exists(reference: str):
    path, _, name = reference.partition("::")
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}

    assert not name or name in tests


def test_every_window_is_shown_by_a_test_that_produces_it():
    """A row of the table without a test is a window nobody has seen; the one exception is a way to deploy."""
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    table = page.split("## Windows that remain")[1].split("## Not promised")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ") and not row.startswith("| window")]

    assert len(rows) >= 9
    assert [row for row in rows if "tests/" not in row and "aliases=" not in row] == []


def test_the_diagram_of_the_states_is_made_from_next():
    text = PAGE.read_text(encoding="utf-8")

    assert page_with(text) == text
