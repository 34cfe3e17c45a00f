"""What will go wrong, and with which orders: drawn from one seed, the same for all three columns.

Every process of the demo draws the plan again from (seed, orders), so nothing has to be passed around and
no column can get an easier day than another.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum

NO_GUARD, TEXTBOOK, SAMEKEY = COLUMNS = ("no guard", "textbook", "samekey")

TIMEOUT_SECONDS = 0.3  # what a client waits for the provider
SLOW_ANSWER_SECONDS = 0.5  # what the provider takes on a bad moment: longer than any client waits
LATE_CHARGE_SECONDS = 0.4  # a charge can land after the client went away, and after it asked
FAST_ANSWER_SECONDS = (0.02, 0.05)

SLOW_SHARE = 0.10
TWICE_SHARE = 0.05
KILLED = 3
ORDERS_MIN, ORDERS_MAX = 20, 1000  # room for every kind of fault; one page of records


class Fault(StrEnum):
    NONE = "none"
    SLOW = "slow"  # charged at once, answered after 500 ms
    LATE = "late"  # charged after 400 ms, answered after 500 ms
    KILLED = "killed"  # charged, then kill -9 for the worker that asked for it
    TWICE = "twice"  # delivered twice at the same time: a double click, a redelivery


@dataclass(frozen=True, slots=True)
class Order:
    id: str
    amount: int  # cents
    fault: Fault
    opaque: bool  # the one order that is charged where the provider cannot be asked
    answer_seconds: float


def plan(*, seed: int, orders: int) -> list[Order]:
    """The day of the shop. A fault hits the first request of its order; retries succeed."""
    chance = random.Random(seed)  # noqa: S311 - a plan, not a secret
    early = range(orders * 3 // 5)  # a kill takes a lease to heal: not at the very end
    killed = chance.sample(early, KILLED)
    opaque = chance.choice([number for number in early if number not in killed])
    rest = [number for number in range(orders) if number not in killed and number != opaque]
    chance.shuffle(rest)
    slow, twice = max(4, round(orders * SLOW_SHARE)), max(2, round(orders * TWICE_SHARE))

    faults = dict.fromkeys(killed, Fault.KILLED)
    faults[opaque] = Fault.SLOW
    faults.update((number, Fault.LATE if place % 2 else Fault.SLOW) for place, number in enumerate(rest[:slow]))
    faults.update((number, Fault.TWICE) for number in rest[slow : slow + twice])
    return [
        Order(
            id=f"o-{number + 1:03d}",
            amount=chance.randrange(500, 20_000),
            fault=faults.get(number, Fault.NONE),
            opaque=number == opaque,
            answer_seconds=chance.uniform(*FAST_ANSWER_SECONDS),
        )
        for number in range(orders)
    ]


def deliveries(orders: list[Order]) -> list[Order]:
    """The orders as the queue hands them out: some twice, side by side, so that two workers meet."""
    return [order for order in orders for _ in range(2 if order.fault is Fault.TWICE else 1)]
