"""What is MySQL's own: what a command costs, which keys are the same, and what a rival does."""

from __future__ import annotations

import asyncio
import gc
import itertools
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from uuid import uuid4

import anyio
import pytest

from samekey import AsyncGuard, Guard
from samekey.core.commands import Free, Read, Renew
from samekey.core.errors import RecordUnreadable, StoreBusy, StoreUnavailable
from samekey.core.key import make_key
from samekey.core.ports import Query
from samekey.core.record import Record
from samekey.core.states import State
from samekey.drivers.mysql import connect as driver
from samekey.drivers.mysql import errors, self_check
from samekey.ops import Ops
from samekey.stores.mysql import AsyncMysqlStore, MysqlStore, _connections
from samekey.testing.stores.scene import LEASE, A, B, settling
from tests.servers.mysql.helpers import connected, opened, sql, until
from tests.stores.interrupts import TimeLimit, interrupted_at

pytestmark = pytest.mark.slow

WAITS = " WHERE trx_state = 'LOCK WAIT'"

# -- what a command costs ------------------------------------------------------------------------------


def written_rows(url: str) -> dict[str, str]:
    with connected(url) as link, link.cursor() as cursor:
        cursor.execute(
            "SHOW GLOBAL STATUS WHERE Variable_name IN ('Innodb_rows_inserted', 'Innodb_rows_updated', "
            "'Innodb_rows_deleted', 'Com_insert', 'Com_insert_select', 'Com_update', 'Com_delete', 'Com_begin')"
        )
        return dict(cursor.fetchall())


def test_a_replay_writes_nothing_and_waits_for_nobody(store, url, scene):
    """Alone and in a batch a replay is a plain read: also while another transaction holds the row."""
    held = store.carry_out(scene.opening("one"))
    store.carry_out(settling(held, State.COMPLETED, result=b"done"))
    with connected(url) as rival, rival.cursor() as cursor:
        cursor.execute("SELECT * FROM samekey_records FOR UPDATE")
        before = written_rows(url)

        for _ in range(5):
            assert store.carry_out(scene.opening("one", by=B)).result == b"done"
        store.batch([scene.opening("one", by=B)] * 5)

        assert written_rows(url) == before
        rival.rollback()


def test_a_command_is_one_look_and_one_write(store, scene, monkeypatch):
    """A claim and a settle are two round trips, a replay and a read are one."""
    said: list[str] = []
    store.carry_out(scene.opening("first"))  # connects
    plain = driver.run

    def counted(link: Any, statement: str) -> Any:
        said.append(statement)
        return plain(link, statement)

    monkeypatch.setattr(driver, "run", counted)

    def trips() -> int:
        count = len(said)
        said.clear()
        return count

    held = store.carry_out(scene.opening("second"))
    assert trips() == 2
    store.carry_out(settling(held, State.COMPLETED))
    assert trips() == 2
    store.carry_out(scene.opening("second", by=B))
    store.carry_out(Read(held.key))
    assert trips() == 2


def test_the_servers_clock_is_the_only_one(store, url, scene, monkeypatch):
    """A client whose clock stands at 1970, and a server in a zone of its own: leases and times are the server's."""
    sql(url, "SET GLOBAL time_zone = '+05:00'")
    try:
        monkeypatch.setattr(time, "time", lambda: 0.0)
        held = store.carry_out(scene.opening())
    finally:
        sql(url, "SET GLOBAL time_zone = 'SYSTEM'")
    now = float(sql(url, "SELECT UNIX_TIMESTAMP(NOW(6))"))

    assert abs(held.created_at - now) < 60
    assert held.lease_until - held.created_at == pytest.approx(LEASE, abs=1e-6)
    assert sql(url, "SELECT created_at FROM samekey_records") == held.created_at


# -- keys ----------------------------------------------------------------------------------------------


def test_keys_are_compared_byte_by_byte(store, scene):
    """Case, accents, trailing spaces, full-width letters: each is a key of its own, also in a list."""
    texts = ["a", "A", "á", "a ", " a", "\uff41", "a\u0301", "ß", "ss", "x\\", "x'", "100%", "😀"]
    for number, text in enumerate(texts):
        held = store.carry_out(scene.opening(text, by=f"{number:032x}", tenant=text))
        assert held.attempt == f"{number:032x}"

    for number, text in enumerate(texts):
        (found,) = store.list(Query(operation=scene.operation, text=text, tenant=text))
        assert (found.key.text, found.key.tenant, found.attempt) == (text, text, f"{number:032x}")
    assert len(store.list(Query(operation=scene.operation))) == len(texts)
    assert store.list(Query(operation=scene.operation + " ")) == []


