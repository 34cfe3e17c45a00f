"""samekey doctor: is the store sound, does a record need a person, do records and code fit together?"""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import click

from samekey import AsyncGuard, Guard
from samekey.cli import _out as out
from samekey.cli._asking import Asked, common, open_there
from samekey.cli.exits import Exit, NoStore
from samekey.core.errors import Misconfigured, RecordUnreadable, StoreError
from samekey.core.ports import Health
from samekey.core.record import Record
from samekey.core.states import State
from samekey.guard.operations import Declared
from samekey.ops import STATS_MAX, Ops, Stats, since, span

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
    renamed function forgets yesterday's keys), and records of operations that it no longer has. Then the guard's
    own store is looked at, unless --store is given.

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
    finally:
        opened.close()
    if as_json:
        out.data(report.as_object())
    else:
        for text in report.lines():
            out.line(text)
    for text in report.findings:
        out.note(f"found: {text}")
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
    findings: list[str] = field(default_factory=list)
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
        width = max(len(name) for name, _ in named)
        return [f"{name:<{width}}  {text}" for name, text in named]

    def as_object(self) -> dict[str, Any]:
        health, stats = self.health, self.stats
        app = {
            "operations": None if self.operations is None else [one.name for one in self.operations],
            "without_name": self.unnamed,
            "without_function": self.orphaned,
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
            "findings": self.findings,
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
            "samekey ls --state in_doubt"
        )
    if stats.overdue:
        report.findings.append(f"{len(stats.overdue)} held past their lease: samekey ls --state started")
    if operations is not None:
        _compare(report, operations, limit)
    return report


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


# -- the user's guard ------------------------------------------------------------------------------------------------


def load(app: str) -> Guard | AsyncGuard:
    """The guard that `module:name` means; modules of the current folder count, as they do for `python -m`."""
    module, colon, path = app.partition(":")
    if not (module and colon and path):
        raise click.UsageError(f"--app takes module:guard, not {app!r}.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module)
    except Exception as error:  # the user's own code runs here: show whatever it raises
        raised = f"importing {module} raised {type(error).__name__}: {error}"
        raise Misconfigured(raised, hint="--debug shows where") from error
    for name in path.split("."):
        found = getattr(found, name, None)
    if not isinstance(found, (Guard, AsyncGuard)):
        raise Misconfigured(f"{app} is {'missing' if found is None else type(found).__name__}, not a guard")
    return found


def store_of(guard: Guard | AsyncGuard) -> Any:
    """The guard's own store, in the colour that a command needs."""
    try:
        store: Any = guard.store
    except (Misconfigured, StoreError, OSError) as error:
        raise NoStore(f"the guard's store cannot be opened: {error}") from error
    if inspect.iscoroutinefunction(store.carry_out):
        store = getattr(store, "sync", None)
    if store is None:
        raise click.UsageError("the guard's store is for async code only: give --store URL as well.")
    return store
