"""What is changed in core, what becomes of it, and that survivors.txt speaks of it."""

from __future__ import annotations

import ast
import os
import signal
import sys

import pytest

from tools.mutation.__main__ import population, survivors
from tools.mutation.child import in_a_child
from tools.mutation.mutants import mutants

SOURCE = '''
"""A module."""
LIMIT = 3

def allowed(seen, record):
    """Whether."""
    if record is None or seen.token < LIMIT and not seen.state is State.STARTED:
        raise ValueError("for people")
    return settle(seen, record, why="for people too", state="started")
'''
CHANGES = {
    "LIMIT = 3 => nothing",
    "LIMIT = 3 => LIMIT = 4",
    "record is None => record is not None",
    "seen.token < LIMIT => seen.token <= LIMIT",
    "seen.token < LIMIT => seen.token >= LIMIT",
    "seen.token < LIMIT and (not seen.state is State.STARTED) => seen.token < LIMIT",
    "not seen.state is State.STARTED => seen.state is State.STARTED",
    "raise ValueError('for people') => nothing",
    "settle(seen, record, why='for people too', state='started') => settle(seen, record, why='for people too')",
    "settle(seen, record, why='for people too', state='started')"
    " => settle(record, seen, why='for people too', state='started')",
}


def test_small_things_are_changed_one_at_a_time(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    found = mutants("samekey.core.module", path)
    changes = {one.change for one in found}

    assert changes >= CHANGES
    assert not [one for one in changes if "peopleX" in one or "tooX" in one]  # what only people read
    assert len({one.name for one in found}) == len(found)
    unchanged = ast.unparse(ast.parse(SOURCE))
    for one in found:
        with one.tree(path) as changed:
            assert ast.unparse(changed) != unchanged
        assert one.name.startswith("core.module:")
        assert one.at_import == (one.within != "allowed")


def test_every_explained_survivor_is_a_mutant_that_there_is():
    """A reason for a line that is gone is no reason: `python -m tools.mutation --check` names it."""
    explained = survivors()

    assert set(explained) <= {mutant.name for mutant in population()}
    assert all(explained.values())


@pytest.mark.parametrize(
    ("judge", "fate"),
    [
        (lambda: None, ("survived", "")),
        (lambda: "tests/a.py::test_b", ("killed", "tests/a.py::test_b")),
        (lambda: sys.exit(0), ("killed", "outside a test: SystemExit")),  # no mutant gets away by leaving
        (lambda: os.kill(os.getpid(), signal.SIGKILL), ("circles", "")),
    ],
)
def test_whatever_a_mutant_does_it_has_a_fate(judge, fate):
    assert in_a_child(judge, 0.0) == fate
