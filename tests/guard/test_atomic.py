"""Atomic: effect and record in one transaction of the caller's database."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import os
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from samekey import (
    Asks,
    AsyncGuard,
    Atomic,
    Guard,
    InProgress,
    KeyReused,
    Misconfigured,
    NotDone,
    Policy,
    Refused,
    State,
    StoreUnavailable,
    current,
)
from samekey.core.boundary import Kind, Terms
from samekey.core.call import Call
from samekey.guard.on_connection import atomic_call
from samekey.testing.clock import ManualClock
from tests.guard.helpers import Child, Ledger, Place, Thread, locked, together, until, until_async


@pytest.fixture
def guard(sqlite: Place) -> Any:
    """A guard on a file that also has the shop's own table."""
    made = sqlite.guard()
    with contextlib.closing(sqlite3.connect(sqlite.path)) as connection:
        connection.execute("CREATE TABLE orders (id TEXT)")
        connection.commit()
    return made


@contextlib.contextmanager
def connected(place: Place, **kwargs: Any) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(
        sqlite3.connect(place.path, isolation_level=None, check_same_thread=False, **kwargs)
    ) as connection:
        yield connection


@pytest.fixture
def connection(sqlite: Place, guard: Any) -> Iterator[sqlite3.Connection]:
    with connected(sqlite) as made:
        yield made


def orders(place: Place) -> list[str]:
    with connected(place) as connection:
        return [row[0] for row in connection.execute("SELECT id FROM orders ORDER BY rowid")]


def insert(connection: sqlite3.Connection, order_id: str = "o-1") -> str:
    connection.execute("INSERT INTO orders VALUES (?)", (order_id,))
    return f"inserted {order_id}"


# -- the decorated function ---------------------------------------------------------------------------------------


def test_effect_and_record_commit_together(sqlite: Place, guard: Any, connection):
    @guard.once(name="order", key="order_id", boundary=Atomic("session"))
    def order(session: sqlite3.Connection, order_id: str) -> str:
        assert session.in_transaction
        assert sqlite.look("order", order_id) is None  # nobody else sees it yet
        return insert(session, order_id)

    assert sqlite.look("order", "o-1") is None
    assert [order(connection, "o-1"), order(connection, "o-1")] == ["inserted o-1"] * 2

    assert not connection.in_transaction
    assert orders(sqlite) == ["o-1"]
    record = sqlite.peek("order", "o-1")
    assert (record.state, record.boundary) == (State.COMPLETED, "atomic")


def test_an_answer_under_an_earlier_name_ends_with_its_retention(tmp_path: Path, clock: ManualClock):
    """As outside of a transaction: whether a sweep has come by makes no difference."""
    place = Place("sqlite", tmp_path, clock)
    guard = place.guard(policy=Policy(retention=3600))
    before = guard.once(name="old", key="order_id", boundary=Atomic("db"))(lambda db, order_id: "old")
    after = guard.once(name="new", key="order_id", boundary=Atomic("db"), aliases=["old"])(lambda db, order_id: "new")
    with connected(place) as connection:
        before(connection, "o-1")
        assert after(connection, "o-1") == "old"
        clock.advance(3601)

        assert [after(connection, "o-1"), after.answer(connection, "o-1").replayed] == ["new", True]
    guard.close()


def test_an_effect_that_closes_its_connection_is_told_and_its_own_error_comes_out(sqlite: Place, guard: Any):
    """Closing rolls back: nothing of the effect is kept, nor of its claim."""

    @guard.once(name="order", key="order_id", boundary=Atomic("session"))
    def order(session: sqlite3.Connection, order_id: str, wrong: bool) -> str:
        insert(session, order_id)
        session.close()
        if wrong:
            raise ValueError("its own")
        return order_id

    with connected(sqlite) as one, connected(sqlite) as other, connected(sqlite) as closed:
        with pytest.raises(Misconfigured, match="rolled back the transaction"):
            order(one, "o-1", wrong=False)
        with pytest.raises(ValueError, match="its own"):
            order(other, "o-2", wrong=True)
        closed.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            order(closed, "o-3", wrong=False)
        with pytest.raises(Misconfigured, match="in no transaction"):
            guard.on(closed)

    assert orders(sqlite) == []
    assert [sqlite.look("order", key) for key in ("o-1", "o-2", "o-3")] == [None] * 3


def test_the_connection_is_not_payload(sqlite: Place, guard: Any, connection):
    @guard.once(name="order", key="order_id", boundary=Atomic("session"))
    def order(session: sqlite3.Connection, order_id: str, amount: int = 1) -> str:
        return insert(session, order_id)

    order(connection, "o-1")
    with connected(sqlite) as other:
        assert order.answer(other, order_id="o-1").replayed
        with pytest.raises(KeyReused, match="amount"):
            order(other, "o-1", 2)


