"""Each attempt ends in exactly one outcome, however it ends: in its last event, and in the counts."""

from __future__ import annotations

import asyncio
import functools
import gc
import sqlite3
import threading
from collections import Counter
from typing import Any

import pytest

from samekey import (
    Asks,
    AsyncGuard,
    Atomic,
    Conflicting,
    Fenced,
    Guard,
    Happened,
    InDoubt,
    InProgress,
    Keyed,
    KeyReused,
    NotDone,
    Opaque,
    Policy,
    Refused,
    Repeatable,
    ResultNotKept,
    StoreUnavailable,
    current,
)
from samekey.core.books import FindingQuery
from samekey.core.events import EVENTS, LAST_EVENT, OUTCOMES
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.stores.sqlite import SqliteStore
from samekey.testing.clock import ManualClock
from samekey.testing.faulty import AsyncFaultyStore, Fault, FaultyStore
from tests.guard.helpers import SOON, Async, Seen, Side, Sync

LEASE_SECONDS = 30.0
FINDINGS = FindingQuery()


class Ends:
    """A guard on a store with planned faults, and what its hook saw."""

    def __init__(self, colour: str, store: MemoryStore | None = None, **policy: Any) -> None:
        self.colour, self.clock, self.seen = colour, ManualClock(), Seen()
        self.store = store or MemoryStore(self.clock)
        self.policy = Policy(lease=LEASE_SECONDS, **policy)
        self.faulty: Any = None
        self.counted: Counter[str] = Counter()
        self.guard = self.new_guard()
        self.side = self.new_side(self.guard)

    def new_guard(self, **options: Any) -> Any:
        sync = self.colour == "sync"
        self.faulty = FaultyStore(self.store, ()) if sync else AsyncFaultyStore(AsyncMemoryStore(self.store), ())
        guard = (Guard if sync else AsyncGuard)(self.faulty, policy=self.policy, hooks=[self.seen], **options)
        count = guard._facts.count

        def counted(operation: str, source: str, outcome: str) -> None:
            self.counted[outcome] += 1
            count(operation, source, outcome)

        guard._facts.count = counted
        return guard

    def new_side(self, guard: Any) -> Side:
        return Sync(guard) if self.colour == "sync" else Async(guard, self.colour)

    def run(self, effect: Any = None, *, key: str = "o-1", payload: Any = 1, error: Any = None, **options: Any) -> Any:
        def raising() -> Any:
            raise error if isinstance(error, BaseException) else error()

        effect = raising if error is not None else effect or (lambda: "done")
        return self.side.run("charge", effect, key=key, payload=payload, **options)

    def ended(self) -> list[tuple[str, str]]:
        """The last event of each attempt, and its outcome. No attempt may have two, and every attempt has one."""
        last = [event for event in self.seen.events if event.outcome]
        assert Counter(event.attempt for event in last).most_common(1)[0][1] == 1
        assert {event.attempt for event in last} == {event.attempt for event in self.seen.events}
        assert {event.outcome for event in last} <= OUTCOMES.keys()
        assert {event.name for event in self.seen.events} <= EVENTS.keys()
        assert all(event.name == LAST_EVENT.get(event.outcome, event.name) for event in last)
        assert self.counted == Counter(event.outcome for event in last)
        return [(event.name, event.outcome) for event in last]


def ends(colour: str, **policy: Any) -> Ends:
    return Ends(colour, **policy)


def test_a_new_key_a_replay_and_another_payload(colour):
    play = ends(colour)
    play.run()
    assert play.run().replayed
    with pytest.raises(KeyReused):
        play.run(payload=2)

    assert play.ended() == [("completed", "new"), ("replayed", "replayed"), ("key_reused", "reused")]


def test_every_error_of_an_effect(colour):
    play = ends(colour)
    for number, error in enumerate((Refused("no"), NotDone("no"), TimeoutError("?"), SystemExit("?"))):
        with pytest.raises(type(error)):
            play.run(key=f"o-{number}", error=error)
    with pytest.raises(Refused):
        play.run(key="o-0")
    with pytest.raises(InDoubt):
        play.run(key="o-2")

    assert play.ended() == [
        ("raised", "refused"),
        ("raised", "released"),
        ("raised", "in_doubt"),
        ("raised", "in_doubt"),
        ("raised", "refused"),
        ("raised", "in_doubt"),
    ]
    assert play.seen.names.count("closed") == 1
    assert [event.error for event in play.seen.events if event.outcome][:3] == ["Refused", "NotDone", "TimeoutError"]


