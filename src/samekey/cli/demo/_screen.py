"""What is seen: three columns while they play, and the ending.

Lines that people copy are printed as they are, never wrapped: a broken command line is no command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from samekey.cli.demo._plan import NO_GUARD, SAMEKEY, TEXTBOOK
from samekey.cli.demo._stage import Column
from samekey.cli.demo._verdict import Totals

LINE_SECONDS = 1.0  # how often a plain line is written where the output is no terminal

SUBTITLES: Mapping[str, str] = {
    NO_GUARD: "no answer: call again",
    TEXTBOOK: "SET NX, TTL, DEL",
    SAMEKEY: "Guard, Asks(lookup)",
}


@contextmanager
def watching(columns: Mapping[str, Column], *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """A function that shows the columns as they are now: live on a terminal, else a line now and then."""
    console, begun, next_line = Console(), time.monotonic(), 0.0

    def write_line() -> None:
        nonlocal next_line
        now = time.monotonic()
        if now >= next_line or all(column.over for column in columns.values()):
            next_line = now + LINE_SECONDS
            counts = [f"{one.name}: {_answered(one)} answered, {_twice(one)} charged twice" for one in columns.values()]
            click.echo(f"{now - begun:5.1f} s   " + "   ".join(counts), err=True)

    if quiet:
        yield lambda: None
    elif console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda: live.update(side_by_side(columns.values()), refresh=True)
    else:
        yield write_line


def side_by_side(columns: Collection[Column]) -> Table:
    table = Table("", *(f"{one.name}\n{SUBTITLES[one.name]}" for one in columns))
    table.add_row("answered", *map(_answered, columns))
    table.add_row("charged twice", *(_coloured(_twice(one)) for one in columns))
    table.add_row("workers killed -9", *(str(len(one.killed)) for one in columns))
    table.add_row("asked first", *(str(one.lookups) if one.name == SAMEKEY else "-" for one in columns))
    table.add_row("in doubt", *(str(len(one.in_doubt)) if one.name == SAMEKEY else "-" for one in columns))
    return table


def _answered(column: Column) -> str:
    return f"{column.ended}/{column.deliveries}"


def _twice(column: Column) -> int:
    return sum(charges > 1 for charges in column.charged.values())


def _coloured(twice: int) -> Text:
    return Text(str(twice), style="bold red" if twice else "bold green")


# -- the ending ------------------------------------------------------------------------------------------


def ledger_table(totals: Mapping[str, Totals]) -> None:
    """The totals as the provider's ledger has them."""
    table = Table(title="What the provider's ledger says", title_justify="left", title_style="bold")
    table.add_column("")
    for heading in ("orders", "charges", "charged twice", "too much", "lost", "in doubt"):
        table.add_column(heading, justify="right")
    for name, one in totals.items():
        table.add_row(
            name,
            str(one.orders),
            str(one.charges),
            _coloured(len(one.doubled)),
            f"${one.overcharged / 100:,.2f}",
            str(len(one.lost)),
            str(len(one.in_doubt)) if name == SAMEKEY else "-",  # the others cannot even say it
        )
    Console().print(table)


def paragraph(heading: str, *lines: str) -> None:
    click.echo()
    click.secho(heading, bold=True)
    for line in lines:
        click.echo(f"  {line}" if line else "")
