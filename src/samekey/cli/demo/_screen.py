"""What is seen: three columns while they play, and the ending.

Lines that people copy are printed as they are, never wrapped: a broken command line is no command line.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import click
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from samekey.cli.demo._plan import NO_GUARD, SAMEKEY, TEXTBOOK, Order
from samekey.cli.demo._stage import Column
from samekey.cli.demo._verdict import Totals

GRID_WIDTH = 20  # three grids in a row fit 80 characters
GRID_MAX = 300  # more orders than fit a screen are only counted
LINE_SECONDS = 1.0  # how often a plain line is written where the output is no terminal

SUBTITLES: Mapping[str, str] = {
    NO_GUARD: "no answer: call again",
    TEXTBOOK: "SET NX, TTL, DEL",
    SAMEKEY: "Guard, Asks(lookup)",
}


@contextmanager
def watching(
    columns: Mapping[str, Column], orders: list[Order], *, quiet: bool = False
) -> Iterator[Callable[[], None]]:
    """A function that shows the columns as they are now: live on a terminal, else a line now and then."""
    console = Console()
    if quiet:
        yield lambda: None
    elif console.is_terminal:
        glyphs = Glyphs.of(console)
        with Live(console=console, auto_refresh=False) as live:
            yield lambda: live.update(side_by_side(columns, orders, glyphs), refresh=True)
    else:
        yield _Lines(columns)


class _Lines:
    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns, self._begun, self._next = columns, time.monotonic(), 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._next and not all(column.over for column in self._columns.values()):
            return
        self._next = now + LINE_SECONDS
        counts = [
            f"{column.name}: {column.ended}/{column.deliveries} answered, {_twice(column)} charged twice"
            for column in self._columns.values()
        ]
        click.echo(f"{now - self._begun:5.1f} s   " + "   ".join(counts), err=True)


# -- the live columns ------------------------------------------------------------------------------------


class Glyphs:
    """One character for each order."""

    def __init__(self, *, not_yet: str, once: str, bar: str) -> None:
        self.not_yet, self.once, self.bar = not_yet, once, bar

    @classmethod
    def of(cls, console: Console) -> Glyphs:
        if console.encoding.startswith("utf"):
            return cls(not_yet="·", once="■", bar="━")
        return cls(not_yet=".", once="#", bar="=")

    def cell(self, order: Order, column: Column) -> tuple[str, str]:
        charges = column.charged.get(order.id, 0)
        if charges > 1:
            return str(min(charges, 9)), "bold white on red"
        if order.id in column.in_doubt:
            return "?", "bold yellow"
        return (self.once, "green") if charges else (self.not_yet, "dim")


def side_by_side(columns: Mapping[str, Column], orders: list[Order], glyphs: Glyphs) -> Group:
    whole = Table.grid(expand=False)
    whole.add_row(*(one_column(column, orders, glyphs) for column in columns.values()))
    return Group(whole, Text(f" {glyphs.once} charged once   2 charged twice   ? in doubt", style="dim"))


def one_column(column: Column, orders: list[Order], glyphs: Glyphs) -> Panel:
    grid = Text()
    if len(orders) <= GRID_MAX:
        for number, order in enumerate(orders):
            grid.append(*glyphs.cell(order, column))
            if number % GRID_WIDTH == GRID_WIDTH - 1:
                grid.append("\n")
    done = round(GRID_WIDTH * column.ended / column.deliveries)
    bar = Text(glyphs.bar * done, style="blue").append(glyphs.bar * (GRID_WIDTH - done), style="dim")
    twice = _twice(column)
    facts = Table.grid(padding=(0, 1))
    facts.add_row(Text(str(twice), style="bold red" if twice else "bold green"), "charged twice")
    facts.add_row(str(len(column.killed)), "workers killed -9")
    facts.add_row(*((str(column.lookups), "times asked first") if column.name == SAMEKEY else ("", "")))
    return Panel(
        Group(Text(SUBTITLES[column.name], style="dim"), bar, "", grid, facts),
        title=column.name,
        width=GRID_WIDTH + 6,
        border_style="green" if column.name == SAMEKEY else "red" if twice else "white",
    )


def _twice(column: Column) -> int:
    return sum(charges > 1 for charges in column.charged.values())


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
            Text(str(len(one.doubled)), style="bold red" if one.doubled else "bold green"),
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
