"""The alarm rules fire when they should and not otherwise; the dashboard asks for metrics that exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from samekey.hooks.metrics import METRICS, OUTCOMES
from tests.hooks.promtool import ROOT, failures, firing, promtool

FOLDER = ROOT / "src/samekey/hooks/alarms"
RULES = FOLDER / "rules.yml"
ALERTS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text())
SCHEMA: dict[str, Any] = json.loads(Path(__file__).with_name("grafana_dashboard.schema.json").read_text())

SERIES = {name: metric for metric in METRICS for name in metric.series}
URL = "https://samekey.readthedocs.io/"


# -- when they fire ------------------------------------------------------------------------------------------------


def attempts(*, absent: str = "", **outcomes: str) -> list[dict[str, str]]:
    """The series of one operation, by outcome; every other outcome is there at 0, as the hooks publish it."""
    return [
        {
            "series": f'samekey_attempts_total{{operation="pay", source="", outcome="{outcome}"}}',
            "values": f"{absent} {outcomes.get(outcome, '0x500')}".strip(),
        }
        for outcome in OUTCOMES
    ]


def of_pay(metric: str, values: str) -> list[dict[str, str]]:
    return [{"series": f'{metric}{{operation="pay"}}', "values": values}]


REPLAYS = ("SamekeyReplayRateHigh", "warning", "pay")
NONE_REPLAYED = ("SamekeyReplayRateZero", "warning", "pay")
OLD, VERY_OLD = ("SamekeyDoubtOld", "warning", "pay"), ("SamekeyDoubtOld", "critical", "pay")
FENCED = ("SamekeyFenceRefusals", "warning", "pay")
DOWN = ("SamekeyStoreDown", "critical", "pay")
LOST = ("SamekeyStoreLostMemory", "critical", None)
CONFLICTS = ("SamekeyKeyConflicts", "warning", "pay")

# name -> (interval of the points, series, expectations)
CASES: dict[str, tuple[str, list[dict[str, str]], list[dict[str, Any]]]] = {
    "10 % replays": ("5m", attempts(new="0+9x30", replayed="0+1x30"), [firing("0m"), firing("2h", REPLAYS)]),
    "10 % waited": ("5m", attempts(new="0+9x30", waited="0+1x30"), [firing("2h", REPLAYS)]),
    "4 % replays": ("5m", attempts(new="0+24x30", replayed="0+1x30"), [firing("2h")]),
    "half of 12 calls in an hour": ("5m", attempts(new="0+0.5x30", replayed="0+0.5x30"), [firing("2h")]),
    "replays that ended": (
        "5m",
        attempts(new="0+9x60", replayed="0+1x20 20x40"),
        [firing("1h30m", REPLAYS), firing("4h")],
    ),
    "no replay in 14 days": ("1h", attempts(new="0+5x400"), [firing("380h", NONE_REPLAYED)]),
    "one replay in 14 days": ("1h", attempts(new="0+5x400", replayed="0x200 1x200"), [firing("380h")]),
    "no replay, few calls": ("1h", attempts(new="0+1x400"), [firing("380h")]),
    "no replay, a new operation": ("1h", attempts(absent="_x280", new="0+20x120"), [firing("380h")]),
    "a doubt": (
        "5m",
        of_pay("samekey_oldest_doubt_seconds", "0+300x60"),
        [firing("15m"), firing("25m", OLD), firing("4h10m", OLD, VERY_OLD)],
    ),
    "a doubt that is cleared up": (
        "5m",
        of_pay("samekey_oldest_doubt_seconds", "0 300 600 900 0 0 0 0 0 0"),
        [firing("20m"), firing("40m")],
    ),
    "a refused write": (
        "1m",
        of_pay("samekey_fence_refusals_total", "0x5 1x40"),
        [firing("4m"), firing("8m", FENCED), firing("30m")],
    ),
    "the store is down": (
        "1m",
        attempts(new="0+10x5 50x20", store_down="0x5 1+10x20"),
        [firing("4m"), firing("9m", DOWN)],
    ),
    "effects run unguarded": ("1m", attempts(new="0+10x5 50x20", unguarded="0x5 1+10x20"), [firing("9m", DOWN)]),
    "one call of a thousand met a restart": ("1m", attempts(new="0+200x20", store_down="0x5 1x20"), [firing("8m")]),
    "the store lost its memory": (
        "1m",
        [{"series": "samekey_store_lost_memory_total", "values": "0x5 1x90"}],
        [firing("4m"), firing("10m", LOST), firing("80m")],
    ),
    "six keys came again": (
        "1m",
        of_pay("samekey_key_conflicts_total", "0x3 0+1x6 6x30"),
        [firing("12m", CONFLICTS), firing("35m")],
    ),
    "two keys came again": ("1m", of_pay("samekey_key_conflicts_total", "0x3 0+1x2 2x30"), [firing("12m")]),
}


def test_every_alarm_fires_when_it_should_and_not_otherwise(tmp_path):
    tests = [
        {"name": name, "interval": interval, "input_series": series, "promql_expr_test": expected}
        for name, (interval, series, expected) in CASES.items()
    ]

    assert failures(tmp_path, RULES, tests) == ""


def test_every_alarm_has_a_case_in_which_it_fires():
    fired = {
        (re.findall('alertname="(\\w+)"', sample["labels"])[0], re.findall('severity="(\\w+)"', sample["labels"])[0])
        for _, _, expected in CASES.values()
        for one in expected
        for sample in one["exp_samples"]
    }

    assert fired == {(alert["alert"], alert["labels"]["severity"]) for alert in ALERTS}


def test_an_alarm_that_does_not_fire_is_noticed(tmp_path):
    """The test above can fail: with another threshold promtool reports the case."""
    weak = tmp_path / "rules.yml"
    weak.write_text(RULES.read_text().replace("> 0.05", "> 0.5"))
    interval, series, expected = CASES["10 % replays"]

    assert "SamekeyReplayRateHigh" in failures(
        tmp_path, weak, [{"interval": interval, "input_series": series, "promql_expr_test": expected}]
    )


# -- what they say -------------------------------------------------------------------------------------------------


def test_promtool_accepts_the_rules_as_they_are_printed(tmp_path):
    printed = subprocess.run(
        [sys.executable, "-m", "samekey.hooks.alarms", "rules"], capture_output=True, text=True, check=True
    ).stdout
    (tmp_path / "rules.yml").write_text(printed)
    ended = promtool("check", "rules", tmp_path / "rules.yml")

    assert printed == RULES.read_text()
    assert (ended.returncode, f"SUCCESS: {len(ALERTS)} rules found" in ended.stdout) == (0, True), ended.stderr


def test_every_alarm_has_a_severity_a_summary_a_description_and_a_page():
    for alert in ALERTS:
        page = alert["annotations"]["runbook_url"].removeprefix(URL).rstrip("/")
        text = (ROOT / f"docs/{page}.md").read_text()

        assert alert["labels"]["severity"] in ("warning", "critical")
        assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
        assert len(alert["annotations"]["summary"]) < 80
        assert alert["alert"] in text
        for heading in ("What it means", "What to look at", "What to do", "When it is over"):
            assert f"## {heading}" in text, page


def test_every_runbook_has_an_alarm():
    named = {alert["annotations"]["runbook_url"].rstrip("/").rpartition("/")[2] for alert in ALERTS}

    assert named == {page.stem for page in (ROOT / "docs/runbooks").glob("*.md")}


def asked(expression: str) -> set[str]:
    return set(re.findall(r"\bsamekey_\w+", expression))


def check_query(expression: str) -> None:
    """Every series exists, and every selector names labels and outcomes that it has."""
    assert asked(expression) <= SERIES.keys(), expression
    for name, selector in re.findall(r"\b(samekey_\w+)\{([^}]*)\}", expression):
        for label, value in re.findall(r'(\w+)\s*=~?\s*"([^"]*)"', selector):
            assert label in SERIES[name].labels, f"{name} has no label {label}"
            assert label != "outcome" or set(value.split("|")) <= OUTCOMES.keys(), value


def test_every_rule_asks_for_metrics_that_exist():
    for alert in ALERTS:
        assert asked(alert["expr"]), alert["alert"]
        check_query(alert["expr"])


# -- the metrics ---------------------------------------------------------------------------------------------------


def test_the_metrics_are_named_as_prometheus_wants_them():
    assert len({metric.name for metric in METRICS}) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("samekey_")
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert metric.help.endswith(".")


def test_the_page_has_every_metric_and_every_outcome():
    text = (ROOT / "docs/alarms.md").read_text()
    rows = re.findall(r"^\| `(samekey_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    outcomes = re.findall(r"^\| `(\w+)` \| ([^|]+) \|$", text, re.MULTILINE)

    assert rows == [
        (one.name, one.kind, ", ".join(f"`{label}`" for label in one.labels) or "none", one.help.rstrip("."))
        for one in METRICS
    ]
    assert dict(outcomes) == OUTCOMES


# -- the dashboard -------------------------------------------------------------------------------------------------


def queries() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]


def test_the_dashboard_has_the_form_that_grafana_reads():
    jsonschema_rs.validate(SCHEMA, DASHBOARD)
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(SCHEMA, {**DASHBOARD, "panels": [{**DASHBOARD["panels"][0], "type": "singlestat"}]})


def test_every_query_of_the_dashboard_names_a_metric_that_exists():
    assert len(queries()) > 10
    for query in queries():
        assert asked(query), query
        check_query(query)
    assert asked(" ".join(queries())) >= {metric.series[0] for metric in METRICS}, "a metric is on no panel"


def test_promtool_understands_every_query_of_the_dashboard(tmp_path):
    """With its variables replaced, as Grafana does before it asks Prometheus."""
    plain = [query.replace("$__rate_interval", "5m").replace("$operation", ".*") for query in queries()]
    rules = [{"record": f"panel:{number}", "expr": query} for number, query in enumerate(plain)]
    (tmp_path / "rules.yml").write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))

    assert [query for query in plain if "$" in query] == []
    assert promtool("check", "rules", tmp_path / "rules.yml").returncode == 0


def test_the_panels_lie_beside_each_other_and_their_variables_exist():
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells, panel["title"]
        taken |= cells
    declared = {one["name"] for one in DASHBOARD["templating"]["list"]}

    assert set(re.findall(r"\$\{?(?!__)(\w+)", json.dumps(DASHBOARD))) == declared
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_what_is_asked_for_must_be_known():
    ended = subprocess.run(
        [sys.executable, "-m", "samekey.hooks.alarms", "everything"], capture_output=True, text=True, check=False
    )

    assert (ended.returncode, "invalid choice" in ended.stderr) == (2, True)
