"""Redis before PostgreSQL: answers at Redis' rate that PostgreSQL does not hear of, and a storm that it hardly does.

What PostgreSQL saw is read from its own log (every statement) and from its transaction counter (every transaction that
wrote), not from what we think we sent.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import NamedTuple

from bench.figures import Experiment, Figure, Reading, at_least, at_most, exactly
from bench.groups.sqlite import PAYLOAD, RESULT, command
from bench.groups.storm import EFFECT_SECONDS, STORMS_MAX, Storm, next_key
from bench.measure import Effort, Lap, Prepare, Work, interleave, microseconds, percentile, quiet, wall_ratios
from samekey import AsyncGuard, Guard
from samekey.core.commands import Open
from samekey.drivers.postgres.migrate import migrate
from samekey.testing.servers import PrivatePostgres, postgres, redis_server

CALLERS = 32
REPLAYED_KEYS = 100
PROCESSES = 4
TASKS = 1000  # of all processes together
STATEMENT = re.compile(r"^.*LOG:  (?:statement|execute [^:]+): ", re.MULTILINE)


class Place(NamedTuple):
    server: PrivatePostgres
    layered: str
    redis: str

    @property
    def statements(self) -> int:
        """Every one that PostgreSQL was ever asked to carry out."""
        return len(STATEMENT.findall(self.server.log()))

    @property
    def writes(self) -> int:
        """The number of the next transaction that writes; looking at it is none."""
        return int(self.server.sql("SELECT pg_snapshot_xmax(pg_current_snapshot())"))


@contextmanager
def served() -> Iterator[Place]:
    # Without autovacuum: its transactions would be counted too.
    with postgres(fsync="on", log_statement="all", autovacuum="off") as server, redis_server() as front:
        if not isinstance(server, PrivatePostgres):
            raise LookupError(
                "what PostgreSQL saw is in its log: this needs a server of our own (SAMEKEY_TEST_* unset)"
            )
        url = server.create_database()
        migrate(url)
        yield Place(server, f"{front.url(1)} {url}", front.url(0))


# -- replays -----------------------------------------------------------------------------------------------------


def replays_of_one(effort: Effort) -> Sequence[Reading]:
    with served() as place, Guard(place.layered) as layered, Guard(place.redis) as alone:
        claims = settled(lambda text: [run_once(guard, text) for guard in (layered, alone)])

        def each(guard: Guard) -> Prepare:
            def prepare(operations: int) -> Work:
                given = list(itertools.islice(itertools.cycle(claims), operations))

                def work() -> None:
                    for one in given:
                        guard.store.carry_out(one)

                return work

            return prepare

        assert all(guard.store.carry_out(claims[0]).settled for guard in (layered, alone))
        before = place.statements
        race = interleave(effort, each(layered), each(alone))
        seen = place.statements - before
    ours, redis = race.laps
    return compared(ours, redis, seen)


def replays_of_many(effort: Effort) -> Sequence[Reading]:
    with served() as place, asyncio.Runner() as runner:
        layered, alone = AsyncGuard(place.layered), AsyncGuard(place.redis)

        async def run_both(text: str) -> None:
            for guard in (layered, alone):
                await guard.run("charge", _effect, key=text, payload=PAYLOAD)

        claims = settled(lambda text: runner.run(run_both(text)))

        def each(guard: AsyncGuard) -> Prepare:
            def prepare(operations: int) -> Work:
                given = itertools.islice(itertools.cycle(claims), operations)

                async def caller() -> None:
                    for one in given:
                        await guard.store.carry_out(one)

                async def callers() -> None:
                    await asyncio.gather(*(caller() for _ in range(CALLERS)))

                return lambda: runner.run(callers())

            return prepare

        before = place.statements
        race = interleave(effort, each(layered), each(alone))
        seen = place.statements - before
        runner.run(layered.close())
        runner.run(alone.close())
    ours, redis = race.laps
    return compared(ours, redis, seen)


def settled(run: Callable[[str], object]) -> list[Open]:
    """Claims of keys that have an answer."""
    claims = [command(f"replayed-{number}") for number in range(REPLAYED_KEYS)]
    for claim in claims:
        run(claim.key.text)
    return claims


def run_once(guard: Guard, text: str) -> object:
    return guard.run("charge", lambda: RESULT, key=text, payload=PAYLOAD)


async def _effect() -> dict[str, object]:
    return RESULT


def compared(ours: Sequence[Lap], redis: Sequence[Lap], seen: int) -> Sequence[Reading]:
    rates = wall_ratios(redis, ours)
    note = f"{microseconds(ours):.0f} us CPU, Redis alone {microseconds(redis):.0f}"
    return [Reading(statistics.median(rates), rates, note), Reading(seen)]


# -- a storm -----------------------------------------------------------------------------------------------------


def storm(effort: Effort) -> Sequence[Reading]:
    effects, wrong, writes, statements, times = (
        list[float](),
        list[float](),
        list[float](),
        list[float](),
        list[float](),
    )
    with served() as place:
        context = multiprocessing.get_context("spawn")
        pipes = []
        for _ in range(PROCESSES):
            here, there = context.Pipe()
            context.Process(target=stand_there, args=(place.layered, there), daemon=True).start()
            there.close()
            pipes.append(here)
            here.recv()
        for number in range(min(effort.rounds, STORMS_MAX)):
            written, asked = place.writes, place.statements
            for here in pipes:
                here.send(f"key-{number}")
            told = [here.recv() for here in pipes]
            writes.append(place.writes - written)
            statements.append(place.statements - asked - 1)  # our own look at the transactions
            effects.append(sum(one.effects for one in told))
            wrong.append(TASKS - sum(one.right for one in told))
            times += [ms for one in told for ms in one.answered_ms]
        for here in pipes:
            here.send(None)
    return [
        Reading(max(effects, key=lambda count: abs(count - 1)), effects),
        Reading(max(wrong), wrong),
        Reading(max(writes), writes, "the claim and the settle"),
        Reading(statistics.median(statements), statements),
        Reading(percentile(times, 0.50)),
        Reading(percentile(times, 0.99)),
    ]


def stand_there(url: str, parent: Connection) -> None:
    """One of the processes: for each key it is given, a quarter of the storm."""
    asyncio.run(_stand_there(url, parent))


async def _stand_there(url: str, parent: Connection) -> None:
    loop = asyncio.get_running_loop()
    async with AsyncGuard(url) as guard:
        await guard.run("charge", _effect, key="warm", payload=PAYLOAD)
        parent.send("ready")
        while (key := await loop.run_in_executor(None, next_key, parent)) is not None:
            with quiet():
                seen = await _among_tasks(guard, key)
            parent.send(seen)


async def _among_tasks(guard: AsyncGuard, key: str) -> Storm:
    seen = Storm()

    async def effect() -> dict[str, int]:
        seen.effects += 1
        await asyncio.sleep(EFFECT_SECONDS)
        return {"effect": 1}

    async def caller() -> None:
        seen.answered((await guard.run("storm", effect, key=key, payload=PAYLOAD)).result)

    seen.begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(TASKS // PROCESSES)))
    return seen


# -- figures -----------------------------------------------------------------------------------------------------


def replay(callers: int, colour: str, run: Callable[[Effort], Sequence[Reading]]) -> Experiment:
    return Experiment(
        (
            Figure(
                f"layered.{callers}.{colour}.replay",
                "x rate",
                "the Redis store's replays of the same keys; store.open",
                at_least(0.8),
            ),
            Figure(
                f"layered.{callers}.{colour}.replay.statements", "statements", "PostgreSQL's log meanwhile", exactly(0)
            ),
        ),
        run,
    )


EXPERIMENTS: tuple[Experiment, ...] = (
    replay(1, "sync", replays_of_one),
    replay(CALLERS, "async", replays_of_many),
    Experiment(
        (
            Figure("layered.storm.effects", "effects", f"{TASKS} tasks of {PROCESSES} processes, one key", exactly(1)),
            Figure("layered.storm.wrong", "answers", "callers without the result", exactly(0)),
            Figure("layered.storm.commits", "commits", "PostgreSQL: transactions that wrote", at_most(2)),
            Figure("layered.storm.statements", "statements", "PostgreSQL's log, all processes together"),
            Figure("layered.storm.p50", "ms", "50 ms of effect"),
            Figure("layered.storm.p99", "ms", "50 ms of effect"),
        ),
        storm,
    ),
)
