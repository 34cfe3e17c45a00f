"""The same on Redis: kills and pauses, and a server that is killed too and syncs always, or that loses everything."""

from __future__ import annotations

import pytest

from samekey.testing.servers import redis_server
from tests.proofs.chaos.judging import FULL, judged, seconds
from tests.proofs.chaos.trial import Every, Trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("effects", ["asks", "opaque"] if FULL else ["opaque"])
def test_redis_under_kills_pauses_and_restarts(effects):
    """What the server acknowledged is on its disk, so a restart forgets nothing."""
    with redis_server(appendfsync="always") as server:
        trial = Trial(server.url(), effects, restart=server.restart, seconds=seconds(4))
        verdict = judged(f"Redis under kills, pauses and restarts, {effects}", trial.run())

    assert verdict.done["restarts"] > 0


@pytest.mark.minutes
def test_redis_wiped_again_and_again_before_a_provider_that_dedups():
    """Keyed: whatever the store forgets, the provider key is the same, and each key is charged once."""
    with redis_server() as server:
        wipes = Every(4.0 if FULL else 1.0, "wipes", lambda: server.call("FLUSHALL"))
        trial = Trial(server.url(), "keyed", also=(wipes,), seconds=seconds(4), forgets=True)
        verdict = judged("Redis wiped every 4 s, keyed", trial.run())

    assert verdict.done["wipes"] > 0
