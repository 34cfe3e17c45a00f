"""Claim and complete against the two statements one writes by hand, and replay against a bare SELECT.

One caller: the clock on the wall, commits included. A crowd: operations per second, and the client's CPU for each of
them; raw has a connection per caller, and 32 where there are more.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID, uuid4

from bench.figures import Experiment, Figure, Reading, at_least, at_most
from bench.measure import Effort, Lap, Work, cpu_ratios, interleave, microseconds, quiet, sync_laps, wall_ratios
from bench.postgres import (
    CLAIM,
    COMPLETE,
    RAW_CONNECTIONS,
    REPLAY,
    Width,
    claiming,
    completing,
    raw_connect,
    raw_connect_async,
    served,
)
from bench.postgres.turns import Turns
from samekey.core.commands import Open
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore

CROWDS = {32: 2.5, 128: 4.0, 512: 4.0}  # callers, and how much faster than raw they have to be
CROWD_ROUNDS_MAX = 5
READY_PER_SECOND = 12_000  # claims of a crowd; whoever is faster makes the rest on the way
REPLAYED_KEYS = 100
TOKEN = 1


# -- one caller ------------------------------------------------------------------------------------------------


def one_caller(effort: Effort) -> Sequence[Reading]:
    with served() as (_, url):
        store, raw = PostgresStore(url), raw_connect(url)
        ended = store.carry_out(completing(store.carry_out(claiming())))
        assert ended is not None
        width = Width(url, ended)

        def by_store(operations: int) -> Work:
            commands = [claiming() for _ in range(operations)]
            return lambda: [store.carry_out(completing(store.carry_out(one))) for one in commands]

        def by_hand(operations: int) -> Work:
            keys = [uuid4() for _ in range(operations)]

            def work() -> None:
                for key in keys:
                    raw.execute(CLAIM, (key, TOKEN, width.claim))
                    raw.execute(COMPLETE, (width.result, key, TOKEN))

            return work

        ours, theirs = interleave(effort, by_store, by_hand).laps
        store.close()
        raw.close()
    return ratios(ours, theirs)


def one_task(effort: Effort) -> Sequence[Reading]:
    with served() as (_, url), asyncio.Runner() as runner:
        store, raw = AsyncPostgresStore(url), runner.run(raw_connect_async(url))

        async def ready() -> Width:
            ended = await store.carry_out(completing(await store.carry_out(claiming())))
            assert ended is not None
            return Width(url, ended)

        width = runner.run(ready())

        def by_store(operations: int) -> Work:
            async def work(commands: Sequence[Open]) -> None:
                for one in commands:
                    await store.carry_out(completing(await store.carry_out(one)))

            commands = [claiming() for _ in range(operations)]
            return lambda: runner.run(work(commands))

        def by_hand(operations: int) -> Work:
            async def work(keys: Sequence[UUID]) -> None:
                for key in keys:
                    await raw.execute(CLAIM, (key, TOKEN, width.claim))
                    await raw.execute(COMPLETE, (width.result, key, TOKEN))

            keys = [uuid4() for _ in range(operations)]
            return lambda: runner.run(work(keys))

        ours, theirs = interleave(effort, by_store, by_hand).laps
        runner.run(store.close())
        runner.run(raw.close())
    return ratios(ours, theirs)


def replayed(effort: Effort) -> Sequence[Reading]:
    with served() as (_, url):
        store, raw = PostgresStore(url), raw_connect(url)
        commands, keys = [claiming() for _ in range(REPLAYED_KEYS)], [uuid4() for _ in range(REPLAYED_KEYS)]
        for one, key in zip(commands, keys, strict=True):
            ended = store.carry_out(completing(store.carry_out(one)))
            assert ended is not None
            width = Width(url, ended)
            raw.execute(CLAIM, (key, TOKEN, width.claim))
            raw.execute(COMPLETE, (width.result, key, TOKEN))

        def by_store(operations: int) -> Work:
            asked = list(itertools.islice(itertools.cycle(commands), operations))
            return lambda: [store.carry_out(one) for one in asked]

        def by_hand(operations: int) -> Work:
            asked = list(itertools.islice(itertools.cycle(keys), operations))
            return lambda: [raw.execute(REPLAY, (key,)).fetchone() for key in asked]

        ours, theirs = interleave(effort, by_store, by_hand).laps
        store.close()
        raw.close()
    return ratios(ours, theirs)


def replayed_to_a_task(effort: Effort) -> Sequence[Reading]:
    with served() as (_, url), asyncio.Runner() as runner:
        store, raw = AsyncPostgresStore(url), runner.run(raw_connect_async(url))
        commands, keys = [claiming() for _ in range(REPLAYED_KEYS)], [uuid4() for _ in range(REPLAYED_KEYS)]

        async def ready() -> None:
            for one, key in zip(commands, keys, strict=True):
                ended = await store.carry_out(completing(await store.carry_out(one)))
                assert ended is not None
                width = Width(url, ended)
                await raw.execute(CLAIM, (key, TOKEN, width.claim))
                await raw.execute(COMPLETE, (width.result, key, TOKEN))

        runner.run(ready())

        def by_store(operations: int) -> Work:
            async def work() -> None:
                for one in itertools.islice(itertools.cycle(commands), operations):
                    await store.carry_out(one)

            return lambda: runner.run(work())

        def by_hand(operations: int) -> Work:
            async def work() -> None:
                for key in itertools.islice(itertools.cycle(keys), operations):
                    await (await raw.execute(REPLAY, (key,))).fetchone()

            return lambda: runner.run(work())

        ours, theirs = interleave(effort, by_store, by_hand).laps
        runner.run(store.close())
        runner.run(raw.close())
    return ratios(ours, theirs)


def ratios(ours: Sequence[Lap], raw: Sequence[Lap]) -> list[Reading]:
    walls, cpus = wall_ratios(ours, raw), cpu_ratios(ours, raw)
    milliseconds = [statistics.median(lap.wall for lap in laps) * 1e3 for laps in (ours, raw)]
    return [
        Reading(statistics.median(walls), walls, f"{milliseconds[0]:.2f} against {milliseconds[1]:.2f} ms"),
        Reading(statistics.median(cpus), cpus, f"{microseconds(ours):.0f} against {microseconds(raw):.0f} us CPU"),
    ]


# -- a crowd ---------------------------------------------------------------------------------------------------


class Rush(NamedTuple):
    """What a crowd got done."""

    per_second: float
    cpu_microseconds: float  # of this process, for each operation


def among_threads(callers: int, seconds: float, work: Callable[[int], Callable[[], object]]) -> Rush:
    """Each caller's work over and over until the time is up."""
    done, failed = [0] * callers, list[BaseException]()
    start, stop_at = threading.Barrier(callers + 1), float("inf")
    calls = [work(number) for number in range(callers)]

    def run(number: int) -> None:
        call = calls[number]
        start.wait()
        try:
            while time.perf_counter() < stop_at:
                call()
                done[number] += 1
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(callers)]
    for thread in threads:
        thread.start()
    with quiet():
        begun, cpu = time.perf_counter(), time.process_time()
        stop_at = begun + seconds
        start.wait()
        for thread in threads:
            thread.join()
        return rush(sum(done), time.perf_counter() - begun, time.process_time() - cpu, failed)


