"""samekey sweep: delete records past their retention, at a measured pace."""

from __future__ import annotations

import time
from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli._asking import common, opened
from samekey.cli.exits import Exit
from samekey.core.errors import StoreUnavailable
from samekey.core.ports import LIST_MAX
from samekey.ops import Ops
from samekey.ops.sweeping import PACE, PIECE, sweeping

EVERY_SECONDS = 60.0  # between two rounds of --watch: a record past its retention costs disk space only
REPORT_SECONDS = 5.0  # between two lines of progress


@click.command()
@click.option("--watch", is_flag=True, help="Run for ever, round after round.")
@click.option(
    "--every",
    type=click.FloatRange(0.1),
    default=EVERY_SECONDS,
    metavar="SECONDS",
    help="With --watch: the pause between two rounds.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Records to delete, at most, in one round.")
@click.option("--pace", type=click.FloatRange(1), default=PACE, metavar="N", help="Records per second, at most.")
@click.option(
    "--piece", type=click.IntRange(1, LIST_MAX), default=PIECE, metavar="N", help="Records in one transaction, at most."
)
@common
def sweep(store: str | None, watch: bool, every: float, as_json: bool, **given: Any) -> Exit:
    """Delete records past their retention, at a measured pace.

    It never deletes a record that is held or in doubt, or a key that was claimed again meanwhile. Claims do not wait
    for it, several sweepers do not disturb each other, and it may be stopped at any time. It exits with 4 if --limit
    left something. With --watch it reports a store that is down and tries again in the next round.

    \b
    Example:
      samekey sweep --store postgresql://app@db/shop
      samekey sweep --watch --pace 2000
    """
    with opened(store) as ops:
        if not watch:
            return _round(ops, as_json, **given)
        try:
            while True:
                try:
                    _round(ops, as_json, **given)
                except StoreUnavailable as unavailable:
                    out.note(f"samekey: {unavailable.message}; next try in {every:g} s")
                time.sleep(every)
        except KeyboardInterrupt:
            out.note("stopped; the records swept so far are deleted, and no other was changed")
            return Exit.FINE


def _round(ops: Ops, as_json: bool, **given: Any) -> Exit:
    total, left, reported = 0, False, time.monotonic()
    for step in sweeping(ops.store, **given):
        total, left = step.total, step.left
        if time.monotonic() - reported >= REPORT_SECONDS:
            reported = time.monotonic()
            out.note(f"swept {total} so far")
        time.sleep(step.pause_seconds)
    if as_json:
        out.data({"store": ops.store.name, "swept": total, "complete": not left})
    else:
        out.line(f"swept {total}")
    if left:
        out.note("incomplete: --limit was reached, there may be more")
    return Exit.INCOMPLETE if left else Exit.FINE
