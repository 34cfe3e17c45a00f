"""Programs for more than one machine, from a rule file: a Spark program with the detector itself, and Flink SQL."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterable
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.detect.exporting.flink import flink_sql
from samekey.detect.rule_file import Rule

SPARK = "duplicates_spark.py"


def write_spark(rules: Iterable[Rule], folder: Path) -> list[Path]:
    """The program, the rules, and samekey's own modules for the cluster; the paths that were written."""
    declared = list(rules)
    for rule in declared:
        if rule.by_content:
            raise Misconfigured(f"rule {rule.name}: content = true needs the columns of the table: name them as key")
    folder.mkdir(parents=True, exist_ok=True)
    program = files("samekey.detect.exporting").joinpath("spark_program.py").read_text(encoding="utf-8")
    made = {
        SPARK: program.encode(),
        "rules.json": json.dumps({"rule": [_as_entry(rule) for rule in declared]}, indent=2).encode(),
        "samekey.zip": _package(),
    }
    for name, content in made.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in made]


def write_flink(rules: Iterable[Rule], folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "duplicates_flink.sql"
    path.write_text(flink_sql(list(rules)), encoding="utf-8")
    return [path]


def _as_entry(rule: Rule) -> dict[str, Any]:
    """The rule as its file spells it."""
    entry: dict[str, Any] = {name: value for name, value in asdict(rule).items() if value not in ((), "", None)}
    entry |= {"canonical": sorted(rule.canonical), "severity": rule.severity.label}
    entry["nulls"] = "equal" if entry.pop("nulls_equal") else "skip"
    if (seconds := entry.pop("window_seconds", None)) is not None:
        entry["window"] = f"{seconds:f}".rstrip("0").rstrip(".") + "s"
    return {name: value for name, value in entry.items() if value not in ((), [])}


def _package() -> bytes:
    """samekey's Python files as a zip that Python imports from: the cluster needs nothing installed."""
    root = Path(__file__).parents[2]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, Path("samekey") / path.relative_to(root))
    return packed.getvalue()
