"""docs/http-scenarios.md: every scenario has a test, every test says which scenario it is, and no adapter skips it."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from samekey.testing.http import HttpAdapterSuite

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (C\d\d) \|.*\| ([^|]*) \|$", (ROOT / "docs/http-scenarios.md").read_text(), re.MULTILINE)

# The scenarios that are about HTTP: keys and callers (3x, 4x, 5x) and replays (5x, 6x).
WANTED = {
    *("C35", "C36", "C37", "C39", "C40", "C41", "C46", "C47", "C48", "C49", "C50", "C52"),
    *("C55", "C56", "C57", "C58", "C60", "C61", "C62", "C64", "C65", "C66", "C67", "C69"),
}  # fmt: skip

# One for each way in: bare, Starlette's two, FastAPI, Litestar, WSGI, Flask, Django's two by two, REST framework.
ADAPTERS_MIN = 12


def adapters() -> list[type[HttpAdapterSuite]]:
    """The classes that run the suite, wherever in tests/http they are."""
    found: list[type[HttpAdapterSuite]] = []
    for path in sorted((ROOT / "tests/http").glob("test_*.py")):
        module = importlib.import_module(f"tests.http.{path.stem}")
        for name, made in inspect.getmembers(module, inspect.isclass):
            if name.startswith("Test") and issubclass(made, HttpAdapterSuite) and made is not HttpAdapterSuite:
                found.append(made)
    return found


def shared(cell: str) -> list[str]:
    return re.findall(r"`(test_\w+)`", cell)


def marks(test: Any) -> list[str]:
    return [mark.name for mark in getattr(test, "pytestmark", ())]


def test_no_scenario_is_missing():
    assert {number for number, _ in ROWS} >= WANTED
    assert [number for number, cell in ROWS if not shared(cell) and "::" not in cell] == []


def test_every_scenario_is_a_named_test_of_the_suite():
    """The docstring of the test has the scenario's number, so that a reader of the test finds the page."""
    named = [(number, name) for number, cell in ROWS for name in shared(cell)]

    assert [
        (number, name) for number, name in named if number not in (getattr(HttpAdapterSuite, name).__doc__ or "")
    ] == []


def test_every_adapter_passes_every_one_of_them():
    """Nobody leaves one out: none is replaced, skipped or expected to fail."""
    suite = {name: made for name, made in inspect.getmembers(HttpAdapterSuite) if name.startswith("test_")}
    found = adapters()

    assert len(found) >= ADAPTERS_MIN
    for adapter in found:
        assert marks(adapter) == []
        changed = [name for name, made in suite.items() if getattr(adapter, name) is not made or marks(made)]
        assert changed == [], adapter
