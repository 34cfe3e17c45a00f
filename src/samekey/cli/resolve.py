"""samekey resolve: a person says how a doubt ended."""

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
from samekey.ops import NOT_GIVEN, Word, explain
from samekey.ops import mark as mark_of


def _json(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[Any] | None:
    """The value in a tuple: null is a result, too."""
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
@click.option("--result", callback=_json, metavar="JSON", help="With --happened: what the key shall answer.")
@click.option("--why", required=True, metavar="TEXT", help="How you know. Kept for ever in the audit log.")
@click.option("--who", metavar="NAME", help="Who says so.  [default: your login name]")
@click.option("--seen", metavar="MARK", help="Refuse if the record moved on since `explain` gave you this mark.")
@click.option("--yes", is_flag=True, help="Do not ask: for scripts.")
@one_record
def resolve(
    store: str | None,
    words: tuple[str, ...],
    tenant: str | None,
    happened: bool,
    refused: bool,
    not_done: bool,
    result: tuple[Any] | None,
    why: str,
    who: str | None,
    seen: str | None,
    yes: bool,
    as_json: bool,
) -> Exit:
    """Say how a doubt ended: --happened, --refused or --not-done.

    Look at the provider's books first; `samekey explain` says where. Your word is written only if the record is
    still the one you were shown, and is kept with your name and reason. A record whose holder is alive is left
    alone. Without --result, callers of a key that happened get what a late attempt left as evidence, or else learn
    that the result was not kept; with it they get the plain JSON value, also where the function would have returned
    an object of a class.

    \b
    Example:
      samekey resolve charge order-17 --happened --result '{"id": "ch_1"}' --why 'on the statement of May 3'
    """
    word = _one_word(happened=happened, refused=refused, not_done=not_done)
    if result is not None and word is not Word.HAPPENED:
        raise click.UsageError("--result goes with --happened.")
    who = _login() if who is None else who
    if not yes and not someone_to_ask():
        raise click.UsageError("stdin is no terminal, so nobody can be asked: add --yes if this is meant.")
    with opened(store) as ops:
        record = find(ops, words, tenant)
        ops.check(record, word, mark_seen=seen)
        if not yes:
            _ask(record, word, who)
        after = ops.resolve(record, word, who=who, why=why, result=NOT_GIVEN if result is None else result[0])
    if as_json:
        out.data(as_object(after))
    else:
        out.line(f"{after.key} was {record.state} and is now {after.state}, says {who}")
    if word is Word.HAPPENED and after.result is None:
        out.note("no result is kept: callers of this key will learn that it happened, and get ResultNotKept")
    return Exit.FINE


def _one_word(**said: bool) -> Word:
    words = [name for name, given in said.items() if given]
    if len(words) != 1:
        raise click.UsageError("say one of --happened, --refused, --not-done.")
    return Word(words[0])


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise click.UsageError("you have no login name here: give --who NAME.") from None


def someone_to_ask() -> bool:
    return sys.stdin.isatty()


def _ask(record: Record, word: Word, who: str) -> None:
    """The story first, then the question: a person decides on what was shown, and only that is written over."""
    for text in explain(record).lines():
        if text == "What to do next":
            break
        out.note(text)
    out.note(f"mark: {mark_of(record)}")
    click.confirm(out.clean(f"Write '{word.value}' in the name of {who}?"), abort=True, err=True)
