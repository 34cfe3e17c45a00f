"""Ctrl-C at every place: whatever it cuts short, the next caller is served, and nothing is done twice.

Python looks for signals as a function begins and as one written in C has returned. A profiler hears of the same two
moments, so each of them can be tried in its turn, and none by chance.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from samekey import Answer, Atomic, Guard, Held, InProgress, Misconfigured, NotDone, Opaque, Policy, State, current
from samekey.guard.performer import Performer
from samekey.stores.sqlite import SqliteStore, _process
from tests.guard.helpers import until


class SoftLimit(Exception):
    """As a worker's soft time limit raises: out of a signal handler, and not a BaseException only."""


def interrupted(work: Callable[[], Any], at: int, by: type[BaseException] = KeyboardInterrupt) -> bool:
    """Do `work`, interrupted at its so-manieth place; whether there was one."""
    seen = 0

    def look(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal seen
        if event in ("call", "c_return"):
            seen += 1
            if seen == at:
                raise by

    gc.disable()  # other people's finalizers are no places of ours
    try:
        sys.setprofile(look)  # in here: newer Pythons may tell of its own return
        work()
    except by:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    return seen >= at


def places(work: Callable[[str], Any], by: type[BaseException] = KeyboardInterrupt) -> Iterator[str]:
    """The key of each call of `work` that was interrupted, one place further each time."""
    for at in itertools.count(1):
        key = f"o-{at}"
        if not interrupted(lambda key=key: work(key), at, by):  # type: ignore[misc]
            assert at > 30, "hardly anything was interrupted"
            return
        yield key


class Desk:
    """A guard, and an effect that counts itself."""

    def __init__(self, address: str) -> None:
        self.guard = Guard(address, policy=Policy(patience=0, lease=3600))
        self.effects: list[str] = []
        self.guard.run("warm", int, key="o-0", payload={})

    def effect(self, key: str) -> str:
        if current()._call.terms.marked:
            current().sending()
        self.effects.append(key)
        return key

    def plain(self, key: str) -> Any:
        return self.guard.run("charge", lambda: self.effect(key), key=key, payload={})

    def marked(self, key: str) -> Any:
        boundary = Opaque(marked=True)
        return self.guard.run("charge", lambda: self.effect(key), key=key, payload={}, boundary=boundary)

    def held(self, key: str) -> Any:
        held = self.guard.hold("charge", key=key, payload={})
        if isinstance(held, Answer):
            return held
        with held:
            held.complete(self.effect(key))
        return held.answer

    def many(self, key: str) -> Any:
        payloads = [{"id": key}, {"id": f"{key}-b"}, {"id": f"{key}-c"}]
        return self.guard.run_many("charge", lambda payload: self.effect(payload["id"]), payloads, key="id")

    def taken(self, key: str) -> Any:
        """A key that is free again is taken, without a flight."""
        if self.guard.peek("charge", key) is None:
            with contextlib.suppress(NotDone):
                self.guard.run("charge", not_done, key=key, payload={})
        return self.plain(key)

    def needing(self, key: str) -> Any:
        """An effect of a batch needs what stands behind it."""
        later = f"{key}-b"

        def effect(payload: dict[str, str]) -> str:
            if payload["id"] == later:
                return self.effect(later)
            self.guard.run("charge", lambda: self.effect(later), key=later, payload={"id": later})
            return self.effect(key)

        return self.guard.run_many("charge", effect, [{"id": key}, {"id": later}], key="id")


def not_done() -> None:
    raise NotDone("funds")


SHAPES = ["plain", "marked", "held", "many", "taken", "needing"]


@pytest.fixture(params=["memory", "sqlite"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    made = Desk("memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/keys.db?synchronous=normal")
    yield made
    made.guard.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # out of a finalizer nothing comes
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("by", [KeyboardInterrupt, SoftLimit])
def test_the_next_caller_is_served_and_nothing_is_done_twice(
    desk: Desk, tmp_path: Path, shape: str, by: type[BaseException]
):
    work = getattr(desk, shape)
    with contextlib.closing(sqlite3.connect(tmp_path / "keys.db")) as other:
        for key in places(work, by):
            assert desk.guard._leases.living() == []  # or it would be renewed as long as the process lives
            with pytest.raises(Misconfigured):
                current()
            # A hold that was dropped unentered is let go in a thread of its own.
            until(lambda: not any(flight.flyer() for flight in list(desk.guard._flights._flying.values())))
            assert desk.guard.run("next", int, key=key, payload={}).recorded
            if "sqlite" in desk.guard.store_name:
                # And not in a transaction that the interrupted call left open: that would go with the process.
                assert other.execute(NEXT, (key,)).fetchall() == [("completed",)]
            try:
                work(key)
            except Exception:
                assert desk.guard.peek("charge", key).state in (State.STARTED, State.IN_DOUBT)  # type: ignore[union-attr]

    assert len(desk.effects) == len(set(desk.effects))
    desk.guard.close()
    assert desk.guard._shut  # nobody who is gone keeps the store open


NEXT = "SELECT state FROM samekey_records WHERE operation = 'next' AND key = ?"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("by", [KeyboardInterrupt, SoftLimit])
@pytest.mark.parametrize("ending", ["returns", "raises"])
def test_an_atomic_call_leaves_no_transaction_open(tmp_path: Path, ending: str, by: type[BaseException]):
    """The next call would join it, and answer for what nobody commits."""
    guard = Guard(f"sqlite:///{tmp_path}/keys.db?synchronous=normal", policy=Policy(patience=0))
    guard.peek("place", "o-0")  # the tables are there
    db, other = (sqlite3.connect(tmp_path / "keys.db", isolation_level=None) for _ in range(2))
    db.execute("CREATE TABLE orders (id TEXT UNIQUE)")

    @guard.once(name="place", key="id", boundary=Atomic("db"))
    def place(db: sqlite3.Connection, id: str) -> str:
        db.execute("INSERT INTO orders VALUES (?)", (id,))
        if ending == "raises":
            raise ValueError(id)
        return id

    def call(key: str) -> None:
        with contextlib.suppress(ValueError):
            place(db, key)

    for key in places(call, by):
        assert not db.in_transaction
        call(key)
        rows = other.execute("SELECT count(*) FROM orders WHERE id = ?", (key,)).fetchone()
        assert rows == (0 if ending == "raises" else 1,)
        assert (guard.peek("place", key) is None) == (ending == "raises")
    db.close()
    other.close()
    guard.close()


def test_a_flight_whose_flyer_is_gone_keeps_nobody_waiting(desk: Desk, monkeypatch: pytest.MonkeyPatch):
    """Interrupted as it was to land: the next caller of that key is the one who flies."""
    with monkeypatch.context() as torn:
        torn.setattr(Performer, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            desk.plain("o-1")
    assert len(desk.guard._flights._flying) == 1

    answer = desk.guard.run("charge", int, key="o-1", payload={}, policy=Policy(patience=60))
    assert (answer.replayed, desk.guard._flights._flying) == (True, {})


def interrupt(performer: Performer) -> None:
    raise KeyboardInterrupt


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_nobody_is_watched_for_who_was_interrupted_as_he_waited(tmp_path: Path):
    """Or a thread would look at the file for him as long as the process lives."""
    desk = Desk(f"sqlite:///{tmp_path}/keys.db?synchronous=normal")
    held = desk.guard.hold("charge", key="o-1", payload={})
    other = Guard(f"sqlite:///{tmp_path}/keys.db?synchronous=normal", policy=Policy(patience=0))

    def wait(key: str) -> None:
        # RuntimeError: of threading's own, which gives back a lock twice if it is interrupted as a thread starts.
        with contextlib.suppress(InProgress, RuntimeError):
            other.run("charge", int, key="o-1", payload={})

    for _ in places(wait):
        assert not other.store._process.watch._waiting  # type: ignore[attr-defined]
    assert isinstance(held, Held)
    other.close()
    desk.guard.close()


def test_a_sweep_that_is_interrupted_leaves_no_transaction_open(tmp_path: Path):
    store = SqliteStore(tmp_path / "keys.db", synchronous="normal")
    with contextlib.closing(sqlite3.connect(tmp_path / "keys.db", timeout=0, isolation_level=None)) as other:
        for _ in places(lambda key: store.sweep(10)):
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
    store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_fork_that_is_interrupted_leaves_nobody_without_a_turn(tmp_path: Path):
    """What is raised around a fork goes nowhere, and the fork goes on."""
    stores = [SqliteStore(tmp_path / f"{number}.db", synchronous="normal") for number in range(3)]

    def fork(key: str) -> None:
        try:
            _process._before_fork()
        finally:
            _process._after_fork_in_parent()

    for at in range(1, 40):
        interrupted(lambda: fork(""), at)
        assert not any(one._process.turn.locked() or one._process.reading.locked() for one in stores)
    for store in stores:
        store.close()
