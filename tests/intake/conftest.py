"""Two set-ups: the embedded default (SQLite), and PostgreSQL with Redis."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from samekey.intake import AsyncIntake, Intake, Settings
from samekey.intake.draining import Drain
from samekey.testing.servers import Postgres, RedisServer, postgres, redis_server


@pytest.fixture(scope="session")
def pg() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    with redis_server(databases="500") as running:
        yield running


_databases = iter(range(1, 500))


@dataclass
class Setup:
    """Where an intake keeps its runs; `intake()` makes a node on it."""

    name: str
    db: str
    redis: str | None = None
    stack: ExitStack = field(default_factory=ExitStack)

    def intake(self, **more: Any) -> Intake:
        settings = more.pop("settings", None) or Settings(**{n: more.pop(n) for n in list(more) if n in _SETTINGS})
        return self.stack.enter_context(Intake(self.db, self.redis, settings=settings, **more))

    def async_intake(self, **more: Any) -> AsyncIntake:
        settings = Settings(**{n: more.pop(n) for n in list(more) if n in _SETTINGS})
        return AsyncIntake(self.db, self.redis, settings=settings, **more)

    @contextmanager
    def draining(self, **more: Any) -> Iterator[Drain]:
        stop = threading.Event()
        drain = Drain(self.intake(**more))
        thread = threading.Thread(target=drain.run, args=(stop,))
        thread.start()
        try:
            yield drain
        finally:
            stop.set()
            thread.join(30)


_SETTINGS = set(Settings.__slots__)


@pytest.fixture(params=["embedded", "served"])
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Setup]:
    if request.param == "embedded":
        made = Setup("embedded", f"sqlite:///{tmp_path}/runs.db")
    else:
        db: str = request.getfixturevalue("pg").create_database()
        redis: RedisServer = request.getfixturevalue("shared_redis")
        made = Setup("served", db, redis.url(next(_databases)))
        made.intake()._database.migrate()
    with made.stack:
        yield made


@pytest.fixture
def served(pg: Postgres, shared_redis: RedisServer) -> Iterator[Setup]:
    made = Setup("served", pg.create_database(), shared_redis.url(next(_databases)))
    made.intake()._database.migrate()
    with made.stack:
        yield made


def together(count: int, work: Callable[[int], Any]) -> list[Any]:
    """The results of `work(0)`, `work(1)`, ... in threads that begin at the same moment; an exception is a result."""
    gate, found = threading.Barrier(count), [None] * count

    def one(number: int) -> None:
        gate.wait()
        try:
            found[number] = work(number)
        except Exception as error:
            found[number] = error  # type: ignore[call-overload]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