def test_in_the_callers_transaction_it_commits_or_rolls_back_with_the_caller(sqlite: Place, guard: Any, connection):
    @guard.once(name="order", key="order_id", boundary=Atomic("session"))
    def order(session: sqlite3.Connection, order_id: str) -> str:
        return insert(session, order_id)

    connection.execute("BEGIN IMMEDIATE")
    order(connection, "o-1")
    assert connection.in_transaction
    connection.execute("ROLLBACK")
    assert (orders(sqlite), sqlite.look("order", "o-1")) == ([], None)

    connection.execute("BEGIN IMMEDIATE")
    order(connection, "o-1")
    connection.execute("COMMIT")
    assert orders(sqlite) == ["o-1"]
    assert sqlite.peek("order", "o-1").state is State.COMPLETED


@pytest.mark.parametrize("began", ["by us", "by the caller"])
@pytest.mark.parametrize(
    ("word", "state"),
    [(NotDone("funds"), State.RELEASED), (Refused("stolen"), State.CLOSED)],
    ids=["not-done", "refused"],
)
def test_a_word_rolls_the_effect_back_and_keeps_the_record(
    sqlite: Place, guard: Any, connection, began: str, word, state
):
    def effect():
        insert(connection)
        raise word

    if began == "by the caller":
        connection.execute("BEGIN IMMEDIATE")
        insert(connection, "the caller's own")
        with pytest.raises(type(word)):
            guard.on(connection).run("order", effect, key="o-1", payload={})
        connection.execute("COMMIT")
        assert orders(sqlite) == ["the caller's own"]
    else:
        guarded = guard.once(name="order", key="key", boundary=Atomic("session"))(lambda session, key: effect())
        with pytest.raises(type(word)):
            guarded(connection, "o-1")
        assert orders(sqlite) == []
    assert sqlite.peek("order", "o-1").state is state


@pytest.mark.parametrize("error", [ValueError("bug"), TimeoutError(), KeyboardInterrupt()], ids=repr)
def test_an_unknown_error_rolls_effect_and_record_back_as_if_nothing_had_run(
    sqlite: Place, guard: Any, connection, error
):
    def effect():
        insert(connection)
        raise error

    connection.execute("BEGIN IMMEDIATE")
    insert(connection, "the caller's own")
    with pytest.raises(type(error)) as raised:
        guard.on(connection).run("order", effect, key="o-1", payload={})
    connection.execute("COMMIT")

    assert raised.value is error
    assert not hasattr(error, "__notes__")
    assert orders(sqlite) == ["the caller's own"]
    assert sqlite.look("order", "o-1") is None
    connection.execute("BEGIN IMMEDIATE")
    assert guard.on(connection).run("order", lambda: insert(connection), key="o-1", payload={}).attempts == 1
    connection.execute("COMMIT")


# -- on(connection) ------------------------------------------------------------------------------------------------


def test_on_outside_a_transaction_is_refused(guard: Any, connection):
    with pytest.raises(Misconfigured, match="no transaction"):
        guard.on(connection)


