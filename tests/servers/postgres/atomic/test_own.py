"""What is special about one library, one way to connect, or one server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import pytest
import sqlalchemy
from django.db import DatabaseError as DjangoDatabaseError
from django.db import IntegrityError as DjangoIntegrityError
from django.db import connections, transaction
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from samekey import AsyncGuard, Atomic, Guard, InProgress, Misconfigured, NotDone, Policy, Refused, StoreUnavailable
from samekey.core.errors import StoreBusy
from samekey.drivers.postgres.migrate import migrate
from samekey.testing.servers import NoServer
from tests.servers.postgres.atomic.conftest import Shop
from tests.servers.postgres.atomic.libraries import LIBRARIES, Asyncpg, Django, Order, Psycopg, finished
from tests.servers.postgres.atomic.libraries import SqlalchemySession as OrmConn
from tests.servers.proxy import FaultProxy


@pytest.fixture
def url(databases: dict[str, str]) -> str:
    return databases["read committed"]


@pytest.fixture
def guard(url: str) -> Iterator[Guard]:
    with Guard(url) as made:
        yield made


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    with contextlib.closing(psycopg.connect(url)) as made:
        yield made


@pytest.fixture
def engine(url: str) -> Iterator[sqlalchemy.Engine]:
    made = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    yield made
    made.dispose()


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return str(request.node.name)


def count(url: str, name: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM orders WHERE id = %s", (name,)).fetchone()
    return 0 if row is None else int(row[0])


def not_done() -> None:
    raise NotDone("after all")


# -- outside a transaction -----------------------------------------------------------------------------------------


def test_psycopg_in_autocommit_and_outside_a_transaction_is_refused(guard: Guard, url: str):
    with psycopg.connect(url, autocommit=True) as connection:
        with pytest.raises(Misconfigured, match="no transaction"):
            guard.on(connection)
        with connection.transaction():
            inside = guard.on(connection)
        with pytest.raises(Misconfigured, match="no transaction"):
            inside.run("order", not_done, key="never", payload={})


def test_psycopg_without_autocommit_begins_by_itself_and_the_caller_commits(
    guard: Guard, connection: psycopg.Connection[Any], url: str, name: str
):
    def effect() -> None:
        connection.execute("INSERT INTO orders VALUES (%s, '')", (name,))

    guard.on(connection).run(name, effect, key="o-1", payload={})
    assert (count(url, name), guard.peek(name, "o-1")) == (0, None)
    connection.commit()

    assert count(url, name) == 1


async def test_asyncpg_outside_a_transaction_is_refused(url: str):
    async with AsyncGuard(url) as guard:
        connection = await asyncpg.connect(url)
        with pytest.raises(Misconfigured, match="no transaction"):
            guard.on(connection)
        await connection.close()


def test_django_outside_an_atomic_block_is_refused(guard: Guard, url: str):
    with contextlib.closing(_django(url)) as connection, pytest.raises(Misconfigured, match="no transaction"):
        guard.on(connection)


def test_an_engine_in_autocommit_is_refused(guard: Guard, engine: sqlalchemy.Engine, name: str):
    """SQLAlchemy would call it a transaction all the same."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.begin()
        with pytest.raises(Misconfigured, match="AUTOCOMMIT"):
            guard.on(connection).run(name, lambda: 1, key="o-1", payload={})
    assert guard.peek(name, "o-1") is None


async def test_an_async_engine_in_autocommit_is_refused(url: str, name: str):
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"), isolation_level="AUTOCOMMIT")
    async with AsyncGuard(url) as guard, engine.connect() as connection:
        await connection.begin()

        async def effect() -> int:
            return 1

        with pytest.raises(Misconfigured, match="AUTOCOMMIT"):
            await guard.on(connection).run(name, effect, key="o-1", payload={})
        assert await guard.peek(name, "o-1") is None
    await engine.dispose()


@pytest.mark.parametrize("wrong", [None, "postgresql://db/shop", object(), 7], ids=["none", "url", "object", "number"])
def test_other_kinds_of_connections_are_refused(guard: Guard, wrong: Any):
    with pytest.raises(Misconfigured, match="takes a sync connection"):
        guard.on(wrong)


def test_an_orm_over_another_driver_is_refused(guard: Guard):
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as connection, pytest.raises(Misconfigured, match="sqlite3"):
        guard.on(connection).run("order", lambda: 1, key="o-1", payload={})
    engine.dispose()


# -- psycopg -------------------------------------------------------------------------------------------------------


def test_psycopgs_own_blocks_around_and_inside(guard: Guard, url: str, name: str):
    with psycopg.connect(url, autocommit=True) as connection:

        def effect() -> str:
            with connection.transaction():
                connection.execute("INSERT INTO orders VALUES (%s, '')", (name,))
            with contextlib.suppress(psycopg.errors.UniqueViolation), connection.transaction():
                connection.execute("INSERT INTO orders VALUES (%s, '')", (name,))
            return "once"

        with connection.transaction():
            assert guard.on(connection).run(name, effect, key="o-1", payload={}).result == "once"
        with connection.transaction():
            assert guard.on(connection).run(name, effect, key="o-1", payload={}).replayed
    assert count(url, name) == 1


@pytest.mark.parametrize("begins_anew", [False, True], ids=["commits", "commits-and-begins"])
def test_an_effect_that_commits_is_told_so(
    guard: Guard, connection: psycopg.Connection[Any], url: str, name: str, begins_anew: bool
):
    def effect() -> None:
        connection.execute("INSERT INTO orders VALUES (%s, '')", (name,))
        connection.commit()
        if begins_anew:
            connection.execute("SELECT 1")

    connection.execute("SELECT 1")
    with pytest.raises(Misconfigured, match="committed"):
        guard.on(connection).run(name, effect, key="o-1", payload={})
    connection.rollback()

    record = guard.peek(name, "o-1")
    assert count(url, name) == 1
    assert record is not None  # it happened: it must never be free again
    assert record.state.value == "started"


def test_an_effect_that_commits_what_the_guard_began_is_told_so(
    guard: Guard, connection: psycopg.Connection[Any], name: str
):
    @guard.once(name=name, key="key", boundary=Atomic("session"))
    def order(session: psycopg.Connection[Any], key: str) -> None:
        session.commit()

    with pytest.raises(Misconfigured, match="committed"):
        order(connection, "o-1")
    record = guard.peek(name, "o-1")
    assert connection.info.transaction_status.name == "IDLE"
    assert record is not None  # claimed and never free again by itself
    assert record.state.value == "started"


