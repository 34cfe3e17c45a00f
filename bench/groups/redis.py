"""Redis against the two commands a careful person would write by hand: SET .. NX, then SET with an expiry.

In values as wide as ours are at that moment, on the same private server, with redis-py of the same colour. By hand
means: no fence, no fingerprint, no lease, no story. "Plain" is redis-py's own call for each command; "piped" puts what
concurrent tasks say into one pipeline, flushed whenever the last one is back. To make a claim is the guard's work: they
are made before the time counts, as are the keys of those by hand.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
import redis.asyncio

from bench.figures import Experiment, Figure, Reading, at_least, at_most
from bench.groups.sqlite import ENVELOPE, command
from bench.measure import (
    Effort,
    Lap,
    Prepare,
    Work,
    cpu_ratios,
    interleave,
    microseconds,
    wall_ratios,
)
from samekey.core.commands import Open, Settle
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.stores.redis import AsyncRedisStore, RedisStore
from samekey.testing.servers import RedisServer, redis_server

CALLERS = 32
RETAIN_SECONDS = 60.0

T = TypeVar("T")
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
        held = store.carry_out(fresh())
        digest = held.key.digest.hex()
        key = f"samekey:{{{digest[:2]}}}:{digest}"
        claimed = bytes(int(server.call("STRLEN", key)))
        store.carry_out(settling(held))
        settled = bytes(int(server.call("STRLEN", key)))
        store.close()
        yield server, claimed, settled


# -- one caller ------------------------------------------------------------------------------------------------


def one_caller(effort: Effort) -> Sequence[Reading]:
    with stage() as (server, claimed, settled):
        store, client = RedisStore(server.url()), redis.Redis(port=server.port)
        replayed = fresh()
        store.carry_out(settling(store.carry_out(replayed)))

        def ours(one: Open) -> None:
            store.carry_out(settling(store.carry_out(one)))

        def raw(key: str) -> None:
            client.set(key, claimed, nx=True)
            client.set(key, settled, ex=int(RETAIN_SECONDS))

        def replay(_: Open) -> None:
            store.carry_out(replayed)

        race = interleave(effort, in_a_row(ours, fresh), in_a_row(raw, raw_key), in_a_row(replay, fresh))
        store.close()
        client.close()
    return alone(*race.laps)


def one_task(effort: Effort) -> Sequence[Reading]:
    with stage() as (server, claimed, settled), asyncio.Runner() as runner:
        store, client = AsyncRedisStore(server.url()), redis.asyncio.Redis(port=server.port)
        replayed = fresh()

        async def ours(one: Open) -> None:
            await store.carry_out(settling(await store.carry_out(one)))

        async def raw(key: str) -> None:
            await client.set(key, claimed, nx=True)
            await client.set(key, settled, ex=int(RETAIN_SECONDS))

        async def replay(_: Open) -> None:
            await store.carry_out(replayed)

        runner.run(ours(replayed))
        race = interleave(
            effort,
            among_tasks(runner, 1, ours, fresh),
            among_tasks(runner, 1, raw, raw_key),
            among_tasks(runner, 1, replay, fresh),
        )
        runner.run(store.close())
        runner.run(client.aclose())
    return alone(*race.laps)


def alone(mine: Sequence[Lap], theirs: Sequence[Lap], again: Sequence[Lap]) -> Sequence[Reading]:
    cpu = cpu_ratios(mine, theirs)
    return [
        _ratio(mine, theirs, f"{microseconds(mine):.0f} us CPU, raw {microseconds(theirs):.0f}"),
        Reading(statistics.median(cpu), cpu),
        _ratio(again, theirs, f"{microseconds(again):.0f} us CPU"),
    ]


def raw_key() -> str:
    return f"raw-{os.getpid()}-{next(_numbers)}"


def in_a_row(call: Callable[[T], None], make: Callable[[], T]) -> Prepare:
    """So many operations, one after the other."""

    def prepare(operations: int) -> Work:
        given = [make() for _ in range(operations)]

        def work() -> None:
            for one in given:
                call(one)

        return work

    return prepare


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


def crowd_of_tasks(effort: Effort) -> Sequence[Reading]:
    with stage() as (server, claimed, settled), asyncio.Runner() as runner:
        store, client = AsyncRedisStore(server.url()), redis.asyncio.Redis(port=server.port)
        piped, replayed = Piped(client), fresh()

        async def ours(one: Open) -> None:
            await store.carry_out(settling(await store.carry_out(one)))

        async def by_pipe(key: str) -> None:
            await piped.call("SET", key, claimed, "NX")
            await piped.call("SET", key, settled, "EX", int(RETAIN_SECONDS))

        async def plain(key: str) -> None:
            await client.set(key, claimed, nx=True)
            await client.set(key, settled, ex=int(RETAIN_SECONDS))

        async def replay(_: Open) -> None:
            await store.carry_out(replayed)

        runner.run(ours(replayed))
        race = interleave(
            effort,
            among_tasks(runner, CALLERS, ours, fresh),
            among_tasks(runner, CALLERS, by_pipe, raw_key),
            among_tasks(runner, CALLERS, plain, raw_key),
            among_tasks(runner, CALLERS, replay, fresh),
        )
        runner.run(store.close())
        runner.run(client.aclose())
    mine, pipes, plains, again = race.laps
    cpu = cpu_ratios(plains, mine)
    return [
        _ratio(mine, pipes, f"{microseconds(mine):.0f} us CPU, piped {microseconds(pipes):.0f}"),
        _ratio(plains, mine, f"plain {microseconds(plains):.0f} us CPU; load {os.getloadavg()[0]:.1f}"),
        Reading(statistics.median(cpu), cpu),
        _ratio(again, pipes, f"{microseconds(again):.0f} us CPU"),
    ]


def crowd_of_threads(effort: Effort) -> Sequence[Reading]:
    with stage() as (server, claimed, settled), ThreadPoolExecutor(CALLERS) as pool:
        store, client = RedisStore(server.url()), redis.Redis(port=server.port)
        replayed = fresh()

        def ours(one: Open) -> None:
            store.carry_out(settling(store.carry_out(one)))

        def plain(key: str) -> None:
            client.set(key, claimed, nx=True)
            client.set(key, settled, ex=int(RETAIN_SECONDS))

        def replay(_: Open) -> None:
            store.carry_out(replayed)

        ours(replayed)
        race = interleave(
            effort,
            among_threads(pool, ours, fresh),
            among_threads(pool, plain, raw_key),
            among_threads(pool, replay, fresh),
        )
        store.close()
        client.close()
    mine, plains, again = race.laps
    cpu = cpu_ratios(plains, mine)
    return [
        _ratio(plains, mine, f"{microseconds(mine):.0f} us CPU, plain {microseconds(plains):.0f}"),
        Reading(statistics.median(cpu), cpu),
        _ratio(again, plains, f"{microseconds(again):.0f} us CPU"),
    ]


def among_tasks(
    runner: asyncio.Runner, callers: int, call: Callable[[T], Awaitable[None]], make: Callable[[], T]
) -> Prepare:
    """So many operations, by so many tasks at a time."""

    def prepare(operations: int) -> Work:
        given = iter([make() for _ in range(operations)])

        async def caller() -> None:
            for one in given:
                await call(one)

        async def all_callers() -> None:
            await asyncio.gather(*(caller() for _ in range(callers)))

        return lambda: runner.run(all_callers())

    return prepare


def among_threads(pool: ThreadPoolExecutor, call: Callable[[T], None], make: Callable[[], T]) -> Prepare:
    """So many operations, by 32 threads at a time."""

    def prepare(operations: int) -> Work:
        given = iter([make() for _ in range(operations)])

        def caller(_: int) -> None:
            for one in given:
                call(one)

        return lambda: list(pool.map(caller, range(CALLERS)))

    return prepare


def _ratio(ours: Sequence[Lap], theirs: Sequence[Lap], note: str) -> Reading:
    ratios = wall_ratios(ours, theirs)
    return Reading(statistics.median(ratios), ratios, note)


PAIR = "SET NX + SET by hand"
OURS = "ours: store.open + store.settle"


def of_one(colour: str, run: Callable[[Effort], Sequence[Reading]]) -> Experiment:
    return Experiment(
        (
            Figure(f"redis.1.{colour}.pair", "x", f"{PAIR}, redis-py; {OURS}", at_most(1.5)),
            Figure(f"redis.1.{colour}.pair.cpu", "x CPU", "the same, by client CPU"),
            Figure(f"redis.1.{colour}.replay", "x", f"{PAIR}; ours: one claim that replays", at_most(1.0)),
        ),
        run,
    )


EXPERIMENTS = (
    of_one("sync", one_caller),
    of_one("async", one_task),
    Experiment(
        (
            Figure(f"redis.{CALLERS}.async.pair", "x", f"{PAIR}, piped; {OURS}", at_most(2.0)),
            Figure(f"redis.{CALLERS}.async.plain", "x faster", f"{PAIR}, an awaited call each; {OURS}", at_least(3.0)),
            Figure(f"redis.{CALLERS}.async.plain.cpu", "x CPU", "the same, by client CPU"),
            Figure(f"redis.{CALLERS}.async.replay", "x", f"{PAIR}, piped; ours: one claim that replays", at_most(1.0)),
        ),
        crowd_of_tasks,
    ),
    Experiment(
        (
            # Between threads every answer is a wake-up or two of the kernel's, whatever the store does.
            Figure(
                f"redis.{CALLERS}.sync.plain",
                "x faster",
                f"{PAIR}, a call each, {CALLERS} threads; {OURS}",
                at_least(3.0, gates=False),
            ),
            Figure(f"redis.{CALLERS}.sync.plain.cpu", "x CPU", "the same, by client CPU"),
            Figure(f"redis.{CALLERS}.sync.replay", "x", f"{PAIR}; ours: one claim that replays", at_most(1.0)),
        ),
        crowd_of_threads,
    ),
)
