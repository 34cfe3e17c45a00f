"""Kafka: change events from a topic, and alerts to a topic. The only file of detect that imports confluent_kafka."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from samekey.core.errors import Misconfigured
from samekey.detect.watching.changes import Batch, Gap, SourceLost
from samekey.detect.watching.debezium import BATCH_EVENTS, Events
from samekey.detect.watching.outputs import Found, OutputFailed
from samekey.detect.watching.start import Watched

ANSWER_SECONDS = 10.0
SEND_SECONDS = 8.0  # then the producer gives a message up; less than ANSWER_SECONDS, so none is sent after a failure
POLL_SECONDS = 0.2
QUIET = 2  # of the client's log: without a server it would write twenty lines a second. The option log_level changes it
CHECK_SECONDS = 5.0  # between two questions to the server: is it there, is the topic the same, has it more partitions


def address(url: str) -> tuple[dict[str, Any], str, str]:
    """Settings of the client, the topic, and the address without a password. `kafka://a:9092,b:9092/topic?option=x`."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
    except ValueError as error:
        raise Misconfigured(f"this address cannot be read: {error}") from None
    servers, topic = parts.netloc, parts.path.strip("/")
    if "@" in servers:
        raise Misconfigured("a user of Kafka is an option: kafka://host:9092/topic?sasl.username=...")
    if not servers or not topic or "/" in topic:
        raise Misconfigured("an address of Kafka is kafka://host:9092/topic")
    return {"log_level": QUIET, "bootstrap.servers": servers, **options}, topic, f"kafka://{servers}/{topic}"


class KafkaSource:
    """All partitions of a topic, read by offsets that the checkpoint keeps; no consumer group is used or committed."""

    def __init__(self, url: str, watched: Watched) -> None:
        settings, self._topic, self.name = address(url)
        self._events = Events(watched)
        self._offsets: dict[int, int] = {}  # of the next event
        self._ends: dict[int, int] = {}
        self._id = ""  # of the topic that is read
        own = {"group.id": "samekey-watch", "enable.auto.commit": False, "isolation.level": "read_committed"}
        try:
            self._consumer = Consumer({**settings, **own, "auto.offset.reset": "error", "enable.partition.eof": True})
            self._admin = AdminClient(settings)
        except KafkaException as error:
            raise Misconfigured(f"{self.name}: {error.args[0].str()}") from error

    @property
    def identity(self) -> str:
        """With the topic's own id: one that was deleted and made again has other events at the same offsets."""
        return f"kafka topic {self._topic} {self._described()[0]}"

    def _described(self) -> tuple[str, list[int]]:
        """The topic's id and the numbers of its partitions."""
        try:
            asked = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=ANSWER_SECONDS)
            found = asked[self._topic].result()
        except KafkaException as error:
            why: KafkaError = error.args[0]
            if why.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise Misconfigured(f"{self.name}: there is no topic {self._topic}") from error
            raise SourceLost(f"{self.name} does not answer: {why.str()}") from error
        return str(found.topic_id), sorted(one.id for one in found.partitions)

    def open(self, position: str | None) -> str:
        self._id, numbers = self._described()
        kept = {int(number): offset for number, offset in json.loads(position or "{}").items()}
        self._offsets = {}
        for number in numbers:
            low, high = self._bounds(number)
            at = kept.get(number, low)  # a partition that is new has its first event at its beginning
            if not low <= at <= high:
                raise Gap(f"{self.name}: partition {number} has {low} to {high}, and the checkpoint is at {at}")
            self._offsets[number] = at
        self._consumer.assign([TopicPartition(self._topic, one, at) for one, at in self._offsets.items()])
        return json.dumps(self._offsets)

    def _bounds(self, number: int) -> tuple[int, int]:
        try:
            found = self._consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=ANSWER_SECONDS)
        except KafkaException as error:
            raise SourceLost(f"{self.name} does not answer: {error.args[0].str()}") from error
        if found is None:
            raise SourceLost(f"{self.name} does not answer")
        return found

    def batches(self) -> Iterator[Batch]:
        checked = time.monotonic()
        while True:
            batch = Batch()
            for message in self._consumer.consume(BATCH_EVENTS, POLL_SECONDS):
                self._take(batch, message)
            if time.monotonic() - checked >= CHECK_SECONDS:
                self._check(batch)
                checked = time.monotonic()
            batch.position = json.dumps(self._offsets)
            yield batch

    def _take(self, batch: Batch, message: Message) -> None:
        number, offset, error = message.partition(), message.offset(), message.error()
        if error is not None and error.code() != KafkaError._PARTITION_EOF:
            self._failed(error)
        elif number is not None and offset is not None:
            if error is None:
                self._events.add(batch, message.value() or b"", f"{number}:{offset}")
            # The end of a partition may be after its last event: markers of transactions have offsets too.
            self._offsets[number] = offset if error is not None else offset + 1

    def _failed(self, error: KafkaError) -> None:
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise Gap(f"{self.name}: events were deleted before they were read ({error.str()})")
        if error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # the group is not used
            raise SourceLost(f"{self.name} stopped answering: {error.str()}")

    def _check(self, batch: Batch) -> None:
        """A client that waits for events does not see that the server is gone, or that the topic has changed."""
        now = int(time.time() * 1e6)
        topic, numbers = self._described()
        if topic != self._id:
            raise Gap(f"{self.name}: the topic was deleted and made again: its last events may not have been read")
        if numbers != sorted(self._offsets):
            raise SourceLost(f"{self.name} has new partitions")
        if all(self._offsets[one] >= self._bounds(one)[1] for one in numbers):
            batch.clock, batch.heartbeat = max(batch.clock, now), True  # everything that was there now is read

    def mark_end(self) -> None:
        self._ends = {number: self._bounds(number)[1] for number in self._offsets}

    def reached_end(self, position: str) -> bool:
        return all(self._offsets[number] >= end for number, end in self._ends.items())

    def confirm(self, position: str) -> None:
        """Kafka keeps events by its own retention."""

    def gauges(self) -> dict[str, float]:
        return {}

    def remove(self) -> None:
        """The watch has made nothing."""

    def close(self) -> None:
        self._consumer.close()


class KafkaOutput:
    """Alerts to a topic, keyed by the digest of the logical key; the alert's id is the header `samekey-alert-id`."""

    def __init__(self, url: str) -> None:
        settings, self._topic, self.name = address(url)
        try:
            self._producer = Producer(
                {**settings, "enable.idempotence": True, "acks": "all", "message.timeout.ms": int(SEND_SECONDS * 1000)}
            )
        except KafkaException as error:
            raise Misconfigured(f"{self.name}: {error.args[0].str()}") from error

    def deliver(self, found: Found) -> None:
        failed: list[str] = []

        def ended(error: KafkaError | None, _: Any) -> None:
            if error is not None:
                failed.append(error.str())

        try:
            for one in found:
                self._producer.produce(
                    self._topic,
                    key=one["key"].encode(),
                    value=json.dumps(one).encode(),
                    headers=[("samekey-alert-id", one["id"].encode())],
                    on_delivery=ended,
                )
            left = self._producer.flush(ANSWER_SECONDS)
        except (KafkaException, BufferError) as error:
            raise OutputFailed(type(error).__name__) from error
        if left or failed:
            raise OutputFailed(failed[0] if failed else "it did not answer in time")

    def close(self) -> None:
        self._producer.flush(0)
