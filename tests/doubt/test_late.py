"""Late truth: an effect happened, and its callers had got another answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from samekey import Asks, AsyncGuard, Compensatable, Guard, Happened, Keyed, Policy, Refused, current
from samekey.core.errors import Misconfigured
from samekey.core.states import State
from samekey.doubt import AsyncWorker, LateTruth, Worker
from samekey.ops import Ops, Resolution
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.stores.sqlite import SqliteStore
from tests.doubt.helpers import KEYS, POLICY, Clock, Provider, guard_at


@pytest.fixture
def clock() -> Clock:
    return Clock()


def charging(guard: Guard, provider: Provider, boundary: Any) -> Any:
    @guard.once(name="charge", key="order", boundary=boundary)
    def charge(order: str, amount: int) -> str:
        return provider.charge(current().provider_key(), amount, dedups=boundary.terms.kind == "keyed")

    return charge


def time_out(charge: Any, provider: Provider, order: str = "o-1") -> None:
    provider.drops = True
    with pytest.raises(TimeoutError):
        charge(order, 200)
    provider.drops = False


def test_the_function_gets_what_was_reported_and_what_turned_out(clock):
    provider, truths = Provider(), list[LateTruth]()
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, Asks(provider.find)), provider)
        guard.on_late_truth("charge")(truths.append)
        clock.passes(11)
        tally = Worker(guard).run_once()
        Worker(guard).run_once()

        (truth,) = truths
        assert (tally.late, tally.findings) == (1, 0)
        assert (truth.operation, truth.key, truth.reported, truth.reported_error) == (
            *("charge", "o-1", "unknown"),
            "TimeoutError",
        )
        assert truth.result == f"receipt {truth.reference}"


def test_a_worker_that_runs_the_effect_also_reports_it(clock):
    provider, truths = Provider(), list[LateTruth]()
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, Keyed()), provider)
        guard.on_late_truth("charge")(truths.append)
        clock.passes(11)
        Worker(guard).run_once()

        assert [truth.reported for truth in truths] == ["unknown"]


def test_a_caller_that_gets_its_answer_needs_no_late_truth(clock):
    """The client timed out, called again, and has its answer."""
    provider, truths = Provider(), list[LateTruth]()
    with guard_at(clock) as guard:
        charge = charging(guard, provider, Keyed())
        time_out(charge, provider)
        guard.on_late_truth("charge")(truths.append)
        clock.passes(11)
        charge("o-1", 200)
        Worker(guard).run_once()

        assert truths == []


def test_what_a_person_resolves_is_a_late_truth(clock):
    provider, truths = Provider(), list[LateTruth]()
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, Asks(provider.find)), provider)
        guard.on_late_truth("charge")(truths.append)
        clock.passes(11)
        ops = Ops(guard.store)
        record = guard.peek("charge", "o-1")
        assert record is not None
        ops.resolve(record, Resolution.HAPPENED, who="ann", why="on the books", result="by hand")
        Worker(guard).run_once()

        assert [truth.result for truth in truths] == ["by hand"]


def test_evidence_on_a_closed_record_is_a_late_truth(clock):
    """The first attempt lost its hold and charged all the same; the second one was refused, and closed the key."""
    truths = list[LateTruth]()
    with guard_at(clock) as guard:
        guard.on_late_truth("charge")(truths.append)
        first: Any = guard.hold("charge", key="o-1", payload={}, boundary=Keyed(keeps_declines=True))
        first.__enter__()
        clock.passes(11)
        guard.as_new_process()

        def refuse() -> None:
            current().provider_key()
            raise Refused("stolen", declined=True)

        with pytest.raises(Refused):
            guard.run("charge", refuse, key="o-1", payload={}, boundary=Keyed(keeps_declines=True))
        record = guard.peek("charge", "o-1")
        assert record is not None
        assert record.state is State.CLOSED
        first.complete("charged")
        with pytest.raises(Refused):
            first.__exit__(None, None, None)
        Worker(guard).run_once()

        assert [(truth.reported, truth.result) for truth in truths] == [("failed", "charged")]


def test_without_a_function_it_is_a_finding(clock):
    provider = Provider()
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, Asks(provider.find)), provider)
        clock.passes(11)

        assert Worker(guard).run_once().findings == 1

        (finding,) = Ops(guard.store).findings.list()
        assert (finding.kind, finding.operation) == ("late-truth", "charge")


def test_a_function_that_raises_is_called_again_and_then_no_more(clock):
    provider, calls = Provider(), list[str]()
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, Asks(provider.find)), provider)

        @guard.on_late_truth("charge")
        def late(truth: LateTruth) -> None:
            calls.append(truth.key)
            if len(calls) == 1:
                raise RuntimeError("the mail server is down")

        clock.passes(11)
        assert Worker(guard).run_once().errors == 1
        Worker(guard).run_once()
        Worker(guard).run_once()

        assert calls == ["o-1", "o-1"]


def test_a_worker_that_dies_after_the_function_does_not_call_it_twice(clock):
    """The function has a key of its own: only the mark on the record was not written."""
    provider, calls = Provider(), list[str]()
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, Asks(provider.find)), provider)
        guard.on_late_truth("charge")(lambda truth: calls.append(truth.key))
        clock.passes(11)
        store: Any = guard.store
        real = store.carry_out

        def dies(command: Any) -> Any:
            if command.verb == "deliver":
                raise KeyboardInterrupt
            return real(command)

        store.carry_out = dies
        with pytest.raises(KeyboardInterrupt):
            Worker(guard).run_once()
        store.carry_out = real
        Worker(guard).run_once()

        assert calls == ["o-1"]


def test_many_crashes_and_lost_answers_leave_one_truth_for_each_key(tmp_path):
    """On a store with transactions, and two workers at once."""
    clock, provider = Clock(), Provider()
    store = SqliteStore(tmp_path / "keys.db")
    store._wall = store._tick = clock
    with Guard(store, policy=Policy(lease=10)) as guard:
        charge = charging(guard, provider, Asks(provider.find))
        calls: list[str] = []
        guard.on_late_truth("charge")(lambda truth: calls.append(truth.key))
        keys = [f"o-{number}" for number in range(60)]
        for key in keys:
            time_out(charge, provider, key)
        clock.passes(11)
        import threading

        workers = [threading.Thread(target=Worker(guard, shard=(number, 2)).run_once) for number in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        Worker(guard).run_once()

        assert sorted(calls) == sorted(keys)


def test_a_compensation_runs_once_under_the_key_of_the_provider(clock):
    provider, refunds = Provider(), list[str]()
    boundary = Compensatable(
        Asks(provider.find), lambda truth: refunds.append(truth.reference), when=lambda truth: truth.reported != ""
    )
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, boundary), provider)
        clock.passes(11)
        Worker(guard).run_once()
        Worker(guard).run_once()

        record = guard.peek("charge", "o-1")
        assert record is not None
        assert refunds == [record.provider_key()]
        undone = guard.peek("charge.compensate", record.provider_key())
        assert undone is not None
        assert undone.state is State.COMPLETED
        assert record.state is State.COMPLETED  # the charge happened: its record is not rewritten


def test_without_when_only_a_failure_is_compensated(clock):
    provider, refunds = Provider(), list[str]()
    with guard_at(clock) as guard:
        boundary = Compensatable(Asks(provider.find), lambda truth: refunds.append(truth.key))
        time_out(charging(guard, provider, boundary), provider)
        clock.passes(11)
        Worker(guard).run_once()

        assert refunds == []  # its caller knew that the outcome was unknown


def test_compensatable_wraps_a_boundary_that_can_be_late():
    from samekey import Repeatable

    with pytest.raises(Misconfigured, match="inner boundary"):
        Compensatable(Repeatable(), print)


def test_async_functions_are_awaited(clock):
    truths: list[str] = []

    async def main() -> None:
        guard = AsyncGuard(AsyncMemoryStore(clock=clock), policy=POLICY, keys=KEYS)

        async def find(record: Any) -> Any:
            return Happened("r")

        @guard.once(name="charge", key="order", boundary=Asks(find))
        async def charge(order: str) -> str:
            raise TimeoutError

        @guard.on_late_truth("charge")
        async def late(truth: LateTruth) -> None:
            truths.append(truth.result)

        with pytest.raises(TimeoutError):
            await charge("o-1")
        clock.passes(11)
        await AsyncWorker(guard).run_once()
        await guard.close()

    asyncio.run(main())
    assert truths == ["r"]


def test_one_operation_has_one_function():
    with Guard(MemoryStore()) as guard:
        guard.on_late_truth("charge")(print)
        with pytest.raises(Misconfigured, match="already"):
            guard.on_late_truth("charge")(print)
