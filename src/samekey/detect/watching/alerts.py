"""An alert as JSON: the pair of rows, the source, and the finding of the audit that would have prevented it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from samekey.detect.catalog import Catalog, Engine, Table
from samekey.detect.detector import Alert
from samekey.detect.dialect import quoted
from samekey.detect.findings import Finding
from samekey.detect.rule_file import Bound
from samekey.detect.rules import examine
from samekey.detect.watching.plans import EPOCH

SCHEMA = "samekey.duplicate/1"
FINDING = "SK150"  # a duplicate row was stored
# Gaps that let a row in a second time, those that fit a rule best first.
_GAPS = ("SK105", "SK109", "SK110", "SK111", "SK112", "SK102", "SK103", "SK104", "SK106", "SK107", "SK101", "SK108")


@dataclass(frozen=True, slots=True)
class Prevention:
    """What would have refused the second row."""

    finding: str
    object: str
    why: str
    fix: tuple[str, ...]


def prevention(catalog: Catalog, table: Table, bound: Bound) -> Prevention:
    """The gap of this table that concerns the rule's key most; without one, the index that is missing."""
    best: tuple[int, int, Finding] | None = None
    for found in examine(catalog):
        if found.table != table.full_name or found.rule not in _GAPS:
            continue
        named = f"{found.object} {found.why} {' '.join(found.fix)}"
        rank = (-sum(name in named for name in bound.key), _GAPS.index(found.rule))
        if best is None or rank < best[:2]:
            best = (*rank, found)
    if best is not None and best[0] < 0:
        found = best[2]
        return Prevention(found.rule, found.object, found.why, found.fix)
    columns = ", ".join(quoted(name, catalog.engine) for name in bound.key)
    online = " CONCURRENTLY" if catalog.engine is Engine.POSTGRES else ""
    name = f"{quoted(table.schema, catalog.engine)}." if table.schema else ""
    fix = f"CREATE UNIQUE INDEX{online} ON {name}{quoted(table.name, catalog.engine)} ({columns});"
    return Prevention(
        "SK107", table.full_name, f"no unique key over ({', '.join(bound.key)}) refuses a second row", (fix,)
    )


def document(alert: Alert, bound: Bound, table: str, prevented: Prevention | None) -> dict[str, Any]:
    rule, event = bound.rule, alert.event
    return {
        "schema": SCHEMA,
        "id": alert.id,
        "finding": FINDING,
        "rule": rule.name,
        "severity": rule.severity.label,
        "table": table,
        "key": alert.key,
        "first": {"row": alert.first_row, "at": shown_time(alert.first_at)},
        "second": {"row": alert.row, "at": shown_time(alert.at)},
        "gap_seconds": (alert.at - alert.first_at) / 1e6,
        "late": event.row.decode("utf-8", "replace") != alert.row,
        "source": dict(zip(rule.source, event.source, strict=True)),
        "request_id": event.request_id,
        "transaction": event.position,
        "prevented_by": prevented
        and {"finding": prevented.finding, "object": prevented.object, "why": prevented.why, "fix": prevented.fix},
    }


def line_of(found: dict[str, Any]) -> bytes:
    return json.dumps(found, ensure_ascii=True).encode() + b"\n"


def shown_time(at: int) -> str:
    """Microseconds since 1970 as ISO 8601; a time that Python's calendar does not have, as its number."""
    try:
        return (EPOCH + timedelta(microseconds=at)).isoformat()
    except OverflowError:
        return str(at)
