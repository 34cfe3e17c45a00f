"""`key=` and `tenant=` as functions: they hear the bound arguments, however the call was written (C43)."""

from __future__ import annotations

import functools
import operator
from typing import Any

import pytest

from samekey import Atomic, Guard, KeyMissing
from tests.guard.helpers import Ledger, Place, Side


def test_c43_a_key_function_hears_the_functions_defaults_not_its_own(side: Side, ledger: Ledger):
    """Its own default would make two keys of one call: two effects."""

    @side.once(name="charge", key=lambda order, attempt=0: f"{order}-{attempt}")
    def charge(order: str, attempt: int = 1) -> int:
        return ledger.add((order, attempt))

    assert [charge("o"), charge("o", 1), charge(order="o", attempt=1), charge(attempt=1, order="o")] == [1] * 4
    assert ledger.entries == [("o", 1)]
    assert charge("o", 2) == 2
    assert charge.peek("o-2") is not None


def test_c43_a_tenant_function_hears_them_too(side: Side, ledger: Ledger):
    @side.once(name="charge", key="order", tenant=lambda order, shop="a": shop)
    def charge(order: str, shop: str = "b") -> int:
        return ledger.add((order, shop))

    assert [charge("o"), charge("o", "b"), charge("o", shop="b")] == [1] * 3
    assert charge.peek("o", "b") is not None
    assert charge.peek("o", "a") is None


def test_a_key_function_may_give_several_parts_and_they_never_run_together(side: Side, ledger: Ledger):
    """As `key=("account", "month")` does, and as functions of `run_many` and of webhooks do."""

    @side.once(name="rent", key=lambda account, month: (account, month))
    def rent(account: str, month: str) -> int:
        return ledger.add((account, month))

    assert [rent("a/b", "c"), rent("a", "b/c"), rent("a/b", "c")] == [1, 2, 1]
    assert rent.peek(("a/b", "c")) is not None
    with pytest.raises(KeyMissing, match="a part of the key is empty"):
        rent("a", "")


def test_a_tenant_that_is_none_is_asked_for_as_a_tenant(side: Side):
    """Not as an intent: nobody would know what to give."""

    @side.once(name="rent", key="month", tenant=lambda month: None)
    def rent(month: str) -> int:
        raise AssertionError

    with pytest.raises(KeyMissing, match="the tenant is None: give a str, int or UUID"):
        rent("may")


def rule_of_names(order: str, currency: str) -> str:
    return f"{order} {currency}"


def rule_in_another_order(currency: str, order: str) -> str:
    return f"{order} {currency}"


def rule_of_positions(order: str, amount: int, /, currency: str) -> str:
    return f"{order} {currency}"


def rule_with_other_words(o: str, a: int, c: str) -> str:
    return f"{o} {c}"


def rule_with_a_constant(order: str, currency: str, *, apart: str = " ") -> str:
    return f"{order}{apart}{currency}"


