"""doctor compares how long a key is remembered with how long the broker may deliver its message again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from samekey import FOREVER, Guard, Keyed, Policy
from samekey.cli._checkup import Checked, check_operations
from samekey.messages import Handler, horizon

DAY = 24 * 3600.0


def checked(retention: Any, of: float | None) -> Checked:
    with Guard("memory://") as guard:
        policy = Policy(lease=30, retention=retention)
        boundary = Keyed(window=DAY / 2)
        Handler(guard, lambda _: None, name="charge", key="key", boundary=boundary, policy=policy, horizon=of)
        return check_operations(guard.declared(), {})


@pytest.mark.parametrize(
    ("retention", "of", "findings", "unknown"),
    [
        (DAY, DAY, 1, 0),
        (1.1 * DAY + 29, DAY, 1, 0),
        (1.1 * DAY + 31, DAY, 0, 0),
        (timedelta(days=30), None, 0, 1),
        (timedelta(days=30), horizon.UNBOUNDED, 0, 1),
        (FOREVER, None, 0, 0),
        (FOREVER, horizon.UNBOUNDED, 0, 0),
    ],
)
def test_a_memory_shorter_than_the_horizon_is_found(retention: Any, of: float | None, findings: int, unknown: int):
    found = checked(retention, of)

    assert (len(found.findings), len(found.unknown)) == (findings, unknown)
    assert all("charge is remembered for" in text for text in (*found.findings, *found.unknown))


def test_horizons_of_brokers():
    assert horizon.rabbitmq(ttl=None) == horizon.UNBOUNDED
    assert horizon.rabbitmq(ttl=10, hold_ttl=2, retries=5, dead_letter_ttl=100) == 130
    assert horizon.sqs(retention=4 * DAY, dead_letters=14 * DAY) == 22 * DAY
    assert horizon.jetstream(max_age=0) == horizon.UNBOUNDED
    assert horizon.jetstream(max_age=DAY, parked_max_age=DAY) == 2 * DAY
    assert horizon.redis_streams() == horizon.UNBOUNDED
    assert horizon.redis_streams(trimmed_after=DAY) == DAY
    assert horizon.celery(DAY, longest_eta=60, countdowns=30, visibility=10) == DAY + 100
