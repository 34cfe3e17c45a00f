"""samekey reconcile: our records against the provider's own statement."""

from __future__ import annotations

import time
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from samekey import Guard
from samekey.cli import _out as out
from samekey.cli._app import load
from samekey.cli._asking import common, open_there
from samekey.cli._keys import sealer
from samekey.cli._times import length, moment
from samekey.cli.exits import Exit
from samekey.core.books import make_finding
from samekey.core.errors import Misconfigured

HORIZON_SECONDS = 3 * 24 * 3600.0  # how long a charge may take to appear in a statement


@click.group(name="reconcile", invoke_without_command=True)
@click.option("--statement", "statements", multiple=True, metavar="FILE", help="The provider's statement, as CSV.")
@click.option("--map", "map_", metavar="NAME|FILE", help="A pack (stripe, adyen), or a TOML file with [statement.x].")
@click.option("--operation", metavar="NAME", help="Our side: the records of this operation.")
@click.option("--ledger", metavar="FILE", help="Our side: a table of your own, as CSV or Parquet.")
@click.option("--since", type=moment, metavar="TIME", help="Records created since then.")
@click.option("--horizon", type=length, default=HORIZON_SECONDS, metavar="LENGTH", help="A charge appears so late: 3d.")
@click.option("--plan", metavar="FILE", help="Write the proposed steps into this file.")
@click.option("--html", metavar="FILE", help="Write a page for people.")
@common
@click.pass_context
def reconcile(ctx: click.Context, /, **given: Any) -> Exit | None:
    """Compare our records with a provider's statement, and propose what to do.

    Exits with 0 if nothing needs an action, and with 1 otherwise.

    \b
    Example:
      samekey reconcile --statement may.csv --map stripe --operation charge --plan plan.jsonl
    """
    return None if ctx.invoked_subcommand else _compare(**given)


def _compare(
    statements: tuple[str, ...],
    map_: str | None,
    operation: str | None,
    ledger: str | None,
    since: float | None,
    horizon: float,
    plan: str | None,
    html: str | None,
    store: str | None,
    as_json: bool,
) -> Exit:
    from samekey.doubt.duckdb import Books
    from samekey.doubt.html_report import as_html
    from samekey.doubt.ours import records_of
    from samekey.doubt.pack import load_pack
    from samekey.doubt.plan import write_plan

    if not statements or map_ is None:
        raise click.UsageError("give --statement FILE and --map NAME.")
    if (operation is None) is (ledger is None):
        raise click.UsageError("our side is --operation NAME of a store, or --ledger FILE: give one of them.")
    pack, kept = load_pack(map_), None
    with Books() as books:
        books.load_statement(statements, pack.statement())
        if ledger is not None:
            books.load_ledger(ledger)
        else:
            kept = open_there(store)
            books.load_records(records_of(kept, operation=str(operation), since=since, keys=sealer()))
        outcome = books.compare(horizon=horizon)
    try:
        if kept is not None:
            for case in outcome.cases:
                if case.action in ("refund", "investigate"):
                    kept.keep_finding(_finding(case, pack.name))
    finally:
        if kept is not None:
            kept.close()
    steps = 0
    if plan is not None:
        steps = write_plan(plan, outcome, pack=pack.name, statement=statements, made_at=time.time())
    if html is not None:
        Path(html).write_text(as_html(outcome, title=f"{pack.name}: {', '.join(statements)}"), encoding="utf-8")
    if as_json:
        out.data({"counts": outcome.counts, "cut": outcome.cut, "clean": outcome.clean, "steps": steps})
    else:
        for name, number in sorted(outcome.counts.items()):
            out.line(f"{name:20} {number}")
        if plan is not None:
            out.note(f"{steps} steps to review: samekey reconcile review {plan} --by NAME")
    return Exit.FINE if outcome.clean else Exit.FOUND


@reconcile.command(name="review")
@click.argument("plan")
@click.option("--by", required=True, metavar="NAME", help="Your name: it is written into the audit log.")
@click.option("--step", "steps", type=int, multiple=True, help="Only these steps.")
def review_command(plan: str, by: str, steps: tuple[int, ...]) -> Exit:
    """Write your name into the steps of a plan that may be carried out."""
    from samekey.doubt.plan import review

    out.line(f"{review(plan, by, steps)} steps reviewed by {by}")
    return Exit.FINE


@reconcile.command(name="apply")
@click.argument("plan")
@click.option("--app", required=True, metavar="MODULE:GUARD", help="Your guard: refunds run under it.")
@click.option("--refund", metavar="MODULE:FUNCTION", help="Your function that sends one refund.")
@click.option("--books", metavar="MODULE:FUNCTION", help="Your function: what is left of a charge, and is it disputed?")
@click.option("--boundary", metavar="MODULE:BOUNDARY", help="The boundary of the refund; Opaque without it.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout, for programs.")
def apply_command(
    plan: str, app: str, refund: str | None, books: str | None, boundary: str | None, as_json: bool
) -> Exit:
    """Carry out the reviewed steps of a plan. It may be killed and run again: each charge is refunded once."""
    from samekey.doubt.plan import apply_plan

    guard = load(app)
    if not isinstance(guard, Guard):
        raise click.UsageError("apply takes a Guard, not an AsyncGuard.")
    functions = {name: _function(text) for name, text in (("refund", refund), ("books", books)) if text is not None}
    rules = None if boundary is None else _function(boundary)
    try:
        applied = apply_plan(guard, plan, boundary=rules, **functions)
    finally:
        guard.close()
    if as_json:
        out.data({"counts": dict(applied.counts), "problems": applied.problems})
    else:
        for how, number in sorted(applied.counts.items()):
            out.line(f"{how:20} {number}")
        for problem in applied.problems:
            out.note(problem)
    return Exit.FOUND if applied.problems or applied.counts["not reviewed"] else Exit.FINE


def _function(text: str) -> Any:
    module, colon, name = text.partition(":")
    try:
        found = getattr(import_module(module), name) if colon else None
    except (ImportError, AttributeError) as error:
        raise Misconfigured(f"{text} cannot be imported: {error}") from error
    if found is None:
        raise click.UsageError(f"give module:name, not {text!r}.")
    return found


def _finding(case: Any, pack: str) -> Any:
    operation, key, tenant = case.record or ("", "", None)
    return make_finding(
        f"reconcile-{case.category.replace('_', '-')}",
        at=time.time(),
        severity="high" if case.action == "refund" else "medium",
        title=f"{pack}: {case.category.replace('_', ' ')}",
        about=(case.head, key, *case.evidence[:1]),
        operation=operation,
        tenant=tenant,
        evidence={"charge": case.head, "keep": case.keep, "minor": case.minor, "currency": case.currency},
        proposal=case.action,
        source="reconcile",
    )
