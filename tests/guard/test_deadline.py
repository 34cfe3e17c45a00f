"""Store commands that a caller gives up on: what becomes of them, and of the answer. Real servers: tests/servers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio

from samekey import AsyncGuard, Guard, InDoubt, Keyed, Misconfigured, Policy, State, StoreUnavailable, current
from samekey.guard import deadline, settling
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from tests.guard.helpers import Ledger, Place, Seen, Side, Thread, as_async, raising, spied_side, until

DOWN = StoreUnavailable("no server")
SOON: dict[str, Any] = {"store_deadline": 0.2}


class Stuck:
    """Holds commands of one kind back until the test lets them go on."""

    def __init__(self, verb: str) -> None:
        self.verb, self.go = verb, threading.Event()

    def __call__(self, command: Any) -> None:
        assert self.go.wait(20)


class Slow:
    """A store whose commands can be held back, in a thread or in a loop."""

    def __init__(self, verb: str) -> None:
        self.memory, self.stuck = MemoryStore(), Stuck(verb)

    def sync(self) -> Any:
        return _Slow(self.memory, self.stuck)

    def asynchronous(self) -> Any:
        return _AsyncSlow(AsyncMemoryStore(self.memory), self.stuck)

    def state(self, key: str) -> State | None:
        return getattr(Guard(self.memory).peek("charge", key), "state", None)


class _Slow:
    in_process = False

    def __init__(self, store: Any, stuck: Stuck) -> None:
        self._store, self._stuck = store, stuck

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def carry_out(self, command: Any) -> Any:
        if command.verb == self._stuck.verb:
            self._stuck(command)
        return self._store.carry_out(command)

    def batch(self, commands: Any) -> Any:
        return [self.carry_out(command) for command in commands]


class _AsyncSlow(_Slow):
    async def carry_out(self, command: Any) -> Any:
        if command.verb == self._stuck.verb:
            await trio.to_thread.run_sync(self._stuck, command) if trio_runs() else await _in_thread(
                self._stuck, command
            )
        return await self._store.carry_out(command)

    async def batch(self, commands: Any) -> Any:
        return [await self.carry_out(command) for command in commands]


def trio_runs() -> bool:
    try:
        trio.lowlevel.current_trio_token()
    except RuntimeError:
        return False
    return True


async def _in_thread(work: Callable[[Any], None], command: Any) -> None:
    import asyncio

    await asyncio.to_thread(work, command)


def test_a_claim_that_arrives_late_is_let_go_and_nothing_ran():
    slow, ledger = Slow("open"), Ledger()
    guard = Guard(slow.sync())
    with pytest.raises(StoreUnavailable, match="as long as the policy allows") as refused:
        guard.run("charge", ledger.add, key="o-1", payload={}, policy=Policy(**SOON))
    slow.stuck.go.set()

    until(lambda: slow.state("o-1") is State.RELEASED)
    assert "nothing was run" in refused.value.__notes__[0]
    assert guard.run("charge", ledger.add, key="o-1", payload={}).attempts == 2
    assert len(ledger) == 1


def test_with_run_a_late_claim_stays_because_the_effect_ran():
    """It is in doubt when its lease ends: a retry must not run what ran already."""
    slow, ledger = Slow("open"), Ledger()
    policy = Policy(**SOON, store_down="run", lease=0.5, patience=0)
    answer = Guard(slow.sync()).run("charge", ledger.add, key="o-1", payload={}, policy=policy)
    slow.stuck.go.set()

    until(lambda: slow.state("o-1") is State.STARTED)
    assert (answer.guarded, answer.recorded, len(ledger)) == (False, False, 1)


async def test_the_same_claims_in_a_loop():
    slow, ledger = Slow("open"), Ledger()
    guard = AsyncGuard(slow.asynchronous())
    with pytest.raises(StoreUnavailable):
        await guard.run("charge", as_async(ledger.add), key="o-1", payload={}, policy=Policy(**SOON))
    slow.stuck.go.set()
    assert (await guard.run("charge", as_async(ledger.add), key="o-1", payload={})).result == 1
    await guard.close()


def test_trio_gives_up_and_settles_later_too():
    slow = Slow("settle")

    async def calls() -> None:
        guard = AsyncGuard(slow.asynchronous())
        answer = await guard.run(
            "charge", as_async(lambda: 1), key="o-1", payload={}, policy=Policy(settle_patience=0.2)
        )
        assert not answer.recorded
        slow.stuck.go.set()
        await guard.close()

    trio.run(calls)
    assert slow.state("o-1") is State.COMPLETED


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_finished_answer_goes_out_and_close_waits_for_its_record(colour: str):
    slow = Slow("settle")
    rules: dict[str, Any] = {"key": "o-1", "payload": {}, "policy": Policy(settle_patience=0.2)}
    if colour == "sync":
        guard = Guard(slow.sync())
        answer = guard.run("charge", lambda: 1, **rules)
    else:
        other = AsyncGuard(slow.asynchronous())
        answer = await other.run("charge", as_async(lambda: 1), **rules)
    threading.Timer(0.2, slow.stuck.go.set).start()
    guard.close() if colour == "sync" else await other.close()

    assert (answer.result, answer.recorded) == (1, False)
    assert slow.state("o-1") is State.COMPLETED


def test_the_time_of_all_commands_counts_together(place: Place):
    """A claim that took most of it leaves the settle what is left."""
    side, spy = spied_side(place, "sync", policy=Policy(store_deadline=0.6))
    spy.in_process = False
    spy.before["open"] = spy.before["settle"] = lambda command: time.sleep(0.4)
    start = time.monotonic()
    answer = side.run("charge", lambda: 1, key="o-1", payload={})

    assert not answer.recorded
    assert time.monotonic() - start < 0.4 + 0.4 + 5
    side.guard.close()
    assert place.peek("charge", "o-1").state is State.COMPLETED


def test_callers_that_follow_another_one_have_the_same_deadline():
    slow = Slow("open")
    guard = Guard(slow.sync())
    rules: dict[str, Any] = {"key": "o-1", "payload": {}, "policy": Policy(store_deadline=0.3, patience=60)}
    first, second = (Thread(lambda: guard.run("charge", int, **rules)) for _ in range(2))

    assert {type(one.outcome()) for one in (first, second)} == {StoreUnavailable}
    slow.stuck.go.set()


def test_a_batch_has_the_deadline_of_its_calls_and_lets_late_claims_go():
    slow, ledger = Slow("open"), Ledger()
    guard = Guard(slow.sync(), policy=Policy(**SOON))
    answers = guard.run_many("charge", lambda payload: ledger.add(), ["o-1", "o-2"], key=str)
    slow.stuck.go.set()

    assert [type(one) for one in answers] == [StoreUnavailable] * 2
    until(lambda: {slow.state(key) for key in ("o-1", "o-2")} == {State.RELEASED})
    assert len(ledger) == 0


def test_outcomes_of_a_batch_wait_no_longer_either():
    slow = Slow("settle")
    guard = Guard(slow.sync(), policy=Policy(settle_patience=0.2))
    operation = guard.operation("charge", boundary=Keyed())
    runs = guard.begin_many([guard.new_call(operation, key, {}, None) for key in ("o-1", "o-2")])
    ended = guard.settle_many([(one, 1) for one in runs])  # type: ignore[misc]
    slow.stuck.go.set()
    guard.close()

    assert [one.recorded for one in ended] == [False, False]
    assert {slow.state(key) for key in ("o-1", "o-2")} == {State.COMPLETED}


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_a_store_that_keeps_all_helpers_waiting_is_down(monkeypatch):
    """Each command that was given up on has a thread until the store ends it: their number is bounded."""
    monkeypatch.setattr(deadline, "HELPERS_MAX", 2)
    slow = Slow("open")
    guard = Guard(slow.sync(), policy=Policy(**SOON))
    texts = []
    for number in range(3):
        with pytest.raises(StoreUnavailable) as refused:
            guard.run("charge", int, key=f"o-{number}", payload={})
        texts.append(str(refused.value))
    slow.stuck.go.set()

    assert "2 commands are waiting" in texts[2]
    until(lambda: guard._helpers._idle)
    assert guard.run("charge", int, key="o-9", payload={}).result == 0


def test_outcomes_beyond_the_bound_are_given_up_with_a_warning_and_an_event(monkeypatch, caplog):
    monkeypatch.setattr(settling, "SETTLES_MAX", 1)
    slow, seen = Slow("settle"), Seen()
    guard = Guard(slow.sync(), policy=Policy(settle_patience=0.05), hooks=[seen])
    for number in range(2):
        guard.run("charge", int, key=f"o-{number}", payload={})
    slow.stuck.go.set()
    guard.close()

    assert "too many are waiting for the store" in caplog.text
    assert "given up: too many are waiting for the store" in [one.detail for one in seen.events]


def test_an_outcome_is_given_up_when_its_lease_has_ended(place: Place, caplog):
    side, spy = spied_side(place, "sync", policy=Policy(settle_patience=0.05, lease=0.4))
    spy.before["settle"] = raising(DOWN)
    answer = side.run("charge", lambda: 1, key="o-1", payload={})
    side.guard.close()

    assert not answer.recorded
    until(lambda: "detail=given up: StoreUnavailable" in caplog.text)
    assert place.peek("charge", "o-1").state is State.STARTED


def test_an_outcome_that_comes_back_after_a_passer_by_wrote_the_doubt_completes_the_key():
    """The lease ended first; the holder's fence is unchanged, so its outcome counts."""
    slow = Slow("settle")
    guard = Guard(slow.sync())
    guard.run("charge", lambda: "paid", key="o-1", payload={}, policy=Policy(settle_patience=0.05, lease=0.3))
    other = Guard(slow.memory)
    until(lambda: not getattr(other.peek("charge", "o-1"), "lease_live", True))
    with pytest.raises(InDoubt):
        other.run("charge", lambda: "again", key="o-1", payload={})
    slow.stuck.go.set()

    until(lambda: slow.state("o-1") is State.COMPLETED)
    assert other.run("charge", lambda: "again", key="o-1", payload={}).result == "paid"