def test_on_refuses_when_the_transaction_has_ended_since(sqlite: Place, guard: Any, connection, ledger: Ledger):
    connection.execute("BEGIN IMMEDIATE")
    inside = guard.on(connection)
    connection.execute("COMMIT")

    with pytest.raises(Misconfigured, match="no transaction"):
        inside.run("order", ledger.add, key="o-1", payload={})
    with pytest.raises(Misconfigured, match="no transaction"):
        inside.hold("order", key="o-1", payload={})
    assert (len(ledger), connection.in_transaction) == (0, False)


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_a_transaction_that_keeps_the_tables_from_being_made_is_told_so(tmp_path, monkeypatch, journal: str):
    """The first call of all is inside a transaction that holds the file: our own connection can never write to it."""
    monkeypatch.setattr("samekey.drivers.sqlite.patiently", lambda work: work())
    guard = Guard(f"sqlite:///{tmp_path}/new.db")
    with contextlib.closing(sqlite3.connect(tmp_path / "new.db", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode = {journal}")
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="samekey migrate"):
            guard.on(connection).run("order", lambda: None, key="o-1", payload={})
        connection.rollback()
    guard.close()


def test_on_refuses_another_database(sqlite: Place, guard: Any, tmp_path):
    for path in (tmp_path / "other.db", ":memory:"):
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN")
            with pytest.raises(Misconfigured, match="another database"):
                guard.on(other)


def test_on_accepts_the_same_file_by_another_path(sqlite: Place, guard: Any, tmp_path):
    link = tmp_path / "link.db"
    link.symlink_to(sqlite.path)
    with contextlib.closing(sqlite3.connect(link, isolation_level=None)) as same:
        same.execute("BEGIN IMMEDIATE")
        guard.on(same).run("order", lambda: insert(same), key="o-1", payload={})
        same.execute("COMMIT")
    assert orders(sqlite) == ["o-1"]


@pytest.mark.parametrize("wrong", [None, "sqlite:///keys.db", object(), 7], ids=["none", "url", "object", "number"])
def test_on_refuses_other_kinds_of_connections(guard: Any, wrong):
    with pytest.raises(Misconfigured):
        guard.on(wrong)


def test_a_sqlalchemy_session_on_sqlite_is_refused_with_the_way_out(sqlite: Place, guard: Any):
    """The way out works: effect and record are in one transaction of the session's own connection."""
    engine = sa.create_engine(f"sqlite:///{sqlite.path}")
    order = guard.once(name="order", key="order_id", boundary=Atomic("db"), ignore={"session", "error"})(_order)
    with Session(engine) as session:
        with pytest.raises(
            Misconfigured, match=r"give it session.connection\(\).connection.driver_connection, and flush"
        ):
            order(session, session, "o-0")

        db = session.connection().connection.driver_connection
        assert [order(db, session, "o-1"), order(db, session, "o-1")] == ["o-1", "o-1"]
        with pytest.raises(NotDone):
            order(db, session, "o-2", NotDone("funds"))
        session.commit()
    with engine.connect() as connection, pytest.raises(Misconfigured, match=r"give it connection.connection.driver_"):
        order(connection, connection, "o-0")
    engine.dispose()

    assert orders(sqlite) == ["o-1"]
    assert sqlite.peek("order", "o-2").state is State.RELEASED


def _order(db: Any, session: Any, order_id: str, error: Exception | None = None) -> str:
    session.execute(sa.text("INSERT INTO orders VALUES (:id)"), {"id": order_id})
    session.flush()
    if error is not None:
        raise error
    return order_id


def test_on_refuses_a_memory_store(memory: Place, connection):
    connection.execute("BEGIN")
    with pytest.raises(Misconfigured, match="memory"):
        memory.guard().on(connection)
    with pytest.raises(Misconfigured, match="memory"):
        memory.async_guard().on(connection)


def test_on_leaves_the_callers_row_factory_alone(sqlite: Place, guard: Any, connection):
    connection.row_factory = sqlite3.Row
    connection.execute("BEGIN IMMEDIATE")
    guard.on(connection).run("order", lambda: insert(connection), key="o-1", payload={})
    assert guard.on(connection).run("order", lambda: insert(connection), key="o-1", payload={}).replayed
    connection.execute("COMMIT")
    assert connection.row_factory is sqlite3.Row


@pytest.mark.parametrize("text_factory", [bytes, lambda text: text.decode("latin-1").upper()])
def test_on_leaves_the_callers_text_factory_alone(sqlite: Place, guard: Any, connection, text_factory: Any):
    """Our own rows are read as they were written, whatever the caller makes of texts."""
    connection.text_factory = text_factory
    charge = guard.once(name="order", key="key", boundary=Atomic("session"))(lambda session, key: insert(session))

    assert [charge(connection, "o-1"), charge(connection, "o-1")] == ["inserted o-1", "inserted o-1"]
    assert connection.text_factory is text_factory
    assert orders(sqlite) == ["o-1"]


@pytest.mark.parametrize("declared", ["REAL", "TEXT", "BLOB", "INTEGER"])
def test_on_leaves_the_callers_converters_to_the_callers_columns(
    sqlite: Place, guard: Any, connection, monkeypatch: pytest.MonkeyPatch, declared: str
):
    """With detect_types a connection converts columns by their declared types; ours are read as they were written."""
    monkeypatch.setitem(sqlite3.converters, declared, lambda value: ("theirs", value))
    charge = guard.once(name="order", key="key", boundary=Atomic("session"))(lambda session, key: insert(session))
    with contextlib.closing(
        sqlite3.connect(sqlite.path, isolation_level=None, detect_types=sqlite3.PARSE_DECLTYPES)
    ) as theirs:
        assert [charge(theirs, "o-1"), charge(theirs, "o-1")] == ["inserted o-1", "inserted o-1"]
    assert orders(sqlite) == ["o-1"]


def test_on_with_pythons_own_transactions(sqlite: Place, guard: Any):
    """isolation_level="" begins a transaction at the first insert; the caller's commit is the end of both."""
    with contextlib.closing(sqlite3.connect(sqlite.path)) as legacy:
        insert(legacy, "first")
        guard.on(legacy).run("order", lambda: insert(legacy), key="o-1", payload={})
        legacy.commit()
    assert orders(sqlite) == ["first", "o-1"]
    assert sqlite.peek("order", "o-1").state is State.COMPLETED


@pytest.mark.parametrize("used", [False, True])
def test_a_with_block_around_on_does_not_close_the_guard(sqlite: Place, guard: Any, connection, used: bool):
    """It is the guard inside a transaction, not a guard of its own."""
    if used:
        guard.run("other", int, key="first", payload={})
    connection.execute("BEGIN IMMEDIATE")
    with guard.on(connection) as inside:
        inside.run("order", lambda: insert(connection), key="o-1", payload={})
    connection.execute("COMMIT")

    assert guard.run("other", lambda: "still open", key="o-1", payload={}).result == "still open"


def test_a_closed_guard_takes_no_calls_on_a_connection_either(sqlite: Place, guard: Any, connection):
    inside = guard.on(begun(connection))
    guard.close()

    calls = {
        "run": lambda: inside.run("order", lambda: insert(connection), key="o-1", payload={}),
        "run_many": lambda: inside.run_many("order", lambda one: insert(connection), ["o-1"], key=str),
        "hold": lambda: inside.hold("order", key="o-1", payload={}),
        "on": lambda: guard.on(connection),
    }
    for name, call in calls.items():
        with pytest.raises(StoreUnavailable, match="was closed"):
            print(name, call())
    assert connection.execute("SELECT id FROM orders").fetchall() == []


async def test_a_closed_async_guard_takes_no_calls_on_a_connection_either(sqlite: Place, guard: Any, connection):
    awaited = sqlite.async_guard()
    inside = awaited.on(begun(connection))
    await awaited.close()

    async def effect(*_: Any) -> str:
        return insert(connection)

    calls = {
        "run": lambda: inside.run("order", effect, key="o-1", payload={}),
        "run_many": lambda: inside.run_many("order", effect, ["o-1"], key=str),
        "hold": lambda: inside.hold("order", key="o-1", payload={}),
    }
    for name, call in calls.items():
        with pytest.raises(StoreUnavailable, match="was closed"):
            print(name, await call())
    with pytest.raises(StoreUnavailable, match="was closed"):
        awaited.on(connection)
    assert connection.execute("SELECT id FROM orders").fetchall() == []


def begun(connection: sqlite3.Connection) -> sqlite3.Connection:
    connection.execute("BEGIN IMMEDIATE")
    return connection


async def test_an_async_with_block_around_on_does_not_close_the_guard_either(sqlite: Place, guard: Any, connection):
    made = sqlite.async_guard()
    await made.run("other", lambda: asyncio.sleep(0), key="first", payload={})
    connection.execute("BEGIN IMMEDIATE")
    async with made.on(connection):
        pass
    connection.execute("COMMIT")

    assert (await made.run("other", lambda: asyncio.sleep(0, "still open"), key="o-1", payload={})).result


def test_a_guard_on_a_connection_has_the_store_of_its_guard(sqlite: Place, guard: Any, connection):
    """Also where it is the first one that needs it: a second one would be nobody's to close."""
    connection.execute("BEGIN IMMEDIATE")
    with Guard(sqlite.url) as unused:
        assert unused.on(connection).store is unused.store
    connection.execute("ROLLBACK")


def test_two_operations_in_one_transaction(sqlite: Place, guard: Any, connection):
    connection.execute("BEGIN IMMEDIATE")
    inside = guard.on(connection)
    for key in ("a", "b", "a"):
        inside.run("order", lambda k=key: insert(connection, k), key=key, payload={})
    with pytest.raises(NotDone):
        inside.run("order", lambda: (insert(connection, "c"), (_ for _ in ()).throw(NotDone())), key="c", payload={})
    connection.execute("COMMIT")

    assert orders(sqlite) == ["a", "b"]
    assert [sqlite.peek("order", key).state for key in "abc"] == [State.COMPLETED, State.COMPLETED, State.RELEASED]


def test_an_atomic_effect_inside_another_has_savepoints_of_its_own(sqlite: Place, guard: Any, connection):
    connection.execute("BEGIN IMMEDIATE")
    inside = guard.on(connection)

    def outer():
        insert(connection, "outer")
        with contextlib.suppress(NotDone):
            inside.run(
                "inner", lambda: (insert(connection, "inner"), (_ for _ in ()).throw(NotDone())), key=1, payload={}
            )
        return inside.run("inner", lambda: insert(connection, "inner 2"), key=2, payload={}).result

    assert inside.run("outer", outer, key=1, payload={}).result == "inserted inner 2"
    connection.execute("COMMIT")
    assert orders(sqlite) == ["outer", "inner 2"]


def test_a_hold_on_a_connection_commits_with_the_caller(sqlite: Place, guard: Any, connection):
    connection.execute("BEGIN IMMEDIATE")
    with guard.on(connection).hold("order", key="o-1", payload={}) as held:
        insert(connection)
        held.complete("receipt")
    connection.execute("COMMIT")

    assert orders(sqlite) == ["o-1"]
    assert guard.hold("order", key="o-1", payload={}).result == "receipt"


@pytest.mark.parametrize(
    ("error", "state"),
    [(NotDone("funds"), State.RELEASED), (Refused("stolen"), State.CLOSED), (ValueError("bug"), None)],
    ids=["not-done", "refused", "bug"],
)
def test_a_hold_on_a_connection_rolls_back_what_its_block_did(sqlite: Place, guard: Any, connection, error, state):
    def block():
        with guard.on(connection).hold("order", key="o-1", payload={}):
            insert(connection)
            raise error

    connection.execute("BEGIN IMMEDIATE")
    insert(connection, "the caller's own")
    with pytest.raises(type(error)) as raised:
        block()
    connection.execute("COMMIT")

    assert raised.value is error
    assert orders(sqlite) == ["the caller's own"]
    record = sqlite.look("order", "o-1")
    assert (None if record is None else record.state) is state


@pytest.mark.parametrize("ends", ["ROLLBACK", "COMMIT"])
def test_a_hold_on_a_connection_that_is_never_entered_is_left_to_the_end_of_the_transaction(
    sqlite: Place, guard: Any, connection, caplog: pytest.LogCaptureFixture, ends: str
):
    """The garbage collector must not write to the caller's connection: the transaction may be another one by then."""
    connection.execute("BEGIN IMMEDIATE")
    held = guard.on(connection).hold("order", key="o-1", payload={})
    assert held is not None
    del held
    guard.on(connection).run("order", int, key="o-2", payload={})  # the connection is free again
    connection.execute(ends)

    record = sqlite.look("order", "o-1")
    assert (None if record is None else record.state) is (State.STARTED if ends == "COMMIT" else None)
    assert "a hold of order was never entered, and stays claimed: roll its transaction back" in caplog.text


@pytest.mark.parametrize("begun", [True, False])
def test_a_hold_whose_transaction_is_over_is_in_nobodys_way(sqlite: Place, guard: Any, connection, begun: bool):
    connection.execute("BEGIN IMMEDIATE")
    first = guard.on(connection).hold("order", key="o-1", payload={})
    with pytest.raises(Misconfigured, match="in the middle of another"):
        guard.on(connection).run("order", lambda: 1, key="o-2", payload={})
    connection.rollback()
    if begun:
        connection.execute("BEGIN IMMEDIATE")
        assert guard.on(connection).run("order", lambda: 1, key="o-1", payload={}).result == 1
    with pytest.raises(Misconfigured, match="had ended"):
        first.__enter__()

    del first
    if not begun:
        connection.execute("BEGIN IMMEDIATE")
    assert guard.on(connection).run("order", lambda: 2, key="o-1", payload={}).result == (1 if begun else 2)
    connection.commit()


def test_a_batch_on_a_connection_is_in_its_transaction(sqlite: Place, guard: Any, connection):
    """Claims made on another connection would wait for this one's commit, or outlive its rollback."""
    connection.execute("BEGIN IMMEDIATE")
    inside = guard.on(connection)
    outcome = Thread(
        lambda: inside.run_many(
            "order", lambda one: insert(connection, one["id"]), [{"id": "a"}, {"id": "b"}], key="id"
        )
    ).outcome(3)
    connection.execute("ROLLBACK")

    assert (orders(sqlite), sqlite.look("order", "a"), sqlite.look("order", "b")) == ([], None, None)
    if not isinstance(outcome, Misconfigured):  # refusing it would be honest too
        assert [getattr(answer, "result", answer) for answer in outcome] == ["inserted a", "inserted b"]


def test_a_batch_does_not_go_on_without_the_transaction_it_is_in(sqlite: Place, guard: Any, connection):
    """A statement that rolled everything back took the answers before it along."""
    connection.execute("CREATE TABLE IF NOT EXISTS only (id TEXT UNIQUE)")
    connection.commit()
    ran = []

    def effect(one: dict[str, str]) -> str:
        ran.append(one["id"])
        connection.execute("INSERT OR ROLLBACK INTO only VALUES (?)", (one["row"],))
        return insert(connection, one["id"])

    connection.execute("BEGIN IMMEDIATE")
    items = [{"id": "a", "row": "1"}, {"id": "b", "row": "1"}, {"id": "c", "row": "2"}]
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE") as raised:
        guard.on(connection).run_many("order", effect, items, key="id")

    assert any("ended the transaction during this item" in note for note in raised.value.__notes__)
    assert (ran, orders(sqlite), sqlite.look("order", "a")) == (["a", "b"], [], None)


@pytest.mark.parametrize("way", ["run", "hold", "run_many"])
def test_atomic_without_a_connection_is_refused(sqlite: Place, guard: Any, ledger: Ledger, way: str):
    """run() has no parameter that could carry it: a claim outside the transaction would be called atomic."""
    boundary = Atomic("session")
    call = {
        "run": lambda: guard.run("order", ledger.add, key="o-1", payload={}, boundary=boundary),
        "hold": lambda: guard.hold("order", key="o-1", payload={}, boundary=boundary),
        "run_many": lambda: guard.run_many("order", ledger.add, [{"id": "o-1"}], key="id", boundary=boundary),
    }[way]
    with pytest.raises(Misconfigured, match=r"on\(|connection|Atomic"):
        call()
    assert len(ledger) == 0
    assert sqlite.look("order", "o-1") is None


# -- effects that meddle with the transaction ------------------------------------------------------------------------


def test_an_effect_that_commits_is_told_so(sqlite: Place, guard: Any, connection):
    def effect():
        insert(connection)
        connection.commit()

    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(Misconfigured, match="committed"):
        guard.on(connection).run("order", effect, key="o-1", payload={})
    assert orders(sqlite) == ["o-1"]
    record = sqlite.look("order", "o-1")
    assert record is None or record.state is not State.RELEASED  # it happened: it must never be free again


def test_an_effect_that_commits_and_begins_anew_is_told_so_too(sqlite: Place, guard: Any, connection):
    def effect():
        insert(connection)
        connection.execute("COMMIT")
        connection.execute("BEGIN")
        insert(connection, "o-2")

    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(Misconfigured, match="committed"):
        guard.on(connection).run("order", effect, key="o-1", payload={})


def test_an_effect_whose_statement_rolled_everything_back_keeps_its_own_error_as_the_cause(
    sqlite: Place, guard: Any, connection
):
    """ON CONFLICT ROLLBACK, a full disk: SQLite itself ends the transaction."""
    connection.execute("CREATE UNIQUE INDEX one ON orders (id)")
    insert(connection, "taken")

    def effect():
        connection.execute("INSERT OR ROLLBACK INTO orders VALUES ('taken')")

    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises((Misconfigured, sqlite3.IntegrityError)) as raised:
        guard.on(connection).run("order", effect, key="o-1", payload={})

    assert isinstance(raised.value, sqlite3.IntegrityError) or isinstance(
        raised.value.__cause__, sqlite3.IntegrityError
    )
    assert sqlite.look("order", "o-1") is None


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit()], ids=repr)
def test_an_interrupt_comes_out_although_the_transaction_was_rolled_back(guard: Any, connection, interrupt):
    """`with connection:` rolls back on Ctrl-C; an Exception in its place would be swallowed by whoever retries."""

    def effect():
        with connection:
            insert(connection)
            raise interrupt

    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(type(interrupt)):
        guard.on(connection).run("order", effect, key="o-1", payload={})


