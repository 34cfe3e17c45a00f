"""Claim, lease, fence: one effect per key, whoever calls and however many (CHALLENGES 3a)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

import samekey
from samekey import (
    AsyncGuard,
    Fenced,
    Guard,
    InDoubt,
    InProgress,
    Keyed,
    NotDone,
    Opaque,
    Policy,
    Repeatable,
    State,
)
from samekey.core.commands import Free, Read
from samekey.core.key import make_key
from tests.guard.helpers import (
    Child,
    FileLedger,
    Ledger,
    Place,
    Seen,
    Side,
    Signal,
    Thread,
    locked,
    spied_side,
    together,
    until,
)

SHORT = Policy(lease=0.3, patience=5)


# -- C01 and C17: many at once ---------------------------------------------------------------------------------


def test_c01_threads_with_one_key_have_one_effect_and_equal_answers(side: Side, ledger: Ledger):
    answers = together(16, lambda number: side.run("charge", ledger.add, key="o-1", payload={"amount": 200}))

    assert len(ledger) == 1
    assert [answer.result for answer in answers] == [1] * 16
    assert [answer.replayed for answer in answers].count(False) == 1


async def test_c01_tasks_with_one_key_have_one_effect_and_equal_answers(place: Place, ledger: Ledger):
    guard = place.async_guard()

    async def effect():
        await asyncio.sleep(0)
        return ledger.add()

    answers = await asyncio.gather(*(guard.run("charge", effect, key="o-1", payload={}) for _ in range(50)))

    assert len(ledger) == 1
    assert {answer.result for answer in answers} == {1}
    assert sum(not answer.replayed for answer in answers) == 1


def test_c01_guards_that_know_nothing_of_each_other_have_one_effect(place: Place, colour: str, ledger: Ledger):
    """Without a common flight the store alone decides: each thread has a guard of its own."""
    sides = [place.side(colour) for _ in range(8)]

    answers = together(8, lambda number: sides[number].run("charge", ledger.add, key="o-1", payload={}))

    assert len(ledger) == 1
    assert [answer.result for answer in answers] == [1] * 8


def test_c01_processes_with_one_key_have_one_effect(sqlite: Place, shared_ledger: FileLedger):
    start = Signal()

    def work() -> list[str]:
        start.wait()
        with Guard(sqlite.url) as guard:
            return [
                guard.run("charge", lambda k=key: shared_ledger.add(f"o-{k}"), key=key, payload={}).result  # type: ignore[misc]
                for key in range(20)
            ]

    children = [Child(work) for _ in range(6)]
    for _ in children:
        start.send()
    answers = [child.result() for child in children]
    start.close()

    assert sorted(shared_ledger.entries) == sorted(f"o-{key}" for key in range(20))
    assert all(answer == [f"o-{key}" for key in range(20)] for answer in answers)


def test_c17_threads_of_one_process_and_another_process_share_one_key(sqlite: Place, shared_ledger: FileLedger):
    def work() -> list[str]:
        with Guard(sqlite.url) as guard:
            answers = together(6, lambda number: guard.run("charge", shared_ledger.add, key="o-1", payload={}))
        return [answer.result for answer in answers]

    children = [Child(work) for _ in range(3)]
    results = [result for child in children for result in child.result()]

    assert results == ["effect"] * 18
    assert len(shared_ledger) == 1


# -- C02, C07, C08: between looking and writing ----------------------------------------------------------------


def test_c02_a_loser_that_saw_the_key_absent_replays_the_winner(sqlite: Place, colour: str, ledger: Ledger):
    """The read is a short cut, never permission: the winner commits between the loser's read and its write."""
    winner, loser = sqlite.guard(), sqlite.side(colour)
    store = getattr(loser.guard.store, "sync", loser.guard.store)
    with locked(sqlite.path) as connection:
        second = Thread(lambda: loser.run("charge", ledger.add, key="o-1", payload={}))
        until(lambda: store._process.turn.locked())  # it has read, and waits to write
        winner.on(connection).run("charge", ledger.add, key="o-1", payload={})
        connection.execute("COMMIT")

    answer = second.result()
    assert (answer.replayed, answer.result, len(ledger)) == (True, 1, 1)


