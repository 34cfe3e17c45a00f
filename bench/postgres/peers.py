"""Beside others who promise one effect per key, on the same server and in the same run.

Each contender is a process of its own with 32 threads, and they take turns. New keys give operations per second; then
all 32 call one key at once, and the effects are counted. The others are an extra: pip install -e '.[peers]'.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from bench.figures import Experiment, Figure, Reading, at_least, exactly
from bench.groups.sqlite import PAYLOAD
from bench.measure import Effort
from bench.peers import CALLERS, Effect, Run, obey, require, rush_of_new_keys, samekey, taking_turns
from bench.postgres import new_database, served


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
    with PEERS[peer](url) as run:
        obey(run, rush_of_new_keys, parent)


def side_by_side(effort: Effort) -> Sequence[Reading]:
    require({"dbos": "dbos", "once": "once-kernel"})
    with served() as (server, _):
        laps, effects = taking_turns(stand_there, {peer: new_database(server) for peer in PEERS}, effort)
    speeds = {peer: [rush.per_second for rush, _ in laps[peer][1:]] for peer in PEERS}
    cpu = {peer: statistics.median(rush.cpu_microseconds for rush, _ in laps[peer][1:]) for peer in PEERS}
    readings = []
    for peer in ("dbos", "once_kernel"):
        ratios = [ours / theirs for ours, theirs in zip(speeds["samekey"], speeds[peer], strict=True)]
        note = f"{statistics.median(speeds['samekey']):.0f} against {statistics.median(speeds[peer]):.0f} operations/s"
        note += f", {cpu['samekey']:.0f} against {cpu[peer]:.0f} us CPU"
        readings.append(Reading(statistics.median(ratios), ratios, note))
    for peer in PEERS:
        more = sum(extra for _, extra in laps[peer])
        readings.append(Reading(effects[peer], (), f"effects beyond one per new key: {more}"))
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
