"""CONTRIBUTING.md is true: its example of a store's tests runs as it stands, and lets nothing out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from samekey.testing._store_scenarios import PROCESS_SCENARIOS, SCENARIOS

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
TRIED = [one for one in (*SCENARIOS, *PROCESS_SCENARIOS) if FULL or "open" in one.__name__ or one in PROCESS_SCENARIOS]

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"

YOURS = """
from pathlib import Path

from samekey.stores.sqlite import AsyncSqliteStore, SqliteStore

class YoursStore(SqliteStore):
    def __init__(self, url):
        super().__init__(Path(__file__).with_name(url.rpartition("/")[2]), synchronous="normal")

class AsyncYoursStore(AsyncSqliteStore):
    def __init__(self, url):
        super().__init__(Path(__file__).with_name(url.rpartition("/")[2]), synchronous="normal")
"""


@pytest.mark.slow
def test_the_example_of_a_stores_tests_runs(tmp_path):
    """Every scenario (a few without the full budget), in both colours, with a store that is in one file."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text().partition("## Add a migration")[0], re.DOTALL)
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
