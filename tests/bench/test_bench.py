"""The benchmark itself: it runs, and says what it has to say. No test here looks at a time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import groups
from bench.__main__ import main
from bench.figures import Figure, Reading, Result, at_least, at_most, exactly
from bench.measure import percentile

ROOT = Path(__file__).parents[2]
FIELDS = {"id", "value", "unit", "target", "ok", "within_margin", "against", "group", "note", "samples"}


def run(*arguments):
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)


def test_a_quick_run_says_every_figure_as_one_json_object_per_line():
    """Exit code 0 or 1 says whether targets are met: on a busy machine they may be missed, and that is no failure."""
    ended = run("--quick", "--json", "--only", "memory,fingerprint")

    assert ended.returncode in (0, 1), ended.stderr
    figures = [json.loads(line) for line in ended.stdout.splitlines()]
    assert all(figure.keys() == FIELDS for figure in figures)
    assert {figure["group"] for figure in figures} == {groups.ALWAYS, "memory", "fingerprint"}
    assert all(figure["id"].startswith(f"{figure['group']}.") for figure in figures)
    assert len({figure["id"] for figure in figures}) == len(figures)
    assert all(isinstance(figure["value"], (int, float)) for figure in figures), "an experiment failed"
    assert all((figure["ok"] is None) == (figure["target"] is None) for figure in figures)


def test_every_group_lists_its_figures_under_unique_ids(capsys):
    assert main(["--list"]) == 0

    ids = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert len(set(ids)) == len(ids)
    assert {name.partition(".")[0] for name in ids} == set(groups.NAMES)


@pytest.mark.parametrize("arguments", [["--only", "mysql"], ["--only", ""], ["--fast"], ["sqlite"]])
def test_wrong_usage_is_exit_code_2(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)

    assert stopped.value.code == 2
    assert "usage: python -m bench" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "value", "ok", "within_margin"),
    [
        (at_most(2.0), 2.0, True, True),
        (at_most(2.0), 2.4, False, True),
        (at_most(2.0), 2.6, False, False),
        (at_least(10.0), 10.0, True, True),
        (at_least(10.0), 8.1, False, True),
        (at_least(10.0), 7.9, False, False),
        (exactly(1), 1, True, True),
        (exactly(1), 2, False, False),  # a second effect is never within a margin
    ],
)
def test_the_margin_is_told_beside_the_target_and_never_in_its_place(target, value, ok, within_margin):
    result = Result("made up", Figure("made.up", "x", "nothing", target), Reading(value))

    assert (result.ok, result.within_margin, result.fails) == (ok, within_margin, not ok)


def test_a_target_that_does_not_gate_is_judged_and_fails_nothing():
    result = Result("made up", Figure("made.up", "ms", "nothing", at_most(120.0, gates=False)), Reading(500.0))

    assert (result.ok, result.within_margin, result.fails) == (False, False, False)


def test_an_experiment_that_broke_fails_the_run():
    result = Result("made up", Figure("made.up", "ms", "nothing"), None, error="ValueError: no")

    assert result.fails


def test_a_percentile_is_always_one_of_the_values():
    assert percentile([5.0, 1.0, 3.0], 0.50) == 3.0
    assert percentile([5.0, 1.0, 3.0], 0.99) == 5.0
    assert percentile([7.0], 0.50) == 7.0
