"""The seam for adapters: what `begin` answers, and what each ending answers about the record, in both colours."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from samekey import (
    Answer,
    Asks,
    AsyncGuard,
    Declined,
    Guard,
    Keyed,
    KeyReused,
    Misconfigured,
    NotDone,
    Opaque,
    Policy,
    Refused,
    Repeatable,
    StillUnknown,
    StoreUnavailable,
    current,
)
from samekey.core.boundary import Boundary
from samekey.core.commands import Read
from samekey.core.key import make_key
from samekey.core.record import Record
from samekey.core.states import State
from samekey.guard.adapters import (
    AsyncRunning,
    CutShort,
    Doubt,
    Down,
    Ended,
    Mismatch,
    NotKept,
    Refusal,
    Running,
    Waiting,
)
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing.clock import ManualClock
from samekey.testing.faulty import AsyncFaultyStore, Fault, FaultyStore, Plan
from tests.guard.helpers import until_async


class Adapter:
    """An adapter of either colour on one memory store."""

    def __init__(self, colour: str, boundary: Boundary | None = None, **policy: Any) -> None:
        self.clock = ManualClock()
        self.plan = Plan()
        self.store = MemoryStore(self.clock)
        self.boundary, self.policy = boundary or Opaque(), Policy(**policy)
        self.guard: Any = (
            Guard(FaultyStore(self.store, self.plan), policy=self.policy)
            if colour == "sync"
            else AsyncGuard(AsyncFaultyStore(AsyncMemoryStore(self.store), self.plan), policy=self.policy)
        )

    def call(self, key: str = "m-1", payload: Any = None, **rules: Any) -> Any:
        operation = self.guard.operation("mail", boundary=rules.pop("boundary", self.boundary), **rules)
        return self.guard.new_call(operation, key, payload)

    async def begin(self, key: str = "m-1", payload: Any = None, *, wait: float | None = 0, **more: Any) -> Any:
        return await done(self.guard.begin(self.call(key, payload), wait=wait, **more))

    def record(self, key: str = "m-1") -> Record | None:
        found: Record | None = self.store.carry_out(Read(make_key("mail", key)))
        return found


async def done(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made


both = pytest.mark.parametrize("colour", ["sync", "async"])


# -- what begin answers ------------------------------------------------------------------------------------------------


@both
async def test_a_fresh_key_runs_and_then_answers(colour: str):
    adapter = Adapter(colour)

    running = await adapter.begin()
    assert isinstance(running, Running | AsyncRunning)
    ended = await done(running.succeed({"sent": 1}))

    assert ended == Ended(State.COMPLETED, recorded=True, result={"sent": 1})
    again = await adapter.begin()
    assert isinstance(again, Answer)
    assert (again.result, again.replayed) == ({"sent": 1}, True)


@both
async def test_a_held_key_is_waiting_with_the_rest_of_the_lease(colour: str):
    adapter = Adapter(colour, lease=30)
    running = await adapter.begin()
    adapter.clock.advance(10)

    opened = await adapter.begin()

    assert isinstance(opened, Waiting)
    assert opened.retry_after == pytest.approx(20, abs=0.5)
    await done(running.release())


@both
async def test_begin_waits_as_long_as_it_is_told(colour: str):
    """The policy's patience is five seconds; the call before would wait for itself."""
    adapter = Adapter(colour)
    running = await adapter.begin()
    start = time.monotonic()

    assert isinstance(await adapter.begin(wait=0), Waiting)
    assert time.monotonic() - start < 2
    with pytest.raises(Misconfigured, match="wait must be zero or more"):
        await adapter.begin(wait=-1)
    await done(running.release())


@both
async def test_another_payload_is_a_mismatch(colour: str):
    adapter = Adapter(colour)
    await done((await adapter.begin(payload={"to": "a"})).succeed())

    opened = await adapter.begin(payload={"to": "b"})

    assert isinstance(opened, Mismatch)
    assert isinstance(opened.error, KeyReused)
    assert opened.error.fields == ("to",)


