"""Findings: what a person should look at, kept once, listed newest first, and accepted with a reason and an end.

Programs add findings: the guard, and the commands that compare, audit, scan and watch. People list and accept them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from samekey.core.books import SEVERITIES, Finding, FindingQuery, check_id
from samekey.core.errors import CallerError, Misconfigured
from samekey.core.ports import AsyncStore, Store
from samekey.ops._texts import written

ACCEPTED_MAX_SECONDS = 366 * 24 * 3600.0  # within a year a person looks at it again


class NoSuchFinding(CallerError):
    """There is no finding with this id."""


class Findings:
    """The findings of one store.

    >>> from samekey.core.books import make_finding
    >>> from samekey.stores.memory import MemoryStore
    >>> findings = Findings(MemoryStore())
    >>> late = make_finding("late", at=1.7e9, severity="high", title="paid twice?", operation="charge", digest="ab12")
    >>> findings.add(late), findings.add(late)
    (True, False)
    >>> [finding.title for finding in findings.list(operation="charge")]
    ['paid twice?']
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def add(self, finding: Finding) -> bool:
        """Keep it unless there is one with its id; whether it was new."""
        return self.store.keep_finding(finding)

    def list(
        self,
        *,
        kind: str | None = None,
        severity: str | None = None,
        operation: str | None = None,
        accepted: bool | None = None,
        limit: int = 100,
        before: tuple[float, str] | None = None,
    ) -> Sequence[Finding]:
        """One page, newest first; `before` is the `place` of the last finding of the page before."""
        return self.store.findings(_query(kind, severity, operation, accepted, limit, before))

    def accept(self, id: str, *, who: str, why: str, until: datetime | float) -> Finding:
        """Accept a finding until a day: until then lists of open findings leave it out. Written to the audit log."""
        found = self.store.accept_finding(_id(id), **_acceptance(who, why, until))
        return _there(id, found)


class AsyncFindings:
    """The same, awaited."""

    def __init__(self, store: AsyncStore) -> None:
        self.store = store

    async def add(self, finding: Finding) -> bool:
        return await self.store.keep_finding(finding)

    async def list(
        self,
        *,
        kind: str | None = None,
        severity: str | None = None,
        operation: str | None = None,
        accepted: bool | None = None,
        limit: int = 100,
        before: tuple[float, str] | None = None,
    ) -> Sequence[Finding]:
        return await self.store.findings(_query(kind, severity, operation, accepted, limit, before))

    async def accept(self, id: str, *, who: str, why: str, until: datetime | float) -> Finding:
        found = await self.store.accept_finding(_id(id), **_acceptance(who, why, until))
        return _there(id, found)


def _query(
    kind: str | None,
    severity: str | None,
    operation: str | None,
    accepted: bool | None,
    limit: int,
    before: tuple[float, str] | None,
) -> FindingQuery:
    if severity is not None and severity not in SEVERITIES:
        raise Misconfigured(f"there is no severity {severity!r}; there are {', '.join(SEVERITIES)}")
    if limit < 1:
        raise Misconfigured(f"a page has at least one finding, not {limit}")
    return FindingQuery(kind, severity, operation, accepted, limit, before)


def _id(given: str) -> str:
    check_id(given)
    return given


def _acceptance(who: str, why: str, until: datetime | float) -> dict[str, Any]:
    return {"by": written("name (who)", who), "why": written("reason (why)", why), "until": _end(until)}


def _end(until: Any) -> float:
    if isinstance(until, datetime):
        if until.tzinfo is None:
            raise Misconfigured("the end of an acceptance (until) has no time zone: give it one, or seconds since 1970")
        until = until.timestamp()
    if isinstance(until, bool) or not isinstance(until, (int, float)) or not math.isfinite(until):
        raise Misconfigured(f"an acceptance needs an end (until): a datetime, or seconds since 1970; not {until!r}")
    left = until - time.time()
    if left <= 0:
        raise Misconfigured("the end of the acceptance (until) is in the past: the finding would stay open")
    if left > ACCEPTED_MAX_SECONDS:
        raise Misconfigured(
            f"an acceptance ends within {ACCEPTED_MAX_SECONDS / 86400:.0f} days, so that a person looks at it again"
        )
    return float(until)


def _there(id: str, found: Finding | None) -> Finding:
    if found is None:
        raise NoSuchFinding(f"there is no finding {id}", id=id)
    return found
