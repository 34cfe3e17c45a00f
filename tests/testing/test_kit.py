"""The kit for users: what runs twice, at once, or dies half-way is told; what is right passes - in both colours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import threading
import time
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from samekey import Asks, AsyncGuard, Guard, Keyed, Opaque, Policy, Repeatable, current
from samekey.drivers.postgres.migrate import migrate
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.stores.sqlite import SqliteStore
from samekey.testing import (
    InsufficientFunds,
    LedgerProvider,
    ManualClock,
    crash_everywhere,
    four_assumptions,
    lose_lease,
    redeliver,
    rows,
    run_in_parallel,
    run_twice,
)

LEASE_SECONDS = 0.4  # on a real server; long enough for a call on a busy machine

ORDER = {"order_id": "o", "amount": 200}


@pytest.fixture
def clock():
    return ManualClock(1_700_000_000)


@pytest.fixture
def provider(clock):
    return LedgerProvider(clock=clock, sleep=clock.advance)


@pytest.fixture
def unguarded(provider):
    return lambda order_id, amount: provider.charge(amount, order=order_id).id


@pytest.fixture
def guarded(provider, clock):
    return charging(Guard(MemoryStore(clock), policy=Policy(releases=(InsufficientFunds,))), provider)


def charging(guard: Guard, provider: LedgerProvider, boundary: Any = Opaque(), *, sends: bool = True) -> Any:  # noqa: B008 - frozen
    @guard.once(name="charge", key="order_id", boundary=boundary)
    def charge(order_id: str, amount: int) -> str:
        if boundary.terms.marked and sends:
            current().sending()
        key = current().provider_key() if isinstance(boundary, Keyed) else None
        return provider.charge(amount, order=order_id, key=key, reference=current().provider_key()).id

    return charge


# -- twice, at once, redelivered ---------------------------------------------------------------------------------


def test_a_second_run_that_charges_is_told_with_the_charge(unguarded, provider):
    with pytest.raises(AssertionError, match="the second run changed something: provider moved: new Charge"):
        run_twice(unguarded, ORDER, provider=provider)


def test_a_second_run_that_changes_nothing_returns_the_answer(guarded, provider):
    assert run_twice(guarded, ORDER, provider=provider) == "ch_1"


def test_probes_see_rows_messages_and_numbers():
    db, sent, served = sqlite3.connect(":memory:"), [], {"calls": 0}
    db.execute("CREATE TABLE orders (id)")

    def buy(order: str) -> None:
        db.execute("INSERT INTO orders VALUES (?)", (order,))
        sent.append({"to": "ann"})
        served["calls"] += 1

    probes = {"orders": rows(db, "SELECT * FROM orders"), "mails": lambda: sent, "calls": lambda: served["calls"]}
    with pytest.raises(AssertionError) as told:
        run_twice(buy, {"order": "o-1"}, probes=probes)
    db.close()

    assert "orders moved: new ('o-1',)" in str(told.value)
    assert "mails moved: ({'to': 'ann'},), now ({'to': 'ann'}, {'to': 'ann'})" in str(told.value)
    assert "calls moved: 1, now 2" in str(told.value)


@dataclass
class Account:
    paid: int = 0


@pytest.mark.parametrize("inside", [{"paid": 0}, [0], Account()], ids=lambda one: type(one).__name__)
def test_probes_see_what_moves_deep_inside(inside):
    """A probe that returns the accounts themselves is kept as they were, not as they became."""
    accounts = {"ann": inside}

    def pay() -> None:
        match inside:
            case Account():
                inside.paid += 1
            case dict():
                inside["paid"] += 1
            case list():
                inside[0] += 1

    with pytest.raises(AssertionError, match="the second run changed something: accounts moved: "):
        run_twice(pay, probes={"accounts": lambda: accounts})
    with pytest.raises(AssertionError, match="delivery 2 changed something: accounts moved: "):
        redeliver(pay, probes={"accounts": lambda: accounts})


def test_two_answers_and_an_answer_that_turns_into_an_error_are_told():
    answers = iter(["one", "two", "one"])
    with pytest.raises(AssertionError, match="the first run answered 'one', the second 'two'"):
        run_twice(lambda: next(answers), probes={"nothing": lambda: 0})
    with pytest.raises(AssertionError, match="the second raises StopIteration"):
        run_twice(lambda: next(answers), probes={"nothing": lambda: 0})


def test_without_probes_nothing_is_judged(unguarded):
    with pytest.raises(ValueError, match="give probes= or provider="):
        run_twice(unguarded, ORDER)


def test_a_redelivery_may_neither_move_anything_nor_raise(guarded, unguarded, provider):
    redeliver(guarded, ORDER, provider=provider)
    with pytest.raises(AssertionError, match="delivery 2 changed something"):
        redeliver(unguarded, ORDER, provider=provider)

    seen: set[str] = set()

    def strict(order_id: str, amount: int) -> None:
        if order_id in seen:
            raise RuntimeError("a duplicate")
        seen.add(order_id)

    with pytest.raises(AssertionError, match=r"delivery 2 raises RuntimeError.*for ever"):
        redeliver(strict, ORDER, provider=provider)


def test_callers_at_once_do_what_one_does(guarded, unguarded, provider):
    assert run_in_parallel(guarded, ORDER, key="order_id", n=4, provider=provider).holds
    with pytest.raises(AssertionError, match="provider moved by 5 for one operation"):
        run_in_parallel(unguarded, ORDER, key="order_id", n=4, provider=provider)


# -- crashes and leases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boundary", ["opaque", "keyed", "asks", "marked"])
def test_a_guarded_handler_survives_a_crash_at_every_point_of_store_and_effect(provider, clock, boundary):
    lookup = {"asks": Asks(lambda record: provider.verdict(record.provider_key()))}
    declared: Any = {"opaque": Opaque(), "keyed": Keyed(), "marked": Opaque(marked=True), **lookup}[boundary]
    charge = charging(Guard(MemoryStore(clock)), provider, declared)
    found = crash_everywhere(charge, ORDER, key="order_id", provider=provider, clock=clock)

    # before and after open and settle, and every line of the effect
    assert found.schedules >= 7
    assert provider.doubles() == {}


def test_a_charge_called_repeatable_is_found_by_the_crash_after_it(provider, clock):
    charge = charging(Guard(MemoryStore(clock)), provider, Repeatable())

    with pytest.raises(AssertionError) as told:
        crash_everywhere(charge, ORDER, key="order_id", provider=provider, clock=clock)

    assert "A is called and is killed at the end of charge()" in str(told.value)
    assert "provider moved by 2 for one operation" in str(told.value)


def test_a_mark_that_is_declared_and_never_written_is_found(provider, clock):
    charge = charging(Guard(MemoryStore(clock)), provider, Opaque(marked=True), sends=False)

    with pytest.raises(AssertionError, match="provider moved by 2 for one operation"):
        crash_everywhere(charge, ORDER, key="order_id", provider=provider, clock=clock)


def test_an_answer_without_an_effect_is_found_too(provider, clock):
    done: set[str] = set()

    def charge(order_id: str, amount: int) -> str:
        if order_id in done:
            return "charged"
        done.add(order_id)
        provider.charge(amount, order=order_id)
        return "charged"

    with pytest.raises(AssertionError, match="nothing was done"):
        crash_everywhere(charge, ORDER, key="order_id", provider=provider)


def test_without_a_clock_whoever_comes_after_a_crash_is_told_to_wait(provider):
    """The lease of the dead lives on; nobody waits for it for long, and nothing is done twice."""
    found = crash_everywhere(charging(Guard("memory://"), provider), ORDER, key="order_id", provider=provider)

    assert found.holds
    assert any("InProgress" in note for note in found.notes)


def test_a_dead_caller_with_a_lock_of_this_process_does_not_hang_the_next_one(provider):
    """A lock dies with its process; here it is given back when another call waits for it."""
    lock, answers = threading.Lock(), dict[str, str]()

    def charge(order_id: str, amount: int) -> str:
        with lock:
            if order_id not in answers:
                answers[order_id] = ""
                answers[order_id] = provider.charge(amount, order=order_id).id
            return answers[order_id]

    with pytest.raises(AssertionError) as told:
        crash_everywhere(charge, ORDER, key="order_id", provider=provider)

    assert "waits for a lock or a connection of the call that was killed" in str(told.value)
    assert "nothing was done" in str(told.value)


def test_a_holder_that_sleeps_through_its_lease_never_doubles_what_the_guard_keeps(provider, clock):
    charge = charging(Guard(MemoryStore(clock)), provider)

    assert lose_lease(charge, ORDER, key="order_id", clock=clock, provider=provider).holds
    assert provider.doubles() == {}


def test_a_guard_used_inside_the_handler_is_given_by_hand(provider, clock):
    guard = Guard(MemoryStore(clock))

    def handle(order_id: str, amount: int) -> Any:
        return guard.run(
            "charge", lambda: provider.charge(amount, order=order_id).id, key=order_id, payload={"amount": amount}
        ).result

    def points(**given: Any) -> int:
        return crash_everywhere(handle, ORDER, key="order_id", provider=provider, clock=clock, **given).schedules

    assert points(guard=guard) == points() + 4  # before and after open and settle


def test_the_store_is_the_guards_own_again_afterwards(provider, clock):
    store = MemoryStore(clock)
    guard = Guard(store)
    crash_everywhere(charging(guard, provider), ORDER, key="order_id", provider=provider, clock=clock)

    assert guard.store is store


# -- four assumptions ------------------------------------------------------------------------------------------------


def test_an_unguarded_handler_breaks_and_the_report_tells_how(unguarded, provider):
    report = four_assumptions(unguarded, payload=ORDER, key="order_id", provider=provider)

    assert {"Claim", "Boundary"} <= set(report.broken)
    assert report.claim.story == ("A is called: answers 'ch_7'", "B is called: answers 'ch_8'")
    assert "provider moved by 2 for one operation; one clean call moves it by 1" in str(report)
    with pytest.raises(AssertionError, match="Claim     BROKEN"):
        report.check()


def test_a_report_is_data_too(guarded, provider, clock):
    report = four_assumptions(
        guarded, payload=ORDER, other_payload={**ORDER, "amount": 500}, key="order_id", provider=provider, clock=clock
    ).check()
    told = json.loads(json.dumps(report.to_dict()))

    assert told["holds"] is True
    assert list(told["assumptions"]) == ["Claim", "Intent", "Memory", "Boundary"]
    assert told["assumptions"]["Claim"]["schedules"] > 10


def test_what_was_not_tried_is_said(guarded):
    calls: list[str] = []
    report = four_assumptions(
        lambda order_id: calls.append(order_id),
        payload={"order_id": 7},
        key="order_id",
        probes={"calls": lambda: calls},
    )

    assert "another payload under the same key was not tried: give other_payload=" in report.intent.notes
    assert report.intent.schedules == 1  # another key, all else equal
    assert "declines and lost answers were not tried: give provider=" in report.boundary.notes
    assert "no lease ended and no time passed: give clock=" in report.claim.notes


def test_a_decline_left_in_doubt_is_a_note_and_no_break(provider, clock):
    charge = charging(Guard(MemoryStore(clock)), provider)  # no releases=
    report = four_assumptions(charge, payload=ORDER, key="order_id", provider=provider, clock=clock)

    assert report.memory.holds
    assert any("Policy(releases=)" in note for note in report.memory.notes)


async def test_async_handlers_are_tried_in_loops_of_their_own(provider, clock):
    """Also from inside a running loop."""
    guard = AsyncGuard(AsyncMemoryStore(MemoryStore(clock)), policy=Policy(releases=(InsufficientFunds,)))

    @guard.once(name="charge", key="order_id")
    async def charge(order_id: str, amount: int) -> Any:
        await asyncio.sleep(0)
        return provider.charge(amount, order=order_id).id

    async def careless(order_id: str, amount: int) -> Any:
        await asyncio.sleep(0)
        return provider.charge(amount, order=order_id).id

    other = {"amount": 500}
    assert run_twice(charge, ORDER, provider=provider)
    four_assumptions(charge, payload=ORDER, other_payload=other, key="order_id", provider=provider, clock=clock).check()
    assert "Claim" in four_assumptions(careless, payload=ORDER, key="order_id", provider=provider).broken


def test_other_workers_meet_on_a_real_file(tmp_path, provider, clock):
    guards: list[Guard] = []

    def worker() -> Any:
        guards.append(
            Guard(SqliteStore(tmp_path / "keys.db", clock=clock), policy=Policy(releases=(InsufficientFunds,)))
        )
        return charging(guards[-1], provider, Keyed())

    report = four_assumptions(
        worker(),
        elsewhere=worker,
        payload=ORDER,
        other_payload={"amount": 500},
        key="order_id",
        provider=provider,
        clock=clock,
    )
    for guard in guards:
        guard.close()

    assert report.check().holds
    assert provider.doubles() == {}


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        ({"amount": 200}, "the payload has no 'order_id'"),
        ({"order_id": 1.5, "amount": 200}, "a str, an int or a UUID, not float"),
        ({"order_id": "o", "amount": None}, "called once, and alone, the handler already raises TypeError"),
    ],
)
def test_what_cannot_be_tried_is_said_at_once(provider, payload, why):
    def charge(order_id: Any, amount: int) -> Any:
        return provider.charge(amount + 0, order=str(order_id)).id

    with pytest.raises(ValueError, match=why):
        four_assumptions(charge, payload=payload, key="order_id", provider=provider)


@pytest.mark.parametrize("other", [{}, ORDER, {"amount": 200}, {**ORDER, "order_id": "another"}])
def test_another_intent_that_is_the_same_is_said_at_once(guarded, provider, clock, other):
    """Its answer is rightly the first one's: nobody is to blame for it."""
    with pytest.raises(ValueError, match="other_payload= asks for the same"):
        four_assumptions(guarded, payload=ORDER, other_payload=other, provider=provider, clock=clock)


