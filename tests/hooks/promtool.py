"""promtool of Prometheus: where it is, and what it finds in a file of rules."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from samekey.testing.servers import NoServer

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / ".cache/prometheus/usr/bin/promtool"  # where .ci/run puts it


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool") or (UNPACKED if UNPACKED.exists() else None)
    if program is None:
        raise NoServer("promtool is missing: install Debian's package `prometheus`", "promtool")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False, timeout=60)


def failures(folder: Path, rules: Path, tests: list[dict[str, Any]]) -> str:
    """What `promtool test rules` prints about these tests; "" if all of them pass. JSON is YAML.

    The rules are evaluated at each point of the series: every minute of 14 days would take minutes.
    """
    files = []
    for interval in sorted({test["interval"] for test in tests}):
        some = [test for test in tests if test["interval"] == interval]
        file = folder / f"tests-{interval}.yml"
        file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": interval, "tests": some}))
        files.append(file)
    ended = promtool("test", "rules", *files)
    return "" if ended.returncode == 0 else ended.stdout + ended.stderr


def firing(at: str, *alerts: tuple[str, str, str | None]) -> dict[str, Any]:
    """At this time exactly these alerts fire: (name, severity, operation)."""
    samples = []
    for name, severity, operation in alerts:
        labels = {"alertname": name, "alertstate": "firing", "operation": operation, "severity": severity}
        shown = ", ".join(f'{label}="{value}"' for label, value in labels.items() if value is not None)
        samples.append({"labels": f"ALERTS{{{shown}}}", "value": 1})
    return {"expr": 'ALERTS{alertstate="firing"}', "eval_time": at, "exp_samples": samples}
