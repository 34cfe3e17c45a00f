"""One private server with a database for each isolation level, and the guard in each library's colour on it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest

from samekey import AsyncGuard, Atomic, Guard, Policy
from samekey.core.record import Record
from samekey.drivers.postgres.migrate import migrate
from samekey.testing.servers import postgres
from tests.guard.helpers import together
from tests.servers.postgres.atomic.libraries import LIBRARIES, Conn, Effect, finished

LEVELS = ("read committed", "repeatable read", "serializable")

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Any]:
    with postgres(deadlock_timeout="100ms") as started:
        yield started


@pytest.fixture(scope="session")
def databases(server: Any) -> dict[str, str]:
    """A migrated database for each isolation level that its sessions start with."""
    made = {}
    for level in LEVELS:
        url = made[level] = server.create_database()
        migrate(url)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE orders (id text PRIMARY KEY, note text NOT NULL)")
            name = connection.info.dbname
            connection.execute(f"ALTER DATABASE {name} SET default_transaction_isolation = '{level}'")
    return made


# One operation is one function; what differs from test to test is a parameter.
async def _place(session: Any, key: str, work: Any) -> Any:
    return await work()


def _placed(session: Any, key: str, work: Any) -> Any:
    return work()


class Shop:
    """One library on one database: a guard, connections, and what is really there."""

    def __init__(self, library: type[Conn], url: str) -> None:
        self.library, self.url = library, url
        self.name = f"op{next(_numbers)}"  # each test has its own operation, and its own orders
        self.guard: Any = AsyncGuard(url) if library.asynchronous else Guard(url)
        self._conns: list[Conn] = []

    def order(self, key: str) -> str:
        return f"{self.name}-{key}"

    async def connect(self) -> Conn:
        conn = await self.library.connect(self.url)
        self._conns.append(conn)
        return conn

    async def on(self, conn: Conn, effect: Effect, key: str = "o-1", **kwargs: Any) -> Any:
        """guard.on(connection).run(...)"""
        rules = {"key": key, "payload": {}, **kwargs}
        if self.library.asynchronous:
            return await self.guard.on(conn.raw).run(self.name, lambda: effect(conn), **rules)
        return self.guard.on(conn.raw).run(self.name, lambda: finished(effect(conn)), **rules)

    async def once(self, conn: Conn, effect: Effect, key: str = "o-1", policy: Policy | None = None) -> Any:
        """A decorated function with Atomic("session")."""
        rules: dict[str, Any] = {"name": self.name, "key": "key", "boundary": Atomic("session"), "policy": policy}
        if self.library.asynchronous:
            return await self.guard.once(**rules, ignore={"work"})(_place).answer(conn.raw, key, lambda: effect(conn))
        return self.guard.once(**rules, ignore={"work"})(_placed).answer(conn.raw, key, lambda: finished(effect(conn)))

    def orders(self) -> list[str]:
        with psycopg.connect(self.url) as connection:
            rows = connection.execute("SELECT id FROM orders WHERE id LIKE %s ORDER BY id", (f"{self.name}-%",))
            return [row[0].removeprefix(f"{self.name}-") for row in rows]

    def look(self, key: str = "o-1") -> Record | None:
        with Guard(self.url) as guard:
            return guard.peek(self.name, key)

    def state(self, key: str = "o-1") -> str:
        record = self.look(key)
        return "none" if record is None else record.state.value

    def together(self, count: int, work: Any) -> list[Any]:
        """`await work(shop, connection, number)` so many times at once, each in a thread and loop of its own."""

        async def one(number: int) -> Any:
            mine = Shop(self.library, self.url)
            mine.name = self.name
            try:
                return await work(mine, await mine.connect(), number)
            finally:
                await mine.close()

        return together(count, lambda number: asyncio.run(one(number)), timeout=60)

    async def close(self) -> None:
        for conn in self._conns:
            with contextlib.suppress(Exception):  # broken on purpose
                await conn.close()
        closing = self.guard.close()
        if closing is not None:
            await closing


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> type[Conn]:
    return LIBRARIES[request.param]


@pytest.fixture
async def shop(library: type[Conn], databases: dict[str, str]) -> AsyncIterator[Shop]:
    made = Shop(library, databases["read committed"])
    yield made
    await made.close()


@pytest.fixture
async def conn(shop: Shop) -> Conn:
    return await shop.connect()
