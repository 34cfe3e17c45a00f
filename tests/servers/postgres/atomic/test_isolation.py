"""Concurrent transactions at every isolation level, deadlocks, and processes that are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from samekey import Atomic, Guard, Policy, TransactionConflict
from tests.guard.helpers import SOON, Child
from tests.servers.postgres.atomic.conftest import LEVELS, Shop
from tests.servers.postgres.atomic.libraries import LIBRARIES, Asyncpg, Conn, Django, Psycopg, SqlalchemySession

FULL = os.environ.get("SAMEKEY_BUDGET") == "full"
SOME = (Psycopg, Asyncpg, SqlalchemySession, Django)


@pytest.fixture(params=LEVELS if FULL else LEVELS[1:], ids=lambda level: level.replace(" ", "-"))
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LIBRARIES.values() if FULL else SOME, ids=lambda library: library.__name__)
def library(request: pytest.FixtureRequest) -> type[Conn]:
    kind: type[Conn] = request.param
    return kind


@pytest.fixture
async def shop(library: type[Conn], databases: dict[str, str], level: str) -> AsyncIterator[Shop]:
    made = Shop(library, databases[level])
    yield made
    await made.close()


def inserting(shop: Shop, key: str) -> Any:
    async def effect(conn: Conn) -> str:
        return await conn.insert(shop.order(key))

    return effect


async def test_eight_transactions_of_one_key_all_answer(shop: Shop, level: str):
    """Nobody sees a 40001: what the guard began, it begins again."""

    async def work(mine: Shop, own: Conn, number: int) -> Any:
        return await mine.once(own, inserting(mine, "o-1"), policy=Policy(patience=30))

    answers = shop.together(8, work)

    assert [getattr(answer, "result", answer) for answer in answers] == [f"inserted {shop.order('o-1')}"] * 8
    assert sum(not answer.replayed for answer in answers) == 1
    assert (shop.orders(), shop.state()) == (["o-1"], "completed")


async def test_the_loser_of_a_callers_transaction_is_told_the_cause(shop: Shop, level: str):
    first, second = await shop.connect(), await shop.connect()
    for conn in (first, second):
        await conn.begin()
        await conn.sql("SELECT count(*) FROM orders")  # the snapshot is taken here
    await shop.on(first, inserting(shop, "o-1"))
    await first.commit()

    if level == "read committed":
        assert (await shop.on(second, inserting(shop, "o-1"))).replayed
        await second.commit()
    else:
        with pytest.raises(TransactionConflict, match="40001") as raised:
            await shop.on(second, inserting(shop, "o-1"))
        assert (raised.value.key, getattr(raised.value.__cause__, "sqlstate", None)) == ("o-1", "40001")
        await second.rollback()
        await second.begin()
        assert (await shop.on(second, inserting(shop, "o-1"))).replayed
        await second.commit()
    assert shop.orders() == ["o-1"]


async def test_an_effect_that_loses_against_another_runs_again(shop: Shop):
    """Different keys, one row: the loser's whole transaction is begun again."""
    conn = await shop.connect()
    await shop.once(conn, inserting(shop, "row"), key="row")

    async def work(mine: Shop, own: Conn, number: int) -> Any:
        async def effect(own: Conn) -> int:
            await own.sql(f"SELECT note FROM orders WHERE id = '{mine.order('row')}'")
            await own.sql(f"UPDATE orders SET note = note || 'x' WHERE id = '{mine.order('row')}'")
            return number

        return (await mine.once(own, effect, key=f"k{number}", policy=Policy(patience=30))).result

    assert sorted(shop.together(4, work)) == [0, 1, 2, 3]
    assert await conn.sql(f"SELECT note FROM orders WHERE id = '{shop.order('row')}'") == ["xxxx"]
    assert [shop.state(f"k{number}") for number in range(4)] == ["completed"] * 4


async def test_a_commit_that_loses_runs_again(databases: dict[str, str]):
    """Write skew: both read what the other one writes, and SERIALIZABLE speaks at the latest in the commit."""
    shop = Shop(Psycopg, databases["serializable"])
    both_read = threading.Barrier(2)
    runs: list[int] = []

    async def work(mine: Shop, own: Conn, number: int) -> Any:
        async def effect(own: Conn) -> int:
            (count,) = await own.sql(f"SELECT count(*) FROM orders WHERE id LIKE '{mine.name}-%'")
            runs.append(number)
            if runs.count(number) == 1:
                both_read.wait(SOON)
            await own.insert(mine.order(f"{number}-saw-{count}"))
            return int(count)

        return (await mine.once(own, effect, key=f"k{number}", policy=Policy(patience=30))).result

    answers = shop.together(2, work)
    await shop.close()

    assert sorted(answers) == [0, 1]  # as if one had run after the other
    assert len(shop.orders()) == 2


async def test_two_keys_in_opposite_order_are_told_as_a_deadlock(databases: dict[str, str]):
    shop = Shop(Psycopg, databases["read committed"])
    both_hold = threading.Barrier(2)

    async def work(mine: Shop, own: Conn, number: int) -> Any:
        one, other = ("a", "b") if number == 0 else ("b", "a")
        await own.begin()
        await mine.on(own, inserting(mine, one), key=one)
        both_hold.wait(SOON)
        try:
            await mine.on(own, inserting(mine, other), key=other)
        except BaseException:
            await own.rollback()
            raise
        await own.commit()
        return "committed"

    outcomes = shop.together(2, work)
    await shop.close()

    assert "committed" in outcomes
    (conflict,) = [one for one in outcomes if one != "committed"]
    assert isinstance(conflict, TransactionConflict)
    assert "deadlock" in str(conflict)
    assert shop.orders() == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("isolation", LEVELS, ids=lambda level: level.replace(" ", "-"))
def test_effects_are_exactly_the_keys_whoever_is_killed(databases: dict[str, str], isolation: str):
    """Six processes over the same keys, three of them killed between effect and commit: one order for each key."""
    url, keys = databases[isolation], 200 if FULL else 25
    name = f"killed-{isolation.replace(' ', '-')}"

    def work(number: int) -> int:
        with Guard(url, policy=Policy(patience=30)) as mine, psycopg.connect(url) as own:

            @mine.once(name=name, key="order_id", boundary=Atomic("session"))
            def order(session: psycopg.Connection[Any], order_id: str) -> str:
                session.execute("INSERT INTO orders VALUES (%s, '')", (f"{name}-{order_id}",))
                if number < 3 and order_id == f"k{5 + 3 * number}":
                    os.kill(os.getpid(), signal.SIGKILL)
                return order_id

            return sum(order(own, f"k{key}") == f"k{key}" for key in range(keys))

    children = [Child(lambda n=number: work(n)) for number in range(6)]  # type: ignore[misc]
    done = [child.result() for child in children[3:]]
    for child in children[:3]:
        with contextlib.suppress(AssertionError):
            child.result()

    assert done == [keys] * 3
    with psycopg.connect(url) as connection:
        orders = connection.execute("SELECT count(*) FROM orders WHERE id LIKE %s", (f"{name}-%",)).fetchone()
        states = connection.execute(
            "SELECT state, count(*) FROM samekey_records WHERE operation = %s GROUP BY state", (name,)
        ).fetchall()
    assert (orders, states) == ((keys,), [("completed", keys)])
