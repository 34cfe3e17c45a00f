"""Duplicate rows in a stream of Debezium change events, on Spark 4.1 or newer, with samekey's own detector.

    PYTHONPATH=samekey.zip spark-submit --master spark://HOST:7077 --py-files samekey.zip duplicates_spark.py \\
        --rules rules.json --secret STATE/secret --from EVENTS --to ALERTS --checkpoint CHECKPOINT [--available-now]

EVENTS is a folder of JSON lines, or kafka://host:9092/topic (then add Spark's Kafka package). ALERTS gets JSON lines:
the alerts of `samekey db watch`, ids included. State is per key in RocksDB, and expires after the window.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from samekey.detect.detector import Detector, Event
from samekey.detect.rule_file import Bound, Rule, parse
from samekey.detect.watching.alerts import document
from samekey.detect.watching.changes import Batch
from samekey.detect.watching.debezium import Events
from samekey.detect.watching.start import watched_events

EVENT = "rule STRING, key BINARY, row BINARY, at LONG, position STRING, source ARRAY<STRING>, request STRING"
LATENESS_MS = 3_600_000  # a key is kept so much longer than its window


def events_of(lines: Iterator[str], rules: str, secret: bytes) -> Iterator[Row]:
    """The events of change events; one parser for a partition."""
    parser = Events(watched_events(parse(json.loads(rules), "rules"), secret))
    for line in lines:
        batch = Batch()
        parser.add(batch, line.encode(), "")
        for plan, event in batch.events:
            yield Row(
                rule=plan.bound.rule.name, key=event.key, row=event.row, at=event.at, position=event.position,
                source=list(event.source), request=event.request_id,
            )  # fmt: skip


class Duplicates(StatefulProcessor):
    """Spark's side of `Detector.fold`: it keeps the state of one key."""

    def __init__(self, rules: str, *, expires: bool) -> None:
        self._rules, self._expires = rules, expires

    def init(self, handle: StatefulProcessorHandle) -> None:
        declared = parse(json.loads(self._rules), "rules")
        self._known: dict[str, tuple[Rule, Detector]] = {
            rule.name: (
                rule,
                Detector(rule.name, None if rule.window_seconds is None else int(rule.window_seconds * 1e6)),
            )
            for rule in declared
        }
        windows = [rule.window_seconds for rule in declared]
        longest = None if None in windows else max(one for one in windows if one is not None)
        lives = None if longest is None or not self._expires else int(longest * 1000) + LATENESS_MS
        self._state = handle.getValueState("seen", "state BINARY", lives)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        rule, detector = self._known[key[0]]
        kept = self._state.get()
        state = bytes(kept[0]) if kept is not None else b""
        before = state
        # Spark shuffles: within a batch the rows of a key come in any order.
        for one in sorted(rows, key=lambda one: (one["at"], len(one["row"]), bytes(one["row"]))):
            event = Event(
                bytes(one["key"]), bytes(one["row"]), one["at"], one["position"], tuple(one["source"]), one["request"]
            )
            state, alerts = detector.fold(state, event)
            for alert in alerts:
                yield Row(value=json.dumps(document(alert, Bound(rule, rule.key), rule.table, None)))
        if state != before:
            self._state.update((state,))

    def close(self) -> None: ...


def read(spark: SparkSession, source: str) -> DataFrame:
    if not source.startswith("kafka://"):
        return spark.readStream.text(source)
    servers, _, topic = source.removeprefix("kafka://").partition("/")
    stream = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    return stream.option("startingOffsets", "earliest").load().selectExpr("CAST(value AS STRING) AS value")


def main() -> None:
    parser = argparse.ArgumentParser(description="Report duplicate rows in Debezium change events.")
    parser.add_argument("--rules", required=True, type=Path)
    parser.add_argument("--secret", required=True, type=Path, help="the file `secret` of a watch's state directory")
    parser.add_argument("--from", dest="source", required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--available-now", action="store_true", help="stop at the end of what is there")
    asked = parser.parse_args()
    rules, secret = asked.rules.read_text(), asked.secret.read_bytes()

    spark = SparkSession.builder.appName("samekey duplicates").getOrCreate()
    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", rocks)

    def parsed(batches: Iterator[Any]) -> Iterator[Any]:
        import pandas

        for batch in batches:
            rows = [one.asDict() for one in events_of(iter(batch["value"]), rules, secret)]
            names = ["rule", "key", "row", "at", "position", "source", "request"]
            yield pandas.DataFrame(rows, columns=names)

    # A state that expires needs Spark's clock, and with the clock --available-now never ends: a run over what is there
    # keeps every key instead.
    expires = not asked.available_now
    time_mode = "ProcessingTime" if expires else "None"
    alerts = (
        read(spark, asked.source)
        .mapInPandas(parsed, EVENT)
        .groupBy("rule", "key")
        .transformWithState(Duplicates(rules, expires=expires), "value STRING", "Append", time_mode)
    )
    written = alerts.writeStream.format("text").option("path", asked.to).option("checkpointLocation", asked.checkpoint)
    if asked.available_now:
        written = written.trigger(availableNow=True)
    written.outputMode("append").start().awaitTermination()


if __name__ == "__main__":
    main()
