"""Interrupts in an event loop that is run on, or again: Ctrl-C in a notebook, a signal handler that raises.

Threads: `test_turns.py::test_a_lane_outlives_an_interrupt_anywhere`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from itertools import count
from uuid import uuid4

import pytest

from samekey.core.commands import Open, Settle
from samekey.core.fingerprint import Fingerprint
from samekey.core.key import make_key
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.drivers.postgres.migrate import migrate
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore
from samekey.testing.servers import postgres
from tests.stores.interrupts import TimeLimit, interrupted_at

A, B = "a" * 32, "b" * 32
ANSWER_SECONDS = 20.0  # nobody waits so long for an answer, unless there will be none


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres() as server:
        made = server.create_database()
        migrate(made)
        yield made


def opening(text: str | None = None, *, by: str = A) -> Open:
    return Open(make_key("own", text or uuid4().hex), by, Fingerprint(b"\x01" * 32, "1", ()), "opaque", 30.0, False)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeLimit])
def test_an_interrupt_at_any_line_of_a_loop_leaves_nothing_to_its_next_task(url, kind):
    """Its callbacks send and answer for all tasks: interrupted there, a lane goes on, and whoever waits is told."""
    with contextlib.closing(PostgresStore(url)) as store:
        paid = store.carry_out(opening())
        store.carry_out(Settle(paid, Role.HOLDER, State.COMPLETED, A, b"paid", None, "", 3600.0))
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # what was interrupted, and nobody asks after
    ours = AsyncPostgresStore(url)

    async def together(*commands: Open) -> list[Record]:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await asyncio.gather(*[ours.carry_out(command) for command in commands])

    async def apart(*commands: Open) -> None:  # what became of one is not told to the others
        tasks = [asyncio.create_task(ours.carry_out(command)) for command in commands]
        _, waiting = await asyncio.wait(tasks, timeout=ANSWER_SECONDS)
        assert not waiting

    loop.run_until_complete(together(opening()))
    for number in count(1):
        with interrupted_at(number, "stores/postgres/_", "drivers/postgres/", kind=kind) as strike:
            loop.run_until_complete(apart(opening(), opening(), opening()))
        mine = opening(by=B)
        found, held = loop.run_until_complete(together(opening(paid.key.text, by=B), mine))

        assert (found.state, found.result, found.attempt) == (State.COMPLETED, b"paid", A), strike.where
        assert (held.key, held.attempt) == (mine.key, B), strike.where
        if not strike.struck:
            break
    assert number > 100
    loop.run_until_complete(asyncio.wait_for(ours.close(), ANSWER_SECONDS))
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