@both
async def test_a_refusal_on_record_is_a_value(colour: str):
    adapter = Adapter(colour, closes=(LookupError,))
    await done((await adapter.begin("m-1")).fail(Refused("no such address", detail=7)))
    await done((await adapter.begin("m-2")).fail(LookupError("gone")))

    first, second = await adapter.begin("m-1"), await adapter.begin("m-2")

    assert isinstance(first, Refusal)
    assert isinstance(second, Refusal)
    assert (first.error.args, getattr(first.error, "detail", None)) == (("no such address",), 7)
    assert type(second.error) is LookupError


@both
async def test_a_result_that_was_not_kept_is_a_value(colour: str):
    adapter = Adapter(colour)
    ended = await done((await adapter.begin()).succeed(object()))

    assert ended.state is State.COMPLETED
    assert isinstance(await adapter.begin(), NotKept)


@pytest.mark.parametrize(
    ("boundary", "next_step"),
    [(Opaque(), "person"), (Asks(lambda record: StillUnknown()), "asks")],
    ids=["opaque", "asks"],
)
@both
async def test_a_doubt_says_what_a_next_delivery_can_do(colour: str, boundary: Boundary, next_step: str):
    adapter = Adapter(colour, boundary)
    ended = await done((await adapter.begin()).cut("the consumer was stopped"))

    assert (ended.state, ended.recorded, ended.next) == (State.IN_DOUBT, True, next_step)
    assert isinstance(ended.error, CutShort)
    opened = await adapter.begin()
    assert isinstance(opened, Doubt)
    assert (opened.next, opened.retry_after) == (next_step, 0.0)


@both
async def test_a_store_that_does_not_answer_is_down(colour: str):
    adapter = Adapter(colour)
    adapter.plan.add(Fault("open"))

    opened = await adapter.begin()

    assert isinstance(opened, Down)
    assert isinstance(opened.error, StoreUnavailable)
    assert opened.retry_after > 0


@both
async def test_a_mistake_of_the_adapter_is_raised(colour: str):
    adapter = Adapter(colour)

    with pytest.raises(Misconfigured, match="boundary="):
        adapter.call(boundary="opaque")
    await done(adapter.guard.close())
    with pytest.raises(StoreUnavailable, match="was closed"):
        adapter.call()


@both
async def test_a_claim_whose_reply_came_after_its_lease_does_not_run(colour: str):
    """The key may be another attempt's by then; the claim is let go."""
    adapter = Adapter(colour, lease=0.05)
    adapter.plan.add(Fault("open", "delay", when="after", seconds=0.1))

    opened = await adapter.begin()

    assert isinstance(opened, Waiting)
    record = adapter.record()
    assert record is not None
    assert record.state is State.RELEASED


# -- what ending answers -----------------------------------------------------------------------------------------------


class Boom(Exception):
    pass


ENDINGS: list[tuple[str, Boundary, Callable[[Any], Any], tuple[Any, ...]]] = [
    ("a success", Opaque(), lambda one: one.succeed(1), (State.COMPLETED, True, "answers")),
    ("a release", Opaque(), lambda one: one.release("not now"), (State.RELEASED, True, "runs")),
    ("not done", Opaque(), lambda one: one.fail(NotDone()), (State.RELEASED, True, "runs")),
    ("a refusal", Opaque(), lambda one: one.fail(Refused("no")), (State.CLOSED, True, "answers")),
    ("an error", Opaque(), lambda one: one.fail(Boom()), (State.IN_DOUBT, True, "person")),
    ("an error, marked", Opaque(marked=True), lambda one: one.fail(Boom()), (State.RELEASED, True, "runs")),
    ("an error, keyed", Keyed(), lambda one: one.fail(Boom()), (State.IN_DOUBT, True, "runs")),
    ("an error, repeatable", Repeatable(), lambda one: one.fail(Boom()), (State.RELEASED, True, "runs")),
    ("an error, asks", Asks(lambda record: Declined()), lambda one: one.fail(Boom()), (State.IN_DOUBT, True, "asks")),
    ("cut short", Opaque(), lambda one: one.cut(), (State.IN_DOUBT, True, "person")),
    ("kept", Opaque(), lambda one: one.keep(), (State.STARTED, False, "person")),
    ("kept, marked", Opaque(marked=True), lambda one: one.keep(), (State.STARTED, False, "runs")),
]


