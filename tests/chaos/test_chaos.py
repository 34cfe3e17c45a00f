"""Eight processes, two hundred keys at a time, kills and pauses and restarts at random: no effect is doubled.

Ten seconds in all with `make test`; a minute for each with `make proof`.
"""

from __future__ import annotations

import os
import threading

import pytest

from samekey.drivers.psycopg import migrate
from samekey.testing.pytest import _missing
from samekey.testing.redis_servers import flavours, redis_server
from samekey.testing.servers import NoServer, PrivatePostgres, postgres
from tests.chaos.trial import Trial, Verdict

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"


def seconds(brief: float) -> float:
    return 60.0 if FULL else brief


@pytest.fixture(scope="module")
def server():
    if os.environ.get("SAMEKEY_TEST_PG"):
        pytest.skip("SAMEKEY_TEST_PG names a server that is not ours to restart")
    try:
        with postgres() as running:
            yield running
    except NoServer as missing:
        pytest.skip(str(missing))


def migrated(server: PrivatePostgres) -> str:
    url = server.create_database()
    migrate(url)
    return url


def judged(verdict: Verdict) -> Verdict:
    """Nothing doubled, every key with one answer, and nobody was surprised."""
    print(verdict)
    assert verdict.troubles == []
    assert verdict.doubled == []
    assert verdict.differing == []
    assert verdict.unanswered == []
    assert verdict.answers > verdict.keys > 0
    assert verdict.done["kills"] > 0
    return verdict


@pytest.mark.parametrize("effects", ["asks", "opaque"] if FULL else ["asks"])
def test_postgres_under_kills_pauses_and_restarts(server, effects):
    """The server crashes too (`immediate`), every few seconds."""
    verdict = judged(Trial(migrated(server), effects, restart=server.restart, seconds=seconds(6)).run())

    assert verdict.done["restarts"] > 0
    assert len(verdict.in_doubt) < verdict.keys / 2


if FULL:

    def test_sqlite_under_kills_and_pauses(tmp_path):
        judged(Trial(f"sqlite:///{tmp_path}/keys.db?synchronous=normal", seconds=60).run())


def test_layered_with_its_front_wiped_every_second(server, request):
    """Redis loses everything all the time, the database crashes now and then: no effect twice, no answer changed."""
    if not flavours():
        _missing(request.config, "redis", "no Redis here: apt-get install redis-server")
    over = threading.Event()
    with redis_server() as front:

        def wipe() -> None:
            while not over.wait(1.0):
                front.call("FLUSHALL")

        wiping = threading.Thread(target=wipe)
        wiping.start()
        try:
            address = f"{front.url()} {migrated(server)}"
            judged(Trial(address, "opaque", restart=server.restart, seconds=seconds(5)).run())
        finally:
            over.set()
            wiping.join()


def test_atomic_effects_on_postgres_are_as_many_as_keys(server):
    """Also with the server crashing in the middle of a COMMIT."""
    verdict = judged(Trial(migrated(server), "atomic", restart=server.restart, seconds=seconds(4)).run())

    assert verdict.in_doubt == []
    assert verdict.effects == verdict.keys


def test_atomic_effects_are_as_many_as_keys(tmp_path):
    """Record and effect in one transaction: no doubt is left, and effects are keys exactly."""
    address = f"sqlite:///{tmp_path}/keys.db?synchronous=normal"
    verdict = judged(Trial(address, "atomic", seconds=seconds(2), keys=50).run())

    assert verdict.in_doubt == []
    assert verdict.effects == verdict.keys


def test_the_judge_sees_a_doubled_effect(tmp_path):
    """An effect that is declared repeatable is repeated after a kill: a judge that finds nothing here is blind."""
    verdict = Trial(f"sqlite:///{tmp_path}/keys.db?synchronous=normal", "repeatable", seconds=2).run()

    assert verdict.doubled != []
