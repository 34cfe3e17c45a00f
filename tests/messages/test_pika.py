"""pika on real RabbitMQ nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from samekey.testing.messages import Broker, MessageAdapterSuite
from samekey.testing.servers import RabbitMQ, rabbitmq
from tests.messages.rabbitmq import DELAYED, QUORUM, RabbitBroker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def three() -> Iterator[RabbitMQ]:
    with rabbitmq("3") as server:
        yield server


@pytest.fixture(scope="module")
def four() -> Iterator[RabbitMQ]:
    with rabbitmq("4") as server:
        yield server


@pytest.mark.variant
class TestClassicQueue(MessageAdapterSuite):
    """RabbitMQ 3, a classic queue: the broker counts nothing, and messages wait in hold queues."""

    @pytest.fixture(autouse=True)
    def _server(self, three: RabbitMQ) -> None:
        self.server = three

    def make_broker(self) -> Broker:
        return RabbitBroker(self.server)


@pytest.mark.variant
class TestDelayedRetry(MessageAdapterSuite):
    """RabbitMQ 4.3, a quorum queue with delayed retry: messages go back to their queue."""

    @pytest.fixture(autouse=True)
    def _server(self, four: RabbitMQ) -> None:
        self.server = four

    def make_broker(self) -> Broker:
        return RabbitBroker(self.server, {**QUORUM, **DELAYED}, delayed_retry=True)
