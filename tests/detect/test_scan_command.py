"""samekey db scan: exit codes, JSON lines, the output file, and what a store adds."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from samekey import Guard, Repeatable
from samekey.cli._root import root
from samekey.ops import Ops
from samekey.stores.sqlite import SqliteStore
from tests.detect.conftest import plant_sqlite
from tests.detect.test_command import RUNNER

RULES = """
[[rule]]
name = "payments-key"
table = "payments"
key = ["tenant_id", "request_id"]
request_id = "request_id"
source = ["region"]
time = "created_at"
window = "7d"
"""
TABLE = (
    "CREATE TABLE payments (id INTEGER PRIMARY KEY, tenant_id INT, request_id TEXT, region TEXT, created_at TEXT); "
    "INSERT INTO payments VALUES (1, 1, 'req-1', 'eu', '2026-01-01 10:00'), (2, 1, 'req-1', 'us', '2026-01-01 10:01'), "
    "(3, 2, 'req-1', 'eu', '2026-01-01 10:01')"
)


@pytest.fixture
def shop(tmp_path):
    (tmp_path / "rules.toml").write_text(RULES, encoding="utf-8")
    return plant_sqlite(tmp_path / "shop.db", TABLE)


def run(url: str, folder: Path, *words: str):
    return RUNNER().invoke(root, ["db", "scan", url, "--rule", str(folder / "rules.toml"), *words], prog_name="samekey")


def test_a_duplicate_gives_one_and_its_pair_in_the_output(shop, tmp_path):
    result = run(shop, tmp_path, "--json", "--out", str(tmp_path / "pairs.jsonl"))
    pair, rule, end = map(json.loads, result.stdout.splitlines())

    assert result.exit_code == 1, result.output
    assert (pair["type"], pair["row"], pair["earlier"], pair["gap_seconds"]) == ("pair", [2], [1], pytest.approx(60.0))
    assert (pair["source"], pair["earlier_source"]) == ({"region": "us"}, {"region": "eu"})
    assert (rule["rows"], rule["duplicates"], rule["by_gap"]) == (3, 1, {"1 min": 1})
    assert end["complete"] is True
    written = json.loads((tmp_path / "pairs.jsonl").read_text())
    assert written["row"] == [2]
    assert "req-1" not in result.output + json.dumps(written)
    assert '"req-1"' in run(shop, tmp_path, "--json", "--show-values").stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 1),
        (["--since", "1h"], 0),
        (["--engine", "duckdb"], 1),
        (["--only", "payments-key"], 1),
        (["--only", "other"], 2),
        (["--lateness", "5s"], 2),
        (["--since", "soon"], 2),
        (["--state", "STATE"], 2),
        (["--state", "STATE", "--lateness", "60s"], 1),
    ],
)
def test_the_exit_code(shop, tmp_path, words, code):
    result = run(shop, tmp_path, *(str(tmp_path / "state.json") if word == "STATE" else word for word in words))

    assert result.exit_code == code, result.output


def test_a_wrong_rule_file_is_a_usage_error(shop, tmp_path):
    (tmp_path / "rules.toml").write_text("[[rule]]\nname = 'x'\n", encoding="utf-8")

    assert run(shop, tmp_path).exit_code == 2


def test_the_second_scan_with_a_state_file_adds_nothing(shop, tmp_path):
    words = ["--state", str(tmp_path / "s.json"), "--lateness", "60s", "--out", str(tmp_path / "pairs.jsonl")]
    codes = [run(shop, tmp_path, *words).exit_code for _ in range(2)]

    assert codes == [1, 0]
    assert len((tmp_path / "pairs.jsonl").read_text().splitlines()) == 1
    (tmp_path / "pairs.jsonl").unlink()
    assert run(shop, tmp_path, *words).exit_code == 2  # the state file knows of an output that is gone


def test_a_store_adds_the_stories_of_both_requests_and_keeps_a_finding(shop, tmp_path):
    store = SqliteStore(tmp_path / "keys.db")
    with Guard(store) as guard:
        guard.run("pay", lambda: 1, key="req-1", payload=None, boundary=Repeatable())
    url = f"sqlite:///{tmp_path}/keys.db"
    result = run(shop, tmp_path, "--json", "--store", url)
    pair = json.loads(result.stdout.splitlines()[0])
    with_store = SqliteStore(tmp_path / "keys.db")
    (finding,) = Ops(with_store).findings.list()
    again = run(shop, tmp_path, "--store", url)

    assert [story["operation"] for story in pair["stories"]["row"]] == ["pay"]
    assert pair["stories"]["row"][0]["state"] == "completed"
    assert (finding.kind, finding.severity) == ("duplicate", "high")
    assert "rows 1 and 2" in finding.title
    assert again.exit_code == 1
    assert len(Ops(with_store).findings.list()) == 1
    with_store.close()


def test_without_a_store_nothing_is_written(shop, tmp_path):
    before = sorted(path.name for path in tmp_path.iterdir())
    run(shop, tmp_path, "--json")

    assert sorted(path.name for path in tmp_path.iterdir()) == before
