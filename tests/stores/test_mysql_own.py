"""What is MySQL's own: what a command costs, what a lost reply, a crash, a rival and an odd setting do."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import pymysql
import pytest

from samekey import AsyncGuard, Guard, InDoubt, Policy, ResultNotKept
from samekey.addresses import open_store
from samekey.core.commands import Ask, Begin, Free, Read, Redact, Renew, Take, Testify, Wait
from samekey.core.errors import Misconfigured, RecordUnreadable, SamekeyError, StoreUnavailable
from samekey.core.ports import Query
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.drivers import pymysql as driver
from samekey.stores import _mysql_links
from samekey.stores.mysql import AsyncMysqlStore, MysqlStore
from samekey.testing._store_scenarios.scene import LEASE, A, B, Scene, settling
from samekey.testing.mariadb_servers import PrivateMariadb, mariadb
from tests.stores.wire import Wire

pytestmark = pytest.mark.slow

KILLING_SECONDS = 60.0 if os.environ.get("SAMEKEY_BUDGET") == "full" else 4.0


@pytest.fixture(scope="module")
def mortal(samekey_mariadb):
    """A server that tests may stop."""
    if not isinstance(samekey_mariadb, PrivateMariadb):
        pytest.skip("SAMEKEY_TEST_MYSQL names a server that is not ours to stop")
    with mariadb(innodb_flush_log_at_trx_commit="1") as running:
        yield running


@pytest.fixture
def url(samekey_mariadb):
    made = samekey_mariadb.create_database()
    driver.migrate(made)
    return made


def opened(url: str) -> Any:
    return contextlib.closing(MysqlStore(url))


@pytest.fixture
def store(url):
    with opened(url) as one:
        yield one


@pytest.fixture
def wire(url):
    with contextlib.closing(Wire(url)) as one:
        yield one


@pytest.fixture
def scene():
    return Scene(0.02)


def connected(url: str, **more: Any) -> Any:
    """A connection as a shop would make it: not one of the store's."""
    parts = urlsplit(url)
    settings = {
        "host": parts.hostname,
        "port": parts.port,
        "user": parts.username,
        "database": parts.path[1:],
        "ssl_disabled": True,
    }
    return contextlib.closing(pymysql.connect(**{**settings, **more}))