RULES = {
    "names": rule_of_names,
    "another order": rule_in_another_order,
    "positional only": rule_of_positions,
    "other words": rule_with_other_words,
    "a constant of its own": rule_with_a_constant,
    "partial": functools.partial(rule_with_a_constant, apart=" "),
    "anything by name": lambda order, **more: f"{order} {more['currency']}",
    "anything by position": lambda *given: f"{given[0]} {given[2]}",
    "the first, then anything": lambda order, *more: f"{order} {more[1]}",
    "anything at all": lambda *given, **named: f"{given[0]} {given[2]}",
    "keyword only": lambda *, order, currency: f"{order} {currency}",
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_c43_every_way_to_write_the_function_and_the_call_is_one_key(place: Place, ledger: Ledger, rule):
    @place.guard().once(name="charge", key=rule)
    def charge(order: str, amount: int = 5, currency: str = "EUR") -> int:
        return ledger.add()

    calls: list[Any] = [
        charge("o"),
        charge("o", 5),
        charge("o", 5, "EUR"),
        charge(currency="EUR", order="o"),
        charge("o", currency="EUR", amount=5),
    ]
    assert calls == [1] * 5
    assert charge.peek("o EUR") is not None


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (lambda order, items: f"{order} {len(items)}", "o 2"),
        (lambda order, first, second="-": f"{order} {first} {second}", "o a b"),
        (lambda order, *items: " ".join((order, *items)), "o a b"),
        (lambda order, first, *items: f"{order} {first} {items}", "o a ('b',)"),
        (lambda order, **options: f"{order} {sorted(options)}", "o ['note', 'tip']"),
        (lambda order, tip: f"{order} {tip}", "o 1"),
        (lambda order, options: f"{order} {options['tip']}", "o 1"),
        (lambda order, *, tip=0, more=7: f"{order} {tip} {more}", "o 1 7"),
        (lambda *given, **named: f"{given} {sorted(named.items())}", "('o', 'a', 'b') [('note', ''), ('tip', 1)]"),
    ],
)
def test_c43_what_a_function_takes_as_many_is_heard_as_it_came(place: Place, rule, key: str):
    @place.guard().once(name="charge", key=rule)
    def charge(order: str, /, *items: str, note: str = "", **options: int) -> int:
        return 1

    answers = [charge.answer("o", "a", "b", tip=1), charge.answer("o", "a", "b", note="", tip=1)]

    assert [one.key for one in answers] == [key, key]
    assert answers[1].replayed


def test_a_key_function_of_a_wrapper_that_hides_its_parameters_hears_what_was_given(place: Place):
    def hidden(*args: Any, **kwargs: Any) -> int:
        return 1

    charge = place.guard().once(name="charge", key=lambda order, amount=1: f"{order} {amount}")(hidden)

    assert [charge.answer("o").key, charge.answer("o", 2).key, charge.answer(order="o", amount=3).key] == [
        "o 1",
        "o 2",
        "o 3",
    ]
    with pytest.raises(TypeError, match="order"):
        charge(amount=3)


def test_methods_give_their_key_function_everything_but_self(place: Place, ledger: Ledger):
    guard = place.guard()

    class Shop:
        @guard.once(name="charge", key=lambda order, amount=0: f"{order} {amount}")
        def charge(self, order: str, amount: int = 1) -> int:
            return ledger.add()

    assert [Shop().charge("o"), Shop().charge(order="o"), Shop.charge(Shop(), "o", 1)] == [1] * 3
    with pytest.raises(TypeError, match="'self'"):

        class Other:
            @guard.once(name="other", key=lambda self, order: order)
            def charge(self, order: str) -> int:
                return ledger.add()


def test_a_key_function_may_hear_the_connection_of_atomic():
    """Not payload, but an argument: a function of the same arguments may take it, or leave it."""
    guard = Guard("memory://")

    def charge(session: object, order: str) -> int:
        return 1

    rules: list[Any] = [lambda session, order: order, lambda order: order, lambda *given: given[1]]
    for number, rule in enumerate(rules):
        binding = guard.once(name=f"charge {number}", key=rule, boundary=Atomic("session"))(charge)._binding
        assert binding.bind((object(), "o"), {}).key == "o"
        assert binding.bind((), {"order": "o", "session": object()}).payload == {"order": "o"}


def test_a_function_that_does_not_tell_its_parameters_is_called_by_position(place: Place):
    @place.guard().once(name="charge", key=operator.itemgetter("id"))
    def charge(order: dict[str, str]) -> int:
        return 1

    assert charge.answer(order={"id": "o-1"}).key == "o-1"


@pytest.mark.parametrize(
    ("rule", "why"),
    [
        (lambda order, amount, more: order, "'more'"),
        (lambda *, ordr: ordr, "'ordr'"),
        (lambda order, shop="a": f"{shop} {order}", "'shop'"),  # a constant, or other words for amount?
        (lambda amount, *rest: amount, "'amount'"),
        (lambda order, amount, more, *rest: order, "'more'"),
    ],
)
def test_a_key_function_that_asks_for_what_is_not_there_is_a_typeerror_at_decoration(place: Place, rule, why: str):
    def charge(order: str, amount: int = 1) -> int:
        return 1

    with pytest.raises(TypeError, match=why):
        place.guard().once(name="charge", key=rule)(charge)
