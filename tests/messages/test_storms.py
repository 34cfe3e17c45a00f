"""Storms: many messages, 30 % of them duplicates, workers that are killed at the worst moments, a broker that restarts.

Effects are counted on the provider's side, in a ledger. Under Keyed a key may be called twice, under one provider key.
Every message is acknowledged or parked with a reason. `make test` has small counts; `make proof` has the full ones.
"""

from __future__ import annotations

import os
import random
import time
from typing import Any

import pytest

from samekey.messages import Rules
from samekey.testing.messages import Broker, Lab, MemoryLabBroker
from samekey.testing.messages.memory import RULES as COUNT_RULES
from samekey.testing.servers import nats_server, rabbitmq, redis_server, sqs_server
from tests.messages.rabbitmq import QUORUM, AioPikaBroker, RabbitBroker
from tests.messages.test_nats import JetStreamBroker
from tests.messages.test_redis_streams import StreamBroker
from tests.messages.test_sqs import SqsBroker

pytestmark = pytest.mark.slow

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
MESSAGES, DEATHS, WORKERS = (10_000, 30, 3) if FULL else (60, 3, 2)
DUPLICATES = 0.3
STORM_SECONDS = 3600.0 if FULL else 200.0
DYING = ("die_first", "die_after", "die_before_ack")  # before the effect, after it, and after its record is settled


def storm(broker: Broker, restart: Any = None) -> Lab:
    """Play it to its end; the lab shows what became of each key."""
    lab = Lab(broker)
    chance = random.Random(7)
    unique = int(MESSAGES * (1 - DUPLICATES))
    keys = [f"k{number}" for number in range(unique)]
    lab.plan(**{key: [DYING[number % 3], "ok"] for number, key in enumerate(chance.sample(keys, DEATHS))})
    sent = keys + chance.choices(keys, k=MESSAGES - unique)
    chance.shuffle(sent)
    for key in sent:
        lab.publish(key)
    options = {"lease": 3.0, "rules": Rules(tries=50, backoff=0.1, backoff_max=0.5, later_max=0.5)}
    workers = [lab.start(**options) for _ in range(WORKERS)]
    deadline, deaths, since = time.monotonic() + STORM_SECONDS, 0, float("inf")
    while True:
        for number, worker in enumerate(workers):
            if not worker.process.is_alive():
                worker.wait()
                deaths += 1
                workers[number] = lab.start(**options)
                if deaths == 2 and restart is not None:
                    restart()
        now = time.monotonic()
        try:
            empty = broker.depth() == 0
        except Exception:
            empty = False  # it restarts
        since = min(since, now) if empty else float("inf")
        if now - since > 1.0:
            break
        assert now < deadline, lab.story()
        time.sleep(0.1)
    assert deaths >= DEATHS - 1, f"{deaths} deaths"
    return lab


def check(lab: Lab) -> None:
    """One effect on the provider's books for each key, every record completed, no message lost or parked."""
    unique = int(MESSAGES * (1 - DUPLICATES))
    wrong = {}
    for number in range(unique):
        key = f"k{number}"
        found = (len(lab.provider_keys(key)), lab.state(key))
        if found != (1, "completed"):
            wrong[key] = found
    runs = len(lab.ledger.lines("run"))
    parked = len(lab.parked())
    lab.close()

    assert (wrong, parked) == ({}, 0)
    assert unique <= runs <= unique + DEATHS * 2


def test_memory():
    check(storm(MemoryLabBroker(COUNT_RULES["sqs"])))


def test_redis_streams():
    with redis_server("redis-7") as server:
        check(storm(StreamBroker(server)))


def test_jetstream():
    with nats_server() as server:
        check(storm(JetStreamBroker(server), server.restart))


def test_sqs():
    with sqs_server() as server:
        check(storm(SqsBroker(server)))


def test_pika():
    with rabbitmq("3") as server:
        check(storm(RabbitBroker(server)))


@pytest.mark.minutes
def test_aio_pika():
    with rabbitmq("4") as server:
        check(storm(AioPikaBroker(server, QUORUM)))
