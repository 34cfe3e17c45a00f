"""What is changed in core, and that survivors.txt speaks of it."""

from __future__ import annotations

import ast

from tools.mutation.__main__ import population, survivors
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
    for one in found:
        assert ast.unparse(one.tree(path)) != ast.unparse(ast.parse(SOURCE))
        assert one.name.startswith("core.module:")


def test_every_explained_survivor_is_a_mutant_that_there_is():
    """A reason for a line that is gone is no reason: `python -m tools.mutation --check` names it."""
    explained = survivors()

    assert set(explained) <= {mutant.name for mutant in population()}
    assert all(explained.values())
