"""The store's clock is set: what retention and a provider's window make of time that never passed, or passed twice."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from samekey import Absent, Asks, Guard, Happened, InDoubt, InProgress, Keyed, Policy, current
from samekey.stores.memory import MemoryStore
from samekey.stores.sqlite import SqliteStore

HOUR = 3600.0


class Wall:
    """A clock on the wall: `passes` is time, `set_by` is somebody's hand."""

    def __init__(self) -> None:
        self.true, self.off = 1_000_000.0, 0.0

    def __call__(self) -> float:
        return self.true + self.off

    def passes(self, seconds: float) -> None:
        self.true += seconds

    def set_by(self, seconds: float) -> None:
        self.off += seconds


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture(params=["memory", "sqlite"])
def guard(request, tmp_path, wall):
    store = MemoryStore(wall) if request.param == "memory" else SqliteStore(tmp_path / "keys.db", clock=wall)
    yield Guard(store)
    store.close()


def test_a_clock_set_forward_past_the_retention_forgets_what_is_completed(guard, wall):
    """The window: a day that never passed is over all the same."""
    effects: list[str] = []

    def charge() -> int:
        effects.append("charge")
        return len(effects)

    guard.run("charge", charge, key="o-1", payload={})
    wall.set_by(23 * HOUR)
    assert guard.run("charge", charge, key="o-1", payload={}).replayed
    wall.set_by(2 * HOUR)
    assert not guard.run("charge", charge, key="o-1", payload={}).replayed
    assert len(effects) == 2


class Bank:
    """Dedups for a day, on a clock of its own; the first answer is lost on the way."""

    def __init__(self, wall: Wall) -> None:
        self.wall, self.calls, self.charges = wall, 0, list[float]()

    def charge(self) -> str:
        assert current().provider_key()
        self.calls += 1
        if not self.charges or self.wall.true - self.charges[-1] > 24 * HOUR:
            self.charges.append(self.wall.true)
        if self.calls == 1:
            raise ConnectionError("the answer was lost")
        return "charged"


def test_a_clock_set_back_makes_a_providers_window_last_too_long(guard, wall):
    """The window: 25 hours passed and the clock tells 15, so the provider is asked for what it has forgotten."""
    bank = Bank(wall)
    with pytest.raises(ConnectionError):
        guard.run("charge", bank.charge, key="o-1", payload={}, boundary=Keyed(window=24 * HOUR))
    wall.passes(25 * HOUR)
    wall.set_by(-10 * HOUR)

    assert guard.run("charge", bank.charge, key="o-1", payload={}, boundary=Keyed(window=24 * HOUR)).result == "charged"
    assert len(bank.charges) == 2


def test_without_that_hand_both_windows_are_shut(guard, wall):
    bank = Bank(wall)
    with pytest.raises(ConnectionError):
        guard.run("charge", bank.charge, key="o-1", payload={}, boundary=Keyed(window=24 * HOUR))
    wall.passes(25 * HOUR)

    with pytest.raises(InDoubt, match="window is over"):
        guard.run("charge", bank.charge, key="o-1", payload={}, boundary=Keyed(window=24 * HOUR))
    assert len(bank.charges) == 1


# -- servers: one clock for leases and everything else ---------------------------------------------------------


@pytest.fixture
def served(wall):
    """As on PostgreSQL, MySQL and Redis: the clock that is set is the one that leases count on."""
    store = MemoryStore(wall)
    yield Guard(store, policy=Policy(patience=0))
    store.close()


@pytest.mark.parametrize("marked", [False, True], ids=["unmarked", "marked"])
def test_a_clock_set_forward_makes_an_absence_believed_too_early(served, wall, marked):
    """The window: lease and belief are over although no time has passed, and the first request is still on its way."""
    charges: list[str] = []
    absence = Asks(lambda record: Happened() if charges else Absent(), believe_absent_after=HOUR, marked=marked)

    def charge(name: str, meanwhile: Callable[[], None]) -> Any:
        def effect() -> str:
            if marked:
                current().sending()
            meanwhile()
            charges.append(name)
            return name

        return served.run("charge", effect, key="o-1", payload={}, boundary=absence)

    def another_comes() -> None:
        wall.set_by(2 * HOUR)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(charge, "second", lambda: None).result().result == "second"

    assert charge("first", another_comes).result == "second"  # one answer
    assert charges == ["second", "first"]


def test_a_clock_set_back_keeps_the_key_of_the_dead_that_much_longer(served, wall):
    """The window: its lease ends when the clock gets there again. Whoever is alive settles as ever."""
    dead = served.hold("charge", key="o-1", payload={}, boundary=Keyed(window=24 * HOUR))
    alive = served.hold("charge", key="o-2", payload={})
    wall.set_by(-10 * HOUR)
    with alive:
        alive.complete("done")
    assert served.run("charge", pytest.fail, key="o-2", payload={}).result == "done"

    wall.passes(9 * HOUR)
    with pytest.raises(InProgress):
        served.run("charge", pytest.fail, key="o-1", payload={}, boundary=Keyed(window=24 * HOUR))
    wall.passes(1 * HOUR + 31)
    assert served.run("charge", lambda: "ran", key="o-1", payload={}, boundary=Keyed(window=24 * HOUR)).result == "ran"
    assert dead is not None  # kept until here: a hold that is dropped unentered is let go
