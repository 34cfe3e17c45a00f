"""Redis against the two commands a careful person would write by hand: SET .. NX, then SET with an expiry.

In values as wide as ours are at that moment, on the same private server, with redis-py. By hand means: no fence, no
fingerprint, no lease, no story. "Plain" is redis-py's own call for each command; "piped" puts what concurrent callers
say into one pipeline, flushed whenever the last one is back, which is what our lanes do.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import os
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import redis
import redis.asyncio

from bench.figures import Experiment, Figure, Reading, at_least, at_most, exactly
from bench.groups.sqlite import ENVELOPE, command
from bench.groups.storm import STORMS_MAX, TASKS, among_tasks, next_key, readings
from bench.measure import (
    Effort,
    Lap,
    Prepare,
    Work,
    cpu_ratios,
    interleave,
    microseconds,
    percentile,
    quiet,
    wall_ratios,
)
from samekey import AsyncGuard
from samekey.core.commands import Open, Settle, Wait
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.stores.redis import AsyncRedisStore, RedisStore
from samekey.testing.redis_servers import RedisServer, redis_server

CALLERS = 32
WAITERS = 500
WAITS_MAX = 15
WAIT_SECONDS = 30.0
HEAD_START_SECONDS = 0.2  # until the waiters of the other process surely wait
RETAIN_SECONDS = 60.0

_numbers = itertools.count()


def fresh() -> Open:
    return command(f"redis-{os.getpid()}-{next(_numbers)}")


def settling(held: Record) -> Settle:
    return Settle(held, Role.HOLDER, State.COMPLETED, held.attempt, ENVELOPE, retain_seconds=RETAIN_SECONDS)


@contextmanager
def stage() -> Iterator[tuple[RedisServer, bytes, bytes]]:
    """A server, and values as wide as a claim and a settled record of ours."""
    with redis_server() as server:
        store = RedisStore(server.url())
        held = store.open(fresh())
        digest = held.key.digest.hex()
        key = f"samekey:{{{digest[:2]}}}:{digest}"
        claimed = bytes(int(server.call("STRLEN", key)))
        store.settle(settling(held))
        settled = bytes(int(server.call("STRLEN", key)))
        store.close()
        yield server, claimed, settled


# -- one caller ------------------------------------------------------------------------------------------------


def one_caller(effort: Effort) -> Sequence[Reading]:
    with stage() as (server, claimed, settled):
        store, client = RedisStore(server.url()), redis.Redis(port=server.port)

        def ours(operations: int) -> Work:
            commands = [fresh() for _ in range(operations)]

            def work() -> None:
                for one in commands:
                    store.settle(settling(store.open(one)))

            return work

        def raw(operations: int) -> Work:
            keys = [f"raw-{next(_numbers)}" for _ in range(operations)]

            def work() -> None:
                for key in keys:
                    client.set(key, claimed, nx=True)
                    client.set(key, settled, ex=int(RETAIN_SECONDS))

            return work

        replayed = fresh()
        store.settle(settling(store.open(replayed)))

        def replay(operations: int) -> Work:
            def work() -> None:
                for _ in range(operations):
                    store.open(replayed)

            return work

        race = interleave(effort, ours, raw, replay)
        store.close()
        client.close()
    mine, theirs, again = race.laps
    pair, replays = wall_ratios(mine, theirs), wall_ratios(again, theirs)
    cpu = cpu_ratios(mine, theirs)
    return [
        Reading(statistics.median(pair), pair, f"{microseconds(mine):.0f} us CPU, raw {microseconds(theirs):.0f}"),
        Reading(statistics.median(cpu), cpu),
        Reading(statistics.median(replays), replays),
    ]


# -- many callers ----------------------------------------------------------------------------------------------


class Piped:
    """Two dozen lines that a careful person writes above redis-py: one pipeline in flight, the others gather."""

    def __init__(self, client: redis.asyncio.Redis) -> None:
        self._client = client
        self._queue: list[tuple[tuple[Any, ...], asyncio.Future[Any]]] = []
        self._pump: asyncio.Task[None] | None = None

    async def call(self, *words: Any) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._queue.append((words, future))
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._run())
        return await future

    async def _run(self) -> None:
        while self._queue:
            batch, self._queue = self._queue, []
            pipe = self._client.pipeline(transaction=False)
            for words, _ in batch:
                pipe.execute_command(*words)
            for (_, future), reply in zip(batch, await pipe.execute(), strict=True):
                future.set_result(reply)


def crowd(effort: Effort) -> Sequence[Reading]:
    loop = asyncio.new_event_loop()
    try:
        with stage() as (server, claimed, settled):
            store = AsyncRedisStore(server.url())
            client = redis.asyncio.Redis(port=server.port)
            piped = Piped(client)
            replayed = fresh()

            async def ours() -> None:
                await store.settle(settling(await store.open(fresh())))

            async def plain() -> None:
                key = f"raw-{next(_numbers)}"
                await client.set(key, claimed, nx=True)
                await client.set(key, settled, ex=int(RETAIN_SECONDS))

            async def by_pipe() -> None:
                key = f"raw-{next(_numbers)}"
                await piped.call("SET", key, claimed, "NX")
                await piped.call("SET", key, settled, "EX", int(RETAIN_SECONDS))

            async def replay() -> None:
                await store.open(replayed)

            async def prepare() -> None:
                await store.settle(settling(await store.open(replayed)))

            loop.run_until_complete(prepare())
            race = interleave(effort, *(together(loop, call) for call in (ours, by_pipe, plain, replay)))
            loop.run_until_complete(store.close())
            loop.run_until_complete(client.aclose())
    finally:
        loop.close()
    mine, pipes, plains, again = race.laps
    return [
        _ratio(mine, pipes, f"{microseconds(mine):.0f} us CPU, piped {microseconds(pipes):.0f}"),
        _ratio(plains, mine, f"plain {microseconds(plains):.0f} us CPU"),
        _ratio(again, pipes, f"{microseconds(again):.0f} us CPU"),
    ]


def together(loop: asyncio.AbstractEventLoop, call: Callable[[], Awaitable[None]]) -> Prepare:
    """So many operations, by 32 callers at a time."""

    def prepare(operations: int) -> Work:
        async def caller(each: Iterator[int]) -> None:
            for _ in each:
                await call()

        async def all_callers() -> None:
            each = iter(range(operations))
            await asyncio.gather(*(caller(each) for _ in range(CALLERS)))

        return lambda: loop.run_until_complete(all_callers())

    return prepare


def _ratio(ours: Sequence[Lap], theirs: Sequence[Lap], note: str) -> Reading:
    ratios = wall_ratios(ours, theirs)
    return Reading(statistics.median(ratios), ratios, note)


# -- storms and waiters ------------------------------------------------------------------------------------------


def storm(effort: Effort) -> Sequence[Reading]:
    with redis_server() as server:
        return asyncio.run(_storm(effort, AsyncGuard(server.url())))


async def _storm(effort: Effort, guard: AsyncGuard) -> Sequence[Reading]:
    storms = []
    await among_tasks(guard, "warm")
    for number in range(min(effort.rounds, STORMS_MAX)):
        with quiet():
            storms.append(await among_tasks(guard, f"key-{number}"))
    await guard.close()
    return readings(storms)


def waiters(effort: Effort) -> Sequence[Reading]:
    """We hold and settle; 500 tasks in another process wait. From the call of settle to the end of each wait."""
    waited: list[float] = []
    calls = []
    with redis_server() as server:
        store = RedisStore(server.url())
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        child = context.Process(target=wait_there, args=(server.url(), there), daemon=True)
        child.start()
        here.recv()
        for number in range(min(effort.rounds, WAITS_MAX)):
            held = store.open(command(f"key-{number}"))
            server.call("CONFIG", "RESETSTAT")
            here.send(f"key-{number}")
            time.sleep(HEAD_START_SECONDS)
            settled_at = time.monotonic()  # the same clock in both processes
            store.settle(settling(held))
            waited += [(answered_at - settled_at) * 1e3 for answered_at in here.recv()]
            told = server.call("INFO", "commandstats")
            calls.append(float(sum(_calls(told, name) for name in ("evalsha", "eval", "subscribe", "unsubscribe"))))
        here.send(None)
        child.join()
        store.close()
    note = f"p99 {percentile(waited, 0.99):.1f}"
    return [
        Reading(percentile(waited, 0.50), waited[:: max(1, len(waited) // 100)], note),
        Reading(max(calls), calls),
    ]


def _calls(told: str, name: str) -> int:
    return int(told.partition(f"cmdstat_{name}:calls=")[2].partition(",")[0] or 0)


def wait_there(url: str, parent: Connection) -> None:
    """The other process: for each key it is given, the times at which those who wait for it came back."""
    asyncio.run(_wait_there(url, parent))


async def _wait_there(url: str, parent: Connection) -> None:
    store = AsyncRedisStore(url)

    async def waiter(seen: Record) -> float:
        await store.wait(Wait(seen), WAIT_SECONDS)
        return time.monotonic()

    parent.send("ready")
    loop = asyncio.get_running_loop()
    while (text := await loop.run_in_executor(None, next_key, parent)) is not None:
        seen = await store.open(command(text))
        parent.send(await asyncio.gather(*(waiter(seen) for _ in range(WAITERS))))
    await store.close()


PAIR = "SET NX + SET by hand"
EXPERIMENTS = (
    Experiment(
        (
            Figure("redis.1.pair", "x", f"{PAIR}, redis-py; ours: store.open + store.settle", at_most(1.5)),
            Figure("redis.1.pair.cpu", "x CPU", "the same, by client CPU"),
            Figure("redis.1.replay", "x", f"{PAIR}; ours: one claim that replays", at_most(1.0)),
        ),
        one_caller,
    ),
    Experiment(
        (
            Figure(f"redis.{CALLERS}.pair", "x", f"{PAIR}, piped; ours: store.open + store.settle", at_most(2.0)),
            Figure(f"redis.{CALLERS}.plain", "x faster", f"{PAIR}, a call of redis-py each", at_least(3.0)),
            Figure(f"redis.{CALLERS}.replay", "x", f"{PAIR}, piped; ours: one claim that replays", at_most(1.0)),
        ),
        crowd,
    ),
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
                f"settle in one process, p50 of {WAITERS} store.wait in another",
                at_most(2.0),
            ),
            Figure("redis.waiters.commands", "commands", "settle, wait and wake, of both processes", at_most(10)),
        ),
        waiters,
    ),
)
