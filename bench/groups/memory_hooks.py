"""What hooks add to an attempt: logging, Prometheus and OpenTelemetry, all at once.

The logger is at its default level, so that ordinary events write no line. OpenTelemetry is the API alone in the first
figures, and its SDK without an exporter in the last: those microseconds are the SDK's own.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry

from bench.figures import Experiment, Figure, Reading, at_most
from bench.groups.memory import REPLAYED_KEYS, calls, charge, new_keys, repeated
from bench.measure import Effort, Work, added_microseconds, interleave
from samekey import Guard
from samekey.core.ports import Hook
from samekey.hooks.logging import LoggingHook
from samekey.hooks.opentelemetry import OpenTelemetryHook
from samekey.hooks.prometheus import PrometheusHook

Charge = Callable[[str, int, str], Any]


def hooks(effort: Effort) -> Sequence[Reading]:
    return added(effort, OpenTelemetryHook())


def sdk(effort: Effort) -> Sequence[Reading]:
    return added(effort, OpenTelemetryHook(TracerProvider()))


def added(effort: Effort, tracing: OpenTelemetryHook) -> list[Reading]:
    all_three: list[Hook] = [LoggingHook(), PrometheusHook(CollectorRegistry()), tracing]
    hooked: Charge = Guard("memory://", hooks=all_three).once(name="charge", key="order")(charge)
    plain: Charge = Guard("memory://").once(name="charge", key="order")(charge)
    known = new_keys(REPLAYED_KEYS)
    for guarded in (hooked, plain):
        calls(guarded, known)()

    def fresh(guarded: Charge) -> Callable[[int], Work]:
        return lambda operations: calls(guarded, new_keys(operations))

    def replay(guarded: Charge) -> Callable[[int], Work]:
        return lambda operations: calls(guarded, repeated(known, operations))

    race = interleave(effort, fresh(hooked), fresh(plain), replay(hooked), replay(plain))
    both = added_microseconds(race.laps[0], race.laps[1]), added_microseconds(race.laps[2], race.laps[3])
    return [Reading(statistics.median(one), one, f"best round {min(one):.1f}; {race.speed}") for one in both]


ADDED = "the same guard without hooks: CPU added per call"
EXPERIMENTS = (
    Experiment(
        (
            Figure("memory.hooks.fresh", "us CPU", f"{ADDED} (all three hooks)", at_most(20.0)),
            Figure("memory.hooks.replay", "us CPU", f"{ADDED} (all three hooks)", at_most(20.0)),
        ),
        hooks,
    ),
    Experiment(
        (
            Figure("memory.hooks.sdk.fresh", "us CPU", f"{ADDED} (all three hooks, with OpenTelemetry's SDK)"),
            Figure("memory.hooks.sdk.replay", "us CPU", f"{ADDED} (all three hooks, with OpenTelemetry's SDK)"),
        ),
        sdk,
    ),
)
