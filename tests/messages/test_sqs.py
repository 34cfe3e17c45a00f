"""SQS by boto3 on moto's server, and Lambda batches."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import boto3
import pytest

from samekey import Guard, Keyed, NotDone, Opaque
from samekey.core.parking import ParkedQuery
from samekey.messages import Handler, Message
from samekey.messages.aws_lambda import sqs_batch
from samekey.messages.sqs import CEILING_SECONDS, SqsConsumer
from samekey.testing.messages import Broker, MessageAdapterSuite, Task
from samekey.testing.servers import SqsServer, sqs_server


def client_of(url: str) -> Any:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}
    return boto3.client("sqs", endpoint_url=url, region_name="us-east-1", **keys)


@pytest.fixture(scope="module")
def server() -> Iterator[SqsServer]:
    with sqs_server() as running:
        yield running


class SqsBroker(Broker):
    consumer = "tests.messages.test_sqs:consume"
    preload = ("samekey.messages.sqs", "boto3")
    free_later = False
    timer_seconds = 4.0

    def __init__(self, server: SqsServer) -> None:
        self._endpoint = server.url
        self._client = client_of(server.url)
        self.url = self._client.create_queue(QueueName=f"q-{uuid4().hex[:12]}")["QueueUrl"]

    def address(self) -> dict[str, Any]:
        return {"endpoint": self._endpoint, "queue": self.url}

    def publish(self, body: bytes, headers: dict[str, str] | None = None) -> None:
        attributes = {name: {"DataType": "String", "StringValue": text} for name, text in (headers or {}).items()}
        self._client.send_message(QueueUrl=self.url, MessageBody=body.decode(), MessageAttributes=attributes)

    def depth(self) -> int:
        found = self._client.get_queue_attributes(QueueUrl=self.url, AttributeNames=["All"])["Attributes"]
        names = ("", "NotVisible", "Delayed")
        return sum(int(found[f"ApproximateNumberOfMessages{name}"]) for name in names)

    def close(self) -> None:
        self._client.delete_queue(QueueUrl=self.url)
        self._client.close()


def consume(handler: Any, address: dict[str, Any], stop: threading.Event, task: Task) -> None:
    consumer = SqsConsumer(handler, client_of(address["endpoint"]), address["queue"], workers=task.threads)

    def wait() -> None:
        stop.wait()
        consumer.stop(task.grace)

    threading.Thread(target=wait, daemon=True).start()
    consumer.run()


@pytest.mark.slow
@pytest.mark.variant
class TestSqs(MessageAdapterSuite):
    @pytest.fixture(autouse=True)
    def _server(self, server: SqsServer) -> None:
        self.server = server

    def make_broker(self) -> Broker:
        return SqsBroker(self.server)


@pytest.mark.slow
def test_at_twelve_hours_the_effect_is_fenced_and_the_message_is_parked(server: SqsServer):
    """SQS refuses a longer invisibility, so the message would come again under its holder."""
    broker = SqsBroker(server)
    now, running, go_on = [0.0], threading.Event(), threading.Event()

    def run(_: Message) -> None:
        running.set()
        go_on.wait(30)

    with Guard("memory://") as guard:
        handler = Handler(guard, run, name="orders", key="key", boundary=Keyed())
        consumer = SqsConsumer(handler, client_of(server.url), broker.url, workers=1, clock=lambda: now[0])
        thread = threading.Thread(target=consumer.run)
        thread.start()
        broker.publish(b'{"key": "k1"}')
        running.wait(30)
        now[0] = CEILING_SECONDS + 1
        (message,) = [run.message for run in handler._runs.values()]
        consumer.extend(message)
        parked = guard.store.parked(ParkedQuery())
        depth = broker.depth()
        go_on.set()
        consumer.stop()
        thread.join(30)
    broker.close()

    assert [(one.kind, one.key) for one in parked] == [("12 h ceiling", "k1")]
    assert depth == 0


# -- Lambda ------------------------------------------------------------------------------------------------------------


def event(*bodies: Any, count: int = 1) -> dict[str, Any]:
    return {
        "Records": [
            {
                "messageId": f"m-{number}",
                "receiptHandle": "r",
                "body": body if isinstance(body, str) else json.dumps(body),
                "attributes": {"ApproximateReceiveCount": str(count)},
                "messageAttributes": {"sender": {"stringValue": "till", "dataType": "String"}},
                "eventSource": "aws:sqs",
                "eventSourceARN": "arn:aws:sqs:us-east-1:123456789012:orders",
            }
            for number, body in enumerate(bodies)
        ]
    }


def failed(answer: Any) -> list[str]:
    return [one["itemIdentifier"] for one in answer["batchItemFailures"]]


def test_a_lambda_batch_answers_with_what_must_come_again():
    def run(message: Message) -> None:
        if message.value["key"] == "busy":
            raise NotDone("busy")
        if message.value["key"] == "unknown":
            raise TimeoutError

    with Guard("memory://") as guard:
        handler = Handler(guard, run, name="orders", key="key", boundary=Opaque())
        consume = sqs_batch(handler)
        first = consume(event({"key": "a"}, {"key": "busy"}, {"key": "unknown"}, "{", {"key": "a"}))
        again = consume(event({"key": "a"}, {"key": "busy"}))
        parked = {one.kind for one in guard.store.parked(ParkedQuery())}

    assert failed(first) == ["m-1"]
    assert failed(again) == ["m-1"]
    assert parked == {"in doubt", "poison"}


def test_a_lambda_batch_in_which_everything_fails_names_every_message():
    def run(_: Message) -> None:
        raise NotDone("busy")

    with Guard("memory://") as guard:
        consume = sqs_batch(Handler(guard, run, name="orders", key="key", boundary=Keyed()))

        assert failed(consume(event({"key": "a"}, {"key": "b"}))) == ["m-0", "m-1"]
        assert failed(consume(event())) == []


def test_a_lambda_function_that_is_short_of_time_begins_nothing_more():
    class Context:
        def get_remaining_time_in_millis(self) -> int:
            return 1000

    runs: list[Any] = []
    with Guard("memory://") as guard:
        consume = sqs_batch(Handler(guard, runs.append, name="orders", key="key", boundary=Keyed()))

        assert failed(consume(event({"key": "a"}), Context())) == ["m-0"]
    assert runs == []


def test_a_message_that_was_received_too_often_is_set_aside():
    def run(_: Message) -> None:
        raise NotDone("busy")

    with Guard("memory://") as guard:
        consume = sqs_batch(Handler(guard, run, name="orders", key="key", boundary=Keyed()))

        assert failed(consume(event({"key": "a"}, count=10))) == []
        assert [one.kind for one in guard.store.parked(ParkedQuery())] == ["not done"]
