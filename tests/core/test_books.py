"""Counts and findings as values: what they hold, what is refused, and how a long reading is cut."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from samekey.core.books import (
    COUNTS_MAX,
    EVIDENCE_MAX_CHARS,
    MINUTE_MAX,
    NUMBER_MAX,
    PROPOSAL_MAX_CHARS,
    SOURCE_MAX_CHARS,
    TITLE_MAX_CHARS,
    Count,
    counts_of,
    finding_id,
    finding_of,
    kept_minutes,
    make_finding,
    merged,
    minutes_between,
)
from samekey.core.errors import Misconfigured, RecordUnreadable

COUNT = Count(28_000_000, "charge", "web", "new", 1)
FINDING = make_finding("late", at=1.5e9, severity="high", title="paid twice?", operation="charge", digest="ab12")

NO_COUNTS = {
    "minute": (-1, MINUTE_MAX + 1, 1.5, True, None),
    "operation": ("", "x" * 256, "ü" * 128, None, "\ud800", "a\0b"),
    "source": (None, "x" * 257, b"web", "a\0"),
    "outcome": ("", "x" * 33, None),
    "number": (0, -1, NUMBER_MAX + 1, 1.0, True),
}
NO_FINDINGS = {
    "id": ("", "a b", "x" * 65, "é", None),
    "at": (None, float("nan"), float("inf"), "now", True),
    "kind": ("", "x" * 65, None),
    "severity": ("", "bad", None),
    "operation": ("x" * 256, None),
    "tenant": ("", "x" * 256, 7),
    "digest": ("x" * 65, None),
    "title": ("", "x" * (TITLE_MAX_CHARS + 1), "\ud800", "\0"),
    "evidence": ("", "{", "x", "1" * (EVIDENCE_MAX_CHARS + 1), "[" * 5000, None),
    "proposal": (None, "x" * (PROPOSAL_MAX_CHARS + 1)),
    "source": (None, "x" * (SOURCE_MAX_CHARS + 1)),
    "accepted_by": ("ann",),  # without a reason and an end
    "accepted_until": (2e9,),
}


@pytest.mark.parametrize(("whole", "refused"), [(COUNT, NO_COUNTS), (FINDING, NO_FINDINGS)], ids=["count", "finding"])
def test_what_no_store_could_keep_is_refused(whole, refused):
    taken = []
    for name, values in refused.items():
        for value in values:
            try:
                replace(whole, **{name: value})
            except Misconfigured:
                continue
            taken.append((name, value))

    assert taken == []


def test_the_id_of_a_finding_is_frozen():
    """A deploy that changed it would report every finding once more."""
    assert finding_id("late", "charge", None, "ab12") == "e80b94e1ddab73a548412a494a703af4"
    assert len({finding_id("a", "b"), finding_id("ab"), finding_id("a", "b", None), finding_id("a", "", "b")}) == 4


def test_a_finding_of_foreign_texts_fits():
    """Long texts are cut, what no store can keep is escaped, and evidence stays JSON."""
    finding = make_finding(
        "late",
        at=0.0,
        severity="low",
        title="x\0\ud800" * 999,
        evidence=['"' * 99_999],
        proposal="y" * 9999,
        source="z" * 999,
    )

    assert finding.title.startswith("x\\0\\ud800x")
    assert (len(finding.title), len(finding.proposal), len(finding.source)) == (200, 4096, 255)
    assert json.loads(finding.evidence)["cut"].startswith('["')
    assert make_finding("late", at=0.0, severity="low", title="x", evidence={"a": "é"}).evidence == '{"a": "\\u00e9"}'
    with pytest.raises(Misconfigured, match="JSON"):
        make_finding("late", at=0.0, severity="low", title="x", evidence=object())


def test_damaged_rows_are_named():
    with pytest.raises(RecordUnreadable, match="a row of the counts"):
        counts_of([(1, "charge", "", "new", -1)])
    with pytest.raises(RecordUnreadable, match="a finding is damaged"):
        finding_of(["only", "some"])


def test_counts_of_one_series_are_merged_in_order():
    later, other = replace(COUNT, minute=COUNT.minute + 1), replace(COUNT, source="app")

    assert merged([later, COUNT, other, COUNT]) == [other, replace(COUNT, number=2), later]


def test_a_long_reading_ends_with_a_whole_minute():
    """The next reading begins at the minute after it, and nothing is missed."""
    minute = COUNT.minute
    rows = [(minute + at // 7, "charge", f"{at % 7}", "new", 1) for at in range(COUNTS_MAX + 1)]
    counts = counts_of(rows)

    assert len(counts) == COUNTS_MAX - COUNTS_MAX % 7
    assert counts[-1].minute == minute + COUNTS_MAX // 7 - 1
    one_minute = [(minute, "charge", f"{at}", "new", 1) for at in range(COUNTS_MAX + 1)]
    assert len(counts_of(one_minute)) == COUNTS_MAX
    assert len(counts_of(rows[:COUNTS_MAX])) == COUNTS_MAX


def test_minutes():
    assert minutes_between(120.0, 180.0) == (2, 2)
    assert minutes_between(119.9, 180.1) == (1, 3)
    assert minutes_between(float("-inf"), float("inf")) == (0, MINUTE_MAX - 1)
    with pytest.raises(Misconfigured):
        minutes_between(float("nan"), 1.0)
    assert kept_minutes(14 * 86_400.0) == (0, 15 * 1440)
