"""The off switch: guarded functions run straight through, in every shape a guard has, and say so."""

from __future__ import annotations

import sqlite3
import threading
from typing import Any

import pytest

from samekey import Answer, AsyncGuard, Atomic, Guard, Held, KeyMissing, current
from samekey.core.ports import Event
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing import Fault, FaultyStore, off


@pytest.fixture
def dead():
    """A store that would refuse everything: off means that it is not asked."""
    return FaultyStore(MemoryStore(), [Fault("*", times=None)])


def test_every_call_runs_and_says_that_it_was_not_guarded(dead):
    ran: list[str] = []
    greet = Guard(dead).once(name="greet", key="who")(lambda who: ran.append(who))
    with off():
        answers = [greet.answer("ann"), greet.answer("ann")]

    assert ran == ["ann", "ann"]
    assert [(one.guarded, one.recorded, one.replayed) for one in answers] == [(False, False, False)] * 2
    assert not dead.calls


def test_run_run_many_and_hold(dead):
    guard = Guard(dead)
    with off():
        assert guard.run("mail", lambda: "sent", key="m", payload={}).result == "sent"
        many = guard.run_many("mail", lambda one: 1 / one["n"], [{"n": 1}, {"n": 0}], key="n")
        held = guard.hold("mail", key="m", payload={})
        assert isinstance(held, Held)
        with held:
            current().sending()
            held.complete("done")

    assert isinstance(many[0], Answer)
    assert (many[0].result, many[0].guarded) == (1.0, False)
    assert isinstance(many[1], ZeroDivisionError)
    assert held.answer is not None
    assert held.answer.result == "done"
    assert not dead.calls


async def test_the_same_awaited():
    guard = AsyncGuard(AsyncMemoryStore(MemoryStore()))
    ran: list[str] = []

    @guard.once(name="greet", key="who")
    async def greet(who: str) -> int:
        ran.append(who)
        return len(ran)

    async def effect(one: dict[str, int]) -> int:
        return one["n"]

    with off():
        assert [await greet("ann"), await greet("ann")] == [1, 2]
        many: Any = await guard.run_many("mail", effect, [{"n": 1}], key="n")
        assert many[0].result == 1
    assert [await greet("ann"), await greet("ann")] == [3, 3]


def test_atomic_runs_in_whatever_transaction_there_is(tmp_path):
    """A unit test may give any connection, also a fake one: nothing is joined and nothing committed."""
    guard = Guard(f"sqlite:///{tmp_path}/keys.db")

    @guard.once(name="pay", key="order", boundary=Atomic("db"))
    def pay(order: str, db: sqlite3.Connection) -> str:
        db.execute("INSERT INTO paid VALUES (?)", (order,))
        return order

    db = sqlite3.connect(":memory:")
    db.execute("CREATE TABLE paid (id)")
    with off():
        pay("o-1", db)
        guard.on(db).run("pay", lambda: db.execute("INSERT INTO paid VALUES ('o-2')").rowcount, key="o-2", payload={})
    assert db.in_transaction
    assert db.execute("SELECT count(*) FROM paid").fetchone() == (2,)
    db.close()
    guard.close()


def test_it_is_on_again_after_the_last_block_whatever_happened_in_it():
    guard = Guard("memory://")
    with pytest.raises(RuntimeError), off(), off():
        raise RuntimeError("a test fails")

    assert guard.run("mail", lambda: 1, key="m", payload={}).guarded


def test_it_counts_for_other_threads_too():
    guard, told = Guard("memory://"), list[bool]()

    def work() -> None:
        told.append(guard.run("mail", lambda: 1, key="m", payload={}).guarded)

    with off():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert told == [False]


def test_a_call_without_a_key_is_an_error_as_before():
    greet = Guard("memory://").once(name="greet", key="who")(lambda who: who)
    with off(), pytest.raises(KeyMissing):
        greet("")


def test_an_error_comes_out_as_it_is_and_hooks_hear_of_it():
    seen: list[Event] = []
    guard = Guard("memory://", hooks=[lambda event: seen.append(event)])

    def effect() -> None:
        raise TimeoutError("no answer")

    with off(), pytest.raises(TimeoutError) as told:
        guard.run("mail", effect, key="m", payload={})

    assert not getattr(told.value, "__notes__", [])  # nothing is in doubt: nothing was promised
    assert [event.name for event in seen] == ["unguarded", "raised"]
