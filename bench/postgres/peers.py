"""Beside others who promise one effect per key, on the same server and in the same run.

Each contender is a process of its own with 32 threads, and they take turns. New keys give operations per second; then
all 32 call one key at once, and the effects are counted. The others are an extra: pip install -e '.[peers]'.
"""

from __future__ import annotations

import multiprocessing
import statistics
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import Any

from bench.figures import Experiment, Figure, Reading, at_least, exactly
from bench.groups.sqlite import PAYLOAD, RESULT
from bench.measure import Effort
from bench.postgres import new_database, new_text, served
from bench.postgres.pairs import among_threads
from samekey import Guard

CALLERS = 32
ROUNDS_MAX = 5
Effect = Callable[[], Any]
Run = Callable[[str, Effect], Any]  # one guarded call: its key, and what it does


@contextmanager
def samekey(url: str) -> Iterator[Run]:
    with Guard(url) as guard:
        yield lambda key, effect: guard.run("charge", effect, key=key, payload=PAYLOAD).result


@contextmanager
def once_kernel(url: str) -> Iterator[Run]:
    once = import_module("once")
    store = import_module("once.pg").PostgresStore(url, max_size=CALLERS, min_size=CALLERS)
    kernel = once.Once(store)
    yield lambda key, effect: kernel.run(key, PAYLOAD, effect)
    store._pool.close()


@contextmanager
def dbos(url: str) -> Iterator[Run]:
    """A workflow of one step, its id the key."""
    module = import_module("dbos")
    module.DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "sys_db_pool_size": CALLERS,
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )
    effects: dict[str, Effect] = {}

    @module.DBOS.step()  # type: ignore[untyped-decorator]
    def step(key: str) -> Any:
        return effects[key]()

    @module.DBOS.workflow()  # type: ignore[untyped-decorator]
    def workflow(key: str) -> Any:
        return step(key)

    module.DBOS.launch()

    def run(key: str, effect: Effect) -> Any:
        effects[key] = effect
        with module.SetWorkflowID(key):
            return workflow(key)

    yield run
    module.DBOS.destroy()


PEERS: dict[str, Callable[[str], Any]] = {"samekey": samekey, "once_kernel": once_kernel, "dbos": dbos}


def stand_there(peer: str, url: str, parent: Connection) -> None:
    """A contender's process: does what it is told, and says what came of it."""
    with PEERS[peer](url) as run:
        parent.send("ready")
        while (seconds := parent.recv()) is not None:
            if seconds:
                parent.send(rush_of_new_keys(run, seconds))
            else:
                parent.send(effects_of_a_storm(run))


def rush_of_new_keys(run: Run, seconds: float) -> tuple[float, float, int]:
    """Operations per second, CPU for each, and how many effects there were beyond one for each of them."""
    effects, calls = list[None](), list[None]()

    def effect() -> dict[str, object]:
        effects.append(None)
        return RESULT

    def call() -> None:
        run(new_text(), effect)
        calls.append(None)

    rush = among_threads(CALLERS, seconds, lambda _: call)
    return rush.per_second, rush.cpu_microseconds, len(effects) - len(calls)


def effects_of_a_storm(run: Run) -> int:
    """All at once with one key: how often it ran. Whoever is refused instead of answered does not count."""
    effects, start, key = list[None](), threading.Barrier(CALLERS), new_text()

    def effect() -> dict[str, object]:
        effects.append(None)
        threading.Event().wait(0.05)
        return RESULT

    def caller() -> None:
        start.wait()
        try:
            run(key, effect)
        except Exception:  # noqa: S110 - a peer's way to say "in progress"
            pass

    threads = [threading.Thread(target=caller, daemon=True) for _ in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(effects)


def side_by_side(effort: Effort) -> Sequence[Reading]:
    speeds: dict[str, list[float]] = {peer: [] for peer in PEERS}
    cpu: dict[str, list[float]] = {peer: [] for peer in PEERS}
    more, effects = dict.fromkeys(PEERS, 0), dict.fromkeys(PEERS, 0)
    if missing := [module for module in ("dbos", "once") if find_spec(module) is None]:
        raise ModuleNotFoundError(f"without {' and '.join(missing)}: pip install -e '.[peers]'")
    with served() as (server, _):
        context = multiprocessing.get_context("spawn")
        contenders: dict[str, tuple[Any, Any]] = {}
        for peer in PEERS:
            here, there = context.Pipe()
            child = context.Process(target=stand_there, args=(peer, new_database(server), there), daemon=True)
            child.start()
            there.close()
            contenders[peer] = (child, here)
            here.recv()  # EOFError: it could not start, and printed why
        for number in range(min(effort.rounds, ROUNDS_MAX) + 1):
            for peer, (_child, here) in contenders.items():
                here.send(effort.crowd_seconds)
                per_second, microseconds, extra = here.recv()
                more[peer] += extra
                if number:
                    speeds[peer].append(per_second)
                    cpu[peer].append(microseconds)
        for peer, (child, here) in contenders.items():
            here.send(0)
            effects[peer] = here.recv()
            here.send(None)
            child.join(10)
    readings = []
    for peer in ("dbos", "once_kernel"):
        ratios = [ours / theirs for ours, theirs in zip(speeds["samekey"], speeds[peer], strict=True)]
        note = f"{statistics.median(speeds['samekey']):.0f} against {statistics.median(speeds[peer]):.0f} operations/s"
        note += f", {statistics.median(cpu['samekey']):.0f} against {statistics.median(cpu[peer]):.0f} us CPU"
        readings.append(Reading(statistics.median(ratios), ratios, note))
    for peer in PEERS:
        readings.append(Reading(effects[peer], (), f"effects beyond one per new key: {more[peer]}"))
    return readings


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        (
            Figure("postgres.dbos.32", "x ops/s", "DBOS, a workflow of one step; ours: guard.run", at_least(10.0)),
            Figure("postgres.once_kernel.32", "x ops/s", "once-kernel; ours: guard.run"),
            Figure("postgres.effects.samekey", "effects", f"{CALLERS} threads with one key", exactly(1)),
            Figure("postgres.effects.once_kernel", "effects", f"{CALLERS} threads with one key"),
            Figure("postgres.effects.dbos", "effects", f"{CALLERS} threads with one key"),
        ),
        side_by_side,
    ),
)
