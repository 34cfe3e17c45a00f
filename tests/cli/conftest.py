"""A SQLite file with records in it, and the command line on it: in this process, or as one of its own."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from samekey.cli._root import root
from samekey.stores.sqlite import SqliteStore
from tests.ops.scene import Clock, Scene

# click 8.1 mixes stderr into stdout unless this option is set; 8.2 has no such option and does not mix.
RUNNER: Any = CliRunner
if "mix_stderr" in signature(CliRunner).parameters:
    RUNNER = partial(RUNNER, mix_stderr=False)
SOURCE = Path(__file__).parents[2] / "src"


class Shell:
    """`samekey ...` on one store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = f"sqlite:///{path}"
        self.environment = {
            **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")},
            "SAMEKEY_STORE": self.store,
            "PYTHONPATH": str(SOURCE),
            "TERM": "xterm-256color",
        }

    def __call__(self, *words, input=None):
        """In this process; `exit_code`, `stdout`, `stderr` of what it did."""
        result = RUNNER(env={"SAMEKEY_STORE": self.store}).invoke(root, words, prog_name="samekey", input=input)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    def process(self, *words, **options):
        """As a process of its own."""
        given = {"capture_output": True, "text": True, "timeout": 60, "env": self.environment, "cwd": self.path.parent}
        return subprocess.run([sys.executable, "-m", "samekey", *words], **{**given, **options})

    def damage(self, key, change):
        """Change the record in the file, as another program or a newer version would."""
        with closing(sqlite3.connect(self.path, timeout=30)) as connection, connection:
            connection.execute(f"UPDATE samekey_records SET {change} WHERE key = ?", (key,))


@pytest.fixture
def shell(tmp_path) -> Shell:
    return Shell(tmp_path / "keys.db")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scene(shell) -> Iterator[Scene]:
    store = SqliteStore(shell.path, synchronous="normal")
    yield Scene(store)
    store.close()


@pytest.fixture
def gone(shell, clock) -> Iterator[Scene]:
    """Holds made here look, to the command line, like those of a process that is gone: its clock is another."""
    store = SqliteStore(shell.path, synchronous="normal", clock=clock)
    yield Scene(store)
    store.close()
