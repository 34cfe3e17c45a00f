"""One shared timer keeps the leases of live holders; a lost one is known to its holder."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from functools import partial
from typing import Any

import pytest

from samekey import (
    Answer,
    AsyncGuard,
    Fenced,
    Guard,
    Held,
    InDoubt,
    InProgress,
    NotDone,
    Policy,
    Repeatable,
    State,
    StoreUnavailable,
    current,
)
from tests.guard.helpers import (
    SOON,
    Ledger,
    Place,
    Thread,
    outlived,
    raising,
    spied,
    spied_side,
    until,
    until_async,
)

SHORT_SECONDS = 0.6
SHORT = Policy(lease=SHORT_SECONDS, patience=0)


def test_an_effect_longer_than_its_lease_is_not_taken_over_while_its_holder_lives(
    place: Place, colour: str, ledger: Ledger
):
    side, other = place.side(colour, policy=SHORT), place.side(colour, policy=SHORT)
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(SOON)
        return ledger.add("first")

    first = Thread(lambda: side.run("charge", effect, key="o-1", payload={}, boundary=Repeatable()))
    assert inside.wait(5)
    lease_ended = outlived(place, "charge", "o-1")

    def refused_until_then() -> bool:
        with pytest.raises(InProgress):
            other.run("charge", lambda: ledger.add("second"), key="o-1", payload={}, boundary=Repeatable())
        return lease_ended()

    until(refused_until_then, every=0.05)
    go.set()

    assert first.result().replayed is False
    assert ledger.entries == ["first"]


async def test_an_effect_that_blocks_the_event_loop_keeps_its_lease(place: Place):
    """The timer is a thread of its own: a blocked loop is a bug of the effect, not a second effect."""
    guard = place.async_guard(policy=SHORT)
    other = place.guard(policy=SHORT)

    async def effect():
        until(outlived(place, "charge", "o-1"))
        with pytest.raises(InProgress):
            other.run("charge", int, key="o-1", payload={}, boundary=Repeatable())
        return "first"

    assert (await guard.run("charge", effect, key="o-1", payload={}, boundary=Repeatable())).result == "first"


async def test_a_store_without_a_sync_twin_is_renewed_in_the_holders_loop(place: Place):
    """As the stores of servers will be."""
    spy = spied(place.async_store())
    guard = AsyncGuard(spy, policy=SHORT)

    async def effect():
        await until_async(outlived(place, "charge", "o-1"))
        return place.peek("charge", "o-1").lease_live

    assert (await guard.run("charge", effect, key="o-1", payload={})).result is True
    assert spy.count("renew") >= 2


def test_a_blocked_loop_does_not_cost_the_holds_of_another_their_leases(place: Place):
    """Both on a store without a sync twin: the one loop cannot renew, and the other must not wait for it."""
    spy = spied(place.async_store())
    guard = AsyncGuard(spy, policy=Policy(lease=1.5, patience=0))
    blocked, go, inside = threading.Event(), threading.Event(), list[int]()

    async def many() -> None:
        async def effect(number: int) -> None:
            inside.append(number)
            while len(inside) < 8:
                await asyncio.sleep(0)
            blocked.set()
            assert go.wait(20)  # somebody's blocking call

        calls = [guard.run("blocked", partial(effect, n), key=n, payload={}) for n in range(8)]
        await asyncio.gather(*calls, return_exceptions=True)

    async def one() -> bool:
        async def effect() -> bool:
            await until_async(outlived(place, "charge", "o-1"))
            return place.peek("charge", "o-1").lease_live

        return bool((await guard.run("charge", effect, key="o-1", payload={})).result)

    other = Thread(lambda: asyncio.run(many()))
    assert blocked.wait(5)
    live = Thread(lambda: asyncio.run(one())).result(20)
    go.set()
    other.result()
    assert live


def test_what_is_left_in_a_loop_that_is_closed_is_renewed_no_more(place: Place, ledger: Ledger):
    """Nobody will ever go on with it, also where a set of background tasks has it: neither key nor close() waits."""
    guard, other = place.async_guard(policy=SHORT), place.guard(policy=SHORT)
    background: set[asyncio.Task[Any]] = set()

    async def never():
        ledger.add("third")

    async def leave():
        inside = asyncio.Event()

        async def effect():
            ledger.add("first")
            inside.set()
            await asyncio.get_running_loop().create_future()

        background.add(asyncio.ensure_future(guard.run("charge", effect, key="o-1", payload={})))
        await inside.wait()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()

    with pytest.raises(InDoubt):
        other.run("charge", lambda: ledger.add("second"), key="o-1", payload={}, policy=Policy(lease=0.3, patience=5))
    with pytest.raises(InDoubt):
        asyncio.run(guard.run("charge", never, key="o-1", payload={}))
    asyncio.run(guard.close())
    with pytest.raises(StoreUnavailable):  # shut: nothing seems to be under way
        asyncio.run(guard.peek("charge", "o-1"))
    assert ledger.entries == ["first"]
    left = background.pop()
    left._log_destroy_pending = False  # type: ignore[attr-defined]


def test_the_deadline_moves_with_each_renewal(place: Place):
    guard = place.guard(policy=SHORT)
    seen = []

    def effect():
        held = current()
        seen.append(held.deadline)
        until(lambda: held.deadline > seen[0])
        assert 0 < held.seconds_left <= 0.9 * SHORT_SECONDS
        return held.lost

    assert guard.run("charge", effect, key="o-1", payload={}).result is False


def test_a_renewal_that_fails_is_tried_again_before_the_lease_is_lost(place: Place):
    side, spy = spied_side(place, "sync", policy=Policy(lease=0.6))
    spy.before["renew"] = raising(StoreUnavailable("down"), times=1)

    def effect():
        until(lambda: spy.count("renew") >= 3)
        return place.peek("charge", "o-1").lease_live

    assert side.run("charge", effect, key="o-1", payload={}).result is True


@pytest.mark.parametrize("claimed", ["open", "take"])
def test_an_effect_whose_claim_was_answered_after_its_lease_does_not_run(
    place: Place, colour: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, claimed: str
):
    """The reply was late, and by now another caller may believe that nothing happened and run it."""
    side, spy = spied_side(place, colour, policy=Policy(lease=30, patience=0))
    if claimed == "take":
        with pytest.raises(NotDone):
            side.run("charge", not_done, key="o-1", payload={})
    clock, late = time.monotonic, [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock() + late[0])
    spy.after[claimed] = lambda command: late.__setitem__(0, 28.0)  # a holder's own deadline is 27 s

    with pytest.raises(Fenced, match="answered so late that its lease had ended: nothing was run"):
        side.run("charge", ledger.add, key="o-1", payload={})
    spy.after.clear()

    assert len(ledger) == 0
    assert place.peek("charge", "o-1").state is State.RELEASED
    assert side.run("charge", ledger.add, key="o-1", payload={}).result == 1


def not_done() -> None:
    raise NotDone("funds")


def test_a_hold_that_is_lost_knows_it_and_is_renewed_no_more(place: Place):
    """The record went into doubt under the holder: renewing is refused, and nothing more is sent for it."""
    side, spy = spied_side(place, "sync", policy=SHORT)
    spy.before["renew"] = raising(StoreUnavailable("down"))
    other = place.guard(policy=Policy(patience=5))

    def renewals(key: str) -> int:
        return sum(1 for verb, command in list(spy.commands) if verb == "renew" and command.key.text == key)

    def effect():
        asked = {"key": "o-1", "payload": {}, "boundary": Repeatable()}
        answer = Thread(lambda: other.run("charge", lambda: "other", **asked)).result()
        spy.before.clear()
        until(lambda: current().lost)
        count = renewals("o-1")
        with side.guard.hold("charge", key="o-2", payload={}) as also:  # the same timer renews this one
            until(lambda: renewals("o-2") > 2)
            also.complete("done")
        assert renewals("o-1") == count
        return answer.result + " is not mine"

    answer = side.run("charge", effect, key="o-1", payload={}, boundary=Repeatable())
    assert (answer.result, answer.replayed) == ("other", True)


def test_one_thread_renews_all_and_goes_on_when_one_is_gone(place: Place):
    guard = place.guard(policy=SHORT)
    before = threading.active_count()
    go = threading.Event()
    inside = threading.Barrier(9)

    def effect():
        inside.wait(5)
        assert go.wait(5)

    threads = [
        Thread(lambda n=n: guard.run("charge", effect, key=n, payload={}))  # type: ignore[misc]
        for n in range(8)
    ]
    inside.wait(5)
    until(outlived(place, "charge", *map(str, range(8))))
    timers = [one for one in threading.enumerate() if one.name == "samekey-leases" and one.is_alive()]
    go.set()
    for thread in threads:
        thread.result()

    assert len(timers) <= max(1, before)  # other guards of this test run may have one; ours has one
    assert guard._leases._held == {}


def test_nothing_is_renewed_for_a_quick_effect(place: Place, colour: str):
    side, spy = spied_side(place, colour)
    for key in range(20):
        side.run("charge", lambda: 1, key=key, payload={})

    assert spy.count("renew") == 0
    assert spy.count("open") == spy.count("settle") == 20


def test_a_settled_hold_leaves_the_timer_whatever_its_end(place: Place):
    guard = place.guard(policy=SHORT)
    for error in (None, ValueError(), KeyboardInterrupt(), GeneratorExit()):

        def effect(error=error):
            if error is not None:
                raise error

        with contextlib.suppress(BaseException):
            guard.run("charge", effect, key=type(error).__name__, payload={})

    assert guard._leases._held == {}


def test_a_guard_that_is_closed_while_an_effect_runs_is_shut_when_that_is_settled(sqlite: Place):
    """It takes no new call; what runs keeps its lease and its store."""
    guard = Guard(sqlite.url, policy=SHORT)

    def effect():
        guard.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            guard.run("charge", int, key="o-2", payload={})
        until(lambda: not current().lost and sqlite.peek("charge", "o-1").version > 1)  # renewed
        return "done"

    answer = guard.run("charge", effect, key="o-1", payload={})
    assert (answer.result, answer.recorded) == ("done", True)
    assert sqlite.peek("charge", "o-1").state is State.COMPLETED
    with pytest.raises(StoreUnavailable, match="closed"):
        guard.peek("charge", "o-1")


def test_a_hold_and_a_batch_are_settled_too_in_a_guard_that_is_closed_meanwhile(sqlite: Place):
    guard = Guard(sqlite.url)
    held = guard.hold("charge", key="held", payload={})
    assert isinstance(held, Held)
    with held:
        guard.close()
        held.complete("done")
    assert held.answer is not None
    assert held.answer.recorded
    assert guard._shut

    guard = Guard(sqlite.url)
    answers = guard.run_many("charge", lambda one: guard.close(), [{"id": "a"}, {"id": "b"}], key="id")
    assert [isinstance(answer, Answer) and answer.recorded for answer in answers] == [True, True]
    assert guard._shut


async def test_an_async_guard_is_shut_when_the_last_effect_is_settled(sqlite: Place):
    guard, inside, go = AsyncGuard(sqlite.url), asyncio.Event(), asyncio.Event()

    async def effect() -> str:
        inside.set()
        await go.wait()
        return "done"

    running = asyncio.create_task(guard.run("charge", effect, key="o-1", payload={}))
    await inside.wait()
    await guard.close()
    go.set()

    assert (await running).recorded
    assert guard._shut
    assert sqlite.peek("charge", "o-1").state is State.COMPLETED


@pytest.mark.parametrize("way", ["released", "followed", "alias"])
def test_what_took_a_key_over_is_settled_too_in_a_guard_that_is_closed_meanwhile(sqlite: Place, way: str):
    """Closed at the worst moment: the effect is over, its word not yet said. Whoever took a key has no flight."""
    spy = spied(sqlite.store())
    guard = Guard(spy, policy=Policy(patience=10))
    inside, go, of_charge = threading.Event(), threading.Event(), {"order_id": "o-1"}

    def not_done():
        inside.set()
        assert go.wait(10)
        raise NotDone("funds")

    @guard.once(name="charge", key="order_id", aliases=["bill"] if way == "alias" else [])
    def charge(order_id):
        spy.before["settle"] = lambda command: Thread(guard.close).result()
        return "done"

    first = Thread(lambda: guard.run("bill" if way == "alias" else "charge", not_done, key="o-1", payload=of_charge))
    assert inside.wait(10)
    if way == "followed":
        second = Thread(lambda: charge.answer("o-1"))
        until(lambda: any(flight.bells for flight in guard._flights._flying.values()))
    go.set()
    assert isinstance(first.outcome(), NotDone)

    answer = second.result() if way == "followed" else charge.answer("o-1")
    assert (answer.result, answer.recorded, guard._shut) == ("done", True, True)


def test_a_hold_that_was_taken_is_settled_although_it_is_entered_after_the_close(sqlite: Place):
    guard = Guard(sqlite.url)
    with pytest.raises(NotDone):
        guard.run("charge", lambda: raising(NotDone("funds"))(None), key="o-1", payload={})
    held = guard.hold("charge", key="o-1", payload={})
    assert isinstance(held, Held)
    guard.close()
    with held:
        held.complete("done")

    assert held.answer is not None
    assert (held.answer.recorded, guard._shut) == (True, True)


@pytest.mark.parametrize("way", ["run", "run_many"])
def test_a_call_that_comes_while_the_guard_is_being_closed_is_refused_or_settled(sqlite: Place, way: str):
    """Looked at before the close, claimed after it: nothing runs whose answer could not be kept."""
    guard, ran = Guard(sqlite.url), list[Any]()
    guard.run("charge", int, key="warm", payload={})
    fly = "board" if way == "run" else "batch"
    boarding = getattr(guard._flights, fly)

    def board(*args):
        guard._closed = True  # as close() in another thread, which has just found nobody under way
        return boarding(*args)

    setattr(guard._flights, fly, board)
    if way == "run":
        with pytest.raises(StoreUnavailable, match="closed"):
            guard.run("charge", lambda: ran.append(1), key="o-1", payload={})
    else:
        (said,) = guard.run_many("charge", lambda one: ran.append(one), [{}], key=lambda one: "o-1")
        assert isinstance(said, StoreUnavailable)

    assert (ran, guard._shut) == ([], True)


def test_a_store_that_was_closed_is_not_insisted_on(sqlite: Place):
    """Closed under a guard that did not know: said at once, and not after a lease."""
    guard = Guard(sqlite.url, policy=Policy(lease=3600))

    def effect():
        guard.close()
        guard._shut = True
        guard._opened.close()
        return "done"

    answer = guard.run("charge", effect, key="o-1", payload={})
    assert (answer.result, answer.recorded) == ("done", False)
    assert sqlite.peek("charge", "o-1").state is State.STARTED


def timers() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name == "samekey-leases"}


def test_the_timer_of_a_guard_that_is_closed_ends_with_it(place: Place, colour: str):
    """A guard for each request or test: else there is a thread for each of the last half minute."""
    before = timers()
    side = place.side(colour)
    side.run("charge", lambda: 1, key="o-1", payload={})
    ours = timers() - before
    assert ours

    closing = side.guard.close()
    if closing is not None:
        asyncio.run(closing)
    until(lambda: not timers() & ours)


@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")  # of sqlite3, from Python 3.13 on
def test_a_guard_that_was_dropped_without_close_leaves_neither_thread_nor_store(sqlite: Place):
    """Its timer does not keep it alive, nor the store's connections."""
    before = timers()
    guard = Guard(sqlite.url)
    guard.run("charge", lambda: 1, key="o-1", payload={})
    ours, store = timers() - before, weakref.ref(guard.store)
    assert ours

    del guard
    gc.collect()
    until(lambda: not timers() & ours)
    assert store() is None


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has no thread left for us: a limit of the container, or an interpreter that shuts down."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("samekey-"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)


