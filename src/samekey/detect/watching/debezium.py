"""Debezium's change events as a source: parsed here, read from a file of JSON lines or from a Kafka topic.

An event is an envelope with `op`, `after` and `source`, with or without Kafka Connect's `schema`. Inserted rows (`c`)
and rows of a snapshot (`r`) count. Debezium delivers an event again after a restart: the row id shows that it is known.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.detect.watching.changes import Batch, Gap, SourceLost
from samekey.detect.watching.plans import Plan
from samekey.detect.watching.start import Watched

BATCH_EVENTS = 2000
EVENT_MAX_BYTES = 10_000_000


class Events:
    """From the bytes of an event to the events of the rules that watch its table."""

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._plans: dict[tuple[str, ...], list[tuple[Plan, tuple[str, ...]]]] = {}

    def add(self, batch: Batch, raw: bytes, position: str) -> None:
        """`raw` is empty for Kafka's tombstones. What is no change event is refused: it would be a row not seen."""
        if not raw.strip():
            return
        try:
            found = json.loads(raw)
            change = found.get("payload", found) if isinstance(found, dict) else None
            if change is None or "op" not in change:
                if change is not None and "source" not in change:
                    return  # a heartbeat, or the begin or end of a transaction
                raise ValueError("it has no op")
            source, row, op = change["source"], change.get("after"), change["op"]
            stored_at = int(source.get("ts_us") or 1000 * (source.get("ts_ms") or change.get("ts_ms") or 0))
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise Gap(f"the event at {position} is no change event of Debezium ({error})") from error
        batch.clock = max(batch.clock, stored_at)
        if op not in ("c", "r") or row is None:
            return
        batch.rows += 1
        for plan, names in self._plans_of(source):
            missing = [name for name in names if name not in row]
            if missing:
                raise Misconfigured(f"events of {plan.bound.rule.table} have no column {', '.join(missing)}")
            transaction = source.get("txId")
            event = plan.event(
                [as_text(row[name]) for name in names], stored_at, position if transaction is None else str(transaction)
            )
            if event is not None:
                batch.events.append((plan, event))

    def _plans_of(self, source: dict[str, Any]) -> list[tuple[Plan, tuple[str, ...]]]:
        where = tuple(str(source.get(part) or "") for part in ("db", "schema", "table"))
        known = self._plans.get(where)
        if known is None:
            db, schema, table = where
            names = {table, f"{schema}.{table}", f"{db}.{table}", f"{db}.{schema}.{table}"}
            known = self._plans[where] = [
                (plan, self._watched.columns(one))
                for one in self._watched.bounds
                if one in names
                for plan in self._watched.plans_of(one, self._watched.columns(one))
            ]
        return known


def as_text(value: Any) -> bytes | None:
    """A value of an event as bytes: equal values give equal bytes."""
    if value is None:
        return None
    return (value if isinstance(value, str) else json.dumps(value, sort_keys=True)).encode("utf-8", "surrogatepass")


class FileSource:
    """A file of change events, one JSON object per line. It ends: with the file, the watch ends too."""

    def __init__(self, path: Path, watched: Watched) -> None:
        if not path.is_file():
            raise Misconfigured(f"{path} is no file with change events")
        self._path, self._events = path, Events(watched)
        self.name = str(path)
        facts = os.stat(path)
        self.identity = f"file {path.absolute()} {facts.st_dev}:{facts.st_ino}"
        self._offset = 0

    def open(self, position: str | None) -> str:
        self._offset = int(position or 0)
        if self._path.stat().st_size < self._offset:
            raise Gap(f"{self._path} is shorter than the checkpoint: it was replaced")
        return str(self._offset)

    def batches(self) -> Iterator[Batch]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                batch = Batch()
                while line := file.readline(EVENT_MAX_BYTES + 1):
                    if len(line) > EVENT_MAX_BYTES:
                        raise Gap(f"{self._path} has an event of more than {EVENT_MAX_BYTES} bytes")
                    if not line.endswith(b"\n"):
                        raise Gap(
                            f"{self._path} does not end with a whole line: the event at {self._offset} is missing"
                        )
                    self._events.add(batch, line, str(self._offset))
                    self._offset += len(line)
                    if batch.rows >= BATCH_EVENTS:
                        batch.position = str(self._offset)
                        yield batch
                        batch = Batch()
                batch.position = str(self._offset)
                yield batch
        except OSError as error:
            raise SourceLost(f"{self._path} cannot be read: {error.strerror}") from error

    def mark_end(self) -> None:
        """The end of the file ends the watch."""

    def reached_end(self, position: str) -> bool:
        return False

    def confirm(self, position: str) -> None:
        """A file forgets nothing."""

    def gauges(self) -> dict[str, float]:
        return {}

    def remove(self) -> None:
        """The watch has made nothing."""

    def close(self) -> None:
        """No connection."""
