"""aio-pika on a real RabbitMQ 4 node, with a quorum queue whose messages wait in hold queues."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from samekey.testing.messages import Broker, MessageAdapterSuite
from samekey.testing.servers import RabbitMQ, rabbitmq
from tests.messages.rabbitmq import QUORUM, AioPikaBroker

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def four() -> Iterator[RabbitMQ]:
    with rabbitmq("4") as server:
        yield server


@pytest.mark.variant
class TestAioPika(MessageAdapterSuite):
    @pytest.fixture(autouse=True)
    def _server(self, four: RabbitMQ) -> None:
        self.server = four

    def make_broker(self) -> Broker:
        return AioPikaBroker(self.server, QUORUM)
