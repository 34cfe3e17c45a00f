"""Single flight: callers of one key in one process cost the store one claim, and wait for nobody else's key."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

import pytest

from samekey import InProgress, KeyReused, NotDone, Policy, Refused, Repeatable, State
from samekey.guard.single_flight import Flights
from tests.guard.helpers import Ledger, Place, Thread, followers, raising, spied_side, together, until, until_async


def test_fifty_threads_cost_the_store_one_claim_and_one_settle(place: Place, colour: str, ledger: Ledger):
    side, spy = spied_side(place, colour)
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(10)
        return ledger.add()

    threads = [Thread(lambda: side.run("charge", effect, key="o-1", payload={}).result) for _ in range(50)]
    assert inside.wait(5)
    until(lambda: followers(side.guard) == 49)
    go.set()

    assert [thread.result() for thread in threads] == [1] * 50
    assert (spy.count("open"), spy.count("settle"), spy.count("wait", "read", "take")) == (1, 1, 0)


async def test_fifty_tasks_cost_the_store_one_claim(place: Place, ledger: Ledger):
    from samekey import AsyncGuard
    from tests.guard.helpers import spied

    spy = spied(place.async_store())
    guard, go = AsyncGuard(spy), asyncio.Event()

    async def effect():
        await go.wait()
        return ledger.add()

    tasks = [asyncio.create_task(guard.run("charge", effect, key="o-1", payload={})) for _ in range(50)]
    await until_async(lambda: followers(guard) == 49)
    go.set()

    assert {answer.result for answer in await asyncio.gather(*tasks)} == {1}
    assert spy.count("open") == 1


def test_a_follower_with_another_payload_is_told_at_once(place: Place, colour: str):
    side, spy = spied_side(place, colour)
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(5)

    first = Thread(lambda: side.run("charge", effect, key="o-1", payload={"amount": 200}))
    assert inside.wait(5)
    with pytest.raises(KeyReused, match="amount"):
        side.run("charge", int, key="o-1", payload={"amount": 500}, policy=Policy(patience=60))
    go.set()
    first.result()

    assert spy.count("open") == 1


def test_a_follower_loses_its_patience_and_the_flight_goes_on(place: Place, colour: str):
    side = place.side(colour)
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(5)
        return "first"

    first = Thread(lambda: side.run("charge", effect, key="o-1", payload={}))
    assert inside.wait(5)
    with pytest.raises(InProgress):
        side.run("charge", int, key="o-1", payload={}, policy=Policy(patience=0.05))
    go.set()

    assert first.result().result == "first"
    assert followers(side.guard) == 0
    assert side.guard._flights._flying == {}


def test_followers_hear_a_refusal_as_their_own_exception(place: Place, colour: str):
    side = place.side(colour)
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(5)
        raise Refused("stolen")

    threads = [Thread(lambda: side.run("charge", effect, key="o-1", payload={})) for _ in range(5)]
    assert inside.wait(5)
    until(lambda: followers(side.guard) == 4)
    go.set()
    errors = [thread.outcome() for thread in threads]

    assert [str(error) for error in errors] == ["stolen"] * 5
    assert len({id(error) for error in errors}) == 5


def test_each_follower_gets_an_object_of_its_own(place: Place, colour: str):
    side = place.side(colour)
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(5)
        return {"items": []}

    threads = [Thread(lambda: side.run("charge", effect, key="o-1", payload={}).result) for _ in range(4)]
    assert inside.wait(5)
    until(lambda: followers(side.guard) == 3)
    go.set()
    results = [thread.result() for thread in threads]

    assert len({id(result) for result in results}) == 4


def test_a_store_that_fails_for_the_one_who_flies_is_asked_by_the_others_themselves(
    place: Place, colour: str, ledger: Ledger
):
    from samekey import StoreUnavailable

    side, spy = spied_side(place, colour)
    failing, go = threading.Event(), threading.Event()

    def fail_once(command):
        spy.before.clear()
        failing.set()
        assert go.wait(5)
        raise StoreUnavailable("down")

    spy.before["open"] = fail_once
    first = Thread(lambda: side.run("charge", ledger.add, key="o-1", payload={}))
    assert failing.wait(5)
    others = [Thread(lambda: side.run("charge", ledger.add, key="o-1", payload={})) for _ in range(4)]
    if colour == "sync":
        until(lambda: followers(side.guard) == 4)
    go.set()

    assert isinstance(first.outcome(), StoreUnavailable)
    assert [other.result().result for other in others] == [1] * 4
    assert len(ledger) == 1


def test_nobody_waits_for_somebody_elses_key(place: Place, colour: str, ledger: Ledger):
    """One effect hangs; a hundred other keys go through meanwhile."""
    side = place.side(colour)
    inside, go = threading.Event(), threading.Event()

    def slow():
        inside.set()
        assert go.wait(20)
        return "slow"

    hanging = Thread(lambda: side.run("charge", slow, key="slow", payload={}))
    assert inside.wait(5)
    outcomes = together(10, lambda n: [side.run("charge", ledger.add, key=f"{n}-{k}", payload={}) for k in range(10)])

    assert hanging.is_alive()
    assert len(ledger) == 100
    assert all(isinstance(one, list) for one in outcomes)
    go.set()
    assert hanging.result().result == "slow"


def test_a_follower_is_not_kept_by_a_flight_whose_hold_was_lost(still: Place, ledger: Ledger):
    """Our process was paused; another one took the key over and completed it: the store knows the answer."""
    assert still.clock is not None
    here, there = still.guard(policy=Policy(patience=0.5)), still.guard()
    inside, go = threading.Event(), threading.Event()

    def slow():
        inside.set()
        assert go.wait(5)
        return "slow"

    first = Thread(lambda: here.run("charge", slow, key="o-1", payload={}, boundary=Repeatable()))
    assert inside.wait(5)
    still.clock.advance(31)
    there.run("charge", lambda: "quick", key="o-1", payload={}, boundary=Repeatable())
    outcome = Thread(lambda: here.run("charge", ledger.add, key="o-1", payload={}, boundary=Repeatable())).outcome()
    go.set()
    first.result()

    assert getattr(outcome, "result", outcome) == "quick"


def test_a_follower_of_a_cancelled_flight_runs_by_itself(place: Place, ledger: Ledger):
    guard = place.async_guard()

    async def main():
        inside = asyncio.Event()

        async def hangs():
            inside.set()
            await asyncio.sleep(60)

        async def effect():
            return ledger.add()

        first = asyncio.create_task(guard.run("charge", hangs, key="o-1", payload={}, boundary=Repeatable()))
        await inside.wait()
        second = asyncio.create_task(guard.run("charge", effect, key="o-1", payload={}, boundary=Repeatable()))
        await until_async(lambda: followers(guard))
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    assert asyncio.run(main()).result == 1


def test_a_cancelled_follower_leaves_the_flight_alone(place: Place):
    guard = place.async_guard()

    async def main():
        go = asyncio.Event()

        async def effect():
            await go.wait()
            return "first"

        first = asyncio.create_task(guard.run("charge", effect, key="o-1", payload={}))
        second = asyncio.create_task(guard.run("charge", effect, key="o-1", payload={}))
        await until_async(lambda: followers(guard))
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert followers(guard) == 0
        go.set()
        return await first

    assert asyncio.run(main()).result == "first"
    assert place.peek("charge", "o-1").state is State.COMPLETED


def test_after_not_done_the_next_flight_is_a_new_one(place: Place, colour: str, ledger: Ledger):
    side = place.side(colour)
    for _ in range(3):
        with pytest.raises(NotDone):
            side.run("charge", lambda: (_ for _ in ()).throw(NotDone()), key="o-1", payload={})
    assert side.run("charge", ledger.add, key="o-1", payload={}).attempts == 4
    assert side.guard._flights._flying == {}


def test_an_effect_that_calls_itself_is_told_busy_and_does_not_hang(place: Place):
    guard = place.guard(policy=Policy(patience=0.1))
    began = time.monotonic()

    def effect():
        return guard.run("charge", effect, key="o-1", payload={}).result

    with pytest.raises(InProgress):
        guard.run("charge", effect, key="o-1", payload={})
    assert time.monotonic() - began < 2
    assert place.peek("charge", "o-1").state is State.IN_DOUBT


def test_patience_is_one_deadline_which_renewals_of_the_holder_do_not_restart(place: Place, colour: str):
    held = place.guard().hold("charge", key="o-1", payload={}, policy=Policy(lease=0.2))
    side = place.side(colour)

    with held:
        began = time.monotonic()
        waiting = Thread(lambda: side.run("charge", int, key="o-1", payload={}, policy=Policy(patience=0.6)))
        with pytest.raises(InProgress):
            waiting.result()
        assert 0.5 < time.monotonic() - began < 1.5
        held.complete()


def test_a_store_down_with_run_lets_every_caller_run(place: Place, colour: str, ledger: Ledger):
    """That is what "run" means; it is counted and marked, and it does not hang behind a flight that never holds."""
    from samekey import StoreUnavailable

    side, spy = spied_side(place, colour, policy=Policy(store_down="run", patience=0.2))
    spy.before["open"] = raising(StoreUnavailable("down"))

    answers = together(5, lambda n: side.run("charge", ledger.add, key="o-1", payload={}))

    assert len(ledger) == 5
    assert not any(answer.guarded for answer in answers)


def test_many_who_wait_for_another_process_cost_the_store_one_claim_and_one_wait(place: Place, colour: str):
    """The first caller asks and waits; those behind it read its answer over its shoulder."""
    other, (side, spy) = place.side("sync"), spied_side(place, colour)
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(10)
        return "done"

    holder = Thread(lambda: other.run("charge", effect, key="o-1", payload={}))
    assert inside.wait(5)
    threads = [Thread(lambda: side.run("charge", int, key="o-1", payload={}).result) for _ in range(20)]
    until(lambda: followers(side.guard) == 19)
    with pytest.raises(KeyReused):
        side.run("charge", int, key="o-1", payload={"amount": 500})
    go.set()
    holder.result()

    assert [thread.result() for thread in threads] == ["done"] * 20
    assert (spy.count("open"), spy.count("wait"), spy.count("read", "take", "settle")) == (1, 1, 0)


def test_who_stands_behind_an_impatient_one_keeps_its_own_patience(place: Place, colour: str):
    """The first caller gives up on the other process; the one behind it goes on waiting, and gets the answer."""
    other, (side, spy) = place.side("sync"), spied_side(place, colour)
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(10)
        return "done"

    holder = Thread(lambda: other.run("charge", effect, key="o-1", payload={}))
    assert inside.wait(5)
    hasty = Policy(patience=1)
    first = Thread(lambda: side.run("charge", int, key="o-1", payload={}, policy=hasty))
    until(lambda: spy.count("wait") == 1)
    second = Thread(lambda: side.run("charge", int, key="o-1", payload={}).result)
    until(lambda: any(flight.bells for flight in list(side.guard._flights._flying.values())))  # it follows the first
    with pytest.raises(InProgress):
        first.result()
    until(lambda: spy.count("wait") == 2)
    go.set()
    holder.result()

    assert second.result() == "done"
    assert spy.count("open") == 1


def test_a_batch_that_is_over_is_under_way_for_nobody_whatever_interrupts_its_end():
    """Or a guard that is closed would never shut its store."""
    flights, struck = Flights(), []

    def strike(frame: Any, event: str, argument: Any) -> Any:
        struck.append(event)
        raise KeyboardInterrupt

    batch = flights.batch()
    assert flights.under_way()
    sys.settrace(strike)
    try:
        del batch
    finally:
        sys.settrace(None)
    assert not flights.under_way()
    assert struck == []
