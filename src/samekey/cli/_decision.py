"""What every command that changes a record has: a name, a reason, a look at it first, and a confirmation."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from samekey.cli import _out as out
from samekey.core.record import Record
from samekey.ops.story import explain, mark

F = TypeVar("F", bound=Callable[..., Any])

NOT_COUNTED = -1  # --yes without a number


def confirmed(value: str | int) -> int:
    """--yes, or --yes N: the number of records that the person expects to change."""
    if value == NOT_COUNTED:
        return NOT_COUNTED
    if not str(value).isdecimal():
        raise click.BadParameter(f"{value!r} is no number of records. Put --yes after the key.")
    return int(value)


def decision(command: F) -> F:
    """Add --why, --who, --seen, --dry-run and --yes."""
    options = (
        click.option("--why", metavar="TEXT", help="The reason. Kept in the audit log; needed unless --dry-run."),
        click.option("--who", metavar="NAME", help="Your name.  [default: your login name]"),
        click.option("--seen", metavar="MARK", help="Refuse if the record changed since `explain` printed this mark."),
        click.option("--dry-run", is_flag=True, help="Print what would be changed; change nothing."),
        click.option(
            "--yes",
            is_flag=False,
            flag_value=NOT_COUNTED,
            type=confirmed,
            metavar="[N]",
            help="Do not ask: for scripts. N is how many records you expect.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def signed(who: str | None, why: str | None, *, dry_run: bool) -> tuple[str, str]:
    """The name and the reason; a dry run needs none."""
    if dry_run:
        return who or "", why or ""
    if why is None:
        raise click.UsageError("give --why TEXT: it is kept in the audit log.")
    return login() if who is None else who, why


def need_an_answer(yes: int | None, *, dry_run: bool) -> None:
    """Refuse to begin where no terminal can be asked."""
    if yes is None and not dry_run and not someone_to_ask():
        raise click.UsageError(
            "stdin is no terminal, so this command cannot ask: add --yes to write without asking, or --dry-run to look."
        )


def login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise click.UsageError("you have no login name here: give --who NAME.") from None


def someone_to_ask() -> bool:
    return sys.stdin.isatty()


def ask_about(record: Record, question: str) -> None:
    """Print the story first, then ask: the person decides about the record that was shown, and only that changes."""
    tell_about(record)
    click.confirm(out.clean(question), abort=True, err=True)


def tell_about(record: Record) -> None:
    for text in explain(record).lines():
        if text == "What to do next":
            break
        out.note(text)
    out.note(f"mark: {mark(record)}")
