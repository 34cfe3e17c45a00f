"""Atomic on MySQL: effect and record in one transaction of the caller's connection, at every isolation level."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import anyio
import pymysql
import pytest
from pymysql.constants import CLIENT

from samekey import (
    AsyncGuard,
    Atomic,
    Busy,
    Guard,
    Held,
    InProgress,
    KeyReused,
    Misconfigured,
    NotDone,
    Policy,
    Refused,
    ResultNotKept,
    State,
    StoreError,
    TransactionConflict,
)
from samekey.drivers.mysql.migrate import migrate
from tests.servers.mysql.helpers import sql
from tests.stores.wire import Wire

pytestmark = pytest.mark.slow

LEVELS = ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


@pytest.fixture
def url(samekey_mariadb):
    made = samekey_mariadb.create_database()
    migrate(made)
    with connected(made) as link:
        run(link, "CREATE TABLE orders (id VARCHAR(50)) ENGINE = InnoDB")
    return made


@pytest.fixture
def guard(url):
    with contextlib.closing(Guard(url, policy=Policy(patience=20))) as one:
        yield one


@contextlib.contextmanager
def connected(url: str, **more: Any) -> Any:
    parts = urlsplit(url)
    settings: dict[str, Any] = {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "database": parts.path[1:],
        "ssl_disabled": True,
    }
    with contextlib.closing(pymysql.connect(**{**settings, **more})) as link:
        yield link


@pytest.fixture
def link(url):
    with connected(url) as one:
        yield one


def run(link: Any, statement: str, *values: Any) -> Any:
    with link.cursor(pymysql.cursors.Cursor) as cursor:
        cursor.execute(statement, values)
        return cursor.fetchall()


def orders(url: str) -> list[str]:
    with connected(url) as link:
        return [row[0] for row in run(link, "SELECT id FROM orders ORDER BY id")]


def insert(link: Any, order: str = "o-1") -> str:
    run(link, "INSERT INTO orders VALUES (%s)", order)
    return f"inserted {order}"


def test_effect_and_record_commit_together(guard, url, link):
    @guard.once(name="order", key="order_id", boundary=Atomic("session"))
    def order(session: Any, order_id: str, amount: int = 1) -> str:
        assert orders(url) == []  # nobody else sees it yet
        return insert(session, order_id)

    assert [order(link, "o-1"), order(link, "o-1")] == ["inserted o-1"] * 2
    assert orders(url) == ["o-1"]
    record = order.peek("o-1")
    assert (record.state, record.boundary) == (State.COMPLETED, "atomic")
    with pytest.raises(KeyReused, match="amount"):
        order(link, "o-1", 2)


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_in_the_callers_transaction_it_ends_with_the_caller(guard, url, link, ends):
    link.begin()
    insert(link, "the caller's own")
    answer = guard.on(link).run("order", lambda: insert(link), key="o-1", payload={})
    again = guard.on(link).run("order", lambda: insert(link), key="o-1", payload={})
    getattr(link, ends)()

    assert (answer.replayed, again.replayed, again.result) == (False, True, "inserted o-1")
    assert orders(url) == (["o-1", "the caller's own"] if ends == "commit" else [])
    with connected(url) as other:
        other.begin()
        after = guard.on(other).run("order", lambda: insert(other, "o-2"), key="o-1", payload={})
    assert after.result == ("inserted o-1" if ends == "commit" else "inserted o-2")


@pytest.mark.parametrize(
    ("word", "state"),
    [(NotDone("funds"), State.RELEASED), (Refused("stolen"), State.CLOSED), (RuntimeError("bug"), None)],
    ids=["not-done", "refused", "bug"],
)
def test_what_a_failed_effect_wrote_is_undone_and_its_word_is_kept(guard, url, link, word, state):
    def effect() -> None:
        insert(link)
        raise word

    link.begin()
    insert(link, "the caller's own")
    with pytest.raises(type(word)):
        guard.on(link).run("order", effect, key="o-1", payload={})
    link.commit()

    assert orders(url) == ["the caller's own"]
    record = guard.once(name="order", key="k")(lambda k: None).peek("o-1")
    assert (record.state if record else None) == state


def test_a_guarded_call_in_a_guarded_call(guard, url, link):
    """The inner one fails and is undone alone; the outer one's own savepoints are still there."""
    link.begin()
    on = guard.on(link)

    def inner() -> None:
        insert(link, "inner")
        raise NotDone("no")

    def outer() -> str:
        insert(link, "outer")
        with pytest.raises(NotDone):
            on.run("inner", inner, key="i", payload={})
        on.run("inner", lambda: insert(link, "second inner"), key="j", payload={})
        raise Refused("after all")

    with pytest.raises(Refused):
        on.run("outer", outer, key="o", payload={})
    assert on.run("next", lambda: insert(link, "next"), key="n", payload={}).result == "inserted next"
    link.commit()
    assert orders(url) == ["next"]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_loser_waits_and_sees_what_was_committed(guard, url, level, ends):
    """Also when its snapshot is older: one effect, and both have the answer; or the first rolls back, and it runs."""
    claimed, go_on = threading.Event(), threading.Event()

    def first() -> Any:
        with connected(url) as link:
            run(link, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            link.begin()

            def effect() -> str:
                insert(link, "first")
                claimed.set()
                assert go_on.wait(20)
                return "first"

            answer = guard.on(link).run("order", effect, key="o-1", payload={})
            getattr(link, ends)()
            return answer.result

    def second() -> Any:
        with connected(url) as link:
            run(link, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            link.begin()
            run(link, "SELECT COUNT(*) FROM samekey_meta")  # the snapshot is made here, before the first commits
            threading.Timer(0.3, go_on.set).start()
            answer = guard.on(link).run("order", lambda: insert(link, "second"), key="o-1", payload={})
            link.commit()
            return answer.result, answer.replayed

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(first)
        assert claimed.wait(20)
        two = pool.submit(second)
        assert one.result(30) == "first"
        said = two.result(30)

    assert said == (("first", True) if ends == "commit" else ("inserted second", False))
    assert orders(url) == (["first"] if ends == "commit" else ["second"])


def test_a_loser_that_has_read_nothing_yet_sees_what_the_winner_wrote(guard, url, link):
    """We make no snapshot for it: its own first look comes after our wait."""
    with connected(url) as other:
        other.begin()
        guard.on(other).run("order", lambda: insert(other), key="o-1", payload={})
        link.begin()
        committing = threading.Timer(0.3, other.commit)
        committing.start()
        assert guard.on(link).run("order", lambda: insert(link, "o-2"), key="o-1", payload={}).replayed
        committing.join()

    assert run(link, "SELECT id FROM orders") == (("o-1",),)


def test_a_result_larger_than_a_packet_is_not_kept(guard, url):
    with connected(url) as one:
        ((before,),) = run(one, "SELECT @@GLOBAL.max_allowed_packet")
        run(one, "SET GLOBAL max_allowed_packet = 1048576")
    try:
        with connected(url) as link, contextlib.closing(Guard(url)) as guard:
            link.begin()
            assert guard.on(link).run("big", lambda: insert(link) * 70_000, key="k", payload={}).recorded
            link.commit()
            with pytest.raises(ResultNotKept, match="max_allowed_packet"):
                guard.run("big", lambda: "", key="k", payload={})
    finally:
        with connected(url) as one:
            run(one, f"SET GLOBAL max_allowed_packet = {before}")
    assert orders(url) == ["o-1"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_crowd_with_one_key_has_one_effect(guard, url, level):
    """Whoever the server rolls back begins again; the others wait, and replay."""
    start = threading.Barrier(8)

    def caller(number: int) -> Any:
        with connected(url) as link:
            run(link, f"SET SESSION TRANSACTION ISOLATION LEVEL {level}")
            start.wait()
            for _ in range(20):
                link.begin()
                try:
                    answer = guard.on(link).run("order", lambda: insert(link, str(number)), key="o-1", payload={})
                    link.commit()
                    return answer.result
                except Busy:
                    link.rollback()
            raise AssertionError("rolled back twenty times")

    with ThreadPoolExecutor(8) as pool:
        answers = set(pool.map(caller, range(8)))

    assert len(orders(url)) == 1
    assert answers == {f"inserted {orders(url)[0]}"}


def test_a_snapshot_that_refuses_newer_rows_is_begun_again(guard, url):
    """MariaDB's innodb_snapshot_isolation (the default from 11.6): the loser is told, and nothing of it is kept."""
    with connected(url) as one, connected(url) as two:
        if not run(two, "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'"):
            pytest.skip("MySQL has no such setting")
        run(two, "SET SESSION innodb_snapshot_isolation = ON")
        two.begin()
        run(two, "SELECT COUNT(*) FROM samekey_records")
        one.begin()
        guard.on(one).run("order", lambda: insert(one, "first"), key="o-1", payload={})
        with ThreadPoolExecutor(1) as pool:
            insert(two, "the caller's own")
            late = pool.submit(lambda: guard.on(two).run("order", lambda: insert(two), key="o-1", payload={}))
            committing = threading.Timer(0.3, one.commit)
            committing.start()
            with pytest.raises(TransactionConflict, match="run the whole transaction again"):
                late.result(30)
            committing.join()
        two.commit()  # commits nothing: there is no transaction any more
        assert orders(url) == ["first"]

        two.begin()
        assert guard.on(two).run("order", lambda: insert(two), key="o-1", payload={}).replayed


def test_a_deadlock_in_the_effect_leaves_nothing_behind(guard, url):
    """The server rolls our whole transaction back: record and effect together, and the caller is told."""
    with connected(url) as one, connected(url) as two:
        make_pairs(one)

        def effect() -> None:
            insert(one)
            lose_a_deadlock(one, two)

        one.begin()
        with pytest.raises(pymysql.OperationalError, match="Deadlock"):
            guard.on(one).run("order", effect, key="o-1", payload={})
        one.commit()
        assert orders(url) == []
        one.begin()
        assert guard.on(one).run("order", lambda: insert(one), key="o-1", payload={}).replayed is False
        one.commit()
        assert orders(url) == ["o-1"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_transaction_that_a_select_began_is_the_callers(guard, url, link, asynchronous):
    """The driver does not hear of it, and to begin another one would commit it and give its locks back."""
    link.autocommit(False)
    run(link, "SELECT id FROM orders FOR UPDATE")

    if asynchronous:

        async def main() -> str:
            async with AsyncGuard(url) as one:

                @one.once(name="order", key="order_id", boundary=Atomic("session"))
                async def order(session: Any, order_id: str) -> str:
                    return insert(session, order_id)

                return await order(link, "o-1")

        assert anyio.run(main) == "inserted o-1"
    else:

        @guard.once(name="order", key="order_id", boundary=Atomic("session"))
        def order(session: Any, order_id: str) -> str:
            return insert(session, order_id)

        assert order(link, "o-1") == "inserted o-1"

    with connected(url) as other:
        run(other, "SET innodb_lock_wait_timeout = 1")
        with pytest.raises(pymysql.OperationalError, match="Lock wait timeout"):
            run(other, "SELECT id FROM orders FOR UPDATE")
    link.rollback()
    assert (orders(url), guard.peek("order", "o-1")) == ([], None)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("autocommit", [False, True])
def test_on_knows_whether_a_select_began_a_transaction(guard, url, link, asynchronous, autocommit):
    """Without autocommit it did; "in no transaction" would not be true, and with autocommit nothing else is."""
    link.autocommit(autocommit)
    run(link, "SELECT id FROM orders")

    async def effect() -> str:
        return insert(link)

    async def main() -> Any:
        async with AsyncGuard(url) as one:
            return (await one.on(link).run("order", effect, key="o-1", payload={})).result

    def ask() -> Any:
        if asynchronous:
            return anyio.run(main)
        return guard.on(link).run("order", lambda: insert(link), key="o-1", payload={}).result

    if autocommit:
        with pytest.raises(Misconfigured, match="in no transaction"):
            ask()
    else:
        assert ask() == "inserted o-1"
    assert (orders(url), guard.peek("order", "o-1")) == ([], None)
    link.commit()
    assert orders(url) == ([] if autocommit else ["o-1"])


def make_pairs(link: Any) -> None:
    run(link, "CREATE TABLE pairs (id INT PRIMARY KEY, n INT) ENGINE = InnoDB")
    run(link, "INSERT INTO pairs VALUES (1, 0), (2, 0)")
    link.commit()


def lose_a_deadlock(one: Any, two: Any) -> None:
    """The server rolls the whole transaction of `one` back, which wrote less."""
    two.begin()
    for number in range(300):
        insert(two, f"rival {number}")
    run(two, "UPDATE pairs SET n = 1 WHERE id = 2")
    run(one, "UPDATE pairs SET n = 2 WHERE id = 1")
    rival = threading.Thread(target=lambda: run(two, "UPDATE pairs SET n = 1 WHERE id = 1"))
    rival.start()
    try:
        run(one, "UPDATE pairs SET n = 2 WHERE id = 2")
    finally:
        rival.join()
        two.rollback()


@contextlib.contextmanager
def deadlocked(url: str, **more: Any) -> Any:
    """A connection whose transaction the server rolled back for another one; who began it took no notice."""
    with connected(url, **more) as one, connected(url) as two:
        make_pairs(one)
        one.begin()
        with pytest.raises(pymysql.OperationalError, match="Deadlock"):
            lose_a_deadlock(one, two)
        yield one


@pytest.mark.parametrize("autocommit", [True, False])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_batch_does_not_go_on_without_the_transaction_it_is_in(guard, url, autocommit, asynchronous):
    """A deadlock took what came before it, answers included: the rest would be committed alone."""
    ran = []

    def effect(item: dict[str, int]) -> str:
        ran.append(item["n"])
        if item["n"] == 2:
            lose_a_deadlock(one, two)
        return insert(one, f"o-{item['n']}")

    async def awaited(item: dict[str, int]) -> str:
        return effect(item)

    def ask() -> Any:
        items = [{"n": 1}, {"n": 2}, {"n": 3}]
        if not asynchronous:
            return guard.on(one).run_many("order", effect, items, key="n")

        async def main() -> Any:
            async with AsyncGuard(url) as many:
                return await many.on(one).run_many("order", awaited, items, key="n")

        return anyio.run(main)

    with connected(url, autocommit=autocommit) as one, connected(url) as two:
        make_pairs(one)
        one.begin()
        insert(one, "before")
        with pytest.raises(pymysql.OperationalError, match="Deadlock") as raised:
            ask()
        one.commit()

    assert any("ended the transaction during this item" in note for note in raised.value.__notes__)
    assert (ran, orders(url), guard.peek("order", "3")) == ([1, 2], [], None)


@pytest.mark.parametrize("autocommit", [True, False])
def test_after_a_deadlock_that_was_swallowed_the_guard_begins_its_own(guard, url, autocommit):
    """The driver still takes the transaction for open: each statement, or none, would have been committed."""

    @guard.once(name="order", key="order_id", boundary=Atomic("session"))
    def order(session: Any, order_id: str) -> str:
        return insert(session, order_id)

    with deadlocked(url, autocommit=autocommit) as link:
        assert order(link, "o-1") == "inserted o-1"

    assert (orders(url), guard.peek("order", "o-1").state) == (["o-1"], State.COMPLETED)


def test_after_a_deadlock_that_was_swallowed_there_is_no_transaction_to_be_in(guard, url):
    with deadlocked(url, autocommit=True) as link, pytest.raises(Misconfigured, match="the server ended it"):
        guard.on(link).run("order", lambda: insert(link), key="o-1", payload={})

    assert (orders(url), guard.peek("order", "o-1")) == ([], None)


def test_an_effect_that_commits_by_itself_is_told(guard, url, link):
    """Also by a CREATE TABLE, which commits without a word."""
    link.begin()
    with pytest.raises(Misconfigured, match="committed or rolled back"):
        guard.on(link).run("order", lambda: run(link, "CREATE TABLE surprise (id INT)"), key="o-1", payload={})


def test_a_connection_with_settings_of_its_own(guard, url):
    """Another character set, cursor, SQL mode, row counting: the record is the same byte for byte."""
    key, payload = "ключ-á-\\-'", {"n": 1}
    with connected(
        url,
        charset="latin1",
        cursorclass=pymysql.cursors.DictCursor,
        use_unicode=False,
        client_flag=CLIENT.FOUND_ROWS,
        init_command="SET SESSION sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES', time_zone = '-07:00'",
    ) as odd:
        odd.begin()
        result = "ü\\'\"\0😀"
        assert guard.on(odd).run("order", lambda: result, key=key, payload=payload).result == result
        assert guard.on(odd).run("order", lambda: "", key=key, payload=payload).result == result
        with odd.cursor() as cursor:
            cursor.execute("SELECT @@innodb_lock_wait_timeout AS wait")
            assert cursor.fetchone() == {"wait": 50}  # as it was
        odd.commit()

    assert guard.run("order", lambda: "", key=key, payload=payload).result == result


@pytest.mark.parametrize("limit", [0, 1])
def test_a_session_that_wants_few_rows_gets_its_record(guard, url, limit):
    with connected(url, init_command=f"SET sql_select_limit = {limit}") as odd:
        odd.begin()
        assert guard.on(odd).run("order", lambda: insert(odd), key="o-1", payload={}).result == "inserted o-1"
        odd.commit()
        odd.begin()
        assert guard.on(odd).run("order", lambda: insert(odd), key="o-1", payload={}).replayed
        odd.rollback()


@pytest.mark.parametrize("where", ["before", "in the effect"])
def test_a_session_whose_clock_was_set_is_refused(guard, url, link, where):
    """Its records would be past their retention, or for ever before it: the next caller would run again."""
    setting = "SET timestamp = 1000000000"
    link.begin()
    insert(link, "before")
    if where == "before":
        run(link, setting)
    with pytest.raises(Misconfigured, match="SET timestamp = DEFAULT"):
        guard.on(link).run("order", lambda: (insert(link), run(link, setting)), key="o-1", payload={})
    link.commit()
    assert (orders(url), guard.peek("order", "o-1")) == (["before"], None)

    run(link, "SET timestamp = DEFAULT")
    link.begin()
    guard.on(link).run("order", lambda: insert(link), key="o-1", payload={})
    link.commit()
    assert orders(url) == ["before", "o-1"]


def test_a_session_whose_clock_is_a_little_beside_has_the_servers(guard, url, link):
    with connected(url) as other:
        ((before,),) = run(other, "SELECT UNIX_TIMESTAMP()")
    run(link, "SET timestamp = %s", int(before) - 600)
    link.begin()
    guard.on(link).run("order", lambda: insert(link), key="o-1", payload={})
    link.commit()

    record = guard.peek("order", "o-1")
    assert record.created_at >= before
    assert record.settled_at >= before


def test_an_effect_that_goes_to_another_database_leaves_nothing(guard, samekey_mariadb, url, link):
    """There are samekey tables there too; the record cannot be settled from there, and is not committed without."""
    other = samekey_mariadb.create_database()
    migrate(other)
    for word in (None, NotDone("funds")):

        def effect(word: Any = word) -> None:
            insert(link)
            run(link, f"USE {urlsplit(other).path[1:]}")
            if word is not None:
                raise word

        link.begin()
        insert(link, f"before {word}")
        with pytest.raises(Misconfigured if word is None else NotDone) as told:
            guard.on(link).run("order", effect, key="o-1", payload={})
        assert "not where it was claimed" in f"{told.value} {getattr(told.value, '__notes__', '')}"
        link.commit()
        assert guard.peek("order", "o-1") is None
        run(link, f"USE {urlsplit(url).path[1:]}")

    assert orders(url) == ["before funds", "before None"]


def test_what_a_session_forbids_is_told_as_such(guard, url):
    """And not as another database."""
    with connected(url, init_command="SET SESSION TRANSACTION READ ONLY") as odd:
        odd.begin()
        with pytest.raises(Misconfigured, match="READ ONLY"):
            guard.on(odd).run("order", lambda: 1, key="o-1", payload={})
        odd.rollback()


def test_a_statement_that_may_not_wait_as_long_is_told_what_it_waits_for(guard, url, link):
    link.begin()
    ((version,),) = run(link, "SELECT VERSION()")
    if "MariaDB" not in version:
        pytest.skip("MySQL limits the time of plain reads only, which wait for nobody")
    guard.on(link).run("order", lambda: insert(link), key="o-1", payload={})
    with connected(url, init_command="SET max_statement_time = 0.2") as odd:
        odd.begin()
        with pytest.raises(InProgress):
            guard.on(odd).run("order", lambda: insert(odd), key="o-1", payload={})
        odd.rollback()
    link.rollback()


def test_a_patience_beyond_what_the_server_can_wait_is_as_long_as_it_can(guard, url):
    """MariaDB's `innodb_lock_wait_timeout` ends at three years, a policy's patience at ten."""
    with connected(url, sql_mode="STRICT_ALL_TABLES") as link:
        link.begin()
        patient = Policy(patience=timedelta(days=3650))
        answer = guard.on(link).run("order", lambda: insert(link), key="o-1", payload={}, policy=patient)
        link.commit()

    assert answer.result == "inserted o-1"


def test_a_transaction_that_the_server_gave_up_while_it_waited_is_told(mortal):
    """With innodb_rollback_on_timeout: who takes it for busy, and goes on, would commit the second half alone."""
    mortal.restart("fast", innodb_rollback_on_timeout="1")
    try:
        url = mortal.create_database()
        migrate(url)
        with contextlib.closing(Guard(url, policy=Policy(patience=0.5))) as guard, connected(url) as first:
            run(first, "CREATE TABLE orders (id VARCHAR(50)) ENGINE = InnoDB")
            first.begin()
            guard.on(first).run("order", lambda: insert(first), key="o-1", payload={})
            with connected(url) as second:
                second.begin()
                insert(second, "the first half")
                with pytest.raises(TransactionConflict, match="rolled the transaction back"):
                    guard.on(second).run("order", lambda: insert(second), key="o-1", payload={})

                @guard.once(name="order", key="key", boundary=Atomic("session"))
                def order(session: Any, key: str) -> str:
                    return insert(session)

                with pytest.raises(InProgress):  # the guard's own transaction had nothing else in it
                    order(second, "o-1")
            first.rollback()
        assert orders(url) == []
    finally:
        mortal.restart("fast", innodb_rollback_on_timeout="0")


def test_a_connection_without_converters_reads_the_same_record(guard, url):
    """Numbers come as text then, and the text '0' is true."""
    plain = {kind: how for kind, how in pymysql.converters.conversions.items() if not isinstance(kind, int)}
    with connected(url, conv=plain) as odd:
        for _ in range(2):
            odd.begin()
            with pytest.raises(NotDone):
                guard.on(odd).run("order", not_done, key="o-1", payload={})
            odd.commit()
    record = guard.peek("order", "o-1")
    assert (record.state, record.attempts, record.unsure) == (State.RELEASED, 2, False)


def not_done() -> None:
    raise NotDone("funds")


def test_a_session_in_which_begin_means_something_else(guard, url, link):
    """In MariaDB's sql_mode ORACLE it opens a block."""
    ((version,),) = run(link, "SELECT VERSION()")
    if "MariaDB" not in version:
        pytest.skip("MySQL has no such mode")

    @guard.once(name="order", key="key", boundary=Atomic("session"))
    def order(session: Any, key: str) -> str:
        return insert(session, key)

    with connected(url, init_command="SET sql_mode = 'ORACLE'") as odd:
        assert [order(odd, "o-1"), order(odd, "o-1")] == ["inserted o-1"] * 2
    assert orders(url) == ["o-1"]


@pytest.mark.parametrize("kind", ["CHAIN", "RELEASE"])
def test_a_session_whose_commits_do_more_ends_the_guards_transactions_all_the_same(guard, url, kind):
    """Each is committed by itself: not left open for the next one, nor ended with the connection."""

    @guard.once(name="order", key="key", boundary=Atomic("session"))
    def order(session: Any, key: str) -> str:
        return insert(session, key)

    with connected(url, init_command=f"SET completion_type = '{kind}'") as odd:
        order(odd, "o-1")
        assert orders(url) == ["o-1"]
        order(odd, "o-2")
        assert orders(url) == ["o-1", "o-2"]


def test_a_connection_that_cannot_be_atomic_is_refused(guard, samekey_mariadb, link):
    with pytest.raises(Misconfigured, match="in no transaction"):
        guard.on(link)
    other = samekey_mariadb.create_database()
    migrate(other)
    with connected(other) as elsewhere:
        elsewhere.begin()
        with pytest.raises(Misconfigured, match="another database"):
            guard.on(elsewhere)
    with pytest.raises(Misconfigured):
        guard.on(object())


def test_a_connection_that_breaks_never_says_it_was_done(guard, url):
    """Wherever the wire is cut, also at the commit: record and effect are there both, or neither is."""

    @guard.once(name="order", key="order_id", boundary=Atomic("session"))
    def order(session: Any, order_id: str) -> str:
        return insert(session, order_id)

    with contextlib.closing(Wire(url)) as wire:
        for number in range(1, 30):
            with connected(wire.url) as link:
                wire.cut(number)
                told = None
                try:
                    told = order(link, f"o-{number}")
                except (StoreError, Misconfigured, pymysql.Error):
                    pass
                whole = wire.mend()
            record, there = order.peek(f"o-{number}"), f"o-{number}" in orders(url)
            assert (record is not None) == there, f"cut at answer {number}: one without the other"
            assert there or told is None, f"cut at answer {number}: an answer about what was rolled back"
            if whole:
                assert told == f"inserted o-{number}"
                break
        else:
            raise AssertionError("the cut always came")
    assert wire.cuts == number - 1 > 8


def test_a_process_that_is_killed_in_the_transaction_leaves_nothing(guard, url):
    child = os.fork()
    if child == 0:
        with connected(url) as link:
            link.begin()
            guard.on(link).run("order", lambda: insert(link), key="o-1", payload={})
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)

    with connected(url) as link:
        link.begin()
        assert not guard.on(link).run("order", lambda: insert(link, "o-2"), key="o-1", payload={}).replayed
        link.commit()
    assert orders(url) == ["o-2"]


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_a_sync_connection_in_an_async_guard(url, loop):
    """Two tasks want one key: the second waits in a thread for the first one's commit, and the loop goes on."""

    async def main() -> list[Any]:
        answers: list[Any] = []
        async with AsyncGuard(url, policy=Policy(patience=20)) as guard:
            waits = "SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"

            async def call(number: int) -> None:
                with connected(url) as link:
                    link.begin()

                    async def effect() -> str:
                        while not sql(url, waits):  # another task waits in its thread for our commit
                            await anyio.sleep(0.01)
                        return insert(link, f"{loop} {number}")

                    answer = await guard.on(link).run(loop, effect, key="o-1", payload={})
                    link.commit()
                    answers.append((answer.result, answer.replayed))

            async with anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(call, number)
        return answers

    answers = anyio.run(main, backend=loop)
    assert len({result for result, _ in answers}) == 1
    assert sorted(replayed for _, replayed in answers) == [False, True, True]
    assert len(orders(url)) == 1


@pytest.mark.parametrize("ends", ["complete", "raises", "is forgotten"])
def test_a_hold_in_the_callers_transaction(guard, url, link, ends):
    link.begin()
    held = guard.on(link).hold("order", key="o-1", payload={})
    assert isinstance(held, Held)
    if ends == "complete":
        with held:
            held.complete(insert(link))
    elif ends == "raises":
        block = contextlib.ExitStack()
        block.enter_context(held)
        insert(link)
        with pytest.raises(RuntimeError, match="bug"), block:
            raise RuntimeError("bug")
    else:
        del held  # only the end of the transaction can remove the claim
    link.rollback() if ends == "is forgotten" else link.commit()

    with connected(url) as other:
        other.begin()
        answer = guard.on(other).run("order", lambda: insert(other, "o-2"), key="o-1", payload={})
        other.commit()
    assert answer.replayed == (ends == "complete")
    assert orders(url) == (["o-1"] if ends == "complete" else ["o-2"])


class TimeLimit(Exception):
    """What a signal handler raises, as those of task queues do."""


def test_a_hold_whose_transaction_is_over_is_in_nobodys_way(guard, link):
    link.begin()
    first = guard.on(link).hold("order", key="o-1", payload={})
    with pytest.raises(Misconfigured, match="in the middle of another"):
        guard.on(link).run("order", lambda: 1, key="o-2", payload={})
    link.rollback()
    link.begin()
    assert guard.on(link).run("order", lambda: 1, key="o-1", payload={}).result == 1
    with pytest.raises(Misconfigured, match="had ended"):
        first.__enter__()
    link.commit()

    assert guard.peek("order", "o-1").state is State.COMPLETED


def test_a_reply_to_who_was_interrupted_is_nobody_else_s(url, guard, monkeypatch):
    """A time limit strikes after the bytes of one of our statements have left: nothing after it hears that reply."""
    read = pymysql.connections.Connection._read_query_result  # type: ignore[attr-defined]
    for number in itertools.count(1):
        with connected(url) as link:
            replies = itertools.count(1)

            def striking(self: Any, unbuffered: bool = False, link=link, replies=replies, number=number) -> Any:
                if self is link and next(replies) == number:
                    raise TimeLimit
                return read(self, unbuffered)

            link.begin()
            with monkeypatch.context() as patched:
                patched.setattr(pymysql.connections.Connection, "_read_query_result", striking)
                try:
                    guard.on(link).run("order", lambda: "placed", key=f"o-{number}", payload=1)
                    struck = False
                except TimeLimit:
                    struck = True
            if link.open:
                assert run(link, "SELECT 4711") == ((4711,),)
                link.commit()
            assert link.open != struck
        assert (guard.peek("order", f"o-{number}") is None) == struck
        if not struck:
            break
    assert number > 8
