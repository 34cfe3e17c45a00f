"""samekey ask: call the lookup of a record's boundary now."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from samekey import AsyncGuard, Guard
from samekey.cli import _out as out
from samekey.cli._app import load, store_of
from samekey.cli._asking import Asked as Careful
from samekey.cli._asking import find, one_record
from samekey.cli._record import as_object
from samekey.cli.exits import Exit
from samekey.core.boundary import Verdict
from samekey.core.record import Record
from samekey.core.recovery import spoken
from samekey.core.states import State
from samekey.guard.asking import Asked, ask, async_ask
from samekey.ops import CannotResolve, NoSuchKey, Ops
from samekey.ops.story import whose_turn


@click.command(name="ask")
@click.option("--app", required=True, metavar="MODULE:GUARD", help="Your guard: its operations have the lookups.")
@one_record
@click.pass_context
def ask_command(ctx: click.Context, /, names: tuple[str, ...], app: str, as_json: bool, **given: Any) -> Exit:
    """Ask the provider about a doubt now, with the lookup that your code declares.

    Its verdict is written as any caller would write it; the effect is not run. If the provider has no record of it, the
    doubt stays: only a call that runs the effect may believe that. The guard's own store is used. Exits with 1 if the
    record is still in doubt.

    \b
    Example:
      samekey ask charge order-17 --app shop.payments:guard
    """
    guard = load(app)
    if ctx.get_parameter_source("store") is click.core.ParameterSource.COMMANDLINE:
        raise click.UsageError("ask uses the guard's own store: leave --store out.")
    store = store_of(guard)
    try:
        seen = find(Ops(Careful(store)), names, given["tenant"])
        _check(seen)
        after, verdict = _ask(guard, seen)
    finally:
        store.close()
    if after is None:
        raise NoSuchKey(f"there is no record of {seen.key} any more", key=seen.key.text)
    if as_json:
        out.data({"verdict": None if verdict is None else type(verdict).__name__.lower(), "record": as_object(after)})
    else:
        out.line(f"{after.key} was {seen.state} and is now {after.state}: {_reported(verdict)}")
    if after.state is State.IN_DOUBT:
        turn = whose_turn(after)
        out.note(f"whose turn: {turn.whose}: {turn.says}")
        return Exit.FOUND
    return Exit.FINE


def _reported(verdict: Verdict | None) -> str:
    return "the provider was not asked" if verdict is None else spoken(verdict)


def _ask(guard: Guard | AsyncGuard, seen: Record) -> Asked:
    """In the guard's own colour: its lookup may be async."""
    if isinstance(guard, Guard):
        return ask(guard, seen)

    async def asked() -> Asked:
        try:
            return await async_ask(guard, seen)
        finally:
            await guard.close()

    return asyncio.run(asked())


def _check(seen: Record) -> None:
    if seen.lease_live:
        raise CannotResolve(f"{seen.key} is held: its holder is alive and will settle it", record=seen)
    if seen.settled or (seen.state is State.RELEASED and seen.happened is None):
        raise CannotResolve(f"{seen.key} is {seen.state}: there is no doubt to ask about", record=seen)
