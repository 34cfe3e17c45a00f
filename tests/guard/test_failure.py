"""Failure, cancellation, storage trouble (CHALLENGES 3b)."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import anyio
import pytest
import trio

from samekey import (
    AsyncGuard,
    Guard,
    InDoubt,
    Keyed,
    Misconfigured,
    NotDone,
    Policy,
    RecordUnreadable,
    Refused,
    Repeatable,
    ResultNotKept,
    State,
    StoreUnavailable,
)
from samekey.core.errors import StoreBusy
from tests.guard.helpers import (
    Ledger,
    Place,
    Seen,
    Side,
    Thread,
    as_async,
    followers,
    raising,
    spied_side,
    start_asyncio,
    start_trio,
    together,
    until,
)

DOWN = StoreUnavailable("the store is down")


def failing(ledger: Ledger, error: BaseException):
    """An effect that happens and then raises."""

    def effect():
        ledger.add()
        raise error

    return effect


# -- C20, C23: errors ------------------------------------------------------------------------------------------


def test_c20_a_timeout_inside_the_effect_is_in_doubt_not_free(place: Place, side: Side, ledger: Ledger):
    with pytest.raises(TimeoutError, match="read"):
        side.run("charge", failing(ledger, TimeoutError("read")), key="o-1", payload={})

    with pytest.raises(InDoubt) as told:
        side.run("charge", ledger.add, key="o-1", payload={})
    assert len(ledger) == 1
    assert place.peek("charge", "o-1").state is State.IN_DOUBT
    assert told.value.error == "TimeoutError"


@pytest.mark.parametrize("error", [ValueError("bug"), OSError("reset"), RuntimeError()], ids=repr)
def test_c23_an_ordinary_error_is_in_doubt_with_a_way_out(place: Place, side: Side, ledger: Ledger, error):
    with pytest.raises(type(error)) as raised:
        side.run("charge", failing(ledger, error), key="o-1", payload={})

    assert raised.value is error
    note = "\n".join(error.__notes__)
    way_out = "memory" if place.kind == "memory" else "samekey resolve charge o-1"
    assert way_out in note
    assert "Keyed" in note
    assert "Asks" in note
    for better in ("NotDone", f"{type(error).__name__} in releases=", "marked=True"):
        assert better in note
    with pytest.raises(InDoubt, match=way_out):
        side.run("charge", ledger.add, key="o-1", payload={})
    assert len(ledger) == 1


def test_c23_under_repeatable_it_is_free_at_once_and_without_a_note(side: Side, ledger: Ledger):
    error = ValueError("bug")
    with pytest.raises(ValueError):
        side.run("charge", failing(ledger, error), key="o-1", payload={}, boundary=Repeatable())

    assert not hasattr(error, "__notes__")
    answer = side.run("charge", ledger.add, key="o-1", payload={}, boundary=Repeatable())
    assert (answer.result, answer.attempts, answer.replayed) == (2, 2, False)


def test_c23_not_done_frees_the_key_at_once(place: Place, side: Side, ledger: Ledger):
    with pytest.raises(NotDone, match="funds"):
        side.run("charge", failing(Ledger(), NotDone("funds")), key="o-1", payload={"amount": 1})

    record = place.peek("charge", "o-1")
    assert (record.state, record.error) == (State.RELEASED, "NotDone")
    assert side.run("charge", ledger.add, key="o-1", payload={"amount": 1}).attempts == 2


def test_c23_a_released_key_still_knows_its_intent(side: Side, ledger: Ledger):
    with pytest.raises(NotDone):
        side.run("charge", failing(Ledger(), NotDone()), key="o-1", payload={"amount": 1})

    with pytest.raises(Exception, match="'amount' differs"):
        side.run("charge", ledger.add, key="o-1", payload={"amount": 2})
    assert len(ledger) == 0


# -- C21: cancelled --------------------------------------------------------------------------------------------


async def test_c21_a_task_cancelled_after_the_effect_is_in_doubt_with_asyncio(place: Place, ledger: Ledger):
    guard, inside = place.async_guard(), asyncio.Event()

    async def effect():
        ledger.add()
        inside.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(guard.run("charge", effect, key="o-1", payload={}))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert place.peek("charge", "o-1").state is State.IN_DOUBT
    with pytest.raises(InDoubt):
        await guard.run("charge", effect, key="o-1", payload={})
    assert len(ledger) == 1


def test_c21_the_same_with_a_trio_cancel_scope(place: Place, ledger: Ledger):
    guard = place.async_guard()

    async def main():
        scope = trio.CancelScope()

        async def effect():
            ledger.add()
            scope.cancel()
            await trio.sleep_forever()

        with scope:
            await guard.run("charge", effect, key="o-1", payload={})
        assert scope.cancelled_caught
        with pytest.raises(InDoubt):
            await guard.run("charge", effect, key="o-1", payload={})

    trio.run(main)
    assert place.peek("charge", "o-1").state is State.IN_DOUBT
    assert len(ledger) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_c21_the_same_with_anyio(place: Place, ledger: Ledger, backend: str):
    guard = place.async_guard()

    async def main():
        scope = anyio.CancelScope()

        async def effect():
            ledger.add()
            scope.cancel()
            await anyio.sleep_forever()

        with scope:
            await guard.run("charge", effect, key="o-1", payload={})
        assert scope.cancelled_caught
        with pytest.raises(InDoubt):
            await guard.run("charge", effect, key="o-1", payload={})

    anyio.run(main, backend=backend)
    assert place.peek("charge", "o-1").state is State.IN_DOUBT
    assert len(ledger) == 1


@pytest.mark.parametrize("loop", ["asyncio", "trio", "anyio"])
def test_c21_a_result_that_is_there_is_recorded_although_the_caller_is_gone(place: Place, ledger: Ledger, loop: str):
    """Cancelled between the effect's last line and the write: settling is shielded."""
    guard = place.async_guard()

    async def on_asyncio():
        async def effect():
            task.cancel()
            return ledger.add()

        task = asyncio.create_task(guard.run("charge", effect, key="o-1", payload={}))
        with pytest.raises(asyncio.CancelledError):
            await task

    async def on_trio():
        with trio.CancelScope() as scope:

            async def effect():
                scope.cancel()
                return ledger.add()

            await guard.run("charge", effect, key="o-1", payload={})

    async def on_anyio():
        with anyio.CancelScope() as scope:

            async def effect():
                scope.cancel()
                return ledger.add()

            await guard.run("charge", effect, key="o-1", payload={})

    if loop == "asyncio" and place.kind == "memory":
        pytest.skip("a memory store never gives up the loop, so there is nothing to be cancelled in")
    {
        "asyncio": lambda: start_asyncio(on_asyncio),
        "trio": lambda: start_trio(on_trio),
        "anyio": lambda: anyio.run(on_anyio),
    }[loop]()

    assert place.peek("charge", "o-1").state is State.COMPLETED
    assert place.guard().run("charge", ledger.add, key="o-1", payload={}).result == 1


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(3), asyncio.CancelledError()], ids=repr)
def test_c21_an_interrupt_is_in_doubt_and_comes_out_as_itself(place: Place, ledger: Ledger, interrupt):
    guard = place.guard()

    with pytest.raises(type(interrupt)) as raised:
        guard.run("charge", failing(ledger, interrupt), key="o-1", payload={})

    assert raised.value is interrupt
    assert place.peek("charge", "o-1").state is State.IN_DOUBT


