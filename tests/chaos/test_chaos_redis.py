"""The same on Redis: kills and pauses, and a server that is killed too and syncs always."""

from __future__ import annotations

import pytest

from samekey.testing.redis_servers import redis_server
from tests.chaos.test_chaos import FULL, judged, seconds
from tests.chaos.trial import Trial

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("effects", ["asks", "opaque"] if FULL else ["opaque"])
def test_redis_under_kills_pauses_and_restarts(effects):
    """What the server acknowledged is on its disk, so a restart forgets nothing."""
    with redis_server(appendfsync="always") as server:
        verdict = judged(Trial(server.url(), effects, restart=server.restart, seconds=seconds(4)).run())

    assert verdict.done["restarts"] > 0
