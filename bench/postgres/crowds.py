"""Many callers of one key: a storm in one process, and many who wait in another process than the holder's."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from bench.figures import Experiment, Figure, Reading, at_most, exactly
from bench.groups import storm
from bench.groups.sqlite import PAYLOAD, command
from bench.measure import Effort, percentile
from bench.postgres import completing, served
from samekey import AsyncGuard
from samekey.drivers.postgres.connection import AsyncConnection, Landed
from samekey.drivers.postgres.exchange import Query
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore

WAITERS = 500
WAITS_MAX = 10
HEAD_START_SECONDS = 0.4  # until the waiters of the other process surely wait
COMMANDS_MAX = 20  # of one process, whatever the number that waits in it


def tasks_in_a_storm(effort: Effort) -> Sequence[Reading]:
    with served() as (_, url):
        return asyncio.run(_storms(effort, url))


async def _storms(effort: Effort, url: str) -> Sequence[Reading]:
    guard = AsyncGuard(AsyncPostgresStore(url))
    await storm.among_tasks(guard, "connected")
    return await storm.tasks(effort, guard)


def waiters(effort: Effort) -> Sequence[Reading]:
    """We hold and settle; many callers in another process wait. From the call of settle to each answer."""
    waited, asked = list[float](), list[float]()
    with served() as (_, url):
        store = PostgresStore(url)
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        child = context.Process(target=wait_there, args=(url, there), daemon=True)
        child.start()
        here.recv()
        for number in range(min(effort.rounds, WAITS_MAX) + 1):
            held = store.carry_out(command(f"key-{number}"))
            here.send(f"key-{number}")
            time.sleep(HEAD_START_SECONDS + number * 0.0013)
            settled_at = time.monotonic()  # the same clock in both processes
            store.carry_out(completing(held))
            answered, commands = here.recv()
            if number:  # the first time everything connects
                waited += [(at - settled_at) * 1e3 for at in answered]
                asked.append(float(commands))
        here.send(None)
        child.join()
        store.close()
    return [
        Reading(percentile(waited, 0.50), waited[:: max(1, len(waited) // 100)], f"p99 {percentile(waited, 0.99):.1f}"),
        Reading(max(asked), asked, "claims, looks and slow re-reads of the whole process, from its first to its last"),
    ]


def wait_there(url: str, parent: Connection) -> None:
    """The other process: for each key the times at which its callers were answered, and what it asked the server."""
    asyncio.run(_wait_there(url, parent))


async def _wait_there(url: str, parent: Connection) -> None:
    guard = AsyncGuard(AsyncPostgresStore(url))
    asked = 0
    start = AsyncConnection.start

    def counted(self: AsyncConnection, query: Query, landed: Landed) -> None:
        nonlocal asked
        asked += 1
        start(self, query, landed)

    AsyncConnection.start = counted  # type: ignore[method-assign]

    async def effect() -> None:
        raise AssertionError("the key is held by the other process: nothing runs here")

    async def caller(key: str) -> float:
        await guard.run("charge", effect, key=key, payload=PAYLOAD)
        return time.monotonic()

    parent.send("ready")
    loop = asyncio.get_running_loop()
    while (key := await loop.run_in_executor(None, storm.next_key, parent)) is not None:
        asked = 0
        answered = await asyncio.gather(*(caller(key) for _ in range(WAITERS)))
        parent.send((answered, asked))
    await guard.close()


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        (
            Figure("postgres.storm.effects", "effects", f"{storm.TASKS} tasks", exactly(1)),
            Figure("postgres.storm.wrong", "answers", "callers without the result", exactly(0)),
            Figure("postgres.storm.p50", "ms", "50 ms of effect"),
            Figure("postgres.storm.p99", "ms", "50 ms of effect", at_most(150.0)),
        ),
        tasks_in_a_storm,
    ),
    Experiment(
        (
            Figure(
                f"postgres.waiters.{WAITERS}",
                "ms",
                f"settle in one process, p50 of {WAITERS} waiting in another, commit included",
                at_most(10.0),
            ),
            Figure(
                f"postgres.waiters.{WAITERS}.commands",
                "commands",
                "the process that waits, for all of them",
                at_most(COMMANDS_MAX),
            ),
        ),
        waiters,
    ),
)