def test_a_result_that_is_not_kept(colour):
    play = ends(colour)
    play.run(object)
    with pytest.raises(ResultNotKept):
        play.run()

    assert play.ended() == [("completed", "new"), ("raised", "replayed")]
    assert "not_kept" in play.seen.names


def test_a_store_that_is_down(colour):
    play, run = ends(colour), ends(colour, store_down="run")
    for one in (play, run):
        one.faulty.add(Fault("open", times=None))
    with pytest.raises(StoreUnavailable):
        play.run()
    assert run.run().guarded is False
    with pytest.raises(NotDone):
        run.run(error=NotDone("no"))

    assert play.ended() == [("store_down", "store_down")]
    assert run.ended() == [("completed", "unguarded"), ("raised", "unguarded")]
    assert [(one.detail, one.error) for one in run.seen.events if one.name == "store_down"] == [
        ("run", "StoreUnavailable")
    ] * 2
    assert [(one.detail, one.error) for one in play.seen.events] == [("refused", "StoreUnavailable")]


def test_a_settle_that_the_store_does_not_take(colour):
    play = ends(colour)
    play.policy = Policy(lease=0.5)  # how long a settle is tried; long enough for the effect on a busy machine
    play.guard = play.new_guard()
    play.side = play.new_side(play.guard)
    play.faulty.add(Fault("settle", times=None))
    assert play.run().recorded is False
    with pytest.raises(Refused):
        play.run(key="o-2", error=Refused("no"))
    with pytest.raises(TimeoutError):
        play.run(key="o-3", error=TimeoutError("?"))

    assert play.ended() == [("completed", "new"), ("raised", "in_doubt"), ("raised", "in_doubt")]
    assert play.seen.names.count("not_recorded") == 2


def test_a_lookup_and_what_it_found(colour):
    play = ends(colour)
    for key, verdict in (("found", Happened("done")), ("twice", Conflicting(("a", "b")))):
        boundary = Asks(functools.partial(answering, verdict))
        with pytest.raises(TimeoutError):
            play.run(key=key, error=TimeoutError("?"), boundary=boundary)
        if key == "found":
            assert play.run(key=key, boundary=boundary).replayed
        else:
            with pytest.raises(InDoubt):
                play.run(key=key, boundary=boundary)

    assert [outcome for _, outcome in play.ended()] == ["in_doubt", "replayed", "in_doubt", "in_doubt"]
    looked_up = [event for event in play.seen.events if event.name == "looked_up"]
    assert [event.detail for event in looked_up] == ["Happened", "Conflicting"]
    assert all(event.duration is not None for event in looked_up)


def answering(verdict: Any, record: Any) -> Any:
    return verdict


def test_batches(colour):
    play = ends(colour)
    play.run(key="b")
    answers = play.side.run_many("charge", lambda payload: 1 / payload["by"], BATCH, key="id", boundary=Repeatable())

    assert [getattr(answer, "replayed", None) for answer in answers] == [False, None, None]
    assert Counter(outcome for _, outcome in play.ended())["new"] == 2


BATCH = [{"id": "a", "by": 1}, {"id": "b", "by": 1}, {"id": "c", "by": 0}]


def test_a_hold_by_hand_has_its_duration_and_that_of_the_provider():
    play = ends("sync")
    held = play.guard.hold("charge", key="o-1", payload=1, boundary=Keyed(window=3600))
    with held:
        held.sending()
        held.complete("done")
    last = play.seen.events[-1]

    assert play.ended() == [("completed", "new")]
    assert last.duration is not None
    assert last.sent is not None
    assert 0 <= last.sent <= last.duration


def test_a_run_of_an_adapter_ends_once_in_each_way():
    play = Ends("sync", MemoryStore())
    operation = play.guard.operation("mail", boundary=Opaque())

    def begun(key: str) -> Any:
        return play.guard.begin(play.guard.new_call(operation, key, payload=1))

    begun("a").succeed()
    begun("b").fail(ValueError("?"))
    begun("c").release()
    begun("d").cut()
    begun("e").keep()
    running, waiting = begun("f"), play.guard.begin(play.guard.new_call(operation, "f", payload=1), wait=0)
    del running
    gc.collect()
    play.guard._facts.books.flush(play.store)

    assert type(waiting).__name__ == "Waiting"
    assert Counter(outcome for _, outcome in last_of(play.seen)) == {
        "new": 1,
        "released": 1,
        "in_doubt": 4,
        "in_progress": 1,
    }
    written = play.store.counts(0, 2**33)
    assert {one.outcome: one.number for one in written} == {"new": 1, "released": 1, "in_doubt": 4, "in_progress": 1}


