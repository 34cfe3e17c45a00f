"""Many keys: what a claim costs when there are millions of them, and while a million is swept.

The keys are made by the server itself, completed, as wide as ours are.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from multiprocessing.synchronize import Event

import psycopg

from bench.figures import Experiment, Figure, Reading, at_most
from bench.measure import Effort, percentile, quiet
from bench.postgres import claiming, completing, is_quick, new_database, served
from bench.postgres.pairs import among_tasks
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore

CALLERS = 32
ROUNDS = 7
KEYS = (1_000_000, 10_000_000)
QUICK_KEYS = (20_000, 50_000)
SWEPT, QUICK_SWEPT = 1_000_000, 20_000
SWEEP_LIMIT = 1000
SWEEP_CALLERS = 8
CALM_SECONDS = 5.0

SEED = """
INSERT INTO samekey_records (
  digest, attempt, token, created_at, changed_at, lease_until, settled_at, retain_until, version, attempts, round,
  unsure, happened, state, operation, key, fingerprint, form, boundary, fields, settled_by, result, moves
)
SELECT
  md5('key ' || n)::uuid, md5('attempt ' || n)::uuid, n, wall, wall, wall + 30, wall, wall + %s, 2, 1, 0,
  false, false, 'completed', 'charge', 'seed_' || n, decode(md5('a' || n) || md5('b' || n), 'hex'), '1', 'opaque',
  '[["amount","00000000"],["currency","00000000"],["order","00000000"]]', md5('attempt ' || n), %s,
  '[' || wall || ',' || n || ',"","started","' || md5('attempt ' || n) || '",""]' || chr(10)
    || '[' || wall || ',' || n || ',"started","completed","' || md5('attempt ' || n) || '",""]'
FROM generate_series(1, %s) AS n, (SELECT date_part('epoch', clock_timestamp()) AS wall) AS clock
"""


def seed(url: str, keys: int, retain_seconds: float) -> None:
    with psycopg.connect(url, autocommit=True) as link:
        link.execute("SET synchronous_commit = off")
        link.execute(SEED, (retain_seconds, b"\x01" + bytes(300), keys))
        link.execute("SELECT setval('samekey_tokens', %s)", (keys + 1,))
        link.execute("VACUUM (ANALYZE) samekey_records")
        link.execute("CHECKPOINT")


def grown(effort: Effort) -> Sequence[Reading]:
    """Databases of one server take turns: an empty one and those with keys in them."""
    return asyncio.run(_grown(effort))


async def _grown(effort: Effort) -> Sequence[Reading]:
    sizes = QUICK_KEYS if is_quick(effort) else KEYS
    laps: list[list[float]] = [[] for _ in (0, *sizes)]
    with served() as (server, url):
        urls = [url, *(new_database(server) for _ in sizes)]
        for one, keys in zip(urls[1:], sizes, strict=True):
            seed(one, keys, 24 * 3600.0)
        stores = [AsyncPostgresStore(one) for one in urls]
        for number in range(min(effort.rounds, ROUNDS) + 1):
            for at, store in enumerate(stores):

                async def pair(store: AsyncPostgresStore = store) -> None:
                    await store.carry_out(completing(await store.carry_out(claiming())))

                rush = await among_tasks(CALLERS, effort.crowd_seconds, lambda _, pair=pair: pair)  # type: ignore[misc]
                if number:
                    laps[at].append(1e6 / rush.per_second)
        for store in stores:
            await store.close()
    readings = []
    for keys, mine in zip(sizes, laps[1:], strict=True):
        ratios = [one / empty for one, empty in zip(mine, laps[0], strict=True)]
        note = f"{statistics.median(mine):.0f} against {statistics.median(laps[0]):.0f} us with {CALLERS} callers"
        short = f"; quick: {keys:,} keys only" if is_quick(effort) else ""
        readings.append(Reading(statistics.median(ratios), ratios, note + short))
    return readings


# -- sweeping --------------------------------------------------------------------------------------------------


def swept(effort: Effort) -> Sequence[Reading]:
    """Claims' p99 before, and while another process sweeps without a pause."""
    keys = QUICK_SWEPT if is_quick(effort) else SWEPT
    with served() as (_, url):
        seed(url, keys, -1.0)
        context = multiprocessing.get_context("spawn")
        go, over = context.Event(), context.Event()
        sweeper = context.Process(target=sweep_there, args=(url, keys, go, over), daemon=True)
        sweeper.start()
        calm, during, seconds = asyncio.run(_claims(url, effort, go, over))
        sweeper.join()
        with psycopg.connect(url) as link:
            left = link.execute("SELECT count(*) FROM samekey_records WHERE key LIKE 'seed%'").fetchone()
    assert left == (0,), f"{left} keys were not swept"
    before, meanwhile = percentile(calm, 0.99) * 1e3, percentile(during, 0.99) * 1e3
    note = f"{keys:,} keys in {seconds:.1f} s; p50 {statistics.median(calm) * 1e3:.2f} and then"
    return [
        Reading(before, (), f"{len(calm)} claims by {SWEEP_CALLERS} tasks"),
        Reading(meanwhile, (), f"{note} {statistics.median(during) * 1e3:.2f} ms; {len(during)} claims"),
    ]


async def _claims(url: str, effort: Effort, go: Event, over: Event) -> tuple[list[float], list[float], float]:
    store = AsyncPostgresStore(url)
    calm, during = list[float](), list[float]()

    async def caller(took: list[float], stop_at: float | None) -> None:
        while not over.is_set() if stop_at is None else time.perf_counter() < stop_at:
            begun = time.perf_counter()
            await store.carry_out(completing(await store.carry_out(claiming())))
            took.append(time.perf_counter() - begun)

    with quiet():
        await asyncio.gather(*(caller([], time.perf_counter() + 0.5) for _ in range(SWEEP_CALLERS)))
        until = time.perf_counter() + (1.0 if is_quick(effort) else CALM_SECONDS)
        await asyncio.gather(*(caller(calm, until) for _ in range(SWEEP_CALLERS)))
        begun = time.perf_counter()
        go.set()
        await asyncio.gather(*(caller(during, None) for _ in range(SWEEP_CALLERS)))
        seconds = time.perf_counter() - begun
    await store.close()
    return calm, during, seconds


def sweep_there(url: str, keys: int, go: Event, over: Event) -> None:
    store = PostgresStore(url)
    store.health()  # connects
    go.wait()
    left = keys
    try:
        while left > 0 and (swept := store.sweep(SWEEP_LIMIT)):
            left -= swept
    finally:
        over.set()
    store.close()


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        tuple(
            Figure(
                f"postgres.keys.{keys // 1_000_000}M",
                "x",
                f"claim and complete in an empty table, {CALLERS} callers",
                at_most(1.3),
            )
            for keys in KEYS
        ),
        grown,
    ),
    Experiment(
        (
            Figure("postgres.sweep.before", "ms", "p99 of claim and complete, nothing swept"),
            Figure("postgres.sweep.during", "ms", "the same while a million keys are swept without a pause"),
        ),
        swept,
    ),
)
