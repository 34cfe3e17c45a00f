"""Batches: claims together, effects one after the other, each payload answered for itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sqlite3
import sys
import threading
from typing import Any

import anyio
import pytest

from samekey import (
    CONTENT,
    Absent,
    Asks,
    AsyncGuard,
    InDoubt,
    InProgress,
    KeyMissing,
    KeyReused,
    Misconfigured,
    NotDone,
    Opaque,
    Policy,
    Refused,
    State,
    StoreUnavailable,
)
from tests.guard.helpers import (
    Ledger,
    Place,
    Side,
    Thread,
    outlived,
    raising,
    spied,
    spied_side,
    until,
    until_async,
    writing,
)


def items(count: int) -> list[dict[str, int]]:
    return [{"id": number, "amount": 1} for number in range(count)]


def test_each_payload_has_one_effect_and_answers_come_in_order(place: Place, colour: str, ledger: Ledger):
    side, spy = spied_side(place, colour)

    first = side.run_many("charge", lambda one: ledger.add(one["id"]) and one["id"], items(70), key="id")
    again = side.run_many("charge", lambda one: ledger.add(one["id"]), items(70), key="id")

    assert [answer.result for answer in first] == [answer.result for answer in again] == list(range(70))
    assert ledger.entries == list(range(70))
    assert all(answer.replayed for answer in again)
    assert (spy.count("batch"), spy.count("open")) == (4, 0)  # 64 in one go, and the rest


def test_errors_stand_at_their_payloads_place(place: Place, side: Side):
    side.run("charge", lambda: "used", key="2", payload={"id": 2, "amount": 9})

    def effect(one):
        if one["id"] == 1:
            raise NotDone("funds")
        if one["id"] == 3:
            raise Refused("stolen")
        if one["id"] == 4:
            raise ValueError("bug")
        return one["id"]

    given = [*items(5), {"amount": 1}, {"id": object(), "amount": 1}, {"id": 9, "amount": object()}, {"id": 10}]
    answers = side.run_many("charge", effect, given, key="id")

    kinds = [type(answer).__name__ for answer in answers]
    assert kinds[:5] == ["Answer", "NotDone", "KeyReused", "Refused", "ValueError"]
    assert kinds[5:] == ["KeyMissing", "KeyMalformed", "PayloadRefused", "Answer"]
    assert isinstance(answers[2], KeyReused)
    assert isinstance(answers[5], KeyMissing)
    assert [place.peek("charge", str(n)).state for n in (0, 1, 3, 4)] == [
        State.COMPLETED,
        State.RELEASED,
        State.CLOSED,
        State.IN_DOUBT,
    ]


@pytest.mark.parametrize("wrong", [("account", "month"), ["account"], 5, None, b"account"], ids=repr)
def test_a_key_that_is_no_name_function_or_content_is_told_in_words(side: Side, wrong: Any):
    """Several names are a key of `once`; here a function makes one of them."""
    given = [{"account": "a", "month": 5}, Refused("any object")]

    for answer in side.run_many("charge", raising(AssertionError()), given, key=wrong):
        assert isinstance(answer, Misconfigured)
        assert type(wrong).__name__ in str(answer)


def test_one_key_twice_in_a_batch_has_one_effect(side: Side, ledger: Ledger):
    same, other = {"id": 1, "amount": 1}, {"id": 1, "amount": 2}

    answers = side.run_many("charge", lambda one: ledger.add(), [same, same, other, same], key="id")

    assert len(ledger) == 1
    assert [getattr(answer, "result", answer) for answer in answers[:2]] == [1, 1]
    assert isinstance(answers[2], KeyReused)
    assert answers[3].result == 1


def test_one_key_twice_in_a_batch_runs_again_when_the_first_was_not_done(side: Side, ledger: Ledger):
    def effect(one):
        if ledger.add() == 1:
            raise NotDone
        return "second"

    first, second = side.run_many("charge", effect, [{"id": 1}, {"id": 1}], key="id")

    assert isinstance(first, NotDone)
    assert second.result == "second"


def test_keys_by_function_content_and_attribute(side: Side, ledger: Ledger):
    class Order:
        def __init__(self, number: int) -> None:
            self.number = number

    side.run_many("function", lambda one: ledger.add(), items(2), key=lambda one: (one["id"], "x"))
    side.run_many("content", lambda one: ledger.add(), [{"a": 1}, {"a": 1}], key=CONTENT)
    answers = side.run_many("attribute", lambda one: ledger.add(), [Order(1)], key="number")

    assert len(ledger) == 3
    assert isinstance(answers[0], Exception)  # an object has a key, but no payload we could fingerprint


def test_an_empty_batch_asks_nobody(place: Place, colour: str):
    side, spy = spied_side(place, colour)

    assert side.run_many("charge", lambda one: one, [], key="id") == []
    assert spy.commands == []


def test_claims_of_a_batch_are_kept_alive_while_the_effects_before_them_run(place: Place, ledger: Ledger):
    guard, other = place.guard(policy=Policy(lease=0.6)), place.guard(policy=Policy(patience=0))
    met: list[Exception] = []

    def effect(one):
        if one["id"] == 0:
            until(outlived(place, "charge", "1"))
            met.append(Thread(lambda: other.run("charge", ledger.add, key=1, payload=items(2)[1])).outcome())
        return ledger.add(one["id"])

    answers = guard.run_many("charge", effect, items(2), key="id")

    assert [getattr(answer, "result", answer) for answer in answers] == [1, 2]
    assert [type(error) for error in met] == [InProgress]
    assert guard._leases._held == {}


async def test_claims_of_a_batch_are_kept_alive_on_a_store_without_a_sync_twin(place: Place, ledger: Ledger):
    guard = AsyncGuard(spied(place.async_store()), policy=Policy(lease=0.6))

    async def effect(one):
        if one["id"] == 0:
            await until_async(outlived(place, "charge", "1"))
            return place.peek("charge", "1").lease_live
        return ledger.add()

    first, second = await guard.run_many("charge", effect, items(2), key="id")

    assert first.result is True  # type: ignore[union-attr]
    assert second.result == 1  # type: ignore[union-attr]


def test_an_effect_may_need_what_its_batch_claimed_for_later(place: Place, ledger: Ledger):
    """As if they were run one by one: the later one runs where it is needed, and is replayed at its turn."""
    guard = place.guard(policy=Policy(patience=0))

    def ship(one):
        if one["id"] == 0:
            assert guard.run("ship", lambda: ship(items(3)[2]), key=2, payload=items(3)[2]).result == 2
        ledger.add(one["id"])
        return one["id"]

    answers = guard.run_many("ship", ship, items(3), key="id")

    assert [(answer.result, answer.replayed) for answer in answers] == [(0, False), (1, False), (2, True)]
    assert ledger.entries == [2, 0, 1]
    assert guard._leases._held == {}


async def test_an_effect_may_need_what_its_batch_claimed_for_later_awaited(place: Place, ledger: Ledger):
    guard = place.async_guard(policy=Policy(patience=0))

    async def ship(one):
        if one["id"] == 0:
            (inner,) = await guard.run_many("ship", ship, [items(3)[2]], key="id")
            assert inner.result == 2
        ledger.add(one["id"])
        return one["id"]

    answers = await guard.run_many("ship", ship, items(3), key="id")

    assert [(answer.result, answer.replayed) for answer in answers] == [(0, False), (1, False), (2, True)]
    assert ledger.entries == [2, 0, 1]


def test_what_an_effect_needed_and_left_undone_is_run_at_its_turn(place: Place, ledger: Ledger):
    guard = place.guard(policy=Policy(patience=0))

    def refuse():
        raise NotDone("not yet")

    def ship(one):
        if one["id"] == 0:
            with pytest.raises(NotDone):
                guard.run("ship", refuse, key=1, payload=items(2)[1])
        return ledger.add(one["id"])

    answers = guard.run_many("ship", ship, items(2), key="id")
    assert [answer.replayed for answer in answers] == [False, False]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit()], ids=repr)
def test_a_batch_that_is_interrupted_lets_go_what_it_had_not_run(place: Place, ledger: Ledger, interrupt):
    """The rest was claimed and never ran: it must neither stay held for ever nor become a doubt for a person."""
    guard, other = place.guard(policy=Policy(lease=0.3)), place.guard(policy=Policy(patience=2))

    def effect(one):
        raise interrupt

    with pytest.raises(type(interrupt)):
        guard.run_many("charge", effect, items(3), key="id")

    assert place.peek("charge", "0").state is State.IN_DOUBT
    assert guard._leases._held == {}
    for number in (1, 2):
        assert other.run("charge", ledger.add, key=number, payload=items(3)[number]).result == number


async def test_a_batch_that_is_cancelled_lets_go_what_it_had_not_run(place: Place, ledger: Ledger):
    guard, other = place.async_guard(policy=Policy(lease=0.3)), place.guard(policy=Policy(patience=2))
    inside = asyncio.Event()

    async def effect(one):
        inside.set()
        await asyncio.sleep(60)

    task = asyncio.create_task(guard.run_many("charge", effect, items(3), key="id"))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert guard._leases._held == {}
    for number in (1, 2):
        assert other.run("charge", ledger.add, key=number, payload=items(3)[number]).result == number


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_batch_that_is_cancelled_while_it_claims_leaves_no_claim(sqlite: Place, ledger: Ledger, loop: str):
    """The claims are in the writer's queue when we are cancelled; they get through, and nobody will run them."""
    guard = sqlite.async_guard(policy=Policy(lease=0.3))

    async def effect(one=None):
        return ledger.add()

    async def main():
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: guard.run_many("charge", effect, items(3), key="id"))
                await until_async(lambda: writing(guard))
                scope.cancel()
                with anyio.CancelScope(shield=True):
                    await anyio.wait_all_tasks_blocked()  # the cancellation has reached the batch
                    other.execute("ROLLBACK")
        await guard.run("charge", effect, key="after the others in the queue", payload={})

    with contextlib.closing(sqlite3.connect(sqlite.path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        anyio.run(main, backend=loop)
    late = sqlite.guard(policy=Policy(patience=2))

    for number in range(3):
        assert late.run("charge", ledger.add, key=number, payload=items(3)[number]).result == number + 2


def test_a_store_that_is_down_refuses_every_payload_and_run_runs_them(place: Place, colour: str, ledger: Ledger):
    """store_down means the same for a batch as for a call."""
    refusing, spy = spied_side(place, colour)
    spy.before["batch"] = raising(StoreUnavailable("down"))
    outcome = Thread(lambda: refusing.run_many("charge", lambda one: ledger.add(), items(2), key="id")).outcome()
    told = outcome if isinstance(outcome, list) else [outcome]
    assert all(isinstance(one, StoreUnavailable) for one in told)
    assert len(ledger) == 0

    running, spy = spied_side(place, colour, policy=Policy(store_down="run"))
    spy.before["batch"] = raising(StoreUnavailable("down"))
    answers = running.run_many("charge", lambda one: ledger.add(), items(2), key="id")
    assert [(answer.result, answer.guarded) for answer in answers] == [(1, False), (2, False)]


def test_two_batches_over_the_same_keys_have_one_effect_each(place: Place, colour: str, ledger: Ledger):
    one, other = place.side(colour), place.side(colour)
    go = threading.Barrier(2)

    def run(side: Side):
        go.wait(5)
        return side.run_many("charge", lambda item: ledger.add(item["id"]) and item["id"], items(20), key="id")

    first, second = Thread(lambda: run(one)), Thread(lambda: run(other))
    answers = [first.result(20), second.result(20)]

    assert sorted(ledger.entries) == list(range(20))
    assert [[getattr(a, "result", a) for a in some] for some in answers] == [list(range(20))] * 2


def test_a_doubt_in_a_batch_stays_a_doubt(side: Side, ledger: Ledger):
    with pytest.raises(ValueError):
        side.run("charge", lambda: (_ for _ in ()).throw(ValueError()), key=1, payload=items(2)[1])

    answers = side.run_many("charge", lambda one: ledger.add(), items(2), key="id")
    assert answers[0].result == 1
    assert isinstance(answers[1], InDoubt)


@pytest.mark.parametrize("met", ["nobody", "doubted", "believed absent"])
def test_a_claim_whose_lease_ended_before_its_turn_is_made_anew(place: Place, colour: str, ledger: Ledger, met: str):
    """Claimed for later, and lost while the store could not be told: by then somebody else may have run it."""
    side, spy = spied_side(place, colour, policy=Policy(lease=0.3, patience=2))
    other = place.guard(policy=Policy(lease=0.3, patience=2))
    absent = Asks(lambda record: Absent(), believe_absent_after=0.01) if met == "believed absent" else Opaque()

    def effect(one):
        if one["id"] == 0:
            spy.before["renew"] = raising(StoreUnavailable("down"))
            until(lambda: not place.peek("charge", "1").lease_live)
            if met != "nobody":
                threading.Event().wait(0.05)  # the belief's time
                Thread(
                    lambda: other.run(
                        "charge", lambda: ledger.add("other"), key="1", payload=one | {"id": 1}, boundary=absent
                    )
                ).outcome()
            del spy.before["renew"]
        ledger.add(one["id"])
        return "batch"

    first, second = side.run_many("charge", effect, items(2), key="id", boundary=absent)

    assert first.result == "batch"
    if met == "believed absent":
        assert (second.replayed, ledger.entries) == (True, ["other", 0])
    else:
        assert (second.result, ledger.entries) == ("batch", [0, 1])


@pytest.mark.parametrize("settled", [False, True])
def test_an_interrupt_while_a_later_claim_is_given_up_leaves_it_free(place: Place, ledger: Ledger, settled: bool):
    """It never ran, so it is not a doubt: the interruption comes out, and the claim is let go all the same."""
    side, spy = spied_side(place, "sync")
    when = spy.after if settled else spy.before

    def effect(one):
        when["settle"] = raising(KeyboardInterrupt(), times=1)
        return side.run("charge", lambda: ledger.add("inner"), key=1, payload=items(2)[1])

    with pytest.raises(KeyboardInterrupt):
        side.run_many("charge", effect, items(2), key="id")

    assert place.peek("charge", "1").state is State.RELEASED
    assert len(ledger) == 0


@pytest.mark.parametrize("way", ["closed", "loop gone"])
def test_a_batch_whose_coroutine_is_abandoned_ends_quietly_and_its_leases_speak(
    place: Place, monkeypatch: pytest.MonkeyPatch, way: str
):
    """Nobody can await any more: nothing is written, nothing is renewed."""
    unraisable: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    guard, inside = place.async_guard(), asyncio.Event()

    async def effect(one):
        inside.set()
        await asyncio.sleep(3600)

    async def close(one: Any) -> None:
        one.close()

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending!"
    coming = guard.run_many("charge", effect, items(2), key="id")
    task = loop.create_task(coming)
    loop.run_until_complete(inside.wait())
    if way == "closed":
        loop.run_until_complete(close(coming))
    loop.close()
    del task, coming
    gc.collect()

    assert unraisable == []
    assert guard._leases.living() == []
    assert [place.peek("charge", key).state for key in "01"] == [State.STARTED, State.STARTED]
