"""Identity: keys, fingerprints, scope (CHALLENGES 3c)."""

from __future__ import annotations

import json
import threading
from typing import Any
from uuid import UUID

import pytest

from samekey import (
    CONTENT,
    Content,
    InProgress,
    KeyMalformed,
    KeyMissing,
    KeyReused,
    Misconfigured,
    PayloadRefused,
    Policy,
)
from tests.guard.helpers import Ledger, Place, Side, Thread, together

OLD, NEW = "an old secret of some length", "a new secret of some length"


# -- C35, C36, C37, C46: one key, another intent ---------------------------------------------------------------


def test_c35_the_same_key_with_another_payload_is_refused_and_names_the_field(side: Side, ledger: Ledger):
    side.run("charge", ledger.add, key="o-1", payload={"amount": 200, "currency": "EUR"})

    with pytest.raises(KeyReused, match=r"'amount' differs.*Another intent needs another key; a retry") as told:
        side.run("charge", ledger.add, key="o-1", payload={"amount": 500, "currency": "EUR"})
    assert told.value.fields == ("amount",)
    assert len(ledger) == 1


def test_c35_a_field_that_is_new_or_missing_is_a_difference(side: Side):
    side.run("charge", lambda: 1, key="o-1", payload={"amount": 200})

    with pytest.raises(KeyReused) as new:
        side.run("charge", lambda: 1, key="o-1", payload={"amount": 200, "tip": 1})
    with pytest.raises(KeyReused) as gone:
        side.run("charge", lambda: 1, key="o-1", payload={})
    assert (new.value.fields, gone.value.fields) == (("tip",), ("amount",))


def test_c36_the_same_key_in_another_operation_is_another_intent(side: Side):
    assert side.run("charge", lambda: "charged", key="o-1", payload={}).result == "charged"
    assert side.run("refund", lambda: "refunded", key="o-1", payload={}).result == "refunded"


def test_c36_names_and_keys_never_run_together(side: Side):
    """`a/b` + `c` is not `a` + `b/c`, nor are the parts of a key of several."""
    assert side.run("a/b", lambda: 1, key="c", payload={}).result == 1
    assert side.run("a", lambda: 2, key="b/c", payload={}).result == 2
    assert side.run("k", lambda: 3, key=("a/b", "c"), payload={}).result == 3
    assert side.run("k", lambda: 4, key=("a", "b/c"), payload={}).result == 4


def test_c37_the_same_key_of_another_tenant_is_isolated(place: Place, side: Side, ledger: Ledger):
    for tenant in ("ann", "bob", None):
        side.run("charge", lambda t=tenant: ledger.add(t) and t, key="o-1", payload={}, tenant=tenant)  # type: ignore[misc]

    assert ledger.entries == ["ann", "bob", None]
    assert side.run("charge", int, key="o-1", payload={}, tenant="ann").result == "ann"
    assert place.peek("charge", "o-1", "bob").key.tenant == "bob"


def test_c37_a_decorated_function_takes_its_tenant_from_a_parameter(side: Side, ledger: Ledger):
    @side.once(name="charge", key="order_id", tenant="shop")
    def charge(order_id: str, shop: str) -> str:
        ledger.add()
        return f"{order_id} of {shop}"

    assert [charge("o-1", "a"), charge("o-1", "b"), charge("o-1", shop="a")] == ["o-1 of a", "o-1 of b", "o-1 of a"]
    assert len(ledger) == 2
    assert charge.peek("o-1", "b").key.tenant == "b"
    assert charge.peek("o-1") is None


def test_c37_a_missing_tenant_is_refused_never_shared(side: Side, ledger: Ledger):
    @side.once(name="charge", key="order_id", tenant="shop")
    def charge(order_id: str, shop: str | None = None) -> int:
        return ledger.add()

    with pytest.raises(KeyMissing, match="tenant"):
        charge("o-1")
    assert len(ledger) == 0