@pytest.mark.parametrize("verb", ["settle", "take"])
def test_c07_a_takeover_replays_a_holder_that_completed_meanwhile(still: Place, colour: str, ledger: Ledger, verb):
    """B reads an orphan; before B writes, A completes: B gets A's answer, and A's record is not overwritten."""
    assert still.clock is not None
    a = still.guard()
    b, spy = spied_side(still, colour)
    held = a.hold("charge", key="o-1", payload={}, boundary=Repeatable())
    still.clock.advance(31)

    def a_completes(command):
        spy.before.clear()
        with held:
            held.complete(ledger.add("a"))

    spy.before[verb] = a_completes
    if verb == "take":
        # The doubt is already written, and B is about to take it over.
        with pytest.raises(InDoubt):
            still.side(colour).run("charge", ledger.add, key="o-1", payload={}, boundary=Opaque())
    answer = b.run("charge", ledger.add, key="o-1", payload={}, boundary=Repeatable())

    assert (answer.result, answer.replayed) == (1, True)
    assert ledger.entries == ["a"]
    assert still.peek("charge", "o-1").settled_by == held.attempt


def test_c08_claiming_is_one_step_so_nobody_comes_in_between(place: Place, colour: str, ledger: Ledger):
    """Right after the claim, before the effect: a second worker finds the key taken, and the first one settles."""
    second = place.side("sync")
    met: list[object] = []

    def hook(event):
        if event.name == "claimed":
            try:
                second.run("charge", ledger.add, key="o-1", payload={}, policy=Policy(patience=0))
            except InProgress as error:
                met.append(error)

    first = place.side(colour, hooks=[hook])
    answer = first.run("charge", ledger.add, key="o-1", payload={})

    assert len(met) == 1
    assert (len(ledger), answer.replayed, place.peek("charge", "o-1").state) == (1, False, State.COMPLETED)


# -- C03 and C04: the holder outlives its lease ----------------------------------------------------------------


@pytest.mark.parametrize("boundary", [Opaque(), Keyed(), Repeatable()], ids=["opaque", "keyed", "repeatable"])
def test_c03_two_holders_never_give_two_different_answers(still: Place, colour: str, ledger: Ledger, boundary):
    """The first holder is so slow that its lease ends; whatever both are told afterwards, it is the same."""
    assert still.clock is not None
    slow, quick = still.side(colour), still.side(colour)
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(5)
        return ledger.add("slow")

    first = Thread(lambda: slow.run("charge", effect, key="o-1", payload={}, boundary=boundary))
    assert inside.wait(5)
    still.clock.advance(31)
    second = Thread(lambda: quick.run("charge", lambda: ledger.add("quick"), key="o-1", payload={}, boundary=boundary))
    outcome = second.outcome()
    go.set()
    late = first.result()
    third = quick.run("charge", ledger.add, key="o-1", payload={}, boundary=boundary)

    if isinstance(boundary, Opaque):
        assert isinstance(outcome, InDoubt)
        assert ledger.entries == ["slow"]
    else:
        assert ledger.entries == ["quick", "slow"]  # the boundary allows the second: the provider dedups
        assert outcome.result == late.result == third.result == 1
    assert late.result == third.result
    assert third.replayed


@pytest.mark.parametrize("error", [NotDone("declined"), ValueError("bug")], ids=["not-done", "bug"])
def test_c04_a_zombie_that_fails_cannot_undo_the_winner(still: Place, colour: str, ledger: Ledger, error):
    assert still.clock is not None
    zombie, winner = still.side(colour), still.side(colour)
    inside, go = threading.Event(), threading.Event()

    def fails():
        inside.set()
        assert go.wait(5)
        raise error

    first = Thread(lambda: zombie.run("charge", fails, key="o-1", payload={}, boundary=Keyed()))
    assert inside.wait(5)
    still.clock.advance(31)
    won = winner.run("charge", ledger.add, key="o-1", payload={}, boundary=Keyed())
    before = still.peek("charge", "o-1")
    go.set()
    assert first.outcome() is error

    assert still.peek("charge", "o-1") == before
    third = zombie.run("charge", ledger.add, key="o-1", payload={}, boundary=Keyed())
    assert (third.result, third.replayed, len(ledger)) == (won.result, True, 1)


