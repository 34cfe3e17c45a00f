"""The suite over a broker in memory, with the count rules of each real one."""

from __future__ import annotations

import os

import pytest

from samekey.testing.messages import RULES, Broker, MemoryLabBroker, MessageAdapterSuite

pytestmark = pytest.mark.slow  # every scenario has processes of its own

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"


class TestRabbitRules(MessageAdapterSuite):
    def make_broker(self) -> Broker:
        return MemoryLabBroker(RULES["rabbitmq-4.3"])


@pytest.mark.variant
class TestSqsRules(MessageAdapterSuite):
    """Every delivery counts, and there is a timer: the rules that differ most."""

    def make_broker(self) -> Broker:
        return MemoryLabBroker(RULES["sqs"])


if FULL:  # JetStream has the rules of SQS here; the other two are between them and RabbitMQ

    class TestJetStreamRules(MessageAdapterSuite):
        def make_broker(self) -> Broker:
            return MemoryLabBroker(RULES["jetstream"])

    class TestClassicRules(MessageAdapterSuite):
        def make_broker(self) -> Broker:
            return MemoryLabBroker(RULES["rabbitmq-classic"])

    class TestRedisRules(MessageAdapterSuite):
        def make_broker(self) -> Broker:
            return MemoryLabBroker(RULES["redis-streams"])