def test_a_commit_that_fails_leaves_no_open_transaction(sqlite: Place, guard: Any, connection):
    """A deferred constraint speaks at COMMIT: what we began, we end."""
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("CREATE TABLE parents (id TEXT PRIMARY KEY)")
    connection.execute("CREATE TABLE children (p TEXT REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)")

    @guard.once(name="child", key="key", boundary=Atomic("session"))
    def child(session: sqlite3.Connection, key: str) -> str:
        session.execute("INSERT INTO children VALUES ('nobody')")
        return "never"

    with pytest.raises(Exception, match="FOREIGN KEY"):
        child(connection, "o-1")

    assert not connection.in_transaction
    assert connection.execute("SELECT count(*) FROM children").fetchone() == (0,)
    assert sqlite.look("child", "o-1") is None


def test_a_settle_that_fails_undoes_effect_and_claim(sqlite: Place, guard: Any, connection):
    """Committed, the effect would stand beside a record that does not know of it, and be in doubt for ever."""
    connection.execute("CREATE TRIGGER full BEFORE UPDATE ON samekey_records BEGIN SELECT RAISE(ABORT, 'no room'); END")
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(Misconfigured, match="no room"):
        guard.on(connection).run("order", lambda: insert(connection), key="o-1", payload={})
    connection.execute("COMMIT")

    assert (orders(sqlite), sqlite.look("order", "o-1")) == ([], None)