def test_a_digest_that_is_another_keys_is_told(store, url, scene):
    store.carry_out(scene.opening("one"))
    sql(url, "UPDATE samekey_records SET `key` = 'another'")

    with pytest.raises(RecordUnreadable, match="two keys with one digest"):
        store.carry_out(scene.opening("one"))


def test_a_damaged_record_does_not_hide_the_others_from_an_operator(store, url, scene):
    keys = [store.carry_out(scene.opening(name)).key for name in ("one", "two", "three")]
    sql(url, f"UPDATE samekey_records SET story = '{{' WHERE `key` = '{keys[1].text}'")
    page = Ops(store).list_records(Query())

    assert [record.key for record in page.records] == [keys[2], keys[0]]
    assert [str(keys[1]) in str(one) for one in page.unreadable] == [True]


def test_tokens_grow_past_a_clock_that_was_set_back(store, url, scene):
    """A deleted record leaves its token behind, and the next life of the key begins above it."""
    held = store.carry_out(scene.opening())
    far = held.token + 10**15
    sql(url, f"UPDATE samekey_records SET token = {far}")
    seen = store.carry_out(settling(store.carry_out(Read(held.key)), State.COMPLETED))
    assert store.carry_out(Free(seen, "ada", "again")) is None

    assert store.carry_out(scene.opening(by=B)).token == far + 1
    (other,) = store.batch([scene.opening("other", by=B)])
    assert isinstance(other, Record)
    assert other.token == far + 1


def test_a_claim_that_was_asleep_does_not_draw_an_old_token(store, url, scene, monkeypatch):
    """Between its look and its write another life of the key came and went: it looks again."""
    plain = driver.run
    naps: list[int] = []

    def slowly(link: Any, statement: str) -> Any:
        if "INSERT INTO samekey_records" in statement and not naps:
            naps.append(1)
            sql(url, "UPDATE samekey_meta SET value = '4000000000000000' WHERE name = 'last_token'")
        return plain(link, statement)

    monkeypatch.setattr(driver, "run", slowly)

    assert store.carry_out(scene.opening()).token == 4000000000000001


# -- rivals --------------------------------------------------------------------------------------------


def test_a_row_that_is_held_for_a_while_is_waited_for(store, url, scene, monkeypatch):
    """Longer than one wait of the server, shorter than all of them."""
    refused, is_busy = list[Exception](), errors.is_busy

    def noted(error: Exception) -> bool:
        refused.append(error)
        return is_busy(error)

    monkeypatch.setattr(errors, "is_busy", noted)
    held = store.carry_out(scene.opening())
    with connected(url) as rival, rival.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute("SELECT * FROM samekey_records FOR UPDATE")
        settled = pool.submit(store.carry_out, settling(held, State.COMPLETED))
        until(lambda: refused)  # the server's first wait is over
        rival.commit()

        assert settled.result(20).state is State.COMPLETED


def test_a_row_that_is_held_for_ever_is_told(store, url, scene, monkeypatch):
    monkeypatch.setattr(_connections, "CONFLICTS_MAX", 0)
    held = store.carry_out(scene.opening())
    with connected(url) as rival, rival.cursor() as cursor:
        cursor.execute("SELECT * FROM samekey_records FOR UPDATE")

        with pytest.raises(StoreUnavailable, match="transaction holds the record"):
            store.carry_out(settling(held, State.COMPLETED))


@pytest.fixture
def long_waits(monkeypatch):
    """A wait for a held row takes so long that a command behind it cannot be taken for a fast one."""
    session = tuple(one.replace("_timeout = 1,", "_timeout = 5,") for one in self_check._SESSION)
    monkeypatch.setattr(self_check, "_SESSION", session)


def in_transaction(url: str, link: Any, keys: list[str]) -> None:
    """Claim these keys inside the caller's transaction, and leave it open."""
    link.begin()
    with Guard(url) as guard:
        for key in keys:
            guard.on(link).run("charge", lambda: "atomic", key=key, payload={})


