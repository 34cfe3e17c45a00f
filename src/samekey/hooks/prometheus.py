"""Events as metrics for `prometheus_client`: `Guard(hooks=[PrometheusHook()])`. The table is in `hooks.metrics`.

Counters and histograms are stepped by events. The three gauges are read from the store when Prometheus asks, at most
every READ_EVERY_SECONDS, in a thread of its own: an attempt never waits for them, and a scrape waits READ_SECONDS.
Hooks on the same registry share its metrics. With several processes (`PROMETHEUS_MULTIPROC_DIR`) the counters and
histograms are added up as usual; read the gauges in one process only.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily

from samekey.core.ports import LIST_MAX, Event, Query
from samekey.core.record import Record
from samekey.core.states import State
from samekey.hooks.metrics import METRICS, OUTCOMES, STORE_ERROR_KINDS, Metric
from samekey.loops import in_a_loop, started

_log = logging.getLogger("samekey")

OPERATIONS_MAX = 1000  # as many as a guard remembers; further ones count as "other"
OTHER = "other"
READ_EVERY_SECONDS = 10.0
READ_SECONDS = 2.0  # a scrape waits so long for the store, then shows what was read last

_BY_NAME = {metric.name: metric for metric in METRICS}
_STEPS = {  # events that step a counter with the label `operation`
    "lease_lost": "samekey_lease_losses_total",
    "fenced": "samekey_fence_refusals_total",
    "key_reused": "samekey_key_conflicts_total",
    "unguarded": "samekey_unguarded_total",
    "late": "samekey_late_total",
}
_KINDS = (*STORE_ERROR_KINDS.values(), OTHER)


class PrometheusHook:
    """Metrics of a guard, in the default registry or in the one given.

    >>> from prometheus_client import CollectorRegistry
    >>> from samekey import Guard
    >>> registry = CollectorRegistry()
    >>> guard = Guard("memory://", hooks=[PrometheusHook(registry)])
    >>> guard.run("charge", lambda: "receipt", key="o-1", payload={}).result
    'receipt'
    >>> labels = {"operation": "charge", "source": "", "outcome": "new"}
    >>> registry.get_sample_value("samekey_attempts_total", labels)
    1.0
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or REGISTRY
        with _mutex:
            shared = _shared.get(registry)
            if shared is None:
                shared = _shared[registry] = Metrics(registry)
        self._metrics = shared

    def bind(self, guard: Any) -> None:
        """Called by the guard: its declared operations are shown from the start, and its store has the gauges."""
        self._metrics.gauges.guards.add(guard)

    def __call__(self, event: Event) -> None:
        metrics, name = self._metrics, event.name
        if not event.operation:
            return
        series = metrics.series.get(event.operation) or metrics.declare(event.operation)
        if event.outcome:
            series.attempt(event.source, event.outcome)
            if event.sent is not None:
                series.provider_call.observe(event.sent)
        if name == "claimed" or name == "completed" or name == "replayed":
            return
        if name == "waited":
            series.wait.observe(event.duration or 0.0)
        elif name == "store_down" or name == "not_recorded":
            series.store_errors[STORE_ERROR_KINDS.get(event.error or event.detail, OTHER)].inc()
        elif name == "store_lost_memory":
            metrics.lost_memory.inc()
        if name in series.steps:
            series.steps[name].inc()


class Series:
    """The series of one operation: labels are bound once, and every series begins at 0."""

    def __init__(self, made: dict[str, Any], operation: str) -> None:
        self._operation = operation
        self._attempts = made["samekey_attempts_total"]
        self._by_end = {("", outcome): self._bound("", outcome) for outcome in OUTCOMES}
        self.wait = made["samekey_wait_seconds"].labels(operation)
        self.provider_call = made["samekey_provider_call_seconds"].labels(operation)
        self.store_errors = {kind: made["samekey_store_errors_total"].labels(operation, kind) for kind in _KINDS}
        self.steps = {event: made[name].labels(operation) for event, name in _STEPS.items()}

    def attempt(self, source: str, outcome: str) -> None:
        bound = self._by_end.get((source, outcome))
        if bound is None:
            for other in OUTCOMES:  # all of this source, so that each is there at 0
                self._by_end.setdefault((source, other), self._bound(source, other))
            bound = self._by_end[source, outcome]
        bound.inc()

    def _bound(self, source: str, outcome: str) -> Any:
        return self._attempts.labels(self._operation, source, outcome)


