"""A worker and records that it cannot move: they stay due, and neither keep it busy nor hide the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from samekey import Asks, AsyncGuard, Guard, Happened, Repeatable
from samekey.core.commands import Read
from samekey.core.errors import RecordUnreadable
from samekey.core.ports import Records
from samekey.core.states import State
from samekey.doubt import AsyncWorker, LateTruth, Worker
from samekey.doubt.pace import PAUSE_MAX_SECONDS, Pauses
from samekey.doubt.worker import PAGE
from samekey.stores.memory import AsyncMemoryStore
from tests.doubt.helpers import KEYS, POLICY, Clock, guard_at

ROUNDS_MAX = 60  # of a worker that ends after a handful


@pytest.fixture
def clock() -> Clock:
    return Clock()


def doubts(guard: Guard, keys: list[str]) -> Any:
    @guard.once(name="charge", key="order", boundary=Asks(lambda record: Happened("r")))
    def charge(order: str) -> str:
        raise TimeoutError

    for key in keys:
        with pytest.raises(TimeoutError):
            charge(key)
    return charge


class Damaged:
    """Reads of some keys fail, as those of a row that was written by hand; counted by key."""

    def __init__(self, store: Any, keys: set[str]) -> None:
        self.keys, self.reads, self._real = keys, dict.fromkeys(keys, 0), store.carry_out
        store.carry_out = self.carry_out

    def carry_out(self, command: Any) -> Any:
        if isinstance(command, Read) and command.key.text in self.keys:
            self.reads[command.key.text] += 1
            raise RecordUnreadable("damaged")
        return self._real(command)


def bounded(worker: Any) -> Any:
    """Fails instead of going on for ever."""
    real, rounds = worker.round, iter(range(ROUNDS_MAX))

    def round_() -> Any:
        assert next(rounds, None) is not None, "the worker does not end"
        return real()

    worker.round = round_
    return worker


def state_of(guard: Guard, key: str) -> Any:
    record = guard.peek("charge", key)
    return None if record is None else record.state


def test_run_once_ends_although_a_look_fails_and_the_others_are_looked_at(clock):
    with guard_at(clock) as guard:
        doubts(guard, ["o-1", "o-2", "o-3"])
        damaged = Damaged(guard.store, {"o-1"})
        clock.passes(11)
        tally = bounded(Worker(guard)).run_once()

        assert damaged.reads == {"o-1": 1}
        assert (tally.errors, tally.how) == (1, {"adopted": 2})


def test_a_record_whose_look_failed_is_left_alone_for_longer_and_longer(clock):
    with guard_at(clock) as guard:
        doubts(guard, ["o-1"])
        damaged = Damaged(guard.store, {"o-1"})
        clock.passes(11)
        worker = Worker(guard, clock=clock)

        assert worker.round() == 1
        assert [worker.round() for _ in range(3)] == [0, 0, 0]
        clock.passes(5)
        assert worker.round() == 0  # a second failure: no progress, `run` waits
        assert damaged.reads == {"o-1": 2}
        clock.passes(5)
        worker.round()
        assert damaged.reads == {"o-1": 2}
        clock.passes(5)
        damaged.keys.clear()
        assert worker.round() >= 1
        assert state_of(guard, "o-1") is State.COMPLETED


def test_a_page_of_records_that_fail_hides_no_other_one(clock):
    bad = [f"bad-{number}" for number in range(PAGE + 20)]
    with guard_at(clock) as guard:
        charge = doubts(guard, bad)
        clock.passes(1)
        with pytest.raises(TimeoutError):
            charge("good")
        damaged = Damaged(guard.store, set(bad))
        clock.passes(11)
        tally = bounded(Worker(guard)).run_once()

        assert state_of(guard, "good") is State.COMPLETED
        assert set(damaged.reads.values()) == {1}
        assert tally.errors == len(bad)


def test_with_a_rate_run_once_ends_as_well(clock):
    """The rate is used up, and what is due has failed already."""
    with guard_at(clock) as guard:
        doubts(guard, ["o-1"])
        damaged = Damaged(guard.store, {"o-1"})
        clock.passes(11)
        bounded(Worker(guard, rates={"charge": 0.5})).run_once()

        assert damaged.reads == {"o-1": 1}


def test_a_row_that_cannot_be_read_is_an_error_and_hides_no_record(clock):
    """A store lists such rows in their place."""
    with guard_at(clock) as guard:
        doubts(guard, ["o-1"])
        clock.passes(11)
        store: Any = guard.store
        real = store.due
        rows = [RecordUnreadable("damaged") for _ in range(PAGE)]
        store.due = lambda due: real(due) if due.late else Records([*rows, *real(due)][: due.size])
        tally = bounded(Worker(guard, rates={"charge": 1.0})).run_once()
        again = Worker(guard)
        again.round()
        again.round()

        assert tally.errors == PAGE
        assert again.tally.how == {"adopted": 1}


def test_a_record_that_a_look_leaves_as_it_was_does_not_keep_the_worker_busy(clock):
    """Its payload is kept, and this process has no effect for it: the record stays due for a worker that has."""
    with guard_at(clock) as guard:
        guard.declare("mail", boundary=Repeatable())
        held: Any = guard.hold("mail", key="m-1", payload={"to": "ann"}, boundary=Repeatable())
        held.__enter__()
        guard.as_new_process()
        clock.passes(11)
        tally = bounded(Worker(guard)).run_once()

        assert tally.how == {"left": 1}


def test_late_truths_whose_function_fails_hide_no_other_one(clock):
    keys = [f"o-{number:03}" for number in range(PAGE + 20)]
    calls: list[str] = []
    with guard_at(clock) as guard:
        doubts(guard, keys)

        @guard.on_late_truth("charge")
        def late(truth: LateTruth) -> None:
            calls.append(truth.key)
            if truth.key != keys[-1]:
                raise RuntimeError("no such customer")

        clock.passes(11)
        tally = bounded(Worker(guard)).run_once()

        assert sorted(calls) == keys  # each once
        assert (tally.late, tally.errors) == (1, PAGE + 19)


def test_a_function_that_fails_is_called_again_after_a_pause(clock):
    calls: list[str] = []
    with guard_at(clock) as guard:
        doubts(guard, ["o-1"])

        @guard.on_late_truth("charge")
        def late(truth: LateTruth) -> None:
            calls.append(truth.key)
            if len(calls) == 1:
                raise RuntimeError("the mail server is down")

        clock.passes(11)
        worker = Worker(guard, clock=clock)
        for _ in range(5):
            worker.round()
        assert calls == ["o-1"]
        clock.passes(5)
        for _ in range(5):
            worker.round()

        assert calls == ["o-1", "o-1"]


def test_the_same_holds_for_a_task(clock):
    async def main() -> None:
        guard = AsyncGuard(AsyncMemoryStore(clock=clock), policy=POLICY, keys=KEYS)

        async def find(record: Any) -> Any:
            return Happened("r")

        @guard.once(name="charge", key="order", boundary=Asks(find))
        async def charge(order: str) -> str:
            raise TimeoutError

        @guard.on_late_truth("charge")
        async def late(truth: LateTruth) -> None:
            raise RuntimeError("the mail server is down")

        for key in ("o-1", "o-2"):
            with pytest.raises(TimeoutError):
                await charge(key)
        store: Any = guard.store
        real = store.carry_out
        reads = []

        async def carry_out(command: Any) -> Any:
            if isinstance(command, Read) and command.key.text == "o-1":
                reads.append(command.key.text)
                raise RecordUnreadable("damaged")
            return await real(command)

        store.carry_out = carry_out
        clock.passes(11)
        tally = await bounded(AsyncWorker(guard, rates={"charge": 2.0})).run_once()

        assert reads == ["o-1"]
        assert (tally.how, tally.errors, tally.late) == ({"adopted": 1}, 2, 0)
        await guard.close()

    asyncio.run(main())


def test_the_memory_of_failures_is_bounded(clock):
    pauses = Pauses(clock, most=2)

    assert [pauses.add(digest) for digest in (b"a", b"b", b"c", b"a")] == [True, True, False, False]
    assert (len(pauses), b"c" in pauses, pauses.full) == (2, False, True)
    clock.passes(6)
    assert pauses.add(b"c") is False  # in the place of b, whose pause is over: no room was left
    assert (b"a" in pauses, b"b" in pauses, b"c" in pauses) == (True, False, True)
    pauses.drop(b"a")
    assert not pauses.full
    for _ in range(60):
        pauses.add(b"c")
    clock.passes(PAUSE_MAX_SECONDS - 1)
    assert pauses.pauses(b"c")
    clock.passes(1)
    assert not pauses.pauses(b"c")
