"""Counts and findings in MySQL: claims never hold them up, old minutes go in steps, lost replies are not repeated."""

from __future__ import annotations

import math
import time

import pytest

from samekey.core.books import Count, FindingQuery, make_finding
from samekey.core.errors import StoreUnavailable
from tests.servers.mysql.helpers import connected, opened, sql

pytestmark = pytest.mark.slow


def count(source: str = "") -> Count:
    return Count(int(time.time() // 60), "charge", source, "new", 1)


def test_counts_and_findings_do_not_wait_for_claims(store, url, scene):
    """A row of the records that another transaction holds stops neither."""
    held = store.carry_out(scene.opening())
    with connected(url) as rival, rival.cursor() as cursor:
        cursor.execute("SELECT 1 FROM samekey_records FOR UPDATE")
        store.add_counts([count(), count()])
        finding = make_finding("late", at=1.0, severity="low", title="x", digest=held.key.digest.hex())
        assert store.keep_finding(finding)
        assert store.accept_finding(finding.id, by="ann", why="known", until=2e9) is not None

    assert [one.number for one in store.counts(0, math.inf)] == [2]


def test_each_addition_forgets_some_minutes_that_are_too_old(store, url):
    """A thousand at a time; a reader sees none of them before that."""
    old = int(time.time() // 60) - 15 * 1440
    rows = ", ".join(f"({old}, 'charge', '{number}', 'new', 1)" for number in range(1500))
    sql(url, f"INSERT INTO samekey_counts VALUES {rows}")
    assert store.counts(0, math.inf) == []
    left = []
    for _ in range(2):
        store.add_counts([count()])
        left.append(sql(url, "SELECT COUNT(*) FROM samekey_counts"))

    assert left == [501, 1]


def test_a_finding_whose_reply_was_lost_counts_as_new(wire, url):
    """It is sent again and found: an alarm twice is better than none."""
    with opened(wire.url) as store:
        store.add_counts([count()])
        wire.cut()
        assert store.keep_finding(make_finding("late", at=1.0, severity="low", title="x"))
        assert not store.keep_finding(make_finding("late", at=1.0, severity="low", title="x"))


def test_an_acceptance_whose_reply_was_lost_is_audited_once(wire, url):
    """Wherever the wire is cut: the caller gets an error, and the audit log shows what was written."""
    finding = make_finding("late", at=1.0, severity="low", title="x")
    with opened(wire.url) as store, opened(url) as other:
        other.keep_finding(finding)
        lost = 0
        for number in range(1, 20):
            store.add_counts([count()])  # connected
            wire.cut(number)
            try:
                store.accept_finding(finding.id, by="ann", why=f"{number}", until=2e9)
            except StoreUnavailable:
                lost += 1
            if wire.mend():
                break
        reasons = [one.why for one in other.audit(20)]
        (kept,) = other.findings(FindingQuery())

    assert lost == 5
    assert len(reasons) == len({*reasons}) == 2  # the one whose COMMIT was answered too late, and the last one
    assert kept.accepted_why == reasons[0] == "6"


def test_counts_whose_reply_was_lost_are_not_added_twice(wire, url):
    """The caller gets an error, and may add them again or not."""
    with opened(wire.url) as store:
        store.add_counts([count()])
        wire.cut()  # the answer to the INSERT
        with pytest.raises(StoreUnavailable):
            store.add_counts([count()])

        assert [one.number for one in store.counts(0, math.inf)] == [2]
