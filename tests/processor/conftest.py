"""A processor in both colours on every store: the tests in test_every_store.py know neither."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from samekey import AsyncGuard, Guard, Policy
from samekey.drivers.mysql.migrate import migrate as migrate_mysql
from samekey.drivers.postgres.migrate import migrate as migrate_postgres
from samekey.processor import AsyncIdempotentProcessor, IdempotentProcessor
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing.faulty import AsyncFaultyStore, FaultyStore

STORES = ("memory", "sqlite", "postgres", "redis", "mariadb", "layered")

_names = itertools.count()


@pytest.fixture(scope="module")
def addresses(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """The address of a store, which is made when it is first asked for."""
    made: dict[str, str] = {}

    def server(name: str) -> Any:
        return request.getfixturevalue(f"samekey_{name}")

    def make(kind: str) -> str:
        match kind:
            case "sqlite":
                return f"sqlite:///{tmp_path_factory.mktemp('keys') / 'keys.db'}"
            case "postgres":
                url: str = server("postgres").create_database()
                migrate_postgres(url)
            case "mariadb":
                url = server("mariadb").create_database()
                migrate_mysql(url)
            case "redis":
                url = server("redis").create_database()
            case _:
                url = f"{address('redis')} {address('postgres')}"
        return url

    def address(kind: str) -> str:
        if kind not in made:
            made[kind] = make(kind)
        return made[kind]

    return address


class Side:
    """Processors of one colour on one store, called from plain code."""

    def __init__(self, store: Callable[[], Any], runner: asyncio.Runner | None) -> None:
        self._store, self._runner = store, runner
        self._open: list[Any] = []
        self.name = f"handle-{next(_names)}"  # tests share a database

    def processor(self, fn: Callable[[Any], Any], **options: Any) -> Any:
        """A new one, with a guard of its own: as another process would have."""
        if self._runner is None:
            made: Any = IdempotentProcessor(fn, self._store(), name=self.name, **options)
        else:

            async def awaited(payload: Any) -> Any:
                await asyncio.sleep(0)
                return fn(payload)

            made = AsyncIdempotentProcessor(awaited, self._store(), name=self.name, **options)
        self._open.append(made)
        return made

    def process(self, processor: Any, payload: Any) -> Any:
        found = processor.process(payload)
        return found if self._runner is None else self._runner.run(found)

    def close(self, processor: Any) -> None:
        self._open.remove(processor)
        closing = processor.close()
        if self._runner is not None:
            self._runner.run(closing)

    def close_all(self) -> None:
        for one in list(self._open):
            self.close(one)

    @contextlib.contextmanager
    def failing(self, processor: Any, *faults: Any) -> Iterator[None]:
        """Until the block ends, the store of this processor meets these faults."""
        guard: Guard | AsyncGuard = processor._guard
        with guard.through(lambda store: (FaultyStore if self._runner is None else AsyncFaultyStore)(store, faults)):
            yield


@pytest.fixture(params=STORES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=("sync", "async"))
def side(request: pytest.FixtureRequest, kind: str, addresses: Callable[[str], str], tmp_path: Path) -> Iterator[Side]:
    memory = MemoryStore()
    with contextlib.ExitStack() as left:
        runner = left.enter_context(asyncio.Runner()) if request.param == "async" else None

        def store() -> Any:
            if kind != "memory":
                return addresses(kind)
            return memory if runner is None else AsyncMemoryStore(memory)

        made = Side(store, runner)
        left.callback(made.close_all)
        yield made


@pytest.fixture
def quick() -> Policy:
    """A lease that is over soon, for tests in which a worker is lost."""
    return Policy(lease=0.3)
