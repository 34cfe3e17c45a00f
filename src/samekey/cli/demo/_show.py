"""The demo from start to end: play, count, print the two stories, and report whether the promise held."""

from __future__ import annotations

import json
import shlex
import time
from typing import Any

import click

from samekey import Guard, Record, State
from samekey.cli.demo import _screen
from samekey.cli.demo._columns import CHARGE, CHARGE_OPAQUE
from samekey.cli.demo._plan import COLUMNS, SAMEKEY, Fault, Order, plan
from samekey.cli.demo._stage import Broken, Stage
from samekey.cli.demo._verdict import Totals, broken_promises, count, nothing_shown
from samekey.cli.exits import Exit
from samekey.core.ports import LIST_MAX, Query
from samekey.ops import Ops
from samekey.ops.story import Resolution, explain, resolve_line

SHOP = "examples/shop.py"


def show(*, seed: int, orders: int, as_json: bool) -> Exit:
    """Play, print, and return the exit code."""
    planned, begun = plan(seed=seed, orders=orders), time.monotonic()
    try:
        with Stage(seed=seed, orders=orders) as stage, _screen.watching(stage.columns, quiet=as_json) as watch:
            stage.play(watch)
    except Broken as broken:
        click.echo(f"the demo did not get through: {broken}", err=True)
        return Exit.INCOMPLETE
    except KeyboardInterrupt:
        click.echo("stopped; every process of the demo is ended", err=True)
        return Exit.INCOMPLETE

    with Guard(stage.store) as guard:
        in_doubt = unsettled(guard)
        killed = killed_story(guard, planned)
        doubt = doubt_story(guard, planned, stage.columns[SAMEKEY].charged)
    totals = {
        name: count(planned, column.charged, in_doubt if name == SAMEKEY else ())
        for name, column in stage.columns.items()
    }
    bugs, gaps = broken_promises(planned, totals[SAMEKEY]), nothing_shown(totals)
    outcome = {
        "seed": seed,
        "seconds": round(time.monotonic() - begun, 1),
        "columns": {name: counted(totals[name]) for name in COLUMNS},
        "killed": killed,
        "in_doubt": doubt,
        "store": stage.store,
        "ledger": str(stage.ledger),
        "problems": bugs + gaps,
    }
    if as_json:
        click.echo(json.dumps(outcome, indent=2))
    else:
        ending(outcome, totals)
    for problem in bugs + gaps:
        click.secho(f"NOT AS PROMISED: {problem}", fg="red", err=True)
    return Exit.OUR_BUG if bugs else Exit.INCOMPLETE if gaps else Exit.FINE


def unsettled(guard: Guard) -> tuple[str, ...]:
    """Orders whose record has no outcome, and no worker works on them any more."""
    page = Ops(guard.store).list_records(Query(states=(State.IN_DOUBT, State.STARTED), limit=LIST_MAX))
    return tuple(sorted(record.key.text for record in page.records))


def killed_story(guard: Guard, orders: list[Order]) -> dict[str, Any] | None:
    """What became of the first order whose worker was killed."""
    order = next(order for order in orders if order.fault is Fault.KILLED)
    record = guard.peek(CHARGE, order.id)
    if record is None:
        return None  # never claimed: the count says what that means
    return {
        "order": order.id,
        "explain": explain(record, store=guard.store.name).lines(),
        "command": shlex.join(["samekey", "explain", CHARGE, order.id, "--store", guard.store.name]),
    }


def doubt_story(guard: Guard, orders: list[Order], charged: dict[str, int]) -> dict[str, Any] | None:
    """The Opaque order, and the line that settles it."""
    order = next(order for order in orders if order.opaque)
    record: Record | None = guard.peek(CHARGE_OPAQUE, order.id)
    if record is None or record.state is not State.IN_DOUBT:
        return None  # its answer came in time after all: a very busy machine
    outcome = Resolution.HAPPENED if charged.get(order.id) else Resolution.NOT_DONE
    return {
        "order": order.id,
        "charges": charged.get(order.id, 0),
        "command": resolve_line(record, outcome, store=guard.store.name),
    }


def counted(totals: Totals) -> dict[str, int]:
    return {
        "orders": totals.orders,
        "charges": totals.charges,
        "charged_twice": len(totals.doubled),
        "overcharged_cents": totals.overcharged,
        "lost": len(totals.lost),
        "in_doubt": len(totals.in_doubt),
    }


def ending(outcome: dict[str, Any], totals: dict[str, Totals]) -> None:
    click.echo()
    _screen.ledger_table(totals)
    killed, doubt = outcome["killed"], outcome["in_doubt"]
    if killed is not None:
        _screen.paragraph(
            f"Order {killed['order']}: the provider charged, then its worker was killed with -9. Explained by samekey:",
            *killed["explain"],
            "",
            f"again: {killed['command']}",
        )
    if doubt is not None:
        times = {0: "do not have it", 1: "have it once"}.get(doubt["charges"], "have it more than once")
        _screen.paragraph(
            f"Order {doubt['order']} is in doubt: no answer came, and under Opaque the provider cannot be asked.",
            "So every retry got 'in doubt' instead of a second charge, and the order waits for a person.",
            f"The provider's books {times}; a person who looked there settles it with:",
            "",
            doubt["command"],
        )
    _screen.paragraph(
        f"{outcome['seconds']:.1f} s, seed {outcome['seed']}",
        f"kept for you: {outcome['store'].removeprefix('sqlite:///')}  (what samekey remembers)",
        f"              {outcome['ledger']}  (what the provider charged)",
        f"your turn:    {SHOP} in the source, a shop of your own in 60 lines",
    )