async def among_tasks(callers: int, seconds: float, work: Callable[[int], Callable[[], Awaitable[object]]]) -> Rush:
    done, failed = [0] * callers, list[BaseException]()
    calls = [work(number) for number in range(callers)]

    async def run(number: int) -> None:
        call = calls[number]
        try:
            while time.perf_counter() < stop_at:
                await call()
                done[number] += 1
        except BaseException as error:
            failed.append(error)

    with quiet():
        begun, cpu = time.perf_counter(), time.process_time()
        stop_at = begun + seconds
        await asyncio.gather(*(run(number) for number in range(callers)))
        return rush(sum(done), time.perf_counter() - begun, time.process_time() - cpu, failed)


def rush(done: int, wall: float, cpu: float, failed: Sequence[BaseException]) -> Rush:
    if failed:
        raise failed[0]
    return Rush(done / wall, cpu / max(1, done) * 1e6)


def crowd_of_threads(callers: int, effort: Effort) -> Sequence[Reading]:
    ours, theirs, nobodys, synced = list[Rush](), list[Rush](), list[Rush](), list[float]()
    claims, settles = Turns(), Turns()
    with served() as (_, url):
        store = PostgresStore(url)
        ended = store.carry_out(completing(store.carry_out(claiming())))
        assert ended is not None
        width = Width(url, ended)
        links = [raw_connect(url) for _ in range(min(callers, RAW_CONNECTIONS))]

        def by_store(number: int) -> Callable[[], object]:
            commands = ready_commands(callers, effort)
            return lambda: store.carry_out(completing(store.carry_out(next(commands))))

        def by_hand(number: int) -> Callable[[], object]:
            link = links[number]

            def pair() -> None:
                key = uuid4()
                link.execute(CLAIM, (key, TOKEN, width.claim))
                link.execute(COMPLETE, (width.result, key, TOKEN))

            return pair

        def by_nobody(number: int) -> Callable[[], object]:
            def pair() -> None:
                claims.take()
                settles.take()

            return pair

        for seconds in lengths(effort):
            synced += sync_laps(3)
            ours.append(among_threads(callers, seconds, by_store))
            theirs.append(among_threads(len(links), seconds, by_hand))
            nobodys.append(among_threads(callers, seconds, by_nobody))
        store.close()
        for link in links:
            link.close()
    turns = [one.cpu_microseconds for one in nobodys[1:]]
    rate = statistics.median(one.per_second for one in nobodys[1:])
    told = Reading(statistics.median(turns), turns, f"{rate:.0f} operations/s of threads that do nothing else")
    return [*compared(ours[1:], theirs[1:], synced), told]


