"""held.note(): what an effect notes about itself is in its record, however the effect ended."""

from __future__ import annotations

import contextlib
import enum
import sqlite3
from typing import Any

import pytest

from samekey import Atomic, Guard, Keyed, Misconfigured, NotDone, Refused, current, notes_of
from samekey.core.ports import Query
from samekey.core.search import term
from tests.guard.helpers import Place, Side

SECRET = b"sixteen bytes or more"


@pytest.mark.parametrize(
    ("error", "state"),
    [(None, "completed"), (Refused("no"), "closed"), (NotDone("later"), "released"), (TimeoutError(), "in_doubt")],
    ids=["completed", "closed", "released", "in doubt"],
)
def test_notes_are_written_with_every_outcome(place: Place, side: Side, error: Exception | None, state: str):
    def effect() -> str:
        current().note(amount_minor=4200, currency="EUR", party="customer-7")
        current().note(provider_ref="ch_1", currency="USD", retried=False)
        if error is not None:
            raise error
        return "paid"

    with contextlib.suppress(Exception):
        side.run("charge", effect, key="o-1", payload={})

    record = place.peek("charge", "o-1")
    assert record.state == state
    assert notes_of(record) == {
        "amount_minor": 4200,
        "currency": "USD",
        "party": "customer-7",
        "provider_ref": "ch_1",
        "retried": False,
    }
    for name, value in (("note.party", "customer-7"), ("note.provider_ref", "ch_1")):
        assert [one.key for one in place.store().list(Query(term=term(name, value)))] == [record.key]


def test_an_attempt_without_notes_keeps_those_of_the_one_before(place: Place, side: Side):
    def first() -> None:
        current().note(party="customer-7")
        raise NotDone

    with pytest.raises(NotDone):
        side.run("charge", first, key="o-1", payload={})
    side.run("charge", lambda: 1, key="o-1", payload={})

    assert notes_of(place.peek("charge", "o-1")) == {"party": "customer-7"}


def test_a_record_without_notes_has_none(place: Place, side: Side):
    side.run("charge", lambda: 1, key="o-1", payload={})

    assert notes_of(place.peek("charge", "o-1")) == {}


def test_each_payload_of_a_batch_has_its_own_notes(place: Place, side: Side):
    side.run_many("charge", lambda one: current().note(amount_minor=one["id"]), [{"id": 1}, {"id": 2}], key="id")

    assert [notes_of(place.peek("charge", key)) for key in "12"] == [{"amount_minor": 1}, {"amount_minor": 2}]


def test_a_hold_by_hand_and_an_adapter_write_notes(memory: Place):
    guard = memory.guard()
    operation = guard.operation("mail", boundary=Keyed())

    with guard.hold("charge", key="o-1", payload={}) as held:
        held.note(provider_ref="ch_1")
        held.complete(1)
    runs = guard.begin_many([guard.new_call(operation, key, None) for key in ("m-1", "m-2")])
    for number, running in enumerate(runs):
        running.held.note(sent=number)
    guard.settle_many([(runs[0], "sent"), (runs[1], TimeoutError())])
    one = guard.begin(guard.new_call(operation, "m-3", None))
    current().note(sent=3)
    one.succeed()

    assert notes_of(memory.peek("charge", "o-1")) == {"provider_ref": "ch_1"}
    assert [notes_of(memory.peek("mail", f"m-{n}")) for n in (1, 2, 3)] == [{"sent": 0}, {"sent": 1}, {"sent": 3}]
    with pytest.raises(Misconfigured, match="the effect is over"):
        held.note(late=True)


def test_in_a_transaction_notes_are_committed_with_the_effect(sqlite: Place):
    guard = sqlite.guard()
    guard.check()

    @guard.once(name="charge", key="order_id", boundary=Atomic("db"))
    def charge(order_id: str, db: sqlite3.Connection) -> None:
        current().note(party=order_id)
        if order_id == "o-2":
            raise Refused

    def by_hand() -> None:
        current().note(party="by hand")

    with contextlib.closing(sqlite3.connect(sqlite.path, isolation_level=None)) as db:
        charge("o-1", db)
        with pytest.raises(Refused):
            charge("o-2", db)
        db.execute("BEGIN IMMEDIATE")
        guard.on(db).run("charge", by_hand, key="o-3", payload={})
        db.execute("COMMIT")

    found = [notes_of(sqlite.peek("charge", key))["party"] for key in ("o-1", "o-2", "o-3")]
    assert found == ["o-1", "o-2", "by hand"]


def test_terms_of_notes_are_keyed_with_the_guards_secret(memory: Place):
    memory.guard(secret=SECRET).run("charge", lambda: current().note(party="ann"), key="o-1", payload={})

    terms = memory.peek("charge", "o-1").terms
    assert terms == (term("note.party", "ann", SECRET),)
    assert term("note.party", "ann") not in terms


def test_a_record_is_found_by_the_provider_key_of_a_label(memory: Place):
    keys: list[str] = []
    memory.guard().run(
        "charge", lambda: keys.append(current().provider_key("fee")), key="o-1", payload={}, boundary=Keyed()
    )

    found = memory.store().list(Query(term=term("provider_key", keys[0])))
    assert [one.key.text for one in found] == ["o-1"]


class Currency(enum.StrEnum):
    EUR = "EUR"


@pytest.mark.parametrize(
    "wrong",
    [
        {"amount_minor": 1.5},
        {"amount_minor": True},
        {"amount_minor": "12"},
        {"currency": 978},
        {"party": object()},
        {"provider_ref": "x" * 257},
        {"more": None},
        {"more": {"a": 1}},
        {"more": "two\nlines"},
        {f"n{number}": 1 for number in range(17)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_note_that_cannot_be_kept_is_refused_at_once_and_the_others_stay(memory: Place, wrong: dict[str, Any]):
    def effect() -> None:
        current().note(currency=Currency.EUR)
        with pytest.raises(Misconfigured, match="note"):
            current().note(party="ann", **wrong) if "party" not in wrong else current().note(**wrong)

    memory.guard().run("charge", effect, key="o-1", payload={})

    assert notes_of(memory.peek("charge", "o-1")) == {"currency": "EUR"}


def test_without_a_guard_notes_are_checked_and_go_nowhere():
    from samekey.testing import off

    def effect() -> str:
        current().note(party="ann")
        current().provider_key("fee")
        return "done"

    with off():
        assert Guard("memory://").run("charge", effect, key="o-1", payload={}).result == "done"