def test_c04_a_late_success_is_told_what_the_record_says_and_kept_as_evidence(still: Place, colour: str):
    """The late holder's own result goes into evidence; its caller hears the winner's."""
    assert still.clock is not None
    seen = Seen()
    slow, quick = still.side(colour, hooks=[seen]), still.side(colour)
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(5)
        return "late"

    first = Thread(lambda: slow.run("charge", effect, key="o-1", payload={}, boundary=Keyed()))
    assert inside.wait(5)
    still.clock.advance(31)
    quick.run("charge", lambda: "winner", key="o-1", payload={}, boundary=Keyed())
    go.set()
    answer = first.result()

    assert (answer.result, answer.replayed) == ("winner", True)
    evidence = still.peek("charge", "o-1").evidence
    assert [one.state for one in evidence] == [State.COMPLETED]
    assert "late" in seen.names


def test_a_late_success_while_the_next_holder_still_runs_is_fenced(still: Place, colour: str):
    """Nothing is settled yet, so there is no answer to give; the evidence is kept and adopted by nobody twice."""
    assert still.clock is not None
    slow, quick = still.side(colour, policy=Policy(patience=0.05)), still.guard()
    inside, go = threading.Event(), threading.Event()

    def effect():
        inside.set()
        assert go.wait(5)
        return "late"

    first = Thread(lambda: slow.run("charge", effect, key="o-1", payload={}, boundary=Keyed()))
    assert inside.wait(5)
    still.clock.advance(31)
    held = quick.hold("charge", key="o-1", payload={}, boundary=Keyed())
    go.set()
    with pytest.raises(Fenced):
        first.result()
    with held:
        held.complete("second")

    record = still.peek("charge", "o-1")
    assert record.state is State.COMPLETED
    assert [one.token < record.token for one in record.evidence] == [True]


# -- C06: killed -----------------------------------------------------------------------------------------------

KILLED = """
    import os, signal, sys
    from samekey import Guard, Keyed, Opaque, Policy, Repeatable

    url, path, boundary = sys.argv[1:]
    guard = Guard(url, policy=Policy(lease=0.3))

    def effect():
        with open(path, "ab", buffering=0) as file:
            file.write(b"effect\\n")
        os.kill(os.getpid(), signal.SIGKILL)

    guard.run("charge", effect, key="o-1", payload={}, boundary={"opaque": Opaque(), "keyed": Keyed()}[boundary])
"""


def killed_after_the_effect(place: Place, ledger: FileLedger, boundary: str) -> None:
    source = Path(samekey.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(KILLED), place.url, str(ledger.path), boundary],
        env={**os.environ, "PYTHONPATH": str(source)},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


def test_c06_killed_after_the_effect_it_is_in_doubt_and_never_runs_again_by_itself(
    sqlite: Place, colour: str, shared_ledger: FileLedger
):
    killed_after_the_effect(sqlite, shared_ledger, "opaque")
    side = sqlite.side(colour)

    for _ in range(2):
        with pytest.raises(InDoubt, match="samekey resolve charge o-1"):
            side.run("charge", shared_ledger.add, key="o-1", payload={})

    assert len(shared_ledger) == 1
    assert sqlite.peek("charge", "o-1").state is State.IN_DOUBT


def test_c06_killed_with_a_provider_that_dedups_it_runs_again_under_the_same_provider_key(
    sqlite: Place, shared_ledger: FileLedger
):
    killed_after_the_effect(sqlite, shared_ledger, "keyed")
    dead = sqlite.peek("charge", "o-1")

    answer = sqlite.guard().run(
        "charge", lambda: samekey.current().provider_key(), key="o-1", payload={}, boundary=Keyed()
    )

    assert answer.result == dead.provider_key()
    assert (answer.replayed, answer.attempts) == (False, 2)
    assert answer.token > dead.token


