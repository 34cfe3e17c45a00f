"""What a guard adds to the user's function when the store costs nothing: the library's own CPU."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from bench.figures import Experiment, Figure, Reading, at_most
from bench.measure import Effort, Race, Work, added_microseconds, cpu_ratios, interleave
from samekey import CONTENT, AsyncGuard, Guard, Repeatable
from samekey.processor import IdempotentProcessor

REPLAYED_KEYS = 100

_numbers = itertools.count()


def charge(order: str, amount: int, currency: str) -> dict[str, Any]:
    return {"id": "ch_1", "amount": amount, "currency": currency, "paid": True}


async def async_charge(order: str, amount: int, currency: str) -> dict[str, Any]:
    return {"id": "ch_1", "amount": amount, "currency": currency, "paid": True}


def sync(effort: Effort) -> Sequence[Reading]:
    guarded = Guard("memory://").once(name="charge", key="order")(charge)
    known = new_keys(REPLAYED_KEYS)
    calls(guarded, known)()

    def fresh(operations: int) -> Work:
        return calls(guarded, new_keys(operations))

    def replay(operations: int) -> Work:
        return calls(guarded, repeated(known, operations))

    def bare(operations: int) -> Work:
        return calls(charge, new_keys(operations))

    return readings(interleave(effort, fresh, replay, bare))


def asynchronous(effort: Effort) -> Sequence[Reading]:
    guarded = AsyncGuard("memory://").once(name="charge", key="order")(async_charge)
    known = new_keys(REPLAYED_KEYS)
    with asyncio.Runner() as runner:

        def awaited(function: Callable[[str, int, str], Coroutine[Any, Any, Any]], keys: Iterable[str]) -> Work:
            async def one_after_the_other() -> None:
                for key in keys:
                    await function(key, 1999, "EUR")

            return lambda: runner.run(one_after_the_other())

        awaited(guarded, known)()

        def fresh(operations: int) -> Work:
            return awaited(guarded, new_keys(operations))

        def replay(operations: int) -> Work:
            return awaited(guarded, repeated(known, operations))

        def bare(operations: int) -> Work:
            return awaited(async_charge, new_keys(operations))

        return readings(interleave(effort, fresh, replay, bare))


def processor(effort: Effort) -> Sequence[Reading]:
    """A processor beside `guard.run` with the same key and boundary."""
    guard, boundary = Guard("memory://"), Repeatable()
    process = IdempotentProcessor(charge_order, guard, name="processor").process

    def by_guard(order: dict[str, Any]) -> Any:
        return guard.run("guard", lambda: charge_order(order), key=CONTENT, payload=order, boundary=boundary)

    def deliveries(handle: Callable[[dict[str, Any]], Any], keys: Iterable[str]) -> Work:
        orders = [{"order": key, "amount": 1999, "currency": "EUR"} for key in keys]

        def one_after_the_other() -> None:
            for order in orders:
                handle(order)

        return one_after_the_other

    known = new_keys(REPLAYED_KEYS)
    deliveries(process, known)()
    deliveries(by_guard, known)()
    race = interleave(
        effort,
        lambda operations: deliveries(process, new_keys(operations)),
        lambda operations: deliveries(by_guard, new_keys(operations)),
        lambda operations: deliveries(process, repeated(known, operations)),
        lambda operations: deliveries(by_guard, repeated(known, operations)),
    )
    both = cpu_ratios(race.laps[0], race.laps[1]), cpu_ratios(race.laps[2], race.laps[3])
    return [Reading(statistics.median(ratios), ratios, race.speed) for ratios in both]


def charge_order(order: dict[str, Any]) -> dict[str, Any]:
    return charge(order["order"], order["amount"], order["currency"])


def readings(race: Race) -> list[Reading]:
    fresh, replay, bare = race.laps
    both = (added_microseconds(fresh, bare), added_microseconds(replay, bare))
    return [Reading(statistics.median(added), added, f"best round {min(added):.1f}; {race.speed}") for added in both]


def calls(function: Callable[[str, int, str], Any], keys: Iterable[str]) -> Work:
    def one_after_the_other() -> None:
        for key in keys:
            function(key, 1999, "EUR")

    return one_after_the_other


def new_keys(count: int) -> list[str]:
    return [f"ord_{number:08d}" for number in itertools.islice(_numbers, count)]


def repeated(keys: Sequence[str], count: int) -> list[str]:
    return list(itertools.islice(itertools.cycle(keys), count))


ADDED = "the bare function: CPU added per call"
EXPERIMENTS = (
    Experiment(
        (
            Figure("memory.fresh", "us CPU", ADDED, at_most(50.0)),
            Figure("memory.replay", "us CPU", ADDED, at_most(30.0)),
        ),
        sync,
    ),
    Experiment(
        (
            Figure("memory.async.fresh", "us CPU", f"{ADDED} (async)"),
            Figure("memory.async.replay", "us CPU", f"{ADDED} (async)"),
        ),
        asynchronous,
    ),
    Experiment(
        (
            Figure("memory.processor.fresh", "x CPU", "guard.run with key=CONTENT and Repeatable", at_most(1.1)),
            Figure("memory.processor.replay", "x CPU", "guard.run with key=CONTENT and Repeatable", at_most(1.1)),
        ),
        processor,
    ),
)
