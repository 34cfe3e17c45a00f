"""Many who want one key in Redis: a storm of tasks in one process, and tasks that wait in another one for a settle."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection

from bench.figures import Experiment, Figure, Reading, at_most, exactly
from bench.groups import storm as storms
from bench.groups.redis import settling
from bench.groups.sqlite import command
from bench.groups.storm import STORMS_MAX, TASKS, next_key, readings
from bench.measure import Effort, percentile, quiet
from samekey import AsyncGuard
from samekey.core.commands import Wait
from samekey.core.record import Record
from samekey.stores.redis import AsyncRedisStore, RedisStore
from samekey.testing.servers import redis_server

WAITERS = 500
WAITS_MAX = 15
WAIT_SECONDS = 30.0
HEAD_START_SECONDS = 0.2  # until the waiters of the other process surely wait


def storm(effort: Effort) -> Sequence[Reading]:
    with redis_server() as server:
        return asyncio.run(_storm(effort, AsyncGuard(server.url())))


async def _storm(effort: Effort, guard: AsyncGuard) -> Sequence[Reading]:
    seen = []
    await storms.among_tasks(guard, "warm")
    for number in range(min(effort.rounds, STORMS_MAX)):
        with quiet():
            seen.append(await storms.among_tasks(guard, f"key-{number}"))
    await guard.close()
    return readings(seen)


def waiters(effort: Effort) -> Sequence[Reading]:
    """We hold and settle; 500 tasks in another process wait. From the settle, by the server's clock, to each answer.

    The script that settles looks at the clock and publishes; server and processes are on one machine and share it.
    """
    after_settle: list[list[float]] = []
    after_call: list[list[float]] = []
    calls = []
    with redis_server() as server:
        store = RedisStore(server.url())
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        child = context.Process(target=wait_there, args=(server.url(), there), daemon=True)
        child.start()
        there.close()
        here.recv()  # EOFError: it could not start, and printed why
        for number in range(min(effort.rounds, WAITS_MAX)):
            held = store.carry_out(command(f"key-{number}"))
            server.call("CONFIG", "RESETSTAT")
            here.send(f"key-{number}")
            time.sleep(HEAD_START_SECONDS)
            called_at = time.time()
            settled = store.carry_out(settling(held))
            answered = here.recv()
            assert settled is not None
            after_settle.append([(answered_at - settled.changed_at) * 1e3 for answered_at in answered])
            after_call.append([(answered_at - called_at) * 1e3 for answered_at in answered])
            told = server.call("INFO", "commandstats")
            calls.append(float(sum(_calls(told, name) for name in ("evalsha", "eval", "subscribe", "unsubscribe"))))
        here.send(None)
        child.join()
        store.close()
    return [_median_of(after_settle), _median_of(after_call), Reading(max(calls), calls)]


def _median_of(rounds: Sequence[Sequence[float]]) -> Reading:
    waited = [milliseconds for one in rounds for milliseconds in one]
    best = min(percentile(one, 0.50) for one in rounds)
    note = f"p99 {percentile(waited, 0.99):.1f}, p50 of the best round {best:.1f}"
    return Reading(percentile(waited, 0.50), waited[:: max(1, len(waited) // 100)], note)


def _calls(told: str, name: str) -> int:
    return int(told.partition(f"cmdstat_{name}:calls=")[2].partition(",")[0] or 0)


def wait_there(url: str, parent: Connection) -> None:
    """The other process: for each key it is given, the times at which those who wait for it came back."""
    asyncio.run(_wait_there(url, parent))


async def _wait_there(url: str, parent: Connection) -> None:
    store = AsyncRedisStore(url)

    async def waiter(seen: Record) -> float:
        await store.wait(Wait(seen), WAIT_SECONDS)
        return time.time()

    parent.send("ready")
    loop = asyncio.get_running_loop()
    while (text := await loop.run_in_executor(None, next_key, parent)) is not None:
        seen = await store.carry_out(command(text))
        parent.send(await asyncio.gather(*(waiter(seen) for _ in range(WAITERS))))
    await store.close()


EXPERIMENTS = (
    Experiment(
        (
            Figure("redis.storm.effects", "effects", f"{TASKS} tasks, one key", exactly(1)),
            Figure("redis.storm.wrong", "answers", "callers without the result", exactly(0)),
            Figure("redis.storm.p50", "ms", "50 ms of effect"),
            Figure("redis.storm.p99", "ms", "50 ms of effect", at_most(120.0)),
        ),
        storm,
    ),
    Experiment(
        (
            Figure(
                "redis.waiters.p50",
                "ms",
                f"settle in one process, p50 of {WAITERS} store.wait in another, from the publish",
                at_most(2.0),
            ),
            Figure("redis.waiters.p50.call", "ms", "the same, from the call of settle"),
            Figure("redis.waiters.commands", "commands", "settle, wait and wake, of both processes", at_most(10)),
        ),
        waiters,
    ),
)
