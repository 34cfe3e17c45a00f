"""samekey stats, audit, doubles: they read what the store counted, what people did, and what came twice."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli._asking import common, opened
from samekey.cli._times import length, moment
from samekey.cli.exits import Exit
from samekey.core.key import make_key
from samekey.core.ports import LIST_MAX, Query
from samekey.core.states import State
from samekey.ops import STATS_MAX, Double
from samekey.ops.doubles import DOUBLES_MAX
from samekey.ops.story import span, when

DAY = 24 * 3600.0


@click.command()
@click.option("--operation", metavar="NAME", help="Only this operation.")
@click.option("--since", type=moment, metavar="TIME", help="Attempts since then.  [default: 24h]")
@click.option("--until", type=moment, metavar="TIME", help="Attempts before then.  [default: now]")
@common
def stats(store: str | None, operation: str | None, since: float | None, until: float | None, as_json: bool) -> Exit:
    """Count attempts by operation, source and outcome, and records by state.

    Attempts are those that guards counted in the store; a guard writes its counts every ten seconds, and they are
    kept for 14 days. Records are counted as they are now: all that are unsettled, and the newest settled ones. It exits
    with 4 if not everything was counted.

    \b
    Example:
      samekey stats --since 7d --operation charge
    """
    make_key("any" if operation is None else operation, "any")
    now = time.time()
    since, until = now - DAY if since is None else since, now if until is None else until
    if since >= until:
        raise click.UsageError("--since is not before --until: there is nothing to count.")
    with opened(store) as ops:
        attempts = ops.attempts(since, until, operation=operation)
        records = ops.stats(STATS_MAX)
        name = ops.store.name
    numbers = sorted(attempts.numbers.items())
    states = {state.value: records.by_state[state] for state in State}
    if as_json:
        out.data(
            {
                "store": name,
                "since": when(since),
                "until": when(until),
                "attempts": [
                    {"operation": one, "source": source, "outcome": outcome, "number": number}
                    for (one, source, outcome), number in numbers
                ],
                "attempts_complete": attempts.complete,
                "states": states,
                "unsettled_counted_completely": records.unsettled_complete,
                "settled_counted_completely": records.settled_complete,
            }
        )
    else:
        rows = [(one, source or "-", outcome, str(number)) for (one, source, outcome), number in numbers]
        out.table(("OPERATION", "SOURCE", "OUTCOME", "ATTEMPTS"), rows)
        if not rows:
            out.note(f"no attempts were counted from {when(since)} to {when(until)}")
        newest = "" if records.settled_complete else " (of settled ones only the newest)"
        out.note(f"replayed: {_rate(attempts.numbers)}")
        out.note("records: " + ", ".join(f"{number} {state}" for state, number in states.items()) + newest)
    if not attempts.complete or not records.unsettled_complete or records.unreadable:
        out.note("incomplete: not everything was counted; a shorter span, or samekey doctor --limit, counts more")
        return Exit.INCOMPLETE
    return Exit.FINE


def _rate(numbers: Counter[tuple[str, str, str]]) -> str:
    total = numbers.total()
    again = sum(number for (_, _, outcome), number in numbers.items() if outcome in ("replayed", "waited"))
    return f"{again} of {total} attempts ({100 * again / total:.1f} %)" if total else "0 of 0 attempts"


@click.command()
@click.option("--operation", metavar="NAME", help="Only this operation.")
@click.option("--tenant", metavar="T", help="Only this tenant.")
@click.option("--key", metavar="KEY", help="Only this key.")
@click.option("--who", metavar="NAME", help="Only actions of this person.")
@click.option("--since", type=moment, metavar="TIME", help="Since then: 24h, 2026-05-03, ...")
@click.option("--limit", type=click.IntRange(1, LIST_MAX), default=100, help="Entries of the log to read, at most.")
@common
def audit(store: str | None, limit: int, as_json: bool, **given: Any) -> Exit:
    """List what people did: resolve, free, redact, accept; newest first.

    On a pipe the columns are separated by tabs; --json prints one object per line. It exits with 4 if the log has more
    entries than --limit.

    \b
    Example:
      samekey audit --operation charge --since 7d
    """
    with opened(store) as ops:
        entries = ops.audit(limit)
    wanted = {name: given[name] for name in ("operation", "tenant", "who") if given[name] is not None}
    if given["key"] is not None:
        wanted["text"] = given["key"]
    since = given["since"]
    shown = [
        entry
        for entry in entries
        if all(getattr(entry, name) == text for name, text in wanted.items()) and (since is None or entry.at >= since)
    ]
    for entry in shown if as_json else ():
        fields = entry._asdict()
        fields["key"] = fields.pop("text")
        out.data({**fields, "at": when(entry.at)})
    if not as_json:
        columns = ("AT", "WHO", "ACTION", "OPERATION", "KEY", "TENANT", "BEFORE", "AFTER", "WHY")
        rows = [
            (when(e.at), e.who, e.action, e.operation, e.text, e.tenant or "", e.before, e.after, e.why) for e in shown
        ]
        if rows:
            out.table(columns, rows)
        else:
            out.note("no entries")
    if len(entries) == limit and (since is None or entries[-1].at >= since):
        out.note(f"incomplete: only the last {limit} entries were read; --limit reads up to {LIST_MAX}")
        return Exit.INCOMPLETE
    return Exit.FINE


@click.command()
@click.option("--window", type=length, default="24h", metavar="LENGTH", help="Read the records of this time.")
@click.option("--operation", metavar="NAME", help="Only this operation.")
@click.option("--tenant", metavar="T", help="Only this tenant.")
@click.option("--limit", type=click.IntRange(1), default=DOUBLES_MAX, help="Records to compare, at most.")
@common
def doubles(
    store: str | None, window: float, operation: str | None, tenant: str | None, limit: int, as_json: bool
) -> Exit:
    """Find one content under several keys: mostly a client that makes a new key for each retry.

    Compared are the payloads of one operation and tenant, without the parts that make the key, by digests that the
    claims stored. Only records created within the window are read. It exits with 1 if there is a double, and with 4 if
    not every record was compared. --json prints one object for each content.

    \b
    Example:
      samekey doubles --window 24h --operation charge
    """
    make_key("any" if operation is None else operation, "any", tenant)
    query = Query(operation=operation, tenant=tenant, since=time.time() - window)
    with opened(store) as ops:
        found = ops.doubles(query, limit)
    for double in found.found:
        if as_json:
            out.data(_as_object(double))
        else:
            _print(double)
    if not found.found:
        out.note("no doubles")
    out.note(f"{found.read} records of the last {span(window)} were compared")
    if found.without_content:
        out.note(
            f"{found.without_content} of them have no content to compare: the key is the content, or has all of it"
        )
    for unreadable in found.unreadable:
        out.note(f"incomplete: {unreadable}")
    if not found.complete:
        out.note("incomplete: there are more records in this window; --limit compares more, --operation reads fewer")
    if found.unreadable or not found.complete:
        return Exit.INCOMPLETE
    return Exit.FOUND if found.found else Exit.FINE


def _print(double: Double) -> None:
    whose = f" (tenant {double.tenant})" if double.tenant else ""
    out.line(f"{double.operation}{whose}: one content under {double.number} keys")
    for one in double.first:
        out.line(f"  {when(one.created_at)}  {one.state}  {one.key.text}")
    if double.number > len(double.first):
        out.line(f"  and {double.number - len(double.first)} more")


def _as_object(double: Double) -> dict[str, Any]:
    return {
        "operation": double.operation,
        "tenant": double.tenant,
        "content": double.content.hex(),
        "number": double.number,
        "ran": double.ran,
        "keys": [
            {"key": one.key.text, "state": one.state.value, "created_at": when(one.created_at)} for one in double.first
        ],
    }
