"""samekey worker: look at dead holds and doubts, without waiting for a client to come back."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import click

from samekey import Guard
from samekey.cli import _out as out
from samekey.cli._app import load
from samekey.cli.exits import Exit
from samekey.core.errors import Misconfigured
from samekey.doubt import AsyncWorker, Tally, Worker
from samekey.doubt.pace import parse_rate
from samekey.doubt.worker import EVERY_SECONDS


@click.command(name="worker")
@click.option("--app", required=True, metavar="MODULE:GUARD", help="Your guard: its operations have the boundaries.")
@click.option("--once", is_flag=True, help="Look at everything that is due now, and end: for cron.")
@click.option("--shard", metavar="I/N", default="0/1", help="This is worker I of N, counted from 0.")
@click.option("--rate", "rates", multiple=True, metavar="OPERATION=20/s", help="Looks at an operation, of all workers.")
@click.option("--every", default=EVERY_SECONDS, show_default=True, help="Seconds between rounds that found nothing.")
@click.option("--quiet", default=0.0, show_default=True, help="Seconds after a lease before the first look.")
@click.option("--json", "as_json", is_flag=True, help="JSON on stdout, for programs.")
def worker(app: str, once: bool, shard: str, rates: tuple[str, ...], every: float, quiet: float, as_json: bool) -> Exit:
    """Find dead holds and doubts, and do about each what its boundary allows.

    It asks the provider, adopts what it finds, runs again what may run again and whose payload was kept, and parks the
    rest with a reason. SIGTERM and Ctrl-C let it finish what it has begun. Exits with 0 if nothing is left, with 1 if
    doubts are parked or an operation is not declared, with 4 if it was interrupted.

    \b
    Example:
      samekey worker --app shop.payments:guard --once
    """
    guard = load(app)
    settings: dict[str, Any] = {"shard": _shard(shard), "rates": dict(map(_rate, rates)), "quiet": quiet}
    if isinstance(guard, Guard):
        tally, parked, stopped = _sync(Worker(guard, **settings), once, every)
    else:
        tally, parked, stopped = asyncio.run(_async(AsyncWorker(guard, **settings), once, every))
    if as_json:
        out.data({**tally.as_object(), "parked": parked, "interrupted": stopped})
    else:
        _report(tally, parked)
    if stopped and once:
        return Exit.INCOMPLETE
    return Exit.FOUND if parked or tally.undeclared or tally.findings or tally.errors else Exit.FINE


def _sync(worker: Worker, once: bool, every: float) -> tuple[Tally, int, bool]:
    before = {number: signal.signal(number, lambda *_: worker.stop()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        tally = worker.run_once() if once else worker.run(every=every)
        return tally, worker.parked(), worker.stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        worker.guard.close()


async def _async(worker: AsyncWorker, once: bool, every: float) -> tuple[Tally, int, bool]:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, worker.stop)
    try:
        tally = await worker.run_once() if once else await worker.run(every=every)
        return tally, await worker.parked(), worker.stopped
    finally:
        await worker.guard.close()


def _report(tally: Tally, parked: int) -> None:
    how = ", ".join(f"{number} {what}" for what, number in sorted(tally.how.items()))
    out.line(f"looked at {tally.looked}{': ' + how if how else ''}")
    if tally.late or tally.findings:
        out.line(f"late truths: {tally.late} delivered, {tally.findings} kept as findings")
    if parked:
        out.note(f"{parked} parked: samekey ls --parked shows why")
    for name in sorted(tally.undeclared):
        out.note(f"{name} has records, and the guard does not declare it: see guard.declare")


def _shard(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal()):
        raise click.UsageError(f"--shard takes I/N, as in 0/4, not {text!r}.")
    return int(number), int(of)


def _rate(text: str) -> tuple[str, float]:
    name, equals, rate = text.rpartition("=")
    if not equals or not name:
        raise click.UsageError(f"--rate takes OPERATION=20/s, not {text!r}.")
    try:
        return name, parse_rate(rate)
    except Misconfigured as error:
        raise click.UsageError(str(error)) from error
