"""A second look at a few tests that timed out: it must not forgive a test that fails alone, nor any other failure."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import failures
from tools import again

ROOT = Path(__file__).parent.parent
PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"


@pytest.fixture
def look(tmp_path, monkeypatch):
    """A second look, in a folder with this file of tests, at what failed in the last run and why."""
    monkeypatch.chdir(tmp_path)

    def look(source: str, failed: dict[str, str], *, finished: bool = True) -> int:
        Path("test_some.py").write_text(source)
        again.FAILURES.parent.mkdir(parents=True)
        again.FAILURES.write_text(json.dumps({"finished": finished, "failed": failed}))
        return again.main(["-q"])

    return look


def late(*tests: str) -> dict[str, str]:
    return dict.fromkeys(tests, again.TIME_OUT)


@pytest.mark.slow
def test_a_time_out_that_passes_alone_is_forgiven_and_named(look, capsys):
    assert look(PASSES, late("test_some.py::test_passes")) == 0
    printed = capsys.readouterr().out
    assert "forgiven, because they timed out and passed alone" in printed
    assert "test_some.py::test_passes" in printed


@pytest.mark.slow
def test_a_test_that_fails_alone_has_failed(look, capsys):
    assert look(PASSES + FAILS, late("test_some.py::test_fails", "test_some.py::test_passes")) == 1
    assert "forgiven" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_test_that_is_gone_has_failed(look):
    assert look(PASSES, late("test_some.py::test_other")) != 0


def test_a_failure_that_is_no_time_out_is_never_forgiven(look, capsys):
    assert look(PASSES, {"test_some.py::test_passes": failures.FAILED}) == 1
    assert "only a time-out is tried again" in capsys.readouterr().out


def test_a_run_that_failed_without_a_test_stays_failed(look):
    assert look(PASSES, {}) == 1


def test_a_run_that_did_not_reach_its_end_stays_failed(look):
    assert look(PASSES, late("test_some.py::test_passes"), finished=False) == 1

    again.FAILURES.unlink()
    assert again.main([]) == 1


def test_many_time_outs_are_no_chance(look):
    assert look(PASSES, late(*(f"test_some.py::test_passes[{number}]" for number in range(again.FEW + 1)))) == 1


@pytest.mark.parametrize("room", again.NO_SECOND_LOOK)
def test_a_room_whose_tests_count_effects_gets_no_second_look(room, look):
    assert (ROOT / room).is_dir()
    assert look(PASSES, late("test_some.py::test_passes", f"{room}test_it.py::test_effects")) == 1


def test_a_page_is_tried_whole():
    assert again.alone(["docs/index.md::line:9,column:1", "docs/index.md::line:20,column:1"]) == ["docs/index.md"]


# -- the reasons of a real run -----------------------------------------------------------------------------------------

MIXED = """
import asyncio, subprocess, sys, time
import pytest

def test_passes(): pass

def test_counts(): assert 2 == 1, "TimeoutError: two effects"

def test_waits(): raise TimeoutError("no event came")

async def awaits():
    async with asyncio.timeout(0.001):
        await asyncio.sleep(60)

def test_awaits(): asyncio.run(awaits())

def test_starts(): subprocess.run([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, timeout=0.001)

@pytest.mark.timeout(0.1)
def test_hangs(): time.sleep(60)

@pytest.fixture
def broken():
    yield
    raise RuntimeError("left something open")

def test_waits_and_leaves(broken): raise TimeoutError("no event came")
"""
REASONS = {
    "test_counts": failures.FAILED,
    "test_waits": failures.TIME_OUT,
    "test_awaits": failures.TIME_OUT,
    "test_starts": failures.TIME_OUT,
    "test_hangs": failures.TIME_OUT,
    "test_waits_and_leaves": failures.FAILED,
}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["-n", "1"]], ids=["one process", "a worker"])
def test_a_run_writes_down_why_each_test_failed(workers, tmp_path, monkeypatch):
    """From the exception, in the process that raised it: a text that says so is no time-out."""
    (tmp_path / "test_some.py").write_text(MIXED)
    (tmp_path / "conftest.py").write_text("from tests.failures import *\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:samekey", "--rootdir", ".", *workers, "test_some.py"]
    subprocess.run(command, cwd=tmp_path, env=environment(), check=False, capture_output=True, timeout=60)

    monkeypatch.chdir(tmp_path)
    finished, failed = again.last_run()
    assert finished
    assert failed == {f"test_some.py::{name}": reason for name, reason in REASONS.items()}


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return kept | {"PYTHONPATH": str(ROOT)}


def test_the_two_sides_mean_the_same_file_and_the_same_reason():
    assert again.TIME_OUT == failures.TIME_OUT
    assert Path(".pytest_cache/v", failures.RECORD) == again.FAILURES


@pytest.mark.parametrize("error", [AssertionError("Timeout"), asyncio.CancelledError(), OSError("timed out")])
def test_other_exceptions_are_no_time_outs(error):
    assert failures.reason(error) == failures.FAILED
