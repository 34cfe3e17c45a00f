"""Many callers of one key at once: one effect, and the answer for everybody soon after it.

Times count from the moment the storm breaks to each caller's answer; the effect itself takes 50 ms of them.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.figures import Experiment, Figure, Reading, at_most, exactly
from bench.groups.sqlite import ENVELOPE, PAYLOAD, command
from bench.measure import Effort, percentile, quiet
from samekey import AsyncGuard, Guard
from samekey.core.commands import Settle
from samekey.core.states import Role, State
from samekey.stores.sqlite import AsyncSqliteStore, SqliteStore

TASKS = 1000
THREADS = 200
EFFECT_SECONDS = 0.05
STORMS_MAX = 7
WAITERS = (1, 100)
WAITS_MAX = 15
HEAD_START_SECONDS = 0.06  # until the waiters of the other process surely wait


class Storm:
    """One storm: counts effects and right answers, and notes when each answer came."""

    def __init__(self) -> None:
        self.effects = 0
        self.right = 0
        self.answered_ms: list[float] = []
        self.begun = 0.0

    def answered(self, result: Any) -> None:
        self.answered_ms.append((time.perf_counter() - self.begun) * 1e3)
        self.right += result == {"effect": 1}


async def among_tasks(guard: AsyncGuard, key: str) -> Storm:
    storm = Storm()

    async def effect() -> dict[str, int]:
        storm.effects += 1
        await asyncio.sleep(EFFECT_SECONDS)
        return {"effect": storm.effects}

    async def caller() -> None:
        storm.answered((await guard.run("storm", effect, key=key, payload=PAYLOAD)).result)

    storm.begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(TASKS)))
    return storm


def among_threads(guard: Guard, key: str) -> Storm:
    storm, start = Storm(), threading.Barrier(THREADS + 1)

    def effect() -> dict[str, int]:
        storm.effects += 1
        time.sleep(EFFECT_SECONDS)
        return {"effect": storm.effects}

    def caller() -> None:
        start.wait()
        storm.answered(guard.run("storm", effect, key=key, payload=PAYLOAD).result)

    threads = [threading.Thread(target=caller, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    storm.begun = time.perf_counter()
    start.wait()
    for thread in threads:
        thread.join()
    return storm


def tasks_in_memory(effort: Effort) -> Sequence[Reading]:
    return asyncio.run(tasks(effort, AsyncGuard("memory://")))


def tasks_on_sqlite(effort: Effort) -> Sequence[Reading]:
    with tempfile.TemporaryDirectory() as name:
        return asyncio.run(tasks(effort, AsyncGuard(AsyncSqliteStore(Path(name) / "storm.db"))))


async def tasks(effort: Effort, guard: AsyncGuard) -> Sequence[Reading]:
    storms = []
    for number in range(min(effort.rounds, STORMS_MAX)):
        with quiet():
            storms.append(await among_tasks(guard, f"key-{number}"))
    await guard.close()
    return readings(storms)


def threads_in_memory(effort: Effort) -> Sequence[Reading]:
    return threads(effort, Guard("memory://"))


def threads_on_sqlite(effort: Effort) -> Sequence[Reading]:
    with tempfile.TemporaryDirectory() as name:
        return threads(effort, Guard(SqliteStore(Path(name) / "storm.db")))


def threads(effort: Effort, guard: Guard) -> Sequence[Reading]:
    storms = []
    for number in range(min(effort.rounds, STORMS_MAX)):
        with quiet():
            storms.append(among_threads(guard, f"key-{number}"))
    guard.close()
    return readings(storms)


def readings(storms: Sequence[Storm]) -> list[Reading]:
    """The worst storm's effects and right answers; the median storm's times."""
    effects = [float(storm.effects) for storm in storms]
    wrong = [float(len(storm.answered_ms) - storm.right) for storm in storms]
    p50 = [percentile(storm.answered_ms, 0.50) for storm in storms]
    p99 = [percentile(storm.answered_ms, 0.99) for storm in storms]
    return [
        Reading(max(effects), effects),
        Reading(max(wrong), wrong, f"{len(storms[0].answered_ms)} callers in each of {len(storms)} storms"),
        Reading(statistics.median(p50), p50),
        Reading(statistics.median(p99), p99, f"best storm {min(p99):.0f}"),
    ]


# -- waiters in another process ----------------------------------------------------------------------------------


def waiters(count: int, effort: Effort) -> Sequence[Reading]:
    """We hold and settle; `count` callers in another process wait. From the call of settle to each answer."""
    waited = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "wait.db"
        store = SqliteStore(path, synchronous="normal")
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        child = context.Process(target=wait_there, args=(str(path), count, there), daemon=True)
        child.start()
        here.recv()
        for number in range(min(effort.rounds, WAITS_MAX)):
            held = store.carry_out(command(f"key-{number}"))
            here.send(f"key-{number}")
            # Not in step with the watcher's own rhythm.
            time.sleep(HEAD_START_SECONDS + number * 0.0013)
            settled_at = time.monotonic()  # the same clock in both processes
            store.carry_out(
                Settle(held, Role.HOLDER, State.COMPLETED, by=held.attempt, result=ENVELOPE, retain_seconds=60.0)
            )
            waited += [(answered_at - settled_at) * 1e3 for answered_at in here.recv()]
        here.send(None)
        child.join()
        store.close()
    note = f"p99 {percentile(waited, 0.99):.1f}"
    return [Reading(percentile(waited, 0.50), waited[:: max(1, len(waited) // 100)], note)]


def wait_there(path: str, count: int, parent: Connection) -> None:
    """The other process: for each key it is given, the times at which its callers were answered."""
    asyncio.run(_wait_there(path, count, parent))


async def _wait_there(path: str, count: int, parent: Connection) -> None:
    guard = AsyncGuard(AsyncSqliteStore(path, synchronous="normal"))

    async def effect() -> None:
        raise AssertionError("the key is held by the other process: nothing runs here")

    async def caller(key: str) -> float:
        await guard.run("charge", effect, key=key, payload=PAYLOAD)
        return time.monotonic()

    parent.send("ready")
    loop = asyncio.get_running_loop()
    while (key := await loop.run_in_executor(None, next_key, parent)) is not None:
        parent.send(await asyncio.gather(*(caller(key) for _ in range(count))))
    await guard.close()


def next_key(parent: Connection) -> str | None:
    try:
        key: str | None = parent.recv()
    except EOFError:
        return None  # the parent failed, and says so itself
    return key


# -- figures -----------------------------------------------------------------------------------------------------


def storm_figures(name: str, callers: str, p99_gates: bool | None) -> tuple[Figure, ...]:
    target = None if p99_gates is None else at_most(120.0, gates=p99_gates)
    return (
        Figure(f"storm.{name}.effects", "effects", callers, exactly(1)),
        Figure(f"storm.{name}.wrong", "answers", "callers without the result", exactly(0)),
        Figure(f"storm.{name}.p50", "ms", "50 ms of effect"),
        Figure(f"storm.{name}.p99", "ms", "50 ms of effect", target),
    )


def waiting(count: int) -> Experiment:
    figure = Figure(f"storm.waiters.{count}", "ms", f"settle in one process, p50 of {count} waiting in another")
    return Experiment((figure,), lambda effort: waiters(count, effort))


EXPERIMENTS = (
    Experiment(storm_figures("memory.tasks", f"{TASKS} tasks", True), tasks_in_memory),
    Experiment(storm_figures("sqlite.tasks", f"{TASKS} tasks", False), tasks_on_sqlite),
    Experiment(storm_figures("memory.threads", f"{THREADS} threads", None), threads_in_memory),
    Experiment(storm_figures("sqlite.threads", f"{THREADS} threads", None), threads_on_sqlite),
    *(waiting(count) for count in WAITERS),
)