@pytest.mark.parametrize("guards", ["one", "two"])
def test_c46_a_mismatch_while_the_first_still_runs_is_told_at_once(place: Place, colour: str, guards: str):
    """Told before "in progress", by the flight or by the store."""
    first = place.side(colour)
    second = first if guards == "one" else place.side(colour)
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(5)
        return "first"

    running = Thread(lambda: first.run("charge", effect, key="o-1", payload={"amount": 200}))
    assert inside.wait(5)
    patient = Policy(patience=30)
    with pytest.raises(KeyReused, match="amount"):
        second.run("charge", int, key="o-1", payload={"amount": 500}, policy=patient)
    with pytest.raises(InProgress):
        second.run("charge", int, key="o-1", payload={"amount": 200}, policy=Policy(patience=0))
    go.set()

    assert running.result().result == "first"


# -- C41, C43, C44: what makes two calls one -------------------------------------------------------------------


SAME = ('{"b": 1, "a": "é"}', '{"a":"\\u00e9","b":1}', '  {  "a" : "é", "b": 1.0 }', '{"b": 10e-1, "a": "\\u00E9"}')


def test_c41_order_spaces_escapes_and_1_or_1_point_0_are_one_payload(side: Side, ledger: Ledger):
    side.run("charge", ledger.add, key="o-1", payload=json.loads('{"a": "é", "b": 1}'))

    assert all(side.run("charge", ledger.add, key="o-1", payload=json.loads(again)).replayed for again in SAME)
    assert len(ledger) == 1


def test_c41_what_json_tells_apart_stays_apart(side: Side):
    pairs: list[tuple[Any, Any]] = [(1, "1"), (1, True), (0, False), (None, "null"), ([], {}), ("", None)]
    for key, (one, other) in enumerate(pairs):
        side.run("charge", lambda: 1, key=key, payload={"x": one})

        with pytest.raises(KeyReused):
            side.run("charge", lambda: 1, key=key, payload={"x": other})


def test_c43_positional_keyword_and_default_are_one_key(side: Side, ledger: Ledger):
    @side.once(name="charge", key="order_id")
    def charge(order_id: str, amount: int = 200, *, currency: str = "EUR") -> int:
        return ledger.add((order_id, amount, currency))

    answers = [
        charge("o-1"),
        charge("o-1", 200),
        charge(order_id="o-1", amount=200),
        charge("o-1", currency="EUR"),
        charge(currency="EUR", amount=200, order_id="o-1"),
    ]

    assert answers == [1] * 5
    assert ledger.entries == [("o-1", 200, "EUR")]
    with pytest.raises(KeyReused, match="amount"):
        charge("o-1", 201)


def test_c43_variadic_and_positional_only_parameters_are_bound_too(side: Side, ledger: Ledger):
    @side.once(name="charge", key="order_id")
    def charge(order_id: str, /, *items: str, **options: int) -> int:
        return ledger.add((order_id, items, options))

    assert [charge("o-1", "a", "b", x=1, y=2), charge("o-1", "a", "b", y=2, x=1)] == [1, 1]
    with pytest.raises(KeyReused, match="items"):
        charge("o-1", "b", "a", x=1, y=2)
    with pytest.raises(KeyReused, match="options"):
        charge("o-1", "a", "b", x=1, y=3)