def test_what_repeats_nothing_is_said_at_once(unguarded, provider):
    """It would pass whatever the handler does."""
    for number in (1, 0, -1):
        with pytest.raises(ValueError, match="repeats nothing"):
            run_in_parallel(unguarded, ORDER, number, provider=provider)
        with pytest.raises(ValueError, match="repeats nothing"):
            redeliver(unguarded, ORDER, times=number, provider=provider)
    with pytest.raises(ValueError, match="no lease ends without a clock"):
        lose_lease(unguarded, ORDER, provider=provider, clock=None)  # type: ignore[arg-type]


def test_a_second_operation_that_is_taken_for_the_first_is_said_to_be_the_second(provider):
    """Its key says too little: nothing is wrong with one call alone."""
    with Guard("memory://") as guard:
        charge = guard.once(name="charge", key=lambda order_id, amount: order_id[:3])(
            lambda order_id, amount: provider.charge(amount, order=order_id).id
        )
        with pytest.raises(ValueError, match="for another order_id than before, the handler already raises KeyReused"):
            four_assumptions(charge, payload={**ORDER, "order_id": "order"}, key="order_id", provider=provider)


def test_an_ignored_field_that_the_payload_lacks_is_said_at_once(unguarded, provider):
    with pytest.raises(ValueError, match="the payload has no 'client_ts'"):
        four_assumptions(unguarded, payload=ORDER, key="order_id", ignore=("client_ts",), provider=provider)


