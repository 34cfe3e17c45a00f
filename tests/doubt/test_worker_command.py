"""samekey worker: its exit codes, what it prints, and how it stops."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Shell

APP = """
import time
from samekey import {guard}, Absent, Asks, Happened, Opaque, Policy

guard = {guard}({store!r}, policy=Policy(lease=0.2))

{maybe}def find(record):
    {lookup}

@guard.once(key="order", name="charge", boundary={boundary})
{maybe}def charge(order: str) -> str:
    raise TimeoutError
"""
NUMBERS = count()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path / "keys.db")


@pytest.fixture
def app(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(lookup: str, *, boundary: str = "Asks(find)", asynchronous: bool = False, orders: int = 3) -> str:
        name = f"worked_{next(NUMBERS)}"
        colour = {"guard": "AsyncGuard", "maybe": "async "} if asynchronous else {"guard": "Guard", "maybe": ""}
        text = APP.format(store=shell.store, lookup=lookup, boundary=boundary, **colour)
        (tmp_path / f"{name}.py").write_text(text)
        code = (
            f"import asyncio, {name} as app\n"
            f"async def main():\n for n in range({orders}):\n  try: await app.charge(f'o-{{n}}')\n"
            "  except TimeoutError: pass\nasyncio.run(main())"
            if asynchronous
            else f"import {name} as app\nfor n in range({orders}):\n try: app.charge(f'o-{{n}}')\n"
            " except TimeoutError: pass"
        )
        subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=tmp_path, env=shell.environment)
        time.sleep(0.3)  # the lease is over
        return f"{name}:guard"

    return write


@pytest.mark.parametrize("asynchronous", [False, True])
def test_nothing_left_is_exit_0(shell, app, asynchronous):
    target = app("return Happened('ch_1')", asynchronous=asynchronous)
    result = shell.process("worker", "--once", "--json", "--app", target)

    told = json.loads(result.stdout)
    assert (told["looked"], told["recovered"], told["parked"]) == (3, {"adopted": 3}, 0)
    assert result.returncode == 1  # three late truths without a function: findings
    again = shell.process("worker", "--once", "--app", target)
    assert (again.returncode, again.stdout) == (0, "looked at 0\n")


def test_parked_doubts_are_exit_1_and_ls_shows_why(shell, app):
    target = app("return Absent()", boundary="Opaque()")
    result = shell.process("worker", "--once", "--app", target)

    assert result.returncode == 1
    assert "3 parked" in result.stderr
    records = [json.loads(line) for line in shell("ls", "--parked", "--json").stdout.splitlines()]
    assert [one["inquiry"]["parked"] for one in records] == ["no provider can be asked about it"] * 3
    assert shell("ls", "--verdict", "absent", "--json").stdout == ""


def test_a_rate_and_a_shard_are_checked(shell, app):
    target = app("return Absent()", orders=0)
    for words in (("--rate", "charge"), ("--rate", "charge=fast"), ("--shard", "four")):
        assert shell("worker", "--once", "--app", target, *words).exit_code == 2


def test_sigterm_lets_it_finish_what_it_has_begun(shell, app, tmp_path):
    """The lookup under way is answered and its verdict written; no other one begins."""
    lookup = f"open({str(tmp_path / 'asked')!r}, 'a').write('x'); time.sleep(1); return Happened('ch_1')"
    target = app(lookup, orders=30)
    command = [sys.executable, "-m", "samekey", "worker", "--once", "--json", "--app", target]
    worker = subprocess.Popen(
        command, env=shell.environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    asked = tmp_path / "asked"
    deadline = time.monotonic() + 60
    while not asked.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(worker.pid, signal.SIGTERM)
    stdout, _ = worker.communicate(timeout=60)

    said: dict[str, Any] = json.loads(stdout)
    assert worker.returncode == 4
    assert said["interrupted"]
    assert said["recovered"]["adopted"] == len(asked.read_text()) < 30
