"""`--baseline`: a finding is accepted with a reason, and until a day."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta

import pytest

from samekey.core.errors import Misconfigured
from samekey.detect.baseline import load
from tests.detect.conftest import plant_sqlite
from tests.detect.test_command import run

TODAY = date(2026, 5, 1)


def entry(**changes) -> str:
    fields = {"rule": '"SK101"', "object": '"lines"', "reason": '"an import log"', "until": "2026-06-01"} | changes
    return "[[accept]]\n" + "\n".join(f"{name} = {value}" for name, value in fields.items() if value)


@pytest.fixture
def shop(tmp_path):
    return plant_sqlite(tmp_path / "shop.db", "CREATE TABLE lines (a INT); INSERT INTO lines VALUES (1), (1)")


@pytest.mark.parametrize(
    ("days", "code", "remark"), [(1, 0, ""), (0, 0, ""), (-3, 1, "counts again"), (366, 0, ""), (400, 2, "days ahead")]
)
def test_an_accepted_finding_does_not_fail_until_its_day_is_over(days, code, remark, shop, tmp_path):
    until = datetime.now(UTC).date() + timedelta(days=days)
    (tmp_path / "b.toml").write_text(entry(until=until.isoformat()))
    result = run(shop, "--confirm", "--json", "--baseline", str(tmp_path / "b.toml"))

    assert result.exit_code == code, result.stderr
    assert remark in result.stderr
    if code != 2:
        (found,) = json.loads(result.stdout)["findings"]
        assert bool(found["accepted"]) is (code == 0)


def test_an_entry_without_a_finding_is_reported(shop, tmp_path):
    (tmp_path / "b.toml").write_text(entry(object='"another"', until=date.today().isoformat()))
    result = run(shop, "--confirm", "--baseline", str(tmp_path / "b.toml"))

    assert result.exit_code == 1
    assert "SK101 another was not found" in result.stderr


@pytest.mark.parametrize(
    "text",
    [
        entry(reason=""),
        entry(reason='" "'),
        entry(until=""),
        entry(until='"2026-06-01"'),
        entry(until="2026-06-01T10:00:00"),
        entry(until="2028-06-01"),
        entry(rule='"SK999"'),
        entry(object="1"),
        entry(who='"me"'),
        "accept = 1",
        "other = 1",
        "[[accept",
    ],
)
def test_a_wrong_file_is_refused(text, tmp_path):
    (tmp_path / "b.toml").write_text(text)

    with pytest.raises(Misconfigured):
        load(tmp_path / "b.toml", TODAY)