def test_an_earlier_name_is_looked_up_in_the_transaction(guard: Guard, connection: psycopg.Connection[Any], name: str):
    guard.run(f"{name}-old", lambda: "before", key="o-1", payload={"key": "o-1"})

    @guard.once(name=name, key="key", boundary=Atomic("session"), aliases=[f"{name}-old"])
    def order(session: psycopg.Connection[Any], key: str) -> str:
        return "now"

    assert [order(connection, "o-1"), order(connection, "o-2")] == ["before", "now"]


def test_pipeline_mode_is_refused(guard: Guard, connection: psycopg.Connection[Any]):
    with connection.pipeline(), pytest.raises(Misconfigured, match="pipeline"):
        guard.on(connection)


def test_a_pipeline_that_the_effect_left_open_is_told(
    guard: Guard, connection: psycopg.Connection[Any], url: str, name: str
):
    """Over it nothing can be undone: whoever committed now would commit a claim without its result."""
    with contextlib.ExitStack() as left_open:

        def effect() -> None:
            connection.execute("INSERT INTO orders VALUES (%s, '')", (name,))
            left_open.enter_context(connection.pipeline())

        with pytest.raises(Misconfigured, match="pipeline mode") as raised:
            guard.on(connection).run(name, effect, key="o-1", payload={})
    assert "roll its transaction back" in raised.value.__notes__[0]
    connection.rollback()

    assert guard.on(connection).run(name, lambda: 1, key="o-1", payload={}).result == 1
    assert count(url, name) == 0


def test_a_libpq_without_pipelines_is_told(
    guard: Guard, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: False)
    with pytest.raises(Misconfigured, match="libpq 14"):
        guard.on(connection)


def test_the_callers_row_factory_and_cursors_are_left_alone(guard: Guard, url: str, name: str):
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.ClientCursor) as connection:
        assert guard.on(connection).run(name, lambda: "once", key="o-1", payload={}).result == "once"


@pytest.mark.parametrize("encoding", ["latin1", "sql_ascii"])
@pytest.mark.parametrize("began", ["by the guard", "by the caller"])
def test_a_connection_in_another_encoding_is_refused_and_nothing_is_sent(
    guard: Guard, url: str, name: str, encoding: str, began: str
):
    """The caller's transaction goes on, and the call succeeds once the encoding is UTF8."""

    @guard.once(name=name, key="key", boundary=Atomic("session"))
    def order(session: psycopg.Connection[Any], key: str) -> str:
        return key

    with psycopg.connect(url, client_encoding=encoding) as connection:
        if began == "by the caller":
            connection.execute("INSERT INTO orders VALUES (%s, '')", (name,))
        with pytest.raises(Misconfigured, match=r"client_encoding is .* Connect with client_encoding=UTF8"):
            order(connection, "a key")
        connection.execute("SET client_encoding = 'UTF8'")
        connection.commit() if began == "by the guard" else None
        assert order(connection, "ключ 😀") == "ключ 😀"
        connection.commit()

    assert count(url, name) == (1 if began == "by the caller" else 0)
    assert guard.peek(name, "ключ 😀") is not None


async def test_a_connection_that_reads_by_codecs_of_its_own_is_told(url: str, name: str):
    async with AsyncGuard(url) as guard:
        connection = await asyncpg.connect(url)
        await connection.set_type_codec("float8", encoder=str, decoder=Decimal, schema="pg_catalog")

        async def effect() -> str:
            return "once"

        async with connection.transaction():
            with pytest.raises(Misconfigured, match="set_type_codec"):
                await guard.on(connection).run(name, effect, key="o-1", payload={})
        await connection.reset_type_codec("float8", schema="pg_catalog")
        async with connection.transaction():
            assert not (await guard.on(connection).run(name, effect, key="o-1", payload={})).replayed
        await connection.close()


def test_a_session_that_is_bound_to_no_single_database_is_refused(guard: Guard, engine: sqlalchemy.Engine, name: str):
    for session in (Session(), Session(binds={Order: engine})):
        with session, pytest.raises(Misconfigured, match="bound to no database"):
            guard.on(session).run(name, lambda: "never", key="o-1", payload={})


def test_a_deferred_constraint_speaks_in_our_commit_and_leaves_nothing(
    guard: Guard, connection: psycopg.Connection[Any], name: str
):
    connection.execute("CREATE TABLE IF NOT EXISTS lines (o text REFERENCES orders (id) DEFERRABLE INITIALLY DEFERRED)")
    connection.commit()

    @guard.once(name=name, key="key", boundary=Atomic("session"))
    def line(session: psycopg.Connection[Any], key: str) -> None:
        session.execute("INSERT INTO lines VALUES ('nobody')")

    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        line(connection, "o-1")
    assert (connection.info.transaction_status.name, guard.peek(name, "o-1")) == ("IDLE", None)


def test_a_read_only_transaction_is_told(guard: Guard, connection: psycopg.Connection[Any], name: str):
    connection.read_only = True
    with pytest.raises(Misconfigured, match="read-only"):
        guard.on(connection).run(name, lambda: 1, key="o-1", payload={})


def test_a_statement_timeout_while_waiting_for_the_key_is_told_as_in_progress(
    guard: Guard, connection: psycopg.Connection[Any], url: str, name: str
):
    guard.on(connection).run(name, lambda: 1, key="o-1", payload={})
    with psycopg.connect(url) as other:
        other.execute("SET LOCAL statement_timeout = '100ms'")
        with pytest.raises(InProgress):
            guard.on(other).run(name, lambda: 2, key="o-1", payload={})
        assert other.execute("SELECT 1").fetchone() == (1,)  # the transaction goes on


def test_a_store_that_is_down_does_not_mean_run_in_a_transaction(url: str, name: str):
    """The store is the effect's own database: running without it would be running without a transaction."""
    ran = []
    with Guard(url, policy=Policy(store_down="run")) as guard, psycopg.connect(url) as connection:
        inside = guard.on(connection)
        connection.execute("SELECT 1")
        connection.pgconn.finish()
        with pytest.raises((StoreUnavailable, Misconfigured)):
            inside.run(name, lambda: ran.append(1), key="o-1", payload={})
    assert ran == []


