"""A second look at a few tests that failed beside others: it must not let anything through that fails alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools import again

pytestmark = pytest.mark.slow  # each starts a pytest

PASSES = "def test_passes(): pass\n"
FAILS = "def test_fails(): assert False\n"


@pytest.fixture
def failed(tmp_path, monkeypatch):
    """Run it in a folder with this file of tests, of which these failed in the last run."""
    monkeypatch.chdir(tmp_path)

    def look(source: str, *tests: str) -> int:
        Path("test_some.py").write_text(source)
        again.FAILED.parent.mkdir(parents=True)
        again.FAILED.write_text(json.dumps(dict.fromkeys(tests, True)))
        return again.main(["-q"])

    return look


def test_what_passes_alone_is_told(failed, capsys):
    assert failed(PASSES, "test_some.py::test_passes") == 0
    assert "passed alone, after failing beside others" in capsys.readouterr().out


def test_what_fails_alone_has_failed(failed, capsys):
    assert failed(PASSES + FAILS, "test_some.py::test_fails", "test_some.py::test_passes") == 1
    assert "passed alone" not in capsys.readouterr().out


def test_a_test_that_is_gone_has_failed(failed):
    assert failed(PASSES, "test_some.py::test_other") != 0


def test_a_run_that_failed_without_a_test_stays_failed(failed, tmp_path, monkeypatch):
    assert failed(PASSES) == 1

    again.FAILED.unlink()
    assert again.main([]) == 1


def test_many_are_no_chance(failed):
    assert failed(PASSES, *(f"test_some.py::test_passes[{number}]" for number in range(again.FEW + 1))) == 1


@pytest.mark.parametrize("room", again.NO_SECOND_LOOK)
def test_what_counts_effects_may_not_fail_once(room, failed):
    assert (Path(__file__).parent.parent / room).is_dir()
    assert failed(PASSES, "test_some.py::test_passes", f"{room}test_it.py::test_effects") == 1


def test_a_page_is_tried_whole():
    assert again.alone(["docs/index.md::line:9,column:1", "docs/index.md::line:20,column:1"]) == ["docs/index.md"]
