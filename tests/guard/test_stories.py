"""Stories: the ways in which people were charged twice, told with the guard in place."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from samekey import (
    Absent,
    Asks,
    Declined,
    Happened,
    InDoubt,
    InProgress,
    Keyed,
    KeyReused,
    NotDone,
    Policy,
    Refused,
    State,
    current,
)
from samekey.core.commands import Read
from samekey.core.key import make_key
from samekey.core.record import Record
from tests.guard.helpers import Ledger, Place, Side, together


class Provider:
    """A bank: it books what it is asked to, may be slow to answer, and may know idempotency keys."""

    def __init__(self, *, dedups: bool = False) -> None:
        self.books: list[tuple[str, int]] = []
        self.dedups = dedups
        self.balance = 10**9
        self._answers: dict[str, str] = {}
        self._mutex = threading.Lock()

    def charge(self, reference: str, amount: int) -> str:
        with self._mutex:
            if self.dedups and reference in self._answers:
                return self._answers[reference]
            if amount > self.balance:
                raise NotDone("insufficient funds")
            self.balance -= amount
            self.books.append((reference, amount))
            self._answers[reference] = f"receipt {len(self.books)}"
            return self._answers[reference]

    def find(self, reference: str) -> list[tuple[str, int]]:
        return [entry for entry in self.books if entry[0] == reference]


def test_two_requests_in_one_millisecond_are_one_charge(side: Side):
    bank = Provider()

    @side.once(name="charge", key="order_id")
    def charge(order_id: str, amount: int) -> str:
        return bank.charge(order_id, amount)

    answers = together(2, lambda number: charge("o-1", 200))

    assert answers == ["receipt 1", "receipt 1"]
    assert bank.books == [("o-1", 200)]


def test_two_hundred_then_five_hundred_under_one_key_is_refused(side: Side):
    bank = Provider()

    @side.once(name="charge", key="order_id")
    def charge(order_id: str, amount: int) -> str:
        return bank.charge(order_id, amount)

    charge("o-1", 200)
    with pytest.raises(KeyReused, match="'amount' differs"):
        charge("o-1", 500)

    assert bank.books == [("o-1", 200)]
    assert charge("o-1", 200) == "receipt 1"


def test_a_retry_with_another_timestamp_and_field_order_is_a_replay(side: Side):
    bank = Provider()

    @side.once(name="charge", key="order.id", ignore={"order.client_ts", "order.items.*.seen_at"})
    def charge(order: dict[str, Any]) -> str:
        return bank.charge(order["id"], order["amount"])

    first = {"id": "o-1", "amount": 200, "client_ts": 1.0, "items": [{"sku": "a", "seen_at": 1}]}
    retry = {"items": [{"seen_at": 9, "sku": "a"}], "client_ts": 2.0, "amount": 200.0, "id": "o-1"}

    assert [charge(first), charge(retry)] == ["receipt 1", "receipt 1"]
    assert len(bank.books) == 1
    with pytest.raises(KeyReused):
        charge({**first, "items": [{"sku": "b", "seen_at": 1}]})


def test_insufficient_funds_then_a_top_up_then_the_same_key_is_one_live_charge(side: Side):
    """The refusal of a moment is not remembered; of ten parallel retries one wins."""
    bank = Provider()
    bank.balance = 100

    @side.once(name="charge", key="order_id")
    def charge(order_id: str, amount: int) -> str:
        return bank.charge(order_id, amount)

    for _ in range(2):
        with pytest.raises(NotDone, match="funds"):
            charge("o-1", 200)
    bank.balance = 1000
    answers = together(10, lambda number: charge("o-1", 200))

    assert answers == ["receipt 1"] * 10
    assert bank.books == [("o-1", 200)]
    assert bank.balance == 800


def test_a_stolen_card_stays_closed_whatever_the_balance(place: Place, side: Side):
    calls = Ledger()

    @side.once(name="charge", key="order_id")
    def charge(order_id: str) -> str:
        calls.add()
        raise Refused("stolen card", detail={"code": 43})

    told = []
    for _ in range(3):
        with pytest.raises(Refused, match="stolen card") as raised:
            charge("o-1")
        told.append(raised.value.detail)

    assert told == [{"code": 43}] * 3
    assert len(calls) == 1
    assert place.peek("charge", "o-1").state is State.CLOSED


def test_a_provider_without_keys_is_asked_before_anything_runs_again(side: Side):
    bank = Provider()
    asked = Ledger()

    def find_charge(record: Record):
        asked.add()
        found = bank.find(record.provider_key())
        return Happened(f"found {found[0][1]}") if found else Absent()

    @side.once(name="charge", key="order_id", boundary=Asks(find_charge))
    def charge(order_id: str, amount: int) -> str:
        bank.charge(current().provider_key(), amount)
        raise ConnectionResetError("the answer was lost")

    with pytest.raises(ConnectionResetError):
        charge("o-1", 200)

    assert [charge("o-1", 200), charge("o-1", 200)] == ["found 200", "found 200"]
    assert (len(bank.books), len(asked)) == (1, 1)


# -- a timeout at 2 s, and the provider books at 3 s ------------------------------------------------------------


class SlowProvider(Provider):
    """It books and answers late: the caller's timeout comes first."""

    def charge_slowly(self, reference: str, amount: int) -> str:
        self.book_late = lambda: self.charge(reference, amount)
        raise TimeoutError("read timed out")