@pytest.mark.parametrize("colour", ["sync", "asyncio"])
def test_where_no_thread_can_be_started_an_effect_has_its_lease_as_it_is(
    memory: Place, colour: str, ledger: Ledger, no_threads: None, caplog: pytest.LogCaptureFixture
):
    """Nothing is wrong with it: in doubt it would be for a person, although nothing had run."""
    answer = memory.side(colour).run("charge", ledger.add, key="o-1", payload={})

    assert (answer.state, len(ledger)) == (State.COMPLETED, 1)
    assert "cannot start the thread that renews leases" in caplog.text


def test_on_sqlite_too_and_who_waits_there_looks_by_itself(sqlite: Place, no_threads: None):
    guard, other = sqlite.guard(), sqlite.guard(policy=Policy(patience=20))
    held = guard.hold("charge", key="o-1", payload={})
    assert isinstance(held, Held)
    waiting = Thread(lambda: other.run("charge", int, key="o-1", payload={}))
    with held:
        held.complete("done")

    assert waiting.result().result == "done"


def test_a_claim_that_no_thread_could_be_started_for_is_not_made_later(
    sqlite: Place, ledger: Ledger, no_threads: None, monkeypatch: pytest.MonkeyPatch
):
    """Its caller has gone: whoever comes next would find a hold of nobody's."""
    side = sqlite.side("asyncio")
    with pytest.raises(StoreUnavailable, match="no thread"):
        side.run("charge", ledger.add, key="o-1", payload={})
    monkeypatch.undo()

    assert side.run("other", int, key="o-2", payload={}).result == 0
    assert sqlite.look("charge", "o-1") is None
    assert side.run("charge", ledger.add, key="o-1", payload={}).replayed is False