def test_a_store_that_is_down_does_not_mean_run_in_a_transaction(sqlite: Place, guard: Any, ledger: Ledger):
    """What is down is the effect's own database."""
    policy = Policy(patience=0.1, store_down="run")
    with locked(sqlite.path), connected(sqlite, timeout=0) as own:
        own.execute("BEGIN")
        with pytest.raises(StoreUnavailable):
            guard.on(own).run("order", ledger.add, key="o-1", payload={}, policy=policy)
        own.execute("ROLLBACK")
    assert len(ledger) == 0


# -- others -------------------------------------------------------------------------------------------------------


def test_concurrent_transactions_of_one_key_wait_and_replay(sqlite: Place, guard: Any, ledger: Ledger):
    called: list[int] = []

    @guard.once(name="order", key="order_id", boundary=Atomic("session"))
    def order(session: sqlite3.Connection, order_id: str) -> str:
        ledger.add()
        until(lambda: len(called) == 8)
        return insert(session, order_id)

    def one(number: int) -> str:
        with connected(sqlite) as connection:
            called.append(number)
            return str(order(connection, "o-1"))

    assert together(8, one) == ["inserted o-1"] * 8
    assert (len(ledger), orders(sqlite)) == (1, ["o-1"])


def test_a_transaction_that_does_not_end_makes_the_next_one_busy_not_wrong(sqlite: Place, guard: Any, ledger: Ledger):
    @guard.once(name="order", key="order_id", boundary=Atomic("session"), policy=Policy(patience=0.1))
    def order(session: sqlite3.Connection, order_id: str) -> int:
        return ledger.add()

    with locked(sqlite.path), connected(sqlite, timeout=0) as connection:
        with pytest.raises(StoreUnavailable):
            order(connection, "o-1")
        assert not connection.in_transaction
    assert len(ledger) == 0


