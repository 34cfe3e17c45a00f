"""Atomic on PostgreSQL: every sentence, for every library whose connections it takes."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import psycopg
import pytest

from samekey import InProgress, KeyReused, Misconfigured, NotDone, Policy, Refused, SamekeyError, StoreUnavailable
from samekey.core.transaction import RollbackTo
from samekey.stores.postgres._transaction import AsyncPostgresTransaction, sqlstate
from tests.servers.postgres.atomic.conftest import Shop
from tests.servers.postgres.atomic.libraries import LIBRARIES, Conn, finished

WORDS = [(NotDone("funds"), "released"), (Refused("stolen"), "closed")]


def inserting(shop: Shop, key: str = "o-1", error: BaseException | None = None) -> Any:
    async def effect(conn: Conn) -> str:
        said = await conn.insert(shop.order(key))
        if error is not None:
            raise error
        return said

    return effect


# -- one commit ---------------------------------------------------------------------------------------------------


async def test_a_decorated_function_commits_effect_and_record_together(shop: Shop, conn: Conn):
    async def effect(conn: Conn) -> str:
        assert conn.in_transaction
        assert shop.look() is None  # nobody else sees it yet
        return await conn.insert(shop.order("o-1"))

    first, second = await shop.once(conn, effect), await shop.once(conn, effect)

    assert not conn.in_transaction
    assert (first.replayed, second.replayed) == (False, True)
    assert first.result == second.result == f"inserted {shop.order('o-1')}"
    assert (shop.orders(), shop.state()) == (["o-1"], "completed")


BEGIN_BY_THEMSELVES = (
    "psycopg", "psycopg-async", "sqlalchemy-session", "sqlalchemy-async-session", "sqlalchemy-async-session-psycopg"
)  # fmt: skip


@pytest.mark.parametrize("library", [LIBRARIES[name] for name in BEGIN_BY_THEMSELVES], ids=BEGIN_BY_THEMSELVES)
async def test_a_transaction_that_began_by_itself_is_joined_with_a_warning(
    shop: Shop, conn: Conn, caplog: pytest.LogCaptureFixture
):
    """A read before the call has begun it. The guard must not commit it; the caller may not know that it is open."""
    await conn.sql("SELECT 1")
    await shop.once(conn, inserting(shop))
    await shop.once(conn, inserting(shop))

    assert [record.message for record in caplog.records if "nothing is committed before" in record.message] == [
        f"a call of {shop.name} joined a transaction that its connection had begun by itself with an earlier "
        "statement: nothing is committed before you commit it. Begin it in the open (with session.begin():, with "
        "connection.transaction():), or end it before the call, and the guard commits its own"
    ]
    assert (conn.in_transaction, shop.orders()) == (True, [])


@pytest.mark.parametrize("library", [LIBRARIES["psycopg"], LIBRARIES["sqlalchemy-session"]], ids=["psycopg", "session"])
async def test_a_transaction_that_was_begun_in_the_open_is_joined_without_a_warning(
    shop: Shop, conn: Conn, caplog: pytest.LogCaptureFixture
):
    with conn.raw.begin() if hasattr(conn.raw, "begin") else conn.raw.transaction():
        await shop.once(conn, inserting(shop))

    assert (shop.orders(), caplog.messages) == (["o-1"], [])


async def test_in_the_callers_transaction_it_commits_with_the_caller(shop: Shop, conn: Conn):
    await conn.begin()
    await conn.insert(shop.order("before"))
    await shop.on(conn, inserting(shop))
    await conn.insert(shop.order("after"))
    assert (conn.in_transaction, shop.orders(), shop.state()) == (True, [], "none")
    await conn.commit()

    assert (shop.orders(), shop.state()) == (["after", "before", "o-1"], "completed")


async def test_in_the_callers_transaction_it_rolls_back_with_the_caller(shop: Shop, conn: Conn):
    await conn.begin()
    await shop.on(conn, inserting(shop))
    await conn.rollback()

    assert (shop.orders(), shop.state()) == ([], "none")


async def test_a_decorated_function_in_the_callers_transaction_leaves_the_commit_to_the_caller(shop: Shop, conn: Conn):
    await conn.begin()
    await shop.once(conn, inserting(shop))
    assert (conn.in_transaction, shop.orders()) == (True, [])
    await conn.commit()

    assert (shop.orders(), shop.state()) == (["o-1"], "completed")


async def test_two_keys_in_one_transaction(shop: Shop, conn: Conn):
    await conn.begin()
    answers = [await shop.on(conn, inserting(shop, key), key=key) for key in ("a", "b", "a")]
    await conn.commit()

    assert [answer.replayed for answer in answers] == [False, False, True]
    assert (shop.orders(), shop.state("a"), shop.state("b")) == (["a", "b"], "completed", "completed")


async def test_another_payload_is_told_and_the_transaction_goes_on(shop: Shop, conn: Conn):
    await conn.begin()
    await shop.on(conn, inserting(shop))
    with pytest.raises(KeyReused):
        await shop.on(conn, inserting(shop, "o-2"), payload={"other": 1})
    await conn.insert(shop.order("o-3"))
    await conn.commit()

    assert shop.orders() == ["o-1", "o-3"]


# -- words and errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("word", "state"), WORDS, ids=["not-done", "refused"])
async def test_a_word_rolls_the_effect_back_and_keeps_the_record(shop: Shop, conn: Conn, word: Any, state: str):
    await conn.begin()
    await conn.insert(shop.order("before"))
    with pytest.raises(type(word)):
        await shop.on(conn, inserting(shop, error=word))
    await conn.insert(shop.order("after"))
    await conn.commit()

    assert (shop.orders(), shop.state()) == (["after", "before"], state)


@pytest.mark.parametrize(("word", "state"), WORDS, ids=["not-done", "refused"])
async def test_a_word_in_a_transaction_of_ours_commits_the_record_alone(shop: Shop, conn: Conn, word: Any, state: str):
    with pytest.raises(type(word)):
        await shop.once(conn, inserting(shop, error=word))

    assert (conn.in_transaction, shop.orders(), shop.state()) == (False, [], state)


async def test_a_released_key_runs_again(shop: Shop, conn: Conn):
    with pytest.raises(NotDone):
        await shop.once(conn, inserting(shop, error=NotDone("funds")))
    answer = await shop.once(conn, inserting(shop))

    assert (answer.attempts, shop.orders(), shop.state()) == (2, ["o-1"], "completed")


async def test_an_unknown_error_leaves_neither_effect_nor_record(shop: Shop, conn: Conn):
    await conn.begin()
    await conn.insert(shop.order("before"))
    with pytest.raises(ValueError, match="bug"):
        await shop.on(conn, inserting(shop, error=ValueError("bug")))
    await conn.insert(shop.order("after"))
    await conn.commit()
    assert (shop.orders(), shop.state()) == (["after", "before"], "none")

    with pytest.raises(ValueError, match="bug"):
        await shop.once(conn, inserting(shop, error=ValueError("bug")))
    assert (conn.in_transaction, shop.state()) == (False, "none")


async def test_a_statement_that_fails_inside_and_then_not_done(shop: Shop, conn: Conn):
    """The database aborted the transaction; rolling back to the savepoint after the claim mends it."""

    async def effect(conn: Conn) -> None:
        await conn.insert(shop.order("o-1"))
        try:
            await conn.sql("SELECT no_such_column")
        except Exception as error:
            raise NotDone("the database said no") from error

    await conn.begin()
    await conn.insert(shop.order("before"))
    with pytest.raises(NotDone):
        await shop.on(conn, effect)
    await conn.insert(shop.order("after"))
    await conn.commit()

    assert (shop.orders(), shop.state()) == (["after", "before"], "released")


@pytest.mark.parametrize(("fails", "state"), [("RAISE EXCEPTION 'too many'", "P0001"), ("PERFORM 1 / 0", "22012")])
async def test_a_trigger_that_waits_for_our_commit_speaks_for_itself(shop: Shop, conn: Conn, fails: str, state: str):
    """What the caller's own tables refuse is no fault of the store, whoever commits."""
    name = f"{shop.name}_{conn.__class__.__name__}".lower()
    with psycopg.connect(shop.url) as owner:
        owner.execute(f"CREATE TABLE {name} (id text)")
        owner.execute(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {fails}; RETURN NULL; END $$"
        )
        owner.execute(
            f"CREATE CONSTRAINT TRIGGER late AFTER INSERT ON {name} DEFERRABLE INITIALLY DEFERRED "
            f"FOR EACH ROW EXECUTE FUNCTION {name}()"
        )

    async def effect(conn: Conn) -> None:
        await conn.sql(f"INSERT INTO {name} VALUES ('one too many')")

    with pytest.raises(Exception) as told:  # each library has its own
        await shop.once(conn, effect)

    assert not isinstance(told.value, SamekeyError)
    assert sqlstate(told.value) == state
    assert (conn.in_transaction, shop.state()) == (False, "none")


