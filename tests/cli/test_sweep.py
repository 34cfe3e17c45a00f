"""samekey sweep: what is past its retention goes, at a measured pace, and nothing else does."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from samekey import Guard, Policy
from samekey.ops.sweeping import PIECE, Swept, sweeping
from samekey.stores.memory import MemoryStore
from samekey.testing.clock import ManualClock
from tests.cli.conftest import Shell

BRIEF = Policy(retention=0.001)


@pytest.fixture
def past(shell: Shell):
    """Five records past their retention, and one of each kind that must stay."""
    with Guard(shell.store) as guard:
        for number in range(5):
            guard.run("charge", lambda: "paid", key=f"old-{number}", payload={}, policy=BRIEF)
        guard.run("charge", lambda: "paid", key="kept", payload={})
        with pytest.raises(TimeoutError):
            guard.run("charge", _no_answer, key="doubt", payload={}, policy=BRIEF)
        guard.run("charge", lambda: "paid", key="anew", payload={}, policy=BRIEF)
        while guard.run("charge", lambda: "paid", key="anew", payload={}, policy=Policy(retention=3600)).replayed:
            pass  # until its retention is over
    return shell


def _no_answer() -> None:
    raise TimeoutError


def left(shell: Shell) -> list[str]:
    return sorted(json.loads(line)["key"] for line in shell("ls", "--json").stdout.splitlines())


def test_it_deletes_what_is_past_its_retention(past: Shell):
    done = past("sweep")

    assert (done.exit_code, done.stdout) == (0, "swept 5\n")
    assert left(past) == ["anew", "doubt", "kept"]
    assert past("sweep").stdout == "swept 0\n"


def test_a_limit_that_leaves_something_is_incomplete(past: Shell):
    first = past("sweep", "--limit", "3", "--piece", "2", "--json")
    second = past("sweep", "--json")

    assert first.exit_code == 4
    assert json.loads(first.stdout) == {"v": 1, "store": past.store, "swept": 3, "complete": False}
    assert (second.exit_code, json.loads(second.stdout)["swept"]) == (0, 2)


def test_each_piece_says_how_long_to_pause():
    """No more than `pace` records in a second, piece by piece, on any store: here one in memory."""
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    guard = Guard(store)
    for number in range(10):
        guard.run("charge", lambda: "paid", key=number, payload={}, policy=Policy(retention=60))
    clock.advance(61)
    guard.run("charge", lambda: "paid", key="new", payload={})

    steps = list(sweeping(store, piece=4, pace=2.0))

    assert steps == [Swept(4, 4, True, 2.0), Swept(4, 8, True, 2.0), Swept(2, 10, False, 0.0)]
    assert list(sweeping(store)) == [Swept(0, 0, False, 0.0)]
    assert PIECE > 1


@pytest.mark.slow
def test_watching_goes_on_until_it_is_stopped(past: Shell):
    """Round after round; Ctrl-C is a good end."""
    watching = subprocess.Popen(
        [sys.executable, "-m", "samekey", "sweep", "--watch", "--every", "0.1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=past.environment,
        cwd=past.path.parent,
    )
    assert watching.stdout is not None
    try:
        rounds = [json.loads(watching.stdout.readline())["swept"] for _ in range(2)]
        with Guard(past.store) as guard:
            guard.run("charge", lambda: "paid", key="later", payload={}, policy=BRIEF)
        while not (swept := json.loads(watching.stdout.readline())["swept"]):
            pass
        watching.send_signal(signal.SIGINT)
        _, told = watching.communicate(timeout=30)
    finally:
        watching.kill()
        watching.wait()

    assert (rounds, swept, watching.returncode) == ([5, 0], 1, 0)
    assert "stopped" in told


def test_wrong_usage_and_no_store(shell: Shell):
    assert shell("sweep").exit_code == 3
    assert shell("sweep", "--pace", "0").exit_code == 2
    assert shell("sweep", "--piece", "100000").exit_code == 2
