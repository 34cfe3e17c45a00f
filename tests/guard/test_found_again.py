"""What a claim and a settle leave in the record for those who look for it later, and how long a record lasts."""

from __future__ import annotations

from typing import Any

import pytest

from samekey import CONTENT, FOREVER, Asks, Guard, InDoubt, Keyed, NotDone, Opaque, Policy, Repeatable, StillUnknown
from samekey.core.call import open_command
from samekey.core.ports import Query
from samekey.core.record import Record, provider_key
from samekey.core.search import term
from samekey.guard.lease_timer import renew_with
from samekey.stores.memory import MemoryStore
from samekey.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
def guard(store: MemoryStore) -> Guard:
    return Guard(store, policy=Policy(lease=10, retention=1000, patience=0))


def found(store: MemoryStore, **asked: Any) -> list[Record]:
    return store.list(Query(**asked)).records


def test_a_question_to_the_provider_does_not_make_a_doubt_younger(guard, clock):
    """Each call under Asks asks, and writes that it does; the doubt is as old as it was."""

    @guard.once(name="charge", key="order", boundary=Asks(lambda record: StillUnknown()))
    def charge(order: str) -> None:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        charge("o-1")
    ages = []
    for _ in range(3):
        clock.advance(50)
        with pytest.raises(InDoubt) as doubt:
            charge("o-1")
        ages.append(doubt.value.age_seconds)

    assert ages == [50.0, 100.0, 150.0]


def test_equal_orders_under_two_keys_have_equal_content(guard, store):
    @guard.once(name="charge", key="order", ignore={"at"}, boundary=Opaque())
    def charge(order: str, amount: int, at: float = 0.0) -> int:
        return amount

    charge("o-1", 200, at=1.0)
    charge("o-2", 200, at=2.0)
    charge("o-3", 500)

    contents = {one.key.text: one.content for one in found(store)}
    assert contents["o-1"] == contents["o-2"] != contents["o-3"]
    assert [one.key.text for one in found(store, content=contents["o-1"])] == ["o-2", "o-1"]


def test_a_key_that_may_use_any_part_of_the_payload_leaves_no_content(guard, store):
    """A function may, and CONTENT does; a key that is given as a value uses none."""
    guard.once(name="function", key=lambda order: order, boundary=Opaque())(lambda order: 1)("o-1")
    guard.once(name="hash", key=CONTENT, boundary=Opaque())(lambda order: 1)("o-1")
    guard.run("run-hash", lambda: 1, key=CONTENT, payload={"a": 1})
    guard.run("value", lambda: 1, key="o-1", payload={"a": 1})
    guard.run_many("field", lambda payload: 1, [{"id": 1, "a": 1}], key="id")
    guard.run_many("each", lambda payload: 1, [{"id": 1, "a": 1}], key=lambda payload: payload["id"])

    contents = {one.key.operation: one.content for one in found(store)}
    assert {name for name, content in contents.items() if content is None} == {"each", "run-hash", "hash", "function"}
    assert contents["value"] == contents["field"]


def test_a_record_is_found_by_what_the_provider_or_the_caller_knows(guard, store):
    """By the provider key of every round, and by the request id."""
    tries: list[int] = []

    def effect() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise NotDone
        return "done"

    how: dict[str, Any] = {
        "key": "o-1",
        "payload": 1,
        "boundary": Keyed(keeps_declines=True, window=100),
        "attributes": {"request_id": "r-1"},
    }
    with pytest.raises(NotDone):
        guard.run("charge", effect, **how)
    guard.run("charge", effect, **how)
    guard.run("send", lambda: 1, key="o-1", payload=1, boundary=Repeatable())

    (record,) = found(store, operation="charge")
    assert record.round == 1
    keys = [provider_key(record.key, round) for round in (0, 1, 2)]
    assert [len(found(store, term=term("provider_key", one))) for one in keys] == [1, 1, 0]
    assert [one.key for one in found(store, term=term("request_id", "r-1"))] == [record.key]


def test_a_dead_hold_of_repeatable_is_forgotten_and_no_other(guard, store, clock):
    """Its process died: after lease and retention there is nothing left of it, and the key is new."""
    for name, boundary in (("harmless", Repeatable()), ("opaque", Opaque()), ("keyed", Keyed(window=100))):
        store.carry_out(open_command(guard.new_call(guard.operation(name, boundary=boundary), "o-1", 1)))
    clock.advance(10 + 1000 - 1)
    assert len(found(store)) == 3
    clock.advance(2)

    assert {one.key.operation for one in found(store)} == {"opaque", "keyed"}
    assert (store.sweep(10), store.sweep(10)) == (1, 0)
    assert guard.run("harmless", lambda: "ran", key="o-1", payload=2, boundary=Repeatable()).result == "ran"


def test_a_renewed_hold_of_repeatable_counts_from_its_renewal(guard, store, clock):
    held = guard.hold("harmless", key="o-1", payload=1, boundary=Repeatable())
    with held:
        (before,) = found(store)
        clock.advance(5)
        renewed = renew_with(store, held)
        held.complete(1)

    assert isinstance(renewed, Record)
    assert (before.retain_until, renewed.retain_until) == (1010.0, 1015.0)
    (ended,) = found(store)
    assert ended.retain_until == 1005.0


def test_forever_outlives_every_sweep(store, clock):
    guard = Guard(store, policy=Policy(retention=FOREVER))
    guard.run("charge", lambda: "done", key="o-1", payload=1)
    clock.advance(99 * 366 * 86400)

    assert store.sweep(10) == 0
    assert guard.run("charge", lambda: "again", key="o-1", payload=1).result == "done"
