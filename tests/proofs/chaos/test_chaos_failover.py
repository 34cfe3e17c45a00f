"""Another server in its place: the primary is killed under load and its standby promoted, again and again.

The address stays: a proxy sends whoever comes to the new server. With a synchronous standby, or a provider that
dedups, no effect is doubled. What an asynchronous one may lose tests/servers/postgres/test_failover.py shows.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from samekey.drivers.postgres.migrate import migrate
from samekey.testing.servers import PrivatePostgres, RedisServer, redis_server
from tests.proofs.chaos.judging import FULL, judged, private_postgres, seconds
from tests.proofs.chaos.trial import Trial
from tests.servers.postgres import standby as standbys
from tests.servers.proxy import FaultProxy
from tests.servers.redis import topologies

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FAIL_OVER_EVERY = 12.0 if FULL else 5.0  # a new standby has to be made, and to catch up


class Pair:
    """A server and its follower behind one address."""

    def __init__(
        self, first: Any, follow: Callable[[Any], Any], promote: Callable[[Any], None], kill: Callable[[Any], None]
    ) -> None:
        self._stack = contextlib.ExitStack()
        self._follow, self._promote, self._kill = follow, promote, kill
        self.main = first
        self.copy = self._stack.enter_context(follow(first))
        self.proxy = self._stack.enter_context(FaultProxy(first.port))

    def close(self) -> None:
        self._stack.close()

    def fail_over(self) -> None:
        self._kill(self.main)
        self._promote(self.copy)
        self.proxy.target = ("127.0.0.1", self.copy.port)
        self.proxy.cut()
        self.proxy.sent.clear()
        self.main, self.copy = self.copy, self._stack.enter_context(self._follow(self.copy))


@contextlib.contextmanager
def asynchronous(primary: PrivatePostgres) -> Iterator[PrivatePostgres]:
    with standbys.standby(primary) as copy:
        yield copy


@contextlib.contextmanager
def synchronous(primary: PrivatePostgres) -> Iterator[PrivatePostgres]:
    """From here on nothing is answered that the standby does not have."""
    with standbys.standby(primary) as copy:
        primary.sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        primary.sql("SELECT pg_reload_conf()")
        deadline = time.monotonic() + 30
        while primary.sql("SELECT sync_state FROM pg_stat_replication") != "sync":
            assert time.monotonic() < deadline, "the standby does not become a synchronous one"
            time.sleep(0.05)
        yield copy


@pytest.mark.parametrize(
    ("follow", "effects"), [(synchronous, "opaque"), pytest.param(asynchronous, "keyed", marks=pytest.mark.minutes)]
)
def test_postgres_fails_over(follow, effects):
    with private_postgres() as server:
        url = server.create_database()
        migrate(url)
        with contextlib.closing(Pair(server, follow, standbys.promote, lambda main: main.stop("immediate"))) as pair:
            trial = Trial(
                url.replace(f":{server.port}/", f":{pair.proxy.port}/"),
                effects,
                restart=pair.fail_over,
                restart_every=FAIL_OVER_EVERY,
                restarts="failovers",
                seconds=seconds(4),
                forgets=follow is asynchronous,
            )
            verdict = judged(f"PostgreSQL fails over, {follow.__name__} standby, {effects}", trial.run())

    assert verdict.done["failovers"] > 0


def test_redis_fails_over():
    """A replica may not have heard the last claims; a provider that dedups has."""

    def kill(main: RedisServer) -> None:
        main.stop(kill=True)

    with redis_server() as main, contextlib.closing(Pair(main, topologies.replica, topologies.promote, kill)) as pair:
        address = f"redis://127.0.0.1:{pair.proxy.port}/0"
        trial = Trial(
            address,
            "keyed",
            restart=pair.fail_over,
            restart_every=FAIL_OVER_EVERY,
            restarts="failovers",
            seconds=seconds(4),
            forgets=True,
        )
        verdict = judged("Redis fails over to its replica, keyed", trial.run())

    assert verdict.done["failovers"] > 0
