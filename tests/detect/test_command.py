"""`samekey db audit`: exit codes, outputs, and no value in any of them."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from samekey.cli._root import root
from tests.detect.conftest import plant_sqlite

RUNNER: Any = CliRunner
if "mix_stderr" in signature(CliRunner).parameters:  # click 8.1
    RUNNER = partial(RUNNER, mix_stderr=False)
CLEAN = "CREATE TABLE orders (id INTEGER PRIMARY KEY, order_ref INTEGER NOT NULL UNIQUE)"
LATENT = "CREATE TABLE lines (a INT)"


def run(*words):
    result = RUNNER().invoke(root, ["db", "audit", *words], prog_name="samekey")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize(
    ("schema", "words", "code"),
    [
        (CLEAN, ["--confirm", "--fail-on", "low"], 0),
        (LATENT, ["--confirm"], 0),
        (LATENT, ["--fail-on", "high"], 1),
        (LATENT, ["--fail-on", "confirmed"], 0),
        (f"{LATENT}; INSERT INTO lines VALUES (1), (1)", [], 0),
        (f"{LATENT}; INSERT INTO lines VALUES (1), (1)", ["--confirm"], 1),
        (f"{LATENT}; INSERT INTO lines VALUES (1), (1)", ["--confirm", "--fail-on", "confirmed"], 1),
        (f"{LATENT}; INSERT INTO lines VALUES (1), (1)", ["--confirm", "--fail-on", "never"], 0),
        (f"{LATENT}; INSERT INTO lines VALUES (1), (1)", ["--confirm", "--budget", "0.000001"], 4),
        (f"{LATENT}; {CLEAN}", ["--tables", "ord*", "--fail-on", "low"], 0),
        (f"{LATENT}; {CLEAN}", ["--tables", "none*"], 2),
        (CLEAN, ["--json", "--sarif"], 2),
        (CLEAN, ["--show-values"], 2),
        (CLEAN, ["--budget", "soon"], 2),
        (CLEAN, ["--budget", "0"], 2),
        ("VACUUM", [], 4),
    ],
)
def test_the_exit_code(schema, words, code, tmp_path):
    result = run(plant_sqlite(tmp_path / "shop.db", schema), *words)

    assert result.exit_code == code, result.stdout + result.stderr


@pytest.mark.parametrize(("dsn", "code"), [("shop.db", 2), ("sqlite:///nowhere.db", 3)])
def test_a_database_that_cannot_be_read(dsn, code):
    result = run(dsn)

    assert result.exit_code == code
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1


def test_confirmed_findings_come_before_latent_ones(sqlite_lab):
    found = json.loads(run(sqlite_lab, "--confirm", "--json").stdout)["findings"]
    confirmed = [one["confirmed"] for one in found]

    assert confirmed == sorted(confirmed, reverse=True)
    assert {True, False} == {*confirmed}


def test_the_json_is_versioned_and_whole(sqlite_lab):
    report = json.loads(run(sqlite_lab, "--confirm", "--json").stdout)
    (bare,) = [one for one in report["findings"] if one["object"] == "bare"]

    assert report["schema"] == "samekey.audit/1"
    assert report["complete"] is True
    assert bare["rule"] == "SK101"
    assert bare["severity"] == "high"
    assert bare["evidence"]["how"] == "exact"
    assert [bare["evidence"]["groups"], bare["evidence"]["rows"]] == [2, 3]
    assert "GROUP BY" in bare["confirm_sql"]
    assert all(one["why"] for one in report["findings"])


def test_no_value_of_a_row_is_printed_unless_it_is_asked_for(sqlite_lab):
    outputs = [run(sqlite_lab, "--confirm", *words).stdout for words in ([], ["--json"], ["--sarif"])]
    shown = run(sqlite_lab, "--confirm", "--json", "--show-values").stdout

    assert not [text for text in outputs if "order 1" in text.lower()]
    assert "order 1" in shown


def test_sarif_has_a_rule_and_a_place_for_each_result(sqlite_lab):
    (sarif,) = json.loads(run(sqlite_lab, "--confirm", "--sarif").stdout)["runs"]
    rules = {rule["id"] for rule in sarif["tool"]["driver"]["rules"]}

    assert {one["ruleId"] for one in sarif["results"]} == rules
    assert all(one["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] for one in sarif["results"])
    assert {one["level"] for one in sarif["results"]} == {"error", "warning", "note"}


def test_a_row_of_the_table_fits_into_80_columns(sqlite_lab, monkeypatch):
    monkeypatch.setattr("samekey.cli._out.is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    table = run(sqlite_lab, "--confirm").stdout.split("\n\n")[0].splitlines()

    assert len(table) > 15
    assert all(len(line) <= 80 for line in table)
    assert all(line.startswith(("rule", "SK")) for line in table)  # no row is folded


def test_without_a_driver_sqlite_works_and_the_others_name_the_pip_line(tmp_path):
    """`samekey[cli]` alone."""
    start = "import sys; sys.modules |= {'psycopg': None, 'pymysql': None}; from samekey.cli import main; main()"
    url = plant_sqlite(tmp_path / "shop.db", CLEAN)
    ended = {
        dsn: subprocess.run(
            [sys.executable, "-c", start, "db", "audit", dsn],
            capture_output=True,
            text=True,
            check=False,
            cwd=Path(__file__).parents[2] / "src",
        )
        for dsn in (url, "postgresql://db/shop", "mysql://db/shop")
    }

    assert [one.returncode for one in ended.values()] == [0, 2, 2]
    assert "pip install 'samekey[cli,postgres]'" in ended["postgresql://db/shop"].stderr
    assert "pip install 'samekey[cli,mysql]'" in ended["mysql://db/shop"].stderr