# -- C24 and C25: results that cannot be kept ------------------------------------------------------------------


class Odd:
    """Nothing we could keep."""


def test_c24_a_result_that_cannot_be_kept_is_a_tombstone_and_never_a_second_effect(
    place: Place, side: Side, ledger: Ledger
):
    odd = Odd()

    def effect():
        ledger.add()
        return odd

    first = side.run("charge", effect, key="o-1", payload={})

    assert first.result is odd
    record = place.peek("charge", "o-1")
    assert (record.state, record.result) == (State.COMPLETED, None)
    for _ in range(2):
        with pytest.raises(ResultNotKept, match="Odd"):
            side.run("charge", effect, key="o-1", payload={})
    assert len(ledger) == 1


def test_c24_a_memory_error_while_the_result_is_written_loses_no_answer(
    side: Side, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    """The effect has happened: the key is completed without its result, and the first caller has the answer."""

    def fail(*_: Any) -> None:
        raise MemoryError

    with monkeypatch.context() as full:
        full.setattr("samekey.core.envelope._write", fail)
        full.setattr("samekey.core.envelope.seal", fail)
        answer = side.run("charge", ledger.add, key="o-1", payload={})
    assert (answer.result, answer.state, answer.recorded) == (1, State.COMPLETED, True)
    with pytest.raises(ResultNotKept, match="MemoryError"):
        side.run("charge", ledger.add, key="o-1", payload={})
    assert len(ledger) == 1


def test_c24_a_memory_error_while_the_refusal_is_written_loses_no_refusal(
    side: Side, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any) -> None:
        raise MemoryError

    refused = Refused("stolen")
    with monkeypatch.context() as full:
        full.setattr("samekey.core.refusal.seal", fail)
        with pytest.raises(Refused, match="stolen"):
            side.run("charge", failing(ledger, refused), key="o-1", payload={})
    with pytest.raises(Refused, match="refused: Refused"):
        side.run("charge", ledger.add, key="o-1", payload={})
    assert len(ledger) == 1


def test_c24_what_the_annotation_tells_is_found_before_the_effect(side: Side):
    def charge(order_id: str) -> threading.Event:
        return threading.Event()

    with pytest.raises(Misconfigured, match="Event"):
        side.once(name="charge", key="order_id")(charge)


def test_c24_what_others_cannot_encode_is_kept_and_comes_back_equal(side: Side):
    results: list[Any] = [{1, 2}, datetime(2024, 1, 31, tzinfo=UTC), Decimal("1.10"), frozenset(), b"\x00\xff"]
    for key, result in enumerate(results):
        first = side.run("charge", lambda result=result: result, key=key, payload={})  # type: ignore[misc]
        again = side.run("charge", int, key=key, payload={})

        assert first.result == again.result == result
        assert type(again.result) is type(result)


def test_c25_a_result_larger_than_the_limit_is_a_tombstone(side: Side, ledger: Ledger):
    def effect():
        ledger.add()
        return "x" * 2000

    policy = Policy(result_max_bytes=1000)
    assert len(side.run("charge", effect, key="o-1", payload={}, policy=policy).result) == 2000

    with pytest.raises(ResultNotKept, match="1000"):
        side.run("charge", effect, key="o-1", payload={}, policy=policy)
    assert len(ledger) == 1


def test_c25_a_megabyte_is_kept_by_default(side: Side):
    result = "x" * 1_000_000

    side.run("charge", lambda: result, key="o-1", payload={})
    assert side.run("charge", lambda: "", key="o-1", payload={}).result == result


# -- C27 and C28: the store is down ----------------------------------------------------------------------------


def test_c27_a_store_that_is_down_before_the_effect_refuses_by_default(place: Place, colour: str, ledger: Ledger):
    side, spy = spied_side(place, colour)
    spy.before["open"] = raising(DOWN)

    for _ in range(2):  # the same error, as for callers whose claims travel together: its note is said once
        with pytest.raises(StoreUnavailable, match="down") as refused:
            side.run("charge", ledger.add, key="o-1", payload={})

    (note,) = refused.value.__notes__
    assert "nothing was run; try again with the same key" in note
    assert len(ledger) == 0
    assert place.look("charge", "o-1") is None
    spy.before.clear()
    assert side.run("charge", ledger.add, key="o-1", payload={}).result == 1


def test_c27_with_run_the_effect_runs_unguarded_and_says_so(place: Place, colour: str, ledger: Ledger):
    seen = Seen()
    side, spy = spied_side(place, colour, policy=Policy(store_down="run"), hooks=[seen])
    spy.before["open"] = raising(DOWN)

    answer = side.run("charge", ledger.add, key="o-1", payload={})

    assert (answer.result, answer.guarded, answer.recorded, answer.token) == (1, False, False, 0)
    assert "unguarded" in seen.names
    with pytest.raises(ZeroDivisionError):
        side.run("charge", lambda: 1 // 0, key="o-2", payload={})


def test_with_run_two_calls_without_a_store_are_two_effects(place: Place, colour: str, ledger: Ledger):
    side, spy = spied_side(place, colour, policy=Policy(store_down="run"))
    spy.before["open"] = raising(DOWN)

    answers = [side.run("charge", ledger.add, key="o-1", payload={}) for _ in range(2)]

    assert len(ledger) == 2
    assert not any(answer.guarded for answer in answers)


def test_c27_run_is_only_about_the_claim_a_doubt_is_never_run_unguarded(place: Place, colour: str, ledger: Ledger):
    """What is there is known: when the store fails after it told us of a doubt, nothing runs."""
    side, spy = spied_side(place, colour, policy=Policy(store_down="run"))
    with pytest.raises(ValueError):
        side.run("charge", failing(Ledger(), ValueError()), key="o-1", payload={}, boundary=Keyed())
    spy.before["take"] = raising(DOWN)

    with pytest.raises(StoreUnavailable):
        side.run("charge", ledger.add, key="o-1", payload={}, boundary=Keyed())
    assert len(ledger) == 0


def test_c27_a_record_in_somebodys_transaction_is_waited_for_never_run_without_the_store(
    place: Place, colour: str, ledger: Ledger
):
    """He may be running this very effect; the store is there, and nothing is down."""
    side, spy = spied_side(place, colour, policy=Policy(store_down="run", patience=30))
    spy.before["open"] = raising(StoreBusy("held"), times=2)

    answer = side.run("charge", ledger.add, key="o-1", payload={})

    assert (answer.result, answer.guarded, spy.count("open")) == (1, True, 3)
    spy.before["open"] = raising(StoreBusy("held"))
    with pytest.raises(StoreBusy) as busy:
        side.run("charge", ledger.add, key="o-2", payload={}, policy=Policy(store_down="run", patience=0.05))
    assert len(ledger) == 1
    assert busy.value.__notes__ == ["samekey: nothing was run; try again with the same key later"]  # the store is there


def test_c28_a_settle_that_fails_is_tried_again_and_the_answer_is_recorded(place: Place, colour: str, ledger: Ledger):
    side, spy = spied_side(place, colour)
    spy.before["settle"] = raising(DOWN, times=2)

    answer = side.run("charge", ledger.add, key="o-1", payload={})

    assert (answer.result, answer.recorded, spy.count("settle")) == (1, True, 3)
    assert side.run("charge", ledger.add, key="o-1", payload={}).replayed


def test_c28_a_right_that_was_taken_away_while_the_effect_ran_loses_no_answer(
    place: Place, colour: str, ledger: Ledger
):
    """A password that was changed, a role without its rights: tried again too, and told as not recorded."""
    side, spy = spied_side(place, colour, policy=Policy(lease=0.3))
    spy.before["settle"] = raising(Misconfigured("this user may not"), times=1)
    assert side.run("charge", ledger.add, key="o-1", payload={}).recorded

    spy.before["settle"] = raising(Misconfigured("this user may not"))
    answer = side.run("charge", ledger.add, key="o-2", payload={})
    with pytest.raises(TimeoutError):
        side.run("charge", failing(Ledger(), TimeoutError()), key="o-3", payload={})

    assert (answer.result, answer.recorded) == (2, False)


def test_c28_a_settle_whose_reply_was_lost_recognises_itself(place: Place, colour: str, ledger: Ledger):
    side, spy = spied_side(place, colour)
    spy.after["settle"] = raising(DOWN, times=1)

    answer = side.run("charge", ledger.add, key="o-1", payload={})

    assert (answer.result, answer.recorded, answer.replayed, spy.count("settle")) == (1, True, False, 2)
    assert place.peek("charge", "o-1").evidence == ()


def test_c28_a_store_down_at_completion_tells_the_caller_and_never_repeats(place: Place, colour: str, ledger: Ledger):
    seen = Seen()
    side, spy = spied_side(place, colour, policy=Policy(lease=0.2), hooks=[seen])
    spy.before["settle"] = raising(DOWN)

    answer = side.run("charge", ledger.add, key="o-1", payload={})

    assert (answer.result, answer.recorded, answer.guarded) == (1, False, True)
    assert "not_recorded" in seen.names
    spy.before.clear()
    with pytest.raises(InDoubt):
        side.run("charge", ledger.add, key="o-1", payload={})
    assert len(ledger) == 1


@pytest.mark.slow
def test_c28_the_time_that_a_silent_store_takes_counts_too(place: Place, colour: str, ledger: Ledger):
    """Each try takes as long as the store's own timeouts: for a lease of 0.4 s two of them are enough, not a dozen."""
    side, spy = spied_side(place, colour, policy=Policy(lease=0.4))

    def silent(command: Any) -> None:
        time.sleep(0.3)  # real time: the tries end when the lease does
        raise StoreUnavailable("no answer")

    spy.before["settle"] = silent
    answer = side.run("charge", ledger.add, key="o-1", payload={})

    assert (answer.result, answer.recorded) == (1, False)
    assert spy.count("settle") <= 2


@pytest.mark.parametrize("error", [Refused("stolen"), NotDone("funds"), TimeoutError()], ids=repr)
def test_c28_an_error_that_cannot_be_recorded_still_comes_out_and_says_so(place: Place, colour: str, error):
    side, spy = spied_side(place, colour, policy=Policy(lease=0.5))
    spy.before["settle"] = raising(DOWN)

    with pytest.raises(type(error)) as raised:
        side.run("charge", failing(Ledger(), error), key="o-1", payload={})

    assert raised.value is error
    assert "samekey:" in "\n".join(error.__notes__)
    assert place.peek("charge", "o-1").state is State.STARTED


@pytest.mark.parametrize(
    ("broken", "lease"), [(Misconfigured("it is read-only"), 0.3), (RecordUnreadable("it is damaged"), 60)], ids=repr
)
def test_c28_a_store_that_broke_under_an_effect_does_not_take_its_answer(place: Place, colour: str, broken, lease):
    """Read-only since, unmounted: what the effect returned is told, and that it is not recorded; damaged: at once."""
    seen = Seen()
    side, spy = spied_side(place, colour, policy=Policy(lease=lease), hooks=[seen])
    spy.before["settle"] = raising(broken)

    answer = side.run("charge", lambda: "charged", key="o-1", payload={})

    assert (answer.result, answer.recorded, answer.guarded) == ("charged", False, True)
    assert (spy.count("settle") == 1, "not_recorded" in seen.names) == (isinstance(broken, RecordUnreadable), True)


@pytest.mark.parametrize("error", [Refused("stolen"), NotDone("funds"), TimeoutError()], ids=repr)
def test_c28_a_store_that_broke_under_an_effect_does_not_take_its_error(place: Place, colour: str, error):
    side, spy = spied_side(place, colour, policy=Policy(lease=0.3))
    spy.before["settle"] = raising(Misconfigured("it is read-only"))

    with pytest.raises(type(error)) as raised:
        side.run("charge", failing(Ledger(), error), key="o-1", payload={})

    assert raised.value is error
    assert "samekey:" in "\n".join(error.__notes__)


def test_c28_a_claim_whose_reply_was_lost_runs_nothing(place: Place, colour: str, ledger: Ledger):
    side, spy = spied_side(place, colour, policy=Policy(lease=0.1))
    spy.after["open"] = raising(DOWN, times=1)

    with pytest.raises(StoreUnavailable):
        side.run("charge", ledger.add, key="o-1", payload={})

    assert len(ledger) == 0


# -- C29: colours ----------------------------------------------------------------------------------------------


def test_c29_an_async_function_under_guard_is_refused_at_decoration():
    async def charge(order_id: str) -> str:
        return order_id

    with pytest.raises(Misconfigured, match="AsyncGuard"):
        Guard("memory://").once(name="charge", key="order_id")(charge)


def test_c29_a_plain_function_under_asyncguard_is_refused_at_decoration():
    def charge(order_id: str) -> Any:
        return order_id

    with pytest.raises(Misconfigured, match="Guard"):
        AsyncGuard("memory://").once(name="charge", key="order_id")(charge)


def test_c29_an_async_effect_given_to_run_is_refused_before_the_claim(place: Place, ledger: Ledger):
    """A coroutine nobody awaits would be "completed, result not kept" although nothing happened."""

    async def effect():
        return ledger.add()

    guard = place.guard()
    with pytest.raises(Misconfigured, match="AsyncGuard"):
        guard.run("charge", effect, key="o-1", payload={})

    assert place.look("charge", "o-1") is None
    assert guard.run("charge", ledger.add, key="o-1", payload={}).result == 1


def test_c29_a_lambda_around_an_async_effect_never_completes_the_key(place: Place, ledger: Ledger):
    """Not seen before the call; but an awaitable as a result means that nothing has happened yet."""

    async def effect():
        return ledger.add()

    coroutine = effect()
    guard = place.guard()
    try:
        with pytest.raises(Exception, match=r"await|async"):
            guard.run("charge", lambda: coroutine, key="o-1", payload={})
    finally:
        coroutine.close()

    assert place.peek("charge", "o-1").state is not State.COMPLETED


async def test_c29_an_async_effect_that_forgets_to_await_never_completes_the_key(place: Place, ledger: Ledger):
    """`return client.post(...)`: what it returns is a coroutine, and nothing was sent."""
    guard = place.async_guard()

    async def send():
        return ledger.add()

    forgotten = send()

    async def effect():
        return forgotten

    with pytest.raises(Misconfigured, match="await"):
        await guard.run("charge", effect, key="o-1", payload={})
    forgotten.close()

    record = await guard.peek("charge", "o-1")
    assert ledger.entries == []
    assert record is not None
    assert record.state is State.IN_DOUBT


async def test_c29_a_plain_effect_given_to_the_async_run_has_run_so_it_is_in_doubt(place: Place, ledger: Ledger):
    """It cannot be told from a lambda that returns a coroutine until it has run; then the error says what is wrong."""
    guard = place.async_guard()
    with pytest.raises(Misconfigured, match="cannot be awaited"):
        await guard.run("charge", ledger.add, key="o-1", payload={})

    assert place.peek("charge", "o-1").state is State.IN_DOUBT


def test_c29_stores_of_the_other_colour_are_refused(place: Place):
    with pytest.raises(Misconfigured, match="sync"):
        Guard(place.async_store())
    with pytest.raises(Misconfigured, match="async"):
        AsyncGuard(place.store())


def test_c29_an_async_lookup_needs_asyncguard():
    from samekey import Asks

    async def lookup(record): ...

    with pytest.raises(Misconfigured, match="AsyncGuard"):
        Guard("memory://").run("charge", int, key="o-1", payload={}, boundary=Asks(lookup))


# -- C30: the winner fails -------------------------------------------------------------------------------------


@pytest.mark.parametrize("guards", ["one", "two"])
def test_c30_a_waiting_loser_may_claim_as_soon_as_the_winner_fails(
    place: Place, colour: str, ledger: Ledger, guards: str, monkeypatch: pytest.MonkeyPatch
):
    """In the same guard (one flight) and in two that only share the store."""
    monkeypatch.setattr("samekey.stores._waiting.REREAD_SECONDS", 60.0)  # only a settle can wake the loser
    first, spy = spied_side(place, colour)
    second = first
    if guards == "two":
        second, spy = spied_side(place, colour)
    inside, go = threading.Event(), threading.Event()

    def fails():
        inside.set()
        assert go.wait(5)
        raise NotDone("funds")

    winner = Thread(lambda: first.run("charge", fails, key="o-1", payload={}))
    assert inside.wait(5)
    loser = Thread(lambda: second.run("charge", ledger.add, key="o-1", payload={}, policy=Policy(patience=30)))
    until(lambda: followers(second.guard) or spy.count("wait"))
    go.set()
    assert isinstance(winner.outcome(), NotDone)

    assert loser.result().result == 1  # SOON: its patience is longer
    assert len(ledger) == 1


def test_c30_of_many_waiting_losers_exactly_one_runs_next(side: Side, ledger: Ledger):
    """The first fails, the second succeeds, all others replay it."""
    order = Ledger()

    def effect():
        if order.add() == 1:
            raise NotDone("funds")
        return ledger.add()

    outcomes = together(10, lambda number: side.run("charge", effect, key="o-1", payload={}))

    assert sum(isinstance(one, NotDone) for one in outcomes) == 1
    assert (len(order), len(ledger)) == (2, 1)
    assert {one.result for one in outcomes if not isinstance(one, Exception)} == {1}


# -- C31: arithmetic -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lease", "retention"])
@pytest.mark.parametrize("value", [0, -1, -0.001, float("nan"), float("inf"), None, True, "30", 10**12], ids=repr)
def test_c31_a_time_that_is_none_zero_negative_or_absurd_is_never_no_expiry(name: str, value):
    with pytest.raises(Misconfigured, match=name):
        Policy(**{name: value})


@pytest.mark.parametrize("value", [-1, float("nan"), None, False, 10**12], ids=repr)
def test_c31_patience_may_be_zero_and_nothing_stranger(value):
    assert Policy(patience=0).patience == 0
    with pytest.raises(Misconfigured, match="patience"):
        Policy(patience=value)


def test_c31_no_patience_asks_once_and_says_busy_at_once(place: Place, side: Side):
    held = place.guard().hold("charge", key="o-1", payload={})
    began = time.monotonic()

    with pytest.raises(Exception, match="held by another attempt"):
        side.run("charge", int, key="o-1", payload={}, policy=Policy(patience=0))

    assert time.monotonic() - began < 1
    assert held.token


@dataclass
class Receipt:
    order_id: str
    amount: Decimal


def test_c24_a_data_class_is_kept_in_both_colours(side: Side):
    @side.once(name="charge", key="order_id")
    def charge(order_id: str) -> Receipt:
        return Receipt(order_id, Decimal("1.10"))

    assert charge("o-1") == charge("o-1") == Receipt("o-1", Decimal("1.10"))
    assert as_async(charge) is not charge