def test_a_hold_that_is_never_entered_is_left_to_the_end_of_the_transaction(
    guard: Guard, connection: psycopg.Connection[Any], name: str, caplog: pytest.LogCaptureFixture
):
    held = guard.on(connection).hold(name, key="o-1", payload={})
    assert held is not None
    del held
    assert "never entered, and stays claimed: roll its transaction back" in caplog.text
    connection.rollback()

    assert guard.peek(name, "o-1") is None


def test_a_hold_that_is_thrown_away_late_harms_no_other_transaction(
    guard: Guard, connection: psycopg.Connection[Any], url: str, name: str
):
    """To go back to a savepoint that is gone would abort it, and its COMMIT would be a rollback without a word."""
    held = guard.on(connection).hold(name, key="o-1", payload={})
    connection.rollback()
    connection.execute("INSERT INTO orders VALUES (%s, '')", (name,))
    assert held is not None
    del held
    connection.commit()

    assert (count(url, name), guard.peek(name, "o-1")) == (1, None)


def test_a_hold_that_is_collected_in_the_middle_of_a_statement_does_not_wait_for_it(
    guard: Guard, connection: psycopg.Connection[Any], name: str, caplog: pytest.LogCaptureFixture
):
    """The statement would wait for the collector, and so would everybody, for ever."""

    class Collects:
        pass

    class CollectsDumper(psycopg.adapt.Dumper):
        oid = 25

        def dump(self, obj: Any) -> bytes:
            gc.collect()
            return b"said"

    connection.adapters.register_dumper(Collects, CollectsDumper)
    gc.disable()
    try:
        circle: list[Any] = [guard.on(connection).hold(name, key="o-1", payload={})]
        circle.append(circle)
        del circle
        row = connection.execute("SELECT %s", (Collects(),)).fetchone()
    finally:
        gc.enable()

    assert (row, "never entered" in caplog.text) == (("said",), True)
    assert guard.on(connection).run(name, lambda: 1, key="o-2", payload={}).result == 1


@pytest.mark.parametrize("how", ["stream", "copy"])
def test_a_connection_in_the_middle_of_a_statement_is_refused(guard: Guard, url: str, name: str, how: str):
    """psycopg would wait for itself, for ever."""

    @guard.once(name=name, key="key", boundary=Atomic("session"))
    def order(session: Any, key: str) -> str:
        return key

    with psycopg.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        if how == "stream":
            for _ in cursor.stream("SELECT generate_series(1, 3)"):
                with pytest.raises(Misconfigured, match="in the middle of a statement"):
                    order(connection, "o-1")
        else:
            with cursor.copy("COPY orders FROM STDIN"), pytest.raises(Misconfigured, match="in the middle of"):
                order(connection, "o-1")
        assert order(connection, "o-1") == "o-1"


def test_what_another_thread_has_under_way_is_not_committed(guard: Guard, url: str, name: str):
    """While its statement runs nobody can see that its transaction is open."""

    @guard.once(name=name, key="key", boundary=Atomic("session"))
    def order(session: Any, key: str) -> str:
        return key

    with psycopg.connect(url) as gate, psycopg.connect(url) as connection, ThreadPoolExecutor(1) as thread:
        gate.execute("SELECT pg_advisory_lock(%s)", (len(name),))
        connection.execute("INSERT INTO orders VALUES (%s, '')", (name,))
        other = thread.submit(connection.execute, "SELECT pg_advisory_lock(%s)", (len(name),))
        while connection.info.transaction_status != psycopg.pq.TransactionStatus.ACTIVE:
            pass
        with pytest.raises(Misconfigured, match="in the middle of a statement"):
            order(connection, "o-1")
        gate.execute("SELECT pg_advisory_unlock(%s)", (len(name),))
        other.result()
        connection.rollback()

    assert (count(url, name), guard.peek(name, "o-1")) == (0, None)


async def test_an_async_hold_that_is_never_entered_is_told(url: str, name: str, caplog: pytest.LogCaptureFixture):
    """Nobody can await in a garbage collector; the transaction must be rolled back."""
    async with AsyncGuard(url) as guard, await psycopg.AsyncConnection.connect(url) as connection:
        with caplog.at_level(logging.WARNING, "samekey"):
            held = await guard.on(connection).hold(name, key="o-1", payload={})
            assert held is not None
            del held
        assert "never entered" in caplog.text
        await connection.rollback()
        assert await guard.peek(name, "o-1") is None


def test_many_in_one_transaction(guard: Guard, connection: psycopg.Connection[Any], url: str, name: str):
    def effect(one: dict[str, str]) -> str:
        connection.execute("INSERT INTO orders VALUES (%s, '')", (f"{name}{one['id']}",))
        return one["id"]

    payloads = [{"id": "a"}, {"id": "b"}, {"id": "a"}]
    answers = guard.on(connection).run_many(name, effect, payloads, key="id")
    assert [getattr(answer, "result", answer) for answer in answers] == ["a", "b", "a"]
    connection.rollback()

    assert (count(url, f"{name}a"), guard.peek(name, "a")) == (0, None)


def test_a_batch_whose_connection_is_lost_has_no_answers(
    guard: Guard, connection: psycopg.Connection[Any], url: str, name: str
):
    """What it had answered by then is rolled back."""
    ran = []

    def effect(one: dict[str, str]) -> str:
        ran.append(one["id"])
        connection.execute("INSERT INTO orders VALUES (%s, '')", (f"{name}{one['id']}",))
        if one["id"] == "b":
            connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return one["id"]

    with pytest.raises(psycopg.OperationalError):
        guard.on(connection).run_many(name, effect, [{"id": "a"}, {"id": "b"}, {"id": "c"}], key="id")

    assert (ran, count(url, f"{name}a"), guard.peek(name, "a")) == (["a", "b"], 0, None)


# -- asyncpg -------------------------------------------------------------------------------------------------------


async def test_asyncpgs_own_transactions_and_pools(url: str, name: str):
    async with AsyncGuard(url) as guard, asyncpg.create_pool(url, min_size=1, max_size=1) as pool:

        @guard.once(name=name, key="key", boundary=Atomic("session"))
        async def order(session: Any, key: str) -> str:
            async with session.transaction():
                await session.execute("INSERT INTO orders VALUES ($1, '')", name)
            return key

        async with pool.acquire() as connection:
            assert await order(connection, "o-1") == "o-1"
            assert not connection.is_in_transaction()
            async with connection.transaction(isolation="serializable"):
                assert (await order.answer(connection, "o-1")).replayed
    assert count(url, name) == 1