def test_a_key_held_by_a_call_outside_is_in_progress_in_here(sqlite: Place, guard: Any, connection, ledger: Ledger):
    held = guard.hold("order", key="o-1", payload={})
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(InProgress):
        guard.on(connection).run("order", ledger.add, key="o-1", payload={})
    connection.execute("COMMIT")

    with held:
        held.complete("outside")
    connection.execute("BEGIN IMMEDIATE")
    assert guard.on(connection).run("order", ledger.add, key="o-1", payload={}).result == "outside"
    connection.execute("COMMIT")


def test_current_works_in_an_atomic_effect(guard: Any, connection):
    @guard.once(name="order", key="order_id", boundary=Atomic("session"))
    def order(session: sqlite3.Connection, order_id: str) -> str:
        current().sending()
        return str(current().key)

    assert order(connection, "o-1") == "o-1"


async def test_the_same_awaited(sqlite: Place, guard: Any, connection):
    awaited = sqlite.async_guard()

    @awaited.once(name="order", key="order_id", boundary=Atomic("session"))
    async def order(session: sqlite3.Connection, order_id: str, error: str = "") -> str:
        insert(session, order_id)
        await asyncio.sleep(0)
        if error:
            raise NotDone(error)
        return order_id

    assert [await order(connection, "o-1"), await order(connection, "o-1")] == ["o-1", "o-1"]
    with pytest.raises(NotDone):
        await order(connection, "o-2", error="funds")
    connection.execute("BEGIN IMMEDIATE")
    inside = awaited.on(connection)
    await inside.run("other", lambda: asyncio.sleep(0, insert(connection, "o-3")), key="o-3", payload={})
    connection.execute("ROLLBACK")

    assert orders(sqlite) == ["o-1"]
    assert sqlite.look("other", "o-3") is None
    assert sqlite.peek("order", "o-2").state is State.RELEASED