@pytest.mark.parametrize(("boundary", "end", "says"), [one[1:] for one in ENDINGS], ids=[name for name, *_ in ENDINGS])
@both
async def test_what_the_record_says_after_an_ending(
    colour: str, boundary: Boundary, end: Callable[[Any], Any], says: tuple[Any, ...]
):
    adapter = Adapter(colour, boundary)

    ended = await done(end(await adapter.begin()))

    assert (ended.state, ended.recorded, ended.next) == says
    record = adapter.record()
    assert record is not None
    assert record.state is ended.state
    assert ended.replayed is False


@both
async def test_an_ending_that_the_store_did_not_take_is_not_recorded(colour: str):
    adapter = Adapter(colour, lease=0.1)
    adapter.plan.add(Fault("settle", times=None))

    answered = await done((await adapter.begin("m-1")).succeed("sent"))
    failed = await done((await adapter.begin("m-2")).fail(boom := Boom()))

    assert (answered.state, answered.recorded, answered.result) == (State.COMPLETED, False, "sent")
    assert (failed.state, failed.recorded, failed.error, failed.next) == (State.STARTED, False, boom, "person")


@both
async def test_a_run_that_lost_its_key_answers_with_the_other_ones_answer(colour: str):
    adapter = Adapter(colour, Repeatable(), lease=10)
    late = await adapter.begin()
    adapter.clock.advance(11)
    await done((await adapter.begin()).succeed("second"))

    ended = await done(late.succeed("first"))

    assert (ended.state, ended.replayed, ended.result) == (State.COMPLETED, True, "second")


@both
async def test_a_run_ends_once(colour: str):
    adapter = Adapter(colour)
    running = await adapter.begin()
    await done(running.succeed(1))

    for end in (running.succeed, running.release, running.cut):
        with pytest.raises(Misconfigured, match="has ended already"):
            await done(end())


@both
async def test_a_failing_run_costs_one_claim_and_one_settle(colour: str):
    adapter = Adapter(colour)
    await done((await adapter.begin()).fail(Boom()))

    assert adapter.plan.calls == {"open": 1, "settle": 1}


@both
async def test_guards_switched_off_run_and_record_nothing(colour: str):
    from samekey.testing import off

    adapter = Adapter(colour)
    with off():
        ended = await done((await adapter.begin()).fail(Boom()))
        fine = await done((await adapter.begin()).succeed(1))

    assert (ended.state, ended.recorded, ended.next) == (None, False, "runs")
    assert (fine.recorded, fine.result, fine.next) == (False, 1, "runs")
    assert adapter.record() is None


# -- the hold of a run ------------------------------------------------------------------------------------------------


@both
async def test_the_run_is_the_current_hold_and_gives_the_provider_key(colour: str):
    adapter = Adapter(colour, Keyed())
    running = await adapter.begin()

    assert current() is running.held
    record = adapter.record()
    assert record is not None
    assert running.held.provider_key() == record.provider_key()
    await done(running.held.sending())
    assert (running.held.begun, running.lost) == (True, False)
    await done(running.succeed())
    with pytest.raises(Misconfigured, match="no guarded effect"):
        current()


@both
async def test_a_run_is_made_current_in_the_thread_of_its_handler(colour: str):
    adapter = Adapter(colour)
    running = await adapter.begin()
    seen: list[Any] = []

    def handler() -> None:
        with running:
            seen.append(current())
        with pytest.raises(Misconfigured):
            current()

    thread = threading.Thread(target=handler)
    thread.start()
    thread.join()
    await done(running.succeed())

    assert seen == [running.held]


