"""Kafka as the source and the output of `samekey db watch`, on a real Kafka 4."""

from __future__ import annotations

import json
import random
import signal
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from samekey.testing.servers import kafka
from tests.detect.test_watch_events import BASE, RULES, change
from tests.detect.watching import SECONDS, Watching


@pytest.fixture(scope="module")
def broker():
    with kafka() as server:
        yield server


class Topics:
    """A topic of change events and a topic of alerts, both new."""

    def __init__(self, server, name):
        self.server, self.events, self.alerts = server, f"shop.public.{name}", f"alerts.{name}"
        self.client = {"bootstrap.servers": server.servers, "log_level": 0}
        self._admin = AdminClient(self.client)
        self.make(self.events, 2)
        self.make(self.alerts, 2)
        self._producer = Producer(self.client)

    def make(self, name, partitions):
        self._admin.create_topics([NewTopic(name, partitions, 1)])[name].result(SECONDS)

    def delete(self, name):
        self._admin.delete_topics([name])[name].result(SECONDS)

    def add_partition(self):
        self._admin.create_partitions([NewPartitions(self.events, 3)])[self.events].result(SECONDS)
        deadline = time.monotonic() + SECONDS
        while len(self._admin.list_topics(self.events, SECONDS).topics[self.events].partitions) < 3:
            assert time.monotonic() < deadline

    def words(self):
        address = f"kafka://{self.server.servers}"
        return ["--from", f"{address}/{self.events}", "--emit", f"{address}/{self.alerts}"]

    def publish(self, *events, producer=None, partition=-1):
        """Keyed as Debezium does: by the primary key. So the rows of a pair are often in two partitions."""
        for one in events:
            key, value = json.dumps({"id": one["after"]["id"]}), json.dumps(one)
            (producer or self._producer).produce(self.events, value.encode(), key.encode(), partition)
        assert (producer or self._producer).flush(SECONDS) == 0

    def received(self):
        """Every alert of the output topic: key, header, alert."""
        settings = {"group.id": "test", "enable.auto.commit": False, "enable.partition.eof": True}
        reader = Consumer({**self.client, **settings})
        found: list[tuple[str, Any, Any]] = []
        ends: set[Any] = set()
        deadline = time.monotonic() + SECONDS
        try:
            reader.assign([TopicPartition(self.alerts, number, 0) for number in (0, 1)])
            while len(ends) < 2:
                assert time.monotonic() < deadline
                messages: list[Any] = reader.consume(100, 0.1)
                for one in messages:
                    if one.error() is None:
                        found.append((one.key().decode(), dict(one.headers()), json.loads(one.value())))
                    else:
                        assert one.error().code() == KafkaError._PARTITION_EOF, one.error()
                        ends.add(one.partition())
        finally:
            reader.close()
        return found


@pytest.fixture
def topics(broker, request):
    return Topics(broker, request.node.name)


@pytest.fixture
def watching(tmp_path):
    return Watching(tmp_path, rules=RULES)


def wait_for(true, process):
    deadline = time.monotonic() + SECONDS
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_duplicate_arrives_once_under_its_key_and_its_id(topics, watching):
    topics.publish(change(1, "a"), change(2, "b"), change(3, "a", BASE + 1_000_000), change(1, "a"))
    (alert,) = watching.catch_up(*topics.words())
    ((key, headers, sent),) = topics.received()

    assert {sent["first"]["row"], sent["second"]["row"]} == {"1", "3"}
    assert {"v": 1, **sent} == alert
    assert key == sent["key"]
    assert headers == {"samekey-alert-id": sent["id"].encode()}

    assert watching.catch_up(*topics.words()) == []
    offsets = watching.state / "delivered.json"
    offsets.write_text(json.dumps(dict.fromkeys(json.loads(offsets.read_text()), 0)))  # a crash before the note
    watching.run("--catch-up", *topics.words())
    repeated = topics.received()

    assert len(repeated) == 2  # sent again, and recognised by its key and its id
    assert repeated[0] == repeated[1]


