"""samekey resolve: a person writes how a doubt ended, or how all doubts of a filter ended."""

from __future__ import annotations

import json
from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli._asking import common, find, opened
from samekey.cli._bulk import resolve_all
from samekey.cli._decision import ask_about, decision, need_an_answer, signed, tell_about
from samekey.cli._filters import FILTERS, filters, given_filters, search_of
from samekey.cli._record import as_object
from samekey.cli.exits import Exit
from samekey.core.errors import PayloadRefused
from samekey.core.json_text import parse_json
from samekey.ops import NOT_GIVEN, Resolution


def _json(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[Any] | None:
    """Return the value in a tuple, because null is a result too."""
    if value is None:
        return None
    try:
        return (parse_json(value),)
    except PayloadRefused as error:
        raise click.BadParameter(f"{error.message}. A text needs its quotes: --result '\"text\"'.") from None


@click.command()
@click.argument("names", nargs=-1, metavar="[[OPERATION] KEY]")
@click.option("--happened", is_flag=True, help="The effect happened: the key is completed.")
@click.option("--refused", is_flag=True, help="It was refused for good: the key is closed.")
@click.option("--not-done", is_flag=True, help="It did not happen: the key is free to run again.")
@click.option("--result", callback=_json, metavar="JSON", help="With --happened: the result that callers get.")
@click.option(
    "--status", type=click.IntRange(200, 599), metavar="N", help="With --happened: the status of an HTTP answer."
)
@click.option("--lease-is-over", is_flag=True, help="The holder is gone, although its lease lives (a clock was set).")
@decision
@filters
@common
def resolve(names: tuple[str, ...], result: tuple[Any] | None, as_json: bool, **given: Any) -> Exit:
    """Write how a doubt ended: --happened, --refused or --not-done.

    Look it up at the provider first; `samekey explain` prints its reference. The outcome is written only if the
    record is still the one you were shown, and is kept with your name and reason. A record whose holder is alive is
    not changed. With --result, later callers get the plain JSON value, also where the function would have returned
    an object of a class; with --status it is the body of an HTTP answer. Without it they get the evidence of a late
    attempt, or else ResultNotKept.

    Without a KEY the filters of `samekey ls` choose the records, among those that wait for a decision. The command
    shows the first of them and their number, and writes only if you confirm that number. It may be stopped at any
    time: run again, it leaves out what is resolved already.

    \b
    Example:
      samekey resolve charge order-17 --happened --result '{"id": "ch_1"}' --why 'on the statement of May 3'
      samekey resolve --operation charge --since 2h --not-done --why 'outage, no charge arrived' --yes 300
    """
    outcome = _outcome(given)
    if (result is not None or given["status"] is not None) and outcome is not Resolution.HAPPENED:
        raise click.UsageError("--result and --status go with --happened.")
    who, why = signed(given["who"], given["why"], dry_run=given["dry_run"])
    chosen = given_filters(given)
    if names and chosen:
        raise click.UsageError("give a KEY, or filters for many records, not both.")
    if not names and not chosen:
        raise click.UsageError("which records? Give [OPERATION] KEY, or filters such as --operation and --since.")
    if not names:
        return _many(outcome, who, why, result, as_json, given)
    need_an_answer(given["yes"], dry_run=given["dry_run"])
    kept = NOT_GIVEN if result is None else result[0]
    if given["status"] is not None:
        kept = _answer(given["status"], result)
    return _one(names, outcome, who, why, kept, as_json, given)


def _one(
    names: tuple[str, ...], outcome: Resolution, who: str, why: str, result: Any, as_json: bool, given: dict[str, Any]
) -> Exit:
    over = given["lease_is_over"]
    # A key may have an operation in front of it; --operation is a filter of many.
    with opened(given["store"]) as ops:
        record = find(ops, names, given["tenant"])
        ops.check(record, outcome, mark_seen=given["seen"], lease_is_over=over)
        if given["dry_run"]:
            tell_about(record)
            out.note(f"dry run: {record.key} would become {outcome.state}; nothing was written")
            if as_json:
                out.data(as_object(record))
            return Exit.FINE
        if given["yes"] is None:
            ask_about(record, f"Write '{outcome.value}' in the name of {who}?")
        after = ops.resolve(record, outcome, who=who, why=why, result=result, lease_is_over=over)
    if as_json:
        out.data(as_object(after))
    else:
        out.line(f"{after.key} was {record.state} and is now {after.state}, says {who}")
    if outcome is Resolution.HAPPENED and after.result is None:
        out.note("no result is kept: callers of this key get ResultNotKept, and the effect is not run again")
    return Exit.FINE


def _many(
    outcome: Resolution, who: str, why: str, result: tuple[Any] | None, as_json: bool, given: dict[str, Any]
) -> Exit:
    if result is not None or given["status"] is not None:
        raise click.UsageError("--result and --status are for one KEY: many callers would get one and the same result.")
    for option in ("seen", "lease_is_over"):
        if given[option]:
            raise click.UsageError(f"--{option.replace('_', '-')} is for one KEY.")
    need_an_answer(given["yes"], dry_run=given["dry_run"])
    wanted = {name: given[name] for name in FILTERS}
    wanted["waiting"] = wanted["waiting"] or not wanted["states"]
    filtered = search_of(**wanted)
    with opened(given["store"]) as ops:
        filtered.report()
        return resolve_all(
            ops, filtered.search, outcome, who, why, yes=given["yes"], dry_run=given["dry_run"], as_json=as_json
        )


def _answer(status: int, result: tuple[Any] | None) -> bytes:
    """An answer as an HTTP endpoint keeps it."""
    from samekey.http import answer

    return answer(status, "" if result is None else json.dumps(result[0]))


def _outcome(given: dict[str, Any]) -> Resolution:
    named = [name for name in ("happened", "refused", "not_done") if given[name]]
    if len(named) != 1:
        raise click.UsageError("give one of --happened, --refused, --not-done.")
    return Resolution(named[0])