# -- SQLAlchemy ----------------------------------------------------------------------------------------------------


def test_a_session_knows_what_was_rolled_back(guard: Guard, engine: sqlalchemy.Engine, name: str):
    with Session(engine) as session:
        kept = Order(id=name, note="before")
        session.add(kept)  # pending: it is flushed before the claim, and is not the effect's
        lost = Order(id=f"{name}-lost")

        def effect() -> None:
            kept.note = "changed"
            session.add(lost)
            session.flush()
            raise NotDone("after all")

        with pytest.raises(NotDone):
            guard.on(session).run(name, effect, key="o-1", payload={})
        assert lost not in session
        assert kept in session
        assert kept.note == "before"
        session.commit()
        assert session.get(Order, f"{name}-lost") is None
        assert session.get(Order, name) is kept


@pytest.mark.parametrize("how", ["on", "once", "hold"])
def test_what_was_pending_before_and_cannot_be_written_is_the_callers_own_error(
    guard: Guard, engine: sqlalchemy.Engine, url: str, name: str, how: str
):
    """Nothing is claimed, to try again would not help, and after its rollback the session goes on."""

    @guard.once(name=name, key="key", boundary=Atomic("session"))
    def order(session: Session, key: str) -> str:
        return key

    def ask(session: Session) -> Any:
        if how == "once":
            return order(session, "o-1")
        on = guard.on(session)
        return on.run(name, not_done, key="o-1", payload={}) if how == "on" else on.hold(name, key="o-1", payload={})

    with Session(engine) as session:
        assert order(session, "o-0") == "o-0"  # so that the connection is known
        session.add(Order(id=name))
        session.commit()
        session.expunge_all()
        session.add(Order(id=name))
        with pytest.raises(IntegrityError, match="orders_pkey"):
            ask(session)
        session.rollback()
        assert (guard.peek(name, "o-1"), order(session, "o-2")) == (None, "o-2")


async def test_what_an_async_session_had_pending_is_the_callers_own_error(url: str, name: str):
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    async with AsyncGuard(url) as guard, async_sessionmaker(engine)() as session:

        @guard.once(name=name, key="key", boundary=Atomic("session"))
        async def order(session: Any, key: str) -> str:
            return key

        assert await order(session, "o-0") == "o-0"
        session.add(Order(id=name))
        await session.commit()
        session.expunge_all()
        session.add(Order(id=name))
        with pytest.raises(IntegrityError, match="orders_pkey"):
            await order(session, "o-1")
        await session.rollback()
        assert (await guard.peek(name, "o-1"), await order(session, "o-2")) == (None, "o-2")
    await engine.dispose()


class LaterError(RuntimeError):
    sqlstate = "40001"


@pytest.mark.parametrize("when", ["savepoint", "commit"])
def test_a_listener_that_fails_is_told_as_itself(
    guard: Guard, engine: sqlalchemy.Engine, url: str, name: str, when: str
):
    """Behind the commit it undoes nothing; before it, with the savepoint that the session tells of too, all of it."""
    ran = []

    @guard.once(name=name, key="key", boundary=Atomic("session"), policy=Policy(patience=0))
    def order(session: Session, key: str) -> str:
        ran.append(key)
        session.add(Order(id=name))
        return key

    with Session(engine) as session:

        def fails(session: Session) -> None:
            if session.in_nested_transaction() is (when == "savepoint"):
                raise LaterError("no mail")

        sqlalchemy.event.listen(session, "after_commit", fails)
        with pytest.raises(LaterError, match="no mail"):
            order(session, "o-1")
        assert count(url, name) == (1 if when == "commit" else 0)
        sqlalchemy.event.remove(session, "after_commit", fails)
        assert order(session, "o-1") == "o-1"

    assert (count(url, name), ran) == (1, ["o-1"] if when == "commit" else ["o-1", "o-1"])


def test_a_flush_that_fails_is_the_effects_own_error(guard: Guard, engine: sqlalchemy.Engine, name: str):
    with Session(engine) as session:
        session.add(Order(id=name))
        session.commit()

        def effect() -> str:
            session.execute(sqlalchemy.text("SELECT 1"))
            session.add(Order(id=name, note="twice"))
            return "written when the guard settles"

        with pytest.raises(IntegrityError):
            guard.on(session).run(name, effect, key="o-1", payload={})
        session.add(Order(id=f"{name}-after"))
        session.commit()
        assert session.get(Order, f"{name}-after") is not None
    assert guard.peek(name, "o-1") is None


def test_a_failed_flush_inside_and_then_not_done(guard: Guard, engine: sqlalchemy.Engine, name: str):
    with Session(engine) as session:
        session.add(Order(id=name))
        session.commit()

        def effect() -> None:
            session.add(Order(id=name, note="twice"))
            try:
                session.flush()
            except IntegrityError as error:
                raise NotDone("there is one already") from error

        with pytest.raises(NotDone):
            guard.on(session).run(name, effect, key="o-1", payload={})
        session.add(Order(id=f"{name}-after"))
        session.commit()
    record = guard.peek(name, "o-1")
    assert record is not None
    assert record.state.value == "released"


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_session_that_the_effect_ended_is_told(guard: Guard, engine: sqlalchemy.Engine, name: str, how: str):
    with Session(engine) as session:

        def effect() -> None:
            session.add(Order(id=name))
            getattr(session, how)()

        with pytest.raises(Misconfigured, match="committed or rolled back"):
            guard.on(session).run(name, effect, key="o-1", payload={})


@pytest.mark.parametrize("error", [ValueError("bug"), NotDone("funds")])
@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_session_whose_savepoint_the_effect_ended_keeps_nothing_of_it(
    guard: Guard, engine: sqlalchemy.Engine, url: str, name: str, how: str, error: Exception
):
    """Back to before the claim: that savepoint is ours, and still there."""
    with Session(engine) as session:

        def effect() -> None:
            nested = session.get_nested_transaction()
            assert nested is not None
            session.add(Order(id=name))
            getattr(nested, how)()
            session.execute(sqlalchemy.text(f"INSERT INTO orders VALUES ('{name} later', '')"))
            raise error

        session.add(Order(id=f"{name} before"))
        with pytest.raises(type(error)):
            guard.on(session).run(name, effect, key="o-1", payload={})
        session.add(Order(id=f"{name} after"))
        session.commit()

    found = [count(url, f"{name}{which}") for which in (" before", "", " later", " after")]
    assert (found, guard.peek(name, "o-1")) == ([1, 0, 0, 1], None)