@both
async def test_a_lost_lease_is_told(colour: str):
    adapter = Adapter(colour, lease=0.05)
    adapter.plan.add(Fault("renew", times=None))
    running = await adapter.begin()
    assert not running.lost

    await until_async(lambda: running.lost)
    await done(running.cut())


@both
async def test_a_brokers_timer_is_renewed_with_the_lease_and_not_without_it(colour: str):
    adapter = Adapter(colour, lease=0.3)
    renewed = threading.Event()
    running = await adapter.begin()

    def extend() -> None:
        renewed.set()
        raise OSError("the broker is away")  # logged; the lease is renewed all the same

    running.also_renew(extend)
    assert await asyncio.to_thread(renewed.wait, 10)
    assert not running.lost
    adapter.plan.add(Fault("renew", times=None))
    await until_async(lambda: adapter.plan.fired)
    renewed.clear()
    await until_async(lambda: len(adapter.plan.fired) > 3)
    assert not renewed.is_set()
    await done(running.cut())


async def test_an_async_timer_is_renewed_in_the_loop():
    adapter = Adapter("async", lease=0.3)
    running = await adapter.begin()
    renewed = asyncio.Event()

    async def extend() -> None:
        renewed.set()

    running.also_renew(extend)
    await asyncio.wait_for(renewed.wait(), 10)
    await running.succeed()


@both
async def test_an_effect_decides_only_where_its_adapter_obeys(colour: str):
    adapter = Adapter(colour)
    running = await adapter.begin(decides=True)
    current().keep()
    assert running.decision == "keep"
    await done(running.succeed())

    running = await adapter.begin("m-2")
    with pytest.raises(Misconfigured, match="HTTP"):
        current().keep()
    assert running.decision == ""
    await done(running.succeed())


@both
async def test_a_closed_guard_closes_its_store_when_the_run_has_ended(colour: str):
    adapter = Adapter(colour)
    running = await adapter.begin()
    await done(adapter.guard.close())

    ended = await done(running.succeed(1))

    assert ended.recorded
    with pytest.raises(StoreUnavailable, match="was closed"):
        adapter.call("m-2")


# -- batches ----------------------------------------------------------------------------------------------------------


@both
async def test_many_are_claimed_and_settled_in_one_round_trip_each(colour: str):
    adapter = Adapter(colour)
    await done((await adapter.begin("known")).succeed("before"))
    adapter.plan.calls.clear()
    keys = ["a", "b", "known", "c", "a"]

    opened = await done(adapter.guard.begin_many([adapter.call(key) for key in keys]))
    running = [one for one in opened if isinstance(one, Running | AsyncRunning)]

    assert [type(one).__name__.removeprefix("Async") for one in opened] == [
        "Running", "Running", "Answer", "Running", "Waiting",
    ]  # fmt: skip
    assert adapter.plan.calls == {"batch": 1, "wait": 1}  # one of them waited for none of the others
    adapter.plan.calls.clear()

    ended = await done(adapter.guard.settle_many(zip(running, ["sent", NotDone(), Boom()], strict=True)))

    assert [(one.state, one.recorded, one.next) for one in ended] == [
        (State.COMPLETED, True, "answers"), (State.RELEASED, True, "runs"), (State.IN_DOUBT, True, "person"),
    ]  # fmt: skip
    assert adapter.plan.calls == {"batch": 1}
    assert [record.state for key in "abc" if (record := adapter.record(key))] == [one.state for one in ended]


@both
async def test_each_run_of_a_batch_is_current_in_its_own_block(colour: str):
    adapter = Adapter(colour)
    opened = await done(adapter.guard.begin_many([adapter.call("a"), adapter.call("b")]))
    with pytest.raises(Misconfigured):
        current()

    for running in opened:
        with running:
            assert current() is running.held
    await done(adapter.guard.settle_many((running, None) for running in opened))


