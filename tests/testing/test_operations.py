"""What makes two operations different is found where it is plain, said, and asked for where it is not."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from samekey import CONTENT, Guard, Policy
from samekey.stores.memory import MemoryStore
from samekey.testing import (
    InsufficientFunds,
    LedgerProvider,
    ManualClock,
    crash_everywhere,
    four_assumptions,
    lose_lease,
    run_in_parallel,
)
from samekey.testing.handlers.operations import key_field, likely_field

ORDER = {"order_id": "o", "amount": 200}
GUESSED = "order_id was taken for what makes two operations different: give key= if it is not"


@pytest.fixture
def clock():
    return ManualClock(1_700_000_000)


@pytest.fixture
def provider(clock):
    return LedgerProvider(clock=clock, sleep=clock.advance)


@pytest.fixture
def charge(provider, clock):
    guard = Guard(MemoryStore(clock), policy=Policy(releases=(InsufficientFunds,)))

    @guard.once(name="charge", key="order_id")
    def charge(order_id: str, amount: int) -> Any:
        return provider.charge(amount, order=order_id).id

    return charge


def test_a_guarded_handler_is_tried_by_its_own_key(charge, provider, clock):
    report = four_assumptions(charge, payload=ORDER, other_payload={**ORDER, "amount": 500}, provider=provider)

    assert report.check().intent.notes == ()
    assert run_in_parallel(charge, ORDER, 4, provider=provider).holds
    assert crash_everywhere(charge, ORDER, provider=provider, clock=clock).holds
    assert lose_lease(charge, ORDER, provider=provider, clock=clock).holds


def test_an_unguarded_one_by_the_field_that_is_named_like_a_key(provider):
    def charge(order_id: str, amount: int) -> Any:
        return provider.charge(amount, order=order_id).id

    report = four_assumptions(charge, payload=ORDER, other_payload={**ORDER, "amount": 500}, provider=provider)

    assert set(report.broken) == {"Claim", "Intent", "Memory", "Boundary"}
    assert GUESSED in report.claim.notes
    with pytest.raises(AssertionError, match="provider moved by 9 for one operation"):
        run_in_parallel(charge, ORDER, provider=provider)


@pytest.mark.parametrize(
    ("key", "found"),
    [
        ("order", "order"),
        (("shop", "order"), "shop"),
        (lambda shop, order, body: order, "order"),
        (CONTENT, "shop"),
    ],
)
def test_the_guard_says_which_fields_are_its_key(key: Any, found: str) -> None:
    guard = Guard("memory://")

    @guard.once(name="buy", key=key)
    def buy(shop: int, order: UUID, body: dict[str, str]) -> None: ...

    assert key_field(buy, {"shop": 1, "order": UUID(int=1), "body": {"id": "b"}}) == found


def test_a_key_inside_a_field_is_said_at_once():
    guard = Guard("memory://")
    buy = guard.once(name="buy", key="body.id")(lambda body, amount: None)

    with pytest.raises(ValueError, match="no field of the payload that can be numbered"):
        key_field(buy, {"body": {"id": "b"}, "amount": 1})


def test_and_a_guarded_method_too():
    class Shop:
        @Guard("memory://").once(name="buy", key="order")
        def buy(self, amount: int, order: str) -> None: ...

    assert key_field(Shop().buy, {"amount": 1, "order": "o"}) == "order"


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        ({"order": "o", "amount": 1.5, "gift": True}, "order"),
        ({"amount": 1, "Idempotency_Key": "k"}, "Idempotency_Key"),
        ({"id": 1, "client_ts": 1, "note": "x"}, "id"),
    ],
)
def test_a_field_is_taken_where_it_is_plain(payload, found):
    assert likely_field(payload, but=()) == found


@pytest.mark.parametrize(
    ("payload", "among"),
    [
        ({"order_id": "o", "customer_id": "c", "amount": 1}, "it may be order_id or customer_id"),
        ({"name": "ann", "amount": 1}, "it may be name or amount"),
        ({"amount": 1.5}, "different$"),
    ],
)
def test_and_asked_for_where_it_is_not(payload, among):
    with pytest.raises(ValueError, match=f"give key=, .*{among}"):
        likely_field(payload, but=())


def test_what_another_intent_changes_is_not_the_key():
    assert likely_field({"order": "o", "amount": 1}, but={"amount"}) == "order"
