"""The CPU budget of each room: every folder has one, and a room far above it fails the run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests import budget

ROOT = Path(__file__).parent.parent
BUSY = """
import time

def test_busy():
    ends = time.process_time() + 0.5
    while time.process_time() < ends: pass
"""
CONFTEST = """
from tests import budget
from tests.budget import *
budget.ROOMS, budget.BUDGETS = {{".": "here"}}, {{"here": {seconds}}}
"""


def test_every_folder_of_tests_has_a_room():
    folders = [path.relative_to(ROOT) for path in (ROOT / "tests").iterdir() if any(path.glob("**/test_*.py"))]

    assert [str(one) for one in folders if str(one) not in budget.ROOMS] == []
    assert {*budget.ROOMS.values()} == {*budget.BUDGETS}


def test_the_rooms_have_no_more_than_the_whole():
    assert sum(budget.BUDGETS.values()) <= budget.WHOLE_SECONDS


@pytest.mark.parametrize(
    ("took", "above", "failed"),
    [
        ({"core": 30.0}, [], []),
        ({"core": 31.0}, ["core"], []),
        ({"core": 46.0}, ["core"], ["core"]),
        ({budget.START: budget.WHOLE_SECONDS + 1.0}, ["all"], []),
        ({budget.START: 1.5 * budget.WHOLE_SECONDS + 1.0}, ["all"], ["all"]),
        ({"tests/nowhere/test_it.py": 0.1}, ["tests/nowhere/test_it.py"], ["tests/nowhere/test_it.py"]),
    ],
)
def test_what_is_over_budget(took, above, failed):
    seconds = Counter(took)

    assert budget.over(seconds) == (above, failed)
    assert [line.split()[0] for line in budget.table(seconds) if "FAILED" in line] == failed


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["one process", "a worker"])
@pytest.mark.parametrize(("allowed", "code"), [(0.2, 1), (60.0, 0)])
def test_a_room_far_above_its_budget_fails_the_run(workers, allowed, code, tmp_path):
    (tmp_path / "test_some.py").write_text(BUSY)

    ended = run(tmp_path, allowed, *workers)

    assert ended.returncode == code, ended.stdout
    assert ("FAILED: above 1.5 budgets" in ended.stdout) is bool(code)


@pytest.mark.slow
def test_processes_that_a_test_started_are_counted():
    """Those it waited for, and those that still run."""
    code = """
import subprocess, sys
from tests.budget import spent
busy = "import time\\nwhile time.process_time() < 0.5: pass\\nprint('done', flush=True)\\ninput()"
before = spent()
child = subprocess.Popen([sys.executable, "-c", busy], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
child.stdout.readline()
running = spent() - before
child.communicate("\\n")
print(running, spent() - before)
"""
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout

    running, ended = map(float, printed.split())
    assert running >= 0.45
    assert ended >= 0.5


@pytest.mark.parametrize(("allowed", "mark"), [("60", ""), ("0.01", ", over budget")])
@pytest.mark.parametrize("code", [0, 3])
def test_the_seconds_of_a_command_are_printed_and_its_exit_code_is_kept(allowed, mark, code):
    busy = f"import time\nwhile time.process_time() < 0.1: pass\nraise SystemExit({code})"
    command = [sys.executable, "-m", "tools.cpu", allowed, sys.executable, "-c", busy]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)

    assert ended.returncode == code
    assert re.fullmatch(rf"\d+ CPU seconds of {allowed}{mark}, in \d+ s\n", ended.stdout)


def run(folder: Path, allowed: float, *workers: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST.format(seconds=allowed))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:samekey", "--rootdir", ".", "--cpu-budget", *workers]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(
        [*command, "test_some.py"],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
    )