def last_of(seen: Seen) -> list[tuple[str, str]]:
    last = [event for event in seen.events if event.outcome]
    assert Counter(event.attempt for event in last).most_common(1)[0][1] == 1
    assert {event.attempt for event in last} == {event.attempt for event in seen.events}
    return [(event.name, event.outcome) for event in last]


def test_a_hold_that_is_never_entered_is_released():
    play = ends("sync")
    held = play.guard.hold("charge", key="o-1", payload=1)
    del held
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "samekey-dropped":
            thread.join(SOON)

    assert play.ended() == [("released", "released")]


def test_a_late_holder_is_fenced_once_and_found():
    play = ends("sync")
    held = play.guard.hold("charge", key="o-1", payload=1, boundary=Repeatable())
    play.clock.advance(LEASE_SECONDS + 1)
    other = Guard(play.store, hooks=[play.seen])
    other.run("charge", lambda: "second", key="o-1", payload=1, boundary=Repeatable())
    with held:
        held.complete("first")
    play.guard._facts.books.flush(play.store)

    assert sorted(last_of(play.seen)) == [("completed", "new"), ("replayed", "replayed")]
    assert [play.seen.names.count(name) for name in ("late", "fenced", "taken_over")] == [1, 1, 1]
    (finding,) = play.store.findings(FINDINGS)
    assert (finding.kind, finding.severity, finding.operation) == ("late", "high", "charge")


def test_a_holder_that_may_no_longer_send_is_fenced():
    play = ends("sync")

    def effect() -> None:
        play.clock.advance(LEASE_SECONDS + 1)
        current().sending()

    with pytest.raises(Fenced):
        play.run(effect, boundary=Opaque(marked=True))

    assert len(play.ended()) == 1


def test_a_lease_that_is_lost_while_the_effect_runs_is_reported_once():
    play = ends("sync")
    held = play.guard.hold("charge", key="o-1", payload=1)
    with held:
        for _ in range(2):
            held.renewed(None, 0.0)  # what the timer gets from the store when another attempt has the key
        held.complete("done")

    assert play.seen.names == ["claimed", "lease_lost", "completed"]
    assert play.ended() == [("completed", "new")]


def test_a_caller_that_waits(colour):
    """In another thread, as another process would: the answer comes from the record, and the wait has a length."""
    play = ends(colour)
    began, go = threading.Event(), threading.Event()

    def effect() -> str:
        began.set()
        go.wait(SOON)
        return "done"

    first = threading.Thread(target=lambda: Guard(play.store).run("charge", effect, key="o-1", payload=1))
    first.start()
    began.wait(SOON)
    threading.Timer(0.05, go.set).start()
    assert play.run().replayed
    first.join()

    assert play.ended() == [("replayed", "waited")]
    (waited,) = [event for event in play.seen.events if event.name == "waited"]
    assert waited.duration is not None
    assert waited.duration > 0


def test_a_caller_that_does_not_wait_longer(colour):
    play = ends(colour, patience=0)
    held = Guard(play.store).hold("charge", key="o-1", payload=1)
    with pytest.raises(InProgress):
        play.run()
    del held

    assert play.ended() == [("in_progress", "in_progress")]


def test_an_interrupted_wait():
    play = ends("asyncio")
    held = Guard(play.store).hold("charge", key="o-1", payload=1)

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(play.guard.run("charge", asyncio.Event().wait, key="o-1", payload=1), 0.05)

    asyncio.run(main())
    del held

    assert play.ended() == [("in_progress", "in_progress")]


def test_an_effect_inside_a_transaction(tmp_path):
    seen = Seen()
    store = SqliteStore(tmp_path / "keys.db")
    guard = Guard(store, hooks=[seen])
    connection = sqlite3.connect(tmp_path / "keys.db", isolation_level=None)

    @guard.once(name="order", key="order_id", boundary=Atomic("connection"))
    def order(connection: sqlite3.Connection, order_id: str, error: Any = None) -> str:
        if error is not None:
            raise error
        return order_id

    order(connection, "o-1")
    order(connection, "o-1")
    for number, error in enumerate((ValueError("?"), NotDone("no"), Refused("no"))):
        with pytest.raises(type(error)):
            guard.on(begun(connection)).run("order", raising(error), key=f"e-{number}", payload=1)
        connection.execute("COMMIT")
    connection.close()
    guard.close()

    assert [outcome for _, outcome in last_of(seen)] == ["new", "replayed", "released", "released", "refused"]


def begun(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.execute("BEGIN IMMEDIATE")
    return connection


def raising(error: Exception) -> Any:
    def effect() -> None:
        raise error

    return effect