def test_sessions_of_a_registry_and_nested_blocks(guard: Guard, engine: sqlalchemy.Engine, url: str, name: str):
    registry = scoped_session(sessionmaker(engine))

    @guard.once(name=name, key="key", boundary=Atomic("session"))
    def order(session: Any, key: str) -> str:
        with session.begin_nested():
            session.add(Order(id=name))
        with contextlib.suppress(IntegrityError), session.begin_nested():
            session.execute(sqlalchemy.text(f"INSERT INTO orders VALUES ('{name}', '')"))
        return key

    assert order(registry, "o-1") == "o-1"
    assert order.answer(registry(), "o-1").replayed
    registry.remove()
    assert count(url, name) == 1


def test_a_guard_on_a_session_goes_with_it_to_its_next_connection(
    guard: Guard, engine: sqlalchemy.Engine, url: str, name: str
):
    """After a commit the session takes any connection of the pool: a remembered one would be somebody else's."""
    with Session(engine) as session:
        inside = guard.on(session)
        inside.run(name, lambda: session.add(Order(id=name)), key="o-1", payload={})
        session.commit()
        with engine.connect() as taken:
            taken.execute(sqlalchemy.text("SELECT 1"))
            inside.run(name, lambda: session.add(Order(id=f"{name}-2")), key="o-2", payload={})
            taken.rollback()
        session.commit()
    assert count(url, f"{name}-2") == 1


async def test_an_async_session_begun_by_the_guard(url: str, name: str):
    engine = create_async_engine(url.replace("postgresql:", "postgresql+asyncpg:"))
    make = async_sessionmaker(engine)
    async with AsyncGuard(url) as guard, make() as session:

        @guard.once(name=name, key="key", boundary=Atomic("session"))
        async def order(session: Any, key: str) -> str:
            session.add(Order(id=name))
            return key

        assert [await order(session, "o-1"), await order(session, "o-1")] == ["o-1", "o-1"]
        assert not session.in_transaction()
    await engine.dispose()
    assert count(url, name) == 1


# -- Django --------------------------------------------------------------------------------------------------------


def _django(url: str) -> Any:
    return finished(Django.connect(url)).raw


def test_what_an_effect_promised_on_commit_goes_with_it(guard: Guard, url: str, name: str):
    connection = _django(url)
    sent: list[str] = []

    def promising(what: str, error: Exception | None = None) -> Any:
        def effect() -> None:
            transaction.on_commit(lambda: sent.append(what), using=connection.alias)
            if error is not None:
                raise error

        return effect

    with contextlib.closing(connection), transaction.atomic(using=connection.alias):
        transaction.on_commit(lambda: sent.append("the caller's"), using=connection.alias)
        guard.on(connection).run(name, promising("kept"), key="o-1", payload={})
        with pytest.raises(NotDone):
            guard.on(connection).run(name, promising("dropped", NotDone()), key="o-2", payload={})
        with pytest.raises(ValueError, match="bug"):
            guard.on(connection).run(name, promising("dropped too", ValueError("bug")), key="o-3", payload={})
        assert sent == []
    assert sent == ["the caller's", "kept"]


@pytest.mark.parametrize("place", ["set_autocommit", "commit"])
def test_interrupted_as_django_begins_or_ends_it_is_begun_anew(
    guard: Guard, url: str, name: str, place: str, monkeypatch: pytest.MonkeyPatch
):
    """Else what is left open is taken for the caller's own transaction, and nobody ever commits it."""
    connection = _django(url)
    real = getattr(connection, place)

    @guard.once(name=name, key="key", boundary=Atomic("session"))
    def order(session: Any, key: str) -> None:
        with session.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s, '')", (f"{name}{key}",))

    def interrupted(*args: Any, **more: Any) -> None:
        monkeypatch.undo()
        if place == "set_autocommit":
            real(*args, **more)
        raise KeyboardInterrupt

    with contextlib.closing(connection):
        order(connection, "o-0")
        monkeypatch.setattr(connection, place, interrupted)
        with pytest.raises((KeyboardInterrupt, StoreUnavailable)):  # Django may say another word of its own
            order(connection, "o-1")
        order(connection, "o-2")
    assert [count(url, f"{name}{key}") for key in ("o-0", "o-1", "o-2")] == [1, 0, 1]


async def test_cancelled_as_asyncpg_begins_it_is_begun_anew(url: str, name: str):
    """Else what is left open is taken for the caller's own transaction, and nobody ever commits it."""
    parts = urlsplit(url)
    with FaultProxy(parts.port or 5432) as proxy:
        async with AsyncGuard(url) as guard:
            connection = await asyncpg.connect(url.replace(f":{parts.port}/", f":{proxy.port}/"))

            @guard.once(name=name, key="key", boundary=Atomic("session"))
            async def order(session: Any, key: str) -> None:
                await session.execute("INSERT INTO orders VALUES ($1, '')", f"{name}{key}")

            await order(connection, "o-0")
            said = len(proxy.sent)
            proxy.hold()
            task = asyncio.ensure_future(order(connection, "o-1"))
            while connection._top_xact is None:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            task.cancel()
            proxy.release()
            with pytest.raises(asyncio.CancelledError):
                await task
            while b"BEGIN" not in b"".join(proxy.sent[said:]):  # it was on its way
                await asyncio.sleep(0)

            if connection.is_closed():
                connection = await asyncpg.connect(url)
            await order(connection, "o-2")
            await connection.close()
    assert [count(url, f"{name}{key}") for key in ("o-0", "o-1", "o-2")] == [1, 0, 1]


def test_on_commit_waits_for_the_guards_own_commit(guard: Guard, url: str, name: str):
    connection, sent = _django(url), []

    @guard.once(name=name, key="key", boundary=Atomic("db"))
    def order(db: Any, key: str) -> str:
        transaction.on_commit(lambda: sent.append(guard.peek(name, "o-1")), using=connection.alias)
        return key

    with contextlib.closing(connection):
        order(connection, "o-1")
    assert [record.state.value for record in sent if record] == ["completed"]