def crowd_of_tasks(callers: int, effort: Effort) -> Sequence[Reading]:
    return asyncio.run(_crowd_of_tasks(callers, effort))


async def _crowd_of_tasks(callers: int, effort: Effort) -> Sequence[Reading]:
    ours, theirs, synced = list[Rush](), list[Rush](), list[float]()
    with served() as (_, url):
        store = AsyncPostgresStore(url)
        ended = await store.carry_out(completing(await store.carry_out(claiming())))
        assert ended is not None
        width = Width(url, ended)
        links = [await raw_connect_async(url) for _ in range(min(callers, RAW_CONNECTIONS))]

        def by_store(number: int) -> Callable[[], Awaitable[object]]:
            commands = ready_commands(callers, effort)

            async def pair() -> None:
                await store.carry_out(completing(await store.carry_out(next(commands))))

            return pair

        def by_hand(number: int) -> Callable[[], Awaitable[object]]:
            link = links[number]

            async def pair() -> None:
                key = uuid4()
                await link.execute(CLAIM, (key, TOKEN, width.claim))
                await link.execute(COMPLETE, (width.result, key, TOKEN))

            return pair

        for seconds in lengths(effort):
            synced += sync_laps(3)
            ours.append(await among_tasks(callers, seconds, by_store))
            theirs.append(await among_tasks(len(links), seconds, by_hand))
        await store.close()
        for link in links:
            await link.close()
    return compared(ours[1:], theirs[1:], synced)


def ready_commands(callers: int, effort: Effort) -> Iterator[Open]:
    """Claims for one caller, most of them made before its time counts; to make them is the guard's work."""
    made = [claiming() for _ in range(int(READY_PER_SECOND * effort.crowd_seconds) // callers)]
    return itertools.chain(made, iter(claiming, None))


def lengths(effort: Effort) -> list[float]:
    """How long each round is; the first one only warms up."""
    return [effort.crowd_seconds / 4] + [effort.crowd_seconds] * min(effort.rounds, CROWD_ROUNDS_MAX)


def compared(ours: Sequence[Rush], raw: Sequence[Rush], synced: Sequence[float]) -> list[Reading]:
    faster = [mine.per_second / max(other.per_second, 1.0) for mine, other in zip(ours, raw, strict=True)]
    cpu, raw_cpu = [one.cpu_microseconds for one in ours], [one.cpu_microseconds for one in raw]
    speeds = [statistics.median(one.per_second for one in rushes) for rushes in (ours, raw)]
    disk = f"machine.fsync took {statistics.median(synced):.2f} ms, load {os.getloadavg()[0]:.1f} in these rounds"
    return [
        Reading(statistics.median(faster), faster, f"{speeds[0]:.0f} against {speeds[1]:.0f} operations/s; {disk}"),
        Reading(statistics.median(cpu), cpu, f"raw {statistics.median(raw_cpu):.0f}; best round {min(cpu):.0f}"),
    ]


# -- figures ---------------------------------------------------------------------------------------------------

PAIR = "the raw two statements"


def alone(colour: str, run: Callable[[Effort], Sequence[Reading]]) -> Experiment:
    return Experiment(
        (
            Figure(f"postgres.1.{colour}", "x", f"{PAIR}, by the clock on the wall", at_most(1.2)),
            Figure(f"postgres.1.{colour}.cpu", "x CPU", f"{PAIR}; the client's CPU"),
        ),
        run,
    )


def replay(colour: str, run: Callable[[Effort], Sequence[Reading]]) -> Experiment:
    return Experiment(
        (
            Figure(f"postgres.replay.{colour}", "x", "a bare SELECT, by the clock on the wall", at_most(1.4)),
            Figure(f"postgres.replay.{colour}.cpu", "x CPU", "a bare SELECT; the client's CPU"),
        ),
        run,
    )


def crowd(callers: int, colour: str, run: Callable[[int, Effort], Sequence[Reading]], *, gates: bool) -> Experiment:
    against = f"{PAIR} on {min(callers, RAW_CONNECTIONS)} connections"
    turns = Figure(f"postgres.{callers}.{colour}.turns", "us CPU", "two turns of a thread, and nothing done in them")
    return Experiment(
        (
            Figure(f"postgres.{callers}.{colour}", "x ops/s", against, at_least(CROWDS[callers])),
            # Between threads every answer is a wake-up or two of the kernel's, whatever the store does.
            Figure(f"postgres.{callers}.{colour}.cpu", "us CPU", "one operation", at_most(40.0, gates=gates)),
            *([turns] if colour == "sync" else []),
        ),
        lambda effort: run(callers, effort),
    )


EXPERIMENTS: tuple[Experiment, ...] = (
    alone("sync", one_caller),
    alone("async", one_task),
    replay("sync", replayed),
    replay("async", replayed_to_a_task),
    *(crowd(callers, "sync", crowd_of_threads, gates=False) for callers in CROWDS),
    *(crowd(callers, "async", crowd_of_tasks, gates=True) for callers in CROWDS),
)
