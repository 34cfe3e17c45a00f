"""The pytest plugin: fixtures, `--samekey-off`, `--samekey-require`. The only file here that imports pytest.

It is registered as the entry point `samekey` of the group `pytest11`, so the fixtures are there once samekey is
installed; `-p no:samekey` keeps it out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from samekey import AsyncGuard, Guard
from samekey.guard import off_switch
from samekey.guard.store_urls import open_store
from samekey.testing.clock import ManualClock
from samekey.testing.off import off
from samekey.testing.provider import LedgerProvider
from samekey.testing.servers import Mariadb, NoServer, Postgres, Redis, mariadb, postgres, shared_redis

EPOCH = 1_700_000_000  # where the clock of a test starts: an ordinary day


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("samekey")
    group.addoption("--samekey-off", action="store_true", help="guarded functions run straight through in every test")
    group.addoption(
        "--samekey-require",
        metavar="SERVERS",
        default="",
        help="a server that is missing fails its tests instead of skipping them: postgres, mariadb, redis, ... or all",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--samekey-off"):
        off_switch.turn(1)
        config.add_cleanup(lambda: off_switch.turn(-1))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[Any]:
    with _skip_if_missing(item.config):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[Any]:
    with _skip_if_missing(item.config):
        return (yield)


@contextlib.contextmanager
def _skip_if_missing(config: pytest.Config) -> Iterator[None]:
    """Skip a test that lacks a server, or fail it if the server is required; a fixture or the test raised NoServer."""
    try:
        yield
    except NoServer as missing:
        required = str(config.getoption("--samekey-require")).replace(" ", "").split(",")
        if missing.server in required or "all" in required:
            pytest.fail(f"--samekey-require={missing.server}: {missing}", pytrace=False)
        pytest.skip(str(missing))


@pytest.fixture
def samekey_off() -> Iterator[None]:
    """Guarded functions run straight through in this test."""
    with off():
        yield


@pytest.fixture
def samekey_clock() -> ManualClock:
    """The time of `samekey_guard` and `samekey_provider`; it moves only by `advance`."""
    return ManualClock(EPOCH)


@pytest.fixture
def samekey_provider(samekey_clock: ManualClock) -> LedgerProvider:
    """A payment provider with books."""
    return LedgerProvider(clock=samekey_clock, sleep=samekey_clock.advance)


@pytest.fixture
def samekey_guard(samekey_clock: ManualClock) -> Iterator[Guard]:
    """A guard with an empty memory of its own, on `samekey_clock`."""
    with Guard(_memory_store(samekey_clock)) as guard:
        yield guard


@pytest.fixture
def samekey_async_guard(samekey_clock: ManualClock) -> AsyncGuard:
    """The same for async code; its memory goes with it, so nothing has to be closed."""
    awaited = type(open_store("memory://", asynchronous=True))
    return AsyncGuard(awaited(_memory_store(samekey_clock)))


@pytest.fixture(scope="session")
def samekey_postgres() -> Iterator[Postgres]:
    """A private PostgreSQL server for the whole run, or the one in SAMEKEY_TEST_PG; `create_database()` for a test."""
    with postgres() as server:
        yield server


@pytest.fixture(scope="session")
def samekey_mariadb() -> Iterator[Mariadb]:
    """A private MariaDB server for the whole run, or the one in SAMEKEY_TEST_MYSQL; `create_database()` for a test."""
    with mariadb() as server:
        yield server


@pytest.fixture(scope="session")
def samekey_redis() -> Iterator[Redis]:
    """A private Redis for the whole run, or the one in SAMEKEY_TEST_REDIS; `create_database()` for a test."""
    with shared_redis() as server:
        yield server


def _memory_store(clock: ManualClock) -> Any:
    """The store of `memory://` with this clock; found by its address, as a guard finds its stores."""
    return type(open_store("memory://", asynchronous=False))(clock)