@both
async def test_more_than_one_chunk(colour: str):
    adapter = Adapter(colour)
    calls = [adapter.call(str(number)) for number in range(100)]

    opened = await done(adapter.guard.begin_many(calls))
    ended = await done(adapter.guard.settle_many((running, at) for at, running in enumerate(opened)))

    assert [one.result for one in ended] == list(range(100))
    assert adapter.plan.calls == {"batch": 4}


@both
async def test_a_batch_that_the_store_does_not_take_is_settled_one_by_one(colour: str):
    """What is known must be written: each settle is tried again by itself."""
    adapter = Adapter(colour)
    opened = await done(adapter.guard.begin_many([adapter.call("a"), adapter.call("b")]))
    adapter.plan.add(Fault("batch"))

    ended = await done(adapter.guard.settle_many([(opened[0], 1), (opened[1], Refused("no"))]))

    assert [(one.state, one.recorded) for one in ended] == [(State.COMPLETED, True), (State.CLOSED, True)]
    adapter.plan.add(Fault("batch"))
    down = await done(adapter.guard.begin_many([adapter.call("c"), adapter.call("d")]))
    assert [type(one) for one in down] == [Down, Down]
    assert down[0].error is not down[1].error


@both
async def test_a_closed_guard_claims_no_batch_and_settles_the_one_that_runs(colour: str):
    adapter = Adapter(colour)
    late = [adapter.call("late")]
    opened = await done(adapter.guard.begin_many([adapter.call("a")]))
    await done(adapter.guard.close())

    refused = await done(adapter.guard.begin_many(late))
    assert isinstance(refused[0], Down)
    assert adapter.record("late") is None
    ended = await done(adapter.guard.settle_many([(opened[0], "sent")]))
    assert (ended[0].state, ended[0].recorded) == (State.COMPLETED, True)


@both
async def test_a_batch_reads_earlier_names_one_by_one(colour: str):
    adapter = Adapter(colour)
    old = adapter.guard.operation("old", boundary=Opaque())
    await done((await done(adapter.guard.begin(adapter.guard.new_call(old, "a", None)))).release())
    renamed = adapter.guard.operation("mail", boundary=Opaque(), aliases=("old",))

    opened = await done(adapter.guard.begin_many([adapter.guard.new_call(renamed, "a", None)]))

    assert isinstance(opened[0], Running | AsyncRunning)
    ended = await done(adapter.guard.settle_many([(opened[0], "sent")]))
    assert (ended[0].state, ended[0].result) == (State.COMPLETED, "sent")


def test_an_interrupted_batch_lets_its_keys_go():
    adapter = Adapter("sync")
    adapter.plan.add(Fault("batch", "crash", when="after"))

    with pytest.raises(BaseException, match="the process ended"):
        adapter.guard.begin_many([adapter.call("a"), adapter.call("b")])

    assert [record.state for key in "ab" if (record := adapter.record(key))] == [State.RELEASED] * 2


def test_an_interrupted_settle_is_written_once_more():
    adapter = Adapter("sync")
    opened = adapter.guard.begin_many([adapter.call("a"), adapter.call("b")])
    adapter.plan.add(Fault("batch", "crash"))

    with pytest.raises(BaseException, match="the process ended"):
        adapter.guard.settle_many([(opened[0], 1), (opened[1], 2)])

    assert [record.state for key in "ab" if (record := adapter.record(key))] == [State.COMPLETED] * 2


async def test_a_cancelled_batch_lets_its_keys_go():
    adapter = Adapter("async")
    adapter.plan.add(Fault("batch", "delay", when="after", seconds=30))
    task: asyncio.Task[Any] = asyncio.ensure_future(adapter.guard.begin_many([adapter.call("a"), adapter.call("b")]))
    await until_async(lambda: adapter.record("b"))
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert [record.state for key in "ab" if (record := adapter.record(key))] == [State.RELEASED] * 2
