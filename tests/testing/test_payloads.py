"""Each call gets a payload of its own, as each request brings one: handlers may change what they are given."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest

from samekey import Guard
from samekey.stores.memory import MemoryStore
from samekey.testing import ManualClock, four_assumptions, redeliver, rows, run_in_parallel, run_twice

BASKET = {"order_id": "o", "items": ["a", "b"]}


def shipping(sent: list[Any]) -> Any:
    def ship(order_id: str, items: list[str]) -> int:
        count = len(items)
        while items:
            sent.append((order_id, items.pop()))
        return count

    return ship


def test_a_handler_that_empties_its_list_ships_twice_and_is_found():
    sent: list[Any] = []
    probes = {"sent": lambda: sent}

    with pytest.raises(AssertionError, match="the second run changed something: sent moved: "):
        run_twice(shipping(sent), BASKET, probes=probes)
    with pytest.raises(AssertionError, match="delivery 2 changed something: sent moved: "):
        redeliver(shipping(sent), BASKET, probes=probes)
    with pytest.raises(AssertionError, match="sent moved by 6 for one operation; one clean call moves it by 2"):
        run_in_parallel(shipping(sent), BASKET, n=2, key="order_id", probes=probes)


@pytest.mark.parametrize("trial", [run_twice, redeliver, run_in_parallel])
def test_a_message_that_is_no_payload_is_told(trial: Any):
    """A handler of one message is tried as `trial(handle, {"message": ...})`."""
    with pytest.raises(ValueError, match=r"handler\(\*\*payload\): give a dict of arguments, not 'o-1'"):
        trial(lambda message: None, "o-1", probes={"sent": list})


def test_a_payload_of_the_four_assumptions_is_told_too():
    for wrong in ({"payload": ["o-1"]}, {"payload": BASKET, "other_payload": ["o-1"]}):
        with pytest.raises(ValueError, match="give a dict of arguments"):
            four_assumptions(lambda **basket: None, probes={"sent": list}, **wrong)


def test_a_guarded_handler_may_empty_its_list():
    clock, sent = ManualClock(), list[Any]()
    ship = Guard(MemoryStore(clock)).once(name="ship", key="order_id")(shipping(sent))
    probes = {"sent": lambda: sent}

    assert run_twice(ship, BASKET, probes=probes) == 2
    redeliver(ship, {**BASKET, "order_id": "o-2"}, probes=probes)
    other = {"items": ["a", "b", "c"]}
    assert four_assumptions(ship, payload=BASKET, other_payload=other, clock=clock, probes=probes).check().holds
    assert BASKET["items"] == ["a", "b"]


def test_what_is_no_data_is_handed_on_as_it_is():
    """A connection cannot be copied, and the copy of an outbox with a place of its own would be another outbox."""

    class Outbox:
        def __init__(self) -> None:
            self.sent: list[str] = []

    db, outbox = sqlite3.connect(":memory:"), Outbox()
    db.execute("CREATE TABLE orders (id PRIMARY KEY)")

    def buy(order_id: str, db: sqlite3.Connection, outbox: Outbox) -> None:
        if db.execute("INSERT OR IGNORE INTO orders VALUES (?)", (order_id,)).rowcount:
            outbox.sent.append(order_id)

    given = {"order_id": "o", "db": db, "outbox": outbox}
    run_twice(buy, given, probes={"orders": rows(db, "SELECT * FROM orders"), "sent": lambda: outbox.sent})
    db.close()

    assert outbox.sent == ["o"]