def test_c06_while_the_dead_holders_lease_lives_the_key_is_in_progress(sqlite: Place):
    """A waiter is not told a guess: it waits, and when the lease ends it is told the doubt."""
    inside = Signal()

    def dies():
        inside.send()
        os.kill(os.getpid(), signal.SIGKILL)

    longer = Policy(lease=3.0, patience=60.0)  # a busy machine takes a while to find out that the child has died
    child = Child(lambda: Guard(sqlite.url, policy=longer).run("charge", dies, key="o-1", payload={}))
    inside.wait()
    child.wait()
    inside.close()
    guard = sqlite.guard()

    with pytest.raises(InProgress) as told:
        guard.run("charge", int, key="o-1", payload={}, policy=Policy(patience=0))
    assert 0 < told.value.retry_after <= 3.0
    with pytest.raises(InDoubt):
        guard.run("charge", int, key="o-1", payload={}, policy=longer)


def test_c03_a_process_stopped_longer_than_its_lease_tells_the_truth_when_it_wakes(
    sqlite: Place, shared_ledger: FileLedger
):
    """SIGSTOP, the lease ends, somebody writes the doubt; SIGCONT: the late holder's word settles it."""
    inside, go = Signal(), Signal()

    def work() -> str:
        def effect() -> str:
            inside.send()
            go.wait()
            return shared_ledger.add("charged")

        return Guard(sqlite.url, policy=SHORT).run("charge", effect, key="o-1", payload={}).result

    child = Child(work)
    inside.wait()
    os.kill(child.pid, signal.SIGSTOP)
    guard = sqlite.guard()
    with pytest.raises(InDoubt):
        guard.run("charge", shared_ledger.add, key="o-1", payload={})
    os.kill(child.pid, signal.SIGCONT)
    go.send()
    assert child.result() == "charged"
    inside.close()
    go.close()

    answer = guard.run("charge", shared_ledger.add, key="o-1", payload={})
    assert (answer.result, answer.replayed, len(shared_ledger)) == ("charged", True, 1)


# -- C10 and C12: tokens and clocks ----------------------------------------------------------------------------


def test_c10_tokens_only_grow_across_release_doubt_expiry_and_free(still: Place, colour: str):
    assert still.clock is not None
    side, tokens = still.side(colour, policy=Policy(retention=3600 * 24)), list[int]()

    def told(error: Exception | None = None):
        tokens.append(samekey.current().token)
        if error is not None:
            raise error

    with pytest.raises(NotDone):
        side.run("charge", lambda: told(NotDone()), key="o-1", payload={}, boundary=Repeatable())
    with pytest.raises(ValueError):
        side.run("charge", lambda: told(ValueError()), key="o-1", payload={}, boundary=Repeatable())
    side.run("charge", told, key="o-1", payload={}, boundary=Repeatable())
    still.clock.advance(24 * 3600 + 1)
    side.run("charge", told, key="o-1", payload={}, boundary=Repeatable())
    still.clock.advance(1)
    store = still.store()
    store.carry_out(Free(store.carry_out(Read(make_key("charge", "o-1"))), "ann", "tests"))
    side.run("charge", told, key="o-1", payload={}, boundary=Repeatable())

    assert tokens == sorted(set(tokens))
    assert len(tokens) == 5


def test_c12_the_stores_clock_decides_not_the_callers(sqlite: Place, ledger: Ledger, monkeypatch):
    """A worker whose wall clock is ten minutes ahead does not see a live lease as dead; nor does one that is behind."""
    holder = sqlite.guard()
    held = holder.hold("charge", key="o-1", payload={})
    real = time.time

    for skew in (600.0, -600.0):
        monkeypatch.setattr(time, "time", lambda skew=skew: real() + skew)
        other = sqlite.guard(policy=Policy(patience=0))
        with pytest.raises(InProgress):
            other.run("charge", ledger.add, key="o-1", payload={}, boundary=Repeatable())
    monkeypatch.undo()

    with held:
        held.complete("done")
    assert len(ledger) == 0
    assert other.run("charge", ledger.add, key="o-1", payload={}, boundary=Repeatable()).result == "done"