@pytest.mark.usefixtures("long_waits")
def test_claims_of_held_keys_stop_neither_renewals_nor_settles(store, url, scene):
    """Twelve plain claims wait for rows of an open transaction, and there are eight connections."""
    held = store.carry_out(scene.opening())
    keys = [f"held {number}" for number in range(12)]
    with connected(url) as rival, Guard(store) as guard, ThreadPoolExecutor(12) as pool:
        in_transaction(url, rival, keys)
        waiting = [pool.submit(guard.run, "charge", lambda: "plain", key=key, payload={}) for key in keys]
        until(
            lambda: sql(url, f"SELECT COUNT(*) FROM information_schema.innodb_trx{WAITS}") == _connections.CLAIMS_MAX,
            every=0.2,
        )
        start = time.monotonic()

        assert store.carry_out(Renew(held, LEASE)).lease_live
        assert store.carry_out(settling(held, State.COMPLETED)).state is State.COMPLETED

        assert time.monotonic() - start < 2.0
        rival.commit()
        assert [one.result(30).result for one in waiting] == ["atomic"] * 12


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_claims_of_keys_known_to_be_held_do_not_stop_other_claims(url, scene, colour):
    """After the first wait nobody keeps a connection waiting for those rows."""
    keys = [f"held {number}" for number in range(12)]

    async def claimed(store: Any, command: Any) -> Any:
        return (
            await store.carry_out(command) if colour == "async" else await asyncio.to_thread(store.carry_out, command)
        )

    async def main() -> tuple[list[Any], float]:
        store: Any = AsyncMysqlStore(url) if colour == "async" else MysqlStore(url)
        commands = [replace(scene.opening(key), key=make_key("charge", key)) for key in keys]
        first = await asyncio.gather(*(claimed(store, one) for one in commands), return_exceptions=True)
        start = time.monotonic()
        for _ in range(5):
            again = asyncio.gather(*(claimed(store, one) for one in commands), return_exceptions=True)
            await claimed(store, scene.opening(f"unrelated {uuid4()}"))
            first += await again
        seconds = time.monotonic() - start
        if colour == "async":
            await store.close()
        else:
            store.close()
        return first, seconds

    with connected(url) as rival:
        in_transaction(url, rival, keys)
        answers, seconds = asyncio.run(main())

    assert {type(one) for one in answers} == {StoreBusy}
    assert len(answers) == 72
    assert seconds < 4.0  # each round waited a second or two before


def test_at_the_servers_limit_of_connections_a_command_waits_for_one_of_ours(url, scene):
    """The claim's connection is open: a settle goes over it, instead of failing for want of another one."""
    sql(url, "CREATE OR REPLACE USER limited@'%' IDENTIFIED BY '' WITH MAX_USER_CONNECTIONS 1")
    sql(url, "GRANT SELECT, INSERT, UPDATE, DELETE ON *.* TO limited@'%'")
    with opened(url.replace("samekey@", "limited@")) as store, ThreadPoolExecutor(6) as pool:

        def pay(number: int) -> Any:
            held = store.carry_out(scene.opening(str(number), by=f"{number:032x}"))
            return store.carry_out(settling(held, State.COMPLETED)).state

        assert list(pool.map(pay, range(24))) == [State.COMPLETED] * 24


def test_a_deadlock_is_run_again(store, url, scene):
    """A batch holds one row and wants the next, a rival the other way round: both get through."""
    held = store.batch([scene.opening(str(number)) for number in range(2)])
    first, last = sorted(held, key=lambda one: one.key.digest)
    with connected(url) as rival, rival.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        # So large a transaction that the server gives up ours.
        cursor.execute("UPDATE samekey_records SET error = REPEAT('x', 1000) WHERE digest = %s", (last.key.digest,))
        for _ in range(200):
            cursor.execute("INSERT INTO samekey_audit VALUES (NULL, 1, 'x', 'x', 'x', NULL, 'x', '', '', '')")
        settles = pool.submit(store.batch, [settling(first, State.COMPLETED), settling(last, State.COMPLETED)])
        # Whoever asks more often than every 0.1 s is shown the same picture again.
        waits = "SELECT COUNT(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'"
        until(lambda: sql(url, waits), every=0.15)
        cursor.execute("UPDATE samekey_records SET error = NULL WHERE digest = %s", (first.key.digest,))
        rival.commit()

        assert [one.state for one in settles.result(20)] == [State.COMPLETED] * 2


@pytest.mark.parametrize("verb", ["open", "settle"])
def test_batches_in_opposite_order_do_not_deadlock(url, scene, verb):
    """Keys are sorted on the way: two processes with the same keys, one backwards, both get through."""
    stores = [MysqlStore(url), MysqlStore(url)]
    for round_ in range(3):
        opens = [scene.opening(f"{round_} {number}", by=A) for number in range(100)]
        if verb == "open":
            lists: list[Any] = [opens, [replace(one, attempt=B) for one in reversed(opens)]]
        else:
            settles = [settling(one, State.COMPLETED) for one in stores[0].batch(opens) if isinstance(one, Record)]
            lists = [settles, settles[::-1]]
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda pair: pair[0].batch(pair[1]), zip(stores, lists, strict=True))

        assert not [one for one in (*first, *second) if isinstance(one, Exception)]
        assert [one.fence for one in first] == [one.fence for one in reversed(second)]
    for one in stores:
        one.close()


