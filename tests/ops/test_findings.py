"""Findings: kept once, listed, and accepted by a person with a reason and an end."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from samekey.core.books import Finding, make_finding
from samekey.core.errors import CallerError
from samekey.ops import AsyncFindings, Findings, NoSuchFinding
from samekey.stores.memory import AsyncMemoryStore, MemoryStore

DAY = 24 * 3600.0


def finding(text: str = "one", **changes: object) -> Finding:
    given: dict[str, object] = {"at": 1e9, "severity": "high", "title": text, "operation": "charge", "digest": "ab12"}
    return make_finding("late", about=[text], **{**given, **changes})  # type: ignore[arg-type]


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def findings(store):
    return Findings(store)


def test_a_finding_is_kept_once_and_listed_newest_first(findings):
    older, newer = finding("older"), finding("newer", at=1e9 + 1, severity="low")

    assert [findings.add(one) for one in (older, newer, older)] == [True, True, False]
    assert list(findings.list()) == [newer, older]
    assert list(findings.list(severity="low")) == [newer]
    assert list(findings.list(limit=1, before=newer.place)) == [older]
    assert list(findings.list(operation="refund")) == []


def test_an_accepted_finding_is_left_out_of_the_open_ones(findings, store):
    findings.add(finding("one"))
    findings.add(finding("two"))
    until = datetime.now(UTC) + timedelta(days=30)
    accepted = findings.accept(finding("one").id, who=" ann ", why="a test order", until=until)

    assert (accepted.accepted_by, accepted.accepted_why) == ("ann", "a test order")
    assert accepted.accepted_until == until.timestamp()
    assert list(findings.list(accepted=True)) == [accepted]
    assert list(findings.list(accepted=False)) == [finding("two")]
    assert [(one.action, one.who, one.text) for one in store.audit(10)] == [("accept", "ann", accepted.id)]


BAD = {
    "no name": {"who": " "},
    "no reason": {"why": ""},
    "a reason that cannot be printed": {"why": "see\x1b[2J"},
    "a long reason": {"why": "x" * 501},
    "no end": {"until": None},
    "an end that is no time": {"until": "tomorrow"},
    "an end without a time zone": {"until": datetime(2090, 1, 1)},
    "no end at all": {"until": float("inf")},
    "an end in the past": {"until": 1e9},
    "an end in ten years": {"until": time.time() + 3650 * DAY},
    "no id": {"id": ""},
    "an odd id": {"id": "a finding"},
}


@pytest.mark.parametrize("wrong", BAD.values(), ids=list(BAD))
def test_an_acceptance_needs_a_name_a_reason_and_an_end(findings, store, wrong):
    """A caller's mistake is a CallerError, and changes nothing."""
    findings.add(finding())
    given = {"id": finding().id, "who": "ann", "why": "known", "until": time.time() + DAY, **wrong}
    with pytest.raises(CallerError):
        findings.accept(given.pop("id"), **given)

    assert list(findings.list()) == [finding()]
    assert store.audit(10) == []


def test_a_finding_that_is_not_there_cannot_be_accepted(findings):
    with pytest.raises(NoSuchFinding, match="no finding 0000"):
        findings.accept("0000", who="ann", why="known", until=time.time() + DAY)


@pytest.mark.parametrize("wrong", [{"severity": "bad"}, {"limit": 0}])
def test_a_list_that_cannot_be_is_refused(findings, wrong):
    with pytest.raises(CallerError):
        findings.list(**wrong)


async def test_the_async_twin_does_the_same():
    findings = AsyncFindings(AsyncMemoryStore())

    assert [await findings.add(finding()) for _ in range(2)] == [True, False]
    accepted = await findings.accept(finding().id, who="ann", why="known", until=time.time() + DAY)
    assert list(await findings.list(accepted=True)) == [accepted]
    with pytest.raises(CallerError):
        await findings.list(severity="bad")
    with pytest.raises(NoSuchFinding):
        await findings.accept("0000", who="ann", why="known", until=time.time() + DAY)