class RealTime:
    """A clock for a store that goes by its own: an hour is as long as its leases."""

    def advance(self, seconds: float) -> None:
        time.sleep(LEASE_SECONDS * 1.5)


@pytest.mark.slow
def test_other_workers_meet_on_a_real_server(samekey_postgres, provider):
    """The real store, its real leases, and a guard of his own for each worker."""
    database = samekey_postgres.create_database()
    migrate(database)
    with contextlib.ExitStack() as guards:

        def worker() -> Any:
            policy = Policy(lease=LEASE_SECONDS, patience=2, releases=(InsufficientFunds,))
            return charging(guards.enter_context(Guard(database, policy=policy)), provider, Keyed())

        again = worker()
        around: dict[str, Any] = {"key": "order_id", "provider": provider, "elsewhere": lambda: again}
        crashes = crash_everywhere(worker(), ORDER, clock=RealTime(), **around)
        run_in_parallel(worker(), ORDER, **around)

    assert crashes.schedules >= 7
    assert provider.doubles() == {}


def test_keys_may_be_numbers_and_uuids(provider):
    def charge(order_id: Any, amount: int) -> Any:
        return provider.charge(amount, order=str(order_id)).id

    for key in (7, UUID(int=7)):
        assert (
            "Claim"
            in four_assumptions(
                charge, payload={"order_id": key, "amount": 1}, key="order_id", provider=provider
            ).broken
        )