async def test_two_tasks_of_one_loop_with_a_transaction_each_both_finish(sqlite: Place, guard: Any):
    """The second waits for the first's commit - which needs the loop that the second must not block."""
    awaited: AsyncGuard = sqlite.async_guard(policy=Policy(patience=20))
    begun: set[str] = set()

    @awaited.once(name="order", key="order_id", boundary=Atomic("session"))
    async def order(session: sqlite3.Connection, order_id: str) -> str:
        await until_async(lambda: begun == {"one", "other"})
        return insert(session, order_id)

    with connected(sqlite, timeout=0) as one, connected(sqlite, timeout=0) as other:
        one.set_trace_callback(lambda statement: begun.add("one"))
        other.set_trace_callback(lambda statement: begun.add("other"))
        answers = await asyncio.gather(order(one, "o-1"), order(other, "o-2"), return_exceptions=True)

    assert list(answers) == ["inserted o-1", "inserted o-2"]


def test_effects_are_exactly_the_keys_whoever_is_killed(sqlite: Place, guard: Any):
    """Eight processes over the same keys, four of them killed on the way: exactly one order for each key."""
    url, path, keys = sqlite.url, sqlite.path, 40

    def work(number: int) -> int:
        own = sqlite3.connect(path, isolation_level=None, timeout=5)
        with Guard(url, policy=Policy(patience=5)) as mine, contextlib.closing(own):

            @mine.once(name="order", key="order_id", boundary=Atomic("session"))
            def order(session: sqlite3.Connection, order_id: str) -> str:
                insert(session, order_id)
                if number < 4 and order_id == f"k{5 + number}":
                    os.kill(os.getpid(), signal.SIGKILL)
                return order_id

            return sum(order(own, f"k{key}") == f"k{key}" for key in range(keys))

    children = [Child(lambda n=number: work(n)) for number in range(8)]  # type: ignore[misc]
    done = [child.result() for child in children[4:]]
    for child in children[:4]:
        with contextlib.suppress(AssertionError):
            child.result()

    assert done == [keys] * 4
    assert sorted(orders(sqlite)) == sorted(f"k{key}" for key in range(keys))
    with connected(sqlite) as connection:
        states = connection.execute("SELECT state, count(*) FROM samekey_records GROUP BY state").fetchall()
    assert states == [("completed", keys)]


@pytest.mark.slow
def test_an_atomic_effect_may_be_longer_than_its_lease(sqlite: Place, guard: Any, connection):
    @guard.once(name="order", key="order_id", boundary=Atomic("session"), policy=Policy(lease=0.05))
    def order(session: sqlite3.Connection, order_id: str) -> str:
        time.sleep(0.15)  # real time: the lease ends by the store's clock
        return insert(session, order_id)

    assert order.answer(connection, "o-1").recorded
    assert order.answer(connection, "o-1").replayed


def test_a_snapshot_that_is_too_old_to_write_is_told_at_once(sqlite: Place, guard: Any, connection, ledger: Ledger):
    """BEGIN, a read, and another process commits: waiting cannot help, so nobody waits out the patience."""
    connection.execute("PRAGMA busy_timeout = 0")
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM orders").fetchone()
    guard.run("other", lambda: 1, key="o-1", payload={})
    began = time.monotonic()

    with pytest.raises(StoreUnavailable):
        guard.on(connection).run("order", ledger.add, key="o-1", payload={}, policy=Policy(patience=2))

    assert time.monotonic() - began < 1
    assert len(ledger) == 0
    connection.execute("ROLLBACK")


