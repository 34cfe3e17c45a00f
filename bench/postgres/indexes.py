"""What our indexes beside the key cost: the same crowd on the same tables without them, turn by turn."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

import psycopg

from bench.figures import Experiment, Figure, Reading
from bench.measure import Effort
from bench.postgres import claiming, completing, new_database, served
from bench.postgres.pairs import Rush, among_tasks
from samekey.stores.postgres import AsyncPostgresStore

CALLERS = 32
ROUNDS_MAX = 9


def with_and_without(effort: Effort) -> Sequence[Reading]:
    return asyncio.run(_with_and_without(effort))


async def _with_and_without(effort: Effort) -> Sequence[Reading]:
    with served() as (server, url):
        bare = new_database(server)
        with psycopg.connect(bare, autocommit=True) as link:
            link.execute(
                "DROP INDEX samekey_retained, samekey_states, samekey_provider, samekey_terms, samekey_inquiries"
            )
        stores = [AsyncPostgresStore(url), AsyncPostgresStore(bare)]
        rushes: list[list[Rush]] = [[], []]
        for number in range(min(effort.rounds, ROUNDS_MAX) + 1):
            for at, store in enumerate(stores):

                async def pair(store: AsyncPostgresStore = store) -> None:
                    await store.carry_out(completing(await store.carry_out(claiming())))

                rush = await among_tasks(CALLERS, effort.crowd_seconds, lambda _, pair=pair: pair)  # type: ignore[misc]
                if number:  # the first time everything connects
                    rushes[at].append(rush)
        for store in stores:
            await store.close()
        hot = [in_place(one) for one in (url, bare)]
    costs = [without.per_second / ours.per_second for ours, without in zip(*rushes, strict=True)]
    speeds = [statistics.median(rush.per_second for rush in some) for some in rushes]
    note = f"{speeds[0]:.0f} against {speeds[1]:.0f} operations/s; settled in place {hot[0]:.0%} against {hot[1]:.0%}"
    return [Reading(statistics.median(costs), costs, note)]


def in_place(url: str) -> float:
    """The share of updates that wrote no index at all."""
    with psycopg.connect(url, autocommit=True) as link:
        row = link.execute(
            "SELECT n_tup_hot_upd, n_tup_upd FROM pg_stat_user_tables WHERE relname = 'samekey_records'"
        ).fetchone()
    return row[0] / row[1] if row and row[1] else 0.0


EXPERIMENTS: tuple[Experiment, ...] = (
    Experiment(
        (Figure("postgres.indexes", "x", f"the same without the indexes beside the key, {CALLERS} callers"),),
        with_and_without,
    ),
)
