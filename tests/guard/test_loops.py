"""Event loops: asyncio, trio and anyio on memory and SQLite; several loops at once; both colours on one key."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any

import anyio
import pytest
import trio

from samekey import AsyncGuard, Guard, InDoubt, Misconfigured, Policy, State, StoreUnavailable, current
from samekey.loops import running
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from tests.guard.helpers import (
    Ledger,
    Place,
    Thread,
    locked,
    outlived,
    raising,
    spied,
    start_asyncio,
    start_trio,
    together,
    until,
    until_async,
    writing,
)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_tasks_of_an_anyio_group_share_one_effect(place: Place, ledger: Ledger, backend: str):
    guard, results, called = place.async_guard(), list[int](), list[int]()

    async def effect():
        await until_async(lambda: len(called) == 20)
        return ledger.add()

    async def one():
        called.append(1)
        results.append((await guard.run("charge", effect, key="o-1", payload={})).result)

    async def main():
        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(one)

    anyio.run(main, backend=backend)
    assert results == [1] * 20


def test_tasks_of_a_trio_nursery_share_one_effect_and_others_have_their_own(place: Place, ledger: Ledger):
    guard, results, called = place.async_guard(), list[tuple[int, Any]](), list[int]()

    async def one(key: int):
        async def effect():
            await until_async(lambda: len(called) == 40)
            return ledger.add(key) and key

        called.append(key)
        results.append((key, (await guard.run("charge", effect, key=key, payload={})).result))

    async def main():
        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(one, number % 4)

    trio.run(main)
    assert sorted(ledger.entries) == [0, 1, 2, 3]
    assert all(key == result for key, result in results)
    assert len(results) == 40


def test_trio_on_sqlite_waits_for_another_guard_without_polling_it_to_death(sqlite: Place, ledger: Ledger):
    """A waiter in trio is woken by a commit of another connection."""
    holder = sqlite.guard()
    held = holder.hold("charge", key="o-1", payload={})
    waiter = Thread(lambda: sqlite.side("trio").run("charge", ledger.add, key="o-1", payload={}))
    with held:
        held.complete("held")

    assert waiter.result().result == "held"


def test_two_threads_each_with_a_loop_of_their_own_share_one_asyncguard(place: Place, ledger: Ledger):
    guard, called = place.async_guard(), list[int]()

    async def many(number: int):
        called.append(number)

        async def effect():
            await until_async(lambda: len(called) == 3)
            return ledger.add()

        calls = [guard.run("charge", effect, key=f"k{key}", payload={}) for key in range(10) for _ in range(3)]
        return [answer.result for answer in await asyncio.gather(*calls)]

    one, other, third = together(3, lambda number: asyncio.run(many(number)))

    assert one == other == third
    assert len(ledger) == 10


def test_a_follower_in_another_loop_is_woken(place: Place):
    """The one who flies is in one thread's loop, the follower in another's."""
    guard = place.async_guard()
    inside, go = threading.Event(), threading.Event()

    async def effect():
        inside.set()
        while not go.is_set():
            await asyncio.sleep(0.001)
        return "flown"

    async def main():
        return await guard.run("charge", effect, key="o-1", payload={})

    first = Thread(lambda: asyncio.run(main()))
    assert inside.wait(5)
    second = Thread(lambda: trio.run(main))
    until(lambda: any(flight.bells for flight in guard._flights._flying.values()))
    go.set()

    assert first.result().result == second.result().result == "flown"


def test_sync_and_async_callers_of_one_key_share_one_sqlite_file(sqlite: Place, ledger: Ledger):
    plain, awaited, third = sqlite.side("sync"), sqlite.side("asyncio"), sqlite.side("trio")
    sides = [plain, awaited, third] * 4

    for key in range(3):
        answers = together(12, lambda n, key=key: sides[n].run("charge", ledger.add, key=key, payload={}).result)  # type: ignore[misc]
        assert answers == [key + 1] * 12
    assert len(ledger) == 3


def test_sync_and_async_callers_of_one_key_share_one_memory(ledger: Ledger):
    store = MemoryStore()
    plain, awaited = Guard(store), AsyncGuard(AsyncMemoryStore(store))

    async def effect():
        return ledger.add()

    def one(number: int) -> int:
        if number % 2:
            return plain.run("charge", ledger.add, key="o-1", payload={}).result
        return int(asyncio.run(_run(awaited, effect)).result)

    assert together(10, one) == [1] * 10
    assert len(ledger) == 1


async def _run(guard: AsyncGuard, effect: Any) -> Any:
    return await guard.run("charge", effect, key="o-1", payload={})


def test_an_asyncguard_used_by_one_loop_after_another(place: Place, ledger: Ledger):
    """asyncio.run() per job, as scripts and task queues do; nothing is left in the loop that ended."""
    guard = place.async_guard(policy=Policy(lease=1.0))

    async def effect():
        await until_async(outlived(place, "charge", current().key))  # renewals need the loop
        return ledger.add()

    for start in (start_asyncio, start_asyncio):
        for key in range(2):
            start(lambda key=key: guard.run("charge", effect, key=key, payload={}))  # type: ignore[misc]
    start_trio(lambda: guard.run("charge", effect, key=0, payload={}))

    assert len(ledger) == 2


# -- cancelled while claiming -------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_cancelled_in_the_middle_of_the_claim_nothing_is_held(sqlite: Place, ledger: Ledger, backend: str):
    """Somebody else writes; our claim is in the queue when we are cancelled. It gets through, and is let go."""
    guard = sqlite.async_guard()

    async def effect():
        return ledger.add()

    async def main():
        with locked(sqlite.path) as other, anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: guard.run("charge", effect, key="o-1", payload={}))
                await until_async(lambda: writing(guard))
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    await anyio.wait_all_tasks_blocked()  # the cancellation has reached the call
                    other.execute("ROLLBACK")
        return await guard.run("charge", effect, key="o-1", payload={})

    answer = anyio.run(main, backend=backend)

    assert (answer.result, answer.replayed, len(ledger)) == (1, False, 1)


async def test_cancelled_while_waiting_for_another_holder_changes_nothing(place: Place):
    held = place.guard().hold("charge", key="o-1", payload={})
    spy = spied(place.async_store())
    guard = AsyncGuard(spy)

    async def effect(): ...

    task = asyncio.create_task(guard.run("charge", effect, key="o-1", payload={}))
    await until_async(lambda: spy.count("wait"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    with held:
        held.complete("held")
    assert (await guard.run("charge", effect, key="o-1", payload={})).result == "held"


@pytest.mark.parametrize("verb", ["open", "settle"])
async def test_a_coroutine_thrown_away_while_the_store_answers_goes_quietly(memory: Place, verb: str):
    """A loop that is torn down closes its coroutines: GeneratorExit must not be answered with another await."""

    store = memory.async_store()
    carry_out = store.carry_out

    async def hangs(command):
        if command.verb == verb:
            await asyncio.get_running_loop().create_future()
        return await carry_out(command)

    async def effect(): ...

    store.carry_out = hangs
    running = AsyncGuard(store).run("charge", effect, key="o-1", payload={})
    running.send(None)  # now it waits for the store
    running.close()

    record = memory.look("charge", "o-1")
    assert record is None or record.state is State.STARTED  # abandoned, not failed: the lease speaks


async def test_a_cancellation_is_not_swallowed_when_the_store_fails_at_the_same_moment(place: Place):
    """Cancelled in the middle of settling, and the repeated write fails too: the task must still end cancelled."""
    spy = spied(place.async_store())
    guard = AsyncGuard(spy, policy=Policy(lease=0.2))

    def cancelled_then_down(command):
        spy.before["settle"] = raising(StoreUnavailable("down"))
        raise asyncio.CancelledError

    spy.before["settle"] = cancelled_then_down

    async def effect():
        return "done"

    with pytest.raises(asyncio.CancelledError):
        await guard.run("charge", effect, key="o-1", payload={})


def test_an_interrupt_is_not_swallowed_when_the_store_fails_at_the_same_moment(place: Place):
    """Ctrl-C in the middle of settling, and the store is down: Ctrl-C still comes out."""
    spy = spied(place.store())
    guard = Guard(spy, policy=Policy(lease=0.2))

    def interrupted_then_down(command):
        spy.before["settle"] = raising(StoreUnavailable("down"))
        raise KeyboardInterrupt

    spy.before["settle"] = interrupted_then_down
    with pytest.raises(KeyboardInterrupt):
        guard.run("charge", lambda: "done", key="o-1", payload={})


def test_an_interrupt_in_the_middle_of_the_claim_lets_the_key_go(place: Place, ledger: Ledger):
    spy = spied(place.store())
    guard = Guard(spy)
    spy.after["open"] = raising(KeyboardInterrupt(), times=1)

    with pytest.raises(KeyboardInterrupt):
        guard.run("charge", ledger.add, key="o-1", payload={})

    assert place.peek("charge", "o-1").state is State.RELEASED
    assert guard.run("charge", ledger.add, key="o-1", payload={}).result == 1


def test_an_interrupt_in_the_middle_of_the_settle_still_settles(place: Place, ledger: Ledger):
    spy = spied(place.store())
    guard = Guard(spy)
    spy.after["settle"] = raising(KeyboardInterrupt(), times=1)

    with pytest.raises(KeyboardInterrupt):
        guard.run("charge", ledger.add, key="o-1", payload={})
    assert guard.run("charge", ledger.add, key="o-1", payload={}).replayed


async def test_a_cancellation_that_meets_the_claims_reply_does_not_start_the_effect(sqlite: Place, ledger: Ledger):
    """The claim is committed and the cancellation arrives in the same turn of the loop: nobody waits for an answer
    any more, so nothing may be charged."""
    guard = sqlite.async_guard()

    async def effect():
        return ledger.add()

    for number in range(30):
        task = asyncio.create_task(guard.run("charge", effect, key=number, payload={}))
        until_turn = number % 6
        for _ in range(until_turn):
            await asyncio.sleep(0)
        task.cancel()
        before = len(ledger)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(ledger) == before


async def test_wait_for_and_timeout_around_a_guarded_call_mean_what_they_say(place: Place, ledger: Ledger, monkeypatch):
    """The loop's clock jumps past the time-out when the effect runs, so no machine is too slow for it."""
    guard, loop = place.async_guard(), asyncio.get_running_loop()
    real, passed = loop.time, [0.0]
    monkeypatch.setattr(loop, "time", lambda: real() + passed[0])

    async def effect():
        ledger.add()
        passed[0] += 600.0
        await asyncio.sleep(3600)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(guard.run("charge", effect, key="a", payload={}), 300.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(300.0):
            await guard.run("charge", effect, key="b", payload={})
    for key in "ab":
        assert place.peek("charge", key).state is State.IN_DOUBT
        with pytest.raises(InDoubt):
            await guard.run("charge", effect, key=key, payload={})


async def test_the_loop_turns_while_another_process_holds_the_file(sqlite: Place):
    """A busy file must never block an event loop."""
    guard = sqlite.async_guard()
    turns = 0

    async def effect():
        return 1

    await guard.run("charge", effect, key="warm", payload={})
    with locked(sqlite.path) as other:
        task = asyncio.create_task(guard.run("charge", effect, key="o-1", payload={}))
        await until_async(lambda: writing(guard))
        for _ in range(20):
            await asyncio.sleep(0)
            turns += 1
        assert not task.done()
        other.execute("ROLLBACK")
        assert (await task).result == 1
    assert turns == 20


async def test_a_bell_that_rings_as_its_waiter_is_cancelled_does_not_swallow_the_cancellation():
    """asyncio.wait_for of Python 3.11 returns the result instead of the cancellation when both come together."""
    from samekey.loops.asyncio import Asyncio

    for before in range(4):
        for after in range(4):
            bell = Asyncio().bell()
            task = asyncio.create_task(bell.wait(5))
            for _ in range(before):
                await asyncio.sleep(0)
            bell.ring()
            for _ in range(after):
                await asyncio.sleep(0)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task


async def test_waits_of_a_loop_end_in_the_order_of_their_timeouts_and_one_that_is_rung_first():
    from samekey.loops.asyncio import Asyncio

    woken = list[str]()

    async def sleep(name: str, bell: Any, timeout: float | None) -> None:
        await bell.wait(timeout)
        woken.append(name)

    rung = Asyncio().bell()
    timeouts = {"third": 0.06, "first": 0.02, "fourth": 0.08, "second": 0.04}
    tasks = [asyncio.create_task(sleep(name, Asyncio().bell(), timeout)) for name, timeout in timeouts.items()]
    tasks.append(asyncio.create_task(sleep("rung", rung, 30.0)))
    await asyncio.sleep(0)
    rung.ring()
    await asyncio.gather(*tasks)

    assert woken == ["rung", "first", "second", "third", "fourth"]


async def test_a_wait_that_was_rung_leaves_no_timer():
    """A thousand waits with a long patience, each over at once: what the loop keeps of them stays small."""
    from samekey.loops.asyncio import Asyncio

    for _ in range(1000):
        bell = Asyncio().bell()
        waiting = asyncio.create_task(bell.wait(3600.0))
        await asyncio.sleep(0)
        bell.ring()
        await waiting

    timers: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    assert all(timer.cancelled() for timer in timers)
    assert len(timers) < 300  # asyncio drops cancelled ones together, from a hundred on


async def test_cancelled_again_and_again_while_it_settles_it_still_settles(sqlite: Place):
    guard, inside = sqlite.async_guard(), asyncio.Event()

    async def effect():
        inside.set()
        await asyncio.sleep(60)

    assert sqlite.look("charge", "o-1") is None
    task = asyncio.create_task(guard.run("charge", effect, key="o-1", payload={}))
    await inside.wait()
    with locked(sqlite.path):
        for _ in range(5):
            task.cancel()
            await anyio.wait_all_tasks_blocked()
        assert not task.done()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert sqlite.peek("charge", "o-1").state is State.IN_DOUBT


def test_a_loop_that_ends_while_a_task_settles_does_not_lose_the_answer(sqlite: Place, ledger: Ledger):
    """asyncio.run() cancels what is left; the write is already in the queue, and the file is locked until then."""
    guard = sqlite.async_guard()

    async def unlock_when_cancelled(other):
        try:
            await asyncio.Event().wait()
        finally:
            other.execute("ROLLBACK")

    async def main(other):
        async def effect():
            other.execute("BEGIN IMMEDIATE")
            return ledger.add()

        tasks = [
            asyncio.create_task(guard.run("charge", effect, key="o-1", payload={})),
            asyncio.create_task(unlock_when_cancelled(other)),
        ]
        await until_async(lambda: len(ledger) and writing(guard))
        assert not tasks[0].done()
        return tasks

    assert sqlite.look("charge", "o-1") is None
    with locked(sqlite.path) as other:
        other.execute("ROLLBACK")
        asyncio.run(main(other))
        until(lambda: sqlite.peek("charge", "o-1").state is State.COMPLETED)
    assert sqlite.guard().run("charge", ledger.add, key="o-1", payload={}).result == 1


def test_a_word_said_in_a_cancelled_trio_scope_is_kept(place: Place):
    """The caller hears that it was cancelled; the key hears what the effect knew."""
    from samekey import NotDone

    guard = place.async_guard()

    async def main():
        with trio.CancelScope() as scope:

            async def effect():
                scope.cancel()
                raise NotDone("declined")

            with contextlib.suppress(NotDone):
                await guard.run("charge", effect, key="o-1", payload={})

    trio.run(main)
    assert place.peek("charge", "o-1").state is State.RELEASED


@pytest.mark.parametrize("address", ["redis://127.0.0.1:1", "postgresql://127.0.0.1:1/shop"])
def test_a_store_that_knows_only_asyncio_says_so_under_trio(address):
    async def call() -> None:
        async def effect() -> int:
            raise AssertionError("nobody claimed it")

        await AsyncGuard(address).run("charge", effect, key="o-1", payload={})

    with pytest.raises(Misconfigured, match="asyncio only"):
        trio.run(call)


def test_what_is_started_in_a_trio_run_that_ends_says_so_and_does_not_end_it_with_an_error():
    """A lease that was due while its effect blocked the loop is renewed in there when the effect is long over."""
    started: list[Any] = []

    async def renew() -> str:
        return "renewed"

    async def main() -> str:
        started.append(running().start(renew))
        return "done"

    for _ in range(30):  # whether it comes in time is trio's to choose
        assert trio.run(main) == "done"
    assert {one.exception() is None or type(one.exception()) for one in started} <= {True, RuntimeError, trio.Cancelled}


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://app@127.0.0.1:1/shop",
        "redis://127.0.0.1:1/0",
        "redis://127.0.0.1:1/0 postgresql://app@127.0.0.1:1/shop",
    ],
)
def test_a_store_that_knows_asyncio_alone_says_so_on_trio(address: str):
    """Also where the guard is left: its closing must not be what one hears of it."""

    async def effect(): ...

    async def main():
        async with AsyncGuard(address) as guard:
            await guard.run("charge", effect, key="o-1", payload={})

    with pytest.raises(Misconfigured, match="runs on asyncio only; under trio there are memory, SQLite and MySQL"):
        trio.run(main)
