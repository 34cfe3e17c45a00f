"""An inbox in the user's database: claim, business rows and answer commit together, through each library."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.orm import sessionmaker

from samekey import AsyncGuard, Atomic, Guard, NotDone, Refused
from samekey.drivers.postgres.migrate import migrate
from samekey.messages import Action, AsyncHandler, Handler, Message
from samekey.testing.servers import Postgres

pytestmark = pytest.mark.slow


@pytest.fixture
def database(samekey_postgres: Postgres) -> str:
    url = samekey_postgres.create_database()
    migrate(url)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE orders (id text)")
    return url


def rows(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY id").fetchall()]


def message(key: str, do: str = "ok") -> Message:
    return Message(json.dumps({"key": key, "do": do}).encode(), {}, "orders")


def insert(message: Message, connection: Any) -> str:
    statement = "INSERT INTO orders VALUES ('%s')" % message.value["key"].replace("'", "")
    connection.execute(sa.text(statement) if hasattr(connection, "flush") else statement)
    match message.value["do"]:
        case "error":
            raise RuntimeError("an ordinary failure")
        case "not_done":
            raise NotDone("busy")
        case "refused":
            raise Refused("no")
    return str(message.value["key"])


def by_psycopg(url: str) -> Callable[[], Any]:
    return lambda: psycopg.connect(url)


def by_sqlalchemy(url: str) -> Callable[[], Any]:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"), poolclass=sa.pool.NullPool)
    return sessionmaker(engine).begin


@pytest.mark.parametrize("library", [by_psycopg, by_sqlalchemy])
def test_rows_and_record_commit_together(database: str, library: Any):
    with Guard(database) as guard:
        boundary = Atomic("connection")
        handler = Handler(
            guard, insert, name="orders", key="key", ignore=["do"], boundary=boundary, connection=library(database)
        )
        failed = [handler.process(message("a", do)) for do in ("error", "not_done")]
        assert rows(database) == []
        done = [handler.process(message("a")) for _ in range(3)]
        refused = [handler.process(message("b", "refused")) for _ in range(2)]
        state = guard.peek("orders", "b")

    assert [(one.verb, one.counted) for one in failed] == [("later", True)] * 2
    assert [(one.verb, one.replayed, one.result) for one in done] == [
        ("ack", False, "a"),
        ("ack", True, "a"),
        ("ack", True, "a"),
    ]
    assert [one.verb for one in refused] == ["ack", "ack"]
    assert state is not None
    assert (str(state.state), rows(database)) == ("closed", ["a"])


def test_deliveries_of_one_key_at_one_time_commit_once(database: str):
    with Guard(database) as guard:
        options: Any = {"name": "orders", "key": "key", "boundary": Atomic("connection")}
        handler = Handler(guard, insert, connection=by_psycopg(database), **options)
        actions: list[Action] = []

        def deliver() -> None:
            for _ in range(20):
                action = handler.process(message("a"))
                actions.append(action)
                if action.verb == "ack":
                    return

        threads = [threading.Thread(target=deliver) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert rows(database) == ["a"]
    assert {action.verb for action in actions} <= {"ack", "later"}
    assert [action.verb for action in actions].count("ack") == 6


def test_a_commit_that_fails_leaves_nothing_and_comes_again(database: str):
    @contextlib.contextmanager
    def failing() -> Iterator[Any]:
        with psycopg.connect(database) as connection:
            yield connection
            raise ConnectionError("the commit was lost")

    with Guard(database) as guard:
        options: Any = {"name": "orders", "key": "key", "boundary": Atomic("connection")}
        action = Handler(guard, insert, connection=failing, **options).process(message("a"))
        record = guard.peek("orders", "a")

    assert (action.verb, action.counted, action.row) == ("later", True, "6")
    assert (record, rows(database)) == (None, [])


async def test_the_async_handler_has_an_inbox_too(database: str):
    @contextlib.asynccontextmanager
    async def transaction() -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(database) as connection:
            yield connection

    async def ainsert(message: Message, connection: Any) -> str:
        await connection.execute("INSERT INTO orders VALUES (%s)", (message.value["key"],))
        if message.value["do"] == "error":
            raise RuntimeError("an ordinary failure")
        return str(message.value["key"])

    async with AsyncGuard(database) as guard:
        options: Any = {"name": "orders", "key": "key", "ignore": ["do"], "boundary": Atomic("connection")}
        handler = AsyncHandler(guard, ainsert, connection=transaction, **options)
        actions = [await handler.process(message("a", do)) for do in ("error", "ok", "ok")]

    assert [(one.verb, one.replayed) for one in actions] == [("later", False), ("ack", False), ("ack", True)]
    assert rows(database) == ["a"]
