"""A scan as JSON lines: one object for each pair, one for each rule, one at the end (a versioned schema)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from samekey.detect.audit import Shown
from samekey.detect.pairs import Pair
from samekey.detect.rule_file import Rule
from samekey.detect.scan import Scan, Scanned
from samekey.detect.tally import DAY_SECONDS, GAP_LABELS

SCHEMA = "samekey.scan/1"


def pair_object(rule: Rule, pair: Pair, shown: Shown) -> dict[str, Any]:
    """Row ids and sources as they are: a person must find the rows. Keys and request ids as `shown` has them."""
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "type": "pair",
        "finding": "SK140",
        "rule": rule.name,
        "severity": rule.severity.label,
        "table": rule.table,
        "row": [_plain(value) for value in pair.row],
        "earlier": [_plain(value) for value in pair.earlier],
        "at": pair.at,
        "gap_seconds": pair.gap_seconds,
        "key": [shown(value) for value in pair.key],
    }
    if rule.source:
        found["source"] = dict(zip(rule.source, map(_plain, pair.source), strict=True))
        found["earlier_source"] = dict(zip(rule.source, map(_plain, pair.earlier_source), strict=True))
    if rule.request_id:
        found["request"], found["earlier_request"] = shown(pair.request), shown(pair.earlier_request)
    return found


def as_lines(report: Scan) -> Iterator[dict[str, Any]]:
    for one in report.results:
        yield _rule(one)
    yield {
        "schema": SCHEMA,
        "type": "end",
        "database": report.database,
        "engine": report.engine.value,
        "duplicates": report.duplicates,
        "complete": not report.incomplete,
        "incomplete": report.incomplete,
    }


def _rule(one: Scanned) -> dict[str, Any]:
    tally = one.tally
    return {
        "schema": SCHEMA,
        "type": "rule",
        "rule": one.rule.name,
        "severity": one.rule.severity.label,
        "table": one.table,
        "rows": tally.rows,
        "duplicates": tally.duplicates,
        "rate": tally.rate,
        "alert": tally.above,
        "first": tally.first,
        "last": tally.last,
        "until": one.until,
        "by_day": {str(day * DAY_SECONDS): number for day, number in sorted(tally.by_day.items())},
        "by_gap": {GAP_LABELS[place]: number for place, number in sorted(tally.by_gap.items())},
        "by_source": [
            {"source": list(source), "rows": tally.rows_by_source[source], "duplicates": tally.by_source[source]}
            for source, _ in tally.rows_by_source.most_common()
        ],
    }


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (int, str)):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)
