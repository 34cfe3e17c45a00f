"""Races and corners of the writer's queue, found by thinking about what can come between two lines."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
import threading
import time

import pytest

from samekey import Asks, AsyncGuard, Guard, Happened, NotDone, Policy, State, StoreUnavailable
from samekey.drivers import sqlite as driver
from tests.guard.helpers import Ledger, Place, Thread, followers, locked, together, until, until_async


def test_a_store_closed_between_the_look_and_the_queue_answers_its_caller(sqlite: Place, colour: str, ledger: Ledger):
    """The caller saw an open store; before its command is queued, somebody closes it."""
    side = sqlite.side(colour)
    side.run("charge", ledger.add, key="warm", payload={})
    process = getattr(side.guard.store, "sync", side.guard.store)._process
    enqueue = process.enqueue

    def closed_first(job, **how):
        process.close()
        enqueue(job, **how)

    process.enqueue = closed_first
    with process.turn if colour == "sync" else contextlib.nullcontext():
        process.close, close = (lambda: setattr(process, "closed", True)), process.close
        outcome = Thread(lambda: side.run("charge", ledger.add, key="o-1", payload={})).outcome(4)
    close()

    assert isinstance(outcome, StoreUnavailable)
    assert len(ledger) == 1


def test_a_bug_in_the_writer_answers_its_callers_and_the_next_ones_still_write(sqlite: Place, colour: str, monkeypatch):
    """Whatever the writer thread meets, nobody waits for it for ever, and no transaction stays open."""
    side = sqlite.side(colour)
    side.run("charge", lambda: 1, key="warm", payload={})
    store = getattr(side.guard.store, "sync", side.guard.store)
    told = store._reply
    broken: list[object] = []

    def breaks(here, before, after, moment):
        if not broken and after is not None and after.key.text == "o-1":
            broken.append(after)
            raise RuntimeError("a bug in here")
        return told(here, before, after, moment)

    monkeypatch.setattr(store, "_reply", breaks)
    with pytest.MonkeyPatch.context() as quiet:
        quiet.setattr(threading, "excepthook", lambda args: None)
        with store._process.turn:
            first = Thread(lambda: side.run("charge", lambda: 1, key="o-1", payload={}))
            until(lambda: store._process.queue)
        outcome = first.outcome(4)
        again = Thread(lambda: side.run("charge", lambda: 2, key="o-2", payload={})).result(4)

    assert isinstance(outcome, Exception)
    assert again.result == 2


def test_many_callers_of_a_busy_file_are_refused_together_not_one_after_the_other(
    sqlite: Place, colour: str, ledger: Ledger, monkeypatch
):
    """Each waits as long as one would: twenty in the queue must not wait twenty times the limit."""
    patiently = driver.patiently
    side = sqlite.side(colour, policy=Policy(patience=1))
    side.run("charge", ledger.add, key="warm", payload={})
    monkeypatch.setattr(driver, "patiently", lambda work, seconds=0.2: patiently(work, min(seconds, 0.2)))

    with locked(sqlite.path):
        began = time.monotonic()
        outcomes = together(20, lambda n: side.run("charge", ledger.add, key=n, payload={}))
        took = time.monotonic() - began

    assert all(isinstance(one, StoreUnavailable) for one in outcomes)
    assert len(ledger) == 1
    assert took < 2.0


def test_opening_a_store_does_not_wait_for_somebody_elses_write(sqlite: Place):
    """Looking at a key while a long transaction runs: `samekey show` has nothing to write."""
    sqlite.guard().run("charge", lambda: 1, key="o-1", payload={})
    with locked(sqlite.path):
        began = time.monotonic()
        with Guard(sqlite.url) as guard:
            record = guard.peek("charge", "o-1")

    assert record is not None
    assert time.monotonic() - began < 2


@pytest.mark.usefixtures("looks_each_time")
def test_a_file_that_is_replaced_is_noticed_before_the_next_claim(sqlite: Place, colour: str, ledger: Ledger):
    """Restored from a backup: a process that writes on into the old file would win keys that others win too."""
    here = sqlite.side(colour)
    here.run("charge", ledger.add, key="before", payload={})
    for path in sqlite.folder.glob("keys.db*"):
        path.unlink()

    answer = Thread(lambda: here.run("charge", ledger.add, key="o-1", payload={})).result()
    there = sqlite.side(colour).run("charge", ledger.add, key="o-1", payload={})

    assert (answer.result, there.replayed, len(ledger)) == (2, True, 2)
    assert sqlite.store().carry_out is not None


@pytest.mark.usefixtures("looks_each_time")
@pytest.mark.parametrize("way", ["mv", "backup API"])
def test_asks_asks_first_after_a_file_was_restored_from_its_own_backup(
    sqlite: Place, colour: str, ledger: Ledger, way: str
):
    """The claim of o-1 is younger than the backup, so it is gone; the provider knows that the effect happened."""
    events: list[str] = []
    side = sqlite.side(colour, hooks=[lambda event: events.append(event.name)])
    asks = Asks(lambda record: Happened(1))
    side.run("charge", ledger.add, key="before", payload={}, boundary=asks)
    file, backup = sqlite.folder / "keys.db", sqlite.folder / "backup.db"
    with contextlib.closing(sqlite3.connect(file)) as source, contextlib.closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    side.run("charge", ledger.add, key="o-1", payload={}, boundary=asks)
    if way == "mv":
        for log in sqlite.folder.glob("keys.db-*"):
            log.unlink()
        backup.replace(file)
    else:
        with contextlib.closing(sqlite3.connect(backup)) as source, contextlib.closing(sqlite3.connect(file)) as target:
            source.backup(target)

    answer = side.run("charge", ledger.add, key="o-1", payload={}, boundary=asks)

    assert len(ledger) == 2  # not run again
    if not answer.replayed:  # an async read may still find the answer in the old file, which this process has open
        assert (answer.result, events.count("store_lost_memory")) == (1, 1)


@pytest.mark.usefixtures("looks_each_time")
def test_a_takeover_by_another_process_that_a_restore_lost_is_not_noticed(sqlite: Place, colour: str, ledger: Ledger):
    """A window: the newest claim that this process knows of is in the backup, and so is the released record."""
    events: list[str] = []
    here, other = sqlite.side(colour, hooks=[lambda event: events.append(event.name)]), sqlite.side(colour)

    def refused() -> None:
        raise NotDone("the provider is closed")

    with pytest.raises(NotDone):
        here.run("charge", refused, key="o-1", payload={})
    file, backup = sqlite.folder / "keys.db", sqlite.folder / "backup.db"
    with contextlib.closing(sqlite3.connect(file)) as source, contextlib.closing(sqlite3.connect(backup)) as target:
        source.backup(target)
    other.run("charge", ledger.add, key="o-1", payload={})
    with contextlib.closing(sqlite3.connect(backup)) as source, contextlib.closing(sqlite3.connect(file)) as target:
        source.backup(target)

    answer = here.run("charge", ledger.add, key="o-1", payload={})

    assert (answer.replayed, len(ledger), events.count("store_lost_memory")) == (False, 2, 0)


@pytest.mark.usefixtures("looks_each_time")
def test_a_batch_notices_a_replaced_file_too(sqlite: Place, colour: str, ledger: Ledger):
    here = sqlite.side(colour)
    here.run("charge", ledger.add, key="before", payload={})
    for path in sqlite.folder.glob("keys.db*"):
        path.unlink()

    Thread(lambda: here.run_many("charge", lambda one: ledger.add(), [{"id": "o-1"}], key="id")).result()
    there = sqlite.side(colour).run("charge", ledger.add, key="o-1", payload={"id": "o-1"})

    assert there.replayed
    assert len(ledger) == 2


@pytest.mark.usefixtures("looks_each_time")
def test_a_file_replaced_while_an_effect_runs_does_not_lose_its_answer_silently(sqlite: Place, colour: str):
    """The claim is gone with the old file; the holder must not be told that its answer is recorded."""
    side = sqlite.side(colour, policy=Policy(lease=0.2))

    def effect():
        for path in sqlite.folder.glob("keys.db*"):
            path.unlink()
        return "done"

    outcome = Thread(lambda: side.run("charge", effect, key="o-1", payload={})).outcome()
    with Guard(sqlite.url) as fresh:
        record = fresh.peek("charge", "o-1")

    assert record is not None or not getattr(outcome, "recorded", False)


@pytest.mark.usefixtures("looks_each_time")
def test_a_folder_that_goes_away_while_an_effect_runs_does_not_take_its_answer(sqlite: Place, colour: str):
    """A volume that is unmounted: what happened is told to its caller, and that it is not recorded."""
    side = sqlite.side(colour, policy=Policy(lease=0.2))

    def effect():
        shutil.rmtree(sqlite.folder)
        return "done"

    answer = Thread(lambda: side.run("charge", effect, key="o-1", payload={})).result()

    assert (answer.result, answer.recorded) == ("done", False)


@pytest.mark.slow
def test_the_writer_thread_ends_when_idle_and_starts_again(sqlite: Place, ledger: Ledger, monkeypatch):
    """The next command starts a new one, also at the moment when the idle one ends."""
    from samekey.stores.sqlite import _process

    monkeypatch.setattr(_process, "WRITER_IDLE_SECONDS", 0.01)

    async def main() -> None:
        guard = sqlite.async_guard()

        async def effect() -> int:
            return ledger.add()

        for key in range(30):
            await asyncio.wait_for(guard.run("charge", effect, key=key, payload={}), 5)
            if key % 2:
                await until_async(lambda: guard.store.sync._process._thread is None)
            else:
                await asyncio.sleep(0.01)  # real time: the writer thread is about to end

    asyncio.run(main())
    assert len(ledger) == 30


def test_a_reader_is_not_blocked_by_a_writer_that_waits(sqlite: Place):
    """A replay needs no turn: it is answered while the writing connection waits for another process."""
    guard = sqlite.guard()
    guard.run("charge", lambda: "known", key="known", payload={})
    with locked(sqlite.path) as other:
        waiting = Thread(lambda: guard.run("charge", lambda: "new", key="new", payload={}))
        until(lambda: guard.store._process.turn.locked())
        began = time.monotonic()
        assert guard.run("charge", lambda: "again", key="known", payload={}).result == "known"
        assert time.monotonic() - began < 1
        other.execute("ROLLBACK")
        assert waiting.result().result == "new"


def test_a_store_that_cannot_be_opened_is_down_and_obeys_the_policy(ledger: Ledger, monkeypatch):
    """store_down="run": the address is right, the store does not answer - when it is opened or later, all the same."""
    from samekey.stores.memory import AsyncMemoryStore, MemoryStore

    def down(cls, url):
        raise StoreUnavailable("nobody answers at this address")

    monkeypatch.setattr(MemoryStore, "from_url", classmethod(down))
    monkeypatch.setattr(AsyncMemoryStore, "from_url", classmethod(down))

    with pytest.raises(StoreUnavailable):
        Guard("memory://").run("charge", ledger.add, key="o-1", payload={})
    assert len(ledger) == 0
    answer = Guard("memory://", policy=Policy(store_down="run")).run("charge", ledger.add, key="o-1", payload={})
    assert (answer.result, answer.guarded) == (1, False)


def test_two_threads_that_use_a_new_guard_at_once_use_one_store(ledger: Ledger, monkeypatch):
    """Each would open memory of its own, and what the first has done the second would do again."""
    from samekey.stores.memory import MemoryStore

    entered, done = threading.Event(), threading.Event()
    opened: list[MemoryStore] = []

    def slow(cls, url):
        store = cls()
        opened.append(store)
        if len(opened) == 1:
            entered.wait(0.2)  # for a second one that must not come
        else:
            entered.set()
            done.wait(5)
        return store

    monkeypatch.setattr(MemoryStore, "from_url", classmethod(slow))
    guard = Guard("memory://")
    first = Thread(lambda: guard.run("charge", ledger.add, key="a", payload={}))
    until(lambda: opened)
    second = Thread(lambda: guard.run("charge", ledger.add, key="b", payload={}))
    first.result()
    done.set()
    second.result()

    assert guard.run("charge", ledger.add, key="a", payload={}).replayed
    assert (len(ledger), len(opened)) == (2, 1)


def test_a_result_changed_after_it_was_returned_does_not_change_the_record(place: Place, colour: str):
    side = place.side(colour)
    mine = {"items": [1]}
    side.run("charge", lambda: mine, key="o-1", payload={}).result["items"].append(2)
    mine["items"].append(3)

    assert side.run("charge", lambda: None, key="o-1", payload={}).result == {"items": [1]}


def test_a_payload_changed_by_its_effect_is_still_the_payload_of_the_call(place: Place, colour: str, ledger: Ledger):
    side = place.side(colour)

    @side.once(name="charge", key="order_id")
    def charge(order_id: str, items: list[int]) -> int:
        items.append(99)
        return ledger.add()

    assert [charge("o-1", [1]), charge("o-1", [1])] == [1, 1]


async def test_a_follower_whose_payload_changed_while_it_waited_is_judged_by_what_it_asked(place: Place):
    guard: AsyncGuard = place.async_guard()
    go = asyncio.Event()

    async def effect():
        await go.wait()
        return "done"

    mine = {"amount": 1}
    first = asyncio.create_task(guard.run("charge", effect, key="o-1", payload={"amount": 1}))
    await asyncio.sleep(0)
    second = asyncio.create_task(guard.run("charge", effect, key="o-1", payload=mine))
    await until_async(lambda: followers(guard))
    mine["amount"] = 2
    go.set()

    assert (await first).result == (await second).result == "done"


def test_sqlite_files_of_two_guards_in_one_process_do_not_mix(tmp_path, ledger: Ledger):
    with Guard(f"sqlite:///{tmp_path / 'a.db'}") as a, Guard(f"sqlite:///{tmp_path / 'b.db'}") as b:
        a.run("charge", ledger.add, key="o-1", payload={})
        b.run("charge", ledger.add, key="o-1", payload={})
    assert len(ledger) == 2


def test_relative_addresses_stay_where_they_were_when_the_process_moves(tmp_path, monkeypatch, ledger: Ledger):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    monkeypatch.chdir(tmp_path / "one")
    with Guard("sqlite:///keys.db") as guard:
        guard.run("charge", ledger.add, key="o-1", payload={})
        monkeypatch.chdir(tmp_path / "two")
        assert guard.run("charge", ledger.add, key="o-1", payload={}).replayed
        guard.run("charge", ledger.add, key="o-2", payload={})

    assert list((tmp_path / "two").iterdir()) == []


def test_a_database_of_the_users_own_may_be_the_store(sqlite: Place, ledger: Ledger):
    connection = sqlite3.connect(sqlite.path)
    connection.execute("CREATE TABLE orders (id TEXT)")
    connection.commit()
    connection.close()

    sqlite.guard().run("charge", ledger.add, key="o-1", payload={})
    assert sqlite.peek("charge", "o-1").state is State.COMPLETED
