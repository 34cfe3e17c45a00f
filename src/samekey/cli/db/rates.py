"""`samekey db rates`: which rates of the fleet are higher than usual."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

import click

from samekey.cli import _out as out
from samekey.cli.exits import Exit
from samekey.detect.rates import PrometheusFailed, exposition
from samekey.detect.rates import rates as read_rates

HOURS_MAX = 24 * 31


@click.command()
@click.option("--from", "url", required=True, metavar="URL", help="Prometheus, such as http://prometheus:9090.")
@click.option(
    "--hours", type=click.FloatRange(1, HOURS_MAX), default=168.0, help="How far back it learns what is usual."
)
@click.option("--by", multiple=True, metavar="LABEL", help="Break down by these labels, such as region; repeatable.")
@click.option(
    "--textfile", type=click.Path(dir_okay=False, path_type=Path), help="Also write the scores for Prometheus."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def rates(url: str, hours: float, by: tuple[str, ...], textfile: Path | None, as_json: bool) -> Exit:
    """Show replays, key conflicts and duplicates of the fleet, each with its usual band.

    It reads counters from Prometheus minute by minute. A score above 6 in the last hour is an alarm: a usual rate gives
    such a minute less than once in a million minutes.

    \b
    Example:
      samekey db rates --from http://prometheus:9090 --by region

    \b
    Exit codes: 0 all as usual; 1 a rate is higher than usual; 2 usage; 4 Prometheus did not answer, or has no counters.
    """
    try:
        found = read_rates(url, now=time.time(), hours=hours, by=by)
    except PrometheusFailed as error:
        out.note(f"samekey: {error.message}")
        return Exit.INCOMPLETE
    if textfile is not None:
        made = textfile.with_name(textfile.name + ".new")
        made.write_text(exposition(found))
        made.replace(textfile)
    if as_json:
        out.data({"schema": "samekey.rates/1", "rates": [{**asdict(one), "alarm": one.alarm} for one in found]})
    else:
        out.table(
            ("signal", "label", "last hour", "usual", "score"),
            [
                (one.signal, one.label, f"{one.share:.3%}", f"{one.low:.3%} to {one.high:.3%}", f"{one.score:.1f}")
                for one in found
            ],
        )
    if not found:
        out.note("samekey: Prometheus has no counters of samekey: nothing is known about the rates")
        return Exit.INCOMPLETE
    return Exit.FOUND if any(one.alarm for one in found) else Exit.FINE
