"""What the store of a guard adds to a finding about rows: the stories of the two requests, and a kept finding.

Only with --store or SAMEKEY_STORE; without it nothing is looked up, and nothing is written anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from samekey.cli import _out as out
from samekey.cli._asking import opened
from samekey.core.books import make_finding
from samekey.core.key import KEY_MAX_BYTES
from samekey.core.ports import Query
from samekey.core.record import Record
from samekey.core.search import REQUEST_ID, term
from samekey.detect.audit import Audit
from samekey.detect.baseline import Baseline
from samekey.detect.findings import Severity
from samekey.detect.pairs import Pair
from samekey.detect.rule_file import Rule
from samekey.detect.rules import TITLES
from samekey.ops import Ops
from samekey.ops.story import explain

KEPT_MAX = 1000  # findings of one run: a person reads no more, and the output has every pair
RECORDS_MAX = 5  # records of one request id: one call may guard several operations


class Stories:
    """Without a store: nothing."""

    def __init__(self, ops: Ops | None = None) -> None:
        self._ops, self._kept = ops, 0
        self._told = lru_cache(maxsize=10_000)(self._look)

    def of(self, rule: Rule, pair: Pair, database: str = "") -> dict[str, Any]:
        """The stories of a pair, as fields of its object; the pair is kept as a finding."""
        if self._ops is None:
            return {}
        found: dict[str, Any] = {}
        if rule.request_id:
            found = {"stories": {"row": self.story(pair.request), "earlier": self.story(pair.earlier_request)}}
        self._keep(rule, pair, found)
        return found

    def story(self, request: Any) -> list[dict[str, Any]]:
        """The records of a request: found by its id, else by its key."""
        return [] if request is None else list(self._told(str(request)))

    def _look(self, request: str) -> Sequence[dict[str, Any]]:
        assert self._ops is not None  # noqa: S101 - `story` is called with a store only
        records: list[Record] = []
        if request and len(request.encode("utf-8", "surrogatepass")) <= KEY_MAX_BYTES:
            records = self._ops.list_records(Query(term=term(REQUEST_ID, request), limit=RECORDS_MAX)).records
            records = records or self._ops.find(request).records[:RECORDS_MAX]
        return [
            {
                "operation": record.key.operation,
                "digest": record.key.digest.hex(),
                "state": record.state.value,
                "summary": explain(record).summary,
            }
            for record in records
        ]

    def _keep(self, rule: Rule, pair: Pair, found: dict[str, Any]) -> None:
        self._kept += 1
        if self._kept == KEPT_MAX + 1:
            out.note(f"the store keeps the first {KEPT_MAX} pairs as findings; --out has all of them")
        if self._kept > KEPT_MAX or self._ops is None:
            return
        rows = [" ".join(map(str, row)) for row in (pair.earlier, pair.row)]
        self._ops.findings.add(
            make_finding(
                "duplicate",
                at=time.time(),
                severity=rule.severity.label,
                title=f"{rule.table}: rows {rows[0]} and {rows[1]} are one by rule {rule.name}",
                about=(rule.name, rule.table, *rows),
                evidence={"rows": rows, "at": pair.at, "gap_seconds": pair.gap_seconds, **found},
                proposal="samekey db audit --confirm --fix-plan DIR writes the SQL that keeps one row and adds the key",
                source="db scan",
            )
        )

    def audit(self, report: Audit, accepted: Baseline) -> None:
        """Every confirmed finding and every grave one; what the baseline accepts is left out."""
        if self._ops is None:
            return
        for one in report.results[:KEPT_MAX]:
            if accepted.entry(one) is not None or not (one.confirmed or one.severity >= Severity.HIGH):
                continue
            found, seen = one.finding, one.evidence
            self._ops.findings.add(
                make_finding(
                    "schema",
                    at=time.time(),
                    severity=one.severity.label,
                    title=f"{found.rule} {found.object}: {TITLES[found.rule]}",
                    about=(found.rule, found.object, report.database, "confirmed" if one.confirmed else "latent"),
                    evidence={
                        "why": found.why,
                        "groups": seen.groups if seen else None,
                        "rows": seen.rows if seen else None,
                    },
                    proposal="\n".join(found.fix),
                    source="db audit",
                )
            )


@contextmanager
def stories_of(store: str | None) -> Iterator[Stories]:
    if not store:
        yield Stories()
        return
    with opened(store) as ops:
        yield Stories(ops)
