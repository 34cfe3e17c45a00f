"""The loop of a watch: changes in, folded, made durable, confirmed to the source, and then given to the outputs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from samekey.detect.anomaly import DUPLICATES, Anomaly
from samekey.detect.detector import Alert, Detector, Event
from samekey.detect.watching.alerts import document, line_of
from samekey.detect.watching.changes import Batch, Gap, Source, StateDamaged
from samekey.detect.watching.journal import Journal
from samekey.detect.watching.metrics import Counts, exposition
from samekey.detect.watching.outputs import Outputs
from samekey.detect.watching.plans import Plan
from samekey.detect.watching.start import Watched

CHECKPOINT_SECONDS = 0.5
CHECKPOINT_ROWS = 20_000
CHECKPOINT_CLOCK = 5_000_000  # microseconds: without changes the source's clock alone is noted this often
BUCKET_SECONDS = 10.0  # of the detectors of rates
KEYS_MAX = 20_000_000  # about 4 GB: more keys belong to several watches, or to Spark
LATENESS = 3_600_000_000  # microseconds: how long a key is kept after its window, for rows that arrive late

Stop = Callable[[Batch], bool]


class Watcher:
    def __init__(self, journal: Journal, outputs: Outputs, watched: Watched, *, accept_gap: bool = False) -> None:
        self._journal, self._outputs, self._watched = journal, outputs, watched
        self._accept_gap = accept_gap
        self._source: Source | None = None
        self._position = self._identity = ""
        self.alerts = 0  # of this run
        self.rows = 0
        self.up = False
        self._clock = int(journal.checkpoint.get("clock", 0))
        self._gaps: list[str] = list(journal.checkpoint.get("gaps", []))
        self.counts: dict[str, Counts] = {}
        windows = [plan.detector.window for plan in watched.plans()]
        for plan in watched.plans():
            rule = plan.bound.rule
            counts = self.counts[rule.name] = Counts(rule.name, watched.tables[rule.name], rule.severity.label)
            counts.restore(journal.checkpoint.get("counts", {}).get(rule.name, {}))
        self._rules = [plan.bound.rule for plan in watched.plans()]
        self._anomalies = {rule.name: Anomaly(DUPLICATES) for rule in self._rules}
        self._counted = {
            name: (sum(one.duplicates.values()), sum(one.rows.values())) for name, one in self.counts.items()
        }
        self._bucket_ends = time.monotonic() + BUCKET_SECONDS
        self._expiry = Detector("", None if None in windows else max(one for one in windows if one is not None))

    def open(self, source: Source) -> None:
        """Continue on this source after the last checkpoint. Raises `Gap` when changes are lost, unless accepted."""
        before = self._journal.checkpoint
        position: str | None = before.get("position")
        self._identity = source.identity
        if position is not None and before.get("identity") != self._identity:
            gap = f"the checkpoint belongs to {before.get('identity')}, and this is {self._identity}"
            self._gap(Gap(gap))
            position = None
        try:
            self._position = source.open(position)
        except Gap as gap:
            self._gap(gap)
            position, self._position = None, source.open(None)
        self._source = source
        if position is None:
            self._checkpoint()

    def _gap(self, gap: Gap) -> None:
        if not self._accept_gap:
            raise gap
        self._gaps = [*self._gaps[-15:], f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {gap.message}"]

    def run(self, stop: Stop) -> None:
        """Watch until `stop` is true for a batch. A `Gap` or `SourceLost` ends it, with everything durable kept."""
        if self._source is None:
            raise RuntimeError("open() comes before run()")
        saved, rows, inside = time.monotonic(), 0, False
        self.up = True
        try:
            for batch in self._source.batches():
                if batch.events:
                    self._fold(batch.events)
                rows += batch.rows
                self.rows += batch.rows
                self._clock = max(self._clock, batch.clock)
                if batch.position is not None:
                    self._position, inside = batch.position, False
                elif batch.rows:
                    inside = True
                    self._journal.write()
                ended = stop(batch)
                self._observe()
                late = time.monotonic() - saved >= CHECKPOINT_SECONDS
                if inside or not (ended or late or rows >= CHECKPOINT_ROWS):
                    continue
                if rows or self._moved():
                    self._checkpoint()
                self._outputs.pump(last=ended)
                saved, rows = time.monotonic(), 0
                if ended:
                    return
            if not inside:  # a source that ends, such as a file
                self._checkpoint()
                self._outputs.pump(last=True)
        finally:
            self.up = False

    def _moved(self) -> bool:
        before = self._journal.checkpoint
        return self._position != before.get("position") or self._clock - before.get("clock", 0) >= CHECKPOINT_CLOCK

    def _observe(self) -> None:
        """Give the counts of the last seconds to the detectors of rates."""
        now = time.monotonic()
        if now < self._bucket_ends:
            return
        seconds = now - self._bucket_ends + BUCKET_SECONDS
        self._bucket_ends = now + BUCKET_SECONDS
        for name, one in self.counts.items():
            duplicates, rows = sum(one.duplicates.values()), sum(one.rows.values())
            before = self._counted[name]
            self._counted[name] = (duplicates, rows)
            self._anomalies[name].observe(duplicates - before[0], rows - before[1], seconds)

    def _fold(self, events: list[tuple[Plan, Event]]) -> None:
        window, remember, counts = self._journal.window, self._journal.remember, self.counts
        for plan, event in events:
            key, detector = event.key, plan.detector
            known = window.get(key, b"")
            state, alerts = detector.fold(known, event)
            if state is not known:
                remember(key, state)
                counts[detector.rule].row(event.source, plan.bound.rule.source)
            for alert in alerts:
                self._add(plan, alert)
        if len(window) > KEYS_MAX:
            raise StateDamaged(f"the window has more than {KEYS_MAX} keys: give the rules a shorter window")

    def _add(self, plan: Plan, alert: Alert) -> None:
        rule = plan.bound.rule
        self.counts[rule.name].duplicate(alert.event.source, rule.source, (alert.at - alert.first_at) / 1e6)
        found = document(alert, plan.bound, self._watched.tables[rule.name], self._watched.preventions.get(rule.name))
        self._journal.add_alert(line_of(found))
        self.alerts += 1

    def _checkpoint(self) -> None:
        if self._source is None:
            return
        facts: dict[str, Any] = {
            "identity": self._identity,
            "clock": self._clock,
            "gaps": self._gaps,
            "counts": {name: one.as_object() for name, one in self.counts.items()},
        }
        if not self._journal.compact(self._live, self._position, facts):
            self._journal.save(self._position, facts)
        self._source.confirm(self._position)

    def _live(self, state: bytes) -> bool:
        return not self._expiry.expired(state, self._clock - LATENESS)

    def lag_seconds(self) -> float:
        """How old the newest change or heartbeat is that is durable."""
        clock = int(self._journal.checkpoint.get("clock", 0))
        return max(0.0, time.time() - clock / 1e6) if clock else 0.0

    def exposition(self) -> str:
        gauges: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {
            ("samekey_watch_up", ()): float(self.up),
            ("samekey_watch_lag_seconds", ()): self.lag_seconds(),
            ("samekey_window_keys", ()): len(self._journal.window),
            ("samekey_alerts_undelivered_bytes", ()): self._outputs.undelivered,
            **{
                ("samekey_rule_alert_above", (("rule", rule.name),)): rule.alert_above
                for rule in self._rules
                if rule.alert_above is not None
            },
            **{
                ("samekey_anomaly_score", (("signal", "duplicates"), ("label", label))): one.score
                for label, one in list(self._anomalies.items())
            },
            **{(name, ()): value for name, value in (self._source.gauges() if self._source else {}).items()},
        }
        return exposition(list(self.counts.values()), gauges)
