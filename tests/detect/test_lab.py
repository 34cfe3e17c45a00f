"""Every gap of the lab is named, the counts are exact, and the healthy tables are not named."""

from __future__ import annotations

import pytest

from samekey.detect.audit import Audit, audit
from tests.detect import lab


def found(report: Audit) -> lab.Counts:
    counts: lab.Counts = {}
    for one in report.results:
        seen = None if one.evidence is None else (one.evidence.groups, one.evidence.rows)
        counts.setdefault((one.finding.rule, one.finding.object), []).append(seen)
    return counts


@pytest.mark.parametrize(
    ("database", "expected"),
    [
        ("postgres_lab", lab.EXPECTED_POSTGRES),
        pytest.param("older_postgres_lab", lab.EXPECTED_POSTGRES, marks=pytest.mark.slow),
        ("mysql_lab", lab.EXPECTED_MYSQL),
        ("sqlite_lab", lab.EXPECTED_SQLITE),
    ],
)
def test_every_gap_is_named_and_its_rows_are_counted_exactly(database, expected, request):
    report = audit(request.getfixturevalue(database), confirm=True)
    seen = {key: counts for key, counts in found(report).items() if not key[1].startswith("innodb_flush")}

    assert seen == expected
    assert report.incomplete == ()
