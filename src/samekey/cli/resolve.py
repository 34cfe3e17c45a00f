"""samekey resolve: a person writes how a doubt ended."""

from __future__ import annotations

import getpass
import sys
from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli._asking import find, one_record, opened
from samekey.cli._record import as_object
from samekey.cli.exits import Exit
from samekey.core.errors import PayloadRefused
from samekey.core.json_text import parse_json
from samekey.core.record import Record
from samekey.ops import NOT_GIVEN, Resolution, explain
from samekey.ops import mark as mark_of


def _json(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[Any] | None:
    """Return the value in a tuple, because null is a result too."""
    if value is None:
        return None
    try:
        return (parse_json(value),)
    except PayloadRefused as error:
        raise click.BadParameter(f"{error.message}. A text needs its quotes: --result '\"text\"'.") from None


@click.command()
@click.option("--happened", is_flag=True, help="The effect happened: the key is completed.")
@click.option("--refused", is_flag=True, help="It was refused for good: the key is closed.")
@click.option("--not-done", is_flag=True, help="It did not happen: the key is free to run again.")
@click.option("--result", callback=_json, metavar="JSON", help="With --happened: the result that callers get.")
@click.option("--why", required=True, metavar="TEXT", help="How you know. Kept for ever in the audit log.")
@click.option("--who", metavar="NAME", help="Your name.  [default: your login name]")
@click.option("--seen", metavar="MARK", help="Refuse if the record changed since `explain` printed this mark.")
@click.option("--yes", is_flag=True, help="Do not ask: for scripts.")
@one_record
def resolve(
    names: tuple[str, ...], result: tuple[Any] | None, why: str, who: str | None, yes: bool, as_json: bool, **given: Any
) -> Exit:
    """Write how a doubt ended: --happened, --refused or --not-done.

    Look it up at the provider first; `samekey explain` prints its reference. The outcome is written only if the
    record is still the one you were shown, and is kept with your name and reason. A record whose holder is alive is
    not changed. With --result, later callers get the plain JSON value, also where the function would have returned
    an object of a class. Without it they get the evidence of a late attempt, or else ResultNotKept.

    \b
    Example:
      samekey resolve charge order-17 --happened --result '{"id": "ch_1"}' --why 'on the statement of May 3'
    """
    outcome = _outcome(given)
    if result is not None and outcome is not Resolution.HAPPENED:
        raise click.UsageError("--result goes with --happened.")
    who = _login() if who is None else who
    if not yes and not someone_to_ask():
        raise click.UsageError("stdin is no terminal, so this command cannot ask: add --yes to write without asking.")
    with opened(given["store"]) as ops:
        record = find(ops, names, given["tenant"])
        ops.check(record, outcome, mark_seen=given["seen"])
        if not yes:
            _ask(record, outcome, who)
        after = ops.resolve(record, outcome, who=who, why=why, result=NOT_GIVEN if result is None else result[0])
    if as_json:
        out.data(as_object(after))
    else:
        out.line(f"{after.key} was {record.state} and is now {after.state}, says {who}")
    if outcome is Resolution.HAPPENED and after.result is None:
        out.note("no result is kept: callers of this key get ResultNotKept, and the effect is not run again")
    return Exit.FINE


def _outcome(given: dict[str, Any]) -> Resolution:
    named = [name for name in ("happened", "refused", "not_done") if given[name]]
    if len(named) != 1:
        raise click.UsageError("give one of --happened, --refused, --not-done.")
    return Resolution(named[0])


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise click.UsageError("you have no login name here: give --who NAME.") from None


def someone_to_ask() -> bool:
    return sys.stdin.isatty()


def _ask(record: Record, outcome: Resolution, who: str) -> None:
    """Print the story first, then ask: the person decides about the record that was shown, and only that changes."""
    for text in explain(record).lines():
        if text == "What to do next":
            break
        out.note(text)
    out.note(f"mark: {mark_of(record)}")
    click.confirm(out.clean(f"Write '{outcome.value}' in the name of {who}?"), abort=True, err=True)