def test_what_runs_on_commit_may_be_guarded_on_the_same_connection(guard: Guard, url: str, name: str):
    """It comes after the call that promised it, whose replay would not promise it again."""
    connection, sent = _django(url), []

    @guard.once(name=f"{name}-mail", key="key", boundary=Atomic("db"))
    def mail(db: Any, key: str) -> str:
        return f"mail {key}"

    @guard.once(name=name, key="key", boundary=Atomic("db"))
    def order(db: Any, key: str) -> str:
        transaction.on_commit(lambda: sent.append(mail(connection, key)), using=connection.alias)
        return key

    with contextlib.closing(connection):
        assert [order(connection, "o-1"), order(connection, "o-2")] == ["o-1", "o-2"]
    assert sent == ["mail o-1", "mail o-2"]


@pytest.mark.parametrize("state", ["40001", "23505", None])
def test_what_fails_after_the_commit_is_told_as_itself(guard: Guard, url: str, name: str, state: str | None):
    """It is no lost commit: nothing is tried again, and the error is not swallowed by an answer."""
    connection, ran = _django(url), []

    def fails() -> None:
        if state is None:
            raise DjangoDatabaseError("another database")
        with connection.cursor() as cursor:
            cursor.execute(f"DO $$ BEGIN RAISE EXCEPTION 'later' USING ERRCODE = '{state}'; END $$")

    @guard.once(name=name, key="key", boundary=Atomic("db"))
    def order(db: Any, key: str) -> str:
        ran.append(key)
        transaction.on_commit(fails, using=connection.alias)
        return key

    with contextlib.closing(connection):
        with pytest.raises(DjangoDatabaseError, match=r"later|another") as raised:
            order(connection, "o-1")
        assert "after the commit" in raised.value.__notes__[0]
        assert (order(connection, "o-1"), ran) == ("o-1", ["o-1"])


def test_a_broken_inner_block_is_mended_by_not_done_and_told_otherwise(guard: Guard, url: str, name: str):
    """savepoint=False marks the whole transaction for rollback; ours goes back to before it."""
    connection = _django(url)

    def failing(error: Exception | None) -> Any:
        def effect() -> None:
            try:
                with transaction.atomic(using=connection.alias, savepoint=False), connection.cursor() as cursor:
                    cursor.execute("INSERT INTO orders VALUES (NULL, '')")
            except DjangoIntegrityError:
                if error is not None:
                    raise error from None

        return effect

    with contextlib.closing(connection), transaction.atomic(using=connection.alias):
        with pytest.raises(NotDone):
            guard.on(connection).run(name, failing(NotDone()), key="o-1", payload={})
        assert not connection.needs_rollback
        with pytest.raises(Misconfigured, match="swallowed"):
            guard.on(connection).run(name, failing(None), key="o-2", payload={})
        assert not connection.needs_rollback
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s, '')", [name])
    assert count(url, name) == 1
    assert [one and one.state.value for one in (guard.peek(name, "o-1"), guard.peek(name, "o-2"))] == ["released", None]


def test_djangos_proxy_is_a_connection_too(guard: Guard, url: str, name: str, monkeypatch: pytest.MonkeyPatch):
    from django.db import DEFAULT_DB_ALIAS
    from django.db import connection as proxy

    made = _django(url)
    monkeypatch.setitem(connections.databases, DEFAULT_DB_ALIAS, connections.databases[made.alias])
    made.close()
    with contextlib.closing(proxy), transaction.atomic():
        assert guard.on(proxy).run(name, lambda: 1, key="o-1", payload={}).result == 1
    del connections[DEFAULT_DB_ALIAS]  # whoever comes next in this process has another database there


# -- which database ------------------------------------------------------------------------------------------------


def test_the_same_database_by_another_name_is_the_same(guard: Guard, url: str, name: str):
    other = url.replace("127.0.0.1", "localhost")
    assert other != url
    with psycopg.connect(other) as connection:
        assert guard.on(connection).run(name, lambda: 1, key="o-1", payload={}).result == 1


class TimeLimit(Exception):
    """As a task queue raises it out of a signal handler."""


@pytest.mark.parametrize("where", ["claim", "settle"])
def test_an_interrupt_on_the_way_is_what_comes_out(
    guard: Guard, connection: psycopg.Connection[Any], url: str, name: str, where: str, monkeypatch: pytest.MonkeyPatch
):
    """Nobody knows how far the statements came: the connection is given up, and its transaction with it."""
    inside = guard.on(connection)

    def interrupted(steps: Any, *rest: Any, **more: Any) -> Any:
        next(steps)
        raise TimeLimit

    def effect() -> None:
        connection.execute("INSERT INTO orders VALUES (%s, '')", (name,))
        if where == "settle":
            monkeypatch.setattr(connection, "wait", interrupted)

    connection.execute("SELECT 1")
    if where == "claim":
        monkeypatch.setattr(connection, "wait", interrupted)
    with pytest.raises(TimeLimit):
        inside.run(name, effect, key="o-1", payload={})

    assert connection.closed
    assert (count(url, name), guard.peek(name, "o-1")) == (0, None)


async def test_a_task_cancelled_on_the_way_is_cancelled(url: str, name: str, monkeypatch: pytest.MonkeyPatch):
    async with AsyncGuard(url) as guard, await psycopg.AsyncConnection.connect(url) as connection:

        async def interrupted(steps: Any, *rest: Any, **more: Any) -> Any:
            next(steps)
            raise asyncio.CancelledError

        async def effect() -> None:
            await connection.execute("INSERT INTO orders VALUES (%s, '')", (name,))
            monkeypatch.setattr(connection, "wait", interrupted)

        with pytest.raises(asyncio.CancelledError):
            await guard.on(connection).run(name, effect, key="o-1", payload={})
        assert connection.closed
    assert count(url, name) == 0


def test_other_tables_of_the_same_database_are_not_the_same(guard: Guard, url: str):
    """A search_path that leads elsewhere: the claim would be written where nobody else looks."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS elsewhere")
        connection.execute("SET search_path = elsewhere")
        connection.execute("BEGIN")
        with pytest.raises(Misconfigured, match="another database"):
            guard.on(connection)


def test_a_server_that_does_not_tell_its_identifier(server: Any, name: str):
    """A managed server may forbid pg_control_system(): the tables' own epoch has to do, and nothing is aborted."""
    url, other = server.create_database(), server.create_database()
    for one in (url, other):
        migrate(one)
        with psycopg.connect(one, autocommit=True) as admin:
            admin.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
            with contextlib.suppress(psycopg.errors.DuplicateObject):
                admin.execute("CREATE ROLE app LOGIN")
            admin.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO app")
            admin.execute("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO app")
    as_app, away = (one.replace("//samekey@", "//app@") for one in (url, other))
    with Guard(as_app) as guard, psycopg.connect(as_app) as connection, psycopg.connect(away) as elsewhere:
        connection.execute("CREATE TEMP TABLE mine (a int)")
        assert guard.on(connection).run(name, lambda: 1, key="o-1", payload={}).result == 1
        connection.execute("SELECT * FROM mine")
        with pytest.raises(Misconfigured, match="another database"):
            guard.on(elsewhere)