async def test_an_error_that_the_effect_swallowed_is_told(shop: Shop, conn: Conn):
    async def effect(conn: Conn) -> str:
        try:
            await conn.sql("SELECT no_such_column")
        except Exception:
            return "fine, or so it thinks"
        return "never"

    await conn.begin()
    await conn.insert(shop.order("before"))
    with pytest.raises(Misconfigured, match="swallowed"):
        await shop.on(conn, effect)
    await conn.insert(shop.order("after"))
    await conn.commit()

    assert (shop.orders(), shop.state()) == (["after", "before"], "none")


async def test_an_aborted_transaction_is_refused(shop: Shop, conn: Conn):
    await conn.begin()
    with pytest.raises(Exception, match="no_such_column"):
        await conn.sql("SELECT no_such_column")
    with pytest.raises(Misconfigured, match="aborted"):
        await shop.on(conn, inserting(shop))
    await conn.rollback()

    assert (shop.orders(), shop.state()) == ([], "none")


async def test_a_connection_lost_in_the_effect_leaves_nothing(shop: Shop, conn: Conn):
    async def effect(conn: Conn) -> str:
        said = await conn.insert(shop.order("o-1"))
        await conn.break_()
        return said

    with pytest.raises(StoreUnavailable, match="lost"):
        await shop.once(conn, effect)

    assert (shop.orders(), shop.state()) == ([], "none")
    assert (await shop.once(await shop.connect(), inserting(shop))).attempts == 1


