"""The recovery worker: what it does about each kind of record, and what it never does."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from samekey import (
    Absent,
    Asks,
    AsyncGuard,
    Conflicting,
    Guard,
    Happened,
    InDoubt,
    Keyed,
    NotDone,
    Opaque,
    Policy,
    Repeatable,
    current,
)
from samekey.core.errors import Misconfigured
from samekey.core.ports import Due
from samekey.core.states import State
from samekey.doubt import AsyncWorker, SlowDown, Worker
from samekey.ops import Ops
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from tests.doubt.helpers import KEYS, POLICY, Clock, Provider, guard_at

DAY = 24 * 3600.0
LONG = Policy(lease=10, keep_payload=True, retention=30 * DAY)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def charging(guard: Guard, provider: Provider, boundary: Any, **options: Any) -> Any:
    @guard.once(name="charge", key="order", boundary=boundary, **options)
    def charge(order: str, amount: int) -> str:
        return provider.charge(current().provider_key(), amount, dedups=isinstance(boundary, Keyed))

    return charge


def time_out(charge: Any, provider: Provider, order: str = "o-1") -> None:
    provider.drops = True
    with pytest.raises(TimeoutError):
        charge(order, 200)
    provider.drops = False


def record_of(guard: Guard, key: str = "o-1") -> Any:
    return guard.peek("charge", key)


def test_a_doubt_is_asked_about_and_adopted_without_a_client(clock):
    provider = Provider()
    with guard_at(clock) as guard:
        charge = charging(guard, provider, Asks(provider.find))
        time_out(charge, provider)
        assert Worker(guard).run_once().looked == 0  # its lease lives: the request may still be on its way
        clock.passes(11)

        tally = Worker(guard).run_once()

        assert (tally.looked, tally.how["adopted"], provider.lookups) == (1, 1, 1)
        assert charge("o-1", 200).startswith("receipt")
        assert provider.requests == 1


def test_absence_is_looked_at_again_with_growing_pauses_and_then_parked(clock):
    provider = Provider(blind=True)
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, Asks(provider.find)), provider)
        clock.passes(11)
        worker = Worker(guard, looks_max=4)
        looks = []
        for _ in range(4):
            worker.run_once()
            looks.append(record_of(guard).inquiry.look_at - clock.now)
            clock.passes(looks[-1] + 0.01)

        inquiry = record_of(guard).inquiry
        assert (inquiry.looks, inquiry.verdict, inquiry.parked) == (4, "absent", "absent after 4 looks")
        assert [5 * 2**n * 0.5 <= pause <= 5 * 2**n * 1.5 for n, pause in enumerate(looks[:3])] == [True] * 3
        assert DAY * 0.5 <= looks[3] <= DAY * 1.5

        provider.blind = False  # it landed after all: only the next look can find it
        assert worker.run_once().how["adopted"] == 1
        assert record_of(guard).state is State.COMPLETED


def test_a_look_that_is_not_due_is_not_made_again_by_another_worker(clock):
    """The next look is stored, so a restart does not ask again."""
    provider = Provider(blind=True)
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, Asks(provider.find)), provider)
        clock.passes(11)
        Worker(guard).run_once()
        Worker(guard).run_once()

        assert provider.lookups == 1


def test_a_believed_absence_runs_again_from_the_kept_payload(clock):
    provider = Provider()
    with guard_at(clock) as guard:
        charge = charging(guard, provider, Asks(provider.find, believe_absent_after=60))
        provider.drops = True
        with pytest.raises(TimeoutError):
            charge("o-1", 200)
        provider.drops = False
        provider.charges.clear()  # it never arrived
        clock.passes(11)
        assert Worker(guard).run_once().how == {"asked": 1}
        clock.passes(3600)

        assert Worker(guard).run_once().how == {"completed": 1}

        assert list(provider.charges.values()) == [[200]]
        late = record_of(guard).inquiry
        assert late.reported == "unknown"


def test_without_a_payload_a_believed_absence_frees_the_key_in_the_same_round(clock):
    provider = Provider(blind=True)
    with Guard(MemoryStore(clock), policy=Policy(lease=10)) as guard:
        time_out(charging(guard, provider, Asks(provider.find, believe_absent_after=60)), provider)
        clock.passes(3600)

        assert Worker(guard).run_once().how == {"released": 1}

        record = record_of(guard)
        assert (record.state, record.round, provider.requests) == (State.RELEASED, 0, 1)


def test_keyed_work_runs_again_under_the_same_key(clock):
    provider = Provider()
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, Keyed()), provider)
        clock.passes(11)

        assert Worker(guard).run_once().how == {"completed": 1}

        assert (provider.requests, list(provider.charges.values())) == (2, [[200]])
        assert record_of(guard).inquiry.reported == "unknown"


def test_a_decline_on_the_re_run_parks_and_is_never_tried_again(clock):
    """Ten looks would be ten requests, and the one after a top-up would charge a customer who was reported "failed"."""
    provider = Provider()
    with guard_at(clock) as guard:

        @guard.once(name="charge", key="order", boundary=Keyed(window=9 * DAY), policy=LONG)
        def charge(order: str, amount: int) -> str:
            reference = current().provider_key()
            provider.requests += 1
            if provider.requests == 1:
                raise TimeoutError
            if provider.declines:
                raise NotDone("no funds")
            return provider.charge(reference, amount)

        with pytest.raises(TimeoutError):
            charge("o-1", 200)
        provider.declines = True
        for _ in range(10):
            clock.passes(2 * DAY / 10)
            Worker(guard).run_once()
        provider.declines = False
        clock.passes(2 * DAY)
        Worker(guard).run_once()

        assert provider.requests == 2
        assert record_of(guard).inquiry.parked.startswith("declined on the re-run")


def test_a_decline_that_the_provider_keeps_under_the_key_frees_it(clock):
    provider = Provider()
    with guard_at(clock) as guard:

        @guard.once(name="charge", key="order", boundary=Keyed(keeps_declines=True), policy=POLICY)
        def charge(order: str, amount: int) -> str:
            current().provider_key()
            provider.requests += 1
            if provider.requests == 1:
                raise TimeoutError
            raise NotDone("no funds", declined=True)

        with pytest.raises(TimeoutError):
            charge("o-1", 200)
        clock.passes(11)

        assert Worker(guard).run_once().how == {"released": 1}

        record = record_of(guard)
        assert (record.state, record.round, record.unsure) == (State.RELEASED, 1, False)


@pytest.mark.parametrize("how", [NotDone("no funds"), NotDone("no funds", declined=True)])
def test_without_kept_declines_an_older_doubt_stays(clock, how):
    with guard_at(clock) as guard:
        errors = [TimeoutError(), how]

        @guard.once(name="charge", key="order", boundary=Keyed(), policy=POLICY)
        def charge(order: str, amount: int) -> str:
            current().provider_key()
            raise errors.pop(0)

        with pytest.raises(TimeoutError):
            charge("o-1", 200)
        clock.passes(11)
        Worker(guard).run_once()

        assert record_of(guard).state is State.IN_DOUBT


def test_opaque_work_is_parked_and_never_run(clock):
    provider = Provider()
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, Opaque()), provider)
        clock.passes(11)

        assert Worker(guard).run_once().how == {"parked": 1}

        assert provider.requests == 1
        assert record_of(guard).inquiry.parked == "no provider can be asked about it"


def test_past_the_window_keyed_work_is_parked(clock):
    provider = Provider()
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, Keyed(window=3600)), provider)
        clock.passes(3600)

        assert Worker(guard).run_once().how == {"parked": 1}

        assert provider.requests == 1


def test_what_had_not_begun_is_let_go(clock):
    """A marked effect that crashed before its mark did not happen; without a payload a caller runs it."""
    with Guard(MemoryStore(clock), policy=Policy(lease=10)) as guard:
        held: Any = guard.hold("charge", key="o-1", payload={}, boundary=Opaque(marked=True))
        held.__enter__()
        guard.as_new_process()
        clock.passes(11)

        assert Worker(guard).run_once().how == {"released": 1}

        assert record_of(guard).state is State.RELEASED


def test_a_worker_opens_no_key(clock):
    """A record that was freed since the list is not made anew."""
    provider = Provider()
    with guard_at(clock) as guard:
        time_out(charging(guard, provider, Keyed()), provider)
        clock.passes(11)
        (record,) = guard.store.due(Due("charge")).records
        store: Any = guard.store
        store._records.clear()
        worker = Worker(guard)
        declared = worker._declared(["charge"])["charge"]
        worker._look_at(record, declared)

        assert worker.tally.how == {"gone": 1}
        assert record_of(guard) is None
        assert provider.requests == 1


def test_todays_stricter_boundary_counts(clock):
    """The code no longer sends the provider key: what was claimed as Keyed must not run again."""
    provider, store = Provider(), MemoryStore(clock)
    with Guard(store, policy=POLICY, keys=KEYS) as old:
        time_out(charging(old, provider, Keyed()), provider)
    clock.passes(11)
    with Guard(store, policy=POLICY, keys=KEYS) as new:
        charging(new, provider, Opaque())

        assert Worker(new).run_once().how == {"parked": 1}
        assert provider.requests == 1


def test_a_payload_that_was_changed_is_not_run(clock):
    """The fingerprint of the kept payload is compared before a run."""
    provider, store = Provider(), MemoryStore(clock)
    with Guard(store, policy=POLICY, keys=KEYS) as guard:
        time_out(charging(guard, provider, Keyed()), provider)
        other = charging(Guard(MemoryStore(clock), policy=POLICY, keys=KEYS), provider, Keyed())
        time_out(other, provider)
        ((digest, record),) = store._records.items()
        ((_, different),) = other.guard.store._records.items()
        store._records[digest] = record._replace(fingerprint=b"\x00" * len(different.fingerprint))
        clock.passes(11)
        requests = provider.requests

        assert Worker(guard).run_once().how == {"parked": 1}

        assert provider.requests == requests
        assert "payload" in record_of(guard).inquiry.parked


def test_two_charges_on_the_books_are_parked_as_conflicting(clock):
    """And they are a finding with the proposal of a refund, as for any caller that asks."""
    provider, store = Provider(), MemoryStore(clock)
    with Guard(store, policy=POLICY, keys=KEYS) as guard:
        time_out(charging(guard, provider, Asks(lambda record: Conflicting(("a", "b")))), provider)
        clock.passes(11)

        assert Worker(guard).run_once().how == {"parked": 1}

        assert record_of(guard).inquiry.parked == "the provider has it 2 times"
        guard.close()
        (finding,) = Ops(store).findings.list()
        assert "refund" in finding.proposal


def test_repeatable_work_runs_again_with_its_payload_and_is_left_without(clock):
    ran: list[str] = []
    for policy, keys, expected in ((POLICY, KEYS, ["o-1"]), (Policy(lease=10), None, [])):
        ran.clear()
        with Guard(MemoryStore(clock), policy=policy, keys=keys) as guard:
            guard.declare("mail", boundary=Repeatable(), effect=lambda payload: ran.append(payload["order"]))
            held: Any = guard.hold("mail", key="o-1", payload={"order": "o-1"}, boundary=Repeatable())
            held.__enter__()
            guard.as_new_process()
            clock.passes(11)
            Worker(guard).run_once()

        assert ran == expected


def test_run_operations_are_known_by_their_declaration(clock):
    """A `run` inside a function is unknown to a process that only imports it."""
    provider, store = Provider(), MemoryStore(clock)
    provider.drops = True
    with Guard(store, policy=Policy(lease=10)) as guard, pytest.raises(TimeoutError):
        guard.run("refund", lambda: provider.charge("r", 1), key="o-1", payload={}, boundary=Asks(provider.find))
    clock.passes(11)
    with Guard(store, policy=Policy(lease=10)) as fresh:
        assert Worker(fresh).run_once().undeclared == {"refund"}
        fresh.declare("refund", boundary=Asks(lambda record: Happened("r")))
        assert Worker(fresh).run_once().how == {"adopted": 1}


def test_the_rate_is_kept_and_a_provider_that_wants_a_pause_gets_it(clock):
    provider = Provider(blind=True)
    asked: list[float] = []

    def find(record: Any) -> Any:
        asked.append(clock.now)
        if len(asked) == 3:
            raise SlowDown(60)
        return Absent()

    with guard_at(clock) as guard:
        charge = charging(guard, provider, Asks(find))
        for number in range(6):
            time_out(charge, provider, f"o-{number}")
        clock.passes(11)
        worker = Worker(guard, rates={"charge": 2.0}, at_once=1, clock=clock)
        worker.round()
        assert len(asked) == 2
        worker.round()
        assert len(asked) == 2
        clock.passes(1)
        worker.round()
        assert len(asked) == 4  # the third wanted a pause, the fourth was under way with it
        clock.passes(30)
        worker.round()
        assert len(asked) == 4
        clock.passes(60)
        worker.round()
        assert len(asked) == 6


def test_several_workers_ask_about_each_doubt_once(clock):
    provider, mutex = Provider(), threading.Lock()
    asked: list[str] = []

    def find(record: Any) -> Any:
        with mutex:
            asked.append(record.key.text)
        return Happened("r")

    with guard_at(clock) as guard:
        charge = charging(guard, provider, Asks(find))
        for number in range(40):
            time_out(charge, provider, f"o-{number}")
        clock.passes(11)
        workers = [Worker(guard, shard=(number, 4)) for number in range(4)]
        threads = [threading.Thread(target=worker.run_once) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(asked) == sorted(f"o-{number}" for number in range(40))
        assert sum(worker.tally.how["adopted"] for worker in workers) == 40


def test_a_worker_that_is_told_to_stop_begins_no_other_look(clock):
    provider = Provider(blind=True)
    with guard_at(clock) as guard:
        worker: Worker

        def find(record: Any) -> Any:
            worker.stop()
            return Absent()

        charge = charging(guard, provider, Asks(find))
        for number in range(5):
            time_out(charge, provider, f"o-{number}")
        clock.passes(11)
        worker = Worker(guard, at_once=1)
        tally = worker.run()

        assert tally.looked == 1
        assert sum(record_of(guard, f"o-{number}").asker is not None for number in range(5)) == 0


def test_it_runs_as_a_task(clock):
    provider = Provider()

    async def main() -> None:
        guard = AsyncGuard(AsyncMemoryStore(clock=clock), policy=POLICY, keys=KEYS)

        @guard.once(name="charge", key="order", boundary=Keyed())
        async def charge(order: str, amount: int) -> str:
            return provider.charge(current().provider_key(), amount, dedups=True)

        async def find(record: Any) -> Any:
            return provider.find(record)

        @guard.once(name="ask", key="order", boundary=Asks(find))
        async def ask(order: str, amount: int) -> str:
            return provider.charge(current().provider_key(), amount)

        provider.drops = True
        for function in (charge, ask):
            with pytest.raises(TimeoutError):
                await function("o-1", 200)
        provider.drops = False
        clock.passes(11)
        tally = await AsyncWorker(guard).run_once()

        assert tally.how == {"completed": 1, "adopted": 1}
        assert (tally.late, tally.findings) == (0, 2)
        await guard.close()

    asyncio.run(main())


def test_a_worker_takes_a_guard_of_its_own_colour():
    with Guard("memory://") as guard:
        with pytest.raises(Misconfigured, match="AsyncWorker takes an AsyncGuard"):
            AsyncWorker(guard)  # type: ignore[arg-type]
        with pytest.raises(Misconfigured, match="shard"):
            Worker(guard, shard=(4, 4))


def test_ask_at_once_gives_the_answer_instead_of_the_timeout(clock):
    provider = Provider()
    with guard_at(clock) as guard:
        charge = charging(guard, provider, Asks(provider.find, ask_at_once=True))
        provider.drops = True

        assert charge("o-1", 200).startswith("receipt")

        assert record_of(guard).state is State.COMPLETED
        assert provider.lookups == 1


def test_ask_at_once_believes_no_absence(clock):
    """The request may still be on its way."""
    provider = Provider(blind=True)
    with guard_at(clock) as guard:
        charge = charging(guard, provider, Asks(provider.find, ask_at_once=True, believe_absent_after=1))
        time_out(charge, provider)

        assert record_of(guard).state is State.IN_DOUBT
        with pytest.raises(InDoubt):
            charge("o-1", 200)


def test_ask_at_once_needs_time_left_in_the_lease(clock):
    provider = Provider()
    with Guard(MemoryStore(clock), policy=Policy(lease=4)) as guard:
        time_out(charging(guard, provider, Asks(provider.find, ask_at_once=True)), provider)

        assert provider.lookups == 0
