"""A reviewed way from duplicate rows to a unique key: SQL files that a person reads and runs.

Reading order: `target` (what is made unique, and which tables refer to it), `cleaning` (the SQL that every server
shares), then a file for each server. samekey writes the files and never runs them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from samekey.core.errors import Misconfigured
from samekey.detect.catalog import Catalog, Engine
from samekey.detect.findings import Finding
from samekey.detect.fix_plan import mysql, postgres, sqlite
from samekey.detect.fix_plan.cleaning import Cleaning
from samekey.detect.fix_plan.target import NoPlan, Target, target_of

_ENGINES = {Engine.POSTGRES: postgres, Engine.MYSQL: mysql, Engine.SQLITE: sqlite}
_RUN = {
    Engine.POSTGRES: "psql -X -v ON_ERROR_STOP=1 -f {file} DSN",
    Engine.MYSQL: "mysql DATABASE < {file}",
    Engine.SQLITE: "sqlite3 -bail FILE < {file}",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The files by name, and what no plan was made for: (rule, object, why)."""

    files: dict[str, str]
    by_hand: tuple[tuple[str, str, str], ...]


def make(catalog: Catalog, findings: Iterable[Finding]) -> Plan:
    files: dict[str, str] = {}
    by_hand: list[tuple[str, str, str]] = []
    planned: set[tuple[str, tuple[str, ...]]] = set()
    for found in findings:
        try:
            target = target_of(catalog, found)
        except NoPlan as error:
            by_hand.append((found.rule, found.object, str(error)))
            continue
        if (target.table.full_name, target.columns) in planned:
            continue
        planned.add((target.table.full_name, target.columns))
        name = f"{len(planned):02}_{target.slug}"
        files |= _files(catalog, target, name)
    return Plan(files, tuple(by_hand))


def _files(catalog: Catalog, target: Target, name: str) -> dict[str, str]:
    engine, cleaning = _ENGINES[catalog.engine], Cleaning(catalog, target)
    made = {}
    for file, statements in ((f"{name}.sql", engine.apply(cleaning)), (f"{name}_undo.sql", engine.undo(cleaning))):
        made[file] = "\n".join([*_header(catalog, target, file), "", *statements, ""])
    return made


def _header(catalog: Catalog, target: Target, file: str) -> list[str]:
    keys, refers = ", ".join(target.columns), [child.table.full_name for child in target.children]
    kept = ", ".join(target.order)
    if file.endswith("_undo.sql"):
        return [
            f"-- Undo of the plan for {target.table.full_name} ({keys}):",
            "-- removes the unique index, and puts every row back.",
            f"-- Run: {_RUN[catalog.engine].format(file=file)}",
        ]
    return [
        f"-- {target.rule}: makes ({keys}) of {target.table.full_name} unique. Read it before you run it.",
        f"-- Run: {_RUN[catalog.engine].format(file=file)}",
        "-- It can be run again at any time: after an error it continues, and after its end it changes nothing.",
        f"-- Of the rows with one key the first by {kept} stays. The others go to the archive; their children are",
        f"-- joined to the row that stays: {', '.join(refers) or 'no table has a foreign key to it'}.",
        "-- A column that refers to the table without a foreign key is not known here. Your triggers run as always.",
    ]


def write(plan: Plan, folder: Path) -> None:
    """The files into a new or empty folder: an older plan is not mixed with a new one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise Misconfigured(f"the folder {folder} is not empty: give a new one")
        for name, text in plan.files.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise Misconfigured(f"the plan cannot be written to {folder}: {error}") from error
