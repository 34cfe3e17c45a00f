"""Numbers of a watch in Prometheus' text format, and the small server that gives them out.

Labels are bounded: a rule has at most `SOURCES_MAX` sources, the others count as `other`. Every series of a rule is
there at 0 from the start, because a rate cannot be computed from a series that appears with its first duplicate.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from samekey.core.errors import Misconfigured

SOURCES_MAX = 50
OTHER = "other"
GAPS = (0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 21_600.0, 86_400.0)  # seconds

HELP = {
    "samekey_rows_seen_total": ("counter", "rows that a rule looked at"),
    "samekey_duplicates_total": ("counter", "rows that were stored although their key was there"),
    "samekey_duplicate_gap_seconds": ("histogram", "time between the two rows of a pair"),
    "samekey_anomaly_score": ("gauge", "-log10 of the probability of the last minute, by signal and label"),
    "samekey_rule_alert_above": ("gauge", "share of duplicates that a rule allows"),
    "samekey_watch_up": ("gauge", "whether the watch reads its source: 1, or 0 while it cannot"),
    "samekey_watch_lag_seconds": ("gauge", "age of the newest change or heartbeat that is durable"),
    "samekey_slot_retained_bytes": ("gauge", "bytes of WAL that the server keeps for the watch"),
    "samekey_window_keys": ("gauge", "keys that the watch knows"),
    "samekey_alerts_undelivered_bytes": ("gauge", "alerts that an output has not taken yet"),
}


class Counts:
    """Rows and duplicates of one rule, by source."""

    def __init__(self, rule: str, table: str, severity: str) -> None:
        self.rule, self.table, self.severity = rule, table, severity
        self.rows: Counter[str] = Counter()
        self.duplicates: Counter[str] = Counter()
        self._labels: dict[Sequence[str | None], str] = {}
        self.gaps = [0] * (len(GAPS) + 1)
        self.gap_sum = 0.0

    def label(self, values: Sequence[str | None], names: Sequence[str]) -> str:
        """`region=eu client_version=3`, or `other` for a source that came after the first `SOURCES_MAX`."""
        known = self._labels.get(values)
        if known is None:
            shown = zip(names, values, strict=True)
            known = " ".join(f"{name}={'' if value is None else value}" for name, value in shown)
            if known not in self.rows and len(self.rows) >= SOURCES_MAX:
                return OTHER
            self._labels[values] = known
        return known

    def row(self, values: Sequence[str | None], names: Sequence[str]) -> None:
        label = self._labels.get(values)
        self.rows[self.label(values, names) if label is None else label] += 1

    def duplicate(self, values: Sequence[str | None], names: Sequence[str], gap_seconds: float) -> None:
        self.duplicates[self.label(values, names)] += 1
        self.gaps[next((place for place, top in enumerate(GAPS) if gap_seconds <= top), len(GAPS))] += 1
        self.gap_sum += gap_seconds

    def as_object(self) -> dict[str, Any]:
        return {
            "rows": dict(self.rows),
            "duplicates": dict(self.duplicates),
            "gaps": self.gaps,
            "gap_sum": self.gap_sum,
        }

    def restore(self, kept: Mapping[str, Any]) -> None:
        self.rows.update(kept.get("rows", {}))
        self.duplicates.update(kept.get("duplicates", {}))
        gaps = kept.get("gaps", [])
        if len(gaps) == len(self.gaps):
            self.gaps, self.gap_sum = list(gaps), float(kept.get("gap_sum", 0.0))


def exposition(counts: Iterable[Counts], gauges: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]) -> str:
    """All series. `gauges`: (name, labels) -> value."""
    series: dict[str, list[str]] = {name: [] for name in HELP}
    for one in counts:
        base: tuple[tuple[str, str], ...] = (("rule", one.rule), ("table", one.table))
        for source in sorted({*one.rows, *one.duplicates} or {""}):
            labels = (*base, ("source", source))
            series["samekey_rows_seen_total"].append(_line("samekey_rows_seen_total", labels, one.rows[source]))
            marked = (*labels, ("severity", one.severity))
            series["samekey_duplicates_total"].append(_line("samekey_duplicates_total", marked, one.duplicates[source]))
        series["samekey_duplicate_gap_seconds"] += _histogram(one, base)
    for (name, labels), value in gauges.items():
        series[name].append(_line(name, labels, value))
    parts = []
    for name, lines in series.items():
        kind, text = HELP[name]
        parts += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines]
    return "\n".join(parts) + "\n"


def _histogram(one: Counts, labels: tuple[tuple[str, str], ...]) -> list[str]:
    lines, below = [], 0
    for top, count in zip([*map(str, GAPS), "+Inf"], one.gaps, strict=True):
        below += count
        lines.append(_line("samekey_duplicate_gap_seconds_bucket", (*labels, ("le", top)), below))
    lines.append(_line("samekey_duplicate_gap_seconds_sum", labels, one.gap_sum))
    lines.append(_line("samekey_duplicate_gap_seconds_count", labels, below))
    return lines


def _line(name: str, labels: Iterable[tuple[str, str]], value: float) -> str:
    shown = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels)
    number = str(int(value)) if value == int(value) else repr(float(value))
    return f"{name}{{{shown}}} {number}" if shown else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def serve(address: str, text: Callable[[], str]) -> ThreadingHTTPServer:
    """Answer GET /metrics at `host:port`; without a host only this machine is answered. Port 0 takes a free one."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise Misconfigured(f"--metrics is an address such as :9187 or 0.0.0.0:9187, not {address!r}")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404)
                return
            body = text().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    try:
        server = ThreadingHTTPServer((host or "127.0.0.1", int(port)), Handler)
    except OSError as error:
        raise Misconfigured(f"--metrics {address}: {error.strerror}") from error
    threading.Thread(target=server.serve_forever, name="samekey-metrics", daemon=True).start()
    return server