def test_another_worker_does_not_queue_in_memory_behind_one_that_sleeps(provider, clock):
    """Else nobody would ever come while the lease is over: here an absence is believed, and the sleeper wakes up."""
    boundary = Asks(lambda record: provider.verdict(record.provider_key()), believe_absent_after=60)
    charge = charging(Guard(MemoryStore(clock)), provider, boundary)

    with pytest.raises(AssertionError, match="provider moved by 2 for one operation"):
        lose_lease(charge, ORDER, key="order_id", clock=clock, provider=provider)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"clock": time.time}, "a clock that can be moved"),
        ({"guard": "memory://"}, "give the Guard or AsyncGuard"),
        ({"key": ["order_id"]}, "the name of one field"),
        ({"probes": [list]}, "a dict of functions"),
        ({"probes": {"mails": []}}, "a dict of functions"),
        ({"provider": object()}, "is a LedgerProvider"),
        ({"retried_for": "a day"}, "a number of seconds, or a timedelta"),
        ({"retried_for": -1}, "a number of seconds, or a timedelta"),
        ({"elsewhere": lambda order_id: None}, "makes and returns a handler"),
        ({"elsewhere": lambda: None}, "makes and returns a handler"),
    ],
)
def test_what_cannot_be_used_is_said_in_words(provider, given, why):
    """And not by whatever breaks on it later."""
    with pytest.raises(ValueError, match=why):
        four_assumptions(
            lambda order_id: provider.charge(1).id, payload={"order_id": "o"}, **{"provider": provider, **given}
        )


@pytest.mark.parametrize("many", ["8", 2.5, 1])
def test_how_often_is_a_whole_number(provider, many):
    with pytest.raises(ValueError, match="give 2 or more"):
        run_in_parallel(lambda order_id: None, {"order_id": "o"}, n=many, provider=provider)
