"""The comparison of two trees and the count of frames run on this tree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import walks

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_tree_is_compared_with_itself():
    command = [sys.executable, "-m", "bench.versus", str(ROOT), "--rounds", "1", "--only", "memory"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert re.findall(r"^memory +(\w+) +[\d.]+x +[\d.]+ us$", ended.stdout, re.MULTILINE) == ["new", "replay"], (
        ended.stderr
    )


def test_the_walk_of_a_call_begins_at_the_decorated_function_and_ends_in_the_store():
    entered = walks.memory().entered

    assert entered[0][1] == "guard/decorated.py"
    assert any(name == "stores/memory.py" for _, name, _ in entered)
    assert walks.memory().walk() == walks.memory().walk()