async def test_a_connection_lost_before_the_claim_is_told(shop: Shop, conn: Conn):
    await conn.begin()
    await conn.insert(shop.order("before"))
    await conn.break_()
    with pytest.raises((StoreUnavailable, Misconfigured)):
        await shop.on(conn, inserting(shop))

    assert (shop.orders(), shop.state()) == ([], "none")


# -- others ---------------------------------------------------------------------------------------------------------


async def test_eight_transactions_of_one_key_wait_and_replay(shop: Shop, conn: Conn):
    await shop.once(conn, inserting(shop, "warm"), key="warm")

    answers = shop.together(8, lambda mine, own, number: mine.once(own, inserting(mine)))

    assert [getattr(answer, "result", answer) for answer in answers] == [f"inserted {shop.order('o-1')}"] * 8
    assert sum(not answer.replayed for answer in answers) == 1
    assert shop.orders() == ["o-1", "warm"]


async def test_a_transaction_that_does_not_end_makes_the_next_one_busy(shop: Shop, conn: Conn):
    other = await shop.connect()
    await conn.begin()
    await shop.on(conn, inserting(shop))
    await other.begin()
    before = await other.sql("SHOW lock_timeout")
    with pytest.raises(InProgress) as raised:
        await shop.on(other, inserting(shop), policy=Policy(patience=0.1))
    assert (raised.value.key, raised.value.retry_after > 0) == ("o-1", True)
    assert await other.sql("SHOW lock_timeout") == before
    await other.insert(shop.order("other"))
    await other.commit()
    await conn.commit()

    assert shop.orders() == ["o-1", "other"]


async def test_the_callers_own_lock_timeout_is_put_back(shop: Shop, conn: Conn):
    await conn.begin()
    await conn.sql("SET LOCAL lock_timeout = '1234ms'")

    async def effect(conn: Conn) -> list[Any]:
        return await conn.sql("SHOW lock_timeout")

    answer = await shop.on(conn, effect)
    after = await conn.sql("SHOW lock_timeout")
    await conn.commit()

    assert answer.result == after == ["1234ms"]
    assert await conn.sql("SHOW lock_timeout") == ["0"]


async def test_a_guard_on_another_database_is_refused(shop: Shop, databases: dict[str, str]):
    """The same server and another database, or another schema of the same one: not the same tables."""
    away = await shop.library.connect(databases["serializable"])
    try:
        await away.begin()
        with pytest.raises(Misconfigured, match="another database"):
            await shop.on(away, inserting(shop))
        await away.rollback()
    finally:
        await away.close()
    assert shop.state() == "none"


