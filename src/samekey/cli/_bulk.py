"""Resolving many records: a preview, a number to confirm, a progress bar, and a stop at any time."""

from __future__ import annotations

import click

from samekey.cli import _out as out
from samekey.cli._decision import NOT_COUNTED
from samekey.cli._record import as_object
from samekey.cli.exits import Exit
from samekey.core.record import Record
from samekey.ops import CannotResolve, MovedOn, Ops, Resolution, Search
from samekey.ops.story import objection, span

SHOWN_MAX = 5  # records of the preview
BULK_MAX = 10_000  # records of one run: what a person can answer for at once


def resolve_all(
    ops: Ops, search: Search, outcome: Resolution, who: str, why: str, *, yes: int | None, dry_run: bool, as_json: bool
) -> Exit:
    """Preview, confirm, write."""
    found, damaged, more = ops.all_of(search, BULK_MAX)
    records = [record for record in found if objection(record, outcome) is None]
    for unreadable in damaged:
        out.note(f"incomplete: {unreadable}")
    if more:
        out.note(f"incomplete: there may be more records than the {len(found)} that were found; run it again for them")
    incomplete = bool(damaged or more)
    _preview(found, records, outcome)
    if dry_run or not records:
        if dry_run:
            out.note(f"dry run: {len(records)} records would become {outcome.state}; nothing was written")
        if as_json:
            out.data({"outcome": outcome.value, "matched": len(records), "resolved": 0, "refused": 0, "done": False})
        return Exit.INCOMPLETE if incomplete else Exit.FINE
    if not _confirmed(len(records), yes, outcome, who):
        return Exit.MOVED_ON
    resolved, refused = _write(ops, records, outcome, who, why, as_json=as_json)
    if as_json:
        out.data(
            {
                "outcome": outcome.value,
                "matched": len(records),
                "resolved": resolved,
                "refused": refused,
                "done": resolved + refused == len(records),
            }
        )
    else:
        out.line(f"{resolved} of {len(records)} records are now {outcome.state}, says {who}")
    if resolved + refused < len(records):
        out.note("stopped; run the same command again to go on: what is resolved is left out")
        return Exit.INCOMPLETE
    if refused:
        return Exit.MOVED_ON
    return Exit.INCOMPLETE if incomplete else Exit.FINE


def _preview(found: list[Record], records: list[Record], outcome: Resolution) -> None:
    for record in records[:SHOWN_MAX]:
        error = f", {record.error}" if record.error else ""
        out.note(f"  {record.key} [{record.state}] created {span(record.now - record.created_at)} ago{error}")
    if len(records) > SHOWN_MAX:
        out.note(f"  and {len(records) - SHOWN_MAX} more")
    left_out = len(found) - len(records)
    if left_out:
        out.note(f"{left_out} more match the filters and cannot be resolved as {outcome.value}: they are left out")
    if not records:
        out.note("no records to resolve")


def _confirmed(number: int, yes: int | None, outcome: Resolution, who: str) -> bool:
    """The person confirms the number: a filter that means more than was thought must not be written."""
    if yes is None:
        question = f"Write '{outcome.value}' to {number} records in the name of {who}? Type {number} to confirm"
        typed = click.prompt(out.clean(question), err=True, default="", show_default=False)
        if typed.strip() == str(number):
            return True
        out.note("not confirmed; nothing was written")
        return False
    if yes == NOT_COUNTED:
        raise click.UsageError(f"--yes needs the number of records here: --yes {number}.")
    if yes != number:
        out.note(f"refused: --yes {yes} was given, and there are {number} records; nothing was written")
        return False
    return True


def _write(
    ops: Ops, records: list[Record], outcome: Resolution, who: str, why: str, *, as_json: bool
) -> tuple[int, int]:
    """How many were resolved, and how many changed meanwhile; Ctrl-C ends it between two records."""
    resolved = refused = 0
    with out.progress(len(records), "resolving") as move:
        try:
            for record in records:
                try:
                    after = ops.resolve(record, outcome, who=who, why=why)
                except (MovedOn, CannotResolve) as moved:
                    refused += 1
                    out.note(f"left out: {moved.message}")
                else:
                    resolved += 1
                    if as_json:
                        out.data(as_object(after))
                move(1)
        except KeyboardInterrupt:
            pass
    return resolved, refused
