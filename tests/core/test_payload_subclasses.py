"""A subclass of a builtin in a payload: as its base, or refused where it carries more."""

from __future__ import annotations

import enum
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, NamedTuple
from uuid import UUID

import pytest

from samekey import Guard
from samekey.core.errors import PayloadRefused
from samekey.core.fingerprint import Intent
from tests.core.test_fingerprint import refusal, same


class Money(Decimal):
    def __new__(cls, amount: str, currency: str) -> Money:
        made = super().__new__(cls, amount)
        made.currency = currency
        return made

    currency: str


class Phone(str):
    country: str


class Cents(int):
    currency: str


class Row(tuple):  # type: ignore[type-arg]
    table: str


class Tagged(bytes):
    kind: str


class Pages(UUID):
    __slots__ = ("pages",)


class Slotted(list):  # type: ignore[type-arg]
    __slots__ = "currency"


class Bag(set):  # type: ignore[type-arg]
    owner: str


class Handle(frozenset):  # type: ignore[type-arg]
    __slots__ = ("__dict__",)
    owner: str


@dataclass
class Lines(list):  # type: ignore[type-arg]
    currency: str = "EUR"


@dataclass
class Options(dict):  # type: ignore[type-arg]
    currency: str = "EUR"


def with_attribute(value: Any, name: str) -> Any:
    object.__setattr__(value, name, "DE")  # past a UUID's own: it is immutable
    return value


@pytest.mark.parametrize(
    "value",
    [
        Money("10", "EUR"),
        with_attribute(Phone("55"), "country"),
        with_attribute(Cents(5), "currency"),
        with_attribute(Row([1]), "table"),
        with_attribute(Tagged(b"x"), "kind"),
        with_attribute(Pages(int=1), "pages"),
        with_attribute(Slotted([1]), "currency"),
        with_attribute(Bag([1]), "owner"),
        with_attribute(Handle([1]), "owner"),
        with_attribute(datetime.__new__(type("Stamp", (datetime,), {}), 2024, 1, 1), "zone_name"),
        Lines("EUR"),
        Options("EUR"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_subclass_that_carries_more_than_its_base_is_refused(value):
    """10 EUR is not 10 USD: what the base does not show would be a silent match."""
    assert refusal({"order": 1, "amount": value}).path == "amount"
    assert refusal([[value]]).path == "0.0"
    assert refusal(value).path == ""
    with pytest.raises(PayloadRefused, match="amount"):
        Intent({"order": 1, "amount": value, "at": 2}, ignore=["at", "amount.x", "amount.*.y"])
    if type(value).__hash__ is not None:
        assert refusal({"a": {value: 1}}).path == "a"


def test_what_is_computed_anew_or_carried_by_nobody_does_not_count():
    class Attributes(dict):  # type: ignore[type-arg]
        def __init__(self, **entries: Any) -> None:
            super().__init__(entries)
            self.__dict__ = self

    class Pair(NamedTuple):
        a: int
        b: int

    class Sum(Pair):
        @cached_property
        def total(self) -> int:
            return self.a + self.b

    class Weak(str):
        __slots__ = ("__weakref__",)

    class Level(str, enum.Enum):  # noqa: UP042
        LOW = "low"

    both = Sum(1, 2)
    assert both.total == 3
    assert same(both, (1, 2))
    assert same(Attributes(a=1), {"a": 1})
    assert same(Weak("x"), "x")
    assert same(Handle([1]), {1})
    assert same(Level.LOW, "low")


@pytest.mark.parametrize("entries", [OrderedDict(a=1, at=2), defaultdict(int, a=1, at=2)], ids=["ordered", "default"])
def test_what_is_ignored_is_ignored_in_a_subclass_that_carries_no_more(entries):
    assert Intent({"order": entries}, ignore=["order.at"]).digest == Intent({"order": {"a": 1}}).digest


def test_two_enums_of_one_name_are_one():
    """The form has the name of the class and of the member, and is frozen: what differs must be in the payload, too."""

    class Card:
        class Kind(enum.Enum):
            FAST = 1

    class Wallet:
        class Kind(enum.Enum):
            FAST = 2

    assert same(Card.Kind.FAST, Wallet.Kind.FAST)


def test_a_charge_in_another_currency_is_never_answered_with_the_first():
    guard = Guard("memory://")

    @guard.once(name="charge", key="order")
    def charge(order: str, amount: Money) -> str:
        return f"{amount} {amount.currency}"

    for currency in ("USD", "EUR"):
        with pytest.raises(PayloadRefused, match="amount: a Money carries more than its Decimal"):
            charge("o-1", Money("10", currency))
    assert guard.peek("charge", "o-1") is None