def sql(url: str, statement: str) -> Any:
    with connected(url, autocommit=True) as link, link.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def until(found: Any, *, every: float = 0.01) -> Any:
    deadline = time.monotonic() + 20.0
    while not (value := found()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(every)
    return value


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
    held = store.open(scene.opening("one"))
    store.settle(settling(held, State.COMPLETED, result=b"done"))
    with connected(url) as rival, rival.cursor() as cursor:
        cursor.execute("SELECT * FROM samekey_records FOR UPDATE")
        before = written_rows(url)

        for _ in range(5):
            assert store.open(scene.opening("one", by=B)).result == b"done"
        store.batch([scene.opening("one", by=B)] * 5)

        assert written_rows(url) == before
        rival.rollback()


def test_a_command_is_one_look_and_one_write(store, scene, monkeypatch):
    """A claim and a settle are two round trips, a replay and a read are one."""
    said: list[str] = []
    store.open(scene.opening("first"))  # connects
    plain = driver.run

    def counted(link: Any, statement: str) -> Any:
        said.append(statement)
        return plain(link, statement)

    monkeypatch.setattr(driver, "run", counted)

    def trips() -> int:
        count = len(said)
        said.clear()
        return count

    held = store.open(scene.opening("second"))
    assert trips() == 2
    store.settle(settling(held, State.COMPLETED))
    assert trips() == 2
    store.open(scene.opening("second", by=B))
    store.read(Read(held.key))
    assert trips() == 2


def test_the_servers_clock_is_the_only_one(store, url, scene, monkeypatch):
    """A client whose clock stands at 1970, and a server in a zone of its own: leases and times are the server's."""
    sql(url, "SET GLOBAL time_zone = '+05:00'")
    try:
        monkeypatch.setattr(time, "time", lambda: 0.0)
        held = store.open(scene.opening())
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
        held = store.open(scene.opening(text, by=f"{number:032x}", tenant=text))
        assert held.attempt == f"{number:032x}"

    for number, text in enumerate(texts):
        (found,) = store.list(Query(operation=scene.operation, text=text, tenant=text))
        assert (found.key.text, found.key.tenant, found.attempt) == (text, text, f"{number:032x}")
    assert len(store.list(Query(operation=scene.operation))) == len(texts)
    assert store.list(Query(operation=scene.operation + " ")) == []


def test_a_digest_that_is_another_keys_is_told(store, url, scene):
    store.open(scene.opening("one"))
    sql(url, "UPDATE samekey_records SET `key` = 'another'")

    with pytest.raises(RecordUnreadable, match="two keys with one digest"):
        store.open(scene.opening("one"))


def test_tokens_grow_past_a_clock_that_was_set_back(store, url, scene):
    """A deleted record leaves its token behind, and the next life of the key begins above it."""
    held = store.open(scene.opening())
    far = held.token + 10**15
    sql(url, f"UPDATE samekey_records SET token = {far}")
    seen = store.settle(settling(store.read(Read(held.key)), State.COMPLETED))
    assert store.free(Free(seen, "ada", "again")) is None

    assert store.open(scene.opening(by=B)).token == far + 1
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

    assert store.open(scene.opening()).token == 4000000000000001


# -- lost replies --------------------------------------------------------------------------------------


def lost_anywhere(wire: Wire, store: Any, work: Any) -> list[Any]:
    """`work` once for each of its answers, which is lost; the cut comes ever later, until it comes too late."""
    done = []
    for number in range(1, 20):
        store.read(Read(Scene(0.02).key()))  # connected
        wire.cut(number)
        done.append(work(number))
        if wire.mend():
            return done
    raise AssertionError("the cut always came")


def test_a_claim_whose_reply_was_lost_is_asked_again(wire, url, scene):
    """Wherever the wire is cut: it finds itself by its attempt id, and no second record or token is seen."""
    with opened(wire.url) as store, opened(url) as other:
        claims = lost_anywhere(wire, store, lambda number: store.open(scene.opening(f"lost {number}")))
        assert wire.cuts == len(claims) - 1 == 2

        for held in claims:
            assert (held.attempt, held.attempts, held.lease_live, len(held.moves)) == (A, 1, True, 1)
            assert other.open(scene.opening(held.key.text, by=B)).fence == held.fence
    assert [held.version for held in claims] == [2, 2, 1]  # whoever had to ask again confirms its claim by a write


@pytest.mark.parametrize(
    "verb", ["begin", "renew", "doubt", "ask", "take", "testify", "complete", "resolve", "free", "batch", "sweep"]
)
def test_every_command_whose_reply_was_lost_recognises_itself(wire, scene, verb):
    """Sent twice, done once, at whichever of its answers the wire was cut."""
    with opened(wire.url) as store:

        def once(number: int) -> None:
            wire.mend()
            text = f"{verb} {number}"
            held = store.open(scene.opening(text, boundary="opaque marked"))
            doubt: Any = None
            completed: Any = None
            if verb in ("ask", "take", "resolve"):
                doubt = store.settle(settling(held, State.IN_DOUBT))
            if verb == "free":
                completed = store.settle(settling(held, State.COMPLETED))
            if verb == "sweep":
                store.settle(settling(held, State.COMPLETED, retain=-1.0))
            store.read(Read(held.key))
            wire.cut(number)
            match verb:
                case "begin":
                    assert store.begin(Begin(held)).begun_at is not None
                case "renew":
                    assert store.renew(Renew(held, LEASE)).lease_live
                case "doubt":
                    after = store.settle(settling(held, State.IN_DOUBT, error="TimeoutError"))
                    assert (after.state, len(after.moves)) == (State.IN_DOUBT, 2)
                case "ask":
                    assert store.ask(Ask(doubt, B, LEASE)).being_asked
                case "take":
                    after = store.take(Take(doubt, B, "opaque", LEASE, False))
                    assert (after.attempt, after.attempts) == (B, 2)
                case "testify":
                    after = store.testify(Testify(held.key, B, held.token, State.CLOSED, None, "late"))
                    assert len(after.evidence) == 1
                case "complete":
                    after = store.settle(settling(held, State.COMPLETED, result=b"done", next_round=True))
                    assert (after.state, after.round, len(after.moves)) == (State.COMPLETED, 1, 2)
                case "resolve":
                    after = store.settle(settling(doubt, State.RELEASED, role=Role.OPERATOR, by="ada", why=text))
                    assert (after.state, after.settled_by) == (State.RELEASED, "ada")
                case "free":
                    assert store.free(Free(completed, "ada", text)) is None
                case "batch":
                    opens = [scene.opening(f"{text} {one}", by=B) for one in range(3)]
                    replies = store.batch([*opens, settling(held, State.COMPLETED)])
                    assert [one.attempt for one in replies] == [B, B, B, A]
                    assert all(len(one.moves) == 1 for one in replies[:3])
                case "sweep":
                    store.sweep(10)
                    assert store.read(Read(held.key)) is None

        times = len(lost_anywhere(wire, store, once))
        assert wire.cuts >= 2
        assert len(store.audit(100)) == (times if verb in ("resolve", "free") else 0)


def test_a_redaction_whose_reply_was_lost_says_so(wire, scene):
    """A second one would be audited twice: a person looks, and asks again."""
    with opened(wire.url) as store:
        held = store.open(scene.opening())
        done = store.settle(settling(held, State.COMPLETED, result=b"secret"))
        wire.cut(4)  # look, begin, update, audit: the fourth answer

        with pytest.raises(StoreUnavailable):
            store.redact(Redact(done, "ada", "asked to"))
        assert store.redact(Redact(done, "ada", "asked to")).result is None
        assert len(store.audit(10)) == 1


async def test_a_lost_reply_in_the_other_colour(wire, scene):
    store = AsyncMysqlStore(wire.url)
    await store.open(scene.opening("connected"))
    for number in (1, 2):
        wire.cut(number)
        held = await store.open(scene.opening(f"lost {number}"))
        assert (held.attempt, len(held.moves)) == (A, 1)
    await store.close()
    assert wire.cuts == 2


def test_a_connection_that_was_idle_for_long_is_made_anew(wire, scene, monkeypatch):
    """Before the server hangs up on it: no reply is lost, and nothing has to be confirmed."""
    with opened(wire.url) as store:
        store.open(scene.opening("one"))
        before = store._links()._free[0]
        monkeypatch.setattr(driver, "IDLE_SECONDS", 0)
        assert store.open(scene.opening("two")).version == 1

        assert store._links()._free[0][0] is not before[0]
        assert not before[0].open


def test_a_connection_that_was_killed_is_made_again(store, url, scene):
    """An administrator, or a wait_timeout: whoever comes next does not notice."""
    store.open(scene.opening("one"))
    for (number,) in _rows(url, "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID()"):
        with contextlib.suppress(pymysql.Error):
            sql(url, f"KILL {number}")

    assert store.open(scene.opening("two")).attempt == A


def _rows(url: str, statement: str) -> Any:
    with connected(url) as link, link.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchall()


def test_a_silent_server_is_not_waited_for_for_ever(mortal, scene, monkeypatch):
    """Frozen, with its connections open: told after a while, and served again when it thaws."""
    url = mortal.create_database()
    driver.migrate(url)
    monkeypatch.setattr(driver, "SILENCE_SECONDS", 1)
    monkeypatch.setattr(driver, "CONNECT_SECONDS", 1)
    monkeypatch.setattr(_mysql_links, "REASK_SECONDS", 0.5)
    with opened(url) as store:
        store.open(scene.opening("before"))
        os.kill(mortal.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreUnavailable):
                store.open(scene.opening("frozen"))
            replies = store.batch([scene.opening(str(number)) for number in range(50)])
            assert all(isinstance(one, StoreUnavailable) for one in replies)
        finally:
            os.kill(mortal.pid, signal.SIGCONT)

        assert store.open(scene.opening("frozen")).attempt == A


# -- rivals --------------------------------------------------------------------------------------------


def test_a_row_that_is_held_for_a_while_is_waited_for(store, url, scene):
    """Longer than one wait of the server, shorter than all of them."""
    held = store.open(scene.opening())
    with connected(url) as rival, rival.cursor() as cursor, ThreadPoolExecutor(1) as pool:
        cursor.execute("SELECT * FROM samekey_records FOR UPDATE")
        settled = pool.submit(store.settle, settling(held, State.COMPLETED))
        time.sleep(1.3)
        rival.commit()

        assert settled.result(20).state is State.COMPLETED


def test_a_row_that_is_held_for_ever_is_told(store, url, scene, monkeypatch):
    monkeypatch.setattr(_mysql_links, "CONFLICTS_MAX", 0)
    held = store.open(scene.opening())
    with connected(url) as rival, rival.cursor() as cursor:
        cursor.execute("SELECT * FROM samekey_records FOR UPDATE")

        with pytest.raises(StoreUnavailable, match="another transaction holds the record"):
            store.settle(settling(held, State.COMPLETED))


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
        until(lambda: sql(url, "SELECT COUNT(*) FROM information_schema.innodb_lock_waits"), every=0.15)
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
        store.settle(settling(store.open(scene.opening(text)), State.COMPLETED, retain=-1.0))
    with connected(url) as rival, rival.cursor() as cursor:
        cursor.execute(
            "SELECT * FROM samekey_records WHERE `key` = 'one' AND digest = %s FOR UPDATE", (scene.key("one").digest,)
        )

        assert store.sweep(10) == 1
    assert store.sweep(10) == 1


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_an_async_guard_on_any_loop(url, loop):
    """Fifty callers with one key and a hundred keys besides, on both loops: the threads are the store's own."""
    anyio = pytest.importorskip("anyio")

    async def main() -> list[int]:
        guard, effects, answers = AsyncGuard(url), list[str](), list[Any]()

        async def call(key: str) -> None:
            async def effect() -> str:
                effects.append(key)
                await anyio.sleep(0.01)
                return key

            answers.append((await guard.run(f"charge {loop}", effect, key=key, payload={})).result)

        async with anyio.create_task_group() as group:
            for number in range(150):
                group.start_soon(call, "same" if number < 50 else str(number))
        await guard.close()
        return [len(effects), len(set(effects)), len(answers)]

    assert anyio.run(main, backend=loop) == [101, 101, 150]


# -- crowds and crashes --------------------------------------------------------------------------------


def test_eight_processes_and_one_key(url, tmp_path):
    """Forked from one guard that was connected already: one effect, and everybody has its answer."""
    guard = Guard(url, policy=Policy(patience=30))
    guard.run("warm", lambda: None, key="up", payload={})
    book = tmp_path / "effects"
    children = []
    for number in range(8):
        child = os.fork()
        if child == 0:
            try:

                def effect(number: int = number) -> int:
                    with open(book, "a") as file:
                        file.write(f"{number}\n")
                    time.sleep(0.2)
                    return number

                answer = guard.run("charge", effect, key="o-1", payload={"amount": 200})
                os._exit(answer.result)
            finally:
                os._exit(99)
        children.append(child)
    codes = {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}

    effects = book.read_text().split()
    assert len(effects) == 1
    assert codes == {int(effects[0])}
    assert guard.run("charge", lambda: 99, key="o-1", payload={"amount": 200}).result == int(effects[0])
    guard.close()


def test_a_waiter_in_another_process_is_woken_by_the_watcher(store, url, scene, monkeypatch):
    """Without the slow re-read nothing else would tell it."""
    monkeypatch.setattr("samekey.stores._waiting.REREAD_SECONDS", 60.0)
    held = store.open(scene.opening())
    with opened(url) as other, ThreadPoolExecutor(20) as pool:
        waiting = [pool.submit(other.wait, Wait(held), 30.0) for _ in range(20)]
        until(lambda: other._links().watch._thread)
        time.sleep(0.1)
        store.settle(settling(held, State.COMPLETED, result=b"done"))

        assert {one.result(30).result for one in waiting} == {b"done"}


def test_a_server_that_is_killed_keeps_what_it_answered(mortal):
    """kill -9 under load: every claim that was answered is there, none twice, and the callers are served again."""
    url = mortal.create_database()
    driver.migrate(url)
    guard = Guard(url, policy=Policy(patience=30))
    effects: list[str] = []
    answers: list[tuple[str, Any]] = []
    over = threading.Event()

    def charge(key: str) -> str:
        effects.append(key)
        return key

    def work(worker: int) -> None:
        number = 0
        while not over.is_set():
            key = f"{worker} {number}"
            try:
                answer = guard.run("charge", partial(charge, key), key=key, payload={})
            except StoreUnavailable:
                continue  # the same key again
            answers.append((key, answer.result))
            number += 1

    with ThreadPoolExecutor(4) as pool:
        workers = [pool.submit(work, number) for number in range(4)]
        for _ in range(2):
            before = len(answers)
            until(lambda before=before: len(answers) > before + 20)
            mortal.restart("kill")
        before = len(answers)
        until(lambda: len(answers) > before + 20)
        over.set()
        for one in workers:
            one.result(60)

    assert len(effects) == len(set(effects))
    assert all(key == result for key, result in answers)
    for key, result in answers:
        assert guard.run("charge", lambda: "again", key=key, payload={}).result == result
    guard.close()


def test_processes_and_servers_that_are_killed_at_random_never_double_an_effect(mortal, tmp_path):
    """Eight workers on the same 200 keys at a time, one killed every moment, and the server now and then."""
    url = mortal.create_database()
    driver.migrate(url)
    book, dice = tmp_path / "effects", random.Random(7)
    began = time.monotonic()

    def work(seed: int) -> None:
        mine = random.Random(seed)
        guard = Guard(url, policy=Policy(lease=1.0, patience=0.2))
        ledger = os.open(book, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        while True:
            key = f"{int(time.monotonic() - began) // 2} {mine.randrange(200)}"

            def effect(key: str = key) -> str:
                os.write(ledger, f"{key}\n".encode())  # one write, wherever we are killed
                time.sleep(0.001)
                return key

            with contextlib.suppress(SamekeyError):  # in progress or in doubt: another worker's; or no server
                assert guard.run("charge", effect, key=key, payload={}).result == key

    def fork() -> int:
        seed = dice.randrange(1 << 30)
        child = os.fork()
        if child == 0:
            try:
                work(seed)
            finally:
                os._exit(1)  # only an answer that was another key's comes here
        return child

    workers, kills, restarts = [fork() for _ in range(8)], 0, 0
    while time.monotonic() - began < KILLING_SECONDS:
        time.sleep(dice.uniform(0.02, 0.2))
        victim = workers.pop(dice.randrange(8))
        os.kill(victim, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]) == -signal.SIGKILL
        workers.append(fork())
        kills += 1
        if time.monotonic() - began > (restarts + 1) * KILLING_SECONDS / 4:
            mortal.restart("kill")
            restarts += 1
    for victim in workers:
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)

    effects = book.read_text().splitlines()
    print(f"{len(effects)} effects of {len(set(effects))} keys, {kills} processes and {restarts} servers killed")
    assert len(effects) == len(set(effects)) > 100
    with contextlib.closing(Guard(url, policy=Policy(lease=1.0, patience=5.0))) as guard:
        for key in effects[-50:]:
            with contextlib.suppress(InDoubt):
                assert guard.run("charge", lambda: "again", key=key, payload={}).result == key