def test_a_timeout_at_2_s_answered_at_3_s_is_a_doubt_for_a_person(place: Place, side: Side):
    """Opaque: nobody can tell, so nothing runs again, neither before nor after the provider's late booking."""
    bank = SlowProvider()

    def effect():
        return bank.charge_slowly(current().provider_key(), 200)

    with pytest.raises(TimeoutError):
        side.run("charge", effect, key="o-1", payload={})
    with pytest.raises(InDoubt):
        side.run("charge", effect, key="o-1", payload={})
    bank.book_late()
    with pytest.raises(InDoubt):
        side.run("charge", effect, key="o-1", payload={})

    assert len(bank.books) == 1
    assert place.peek("charge", "o-1").state is State.IN_DOUBT


def test_a_timeout_at_2_s_answered_at_3_s_is_asked_about_and_absent_is_not_believed(side: Side):
    """Asks: at 2 s the provider has not heard of it - and books it at 3 s. Only then its word is adopted."""
    bank = SlowProvider()

    def lookup(record: Record):
        found = bank.find(record.provider_key())
        return Happened(f"found {len(found)}") if found else Absent()

    def effect():
        return bank.charge_slowly(current().provider_key(), 200)

    boundary = Asks(lookup)
    with pytest.raises(TimeoutError):
        side.run("charge", effect, key="o-1", payload={}, boundary=boundary)
    with pytest.raises(InDoubt, match="may still arrive"):
        side.run("charge", effect, key="o-1", payload={}, boundary=boundary)
    bank.book_late()

    assert side.run("charge", effect, key="o-1", payload={}, boundary=boundary).result == "found 1"
    assert len(bank.books) == 1


def test_a_timeout_at_2_s_answered_at_3_s_is_sent_again_under_the_same_provider_key(side: Side):
    """Keyed: the retry reaches the provider as the same request, and gets the first one's answer."""
    bank = SlowProvider(dedups=True)

    def effect():
        return bank.charge_slowly(current().provider_key(), 200)

    with pytest.raises(TimeoutError):
        side.run("charge", effect, key="o-1", payload={}, boundary=Keyed())
    bank.book_late()

    answer = side.run(
        "charge", lambda: bank.charge(current().provider_key(), 200), key="o-1", payload={}, boundary=Keyed()
    )
    assert (answer.result, answer.attempts) == ("receipt 1", 2)
    assert len(bank.books) == 1


# -- a bad day ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_on_a_bad_day_every_key_still_has_at_most_one_effect(place: Place, colour: str, seed: int):
    """Declines, timeouts, slow calls and retries from eight threads; a provider that can be asked."""
    bank, chance, mutex = Provider(), random.Random(seed), threading.Lock()

    def lookup(record: Record):
        found = bank.find(record.provider_key())
        return Happened("found") if found else Declined()

    def draw() -> float:
        with mutex:
            return chance.random()

    def effect() -> str:
        if draw() < 0.3:
            raise NotDone("declined for now")
        receipt = bank.charge(current().provider_key(), 1)
        if draw() < 0.3:
            raise TimeoutError("the answer was lost")
        return receipt

    side = place.side(colour, policy=Policy(patience=5))

    def worker(number: int) -> None:
        for key in range(8):
            for _ in range(20):
                try:
                    side.run("charge", effect, key=key, payload={}, boundary=Asks(lookup))
                    break
                except (NotDone, TimeoutError, InDoubt, InProgress):
                    continue

    outcomes = together(4, worker)

    assert outcomes == [None] * 4
    assert len(bank.books) == len({reference for reference, _ in bank.books}) == 8
    store = place.store()
    states = {store.carry_out(Read(make_key("charge", str(key)))).state for key in range(8)}
    assert states == {State.COMPLETED}