async def test_the_wrong_colour_is_refused(shop: Shop, conn: Conn):
    from samekey import AsyncGuard, Guard

    wrong: Any = Guard(shop.url) if shop.library.asynchronous else AsyncGuard(shop.url)
    with pytest.raises(Misconfigured, match="takes a"):
        wrong.on(conn.raw)
    closing = wrong.close()
    if closing is not None:
        await closing


async def test_a_guard_inside_a_guard_has_savepoints_of_its_own(shop: Shop, conn: Conn):
    async def outer(conn: Conn) -> str:
        await conn.insert(shop.order("outer"))
        with pytest.raises(NotDone):
            await shop.on(conn, inserting(shop, "inner", NotDone("funds")), key="inner")
        with pytest.raises(ValueError, match="bug"):
            await shop.on(conn, inserting(shop, "bug", ValueError("bug")), key="bug")
        return str((await shop.on(conn, inserting(shop, "second"), key="second")).result)

    await conn.begin()
    answer = await shop.on(conn, outer, key="outer")
    await conn.commit()

    assert answer.result == f"inserted {shop.order('second')}"
    assert shop.orders() == ["outer", "second"]
    assert [shop.state(key) for key in ("outer", "inner", "bug", "second")] == [
        "completed",
        "released",
        "none",
        "completed",
    ]


async def test_an_outer_word_undoes_what_inner_guards_did(shop: Shop, conn: Conn):
    async def outer(conn: Conn) -> None:
        await shop.on(conn, inserting(shop, "inner"), key="inner")
        raise NotDone("after all")

    await conn.begin()
    with pytest.raises(NotDone):
        await shop.on(conn, outer, key="outer")
    await conn.commit()

    assert (shop.orders(), shop.state("outer"), shop.state("inner")) == ([], "released", "none")


async def test_two_guarded_calls_at_once_on_one_connection_are_refused(shop: Shop, conn: Conn):
    """Their savepoints are one stack: the word of one would take the other's effect along, or keep its own."""
    refused: list[str] = []

    async def rival() -> None:
        with pytest.raises(Misconfigured, match="one at a time") as told:
            await shop.on(conn, inserting(shop, "rival"), key="rival")
        refused.append(str(told.value))

    async def effect(conn: Conn) -> None:
        await conn.insert(shop.order("o-1"))
        if shop.library.asynchronous:
            await asyncio.create_task(rival(), context=contextvars.Context())
        else:
            thread = threading.Thread(target=lambda: finished(rival()))
            thread.start()
            thread.join()
        raise NotDone("funds")

    await conn.begin()
    with pytest.raises(NotDone):
        await shop.on(conn, effect)
    await conn.commit()
    assert (len(refused), shop.orders(), shop.state(), shop.state("rival")) == (1, [], "released", "none")

    await conn.begin()
    await shop.on(conn, inserting(shop))
    await shop.on(conn, inserting(shop, "rival"), key="rival")  # one after the other
    await conn.commit()
    assert shop.orders() == ["o-1", "rival"]


@pytest.mark.parametrize("library", [name for name, one in LIBRARIES.items() if one.asynchronous], indirect=True)
async def test_a_refused_rival_ends_nobodys_transaction(shop: Shop, conn: Conn):
    """Also one that would have begun a transaction, beside another inside the same effect."""
    inside, refused = asyncio.Event(), asyncio.Event()

    async def first(conn: Conn) -> str:
        inside.set()
        await refused.wait()
        return await conn.insert(shop.order("first"))

    async def second() -> None:
        await inside.wait()
        with pytest.raises(Misconfigured, match="one at a time"):
            await shop.once(conn, inserting(shop, "second"), key="second")
        refused.set()

    async def outer(conn: Conn) -> None:
        await asyncio.gather(shop.once(conn, first, key="first"), second())

    await shop.once(conn, outer, key="outer")

    assert (shop.orders(), shop.state("outer"), shop.state("first")) == (["first"], "completed", "completed")


