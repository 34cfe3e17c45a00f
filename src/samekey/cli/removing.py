"""samekey free, redact: a person removes a record, or the result that it holds."""

from __future__ import annotations

from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli._asking import find, one_record, opened
from samekey.cli._decision import ask_about, decision, need_an_answer, signed, tell_about
from samekey.cli._record import as_object
from samekey.cli.exits import Exit
from samekey.core.record import Record
from samekey.ops._refusals import moved_on
from samekey.ops.deciding import check_free, check_redact
from samekey.ops.story import mark


@click.command()
@decision
@one_record
def free(names: tuple[str, ...], as_json: bool, **given: Any) -> Exit:
    """Remove a record that is settled or released: the next call with its key runs the effect again.

    A record that is held or in doubt is refused: resolve it first. So is one that changed since you looked. What it
    held is gone; the audit log keeps who removed it, and why.

    \b
    Example:
      samekey free charge order-17 --why 'refunded, the customer orders again' --dry-run
    """
    who, why = signed(given["who"], given["why"], dry_run=given["dry_run"])
    need_an_answer(given["yes"], dry_run=given["dry_run"])
    with opened(given["store"]) as ops:
        record = find(ops, names, given["tenant"])
        check_free(record)
        if _looked(record, given, f"Remove the record of {record.key}, so that it may run again?"):
            ops.free(record, who=who, why=why)
    return _report(
        record, "free", given["dry_run"], as_json, f"{record.key} was {record.state} and is free to run again"
    )


@click.command()
@decision
@one_record
def redact(names: tuple[str, ...], as_json: bool, **given: Any) -> Exit:
    """Drop the results that a settled record holds; the record stays, so the effect is not run again.

    For a request to delete personal data. Callers with this key get ResultNotKept from then on.

    \b
    Example:
      samekey redact charge order-17 --why 'deletion request 4711'
    """
    who, why = signed(given["who"], given["why"], dry_run=given["dry_run"])
    need_an_answer(given["yes"], dry_run=given["dry_run"])
    with opened(given["store"]) as ops:
        record = find(ops, names, given["tenant"])
        check_redact(record)
        if _looked(record, given, f"Drop the result of {record.key}?"):
            record = ops.redact(record, who=who, why=why)
    return _report(record, "redact", given["dry_run"], as_json, f"the result of {record.key} was dropped")


def _looked(record: Record, given: dict[str, Any], question: str) -> bool:
    """Whether to go on: the record is the one that the person was shown, and it is no dry run."""
    if given["seen"] is not None and mark(record) != given["seen"]:
        raise moved_on(record, record)
    if given["dry_run"]:
        tell_about(record)
        return False
    if given["yes"] is None:
        ask_about(record, question)
    return True


def _report(record: Record, action: str, dry_run: bool, as_json: bool, done: str) -> Exit:
    if as_json:
        out.data({"action": action, "done": not dry_run, "record": as_object(record)})
    elif not dry_run:
        out.line(done)
    if dry_run:
        out.note("dry run: nothing was written")
    return Exit.FINE
