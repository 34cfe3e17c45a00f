"""What a processor promises, in both colours on every store."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import pytest

from samekey.testing.faulty import Fault

pytestmark = pytest.mark.slow


@dataclass
class Receipt:
    order: int
    amount: int


def test_a_payload_runs_once_and_every_later_delivery_gets_its_result(side):
    ran: list[Any] = []

    def handle(order: dict[str, int]) -> dict[str, int]:
        ran.append(order)
        return {"paid": order["amount"]}

    processor = side.processor(handle)

    first = side.process(processor, {"order": 1, "amount": 5})
    again = side.process(processor, {"amount": 5, "order": 1})
    other = side.process(processor, {"order": 2, "amount": 5})

    assert (first.result, first.was_replay, first.attempts) == ({"paid": 5}, False, 1)
    assert (again.result, again.was_replay, again.attempts) == ({"paid": 5}, True, 1)
    assert again.key == first.key != other.key
    assert len(first.key) == 64
    assert [order["order"] for order in ran] == [1, 2]


@pytest.mark.parametrize("option", ["ignore", "exclude_fields"])
def test_an_ignored_field_does_not_make_another_payload(side, option):
    ran: list[Any] = []
    processor = side.processor(ran.append, **{option: ["sent_at", "items.*.seen"]})

    first = side.process(processor, {"order": 1, "items": [{"id": 1, "seen": 1}], "sent_at": "10:00"})
    again = side.process(processor, {"order": 1, "items": [{"id": 1, "seen": 2}], "sent_at": "10:01"})

    assert (first.was_replay, again.was_replay, first.key == again.key) == (False, True, True)
    assert len(ran) == 1


def test_a_processor_that_is_made_anew_knows_what_was_done(side):
    ran: list[Any] = []

    def handle(order: int) -> Receipt:
        ran.append(order)
        return Receipt(order, 5)

    before = side.processor(handle)
    side.process(before, 1)
    side.close(before)
    record = side.process(side.processor(handle), 1)

    assert (record.result, record.was_replay, ran) == (Receipt(1, 5), True, [1])


def test_an_exception_is_logged_with_its_traceback_and_the_next_delivery_starts_from_scratch(side, caplog):
    ran: list[int] = []

    def handle(order: int) -> str:
        ran.append(order)
        if len(ran) < 3:
            raise TimeoutError("no answer")
        return "done"

    processor = side.processor(handle)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            side.process(processor, 7)
    record = side.process(processor, 7)

    assert (record.result, record.was_replay, record.attempts, ran) == ("done", False, 3, [7, 7, 7])
    logged = [line for line in caplog.records if line.name == "samekey.processor"]
    assert [line.levelno for line in logged] == [logging.ERROR, logging.ERROR]
    assert all("TimeoutError: no answer" in (line.exc_text or "") for line in logged)


def test_a_result_that_cannot_be_stored_is_made_again_for_each_delivery(side, caplog):
    """The first delivery has its result. A later one finds none in the record: it must not be lost."""
    ran: list[int] = []

    def handle(order: int) -> object:
        ran.append(order)
        return object()

    processor = side.processor(handle)

    records = [side.process(processor, 1) for _ in range(2)]

    assert [type(record.result) for record in records] == [object, object]
    assert [(record.was_replay, record.attempts) for record in records] == [(False, 1), (False, 2)]
    assert records[0].key == records[1].key
    assert ran == [1, 1]
    assert "has no result (ResultNotKept): it is run again" in caplog.text


def test_a_result_that_did_not_reach_the_store_is_made_again(side, quick):
    """The store fails after the function ran: this delivery has its result, the next one runs when the lease ends."""
    ran: list[int] = []

    def handle(order: int) -> int:
        ran.append(order)
        return len(ran)

    processor = side.processor(handle, policy=quick)

    with side.failing(processor, Fault("settle", times=None)):
        first = side.process(processor, 1)
    second = side.process(processor, 1)
    third = side.process(processor, 1)

    assert [(one.result, one.was_replay) for one in (first, second, third)] == [(1, False), (2, False), (2, True)]
    assert ran == [1, 1]


def test_a_worker_that_dies_leaves_its_payload_to_the_next_delivery(side, quick):
    ran: list[int] = []

    class Died(BaseException):
        pass

    def handle(order: int) -> int:
        ran.append(order)
        if len(ran) == 1:
            raise Died
        return order

    died = side.processor(handle, policy=quick)
    with side.failing(died, Fault("settle", times=None)), pytest.raises(Died):
        side.process(died, 1)
    record = side.process(side.processor(handle, policy=quick), 1)

    assert (record.result, record.was_replay, ran) == (1, False, [1, 1])
