"""samekey doctor: is the store sound, does a record need a person, do records and code fit together?"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import dataclass, field
from datetime import date
from time import time as clock
from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli._app import load, store_of
from samekey.cli._asking import Asked, common, open_there
from samekey.cli._checkup import achieved, check_clock, check_operations, undeclared, unguarded_routes
from samekey.cli.exits import Exit
from samekey.core.books import FINDINGS_MAX, SEVERITIES
from samekey.core.errors import RecordUnreadable, SamekeyError
from samekey.core.ports import Health
from samekey.core.record import Record
from samekey.core.states import State
from samekey.guard.operations import Declared
from samekey.ops import STATS_MAX, Ops, Stats
from samekey.ops.story import since, span

SHOWN_MAX = 5  # records named in a finding; `samekey ls` has the rest


@click.command()
@click.option("--app", metavar="MODULE:GUARD", help="Your guard: compare its operations with the records.")
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=STATS_MAX,
    help="Unsettled records to look at, at most, and as many settled ones.",
)
@common
@click.pass_context
def doctor(ctx: click.Context, store: str | None, app: str | None, limit: int, as_json: bool) -> Exit:
    """Report whether the store keeps its promise, and whether a record needs a person.

    The guarantee the store reaches, what weakens it, how many records are in which state, the oldest doubt, what
    is held past its lease. With --app also the operations of your guard: those without a name= of their own (a
    renamed function forgets yesterday's keys), records of operations that it no longer has, unsettled records that no
    worker can look at, rules that let an effect run twice, retries for which a provider whose pack you use forgets its
    keys too soon, leases shorter than the effects took, and POST routes of a web application in the same module that no
    rules cover. What is worth knowing and no fault is a note. The guard's own store is looked at, unless --store is
    given.

    \b
    Example:
      samekey doctor --store sqlite:///keys.db
      samekey doctor --app shop.payments:guard
    """
    guard = None if app is None else load(app)
    on_command_line = ctx.get_parameter_source("store") is click.core.ParameterSource.COMMANDLINE
    opened = open_there(store) if guard is None or on_command_line else store_of(guard)
    try:
        report = examine(Ops(Asked(opened)), None if guard is None else guard.declared(), limit)
        if guard is not None and app is not None:
            _check_app(report, app)
    finally:
        opened.close()
    if as_json:
        out.data(report.as_object())
    else:
        for text in report.lines():
            out.line(text)
    for text in report.findings:
        out.note(f"found: {text}")
    for text in report.notes:
        out.note(f"note: {text}")
    for text in report.missing:
        out.note(f"incomplete: {text}")
    if report.missing:
        return Exit.INCOMPLETE
    return Exit.FOUND if report.findings else Exit.FINE


# -- the report ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Report:
    health: Health
    stats: Stats
    operations: list[Declared] | None
    unnamed: list[str] = field(default_factory=list)
    orphaned: list[str] = field(default_factory=list)  # live records, and no function
    undeclared: list[str] = field(default_factory=list)  # unsettled records, and no rules for a worker
    findings: list[str] = field(default_factory=list)
    unguarded: list[str] = field(default_factory=list)  # routes of a web application
    notes: list[str] = field(default_factory=list)  # worth knowing, and no fault
    open_findings: int = 0
    achieved: str = ""
    missing: list[str] = field(default_factory=list)  # what could not be read

    def lines(self) -> list[str]:
        health, stats = self.health, self.stats
        more = "" if stats.settled_complete else " (of settled ones only the newest)"
        named = [("store", health.store), ("guarantee", health.guarantee), ("incarnation", _life(health))]
        named += [*health.facts, *(("warning", text) for text in health.warnings)]
        named.append(("records", ", ".join(f"{stats.by_state[state]} {state}" for state in State) + more))
        named.append(("oldest doubt", _described(stats.oldest_doubt)))
        named.append(("lease over", ", ".join(map(_described, stats.overdue[:SHOWN_MAX])) or "none"))
        if self.operations is not None:
            named.append(("operations", ", ".join(one.name for one in self.operations) or "none"))
            named.append(("without name=", ", ".join(self.unnamed) or "none"))
            named.append(("without function", ", ".join(self.orphaned) or "none"))
            named.append(("without rules", ", ".join(self.undeclared) or "none"))
            named.append(("unguarded routes", ", ".join(self.unguarded) or "none"))
            named.append(("achieved", self.achieved))
        named.append(("open findings", str(self.open_findings)))
        width = max(len(name) for name, _ in named)
        return [f"{name:<{width}}  {text}" for name, text in named]

    def as_object(self) -> dict[str, Any]:
        health, stats = self.health, self.stats
        app = {
            "operations": None if self.operations is None else [one.name for one in self.operations],
            "without_name": self.unnamed,
            "without_function": self.orphaned,
            "without_rules": self.undeclared,
            "unguarded_routes": self.unguarded,
            "achieved": self.achieved,
        }
        return {
            "store": health.store,
            "guarantee": health.guarantee,
            "incarnation": _life(health),
            "warnings": health.warnings,
            "facts": dict(health.facts),
            "states": {state.value: stats.by_state[state] for state in State},
            "settled_counted_completely": stats.settled_complete,
            "oldest_doubt": None if stats.oldest_doubt is None else _named(stats.oldest_doubt),
            "lease_over": len(stats.overdue),
            "lease_over_first": [_named(record) for record in stats.overdue[:SHOWN_MAX]],
            **(app if self.operations is not None else {}),
            "open_findings": self.open_findings,
            "findings": self.findings,
            "notes": self.notes,
            "missing": self.missing,
        }


def examine(ops: Ops, operations: list[Declared] | None, limit: int) -> Report:
    """Examine store and records; report what is wrong and what could not be read."""
    report = Report(ops.store.health(), Stats(), operations)
    report.findings += report.health.warnings
    try:
        report.stats = ops.stats(limit)
    except RecordUnreadable as unreadable:
        report.missing.append(f"the records cannot be counted: {unreadable}")
        return report
    stats = report.stats
    report.missing += map(str, stats.unreadable.values())
    if not stats.unsettled_complete:
        report.missing.append(f"there are more than {limit} unsettled records; --limit looks at more")
    if stats.by_state[State.IN_DOUBT]:
        report.findings.append(
            f"{stats.by_state[State.IN_DOUBT]} in doubt, the oldest for {_age(stats.oldest_doubt)}: "
            "samekey ls --waiting --oldest-first"
        )
    if stats.overdue:
        report.findings.append(f"{len(stats.overdue)} held past their lease: samekey ls --waiting --oldest-first")
    off = check_clock(stats.clock, clock())
    if off is not None:
        report.findings.append(off)
    _count_findings(report, ops)
    if operations is not None:
        _compare(report, operations, limit)
        _name_undeclared(report, ops, operations)
    return report


def _count_findings(report: Report, ops: Ops) -> None:
    """The open findings of programs; a store without that table was named by its self-check."""
    try:
        found = ops.findings.list(accepted=False, limit=FINDINGS_MAX)
    except SamekeyError:
        return
    report.open_findings = len(found)
    if found:
        worst = sorted(found, key=lambda one: -SEVERITIES.index(one.severity))[0]
        report.findings.append(f"{len(found)} open findings, among them ({worst.severity}): {worst.title}")


def _check_app(report: Report, app: str) -> None:
    """Rules, times and routes of the user's application."""
    operations = report.operations or []
    checked = check_operations(operations, report.stats.longest, date.today())
    report.findings += checked.findings
    report.notes += checked.notes
    report.missing += checked.unknown
    report.unguarded = unguarded_routes(sys.modules[app.partition(":")[0]], operations)
    if report.unguarded:
        report.findings.append(
            f"not guarded: {', '.join(report.unguarded)}; @rules(None) declares that a route needs no guard"
        )
    report.achieved = achieved(report.health.guarantee, operations, report.findings)


def _compare(report: Report, operations: list[Declared], limit: int) -> None:
    report.unnamed = sorted(one.name for one in operations if not one.named)
    recorded = set(report.stats.operations)
    report.orphaned = sorted(name for name in recorded if not any(one.covers(name) for one in operations))
    if report.unnamed:
        report.findings.append(f"without name=: {', '.join(report.unnamed)}; moving the function forgets its keys")
    if report.orphaned:
        report.findings.append(
            f"records and no function: {', '.join(report.orphaned)}; a renamed operation needs aliases= "
            "(guard.run and guard.hold name theirs only when they are called)"
        )
    if not report.stats.settled_complete:
        report.missing.append(f"there are more than {limit} settled records; --limit looks at more")


def _name_undeclared(report: Report, ops: Ops, operations: list[Declared]) -> None:
    """As `samekey worker` does."""
    report.undeclared = undeclared(ops.store.doubtful(), operations)
    if report.undeclared:
        report.findings.append(
            f"unsettled records that no worker can look at: {', '.join(report.undeclared)}; "
            "guard.declare(name, boundary=) gives their rules"
        )


def _life(health: Health) -> str:
    """Distinguishes two lives of a store. It is not the incarnation itself, which seals the entries of a front."""
    if not health.incarnation:
        return ""
    return hashlib.sha256(b"samekey.doctor:" + health.incarnation.encode()).hexdigest()[:16]


def _described(record: Record | None) -> str:
    return "none" if record is None else f"{record.key}, for {_age(record)}"


def _age(record: Record | None) -> str:
    return "" if record is None else span(record.now - since(record))


def _named(record: Record) -> dict[str, Any]:
    key = record.key
    return {
        "operation": key.operation,
        "key": key.text,
        "tenant": key.tenant,
        "seconds": round(record.now - since(record), 3),
    }