def test_c43_a_call_that_does_not_fit_is_a_typeerror_and_leaves_nothing(side: Side, ledger: Ledger):
    @side.once(name="charge", key="order_id")
    def charge(order_id: str, amount: int) -> int:
        return ledger.add()

    for wrong in (lambda: charge("o-1"), lambda: charge("o-1", 1, 2), lambda: charge("o-1", 1, amount=1)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(TypeError):
        charge("o-1", 1, colour="red")
    assert charge.peek("o-1") is None


class Thing:
    """An object without a form of its own."""


def test_c44_an_unknown_object_is_refused_and_nothing_is_claimed(place: Place, side: Side, ledger: Ledger):
    with pytest.raises(PayloadRefused, match=r"Thing"):
        side.run("charge", ledger.add, key="o-1", payload={"items": [1, Thing()]})

    assert len(ledger) == 0
    assert place.look("charge", "o-1") is None


# -- C48, C49: no key ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["", None])
def test_c48_a_missing_or_empty_key_is_refused(side: Side, ledger: Ledger, key):
    @side.once(name="charge", key="order_id")
    def charge(order_id: str | None) -> int:
        return ledger.add()

    with pytest.raises(KeyMissing):
        side.run("charge", ledger.add, key=key, payload={})
    with pytest.raises(KeyMissing):
        charge(key)
    assert len(ledger) == 0


def test_c48_a_path_to_nowhere_is_refused(side: Side, ledger: Ledger):
    @side.once(name="charge", key="order.id")
    def charge(order: dict[str, str]) -> int:
        return ledger.add()

    with pytest.raises(KeyMissing, match="id"):
        charge({})
    assert charge({"id": "o-1"}) == 1


def test_c49_two_honest_equal_calls_with_keys_of_their_own_both_run(side: Side, ledger: Ledger):
    for key in ("first purchase", "second purchase"):
        side.run("buy", ledger.add, key=key, payload={"item": "tea"})

    assert len(ledger) == 2


def test_c49_content_as_the_key_swallows_the_second_and_so_must_be_said_aloud(side: Side, ledger: Ledger):
    for _ in range(2):
        side.run("buy", ledger.add, key=CONTENT, payload={"item": "tea"})

    assert len(ledger) == 1
    side.run("buy", ledger.add, key=CONTENT, payload={"item": "coffee"})
    assert len(ledger) == 2


def test_c49_key_is_required_there_is_no_default(side: Side):
    with pytest.raises(TypeError, match="key"):
        side.run("buy", int, payload={})
    with pytest.raises(TypeError, match="key"):
        side.guard.once(name="buy")


def test_content_ignores_what_the_operation_ignores_and_may_pin_it(side: Side, ledger: Ledger):
    @side.once(name="buy", key=CONTENT, ignore={"at"})
    def buy(item: str, at: float = 0) -> int:
        return ledger.add()

    @side.once(name="pinned", key=Content(ignore=("at",)), ignore={"at", "note"})
    def pinned(item: str, at: float = 0, note: str = "") -> int:
        return ledger.add()

    assert [buy("tea", at=1), buy("tea", at=2)] == [1, 1]
    assert [pinned("tea", at=1), pinned("tea", at=2)] == [2, 2]
    assert pinned("tea", note="please") == 3


@pytest.mark.parametrize("ignore", [("recieved_at",), ("at", "recieved_at"), "at", ("items.0.at",), (1,), 5])
def test_content_that_leaves_out_what_is_not_there_is_told_at_decoration(side: Side, ignore: Any):
    """A misspelt name leaves nothing out: every retry would have a key of its own, and run."""

    def buy(item: str, items: list[str], at: float = 0) -> int:
        raise AssertionError

    with pytest.raises((TypeError, Misconfigured), match="ignore"):
        side.once(name="buy", key=Content(ignore=ignore))(buy)


def test_content_that_left_out_a_parameter_has_the_same_key_when_that_is_gone():
    """So a deploy that drops the parameter may drop its name."""
    pinned = Content(ignore=("at",))

    assert pinned.key_of({"item": "tea", "at": 1}, ()) == CONTENT.key_of({"item": "tea"}, ())


# -- C52: a deploy ---------------------------------------------------------------------------------------------


def test_c52_a_parameter_that_is_new_makes_other_keys_of_content_and_is_told_for_any_other(
    place: Place, colour: str, ledger: Ledger
):
    """A window in guarantees: of a function that takes more by now, nobody knows that it is asked for the same."""

    def deploy(key: Any, **ignore: Any) -> tuple[Any, Any]:
        def before(item: str) -> int:
            return ledger.add()

        def after(item: str, note: str = "") -> int:
            return ledger.add()

        name = f"buy {key} {ignore}"
        old = place.side(colour).once(name=name, key=key)(before)
        return old, place.side(colour).once(name=name, key=key, **ignore)(after)

    by_content, by_name = deploy(CONTENT), deploy("item")
    told = deploy(CONTENT, ignore={"note"})

    assert [buy("tea") for buy in by_content] == [1, 2]
    for old, new in (by_name, told):
        old("tea")
        with pytest.raises(KeyReused, match="'note' differs"):
            new("tea")


def test_c52_after_a_secret_rotation_old_records_still_verify(place: Place, colour: str, ledger: Ledger):
    place.side(colour, secret=OLD).run("charge", ledger.add, key="o-1", payload={"amount": 1})
    rotated = place.side(colour, secret=(NEW, OLD))

    assert rotated.run("charge", ledger.add, key="o-1", payload={"amount": 1}).replayed
    with pytest.raises(KeyReused, match="amount"):
        rotated.run("charge", ledger.add, key="o-1", payload={"amount": 2})
    rotated.run("charge", ledger.add, key="o-2", payload={"amount": 1})
    assert place.peek("charge", "o-1").form != place.peek("charge", "o-2").form


def test_c52_a_secret_that_is_gone_is_neither_yes_nor_no(place: Place, colour: str, ledger: Ledger):
    place.side(colour, secret=OLD).run("charge", ledger.add, key="o-1", payload={"amount": 1})

    with pytest.raises(Misconfigured, match="secret"):
        place.side(colour, secret=NEW).run("charge", ledger.add, key="o-1", payload={"amount": 1})
    assert len(ledger) == 1


def test_c52_a_secret_may_be_introduced_and_removed_for_new_records(place: Place, colour: str, ledger: Ledger):
    place.side(colour).run("charge", ledger.add, key="o-1", payload={"amount": 1})

    assert place.side(colour, secret=NEW).run("charge", ledger.add, key="o-1", payload={"amount": 1}).replayed


def test_c52_a_changed_ignore_set_does_not_turn_honest_retries_into_mismatches(
    place: Place, colour: str, ledger: Ledger
):
    payload = {"amount": 1, "at": 10, "note": "a"}
    place.side(colour).run("charge", ledger.add, key="o-1", payload=payload, ignore={"at"})
    side = place.side(colour)

    assert side.run("charge", ledger.add, key="o-1", payload={**payload, "at": 11}, ignore={"note"}).replayed
    with pytest.raises(KeyReused, match="note"):
        side.run("charge", ledger.add, key="o-1", payload={**payload, "note": "b"}, ignore={"note"})


def test_c52_a_content_key_does_not_change_with_the_secret(place: Place, colour: str, ledger: Ledger):
    """A deploy never turns one intent into two keys."""
    place.side(colour, secret=OLD).run("buy", ledger.add, key=CONTENT, payload={"item": "tea"})

    assert place.side(colour, secret=(NEW, OLD)).run("buy", ledger.add, key=CONTENT, payload={"item": "tea"}).replayed


@pytest.mark.parametrize("secret", ["", "short", b"short", (), ["long enough a secret", "short"], 12], ids=repr)
def test_c52_a_secret_too_short_is_refused(place: Place, secret):
    with pytest.raises((Misconfigured, TypeError)):
        place.guard(secret=secret)


# -- kinds of keys ---------------------------------------------------------------------------------------------


def test_keys_may_be_str_int_uuid_or_several(side: Side, ledger: Ledger):
    number = UUID(int=7)
    for key in ("7", 7, number, str(number), ("a", 1), ["a", "1"]):
        side.run("charge", ledger.add, key=key, payload={})

    assert len(ledger) == 3


def test_other_kinds_of_keys_are_refused(side: Side, ledger: Ledger):
    for key in (1.5, True, b"k", object(), {"a": 1}, ("a", None), ("a", 1.5)):
        with pytest.raises((KeyMalformed, KeyMissing)):
            side.run("charge", ledger.add, key=key, payload={})
    assert len(ledger) == 0


def test_a_key_may_be_several_parameters_a_path_or_a_function(side: Side, ledger: Ledger):
    @side.once(name="several", key=("shop", "order.id"))
    def several(shop: str, order: dict[str, str]) -> int:
        return ledger.add()

    @side.once(name="function", key=lambda order, **_: order["id"])
    def function(order: dict[str, str], note: str = "") -> int:
        return ledger.add()

    assert [several("a", {"id": "1"}), several("a", {"id": "1"}), several("b", {"id": "1"})] == [1, 1, 2]
    assert [function({"id": "1"}), function({"id": "1"})] == [3, 3]
    assert several.peek(("a", "1")) is not None
    assert function.peek("1") is not None


def test_different_keys_at_once_all_run(side: Side, ledger: Ledger):
    answers = together(20, lambda number: side.run("charge", lambda: ledger.add(number), key=number, payload={}))

    assert sorted(ledger.entries) == list(range(20))
    assert all(not answer.replayed for answer in answers)


def test_ignore_may_be_a_generator(side: Side, ledger: Ledger):
    """Its names are there once: whoever looks at them twice would ignore nothing, and refuse a true retry."""
    for client_ts in (1, 2):
        side.run("charge", ledger.add, key="o-1", payload={"a": 1, "ts": client_ts}, ignore=(one for one in ["ts"]))
    assert len(ledger) == 1
