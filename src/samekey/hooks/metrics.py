"""The metrics: one table, which the hooks that publish them, the alarm rules, the dashboard and the docs share.

Every series is there from the start, at 0: a rate over a series that appears with its first event misses that event.
Label sets are bounded: `operation` by what the program declares, `source` to 50 values and "other", the rest by tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from samekey.core.events import OUTCOMES

__all__ = ["METRICS", "Metric", "OUTCOMES", "STORE_ERROR_KINDS"]

# Seconds. A wait ends with the policy's patience (5 s), a provider call with the lease (30 s).
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


# The label `kind`, by the type of the error; any other is "other".
STORE_ERROR_KINDS = {
    "StoreUnavailable": "unavailable",
    "StoreBusy": "busy",
    "RecordUnreadable": "unreadable",
}


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric, as Prometheus shows it."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()

    @property
    def series(self) -> tuple[str, ...]:
        """The names that a query can use."""
        if self.kind == "histogram":
            return (f"{self.name}_bucket", f"{self.name}_sum", f"{self.name}_count")
        return (self.name,)


METRICS = (
    Metric(
        "samekey_attempts_total",
        "counter",
        ("operation", "source", "outcome"),
        "Attempts that ended, by how they ended.",
    ),
    Metric(
        "samekey_wait_seconds",
        "histogram",
        ("operation",),
        "How long a caller waited for another holder of its key.",
        _BUCKETS,
    ),
    Metric("samekey_doubts", "gauge", ("operation",), "Records that are in doubt."),
    Metric(
        "samekey_oldest_doubt_seconds",
        "gauge",
        ("operation",),
        "Age of the oldest doubt; 0 where there is none.",
    ),
    Metric("samekey_old_claims", "gauge", ("operation",), "Holds whose lease is over and which no attempt has ended."),
    Metric("samekey_lease_losses_total", "counter", ("operation",), "Holders that lost their lease while they ran."),
    Metric(
        "samekey_fence_refusals_total",
        "counter",
        ("operation",),
        "Writes of a former holder that the store refused.",
    ),
    Metric(
        "samekey_store_errors_total",
        "counter",
        ("operation", "kind"),
        "Commands that the store did not carry out, by the kind of error.",
    ),
    Metric(
        "samekey_provider_call_seconds",
        "histogram",
        ("operation",),
        "Time from sending() to the settle of the record.",
        _BUCKETS,
    ),
    Metric(
        "samekey_key_conflicts_total",
        "counter",
        ("operation",),
        "Keys that came again with another payload.",
    ),
    Metric(
        "samekey_store_lost_memory_total",
        "counter",
        (),
        "Times a store was found restored, wiped or failed over: claims may be missing.",
    ),
    Metric("samekey_unguarded_total", "counter", ("operation",), "Effects that ran without a record."),
    Metric(
        "samekey_late_total",
        "counter",
        ("operation",),
        "Outcomes that came after the key had changed hands; they are kept as evidence.",
    ),
)