def test_kill_9_loses_no_alert_and_gives_none_a_second_id(topics, watching):
    chance, row = random.Random(7), 0
    expected: set[str] = set()
    for _ in range(3):
        process = watching.start(*topics.words())
        deadline = time.monotonic() + SECONDS
        try:
            while len(watching.alerts()) < len(expected) // 2 + 1:  # in the midst of its work
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < deadline
                events = []
                for _ in range(20):
                    row += 2
                    at = BASE + row * 1000
                    events += [
                        change(row, f"r{row}", at),
                        change(row + 1, f"r{row if row % 10 == 0 else -row}", at + 1),
                    ]
                    expected |= {str(row + 1)} if row % 10 == 0 else set()
                topics.publish(*events)
                time.sleep(chance.random() * 0.2)
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    watching.run("--catch-up", *topics.words())
    found = [alert for _, _, alert in topics.received()]

    # The rows of a pair may arrive in either order: the alert names both.
    pairs = {(one["id"], one["key"], one["first"]["row"], one["second"]["row"]) for one in found}
    assert sorted(second for *_, second in pairs) == sorted(expected)
    assert len({one[0] for one in pairs}) == len(pairs) == len(watching.alerts())
    print(f"3 kills, {len(expected)} duplicates, {len(found)} alerts sent, {len(pairs)} ids")


def test_events_in_transactions_are_read_to_their_end(topics, watching):
    """The marker of a commit or rollback has an offset and is no event."""
    producer = Producer({**topics.client, "transactional.id": "debezium"})
    producer.init_transactions(SECONDS)
    for number, end in enumerate(
        (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction)
    ):
        producer.begin_transaction()
        topics.publish(change(number, "a", BASE + number), producer=producer)
        end(SECONDS)
    (alert,) = watching.catch_up(*topics.words())

    assert (alert["first"]["row"], alert["second"]["row"]) == ("0", "2")


def test_a_topic_that_was_made_again_is_a_gap(topics, watching):
    topics.publish(change(1, "a"))
    watching.catch_up(*topics.words())
    topics.delete(topics.events)
    missing = watching.run("--catch-up", *topics.words())
    topics.make(topics.events, 2)
    topics.publish(change(1, "a"), change(2, "b"), change(3, "c"))  # its offsets reach those of the first
    ended = watching.run("--catch-up", *topics.words())

    assert missing.returncode == 2
    assert "there is no topic" in missing.stderr
    assert ended.returncode == 4
    assert "checkpoint belongs to" in ended.stderr


def test_a_server_that_is_gone_is_noticed_and_waited_for(topics, watching):
    topics.publish(change(1, "a"))
    watching.catch_up(*topics.words())
    process = watching.start("--json", *topics.words())
    try:
        wait_for(lambda: watching.checkpoint()["clock"] > BASE, process)  # without events: it is at the end
        topics.server.end(signal.SIGKILL)
        noted = process.stderr.readline()
        topics.server.start()
        topics.publish(change(2, "a"))
        alert = json.loads(process.stdout.readline())
        wait_for(topics.received, process)
    finally:
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=SECONDS)

    assert "does not answer" in noted
    assert "answers again" in stderr
    assert process.returncode == 1
    assert [sent["id"] for *_, sent in topics.received()] == [alert["id"]]


def test_a_partition_that_is_added_is_read_too(topics, watching):
    topics.publish(change(1, "a"))
    watching.catch_up(*topics.words())
    process = watching.start("--json", *topics.words())
    try:
        wait_for(lambda: watching.checkpoint()["clock"] > BASE, process)
        topics.add_partition()
        topics.publish(change(2, "a"), producer=Producer(topics.client), partition=2)  # one that knows it
        alert = json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)

    assert alert["second"]["row"] == "2"