def test_a_poisoned_row_fails_alone(store, url, scene):
    """The server refuses one row of a batch: that one is answered with its error, the others are carried out."""
    sql(url, "ALTER TABLE samekey_records ADD CHECK (boundary <> 'poison')")
    commands = [scene.opening(str(number), boundary="poison" if number == 7 else "opaque") for number in range(16)]

    replies = store.batch([*commands, scene.opening("odd", attributes=(("a", "\ud800"),))])

    assert [number for number, one in enumerate(replies) if isinstance(one, Exception)] == [7, 16]
    assert len(store.list(Query(operation=scene.operation))) == 15


def test_a_sweep_leaves_what_somebody_is_writing(store, url, scene):
    for text in ("one", "two"):
        store.carry_out(settling(store.carry_out(scene.opening(text)), State.COMPLETED, retain=-1.0))
    with connected(url) as rival, rival.cursor() as cursor:
        cursor.execute(
            "SELECT * FROM samekey_records WHERE `key` = 'one' AND digest = %s FOR UPDATE", (scene.key("one").digest,)
        )

        assert store.sweep(10) == 1
    assert store.sweep(10) == 1


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_an_async_guard_on_any_loop(url, loop):
    """Fifty callers with one key and a hundred keys besides, on both loops: the threads are the store's own."""

    async def main() -> list[int]:
        guard, effects, answers, called = AsyncGuard(url), list[str](), list[Any](), list[str]()

        async def call(key: str) -> None:
            called.append(key)

            async def effect() -> str:
                effects.append(key)
                while len(called) < 150:
                    await anyio.sleep(0)
                return key

            answers.append((await guard.run(f"charge {loop}", effect, key=key, payload={})).result)

        async with anyio.create_task_group() as group:
            for number in range(150):
                group.start_soon(call, "same" if number < 50 else str(number))
        await guard.close()
        return [len(effects), len(set(effects)), len(answers)]

    assert anyio.run(main, backend=loop) == [101, 101, 150]


def test_an_interrupt_at_any_line_leaves_nothing_to_the_next_caller(url, scene, monkeypatch):
    """No place among those who have a connection is taken for ever, and no reply is left there."""
    monkeypatch.setattr(_connections, "TURN_SECONDS", 1.0)
    with opened(url) as store:
        paid = store.carry_out(scene.opening("paid"))
        store.carry_out(settling(paid, State.COMPLETED, result=b"paid"))
        for number in itertools.count(1):
            with interrupted_at(number, "mysql", kind=TimeLimit) as strike:
                store.carry_out(scene.opening(f"o-{number}"))

            gc.collect(1)  # Python 3.13 leaves it to the collector what an interrupt left behind
            for turns, many in (
                (store._here._turns, _connections.LINKS_MAX),
                (store._here._claim_turns, _connections.CLAIMS_MAX),
            ):
                taken = [turns.take() for _ in range(many)]
                assert turns._free.empty(), strike.where
                while taken:  # and none is kept here
                    turns.give_back(taken.pop())
            assert store.carry_out(scene.opening("paid", by=B)).result == b"paid", strike.where
            if not strike.struck:
                break
        assert number > 20


# -- the end of the process ----------------------------------------------------------------------------


AFTER_MAIN = """
import asyncio, concurrent.futures.thread, sys, threading
from samekey import AsyncGuard

guard, begun = AsyncGuard(sys.argv[1]), threading.Event()

async def charge():
    begun.set()
    while not concurrent.futures.thread._shutdown:
        await asyncio.sleep(0.01)
    return "paid"

async def work():
    print((await guard.run("charge", charge, key="o-1", payload={})).result)
    print((await guard.peek("charge", "o-1")).state.value)
    await guard.close()

threading.Thread(target=lambda: asyncio.run(work())).start()
begun.wait()
"""


def test_what_runs_when_the_main_thread_ends_is_settled(url):
    """Python ends all its pools with the main thread, and waits for every other thread."""
    ran = subprocess.run(
        [sys.executable, "-c", AFTER_MAIN, url], capture_output=True, text=True, timeout=60, check=False
    )

    assert ran.stdout.split() == ["paid", "completed"], ran.stderr