@pytest.mark.parametrize("began", ["by us", "by the caller"])
def test_an_abandoned_effect_leaves_no_claim_in_the_transaction(sqlite: Place, guard: Any, connection, began: str):
    """GeneratorExit: outside a transaction the lease speaks; in here the claim would outlive the effect it was for."""

    def effect():
        insert(connection)
        raise GeneratorExit

    if began == "by the caller":
        connection.execute("BEGIN IMMEDIATE")
        with pytest.raises(GeneratorExit):
            guard.on(connection).run("order", effect, key="o-1", payload={})
        connection.execute("COMMIT")
    else:
        guarded = guard.once(name="order", key="key", boundary=Atomic("session"))(lambda session, key: effect())
        with pytest.raises(GeneratorExit):
            guarded(connection, "o-1")

    assert orders(sqlite) == []
    assert sqlite.look("order", "o-1") is None


@pytest.mark.parametrize("way", ["closed", "loop gone"])
@pytest.mark.parametrize("began", ["by us", "by the caller"])
def test_an_abandoned_coroutine_leaves_no_claim_in_the_transaction(
    sqlite: Place, guard: Any, connection, began: str, way: str
):
    """Closed, or dropped with its loop: nobody can await any more, and the connection may be used on."""
    made, inside = sqlite.async_guard(), asyncio.Event()

    async def effect() -> None:
        insert(connection)
        inside.set()
        await asyncio.sleep(3600)

    @made.once(name="order", key="key", boundary=Atomic("session"))
    async def order(session: Any, key: str) -> None:
        await effect()

    if began == "by the caller":
        connection.execute("BEGIN IMMEDIATE")
        coming = made.on(connection).run("order", effect, key="o-1", payload={})
    else:
        coming = order(connection, "o-1")
    loop = asyncio.new_event_loop()

    async def steps() -> None:
        coming.send(None)  # as far as the sleep
        coming.close()

    if way == "closed":
        loop.run_until_complete(steps())
        loop.close()
    else:
        loop.set_exception_handler(lambda loop, context: None)  # "Task was destroyed but it is pending!"
        task = loop.create_task(coming)
        loop.run_until_complete(inside.wait())
        loop.close()
        del task, coming
        gc.collect()

    assert connection.in_transaction is (began == "by the caller")
    if began == "by the caller":
        connection.execute("COMMIT")
    assert orders(sqlite) == []
    assert sqlite.look("order", "o-1") is None
    guard.once(name="order", key="key", boundary=Atomic("session"))(lambda session, key: insert(session))(
        connection, "o-1"
    )
    assert orders(sqlite) == ["o-1"]


def test_an_interrupt_of_a_lookup_inside_a_transaction_comes_out(sqlite: Place, guard: Any, connection):
    """A doubt from outside is met in a transaction; Ctrl-C while the provider is asked is still Ctrl-C."""

    def interrupted(record):
        raise KeyboardInterrupt

    def timeout():
        raise TimeoutError

    with pytest.raises(TimeoutError):
        guard.run("order", timeout, key="o-1", payload={}, boundary=Asks(interrupted))
    connection.execute("BEGIN IMMEDIATE")
    with pytest.raises(KeyboardInterrupt):
        guard.on(connection).run("order", int, key="o-1", payload={}, boundary=Asks(interrupted))
    connection.execute("ROLLBACK")


async def test_a_cancelled_atomic_effect_leaves_nothing(sqlite: Place, guard: Any, connection):
    awaited, inside = sqlite.async_guard(), asyncio.Event()

    @awaited.once(name="order", key="order_id", boundary=Atomic("session"))
    async def order(session: sqlite3.Connection, order_id: str) -> str:
        insert(session, order_id)
        inside.set()
        await asyncio.sleep(60)
        return order_id

    task = asyncio.create_task(order(connection, "o-1"))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert not connection.in_transaction
    assert (orders(sqlite), sqlite.look("order", "o-1")) == ([], None)


async def test_cancelled_while_it_waits_for_the_transaction_nothing_is_begun(sqlite: Place, guard: Any, connection):
    awaited = sqlite.async_guard()

    @awaited.once(name="order", key="order_id", boundary=Atomic("session"))
    async def order(session: sqlite3.Connection, order_id: str) -> str:
        return insert(session, order_id)

    connection.execute("PRAGMA busy_timeout = 0")
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    with locked(sqlite.path):
        task = asyncio.create_task(order(connection, "o-1"))
        await until_async(lambda: len(statements) > 1)  # it tries again and again
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not connection.in_transaction
    assert await order(connection, "o-1") == "inserted o-1"


def test_in_a_transaction_a_call_is_the_same_but_for_its_terms():
    call = Call(*[object() for _ in dataclasses.fields(Call)])  # type: ignore[arg-type]
    terms = Terms(Kind.ATOMIC)

    assert atomic_call(call) == dataclasses.replace(call, terms=terms, terms_text=terms.text())
