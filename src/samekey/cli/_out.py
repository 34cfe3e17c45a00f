"""Printing: data to stdout, everything else to stderr; control characters of a record never reach a terminal."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from samekey.core.states import State

_COLOURS: dict[str, str] = {
    State.STARTED: "cyan",
    State.COMPLETED: "green",
    State.CLOSED: "magenta",
    State.RELEASED: "blue",
    State.IN_DOUBT: "bold yellow",
}
_BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def clean(text: str) -> str:
    """Spell out the characters that control a terminal: escapes, line ends, marks that reverse the text direction."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_spelled(char) if _obeyed(char) else char for char in text)


def _obeyed(char: str) -> bool:
    return char in _BIDI or unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")


def _spelled(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 0x100 else f"\\u{ord(char):04x}"


JSON_VERSION = 1  # raised when a field changes its meaning or goes; a new field does not raise it


def data(value: dict[str, Any]) -> None:
    """One JSON object on one line, with the version of its shape. ASCII: it may end up on a terminal too."""
    click.echo(json.dumps({"v": JSON_VERSION, **value}, ensure_ascii=True, allow_nan=False))


def line(text: str = "", *, style: str = "") -> None:
    """A line for people. It is never wrapped, so that a command line in it can be copied."""
    if style and is_terminal():
        _console().print(Text(clean(text), style=style), soft_wrap=True)
    else:
        click.echo(clean(text))


def note(text: str) -> None:
    """A message that is not data. If stderr cannot be written, the exit code still shows the outcome."""
    with suppress(OSError):
        click.echo(clean(text), err=True)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns on a terminal; on a pipe one line per row, separated by tabs, without a heading."""
    if not is_terminal():
        for row in rows:
            click.echo("\t".join(clean(cell) for cell in row))
        return
    drawn = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        drawn.add_column(name, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(clean(cell), style=_COLOURS.get(cell.split(" ")[0], "")) for cell in row))
    _console().print(drawn)


@contextmanager
def progress(length: int, label: str) -> Iterator[Callable[[int], Any]]:
    """A progress bar on a terminal's stderr, and nothing elsewhere; the function that is given moves it on."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    with click.progressbar(length=length, label=label, file=sys.stderr) as bar:
        yield bar.update


def is_terminal() -> bool:
    return sys.stdout.isatty()


def open_closed_streams() -> None:
    """A user that closed a stream (`>&-`) does not want it: write it to /dev/null; the exit code remains."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - as long as the process


def never_fail_on_odd_characters() -> None:
    """A key in Greek on an ASCII stream is spelled out, not an exception."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def _console() -> Console:
    # Made for each call: it reads its stream and NO_COLOR. No markup: "[red]" in a stored text is text.
    return Console(file=sys.stdout, markup=False, emoji=False, highlight=False)
