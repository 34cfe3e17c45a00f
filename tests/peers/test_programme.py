"""The programme that others are put through, on ourselves; and on the textbook, which it must find out."""

from __future__ import annotations

import os
import sys

import pytest

from samekey.testing.servers import redis_server
from tools.peers.trouble import SCENARIOS, Outcome, play

pytestmark = pytest.mark.slow
FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
KEYS = 10 if FULL else 2
TRIED = list(SCENARIOS) if FULL else ["killed after", "paused", "lost settle"]


@pytest.fixture(scope="module")
def redis():
    with redis_server() as server:
        yield server


def played(scenario: str, driver: str, redis) -> Outcome:
    outcome = play(
        scenario, python=sys.executable, driver=driver, url=redis.url(), behind=redis.port, redis=redis, keys=KEYS
    )
    print(f"{driver}, {scenario}: {outcome.text}")
    return outcome


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", TRIED)
def test_samekey_comes_through(scenario, redis):
    outcome = played(scenario, "samekey-asks", redis)

    assert not outcome.broken
    assert outcome.keys == KEYS


@pytest.mark.timeout(300)
@pytest.mark.parametrize("scenario", ["killed after", "paused"])
def test_the_textbook_does_not(scenario, redis):
    """SET NX with a time to live: whoever comes after it runs again."""
    assert played(scenario, "textbook", redis).doubled > 0