def test_another_server_in_its_place_is_noticed(mortal, scene):
    """A failover changes who answers: claims since then say so, also to a process that starts later."""
    url = mortal.create_database()
    driver.migrate(url)
    store: Any = MysqlStore(url)
    before = store.open(scene.opening("before"))
    known = store.health().incarnation
    mortal.restart("kill", server_id="7")

    after = store.open(scene.opening("after"))
    assert store.health().incarnation != known
    assert any("another server" in warning for warning in store.health().warnings)
    assert (before.after_loss, after.after_loss) == (False, True)
    assert not store.read(Read(before.key)).after_loss
    with opened(url) as later:
        assert later.open(scene.opening("later")).after_loss
    store.close()


def test_tables_that_were_made_anew_are_noticed(store, url, scene):
    store.open(scene.opening("before"))
    for table in ("records", "meta", "audit"):
        sql(url, f"DROP TABLE samekey_{table}")
    with pytest.raises(Misconfigured, match=r"samekey migrate --store mysql://"):
        store.open(scene.opening("between"))
    driver.migrate(url)
    store.health()  # a new connection

    assert store.open(scene.opening("after")).after_loss


def test_a_process_that_dies_while_it_holds_is_outlived(url, tmp_path):
    """Killed in its effect: nobody runs it again by itself, and its lease ends by the server's clock."""
    child = os.fork()
    if child == 0:
        guard = Guard(url, policy=Policy(lease=0.5, patience=0.2))
        guard.run("charge", lambda: os.kill(os.getpid(), signal.SIGKILL), key="o-1", payload={})
    os.waitpid(child, 0)
    with contextlib.closing(Guard(url, policy=Policy(lease=0.5, patience=5))) as guard, pytest.raises(InDoubt):
        guard.run("charge", lambda: "again", key="o-1", payload={})


