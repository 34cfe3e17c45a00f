"""Whatever a probe returns, a second effect is seen: rows updated in place, falling balances, text, nested accounts."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from samekey import Guard
from samekey.stores.memory import MemoryStore
from samekey.testing import (
    ManualClock,
    crash_everywhere,
    four_assumptions,
    lose_lease,
    rows,
    run_in_parallel,
)

ORDER = {"order_id": "o", "amount": 1}


class Bank:
    """One effect, seen in many ways."""

    def __init__(self) -> None:
        self.db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self.db.execute("CREATE TABLE accounts (id TEXT, balance INT)")
        self.db.execute("INSERT INTO accounts VALUES ('ann', 1000), ('bob', 1000)")
        self.nested, self.text, self.money, self.files = {"ann": {"paid": 0}}, "", Decimal(1000), {"a": "ann"}
        self.probes: dict[str, Callable[[], Any]] = {
            "rows": rows(self.db, "SELECT * FROM accounts ORDER BY balance"),
            "dicts": lambda: [{"id": one, "balance": balance} for one, balance in rows(self.db, QUERY)()],
            "falling": lambda: self.db.execute("SELECT balance FROM accounts WHERE id = 'ann'").fetchone()[0],
            "decimal": lambda: self.money,
            "nested": lambda: self.nested,
            "text": lambda: self.text,
            "names": lambda: self.files,
        }

    def pay(self, amount: int) -> str:
        self.db.execute("UPDATE accounts SET balance = balance - ? WHERE id = 'ann'", (amount,))
        self.nested["ann"]["paid"] += amount
        self.text += "x" * amount
        self.money -= amount
        self.files["a"] += "!"
        return "paid"


QUERY = "SELECT * FROM accounts"
MOVED = {
    "rows": r"rows\[1\] moved by {} for one operation; one clean call moves it by -1",
    "dicts": r"dicts\['balance'\] moved by {} for one operation; one clean call moves it by -1",
    "falling": "falling moved by {} for one operation; one clean call moves it by -1",
    "decimal": "decimal moved by {} for one operation; one clean call moves it by -1",
    "nested": r"nested\['ann'\]\['paid'\] moved by {} for one operation; one clean call moves it by 1",
}
SEEN = [*MOVED, "text", "names"]


@pytest.fixture
def bank() -> Iterator[Bank]:
    bank = Bank()
    yield bank
    bank.db.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000)


def careless(bank: Bank) -> Any:
    return lambda order_id, amount: bank.pay(amount)


def check_then_act(bank: Bank) -> Any:
    done = {}

    def pay(order_id: str, amount: int) -> str:
        if order_id not in done:
            done[order_id] = bank.pay(amount)
        return done[order_id]

    return pay


def guarded(bank: Bank, clock: ManualClock) -> Any:
    guard = Guard(MemoryStore(clock))

    @guard.once(name="pay", key="order_id")
    def pay(order_id: str, amount: int) -> str:
        return bank.pay(amount)

    return pay


@pytest.mark.parametrize("seen", SEEN)
def test_every_repetition_of_a_careless_handler_is_found(bank, clock, seen):
    around: dict[str, Any] = {"key": "order_id", "probes": {seen: bank.probes[seen]}}
    told = MOVED.get(seen, f"got an answer, and the call of .* changed something again: {seen} moved: ")

    with pytest.raises(AssertionError, match=told.format("-?5")):
        run_in_parallel(careless(bank), ORDER, n=4, **around)
    with pytest.raises(AssertionError, match=told.format("-?2")):
        crash_everywhere(careless(bank), ORDER, **around)
    with pytest.raises(AssertionError, match=told.format("-?3")):
        lose_lease(careless(bank), ORDER, clock=clock, **around)
    assert {"Claim", "Boundary"} <= set(four_assumptions(careless(bank), payload=ORDER, **around).broken)


@pytest.mark.parametrize("seen", MOVED)
def test_two_effects_of_calls_that_overlap_are_counted(bank, clock, seen):
    """No later call shows them: by then the answer is remembered."""
    with pytest.raises(AssertionError, match=MOVED[seen].format("-?2")):
        lose_lease(check_then_act(bank), ORDER, key="order_id", probes={seen: bank.probes[seen]}, clock=clock)


@pytest.mark.parametrize("seen", ["text", "names"])
def test_what_cannot_be_counted_is_said_and_nothing_is_said_to_hold_by_it(bank, clock, seen):
    around: dict[str, Any] = {"key": "order_id", "probes": {seen: bank.probes[seen]}}
    told = f"{seen} cannot be counted: what calls did to it that overlapped"

    for tried in (
        lambda: lose_lease(check_then_act(bank), ORDER, clock=clock, **around),
        lambda: crash_everywhere(guarded(bank, clock), ORDER, clock=clock, **around),
        lambda: run_in_parallel(guarded(bank, clock), ORDER, **around),
    ):
        with pytest.raises(AssertionError, match=rf"unknown, .*\n.*{told}"):
            tried()


def test_lines_of_a_text_are_counted(clock):
    sent, done = {"text": ""}, dict[str, int]()

    def mail(order_id: str, amount: int) -> None:
        if order_id not in done:
            sent["text"] += f"mail {order_id}\n"
            done[order_id] = amount

    once = Guard(MemoryStore(clock)).once(name="mail", key="order_id")(mail)
    around: dict[str, Any] = {"key": "order_id", "clock": clock, "probes": {"file": lambda: sent["text"]}}
    with pytest.raises(AssertionError, match=r"file \(lines\) moved by 2 for one operation"):
        lose_lease(mail, ORDER, **around)
    assert lose_lease(once, ORDER, **around).holds


@pytest.mark.slow
@pytest.mark.parametrize("seen", SEEN)
def test_a_guarded_handler_is_never_wrong_however_it_is_seen(bank: Bank, clock: ManualClock, seen: str) -> None:
    pay = guarded(bank, clock)
    report = four_assumptions(
        pay,
        payload=ORDER,
        other_payload={"amount": 2},
        key="order_id",
        probes={seen: bank.probes[seen]},
        clock=clock,
    )
    assert report.broken == ()
    assert report.holds is (seen in MOVED)  # else nothing counted what overlaps
    run_in_parallel(pay, ORDER, key="order_id", probes=bank.probes)


@pytest.mark.parametrize("dicts", [False, True])
def test_an_amount_that_is_written_twice_into_a_new_row_is_told(bank, clock, dicts):
    """No row too many, and no later call moves it: INSERT ... ON CONFLICT DO UPDATE SET paid = paid + 200."""
    paid, done = dict[str, int](), set[str]()

    def pay(order_id: str, amount: int) -> str:
        if order_id not in done:
            paid[order_id] = paid.get(order_id, 0) + amount
            done.add(order_id)
        return "paid"

    probe = (lambda: paid) if dicts else (lambda: list(paid.items()))
    place = "paid in all" if dicts else r"paid\[1\]"
    with pytest.raises(AssertionError, match=rf"unknown, .*\n.*{place} moved by 400 in a new row"):
        lose_lease(pay, {"order_id": "o", "amount": 200}, probes={"paid": probe}, clock=clock)


def test_what_changes_with_every_operation_is_no_measure(clock):
    """Times, ids and attempts in the rows, and a row that only the first operation makes: no operation is a double."""
    guard, orders, customers = Guard(MemoryStore(clock)), list[tuple[Any, ...]](), dict[str, float]()

    @guard.once(name="buy", key="order_id")
    def buy(order_id: str, amount: int) -> str:
        orders.append((len(orders), order_id, clock(), amount))
        customers["ann"] = clock()
        return "bought"

    found = crash_everywhere(
        buy,
        ORDER,
        key="order_id",
        probes={"orders": lambda: orders, "customers": lambda: customers},
        clock=clock,
    )

    assert [note for note in found.notes if note.startswith("customers cannot be counted")]
    assert not [note for note in found.notes if "in a new row" in note]


def test_a_probe_that_one_call_leaves_alone_may_not_move_at_all(bank):
    """Whatever it holds: here a text."""
    alarms = {"text": ""}

    def pay(order_id: str, amount: int) -> str:
        if order_id in orders:
            alarms["text"] = "twice!"
        else:
            orders.append(order_id)
        return "paid"

    orders: list[str] = []
    with pytest.raises(AssertionError, match=r"alarm moved: '', now 'twice!', and one clean call does not move it"):
        run_in_parallel(pay, ORDER, key="order_id", probes={"orders": lambda: orders, "alarm": lambda: alarms["text"]})


def test_probes_that_see_nothing_prove_nothing(bank):
    """The wrong table, the wrong ledger: nobody could tell a double, so nothing is said to hold."""
    probes = {"elsewhere": lambda: 0}

    with pytest.raises(AssertionError, match="one clean call moved none of the probes"):
        run_in_parallel(careless(bank), ORDER, key="order_id", probes=probes)
    report = four_assumptions(careless(bank), payload=ORDER, key="order_id", probes=probes)
    assert report.claim.holds is None
    assert not report.holds
    with pytest.raises(AssertionError, match="Claim     unknown"):
        report.check()