# -- PgBouncer -----------------------------------------------------------------------------------------------------


@pytest.fixture
def bouncer(url: str, tmp_path: Any) -> Iterator[str]:
    """PgBouncer in transaction mode with two server connections: a session keeps nothing between transactions."""
    program = shutil.which("pgbouncer")
    if program is None:
        raise NoServer("no PgBouncer here: apt-get install pgbouncer", "pgbouncer")
    parts = urlsplit(url)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tmp_path / "bouncer"
    folder.mkdir()
    (folder / "users").write_text('"samekey" ""\n')
    (folder / "pgbouncer.ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={parts.port} user=samekey\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nauth_type = any\nauth_file = {folder}/users\npool_mode = transaction\n"
        f"default_pool_size = 2\nunix_socket_dir =\n"
    )
    for path in (tmp_path.parent.parent, tmp_path.parent, tmp_path, folder, *folder.iterdir()):
        path.chmod(0o755)
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    process = subprocess.Popen([program, "-q", *user, str(folder / "pgbouncer.ini")], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 20
        address = f"postgresql://samekey@127.0.0.1:{port}{parts.path}"
        while True:
            try:
                psycopg.connect(address).close()
                break
            except psycopg.OperationalError:
                assert process.poll() is None, "pgbouncer ended"
                assert time.monotonic() < deadline, "pgbouncer does not answer"
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", [Psycopg, OrmConn, Django, Asyncpg], ids=lambda kind: kind.__name__)
async def test_behind_pgbouncer_in_transaction_mode(bouncer: str, url: str, kind: Any, monkeypatch: Any):
    if kind is Asyncpg:  # asyncpg's own advice for PgBouncer
        real = asyncpg.connect
        monkeypatch.setattr(asyncpg, "connect", lambda address: real(address, statement_cache_size=0))
    shop = Shop(kind, f"{bouncer}?pgbouncer=1")
    conns = [await kind.connect(bouncer) for _ in range(3)]
    if kind is Psycopg:  # and psycopg's: the caller's own statements must not be prepared, ours never are
        for conn in conns:
            conn.raw.prepare_threshold = None

    def inserting(key: str) -> Any:
        async def effect(conn: Any) -> str:
            return str(await conn.insert(shop.order(key)))

        return effect

    for turn in range(8):  # more than the driver's threshold for preparing
        answers = [await shop.once(conn, inserting(f"{turn}"), key=f"k{turn}") for conn in conns]
        assert [answer.replayed for answer in answers] == [False, True, True]
        for conn in conns[:2]:
            await conn.begin()
            await shop.on(conn, inserting(f"on{turn}"), key=f"on{turn}")
            await conn.commit()
    for conn in conns:
        assert await conn.sql("SHOW lock_timeout") == ["0"]
        await conn.close()
    await shop.close()
    shop.url = url
    assert len(shop.orders()) == 16


# -- prepared statements: the claim's and the settle's, in somebody else's session -------------------------------


def prepared_names(connection: psycopg.Connection[Any]) -> set[str]:
    rows = connection.execute("SELECT name FROM pg_prepared_statements WHERE name LIKE 'samekey%'").fetchall()
    return {name for (name,) in rows}


@pytest.mark.parametrize("threshold", [None, 0, 5])
def test_statements_are_prepared_where_the_connection_prepares_its_own(
    guard: Guard, connection: psycopg.Connection[Any], name: str, threshold: int | None
):
    connection.prepare_threshold = threshold
    seen = []
    for number in range(7):
        with connection.transaction():
            guard.on(connection).run(name, lambda: "once", key=f"o-{number}", payload={})
        seen.append(prepared_names(connection))
        connection.commit()
    ours = {"samekey_open_waiting", "samekey_settle"}
    assert seen == [ours if threshold is not None and number >= threshold else set() for number in range(7)]


@pytest.mark.parametrize("vanish", ["DEALLOCATE ALL", "rollback", "DISCARD ALL"])
@pytest.mark.parametrize("began", ["by the guard", "by the caller"])
def test_prepared_statements_may_vanish_between_transactions(
    guard: Guard, connection: psycopg.Connection[Any], name: str, vanish: str, began: str
):
    connection.prepare_threshold = 0
    ran: list[str] = []

    @guard.once(name=name, key="key", boundary=Atomic("session"))
    def order(session: psycopg.Connection[Any], key: str) -> str:
        session.execute("SELECT %s::text", (key,))  # so that psycopg has something to forget
        ran.append(key)
        return key

    for number in range(3):
        if began == "by the guard":
            assert order(connection, f"o-{number}") == f"o-{number}"
        else:
            with connection.transaction():
                assert guard.on(connection).run(f"{name}-on", lambda: 1, key=f"o-{number}", payload={}).result == 1
        if vanish == "rollback":
            connection.execute("SELECT 1")
            connection.rollback()
        else:
            connection.autocommit = True
            connection.execute(vanish)
            connection.autocommit = False
    assert len(ran) == (3 if began == "by the guard" else 0)
    connection.rollback()


@pytest.mark.parametrize("began", ["by the guard", "by the caller"])
def test_prepared_statements_may_vanish_inside_the_effect(
    guard: Guard, connection: psycopg.Connection[Any], name: str, began: str
):
    connection.prepare_threshold = 0
    ran: list[str] = []

    def effect(key: str) -> str:
        connection.execute("INSERT INTO orders VALUES (%s, 'kept')", (f"{name}-{key}",))
        with contextlib.suppress(psycopg.errors.UniqueViolation), connection.transaction():
            connection.execute("INSERT INTO orders VALUES (%s, 'twice')", (f"{name}-{key}",))
        connection.execute("DEALLOCATE ALL")
        ran.append(key)
        return key

    @guard.once(name=name, key="key", boundary=Atomic("session"))
    def order(session: psycopg.Connection[Any], key: str) -> str:
        return effect(key)

    for key in ("o-1", "o-2", "o-2", "o-3"):
        if began == "by the guard":
            assert order(connection, key) == key
        else:
            with connection.transaction():
                inside = guard.on(connection)
                assert inside.run(name, lambda key=key: effect(key), key=key, payload={"key": key}).result == key  # type: ignore[misc]
    rows = connection.execute("SELECT id FROM orders WHERE id LIKE %s", (f"{name}-%",)).fetchall()
    assert (ran, len(rows)) == (["o-1", "o-2", "o-3"], 3)
    assert {record.state.value for key in ran if (record := guard.peek(name, key)) is not None} == {"completed"}


@pytest.mark.parametrize("word", [NotDone, Refused])
@pytest.mark.parametrize("vanish", [False, True])
@pytest.mark.parametrize("began", ["by the guard", "by the caller"])
def test_a_word_after_a_failed_statement_is_kept_by_prepared_statements_too(
    guard: Guard, connection: psycopg.Connection[Any], url: str, name: str, began: str, vanish: bool, word: Any
):
    """A transaction that the effect aborted takes no new savepoint, only the way back to ours."""
    connection.prepare_threshold = 0
    guard.on(connection).run(name, lambda: "first", key="o-0", payload={})  # both are prepared now
    connection.commit()

    def effect() -> None:
        if vanish:
            connection.execute("DEALLOCATE ALL")
        with contextlib.suppress(psycopg.errors.UndefinedTable):
            connection.execute("INSERT INTO no_such_table VALUES (1)")
        raise word("there is no such table")

    @guard.once(name=name, key="key", boundary=Atomic("session"))
    def order(session: psycopg.Connection[Any], key: str) -> None:
        effect()

    def by_caller() -> None:
        guard.on(connection).run(name, effect, key="o-1", payload={"key": "o-1"})

    with pytest.raises(word, match="no such table") as told:
        by_caller() if began == "by the caller" else order(connection, "o-1")
    connection.commit()
    record = guard.peek(name, "o-1")
    assert record is not None
    assert record.state.value == {NotDone: "released", Refused: "closed"}[word]
    assert not getattr(told.value, "__notes__", ())


def test_tables_made_anew_are_told_once_and_then_used(server: Any, name: str):
    """Also by a connection that has our statements prepared for the tables before."""
    url = server.create_database()
    migrate(url)
    with Guard(url) as guard, psycopg.connect(url, prepare_threshold=0) as connection:
        for number in range(2):
            guard.on(connection).run(name, lambda: 1, key=str(number), payload={})
        connection.commit()
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(
                "DROP TABLE samekey_records, samekey_meta, samekey_audit, samekey_counts, samekey_findings, "
                "samekey_parked CASCADE"
            )
            admin.execute("DROP SEQUENCE samekey_tokens")
            functions = admin.execute("SELECT oid::regprocedure::text FROM pg_proc WHERE proname LIKE 'samekey%'")
            for (function,) in functions.fetchall():
                admin.execute(f"DROP FUNCTION {function}")
        migrate(url)

        with pytest.raises(Misconfigured, match="made anew"):
            guard.on(connection).run(name, lambda: 1, key="0", payload={})
        connection.rollback()
        for number in range(3):
            assert not guard.on(connection).run(name, lambda: 1, key=str(number), payload={}).replayed
            connection.commit()
        with psycopg.connect(url) as another:
            assert guard.on(another).run(name, lambda: 1, key="0", payload={}).replayed


def test_a_statement_of_the_same_name_is_not_ours(guard: Guard, connection: psycopg.Connection[Any], name: str):
    """As behind a PgBouncer that gives a session to one client after the other."""
    connection.execute("PREPARE samekey_open_waiting AS SELECT 1")
    connection.commit()
    connection.prepare_threshold = 0
    for key in ("o-1", "o-2", "o-1"):
        assert guard.on(connection).run(name, lambda: "once", key=key, payload={}).result == "once"
    connection.commit()
    assert guard.peek(name, "o-2") is not None


def test_a_patience_beyond_what_the_server_can_wait_is_as_long_as_it_can(guard, connection, name):
    """`lock_timeout` ends at 24 days, a policy's patience at ten years."""
    with connection.transaction():
        patient = Policy(patience=timedelta(days=3650))
        assert guard.on(connection).run(name, lambda: "done", key="o-1", payload={}, policy=patient).result == "done"


def test_a_claim_outside_waits_for_the_transaction_that_has_the_key(guard, connection, url, name):
    """And nobody else waits: other keys go their way, and nothing runs unguarded although the policy would allow it."""
    ran: list[str] = []

    def claim(key: str, **policy: Any) -> Any:
        rules = Policy(store_down="run", **policy)

        def effect() -> str:
            ran.append(key)
            return "plain"

        return guard.run(name, effect, key=key, payload={}, policy=rules)

    with ThreadPoolExecutor(2) as pool:
        with connection.transaction():
            guard.on(connection).run(name, lambda: "atomic", key="hot", payload={})
            with pytest.raises(StoreBusy, match="transaction"):
                claim("hot", patience=0)
            waiting = pool.submit(claim, "hot", patience=60)
            others = [claim(f"cold-{number}", patience=0).guarded for number in range(5)]
            assert not waiting.done()
        answer = waiting.result()

    assert (answer.result, answer.replayed, answer.guarded) == ("atomic", True, True)
    assert others == [True] * 5
    assert "hot" not in ran


@pytest.mark.parametrize("how", ["once", "on"])
@pytest.mark.parametrize(
    "library",
    ["sqlalchemy-session", "sqlalchemy-async-session", "sqlalchemy-async-session-psycopg", "django"],
)
async def test_a_server_that_cannot_be_reached_is_told_by_those_who_connect_late(url: str, library: str, how: str):
    """The connection is made when the guard first uses it: what fails then is no business of the library's callers."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        nobody = url.replace(f":{urlsplit(url).port}/", f":{door.getsockname()[1]}/")
    shop = Shop(LIBRARIES[library], url)
    conn = await LIBRARIES[library].connect(nobody)
    with pytest.raises((StoreUnavailable, Misconfigured) if how == "on" else StoreUnavailable):
        await getattr(shop, how)(conn, lambda conn: conn.insert("never"))
    await shop.close()