class Metrics:
    """The metrics of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.gauges = Gauges(self._declare_all)
        registry.register(self.gauges)  # first: it declares series that the others shall show in the same scrape
        self._made = {metric.name: _make(metric, registry) for metric in METRICS if metric.kind != "gauge"}
        self.lost_memory = self._made["samekey_store_lost_memory_total"]
        self.series: dict[str, Series] = {}

    def declare(self, operation: str) -> Series:
        named = operation if len(self.series) < OPERATIONS_MAX else OTHER
        return self.series.setdefault(named, Series(self._made, named))

    def _declare_all(self, operations: Iterable[str]) -> None:
        for operation in operations:
            if operation not in self.series:
                self.declare(operation)


def _make(metric: Metric, registry: CollectorRegistry) -> Any:
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry)
    return Counter(metric.name, metric.help, metric.labels, registry=registry)


# -- gauges --------------------------------------------------------------------------------------------------------


class Gauges:
    """Reads doubts and old claims from the stores of the guards, when the registry is collected."""

    def __init__(self, declare: Callable[[Iterable[str]], None]) -> None:
        self.guards: weakref.WeakSet[Any] = weakref.WeakSet()
        self._declare = declare
        self._read_at = -READ_EVERY_SECONDS
        self._values: dict[str, dict[str, float]] = {}  # by metric, then by operation
        self._reading: threading.Thread | None = None
        self._mutex = threading.Lock()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return (_family(metric) for metric in METRICS if metric.kind == "gauge")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        operations = {one.name for guard in list(self.guards) for one in guard.declared() if "*" not in one.name}
        self._declare(sorted(operations))
        values = self._fresh()
        for family in self.describe():
            known = values.get(family.name, {})
            for operation in sorted(operations | known.keys()):
                family.add_metric([operation], known.get(operation, 0.0))
            yield family

    def _fresh(self) -> dict[str, dict[str, float]]:
        with self._mutex:
            thread = self._reading
            if thread is None and time.monotonic() - self._read_at >= READ_EVERY_SECONDS:
                thread = threading.Thread(target=self._read, name="samekey-gauges", daemon=True)
                self._reading = thread if started(thread) else None
                thread = self._reading
        if thread is not None and not in_a_loop():  # the loop may be the one in which the store is read
            thread.join(READ_SECONDS)
        return self._values

    def _read(self) -> None:
        values: dict[str, dict[str, float]] = {metric.name: {} for metric in METRICS if metric.kind == "gauge"}
        seen: set[tuple[str, str]] = set()
        try:
            for guard in list(self.guards):
                store = guard.ask_store(_name_of, READ_SECONDS)
                if store is None or store in seen:
                    continue  # two guards on one store: its doubts are counted once
                seen.add(store)
                page = guard.ask_store(_waiting, READ_SECONDS) or ()
                _add([one for one in page if isinstance(one, Record)], values)
            self._values = values
        except Exception as error:
            _log.debug("the gauges could not be read: %s", type(error).__name__)
        finally:
            with self._mutex:
                self._read_at, self._reading = time.monotonic(), None


def _name_of(store: Any) -> tuple[str, str]:
    return store.name, store.incarnation


def _waiting(store: Any) -> Any:
    return store.list(Query(waiting=True, oldest_first=True, limit=LIST_MAX))


def _add(records: Iterable[Record], values: dict[str, dict[str, float]]) -> None:
    for record in records:
        operation = record.key.operation
        if record.state is State.IN_DOUBT:
            doubts, oldest = values["samekey_doubts"], values["samekey_oldest_doubt_seconds"]
            doubts[operation] = doubts.get(operation, 0.0) + 1
            oldest[operation] = max(oldest.get(operation, 0.0), record.now - record.doubt_since)
        else:
            old = values["samekey_old_claims"]
            old[operation] = old.get(operation, 0.0) + 1


def _family(metric: Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)


_mutex = threading.Lock()
_shared: weakref.WeakKeyDictionary[CollectorRegistry, Metrics] = weakref.WeakKeyDictionary()