def test_a_fork_does_not_take_outcomes_along():
    guard = Guard("memory://")
    guard._settling._waiting.append("of the parent")
    guard._after_fork()

    assert not guard._settling


# -- what is not bounded ---------------------------------------------------------------------------------------------


def test_without_the_options_a_store_is_asked_directly():
    store = MemoryStore()
    asked = []

    class Direct(_Slow):
        def carry_out(self, command: Any) -> Any:
            asked.append(threading.current_thread().name)
            return store.carry_out(command)

    Guard(Direct(store, Stuck(""))).run("charge", int, key="o-1", payload={})
    assert asked == [threading.current_thread().name] * 2


@pytest.mark.parametrize("wrong", [{"store_deadline": 0}, {"store_deadline": -1}, {"settle_patience": "2"}])
def test_options_that_are_no_time_are_refused(wrong: dict[str, Any]):
    with pytest.raises(Misconfigured, match=next(iter(wrong))):
        Policy(**wrong)


def test_the_smallest_of_the_three_bounds_a_settle():
    assert Policy().settle_patience_seconds == 30
    assert Policy(store_deadline=5, settle_patience=2).settle_patience_seconds == 2
    assert Policy(store_deadline=1, settle_patience=2).settle_patience_seconds == 1
    assert not Policy().bounded
    assert not Policy(settle_patience=60).bounded
    assert Policy(store_deadline=1).bounded


# -- the provider's key ----------------------------------------------------------------------------------------------


def test_an_effect_that_never_took_the_providers_key_is_reported(side: Side, caplog):
    with caplog.at_level(logging.ERROR, "samekey"):
        side.run("charge", lambda: current().provider_key(), key="o-1", payload={}, boundary=Keyed())
        assert caplog.text == ""
        side.run("charge", lambda: 1, key="o-2", payload={}, boundary=Keyed())

    assert "did not take `provider_key()`" in caplog.text


def test_a_hold_and_an_adapter_report_it_too():
    seen = Seen()
    guard = Guard("memory://", hooks=[seen])
    with guard.hold("charge", key="o-1", payload={}, boundary=Keyed()) as held:  # type: ignore[union-attr]
        held.complete(1)
    operation = guard.operation("charge", boundary=Keyed())
    for key, happened in (("o-2", True), ("o-3", False)):
        run: Any = guard.begin(guard.new_call(operation, key, {}, None))
        run.succeed(1, happened=happened)

    assert seen.names.count("unkeyed") == 2
