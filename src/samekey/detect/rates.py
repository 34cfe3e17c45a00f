"""Rates of a fleet, read from Prometheus: which are higher than usual, with the usual band of each."""

from __future__ import annotations

import json
import math
import re
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

from samekey.core.errors import Misconfigured, SamekeyError
from samekey.detect.anomaly import ALARM, DUPLICATES, REPLAYS, Anomaly, Settings

STEP_SECONDS = 60
SERIES_MAX = 500  # labels of one signal
ANSWER_SECONDS = 30.0
ANSWER_MAX_BYTES = 50_000_000
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,62}")


@dataclass(frozen=True, slots=True)
class Signal:
    name: str
    events: str  # counters
    requests: str
    labels: tuple[str, ...]
    settings: Settings


SIGNALS = (
    Signal(
        "replays", 'samekey_attempts_total{outcome=~"replayed|waited"}', "samekey_attempts_total",
        ("operation", "source"), REPLAYS,
    ),
    Signal("key_conflicts", "samekey_key_conflicts_total", "samekey_attempts_total", ("operation",), REPLAYS),
    Signal("duplicates", "samekey_duplicates_total", "samekey_rows_seen_total", ("rule", "source"), DUPLICATES),
)  # fmt: skip


class PrometheusFailed(SamekeyError):
    """Prometheus does not answer, or answers with an error: the rates are not known."""


@dataclass(frozen=True, slots=True)
class Rate:
    signal: str
    label: str
    share: float  # of the last hour
    low: float  # the usual band of an hour
    high: float
    score: float  # the highest of the last hour

    @property
    def alarm(self) -> bool:
        return self.score > ALARM


def rates(url: str, *, now: float, hours: float, by: tuple[str, ...] = ()) -> list[Rate]:
    """Every signal by its labels, or by these; the highest score first."""
    if not url.startswith(("http://", "https://")):
        raise Misconfigured("Prometheus has an address such as http://prometheus:9090")
    wrong = [name for name in by if not LABEL.fullmatch(name)]
    if wrong:
        raise Misconfigured(f"{wrong[0]!r} is no name of a label")
    found = [rate for signal in SIGNALS for rate in _of(url, signal, by or signal.labels, now, hours)]
    return sorted(found, key=lambda one: (-one.score, one.signal, one.label))


def _of(url: str, signal: Signal, labels: tuple[str, ...], now: float, hours: float) -> list[Rate]:
    events = _range(url, _increase(signal.events, labels), now, hours)
    requests = _range(url, _increase(signal.requests, labels), now, hours)
    if len(requests) > SERIES_MAX:
        raise Misconfigured(f"{signal.name} has more than {SERIES_MAX} labels: choose fewer with --by")
    return [_rate(signal, label, events.get(label, {}), series) for label, series in requests.items()]


def _increase(metric: str, labels: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(labels)}) (increase({metric}[{STEP_SECONDS}s]))"


def _rate(signal: Signal, label: str, events: dict[int, float], requests: dict[int, float]) -> Rate:
    anomaly = Anomaly(signal.settings)
    times = sorted(requests)
    last = times[-1] - 3600 if times else 0
    hour_events = hour_requests = score = 0.0
    for at in times:
        k, n = round(events.get(at, 0.0)), round(requests[at])
        high = anomaly.observe(k, n, STEP_SECONDS)
        if at > last:
            hour_events, hour_requests, score = hour_events + k, hour_requests + n, max(score, high)
    low, high = anomaly.band(hour_requests)
    return Rate(signal.name, label, hour_events / hour_requests if hour_requests else 0.0, low, high, score)


def _range(url: str, query: str, now: float, hours: float) -> dict[str, dict[int, float]]:
    """Label -> time -> value."""
    asked = {"query": query, "start": now - hours * 3600, "end": now, "step": STEP_SECONDS}
    address = f"{url.rstrip('/')}/api/v1/query_range?{urllib.parse.urlencode(asked)}"
    try:
        with urllib.request.urlopen(address, timeout=ANSWER_SECONDS) as reply:  # noqa: S310 - the scheme is checked
            found = json.loads(reply.read(ANSWER_MAX_BYTES))
        if found["status"] != "success":
            raise PrometheusFailed(f"Prometheus refuses the query: {found.get('error', '')}")
        return {_label(one["metric"]): _values(one["values"]) for one in found["data"]["result"]}
    except urllib.error.HTTPError as error:
        error.close()
        raise PrometheusFailed(f"Prometheus answers {error.code}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PrometheusFailed(f"Prometheus does not answer as expected ({type(error).__name__})") from error


def _label(metric: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in sorted(metric.items()) if value) or "all"


def _values(pairs: list[list[Any]]) -> dict[int, float]:
    found = {int(float(at)): float(value) for at, value in pairs}
    return {at: value for at, value in found.items() if math.isfinite(value)}


def exposition(found: list[Rate]) -> str:
    """For node_exporter's textfile collector: the series that the alarm rules ask for."""
    lines = [
        "# HELP samekey_anomaly_score -log10 of the probability of a minute.",
        "# TYPE samekey_anomaly_score gauge",
    ]
    for one in found:
        label = one.label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines.append(f'samekey_anomaly_score{{signal="{one.signal}",label="{label}"}} {one.score:.3f}')
    return "\n".join(lines) + "\n"
