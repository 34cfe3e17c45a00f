"""samekey redeliver: publish parked messages again. What becomes of them, their records decide."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import click

from samekey.cli import _out as out
from samekey.cli._asking import common, opened
from samekey.cli._decision import login
from samekey.cli.exits import Exit
from samekey.core.errors import Misconfigured
from samekey.core.parking import PARKED_MAX, Parked, ParkedQuery
from samekey.ops import NoSuchKey
from samekey.ops.story import when

Publish = Callable[[Parked], Any]


@click.command()
@click.argument("names", nargs=-1, metavar="[OPERATION] KEY")
@click.option("--reason", metavar="KIND", help="All that wait for this kind of reason: 'in doubt', poison, ...")
@click.option("--tenant", metavar="T", help="The tenant, where the operation has tenants.")
@click.option("--publish", metavar="MODULE:FUNCTION", help="Your function that publishes one parked message.")
@click.option("--who", metavar="NAME", help="Your name.  [default: your login name]")
@click.option("--limit", type=click.IntRange(1, PARKED_MAX), default=100, help="At most so many messages.")
@click.option("--dry-run", is_flag=True, help="List the messages; publish none.")
@common
def redeliver(names: tuple[str, ...], store: str | None, as_json: bool, **given: Any) -> Exit:
    """Publish parked messages again, and mark them.

    FUNCTION gets a `samekey.core.parking.Parked` (destination, header_pairs, body) and must return only when the
    broker has the message. It is marked after that: a crash in between publishes it twice, which is harmless, because
    the record decides. A settled record answers, a released one runs, and one that is in doubt parks the message again.

    \b
    Example:
      samekey redeliver charge order-17 --publish shop.consumers:publish
      samekey redeliver --reason 'not done' --dry-run
    """
    query = _query(names, given["reason"], given["tenant"], given["limit"])
    publish = None if given["dry_run"] else _function(given["publish"])
    who = login() if given["who"] is None else given["who"]
    with opened(store) as ops:
        messages: list[Parked] = list(ops.store.parked(query))
        if not messages and names:
            raise NoSuchKey(f"no message of {' '.join(names)} is parked", key=names[-1])
        for message in messages if publish is not None else ():
            _published(publish, message)
            ops.store.redelivered(message.id, by=who)
    if as_json:
        done = publish is not None
        out.data({"redelivered": done, "messages": [_as_object(one) for one in messages]})
    for message in () if as_json else messages:
        out.line(f"{when(message.at)}  {message.operation} {message.key or '(no key)'}  {message.reason}")
    if publish is None:
        out.note("dry run: nothing was published")
    return Exit.FINE


def _query(names: tuple[str, ...], reason: str | None, tenant: str | None, limit: int) -> ParkedQuery:
    if len(names) > 2 or bool(names) == (reason is not None):
        raise click.UsageError("give [OPERATION] KEY, or --reason KIND.")
    operation = names[0] if len(names) == 2 else None
    key = names[-1] if names else None
    return ParkedQuery(operation=operation, key=key, tenant=tenant, kind=reason, waiting=True, limit=limit)


def _function(path: str | None) -> Publish:
    module, colon, name = (path or "").partition(":")
    if not (module and colon and name):
        raise click.UsageError("give --publish module:function, which publishes one parked message, or --dry-run.")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = getattr(import_module(module), name, None)
    except Exception as error:  # the user's own code runs here: show whatever it raises
        raised = f"importing {module} raised {type(error).__name__}: {error}"
        raise Misconfigured(raised, hint="--debug shows where") from error
    if not callable(found):
        raise Misconfigured(f"{path} is no function")
    publish: Publish = found
    return publish


def _published(publish: Publish | None, message: Parked) -> None:
    try:
        if publish is not None:
            publish(message)
    except Exception as error:
        raise Misconfigured(
            f"publishing {message.operation} {message.key} raised {type(error).__name__}: the message stays parked, "
            "and so do those after it",
            hint="--debug shows where",
        ) from error


def _as_object(message: Parked) -> dict[str, Any]:
    names = ("id", "operation", "tenant", "key", "destination", "kind", "reason")
    return {"at": when(message.at), **{name: getattr(message, name) for name in names}}
