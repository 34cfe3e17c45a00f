"""The alarm rules of `samekey db watch` fire when they should and not otherwise, and each has its page."""

from __future__ import annotations

import re
from typing import Any

import yaml

from samekey.detect.watching.metrics import HELP
from tests.hooks.promtool import ROOT, failures, promtool

RULES = ROOT / "src/samekey/hooks/alarms/watch.yml"
ALERTS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
URL = "https://samekey.readthedocs.io/"
UP = [
    {"series": "samekey_watch_up", "values": "1x300"},
    {"series": "samekey_watch_lag_seconds", "values": "1x300"},
]


def firing(at: str, *alerts: tuple[str, str, dict[str, str]]) -> dict[str, Any]:
    """At this time exactly these alerts fire: (name, severity, labels)."""
    samples = []
    for name, severity, more in alerts:
        labels = {"alertname": name, "alertstate": "firing", "severity": severity, **more}
        shown = ", ".join(f'{label}="{value}"' for label, value in sorted(labels.items()))
        samples.append({"labels": f"ALERTS{{{shown}}}", "value": 1})
    return {"expr": 'ALERTS{alertstate="firing"}', "eval_time": at, "exp_samples": samples}


def counted(metric: str, values: str, severity: str = "") -> dict[str, str]:
    more = f', severity="{severity}"' if severity else ""
    return {"series": f'{metric}{{rule="orders", table="public.orders", source=""{more}}}', "values": values}


OF_ORDERS = {"rule": "orders", "table": "public.orders"}
EFFECT = ("SamekeyDuplicateEffect", "warning", OF_ORDERS)
SPIKE = ("SamekeyDuplicateSpike", "critical", {"label": "orders"})
REPLAYS = ("SamekeyReplaySpike", "warning", {"label": "pay"})
RATE = ("SamekeyDuplicateRate", "warning", {"rule": "orders"})
BLIND: tuple[str, str, dict[str, str]] = ("SamekeyWatchBlind", "critical", {})
DISK: tuple[str, str, dict[str, str]] = ("SamekeySlotEatsDisk", "critical", {})
ABOVE = {"series": 'samekey_rule_alert_above{rule="orders"}', "values": "0.01x300"}


def score(signal: str, label: str) -> dict[str, str]:
    return {"series": f'samekey_anomaly_score{{signal="{signal}", label="{label}"}}', "values": "1x10 9x5 1x60"}


CASES: dict[str, tuple[list[dict[str, str]], list[dict[str, Any]]]] = {
    "one duplicate": (
        [*UP, counted("samekey_duplicates_total", "0x10 1x60", "high")],
        [firing("9m"), firing("14m", EFFECT), firing("40m")],
    ),
    "a slight one": ([*UP, counted("samekey_duplicates_total", "0x10 1x60", "low")], [firing("14m")]),
    "a spike": ([*UP, score("duplicates", "orders")], [firing("5m"), firing("12m", SPIKE), firing("30m")]),
    "replays": ([*UP, score("replays", "pay")], [firing("12m", REPLAYS), firing("30m")]),
    "2 % where 1 % is allowed": (
        [*UP, ABOVE, counted("samekey_duplicates_total", "0+2x90", "low"),
         counted("samekey_rows_seen_total", "0+100x90")],
        [firing("70m", RATE)],
    ),
    "half a percent": (
        [*UP, ABOVE, counted("samekey_duplicates_total", "0+0.5x90", "low"),
         counted("samekey_rows_seen_total", "0+100x90")],
        [firing("70m")],
    ),
    "half of ten rows": (
        [*UP, ABOVE, counted("samekey_duplicates_total", "0+0.08x90", "low"),
         counted("samekey_rows_seen_total", "0+0.16x90")],
        [firing("70m")],
    ),
    "behind": (
        [UP[0], {"series": "samekey_watch_lag_seconds", "values": "1x5 90x30"}],
        [firing("4m"), firing("10m", BLIND)],
    ),
    "not connected": ([{"series": "samekey_watch_up", "values": "1x5 0x30"}], [firing("4m"), firing("10m", BLIND)]),
    "no watch at all": ([], [firing("5m", BLIND)]),
    "WAL is kept": (
        [*UP, {"series": "samekey_slot_retained_bytes", "values": "1000x5 2000000000x30"}],
        [firing("4m"), firing("15m", DISK)],
    ),
}  # fmt: skip


def test_every_alarm_fires_when_it_should_and_not_otherwise(tmp_path):
    tests = [
        {"name": name, "interval": "1m", "input_series": series, "promql_expr_test": expected}
        for name, (series, expected) in CASES.items()
    ]

    assert failures(tmp_path, RULES, tests) == ""


def test_every_alarm_has_a_case_in_which_it_fires():
    labels = [sample["labels"] for _, all_of in CASES.values() for one in all_of for sample in one["exp_samples"]]

    assert {re.findall('alertname="(\\w+)"', one)[0] for one in labels} == {one["alert"] for one in ALERTS}


def test_an_alarm_that_does_not_fire_is_noticed(tmp_path):
    weak = tmp_path / "rules.yml"
    weak.write_text(RULES.read_text().replace("> 1e9", "> 1e12"))
    series, expected = CASES["WAL is kept"]

    assert "SamekeySlotEatsDisk" in failures(
        tmp_path, weak, [{"interval": "1m", "input_series": series, "promql_expr_test": expected}]
    )


def test_promtool_accepts_the_rules():
    ended = promtool("check", "rules", RULES)

    assert (ended.returncode, f"SUCCESS: {len(ALERTS)} rules found" in ended.stdout) == (0, True), ended.stderr


def test_every_alarm_has_a_page_and_asks_for_metrics_that_the_watch_has():
    for alert in ALERTS:
        page = alert["annotations"]["runbook_url"].removeprefix(URL).rstrip("/")
        text = (ROOT / f"docs/{page}.md").read_text()

        assert len(alert["annotations"]["summary"]) < 80
        assert alert["alert"] in text
        for heading in ("What it means", "What to look at", "What to do", "When it is over"):
            assert f"## {heading}" in text, page
        assert set(re.findall(r"\bsamekey_\w+", alert["expr"])) <= HELP.keys()
    named = {alert["annotations"]["runbook_url"].rstrip("/").rpartition("/")[2] for alert in ALERTS}
    assert named == {page.stem for page in (ROOT / "docs/runbooks/watch").glob("*.md")}
