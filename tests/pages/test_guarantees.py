"""The pages that promise something name what shows it, and it is there.

A table whose last column is headed "shown by" is a table of promises, on any page: each row names at least one test,
as `tests/file.py::test_name` (`::TestClass::test_name`, `[case]`). To add a promise, add a row.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.states_diagram import PAGE, page_with

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
NAMED = re.compile(r"`(tests/[\w/]+\.py(?:::[^`]+)?)`")
PROMISING = ("guarantees.md", "threat-model.md")  # every table there is one of promises


def tables(page: Path) -> list[list[str]]:
    """The tables of a page, each as its lines: heading, rule, rows."""
    found = re.findall(r"(?:^\|.*\n)+", page.read_text(encoding="utf-8") + "\n", re.MULTILINE)
    return [table.splitlines() for table in found]


def promises(page: Path) -> list[str]:
    return [row for table in tables(page) if table[0].rstrip("| ").endswith("shown by") for row in table[2:]]


NAMES = sorted({name for page in PAGES for name in NAMED.findall(page.read_text(encoding="utf-8"))})
ROWS = [(page.name, row) for page in PAGES for row in promises(page)]


@pytest.fixture(scope="module")
def collected() -> dict[str, str]:
    """What pytest collects of the files that are named: node id, and the marks that would hush it."""
    files = sorted({name.partition("::")[0] for name in NAMES})
    command = [sys.executable, "tools/collected.py", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    lines = [line.split("\t") for line in done.stdout.splitlines() if line.startswith("TEST\t")]
    return {node: marks for _, node, marks in lines}


@pytest.mark.parametrize("page", PROMISING)
def test_every_table_of_promises_says_what_shows_them(page: str):
    headings = [table[0] for table in tables(ROOT / "docs" / page)]

    assert headings
    assert [heading for heading in headings if not heading.rstrip("| ").endswith("shown by")] == []


def test_every_promise_names_a_test():
    """Not just a file: a test whose name is a sentence about the promise."""
    unshown = [
        f"{page}: {row}"
        for page, row in ROWS
        if not any("::" in name for name in NAMED.findall(row.rpartition(" | ")[2]))
    ]

    assert len(ROWS) > 100
    assert unshown == []


@pytest.mark.slow  # it collects every test there is
def test_every_named_test_is_collected_and_not_skipped(collected: dict[str, str]):
    found = {
        name: [node for node in collected if node == name or node.startswith((f"{name}[", f"{name}::"))]
        for name in NAMES
    }

    assert len(NAMES) > 200
    assert [name for name, tests in found.items() if not tests] == []  # pytest does not find them
    assert [node for tests in found.values() for node in tests if collected[node]] == []


def test_the_diagram_of_the_states_is_made_from_next():
    text = PAGE.read_text(encoding="utf-8")

    assert page_with(text) == text
