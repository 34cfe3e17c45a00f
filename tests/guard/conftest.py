"""Places for records, and the guard in both colours on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from samekey.stores.sqlite import _process
from samekey.testing.clock import ManualClock
from tests.guard.helpers import FileLedger, Ledger, Place, Side

KINDS = ("memory", "sqlite")
COLOURS = ("sync", "asyncio", "trio")

# Where a test wants both a place and a colour, four of the six: each store in both colours, each loop once.
# What is special about the other two (trio on SQLite, tasks on memory) has tests of its own in test_loops.py.
LEFT_OUT = {("memory", "asyncio"), ("sqlite", "trio")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = [item for item in items if not LEFT_OUT & {_both(item)}]


def _both(item: pytest.Item) -> tuple[str, str]:
    callspec = getattr(item, "callspec", None)
    given = {} if callspec is None else callspec.params
    return str(given.get("place", given.get("still"))), str(given.get("colour"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_700_000_000)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A memory or a SQLite file, on real time."""
    made = Place(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture(params=KINDS)
def still(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Place]:
    """A memory or a SQLite file whose clock moves only when told to."""
    made = Place(request.param, tmp_path, clock)
    yield made
    made.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Place]:
    made = Place("sqlite", tmp_path)
    yield made
    made.close()


@pytest.fixture
def looks_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which file lies there is looked at before every write, however short ago that was done."""
    monkeypatch.setattr(_process, "LOOK_SECONDS", 0.0)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Place]:
    made = Place("memory", tmp_path)
    yield made
    made.close()


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def side(place: Place, colour: str) -> Side:
    """A guard in each colour on each store."""
    return place.side(colour)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def shared_ledger(tmp_path: Path) -> FileLedger:
    return FileLedger(tmp_path / "effects")