# -- settings ------------------------------------------------------------------------------------------


def test_a_read_only_server_is_refused(url, scene):
    """A replica does not know the last claims; one that is demoted under us is noticed at the next write."""
    with opened(plain(url)) as store:
        done = store.settle(settling(store.open(scene.opening("before")), State.COMPLETED, result=b"done"))
        sql(url, "SET GLOBAL read_only = 1")
        try:
            with opened(url) as other, pytest.raises(StoreUnavailable, match="read-only"):
                other.open(scene.opening("refused"))
            assert store.open(scene.opening("before", by=B)).result == done.result  # settled for good: as true as ever
            with pytest.raises(StoreUnavailable, match="read-only"):
                store.open(scene.opening("refused"))
        finally:
            sql(url, "SET GLOBAL read_only = 0")
        assert store.open(scene.opening("refused")).attempt == A


def plain(url: str) -> str:
    """The same address for a user who may read and write rows, and nothing else."""
    sql(url, "CREATE USER IF NOT EXISTS plain@'%' IDENTIFIED BY ''")
    sql(url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON {urlsplit(url).path[1:]}.* TO plain@'%'")
    return url.replace("samekey@", "plain@")


def test_a_binary_log_is_looked_at(mortal, scene):
    """One that cannot log READ COMMITTED is refused; one that a power loss may leave behind is told."""
    url = mortal.create_database()
    driver.migrate(url)
    mortal.restart("fast", log_bin="binlog", binlog_format="STATEMENT")
    with opened(url) as store, pytest.raises(Misconfigured, match="ROW or MIXED"):
        store.open(scene.opening())
    mortal.restart("fast", binlog_format="ROW", sync_binlog="0", innodb_doublewrite="0")
    with opened(url) as store:
        assert store.open(scene.opening()).attempt == A
        told = " ".join(store.health().warnings)
        assert "sync_binlog is 0" in told
        assert "innodb_doublewrite is off" in told
    mortal.restart("fast", binlog_format="MIXED", sync_binlog="1", innodb_doublewrite="1")
    with opened(url) as store:
        store.settle(settling(store.open(scene.opening(by=B)), State.COMPLETED))
        assert store.health().warnings == ()


def test_the_health_says_which_guarantee_is_reached(store, mortal):
    weak = store.health()
    assert "not all power losses" in weak.guarantee
    assert any("innodb_flush_log_at_trx_commit is 2" in one for one in weak.warnings)
    made = mortal.create_database()
    driver.migrate(made)
    with opened(made) as strong:
        assert strong.health().guarantee == (
            "claims survive crashes of clients and of the server; "
            "a failover to an asynchronous replica may lose the last ones"
        )
        assert dict(strong.health().facts)["server"].startswith("MariaDB 1")


def test_a_table_that_is_not_innodb_is_refused(url, scene):
    sql(url, "ALTER TABLE samekey_audit ENGINE = MyISAM")

    with opened(url) as store, pytest.raises(Misconfigured, match="make it InnoDB"):
        store.open(scene.opening())


def test_a_result_larger_than_a_packet_is_not_kept_and_never_runs_again(url):
    """The server would hang up: it is told before, and the record says completed."""
    before = sql(url, "SELECT @@GLOBAL.max_allowed_packet")
    sql(url, "SET GLOBAL max_allowed_packet = 1048576")
    try:
        with contextlib.closing(Guard(url, policy=Policy(result_max_bytes=4 << 20))) as guard:
            assert any("max_allowed_packet" in one for one in guard.store.health().warnings)
            runs: list[int] = []

            def big() -> str:
                runs.append(1)
                return "x" * 700_000

            answer = guard.run("big", big, key="k", payload={})
            assert (answer.state, len(answer.result)) == (State.COMPLETED, 700_000)

            with pytest.raises(ResultNotKept, match="max_allowed_packet"):
                guard.run("big", big, key="k", payload={})
            assert runs == [1]
            assert guard.run("fits", lambda: "x" * 400_000, key="k", payload={}).recorded
    finally:
        sql(url, f"SET GLOBAL max_allowed_packet = {before}")


def test_addresses():
    address = driver.parse_url("mariadb://app:p%40ss@db.example:3307/shop?ssl_ca=/etc/ca.pem")
    assert address.name == "mariadb://app@db.example:3307/shop?ssl_ca=/etc/ca.pem"
    assert address.arguments["password"] == "p@ss"
    assert address.arguments["ssl_verify_identity"] is True
    assert "p@ss" not in repr(address)
    with pytest.raises(Misconfigured) as told:
        driver.parse_url("mysql://db/shop?password=secret")
    assert "secret" not in str(told.value)
    for wrong in ("mysql://db", "mysql://db/", "mysql://db/a/b", "mysql://db:x/shop", "mysql://db/shop?charset=latin1"):
        with pytest.raises(Misconfigured):
            driver.parse_url(wrong)
    with contextlib.closing(open_store("mysql://app:secret@db/shop", asynchronous=False)) as store:
        assert "secret" not in repr(store)


def test_who_may_not_come_in_is_told(url):
    sql(url, "CREATE OR REPLACE USER weak@'%' IDENTIFIED BY 'right'")
    for changed in (url.replace("samekey@", "weak:wrong@"), url.replace("samekey@", "weak:right@"), url + "_not_there"):
        with opened(changed) as store, pytest.raises(Misconfigured) as told:
            store.health()
        assert "wrong" not in str(told.value)
    with opened("mysql://app@127.0.0.1:1/shop") as store, pytest.raises(StoreUnavailable):
        store.health()


def test_a_user_needs_no_more_than_rows(url, scene):
    """SELECT, INSERT, UPDATE and DELETE: a store never makes or changes a table."""
    with opened(plain(url)) as store:
        done = store.settle(settling(store.open(scene.opening()), State.COMPLETED))
        assert store.free(Free(done, "ada", "again")) is None
        assert store.health().warnings


def test_a_socket_and_tls(mortal, scene, tmp_path):
    """Over the server's own socket; and over TLS, where a server that cannot prove itself is refused."""
    url = mortal.create_database()
    driver.migrate(url)
    with opened(f"{url}?unix_socket={mortal.socket}") as store:
        assert store.open(scene.opening("socket")).attempt == A
    for name in ("right", "wrong"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{name}.key", "-out", f"{name}.pem"],
            check=True, capture_output=True, cwd=tmp_path,
        )  # fmt: skip
    for name in ("right.key", "right.pem"):
        target = mortal.folder / name
        target.write_bytes((tmp_path / name).read_bytes())
        target.chmod(0o644)
    mortal.restart("fast", ssl_cert=str(mortal.folder / "right.pem"), ssl_key=str(mortal.folder / "right.key"))

    with opened(f"{url}?ssl_ca={tmp_path / 'right.pem'}") as store:
        assert store.open(scene.opening("tls")).attempt == A
        with store._links().borrowed() as run:
            assert run("SHOW STATUS LIKE 'Ssl_cipher'")[0][0][1]
    with (
        opened(f"{url}?ssl_ca={tmp_path / 'wrong.pem'}") as store,
        pytest.raises(StoreUnavailable, match="certificate"),
    ):
        store.open(scene.opening("wrong"))


# -- migrations ----------------------------------------------------------------------------------------


def test_tables_are_made_by_migrate_and_never_by_a_store(samekey_mariadb, scene):
    url = samekey_mariadb.create_database()
    with opened(url) as store:
        with pytest.raises(Misconfigured, match=r"Make them with: samekey migrate --store mysql://"):
            store.open(scene.opening())
        assert [one.number for one in driver.migrate(url, dry_run=True)] == [1]
        with ThreadPoolExecutor(4) as pool:
            done = list(pool.map(lambda _: len(driver.migrate(url)), range(4)))
        assert sorted(done) == [0, 0, 0, 1]
        assert store.open(scene.opening()).attempt == A


def test_a_migration_that_was_interrupted_is_carried_out_again(samekey_mariadb, scene):
    url = samekey_mariadb.create_database()
    first, second, *_ = driver.statements(driver.migrations()[0].sql)
    sql(url, first)
    sql(url, second)

    assert len(driver.migrate(url)) == 1
    with opened(url) as store:
        assert store.open(scene.opening()).attempt == A


def test_a_newer_schema_is_refused(url, scene):
    sql(url, "UPDATE samekey_meta SET value = '9' WHERE name IN ('schema', 'oldest_client')")

    with pytest.raises(Misconfigured, match="upgrade samekey"):
        driver.migrate(url)
    with opened(url) as store, pytest.raises(Misconfigured, match="upgrade samekey"):
        store.open(scene.opening())
