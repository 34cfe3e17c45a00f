"""CONTRIBUTING.md is true: its examples run as they stand, its lines work, its map is the place."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from samekey import Guard, Opaque
from samekey.testing.stores.scene import PROCESS_SCENARIOS, SCENARIOS
from tests.pages.blocks import ROOT, block
from tests.pages.commands import carry_out, script

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
TRIED = [one for one in (*SCENARIOS, *PROCESS_SCENARIOS) if FULL or "open" in one.__name__ or one in PROCESS_SCENARIOS]

PAGE = "CONTRIBUTING.md"

YOURS = """
from pathlib import Path

from samekey.stores.sqlite import AsyncSqliteStore, SqliteStore

class YoursStore(SqliteStore):
    def __init__(self, url):
        super().__init__(Path(__file__).with_name(url.rpartition("/")[2]), synchronous="normal")

    @classmethod
    def from_url(cls, url):
        return cls(url)

class AsyncYoursStore(AsyncSqliteStore):
    def __init__(self, url):
        super().__init__(Path(__file__).with_name(url.rpartition("/")[2]), synchronous="normal")

    @classmethod
    def from_url(cls, url):
        return cls(url)

STORES = (YoursStore, AsyncYoursStore)
"""

USES = """
from samekey import Guard

with Guard("yours://localhost/keys") as guard:
    for _ in range(2):
        print(guard.run("greet", lambda: "hello", key="ann", payload={}).replayed)
"""


@pytest.mark.slow
def test_the_example_of_a_stores_tests_runs(tmp_path):
    """Every scenario (a few without the full budget), in both colours, with a store that is in one file."""
    example = block(PAGE, "from samekey.testing import AsyncStoreSuite").text
    (tmp_path / "yours.py").write_text(YOURS)
    (tmp_path / "test_yours.py").write_text(example)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", " or ".join(f"test_{one.__name__}" for one in TRIED)],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{2 * len(TRIED)} passed" in done.stdout


def test_a_store_of_another_distribution_is_found_as_the_page_registers_it(tmp_path):
    project = tomllib.loads(block(PAGE, "[project.entry-points").text)["project"]
    lines = [
        f"[{group}]\n{name} = {store}\n"
        for group, found in project["entry-points"].items()
        for name, store in found.items()
    ]
    (tmp_path / "yours.py").write_text(YOURS)
    (tmp_path / "yours-1.dist-info").mkdir()
    (tmp_path / "yours-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: yours\nVersion: 1\n")
    (tmp_path / "yours-1.dist-info" / "entry_points.txt").write_text("".join(lines))
    done = subprocess.run(
        [sys.executable, "-c", USES],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("False\nTrue\n", "")


def test_the_example_of_an_adapters_test_runs():
    def yours(guard: Guard, handler: Any, *, key: str, boundary: Any) -> Any:
        return lambda message: guard.run(
            "yours", lambda: handler(message), key=message[key], payload=message, boundary=boundary
        )

    said: dict[str, Any] = {"Opaque": Opaque, "yours": yours}
    exec(block(PAGE, "def test_a_redelivered_message").text, said)
    with Guard("memory://") as guard:
        said["test_a_redelivered_message_is_replayed"](guard)


def test_the_lines_of_the_venv_are_right():
    lines = list(script(block(PAGE, "python3 -m venv").text))

    assert [wrong for line, _ in lines if (wrong := carry_out(line))] == []
    assert len(lines) == 3


def test_the_table_of_places_names_files_that_hold_those_names():
    """A newcomer finds the place for each of these from the page alone."""
    rows = re.findall(
        r"^\| (.*) \| `([\w/]+\.py)` \| (.*) \|$", (ROOT / PAGE).read_text(encoding="utf-8"), re.MULTILINE
    )
    asked = ("a key is made", "claim is decided", "PostgreSQL claims", "FastAPI attaches", "new broker would attach")
    wrong = [
        f"{file}: {name}"
        for _, file, names in rows
        for name in re.findall(r"`([\w.]+)`", names)
        if name not in defined(ROOT / "src" / "samekey" / file)
    ]

    assert [what for what in asked if not any(what in where for where, _, _ in rows)] == []
    assert wrong == []


def defined(file: Path) -> set[str]:
    """The functions and classes of a file, and the methods of its classes as `Class.method`."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    top = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, kinds)]
    classes = [node for node in top if isinstance(node, ast.ClassDef)]
    methods = {f"{one.name}.{node.name}" for one in classes for node in one.body if isinstance(node, kinds)}
    return {node.name for node in top} | methods


def test_the_layout_is_the_one_there_is():
    """Whatever is named is there, and every room of samekey is named."""
    text = block(PAGE, "src/samekey/").text
    ours = ROOT / "src" / "samekey"
    named = set(re.findall(r"[\w/]+(?:\.py|/)(?=[\s,;]|$)", text))
    there = {f"{one.name}/" for one in ours.iterdir() if (one / "__init__.py").exists()}
    there |= {one.name for one in ours.glob("*.py") if not one.name.startswith("_")}

    assert [name for name in named if not (list(ours.rglob(name.rstrip("/"))) or (ROOT / name).exists())] == []
    assert sorted(there - named) == []