async def test_a_hold_commits_with_the_caller(shop: Shop, conn: Conn):
    await conn.begin()
    inside = shop.guard.on(conn.raw)
    if shop.library.asynchronous:
        async with await inside.hold(shop.name, key="o-1", payload={}) as held:
            held.complete(await conn.insert(shop.order("o-1")))
        answer = await inside.hold(shop.name, key="o-1", payload={})
    else:
        with inside.hold(shop.name, key="o-1", payload={}) as held:
            held.complete(await conn.insert(shop.order("o-1")))
        answer = inside.hold(shop.name, key="o-1", payload={})
    assert answer.replayed
    await conn.commit()

    assert (shop.orders(), shop.state()) == (["o-1"], "completed")


@pytest.mark.parametrize("begun", [True, False])
async def test_a_hold_whose_transaction_is_over_is_in_nobodys_way(shop: Shop, conn: Conn, begun: bool):
    """Who takes it once more in the next transaction still has the first one; to enter that one is refused."""

    async def taken(key: str) -> Any:
        held = shop.guard.on(conn.raw).hold(shop.name, key=key, payload={})
        return await held if shop.library.asynchronous else held

    await conn.begin()
    first = await taken("o-1")
    with pytest.raises(Misconfigured, match="in the middle of another"):
        await taken("o-2")
    await conn.rollback()
    if begun:
        await conn.begin()
        second = await taken("o-1")
    else:
        await shop.once(conn, lambda conn: conn.insert(shop.order("between")), "o-0")
        await conn.begin()
        second = await taken("o-1")
    with pytest.raises(Misconfigured, match="had ended"):
        await _entered(shop, first)
    del first
    if shop.library.asynchronous:
        async with second:
            await conn.insert(shop.order("o-1"))
            second.complete("done")
    else:
        with second:
            finished(conn.insert(shop.order("o-1")))
            second.complete("done")
    await conn.commit()

    assert (shop.orders()[-1], shop.state()) == ("o-1", "completed")


async def _entered(shop: Shop, held: Any) -> None:
    if shop.library.asynchronous:
        await held.__aenter__()
    else:
        held.__enter__()


async def test_a_hold_that_fails_leaves_nothing(shop: Shop, conn: Conn):
    async def block() -> None:
        inside = shop.guard.on(conn.raw)
        if shop.library.asynchronous:
            async with await inside.hold(shop.name, key="o-1", payload={}):
                await conn.insert(shop.order("o-1"))
                raise ValueError("bug")
        with inside.hold(shop.name, key="o-1", payload={}):
            await conn.insert(shop.order("o-1"))
            raise ValueError("bug")

    await conn.begin()
    await conn.insert(shop.order("before"))
    with pytest.raises(ValueError, match="bug"):
        await block()
    await conn.commit()

    assert (shop.orders(), shop.state()) == (["before"], "none")


async def test_a_cancelled_effect_leaves_nothing(shop: Shop, conn: Conn):
    if not shop.library.asynchronous:
        with pytest.raises(KeyboardInterrupt):
            await shop.once(conn, inserting(shop, error=KeyboardInterrupt()))
    else:
        inside = asyncio.Event()

        async def effect(conn: Conn) -> str:
            await conn.insert(shop.order("o-1"))
            inside.set()
            await asyncio.sleep(60)
            return "never"

        task = asyncio.create_task(shop.once(conn, effect))
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert (conn.in_transaction, shop.orders(), shop.state()) == (False, [], "none")


@pytest.mark.parametrize("library", [name for name, one in LIBRARIES.items() if one.asynchronous], indirect=True)
async def test_cancelled_again_while_it_is_undone(shop: Shop, conn: Conn, monkeypatch: pytest.MonkeyPatch):
    """The second cancellation comes on the way back to the claim; the caller's transaction goes on."""
    inside = asyncio.Event()
    carry_out = AsyncPostgresTransaction.carry_out

    async def cancelled_once_more(self: Any, *acts: Any, patience: float) -> Any:
        if isinstance(acts[0], RollbackTo):
            task.cancel()
            await asyncio.sleep(0)
        return await carry_out(self, *acts, patience=patience)

    async def effect(conn: Conn) -> str:
        await conn.insert(shop.order("o-1"))
        inside.set()
        await asyncio.Event().wait()
        return "never"

    await conn.begin()
    task = asyncio.create_task(shop.on(conn, effect))
    await inside.wait()
    monkeypatch.setattr(AsyncPostgresTransaction, "carry_out", cancelled_once_more)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await conn.insert(shop.order("after"))
    await conn.commit()

    assert (shop.orders(), shop.state()) == (["after"], "none")
