"""Three ways to charge an order. Same provider, same faults, same client around them.

The client is in _worker.py: it calls `charge(order)`, and when that raises it calls again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from samekey import Absent, Asks, Conflicting, Guard, Happened, Opaque, Policy, Record
from samekey.cli.demo._plan import NO_GUARD, SAMEKEY, TEXTBOOK, Order
from samekey.cli.demo._provider import Till
from samekey.cli.demo._service import NeverSent

STARTED_TTL_SECONDS = 1.0  # textbook: how long a dead worker blocks its order
DONE_TTL_SECONDS = 24 * 3600.0
LEASE_SECONDS = 1.0  # samekey: the same, so that the two columns wait equally long

CHARGE, CHARGE_OPAQUE = "charge", "charge_opaque"  # the names of the guarded operations

Receipt = dict[str, str | int]
Charge = Callable[[Order], Receipt]


@dataclass(frozen=True, slots=True)
class Tools:
    till: Till
    keys: Callable[..., Any]  # of the name of an operation and its arguments: the key table of the textbook
    store: str


class StillRunning(Exception):
    """Another caller has the key; come back later."""


def no_guard(tools: Tools) -> Charge:
    def charge(order: Order) -> Receipt:
        receipt: Receipt = tools.till.charge(order.id, order.amount)
        return receipt

    return charge


def textbook(tools: Tools) -> Charge:
    def charge(order: Order) -> Receipt:
        key = f"charge:{order.id}"
        if not tools.keys("set", key=key, value="started", nx=True, ttl_seconds=STARTED_TTL_SECONDS):
            kept: Receipt | str | None = tools.keys("get", key=key)
            if isinstance(kept, dict):
                return kept  # done before: the same answer
            raise StillRunning(key)
        try:
            receipt: Receipt = tools.till.charge(order.id, order.amount)
        except Exception:
            tools.keys("delete", key=key)  # "it failed, let the retry through" - but a timeout is no failure
            raise
        tools.keys("set", key=key, value=receipt, nx=False, ttl_seconds=DONE_TTL_SECONDS)
        return receipt

    return charge


def samekey(tools: Tools) -> Charge:
    guard = Guard(tools.store, policy=Policy(lease=LEASE_SECONDS, releases=(NeverSent,)))

    def find_charge(record: Record) -> Happened | Absent | Conflicting:
        found = tools.till.find(record.key.text)
        if len(found) > 1:
            return Conflicting(tuple(found))
        return Happened(found[0]) if found else Absent()

    @guard.once(name=CHARGE, key="order_id", boundary=Asks(find_charge))
    def charge(order_id: str, amount: int) -> Receipt:
        receipt: Receipt = tools.till.charge(order_id, amount)
        return receipt

    @guard.once(name=CHARGE_OPAQUE, key="order_id", boundary=Opaque())  # as if the provider could not be asked
    def charge_opaque(order_id: str, amount: int) -> Receipt:
        receipt: Receipt = tools.till.charge(order_id, amount)
        return receipt

    return lambda order: (charge_opaque if order.opaque else charge)(order.id, order.amount)


WAYS: Mapping[str, Callable[[Tools], Charge]] = {NO_GUARD: no_guard, TEXTBOOK: textbook, SAMEKEY: samekey}
