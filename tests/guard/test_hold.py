"""Taking the key by hand: a hold is entered, completed and left; anything else is a doubt."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
import unittest.mock
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import samekey
from samekey import (
    AsyncHeld,
    Fenced,
    Guard,
    Held,
    InDoubt,
    InProgress,
    Misconfigured,
    NotDone,
    Opaque,
    Policy,
    Refused,
    Repeatable,
    State,
    StoreUnavailable,
    current,
)
from samekey.loops import running
from tests.guard.helpers import Child, Ledger, Place, Thread, raising, spied_side, start_asyncio, start_trio, until


def held_of(place: Place, **kwargs: Any) -> Held:
    held = place.guard().hold("charge", **{"key": "o-1", "payload": {}, **kwargs})
    assert isinstance(held, Held)
    return held


def test_a_hold_is_completed_and_then_replayed(place: Place):
    guard = place.guard()
    with guard.hold("charge", key="o-1", payload={}) as held:
        assert current() is held
        held.complete("receipt")

    assert held.answer is not None
    assert (held.answer.result, held.answer.replayed) == ("receipt", False)
    again = guard.hold("charge", key="o-1", payload={})
    assert isinstance(again, samekey.Answer)
    assert (again.result, again.replayed) == ("receipt", True)


def test_a_replay_is_not_a_context_manager_so_a_forgotten_one_is_an_error_never_an_effect(place: Place, ledger: Ledger):
    guard = place.guard()
    guard.run("charge", ledger.add, key="o-1", payload={})

    def forgetful():
        with guard.hold("charge", key="o-1", payload={}) as held:
            ledger.add()
            held.complete(None)

    with pytest.raises((AttributeError, TypeError)):
        forgetful()
    assert len(ledger) == 1


def test_a_hold_that_is_entered_twice_goes_on_as_the_first(place: Place):
    """The second time is refused; whoever catches that still holds the key, and it is renewed."""
    with held_of(place) as held:
        with pytest.raises(Misconfigured, match="it is running"), held:
            pytest.fail("it ran twice")
        assert (current(), held.over) == (held, False)
        held.complete("receipt")

    assert place.peek("charge", "o-1").state is State.COMPLETED


def test_leaving_without_complete_is_in_doubt(place: Place):
    held = held_of(place)

    with pytest.raises(Misconfigured, match="without held"), held:
        pass

    assert place.peek("charge", "o-1").state is State.IN_DOUBT


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (ValueError("bug"), State.IN_DOUBT),
        (NotDone("funds"), State.RELEASED),
        (Refused("stolen"), State.CLOSED),
        (KeyboardInterrupt(), State.IN_DOUBT),
        (StopIteration(3), State.IN_DOUBT),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_exception_in_the_block_says_what_it_says_anywhere(place: Place, error, state):
    held = held_of(place)

    with pytest.raises(type(error)) as raised, held:
        raise error

    assert raised.value is error
    assert place.peek("charge", "o-1").state is state


def test_an_exception_after_complete_wins(place: Place):
    """complete() is a word for the end of the block; a block that ends in an error did not get there."""
    held = held_of(place)

    def work():
        with held:
            held.complete("receipt")
            raise ValueError

    with pytest.raises(ValueError):
        work()

    assert place.peek("charge", "o-1").state is State.IN_DOUBT


def test_generator_exit_writes_nothing(place: Place):
    """A generator that is thrown away in the middle of a hold: abandoned, not failed; the lease speaks."""
    held = held_of(place)

    def steps():
        with held:
            yield 1
            held.complete("never")

    running = steps()
    next(running)
    before = place.peek("charge", "o-1")
    running.close()

    after = place.peek("charge", "o-1")
    assert (after.state, after.version) == (before.state, before.version) == (State.STARTED, 1)


def test_completing_twice_is_refused(place: Place):
    held = held_of(place)

    def work():
        with held:
            held.complete(1)
            held.complete(2)

    with pytest.raises(Misconfigured, match="already complete"):
        work()


def test_completing_outside_of_the_block_is_refused(place: Place):
    """It would be kept nowhere: the lease would end, and a person would be asked about what was said here."""
    held = held_of(place)

    with pytest.raises(Misconfigured, match="the block of a hold"):
        held.complete("before")
    with held:
        held.complete("in it")
    with pytest.raises(Misconfigured, match="the block of a hold"):
        held.complete("after")
    assert place.guard().run("charge", lambda: "again", key="o-1", payload={}).result == "in it"


def test_a_guarded_function_completes_by_returning(place: Place):
    with pytest.raises(Misconfigured, match="returns its result"):
        place.guard().run("charge", lambda: current().complete("receipt"), key="o-1", payload={})


def test_a_hold_is_entered_once(place: Place):
    held = held_of(place)
    with held:
        held.complete(1)

    with pytest.raises(Misconfigured, match="over"):
        held.__enter__()
    assert place.peek("charge", "o-1").state is State.COMPLETED


def test_a_hold_that_is_running_is_not_entered_again(place: Place):
    """The inner block's end would settle the outer's, which may still fail."""
    held = held_of(place)

    def work():
        with held:
            with pytest.raises(Misconfigured, match="running"):
                held.__enter__()
            held.complete(1)

    contextvars.copy_context().run(work)


def test_holds_nest(place: Place):
    guard = place.guard()
    with guard.hold("outer", key="o-1", payload={}) as outer:
        with guard.hold("inner", key="o-1", payload={}) as inner:
            assert current() is inner
            inner.complete("inner")
        assert current() is outer
        outer.complete("outer")

    assert [place.peek(name, "o-1").state for name in ("inner", "outer")] == [State.COMPLETED] * 2
    with pytest.raises(Misconfigured):
        current()


def test_a_hold_entered_in_one_context_and_left_in_another_is_settled(place: Place):
    """As frameworks do with a `yield` dependency in a thread pool."""
    held = held_of(place)
    contextvars.copy_context().run(held.__enter__)
    held.complete("receipt")
    contextvars.copy_context().run(held.__exit__, None, None, None)

    assert place.peek("charge", "o-1").state is State.COMPLETED


@pytest.mark.parametrize("boundary", [Opaque(), Repeatable()], ids=["opaque", "repeatable"])
def test_a_hold_that_is_dropped_unentered_is_released(place: Place, ledger: Ledger, boundary: Any):
    """Its effect never ran: the next caller need not wait for the lease."""
    guard = place.guard(policy=Policy(patience=0, lease=3600))
    held = guard.hold("charge", key="o-1", payload={}, boundary=boundary)
    with pytest.raises(InProgress):
        guard.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary)
    del held
    gc.collect()
    until(lambda: place.peek("charge", "o-1").state is State.RELEASED)

    assert guard.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary).result == 1
    assert guard._flights._flying == {}


@pytest.mark.parametrize("start", [start_asyncio, start_trio], ids=["asyncio", "trio"])
def test_an_async_hold_that_is_dropped_unentered_is_released(place: Place, ledger: Ledger, start: Any):
    async def main() -> None:
        guard = place.async_guard(policy=Policy(patience=0, lease=3600))
        held = await guard.hold("charge", key="o-1", payload={})
        del held
        gc.collect()
        for _ in range(500):
            if (await guard.peek("charge", "o-1")).state is State.RELEASED:
                return
            await running().sleep(0.01)
        raise AssertionError("it was never released")

    start(main)


@pytest.mark.parametrize("use", ["provider_key", "complete", "sending"])
def test_a_hold_that_was_used_unentered_is_not_released(place: Place, use: str):
    """The caller forgot the block: the effect may have run, so the key stays held until its lease ends."""
    guard = place.guard()
    held: Any = guard.hold("charge", key="o-1", payload={}, boundary=Opaque(marked=use == "sending"))
    if use == "complete":
        with pytest.raises(Misconfigured):
            held.complete("done")
    else:
        getattr(held, use)()
    with unittest.mock.patch.object(type(held._performer), "dropped") as dropped:
        del held
        gc.collect()

    assert not dropped.called
    assert place.peek("charge", "o-1").state is State.STARTED


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_was_forked_does_not_release_the_hold_of_its_parent(tmp_path: Path):
    with Guard(f"sqlite:///{tmp_path}/keys.db") as guard:
        held: Any = guard.hold("charge", key="o-1", payload={})

        def drop() -> bool:
            nonlocal held
            with unittest.mock.patch.object(type(held._performer), "dropped") as dropped:
                held = None
                gc.collect()
            return bool(dropped.called)

        assert Child(drop).result() is False
        with held:
            held.complete("parent")


def test_a_hold_that_is_kept_and_forgotten_blocks_no_longer_than_its_lease(still: Place, ledger: Ledger):
    """Nobody entered it, so nobody renews it: a dead lease does not block the callers of its own process either."""
    assert still.clock is not None
    guard = still.guard(policy=Policy(patience=0.2))
    held = guard.hold("charge", key="o-1", payload={}, boundary=Repeatable())
    still.clock.advance(31)

    answer = guard.run("charge", ledger.add, key="o-1", payload={}, boundary=Repeatable())
    assert (answer.result, answer.attempts) == (1, 2)
    assert held.token < answer.token


def test_a_hold_dropped_in_its_block_lets_its_followers_go(place: Place):
    """Garbage collection may strike anywhere: it only takes note, and the next caller of any key clears up."""
    guard = place.guard(policy=Policy(patience=0.1))
    holds = [guard.hold("charge", key="o-1", payload={}).__enter__()]
    holds.clear()

    assert guard._flights._abandoned
    guard.run("charge", lambda: 1, key="o-2", payload={})
    assert not guard._flights._abandoned
    assert guard._flights._flying == {}
    assert place.peek("charge", "o-1").state is State.STARTED


def test_a_hold_that_was_left_elsewhere_is_no_longer_around_anything(place: Place):
    """Entered here and left in another thread: this context still has it, and it does not count."""
    guard = place.guard()
    with guard.hold("outer", key="o-1", payload={}) as outer:
        for number in range(3):
            held = guard.hold("charge", key=number, payload={})
            held.__enter__()
            assert current() is held
            assert held.lineage == (held.attempt, outer.attempt)

            def leave(held=held):
                held.complete("done")
                held.__exit__(None, None, None)

            Thread(leave).result()
            assert current() is outer
        outer.complete("done")
    with pytest.raises(Misconfigured):
        current()


async def test_a_task_that_outlives_its_effect_is_inside_no_hold(place: Place):
    """What an effect left running in the background is not part of it any more, and has no provider key of it."""
    guard, go = place.async_guard(), asyncio.Event()
    background: list[asyncio.Task[None]] = []

    async def late() -> None:
        assert current().key == "o-1"
        await go.wait()
        with pytest.raises(Misconfigured):
            current()

    async def effect() -> None:
        background.append(asyncio.create_task(late()))
        await asyncio.sleep(0)

    await guard.run("charge", effect, key="o-1", payload={})
    go.set()
    await background[0]


def test_a_hold_tells_deadline_token_attempt_and_provider_key(place: Place):
    held = held_of(place, policy=Policy(lease=10))

    assert 8.0 < held.seconds_left <= 9.0  # the holder is the more careful one
    assert held.record is not None
    assert (held.token, held.attempt) == held.record.fence
    assert held.provider_key() == held.record.provider_key()
    assert held.provider_key("capture") != held.provider_key()
    assert (held.key, held.tenant) == ("o-1", None)


def test_with_the_store_down_and_run_a_hold_has_no_record(place: Place):
    side, spy = spied_side(place, "sync", policy=Policy(store_down="run"))
    spy.before["open"] = raising(StoreUnavailable("down"))

    with side.guard.hold("charge", key="o-1", payload={}) as held:
        held.sending()
        assert held.record is None
        held.complete(held.provider_key())

    spy.before.clear()
    assert (held.answer.guarded, held.answer.recorded) == (False, False)
    with side.guard.hold("charge", key="o-1", payload={}) as again:
        assert again.provider_key() == held.answer.result
        again.complete()


# -- the same, awaited ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [start_asyncio, start_trio])
def test_an_async_hold_does_the_same(place: Place, start):
    guard = place.async_guard()

    async def main() -> None:
        async with await guard.hold("charge", key="o-1", payload={}) as held:
            assert current() is held
            assert isinstance(held, AsyncHeld)
            held.complete("receipt")
        again = await guard.hold("charge", key="o-1", payload={})
        assert isinstance(again, samekey.Answer)
        assert again.result == "receipt"
        with pytest.raises((AttributeError, TypeError)):
            async with again:  # type: ignore[attr-defined]
                pass

        for key, error, state in (
            ("doubt", ValueError(), State.IN_DOUBT),
            ("free", NotDone(), State.RELEASED),
            ("closed", Refused(), State.CLOSED),
        ):
            with pytest.raises(type(error)):
                async with await guard.hold("charge", key=key, payload={}):
                    raise error
            assert place.peek("charge", key).state is state

        with pytest.raises(Misconfigured, match="without held"):
            async with await guard.hold("charge", key="left", payload={}):
                pass
        with pytest.raises(InDoubt):
            await guard.hold("charge", key="left", payload={})

    start(main)


def test_a_hold_in_one_thread_keeps_another_thread_waiting_until_it_is_done(place: Place, ledger: Ledger):
    guard = place.guard()
    entered, go = threading.Event(), threading.Event()

    def holder():
        with guard.hold("charge", key="o-1", payload={}, boundary=Opaque()) as held:
            entered.set()
            assert go.wait(5)
            held.complete("held")

    first = Thread(holder)
    assert entered.wait(5)
    second = Thread(lambda: guard.run("charge", ledger.add, key="o-1", payload={}))
    go.set()
    first.result()

    assert second.result().result == "held"
    assert len(ledger) == 0


@pytest.mark.parametrize("word", ["release", "keep"])
def test_words_about_an_answer_need_an_answer(memory: Place, word: str):
    """They speak about an HTTP answer; a plain effect would think it had said something."""
    guard = memory.guard()

    with pytest.raises(Misconfigured, match=rf"{word}\(\) is about the answer of an HTTP request"):
        guard.run("charge", lambda: getattr(current(), word)(), key="o-1", payload={}, boundary=Repeatable())


def test_a_hold_knows_whether_it_may_have_reached_its_provider(memory: Place):
    guard = memory.guard()
    reached = []
    with guard.hold("charge", key="o-1", payload={}) as held:
        reached.append(held.reached_out)
        held.provider_key()
        reached.append(held.reached_out)
        held.complete()
    with guard.hold("charge", key="o-2", payload={}) as held:
        held.sending()
        reached.append(held.reached_out)
        held.complete()

    assert reached == [False, True, True]


@pytest.mark.parametrize("colour", ["sync", "asyncio", "trio"])
@pytest.mark.parametrize("met", ["nobody", "doubted", "run again"])
def test_a_hold_that_is_entered_after_its_lease_ended_is_refused_and_its_key_free(
    place: Place, ledger: Ledger, colour: str, met: str
):
    """A hold is not renewed before it is entered: by now another caller may have run it."""
    short = Policy(lease=0.05)
    boundary = Repeatable() if met == "run again" else Opaque()
    asked: dict[str, Any] = {"key": "o-1", "payload": {}, "boundary": boundary}
    other = place.guard()

    def overslept() -> None:
        until(lambda: not place.peek("charge", "o-1").lease_live)
        if met == "doubted":
            with pytest.raises(InDoubt):
                other.run("charge", ledger.add, **asked)
        if met == "run again":
            other.run("charge", ledger.add, **asked)

    async def main() -> None:
        held = await place.async_guard(policy=short).hold("charge", **asked)
        overslept()
        async with held:
            ledger.add("late")

    def plain() -> None:
        held = place.guard(policy=short).hold("charge", **asked)
        overslept()
        with held:
            ledger.add("late")

    start: dict[str, Any] = {"sync": plain, "asyncio": partial(start_asyncio, main), "trio": partial(start_trio, main)}
    with pytest.raises(Fenced, match="lease had ended"):
        start[colour]()

    assert len(ledger) == (met == "run again")
    assert other.run("charge", ledger.add, **asked).replayed is (met == "run again")
    assert len(ledger) == 1