def test_c12_a_token_never_falls_when_the_wall_clock_is_set_back(sqlite: Place, monkeypatch):
    guard = sqlite.guard()
    with pytest.raises(NotDone):
        guard.run("charge", lambda: (_ for _ in ()).throw(NotDone()), key="o-1", payload={})
    before = sqlite.peek("charge", "o-1").token
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)

    answer = sqlite.guard().run("charge", lambda: 1, key="o-1", payload={})

    assert answer.token > before


# -- C13: expired ----------------------------------------------------------------------------------------------


def test_c13_past_retention_two_callers_have_one_new_effect(still: Place, colour: str, ledger: Ledger):
    assert still.clock is not None
    sides = [still.side(colour, policy=Policy(retention=60)) for _ in range(8)]
    sides[0].run("charge", ledger.add, key="o-1", payload={})
    still.clock.advance(61)

    answers = together(8, lambda number: sides[number].run("charge", ledger.add, key="o-1", payload={}))

    assert len(ledger) == 2
    assert [answer.result for answer in answers] == [2] * 8


def test_c13_until_retention_ends_it_replays_and_a_new_payload_is_refused(still: Place, colour: str, ledger: Ledger):
    assert still.clock is not None
    side = still.side(colour, policy=Policy(retention=60))
    side.run("charge", ledger.add, key="o-1", payload={"amount": 1})
    still.clock.advance(59)

    assert side.run("charge", ledger.add, key="o-1", payload={"amount": 1}).replayed
    with pytest.raises(samekey.KeyReused):
        side.run("charge", ledger.add, key="o-1", payload={"amount": 2})
    still.clock.advance(2)
    assert not side.run("charge", ledger.add, key="o-1", payload={"amount": 2}).replayed


def test_a_doubt_and_a_hold_are_never_forgotten(still: Place, colour: str, ledger: Ledger):
    """However long ago: unknown stays unknown, and a dead hold becomes a doubt."""
    assert still.clock is not None
    side = still.side(colour, policy=Policy(retention=60))
    with pytest.raises(TimeoutError):
        side.run("charge", lambda: (_ for _ in ()).throw(TimeoutError()), key="doubt", payload={})
    dead = still.guard().hold("charge", key="held", payload={})
    still.clock.advance(10 * 365 * 24 * 3600)
    still.store().sweep(1000)

    for key in ("doubt", "held"):
        with pytest.raises(InDoubt):
            side.run("charge", ledger.add, key=key, payload={})
    assert len(ledger) == 0
    assert dead is not None  # kept until here: a hold that is dropped unentered is let go


# -- C15: nested -----------------------------------------------------------------------------------------------


def running() -> str:
    record = samekey.current().record
    assert record is not None
    return record.key.operation


def test_c15_a_guarded_function_inside_another_completes_its_own_record(place: Place):
    guard = place.guard()

    @guard.once(name="inner", key="order_id")
    def inner(order_id: str) -> str:
        return f"inner {order_id}"

    @guard.once(name="outer", key="order_id")
    def outer(order_id: str) -> str:
        assert running() == "outer"
        said = inner(order_id)
        assert running() == "outer"
        return f"outer of {said}"

    assert [outer("o-1"), outer("o-1"), inner("o-1")] == ["outer of inner o-1", "outer of inner o-1", "inner o-1"]
    assert {place.peek(name, "o-1").state for name in ("inner", "outer")} == {State.COMPLETED}


async def test_c15_the_same_awaited(place: Place):
    guard: AsyncGuard = place.async_guard()

    @guard.once(name="inner", key="order_id")
    async def inner(order_id: str) -> str:
        await asyncio.sleep(0)
        return f"inner {order_id}"

    @guard.once(name="outer", key="order_id")
    async def outer(order_id: str) -> str:
        said = await inner(order_id)
        assert running() == "outer"
        return f"outer of {said}"

    answers = await asyncio.gather(outer("o-1"), outer("o-1"), inner("o-1"))

    assert list(answers) == ["outer of inner o-1", "outer of inner o-1", "inner o-1"]
    assert {place.peek(name, "o-1").state for name in ("inner", "outer")} == {State.COMPLETED}
