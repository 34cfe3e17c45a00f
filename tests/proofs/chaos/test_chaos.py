"""Eight processes, two hundred keys at a time, kills and pauses and restarts at random: no effect is doubled.

A few seconds each with `make test`; a minute each with `make proof`.
"""

from __future__ import annotations

import pytest

from samekey.testing.servers import redis_server
from tests.proofs.chaos.judging import FULL, judged, migrated, seconds
from tests.proofs.chaos.trial import Every, Trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("effects", ["asks", "opaque"] if FULL else ["asks"])
def test_postgres_under_kills_pauses_and_restarts(server, effects):
    """The server crashes too (`immediate`), every few seconds."""
    trial = Trial(migrated(server), effects, restart=server.restart, seconds=seconds(4))
    verdict = judged(f"PostgreSQL under kills, pauses and restarts, {effects}", trial.run())

    assert verdict.done["restarts"] > 0
    assert len(verdict.in_doubt) < verdict.keys / 2


if FULL:

    def test_sqlite_under_kills_and_pauses(tmp_path):
        trial = Trial(f"sqlite:///{tmp_path}/keys.db?synchronous=normal", seconds=60)
        judged("SQLite under kills and pauses, asks", trial.run())


def test_layered_with_its_front_wiped_every_second(server):
    """Redis loses everything all the time, the database crashes now and then: no effect twice, no answer changed."""
    with redis_server() as front:
        wipes = Every(1.0, "wipes", lambda: front.call("FLUSHALL"))
        address = f"{front.url()} {migrated(server)}"
        trial = Trial(address, "opaque", restart=server.restart, also=(wipes,), seconds=seconds(4))
        verdict = judged("layered, its front wiped every second, opaque", trial.run())

    assert verdict.done["wipes"] > 0


def test_atomic_effects_on_postgres_are_as_many_as_keys(server):
    """Also with the server crashing in the middle of a COMMIT."""
    trial = Trial(migrated(server), "atomic", restart=server.restart, seconds=seconds(4))
    verdict = judged("PostgreSQL under kills, pauses and restarts, atomic", trial.run())

    assert verdict.in_doubt == []
    assert verdict.effects == verdict.keys


def test_atomic_effects_are_as_many_as_keys(tmp_path):
    """Record and effect in one transaction: no doubt is left, and effects are keys exactly."""
    address = f"sqlite:///{tmp_path}/keys.db?synchronous=normal"
    trial = Trial(address, "atomic", seconds=seconds(2), keys=50)
    verdict = judged("SQLite under kills and pauses, atomic", trial.run())

    assert verdict.in_doubt == []
    assert verdict.effects == verdict.keys


def test_the_judge_sees_a_doubled_effect(tmp_path):
    """An effect that is declared repeatable is repeated after a kill: a judge that finds nothing here is blind."""
    trials = (Trial(f"sqlite:///{tmp_path}/keys{n}.db?synchronous=normal", "repeatable", seconds=2) for n in range(5))

    assert any(trial.run().doubled for trial in trials)  # a kill may strike between two effects
