"""What is PostgreSQL's own: what a claim costs, what a lost reply does, what a restart, a failover, a rival does."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from samekey import Absent, Asks, Guard, Happened, InDoubt, Opaque, Policy, Repeatable
from samekey.core.commands import Ask, Begin, Read, Renew, Take, Testify, Wait
from samekey.core.errors import Misconfigured, RecordUnreadable, StoreBusy, StoreUnavailable
from samekey.core.ports import Query
from samekey.core.record import Record
from samekey.core.register import apply
from samekey.core.states import Role, State
from samekey.drivers.postgres import connection, exchange
from samekey.drivers.postgres.address import parse_url
from samekey.drivers.postgres.connect import CONNECT_SECONDS
from samekey.drivers.postgres.migrate import migrate, migrations
from samekey.ops import Ops
from samekey.stores import _turns
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore, _batches, _threads
from samekey.stores.postgres.store import _Loop
from samekey.testing.servers import postgres
from samekey.testing.stores.agreement import _compare, _moment
from samekey.testing.stores.scene import LEASE, A, B, Scene, settling

pytestmark = pytest.mark.slow

MAJOR = int(os.environ.get("SAMEKEY_TEST_PG_MAJOR", "18"))


@pytest.fixture(scope="module")
def server():
    # Without autovacuum no transaction id is anybody's but ours.
    with postgres(MAJOR, autovacuum="off") as running:
        yield running


@pytest.fixture
def own_server():
    """A server that a test may stop."""
    if os.environ.get("SAMEKEY_TEST_PG"):
        pytest.skip("SAMEKEY_TEST_PG names a server that is not ours to stop")
    with postgres(MAJOR) as running:
        yield running


@pytest.fixture(scope="module")
def database(server):
    return server.create_database()


@pytest.fixture
def url(database):
    """One database, made anew for each test: a new one each time would be a hundred times the files."""
    sql(database, f"ALTER DATABASE {database.rpartition('/')[2]} RESET ALL")
    sql(database, "DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    migrate(database)
    return database


@pytest.fixture
def store(url):
    with contextlib.closing(PostgresStore(url)) as one:
        yield one


@pytest.fixture
def scene():
    return Scene(0.02)


def sql(url: str, statement: str) -> Any:
    with psycopg.connect(url, autocommit=True) as link:
        done = link.execute(statement.encode())
        row = done.fetchone() if done.description else None
        return row[0] if row else None


def attempt(number: int) -> str:
    return f"{number:032x}"


# -- what a command costs ------------------------------------------------------------------------------


def test_a_replay_writes_nothing(store, url, scene):
    """No transaction id, no number from the sequence: alone and in a batch, a replay is a read."""
    held = store.carry_out(scene.opening("one"))
    store.carry_out(settling(held, State.COMPLETED, result=b"done"))
    seen = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text || ' ' || (SELECT last_value FROM samekey_tokens)"
    before = sql(url, seen)

    for number in range(20):
        assert store.carry_out(scene.opening("one", by=attempt(number))).result == b"done"
    store.batch([scene.opening("one", by=attempt(number)) for number in range(20)])

    assert sql(url, seen) == before


def test_each_command_is_one_round_trip(store, scene, monkeypatch):
    """Claim, replay, settle and read: the connection is waited for once for each of them."""
    waits = []
    answer = exchange._answer
    first = store.carry_out(scene.opening("first"))  # connects, and prepares
    store.carry_out(Read(first.key))
    store.carry_out(settling(first, State.COMPLETED))

    def counted(link: Any) -> Any:
        waits.append(1)
        return answer(link)

    monkeypatch.setattr(exchange, "_answer", counted)

    held = store.carry_out(scene.opening("second"))
    assert len(waits) == 1
    store.carry_out(settling(held, State.COMPLETED, result=b"done"))
    assert len(waits) == 2
    store.carry_out(scene.opening("second", by=B))
    store.carry_out(Read(held.key))
    assert len(waits) == 4


def test_threads_share_their_commits(store, url, scene):
    """Flush on free: what queues up while the connection is busy goes out as one transaction."""
    store.carry_out(scene.opening("connected"))
    before = int(sql(url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
    with ThreadPoolExecutor(64) as pool:
        held = list(
            pool.map(lambda number: store.carry_out(scene.opening(str(number), by=attempt(number))), range(512))
        )

    assert [one.attempt for one in held] == [attempt(number) for number in range(512)]
    assert int(sql(url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")) - before < 256


async def test_tasks_share_their_commits(url, scene):
    """The same among tasks: 512 claims at once are a handful of transactions."""
    store = AsyncPostgresStore(url)
    await store.carry_out(scene.opening("connected"))
    before = int(sql(url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text"))
    commands = [scene.opening(str(number), by=attempt(number)) for number in range(512)]
    held = await asyncio.gather(*(store.carry_out(command) for command in commands))
    await asyncio.gather(*(store.carry_out(settling(one, State.COMPLETED)) for one in held))
    await store.close()

    assert int(sql(url, "SELECT pg_snapshot_xmax(pg_current_snapshot())::text")) - before < 16


# -- batches -------------------------------------------------------------------------------------------


def test_a_batch_of_settles_does_what_the_register_says(store, scene):
    """Every role and every move, all in one statement: each row becomes what the pure function makes of it."""
    store.batch([scene.opening(f"{role} {one} {other}") for role in Role for one in State for other in State])
    commands = []
    for role in Role:
        for before in State:
            for after in State:
                seen = store.carry_out(Read(scene.key(f"{role} {before} {after}")))
                if before is not State.STARTED:
                    seen = store.carry_out(settling(seen, before, result=b"before", error="Before"))
                elif role is Role.PASSER_BY:
                    seen = store.carry_out(Renew(seen, 0.001))
                commands.append(
                    settling(seen, after, role=role, by=B, result=b"after", error="After", why="w", next_round=True)
                )
    time.sleep(0.01)
    commands = [replace(command, seen=store.carry_out(Read(command.key))) for command in commands]  # dead by now

    replies = store.batch(commands)

    for command, reply in zip(commands, replies, strict=True):
        expected = apply(command.seen, command, _moment(command.seen, reply))
        _compare(expected, reply, command.seen, str(command))
        _compare(reply, store.carry_out(Read(command.key)), command.seen, str(command))


def test_a_batch_of_opens_does_what_the_register_says(store, scene):
    """New keys, keys in every state, expired ones and twice the same, all in one batch."""
    texts = []
    for state in State:
        for retain in (60.0, 0.001):
            held = store.carry_out(scene.opening(f"{state} {retain}"))
            if state is not State.STARTED:
                store.carry_out(settling(held, state, result=b"old", retain=retain))
            texts.append(f"{state} {retain}")
    time.sleep(0.01)
    whole = {one.key.text: one for one in store.list(Query(operation=scene.operation))}
    commands = [scene.opening(text, by=B, sends=True) for text in (*texts, "new 1", "new 2", "new 1")]

    replies = store.batch(commands)

    for command, reply in zip(commands, replies, strict=True):
        seen = whole.get(command.key.text)  # an expired one is not listed: it is as good as new
        _compare(apply(seen, command, _moment(seen, reply)), reply, seen, str(command))
        _compare(reply, store.carry_out(Read(command.key)), seen, str(command))
    assert {one.key.text for one in replies if isinstance(one, Record) and one.attempt == B} == {
        *("new 1", "new 2", "completed 0.001", "closed 0.001", "released 0.001")
    }


def test_a_poisoned_row_fails_alone(store, url, scene):
    """The server refuses one row of a batch: that one is answered with its error, the others are carried out."""
    sql(url, "ALTER TABLE samekey_records ADD CHECK (boundary <> 'poison')")
    commands = [scene.opening(str(number), boundary="poison" if number == 7 else "opaque") for number in range(16)]

    replies = store.batch([*commands, scene.opening("nul", boundary="nul \x00 inside")])

    assert [number for number, one in enumerate(replies) if isinstance(one, Exception)] == [7, 16]
    assert {one.state for one in replies if not isinstance(one, Exception)} == {State.STARTED}
    assert len(store.list(Query(operation=scene.operation))) == 15


def test_a_poisoned_row_of_a_neighbour_is_not_ours(store, url, scene):
    """Threads whose commands happen to travel together do not share a failure."""
    sql(url, "ALTER TABLE samekey_records ADD CHECK (boundary <> 'poison')")
    store.carry_out(scene.opening("connected"))

    def claim(number: int) -> Any:
        try:
            boundary = "poison" if number % 8 == 0 else "opaque"
            return store.carry_out(scene.opening(str(number), boundary=boundary)).state.value
        except Misconfigured:
            return "refused"

    with ThreadPoolExecutor(32) as pool:
        said = list(pool.map(claim, range(128)))

    assert said == ["refused" if number % 8 == 0 else "started" for number in range(128)]


@pytest.mark.parametrize("verb", ["open", "settle"])
def test_batches_in_opposite_order_do_not_deadlock(url, scene, verb):
    """Keys are sorted on the way: two processes with the same keys, one backwards, both get through."""
    stores = [PostgresStore(url), PostgresStore(url)]
    for round_ in range(5):
        opens = [scene.opening(f"{round_} {number}", by=A) for number in range(200)]
        if verb == "open":
            lists = [opens, [replace(one, attempt=B) for one in reversed(opens)]]
        else:
            held = stores[0].batch(opens)
            settles = [settling(one, State.COMPLETED) for one in held if isinstance(one, Record)]
            lists = [settles, settles[::-1]]
        with ThreadPoolExecutor(2) as pool:
            first, second = pool.map(lambda pair: pair[0].batch(pair[1]), zip(stores, lists, strict=True))

        assert not [one for one in (*first, *second) if isinstance(one, Exception)]
        assert [one.fence for one in first] == [one.fence for one in reversed(second)]
    for one in stores:
        one.close()
    assert "deadlock" not in str(
        sql(url, "SELECT coalesce(sum(deadlocks), 0) FROM pg_stat_database WHERE deadlocks > 0")
    )


def test_a_large_batch_of_large_results_is_split(store, scene):
    """Results travel in bounded statements, whatever the batch."""
    held = store.batch([scene.opening(str(number)) for number in range(12)])
    result = os.urandom(1 << 20)

    ended = store.batch([settling(one, State.COMPLETED, result=result) for one in held])

    assert all(one.result == result for one in ended)


# -- lost replies --------------------------------------------------------------------------------------


class Wire:
    """A proxy that can swallow the server's next answer and hang up: the statement is carried out, its reply lost."""

    def __init__(self, url: str) -> None:
        found = re.search(r"@([\d.]+):(\d+)/", url)
        assert found
        self._there = (found[1], int(found[2]))
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f"{found[1]}:{found[2]}", f"127.0.0.1:{self._door.getsockname()[1]}")
        self.swallow = threading.Event()
        self.swallowed = 0
        self._sockets = [self._door]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _start(self, work: Any, *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                server = socket.create_connection(self._there)
                self._sockets += [client, server]
                self._start(self._pump, client, server, False)
                self._start(self._pump, server, client, True)

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self.swallow.is_set():
                    self.swallow.clear()
                    self.swallowed += 1
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def wire(url):
    with contextlib.closing(Wire(url)) as one:
        yield one


def test_a_claim_whose_reply_was_lost_is_asked_again(wire, url, scene):
    """It finds itself by its attempt id, is confirmed by a write, and no second record or token is seen."""
    store = PostgresStore(wire.url)
    store.carry_out(scene.opening("connected"))
    wire.swallow.set()

    held = store.carry_out(scene.opening("lost"))

    assert wire.swallowed == 1
    assert (held.attempt, held.attempts, held.lease_live) == (A, 1, True)
    assert held.version == 2  # the write that confirms it
    assert len(held.moves) == 1
    with contextlib.closing(PostgresStore(url)) as other:
        assert other.carry_out(scene.opening("lost", by=B)).fence == held.fence
    store.close()


def test_every_command_whose_reply_was_lost_recognises_itself(wire, scene):
    """Settle, take, begin, renew, ask and testify: sent twice, done once."""
    store = PostgresStore(wire.url)

    def lost(command: Any) -> Any:
        store.carry_out(Read(scene.key()))
        store._links().claims.ask(("SELECT 1", ()))
        store._links().settles.ask(("SELECT 1", ()))
        wire.swallow.set()
        return store.carry_out(command)

    held = store.carry_out(scene.opening(boundary="opaque marked"))
    begun = lost(Begin(held))
    assert begun.begun_at is not None
    assert lost(Renew(held, LEASE)).lease_live
    doubt = lost(settling(held, State.IN_DOUBT, error="TimeoutError"))
    assert (doubt.state, len(doubt.moves)) == (State.IN_DOUBT, 2)
    asked = lost(Ask(doubt, B, LEASE))
    assert asked.being_asked
    taken = lost(Take(doubt, B, "opaque", LEASE, False))
    assert (taken.attempt, taken.attempts) == (B, 2)
    told = lost(Testify(held.key, A, held.token, State.CLOSED, None, "late"))
    assert len(told.evidence) == 1
    ended = lost(settling(taken, State.COMPLETED, result=b"done", next_round=True))
    assert (ended.state, ended.settled_by, ended.round, len(ended.moves)) == (State.COMPLETED, B, 1, 4)
    assert wire.swallowed == 7
    store.close()


async def test_a_batch_whose_reply_was_lost_is_asked_again(wire, scene):
    """All rows of it, in the other colour."""
    store = AsyncPostgresStore(wire.url)
    await store.carry_out(scene.opening("connected"))
    wire.swallow.set()

    replies = await store.batch([scene.opening(str(number)) for number in range(20)])

    assert [one.attempt for one in replies] == [A] * 20  # type: ignore[union-attr]
    assert all(one.lease_live for one in replies)  # type: ignore[union-attr]
    await store.close()


def test_a_terminated_backend_is_asked_again(store, url, scene):
    """An administrator ends our connection while the claim waits for another transaction's row."""
    key = scene.key()
    store.carry_out(scene.opening("connected"))
    with psycopg.connect(url) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute(
            "SELECT samekey_open(%s, %s, NULL, %s, %s, '', '1', NULL, 'opaque', 30, false, NULL)",
            (key.digest.hex(), key.operation, key.text, B),
        )
        claim = pool.submit(store.carry_out, scene.opening())
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'samekey'"
        pid = _until(lambda: sql(url, waiting))
        sql(url, f"SELECT pg_terminate_backend({pid})")
        time.sleep(0.05)
        rival.rollback()
        held = claim.result(10)

    assert held.attempt == A


def test_a_silent_server_is_not_waited_for_for_ever(store, url, scene, monkeypatch):
    """A backend that hangs is left behind, and the same claim is asked over another connection."""
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 0.3)
    store.carry_out(scene.opening("connected"))
    ((pid,),) = store._links().claims.ask(("SELECT pg_backend_pid()", ()))
    os.kill(pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        held = store.carry_out(scene.opening())
        assert time.monotonic() - start < 3
    finally:
        os.kill(pid, signal.SIGCONT)

    assert held.attempt == A
    time.sleep(0.2)  # the old backend wakes up and carries its statement out too
    assert store.carry_out(scene.opening(by=B)).fence == held.fence


def test_a_record_that_is_swept_while_its_batch_waits_is_claimed(store, url, scene):
    """Past retention when the batch looked, gone when its turn came: then it is made, and told in short."""
    store.carry_out(settling(store.carry_out(scene.opening("there")), State.COMPLETED, retain=3600.0))
    store.carry_out(settling(store.carry_out(scene.opening("past")), State.COMPLETED, retain=0.001))
    past, blocked = scene.opening("past", by=B), scene.opening("blocked", by=B)
    with psycopg.connect(url) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute(
            "SELECT samekey_open(%s, %s, NULL, %s, %s, '', '1', NULL, 'opaque', 30, false, NULL)",
            (blocked.key.digest.hex(), blocked.key.operation, blocked.key.text, A),
        )
        claims = pool.submit(store.batch, [scene.opening("there", by=B), past, blocked])
        _until(
            lambda: sql(
                url,
                "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'samekey'",
            )
        )
        sql(url, f"DELETE FROM samekey_records WHERE digest = '{past.key.digest.hex()}'")
        rival.rollback()
        replies = claims.result(10)

    found = [(one.key.text, one.attempt, one.state) for one in replies if isinstance(one, Record)]
    assert found == [
        (scene.opening("there").key.text, A, State.COMPLETED),
        (past.key.text, B, State.STARTED),
        (blocked.key.text, B, State.STARTED),
    ]


async def test_the_alarm_of_an_earlier_statement_cuts_no_later_one_off(url, scene):
    """One alarm serves many statements: when it strikes, whoever is under way still has its own time."""
    store, key = AsyncPostgresStore(url), scene.opening().key
    await store.carry_out(scene.opening("earlier"))
    connection = store._links().claims._connection
    assert connection is not None
    with psycopg.connect(url) as rival:
        rival.execute(
            "SELECT samekey_open(%s, %s, NULL, %s, %s, '', '1', NULL, 'opaque', 30, false, NULL)",
            (key.digest.hex(), key.operation, key.text, B),
        )
        claim = asyncio.create_task(store.carry_out(scene.opening()))
        while connection._steps is None:
            await asyncio.sleep(0)
        connection._struck(asyncio.get_running_loop())
        rival.rollback()
        held = await claim

    assert held.attempt == A
    assert store._links().claims._connection is connection  # nobody hung up
    await store.close()


async def test_many_who_bring_many_travel_in_turns(url, scene):
    """Three bring 200 claims each at once: more than one statement takes, and each gets its own answers."""
    store = AsyncPostgresStore(url)
    brought = [[scene.opening(f"{who}-{number}", by=attempt(who)) for number in range(200)] for who in range(3)]
    lone = asyncio.create_task(store.carry_out(scene.opening("lone")))
    answers = await asyncio.gather(*(store.batch(some) for some in brought))

    assert [{one.attempt for one in some if isinstance(one, Record)} for some in answers] == [
        {attempt(who)} for who in range(3)
    ]
    assert [[one.key.text for one in some if isinstance(one, Record)] for some in answers] == [
        [command.key.text for command in some] for some in brought
    ]
    assert (await lone).attempt == A
    await store.close()


async def test_cancelling_a_caller_cancels_no_statement(url, scene):
    """Whoever is cancelled in the middle of a claim finds it there when it asks again."""
    store = AsyncPostgresStore(url)
    await store.carry_out(scene.opening("connected"))
    claims = [asyncio.create_task(store.carry_out(scene.opening(str(number)))) for number in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    for claim in claims:
        claim.cancel()
    await asyncio.gather(*claims, return_exceptions=True)

    found = [await store.carry_out(scene.opening(str(number))) for number in range(5)]

    assert [one.attempt for one in found] == [A] * 5
    await store.close()


def test_ctrl_c_in_the_leader_does_not_take_the_others_with_it(store, scene, monkeypatch):
    """The thread that sends for all is interrupted: those who stood behind it ask for themselves."""
    store.carry_out(scene.opening("connected"))
    lane, send = store._links().claims, store._links().claims._carry_out
    entered, go = threading.Event(), threading.Event()

    def interrupted(jobs: Any, turn: Any) -> Any:
        entered.set()
        go.wait(5)
        monkeypatch.setattr(lane, "_carry_out", second)
        return send(jobs, turn)

    def second(jobs: Any, turn: Any) -> Any:
        monkeypatch.setattr(lane, "_carry_out", send)
        raise KeyboardInterrupt

    monkeypatch.setattr(lane, "_carry_out", interrupted)

    def claim(number: int) -> Any:
        try:
            return store.carry_out(scene.opening(str(number), by=attempt(number))).attempt
        except KeyboardInterrupt:
            return "interrupted"

    with ThreadPoolExecutor(8) as pool:
        claims = [pool.submit(claim, 0)]
        entered.wait(5)
        claims += [pool.submit(claim, number) for number in range(1, 8)]
        _until(lambda: len(lane._queue) == 7)
        go.set()
        said = [one.result(10) for one in claims]

    assert said.count("interrupted") == 1
    assert {one for one in said if one != "interrupted"} <= {attempt(number) for number in range(8)}
    assert store.carry_out(scene.opening("after")).attempt == A


class TimeLimit(Exception):
    """As a task queue raises it out of a signal handler."""


@contextlib.contextmanager
def interrupted_at(number: int):
    """A signal whose handler raises, at so-manieth place of the lanes' own at which Python looks for signals.

    That is as a function begins, and as one written in C has returned: a profiler hears of both.
    """
    places = itertools.count(1)
    struck: list[int] = []

    def look(frame: Any, event: str, _: Any) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename in (_turns.__file__, _threads.__file__):
            if next(places) == number:
                struck.append(frame.f_lineno)
                raise TimeLimit

    sys.setprofile(look)
    try:
        yield struck
    except TimeLimit:
        pass
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("followed", [False, True], ids=["alone", "followed"])
def test_a_lane_outlives_an_interrupt_anywhere(store, scene, monkeypatch, followed):
    """Whoever leads may be interrupted anywhere: the lead is handed on, and nobody waits for it in vain."""
    monkeypatch.setattr(_turns, "TURN_SECONDS", 1.0)  # whoever is forgotten is found out,
    monkeypatch.setattr(_turns.Turns, "_taken_over", lambda lane, asked: False)  # and does not help itself
    store.carry_out(scene.opening("connected"))
    lane, send = store._links().claims, store._links().claims._carry_out

    with ThreadPoolExecutor(2) as pool:

        def with_others_behind_us(jobs: Any, turn: Any) -> Any:
            monkeypatch.setattr(lane, "_carry_out", send)
            behind.extend(pool.submit(store.carry_out, scene.opening(f"{number} {which}")) for which in "ab")
            _until(lambda: len(lane._queue) == 2)
            return send(jobs, turn)

        for number in itertools.count(1):
            behind: list[Any] = []
            monkeypatch.setattr(lane, "_carry_out", with_others_behind_us if followed else send)
            with interrupted_at(number) as struck:
                store.carry_out(scene.opening(str(number)))
            monkeypatch.setattr(lane, "_carry_out", send)
            assert store.carry_out(scene.opening(f"{number} after")).attempt == A
            assert [one.result(10).attempt for one in behind] == [A] * len(behind)
            assert (lane._leader, list(lane._queue), lane._waking.places) == (None, [], set())
            if not struck:
                break

    assert number > 5, "hardly anything was interrupted"


def test_a_lead_that_nobody_has_any_more_is_taken_over(store, scene, monkeypatch):
    """Interrupted twice in the same instant; what it left on its connection is left to it."""
    store.carry_out(scene.opening("connected"))
    lane = store._links().claims
    connection, lane._leader = lane._connection, [object()]
    monkeypatch.setattr(_turns, "TURN_SECONDS", 0.01)

    assert store.carry_out(scene.opening("after")).attempt == A
    assert (lane._leader, list(lane._queue)) == (None, [])
    assert lane._connection is not connection
    connection.close()


def test_whoever_took_too_long_leaves_the_lane_to_those_who_took_over(store, scene, monkeypatch):
    """It comes back in the middle of others' turn: it is told, and touches nothing of theirs."""
    store.carry_out(scene.opening("connected"))
    lane = store._links().claims
    left, send, slow, over = lane._connection, lane._carry_out, threading.Event(), threading.Event()

    def sleeping(jobs: Any, turn: Any) -> Any:
        monkeypatch.setattr(lane, "_carry_out", send)
        slow.set()
        assert over.wait(10)
        return send(jobs, turn)

    monkeypatch.setattr(lane, "_carry_out", sleeping)
    monkeypatch.setattr(_turns, "TURN_SECONDS", 0.01)
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(store.carry_out, scene.opening("late"))
        assert slow.wait(10)
        assert store.carry_out(scene.opening("after")).attempt == A
        connection = lane._connection
        over.set()
        with pytest.raises(StoreUnavailable, match="others have it now"):
            late.result(10)
    assert store.carry_out(scene.opening("late")).attempt == A
    assert lane._connection is connection
    left.close()


def _until(look: Any, seconds: float = 10.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.005)
    raise AssertionError("it never came")


# -- other processes -----------------------------------------------------------------------------------

CHILD = """
import json, sys, time
from samekey import Absent, Asks, Guard, Happened, Opaque
from samekey.core.commands import Wait
from samekey.stores import _waiting
from samekey.stores.postgres import PostgresStore
from samekey.testing.stores.agreement import _compare, _moment
from samekey.testing.stores.scene import Scene, settling
errand, url, operation, number = sys.argv[1:]
store, scene = PostgresStore(url), Scene(0.02, operation=operation)
me = f"{int(number):032x}" if number.isdigit() else number

def say(fact):
    print(json.dumps(fact), flush=True)

if errand == "claim":
    store.carry_out(scene.opening("connected " + number))
    say("ready"); sys.stdin.readline()
    say([text for text in map(str, range(40)) if store.carry_out(scene.opening(text, by=me)).attempt == me])
if errand == "guard":
    guard = Guard(store)
    say("ready"); sys.stdin.readline()
    effect = lambda: (print(json.dumps("effect"), flush=True), time.sleep(0.05), me)[2]
    say(guard.run(operation, effect, key="k", payload={}).result)
if errand == "die":  # between the commit of a batch and its replies
    import os, signal
    from samekey import Opaque, Policy, Repeatable
    from samekey.stores.postgres import _batches
    guard = Guard(store, policy=Policy(lease=1.0))
    guard.run("connected", str, key="k", payload={})
    _batches._answer = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    boundary = {"opaque": Opaque(), "repeatable": Repeatable()}[number]
    guard.run_many(operation, lambda payload: say("effect"), list(range(20)), key=str, boundary=boundary)
if errand == "wait":
    _waiting.REREAD_SECONDS = 60.0  # whoever misses its bell is found out
    while text := sys.stdin.readline().strip():
        seen = store.carry_out(scene.opening(text, by=me))
        say("waiting")
        found = store.wait(Wait(seen), 20.0)
        say([found.state.value, time.time()])
"""


@contextlib.contextmanager
def child(errand: str, url: str, scene: Scene, number: int | str = 99):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, errand, url, scene.operation, str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line(process: Any) -> Any:
    return json.loads(process.stdout.readline())


def tell(process: Any, text: str) -> None:
    process.stdin.write(text + "\n")
    process.stdin.flush()


@pytest.mark.slow
def test_eight_processes_have_one_holder_for_each_key(url, scene):
    """40 keys, 8 processes, the same order: each key is held once."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(child("claim", url, scene, number)) for number in range(1, 9)]
        assert [line(one) for one in children] == ["ready"] * 8
        for one in children:
            tell(one, "go")
        held = [text for one in children for text in line(one)]

    assert sorted(held, key=int) == [str(number) for number in range(40)]


@pytest.mark.slow
def test_eight_processes_run_one_effect(url, scene):
    """One key, 8 guards: one effect, and the same answer for all."""
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(child("guard", url, scene, number)) for number in range(1, 9)]
        assert [line(one) for one in children] == ["ready"] * 8
        for one in children:
            tell(one, "go")
        said = [[line(one)] for one in children]
        effects = sum(one == ["effect"] for one in said)
        answers = [line(process) if one == ["effect"] else one[0] for one, process in zip(said, children, strict=True)]

    assert effects == 1
    assert len(set(answers)) == 1


@pytest.mark.parametrize("boundary", ["opaque", "repeatable"])
def test_claims_of_a_process_killed_before_the_replies_follow_their_boundary(url, scene, boundary):
    """kill -9 right after the commit of a batch: nothing ran there, and what becomes of the keys the boundary says."""
    with child("die", url, scene, boundary) as process:
        assert process.wait(20) == -signal.SIGKILL
        assert process.stdout.read() == ""
    ran: list[int] = []
    claimed = sql(url, f"SELECT count(*) FROM samekey_records WHERE operation = '{scene.operation}'")
    with Guard(PostgresStore(url), policy=Policy(patience=5.0)) as guard:
        how = {"opaque": Opaque(), "repeatable": Repeatable()}[boundary]
        said = guard.run_many(scene.operation, lambda number: ran.append(number), range(20), key=str, boundary=how)

    assert claimed == 20
    if boundary == "opaque":
        assert ran == []
        assert {type(one) for one in said} == {InDoubt}
    else:
        assert ran == list(range(20))
        assert {one.state for one in said if not isinstance(one, Exception)} == {State.COMPLETED}


def test_run_many_claims_in_one_transaction(url, monkeypatch):
    """40 new keys: their claims are one statement; each effect is settled as soon as it ran."""
    asked: list[bytes] = []
    ask = connection.Connection.ask

    def counted(self: Any, query: Any) -> Any:
        asked.append(query.name)
        return ask(self, query)

    monkeypatch.setattr(connection.Connection, "ask", counted)
    with Guard(PostgresStore(url)) as guard:
        answers = guard.run_many("charge", lambda number: number * 2, range(40), key=str)

    assert [getattr(one, "result", one) for one in answers] == [number * 2 for number in range(40)]
    assert asked.count(b"samekey_opens") == 1
    assert set(asked) == {b"samekey_opens", b"samekey_settle"}


@pytest.mark.slow
def test_no_wake_up_is_lost_between_processes(store, url, scene):
    """200 waits in another process, the settle now before, now while, now after the row is flagged."""
    chance = random.Random(1)
    late = []
    with child("wait", url, scene) as waiter:
        for number in range(200):
            held = store.carry_out(scene.opening(str(number)))
            tell(waiter, str(number))
            assert line(waiter) == "waiting"
            time.sleep(chance.random() * 0.004)
            store.carry_out(settling(held, State.COMPLETED))
            settled = time.time()
            state, woken = line(waiter)
            assert state == "completed"
            late.append(woken - settled)

    assert max(late) < 2.0  # nobody waited for the 20 s
    assert sorted(late)[len(late) * 95 // 100] < 0.25


def test_waiters_of_one_process_cost_next_to_nothing(store, url, scene, monkeypatch):
    """100 threads wait for one key of another store: their looks travel together."""
    other = PostgresStore(url)
    held = store.carry_out(scene.opening())
    seen = other.carry_out(Read(held.key))
    assert seen is not None
    sent = []
    send = other._links().reads._carry_out

    def counted(jobs: Any, turn: Any) -> Any:
        sent.append(1)
        return send(jobs, turn)

    monkeypatch.setattr(other._links().reads, "_carry_out", counted)
    with ThreadPoolExecutor(100) as pool:
        waiting = [pool.submit(other.wait, Wait(seen), 10.0) for _ in range(100)]
        _until(lambda: sql(url, "SELECT waited_for FROM samekey_records"))
        time.sleep(0.1)
        store.carry_out(settling(held, State.COMPLETED, result=b"done"))
        found = [one.result(10) for one in waiting]
    other.close()

    assert {one.result for one in found if one is not None} == {b"done"}
    assert len(sent) < 100


async def test_a_task_is_woken_by_another_connection(url, scene, monkeypatch):
    """The listener's thread rings in the loop."""
    monkeypatch.setattr("samekey.stores._waiting.REREAD_SECONDS", 60.0)
    store, other = AsyncPostgresStore(url), AsyncPostgresStore(url)
    for number in range(20):
        held = await store.carry_out(scene.opening(str(number)))
        waiting = asyncio.create_task(other.wait(Wait(held), 10.0))
        await asyncio.sleep(random.random() * 0.01)
        await store.carry_out(settling(held, State.COMPLETED, result=b"done"))
        woken = await asyncio.wait_for(waiting, 5)
        assert woken is not None
        assert woken.result == b"done"
    await store.close()
    await other.close()


def test_a_listener_that_could_not_start_starts_with_the_next_who_waits(url, scene, monkeypatch):
    with contextlib.closing(PostgresStore(url)) as store:
        held = store.carry_out(scene.opening())
        with monkeypatch.context() as scarce:
            scarce.setattr(os, "pipe", _no_files)
            scarce.setattr(threading, "excepthook", lambda told: None)
            assert store.wait(Wait(held), 0.01) is not None
        _until(lambda: not any(thread.name == "samekey-listener" for thread in threading.enumerate()))
        assert store.wait(Wait(held), 0.01) is not None
        assert store._here.listener._listening.is_set()


def _no_files() -> Any:
    raise OSError(24, "Too many open files")


def test_a_full_queue_of_notifications_stops_no_settle(own_server, scene):
    """It is everybody's: who listens and never ends a transaction fills it, and no commit that notifies succeeds."""
    if MAJOR < 17:
        pytest.skip("before PostgreSQL 17 the queue has 8 GB")
    own_server.sql("ALTER SYSTEM SET max_notify_queue_pages = 64")
    own_server.restart("fast")
    url = own_server.create_database()
    migrate(url)
    with contextlib.closing(PostgresStore(url)) as store, psycopg.connect(url, autocommit=True) as stuck:
        stuck.execute("LISTEN elsewhere")
        stuck.execute("BEGIN")
        stuck.execute("SELECT 1")
        with psycopg.connect(url, autocommit=True) as noisy, contextlib.suppress(psycopg.errors.ProgramLimitExceeded):
            for number in itertools.count():
                noisy.execute("SELECT pg_notify('elsewhere', %s)", (f"{number:07000}",))
        held = store.carry_out(scene.opening())
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.wait, Wait(held), 20.0)
            _until(lambda: sql(url, "SELECT waited_for FROM samekey_records"))
            settled = store.carry_out(settling(held, State.COMPLETED, result=b"done"))
            found = waiting.result(10)

    assert settled is not None
    assert found is not None
    assert settled.result == found.result == b"done"


def test_a_waiter_is_not_held_up_by_a_rival_transaction(store, url, scene):
    """A row that cannot be flagged is looked at again and again; nobody's read waits for it."""
    held = store.carry_out(scene.opening())
    with psycopg.connect(url) as rival:
        rival.execute("SELECT 1 FROM samekey_records FOR UPDATE")
        start = time.monotonic()
        found = store.wait(Wait(held), 0.3)

    assert found is not None
    assert found.fence == held.fence
    assert time.monotonic() - start < 1.0


def test_a_waiter_outlasts_a_table_that_is_locked(store, url, scene):
    """VACUUM FULL and migrations lock all of it: who waits anyhow looks again, as long as it would have waited."""
    held = store.carry_out(scene.opening())
    with psycopg.connect(url) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute("LOCK TABLE samekey_records IN ACCESS EXCLUSIVE MODE")
        start = time.monotonic()
        with pytest.raises(StoreBusy):
            store.wait(Wait(held), 0.5)
        assert time.monotonic() - start > 0.5
        waiting = pool.submit(store.wait, Wait(held), 20.0)
        for stands in (True, False):  # it waited for the table, and was turned away
            _until(lambda stands=stands: sql(url, _LOCKED_OUT) is stands)
        rival.rollback()
        store.carry_out(settling(held, State.COMPLETED, result=b"done"))
        found = waiting.result(10)

    assert found is not None
    assert found.result == b"done"


async def test_a_task_that_waits_outlasts_a_table_that_is_locked(url, scene):
    store = AsyncPostgresStore(url)
    held = await store.carry_out(scene.opening())
    with psycopg.connect(url) as rival:
        rival.execute("LOCK TABLE samekey_records IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreBusy):
            await store.wait(Wait(held), 0.5)
        waiting = asyncio.create_task(store.wait(Wait(held), 20.0))
        await asyncio.sleep(0.3)
    await store.carry_out(settling(held, State.COMPLETED, result=b"done"))
    found = await asyncio.wait_for(waiting, 10)
    await store.close()

    assert found is not None
    assert found.result == b"done"


_LOCKED_OUT = """
SELECT count(*) > 0 FROM pg_stat_activity WHERE application_name = 'samekey' AND wait_event_type = 'Lock'
"""


def test_a_closed_store_says_so_at_once(url, scene):
    store = PostgresStore(url)
    store.carry_out(scene.opening())
    store.close()
    start = time.monotonic()
    with pytest.raises(StoreUnavailable, match="closed"):
        store.carry_out(scene.opening())
    assert time.monotonic() - start < 1


def test_nobody_is_notified_when_nobody_waits(store, url, scene):
    with psycopg.connect(url, autocommit=True) as ear:
        ear.execute("LISTEN samekey")
        held = store.carry_out(scene.opening())
        store.carry_out(settling(held, State.COMPLETED))

        assert list(ear.notifies(timeout=0.1)) == []


def test_a_forked_child_has_connections_of_its_own(store, scene):
    """The child claims over its own, and its end does not take the parent's with it."""
    store.carry_out(scene.opening("parent"))
    store.carry_out(Read(scene.key("parent")))
    pid = os.fork()
    if pid == 0:
        try:
            store.carry_out(scene.opening("child", by=B))
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(pid, 0)

    assert status == 0
    assert store.carry_out(scene.opening("child")).attempt == B
    assert store.carry_out(scene.opening("after")).attempt == A


def test_one_store_serves_several_loops(url, scene):
    """One after the other, and two at once."""
    store = AsyncPostgresStore(url)

    async def claim(text: str) -> str:
        record: Record = await store.carry_out(scene.opening(text))
        await store._loops[asyncio.get_running_loop()].close()
        return record.attempt

    assert asyncio.run(claim("one")) == A
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda text: asyncio.run(claim(text)), ("two", "three"))) == [A, A]

    async def end() -> None:
        await store.carry_out(scene.opening("four"))
        await store.close()

    asyncio.run(end())
    with pytest.raises(StoreUnavailable, match="closed"):
        asyncio.run(claim("five"))


def test_loops_of_several_threads_may_end_at_once(url, scene, monkeypatch):
    """Two threads begin a loop each, and both find the same ones gone."""
    store = AsyncPostgresStore(url)
    gone = [asyncio.new_event_loop(), asyncio.new_event_loop()]
    for number, loop in enumerate(gone):
        loop.run_until_complete(store.carry_out(scene.opening(f"gone {number}")))
    for loop in gone:
        loop.close()
    abandon = _Loop.abandon

    def meanwhile(links: _Loop) -> None:
        monkeypatch.setattr(_Loop, "abandon", abandon)
        abandon(links)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, store.carry_out(scene.opening("other"))).result()

    monkeypatch.setattr(_Loop, "abandon", meanwhile)

    assert asyncio.run(store.carry_out(scene.opening("mine"))).attempt == A
    assert not set(gone) & set(store._loops)
    asyncio.run(store.close())


async def test_who_waits_needs_no_thread_of_the_loops_own(url, scene):
    """All of them may be busy, with jobs that wait for us; and they end with the main thread."""
    store, done = AsyncPostgresStore(url), threading.Event()
    held = await store.carry_out(scene.opening())
    with ThreadPoolExecutor(1) as pool:
        asyncio.get_running_loop().set_default_executor(pool)
        busy = asyncio.create_task(asyncio.to_thread(done.wait, 20.0))
        await asyncio.sleep(0)
        found = await store.wait(Wait(held), 0.01)
        done.set()

        assert found is not None
        assert found.state is State.STARTED
        assert await busy
    await store.close()


# -- servers that come and go --------------------------------------------------------------------------


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("together", [1, 2])
def test_rows_that_a_dying_server_sends_are_no_answer(colour, together):
    """It says its rows before it commits, and sends what it has said when it is stopped: nothing was committed."""
    opening = Scene(0.02).opening
    with postgres() as server:
        url = server.create_database()
        migrate(url)
        store = PostgresStore(url)
        store.carry_out(opening("known"))  # connected, and prepared
        aside = AsyncPostgresStore(url)

        async def claim(commands: list[Any]) -> Any:
            await aside.carry_out(opening("known"))
            waiting.set()
            return await aside.batch(commands)

        commands = [opening(str(number)) for number in range(together)]
        waiting = threading.Event()
        server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")  # every commit waits from now on
        server.sql("SELECT pg_reload_conf()")
        _until(lambda: server.sql("SHOW synchronous_standby_names") == "nobody")
        server.sql("CHECKPOINT")  # the one who makes commits wait has read it, too
        with ThreadPoolExecutor(1) as pool:
            if colour == "sync":
                claiming = pool.submit(store.batch, commands)
            else:
                claiming = pool.submit(asyncio.run, claim(commands))
                waiting.wait(20)
            _until(lambda: "SyncRep" in server.sql("SELECT string_agg(wait_event, ' ') FROM pg_stat_activity"))
            server.stop("immediate")
            replies = claiming.result()

        assert [type(reply) for reply in replies] == [StoreUnavailable] * together
        store.close()


@pytest.mark.slow
def test_claims_survive_immediate_restarts(own_server):
    """Under load, three crashes of the server: no key is won twice, and what was answered is there afterwards."""
    url = own_server.create_database()
    migrate(url)
    stores = [PostgresStore(url), PostgresStore(url)]
    scene, stop = Scene(0.02), time.monotonic() + 8
    won: dict[str, list[str]] = {}
    settled: dict[str, str] = {}
    told = threading.Lock()
    refusals = []

    def work(number: int) -> None:
        chance, store = random.Random(number), stores[number % 2]
        while time.monotonic() < stop:
            text, me = str(chance.randrange(20_000) // 4), f"{chance.getrandbits(128):032x}"
            try:
                held = store.carry_out(scene.opening(text, by=me))
                if held.attempt != me:
                    continue
                with told:
                    won.setdefault(text, []).append(me)
                ended = store.carry_out(settling(held, State.COMPLETED, result=me.encode()))
                if ended is not None and ended.settled_by == me:
                    settled[text] = me
            except StoreUnavailable:
                refusals.append(text)
                time.sleep(0.05)

    with ThreadPoolExecutor(16) as pool:
        workers = [pool.submit(work, number) for number in range(16)]
        for _ in range(3):
            time.sleep(1.5)
            own_server.restart("immediate")
        for worker in workers:
            worker.result()

    assert len(won) > 200
    assert {text: who for text, who in won.items() if len(who) > 1} == {}
    for text, (me,) in won.items():
        found = stores[0].carry_out(Read(scene.key(text)))
        assert found is not None
        assert found.attempt == me
        if text in settled:
            assert (found.state, found.result) == (State.COMPLETED, me.encode())
    for one in stores:
        one.close()


def test_a_server_that_is_gone_is_told_at_once_and_found_again(own_server, scene):
    """Without a server: StoreUnavailable, soon. With one again: the same store works."""
    url = own_server.create_database()
    migrate(url)
    store = PostgresStore(url)
    own_server.stop()
    start = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.carry_out(scene.opening())
    assert time.monotonic() - start < 2

    own_server.start()
    assert store.carry_out(scene.opening()).attempt == A
    store.close()


def test_listening_goes_on_after_a_restart(own_server, scene, monkeypatch):
    """Waiters are rung when the listener is back, and notified again."""
    url = own_server.create_database()
    migrate(url)
    store, other = PostgresStore(url), PostgresStore(url)
    held = store.carry_out(scene.opening())
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.wait, Wait(held), 20.0)
        time.sleep(0.2)
        own_server.restart("immediate")
        time.sleep(0.3)
        store.carry_out(settling(held, State.COMPLETED, result=b"done"))
        found = waiting.result(10)
    assert found is not None
    assert found.result == b"done"
    store.close()
    other.close()


@pytest.mark.slow
def test_a_standby_is_refused_and_a_promoted_one_says_that_memory_was_lost(own_server, scene):
    """Claims go to the primary; after a failover new claims ask first, for a day."""
    url = own_server.create_database()
    migrate(url)
    store = PostgresStore(url)
    before = store.carry_out(scene.opening("before"))
    incarnation = store.health().incarnation
    assert not before.after_loss
    store.close()
    with own_server.standby() as standby:
        there = url.replace(f":{own_server.port}/", f":{standby.port}/")
        follower = PostgresStore(there)
        _until(lambda: standby.sql("SELECT count(*) FROM samekey_records", url.rpartition("/")[2]) == "1")
        with pytest.raises(StoreUnavailable, match=r"read-only|standby"):
            follower.carry_out(scene.opening("before", by=B))
        with pytest.raises(StoreUnavailable):
            follower.carry_out(Read(before.key))

        own_server.stop("immediate")
        standby.promote()
        seen = follower.carry_out(scene.opening("before", by=B))
        new = follower.carry_out(scene.opening("after"))

        assert (seen.fence, seen.after_loss) == (before.fence, False)
        assert new.after_loss
        health = follower.health()
        assert health.incarnation != incarnation
        assert any("lost its memory" in one for one in health.warnings)
        with contextlib.closing(PostgresStore(there)) as later:  # another process, started after the failover
            assert later.carry_out(scene.opening("later")).after_loss
        follower.close()


@pytest.mark.slow
def test_a_failover_to_an_asynchronous_standby_may_lose_the_last_claims(own_server):
    """The window that remains: the standby never heard of the claim. Opaque runs again; who can ask, asks first."""
    url = own_server.create_database()
    migrate(url)
    charged: list[str] = []

    def find(record: Record) -> Any:
        return Happened("paid") if record.key.text in charged else Absent()

    def charge(guard: Guard, key: str, boundary: Any) -> Any:
        def effect() -> str:
            charged.append(key)
            return "paid"

        return guard.run("charge", effect, key=key, payload={}, boundary=boundary).result

    boundaries = {"opaque": Opaque(), "asks": Asks(find)}
    with own_server.standby() as standby:
        with Guard(url) as guard:
            charge(guard, "before", Opaque())
            _until(lambda: own_server.sql("SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication") == "t")
            standby.sql("ALTER SYSTEM SET primary_conninfo = ''")
            standby.sql("SELECT pg_reload_conf()")
            _until(lambda: own_server.sql("SELECT count(*) FROM pg_stat_replication") == "0")
            for key, boundary in boundaries.items():
                charge(guard, key, boundary)
        own_server.stop("immediate")
        standby.promote()
        with Guard(url.replace(f":{own_server.port}/", f":{standby.port}/")) as guard:
            for key, boundary in boundaries.items():
                assert charge(guard, key, boundary) == "paid"

    assert charged == ["before", "opaque", "asks", "opaque"]


@pytest.mark.slow
def test_no_answered_claim_is_lost_with_a_synchronous_standby(own_server, scene):
    """The primary crashes under load, its synchronous standby is promoted: every answered claim is there."""
    url = own_server.create_database()
    migrate(url)
    answered: dict[str, str] = {}
    over = threading.Event()
    with own_server.standby() as standby:
        own_server.sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        own_server.sql("SELECT pg_reload_conf()")
        _until(lambda: own_server.sql("SELECT sync_state FROM pg_stat_replication") == "sync")
        store = PostgresStore(url)
        assert "synchronous standby" in store.health().guarantee or "fsync" in store.health().guarantee

        def work(number: int) -> None:
            for count in range(100_000):
                if over.is_set():
                    return
                text, me = f"{number} {count}", attempt(number * 1_000_000 + count + 1)
                try:
                    if store.carry_out(scene.opening(text, by=me)).attempt == me:
                        answered[text] = me
                except StoreUnavailable:
                    return

        with ThreadPoolExecutor(8) as pool:
            workers = [pool.submit(work, number) for number in range(8)]
            time.sleep(2)
            own_server.stop("immediate")
            over.set()
            for worker in workers:
                worker.result()
        store.close()
        standby.promote()
        standby.sql("ALTER SYSTEM RESET synchronous_standby_names")
        standby.sql("SELECT pg_reload_conf()")
        there = PostgresStore(url.replace(f":{own_server.port}/", f":{standby.port}/"))
        found = there.batch([Read(scene.key(text)) for text in answered])
        there.close()

    assert len(answered) > 50
    assert [one.attempt for one in found if isinstance(one, Record)] == list(answered.values())


@pytest.mark.parametrize(
    "options", ["", "?options=-cclient_min_messages%3Derror", "?pgbouncer=1&options=-cclient_min_messages%3Derror"]
)
def test_a_commit_that_its_standby_may_not_have_is_not_taken_for_granted(own_server, scene, monkeypatch, options):
    """Somebody cancels a claim that waits for a synchronous standby: the server calls it committed, we do not.

    Also where a role is set to hear no warnings.
    """
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(_batches, "REASK_SECONDS", 1.0)
    url = own_server.create_database()
    migrate(url)
    store = PostgresStore(url + options)
    store.carry_out(scene.opening("connected"))
    own_server.sql("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    own_server.sql("SELECT pg_reload_conf()")
    with ThreadPoolExecutor(1) as pool:
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
        for number in range(100):  # the server takes its time to hear of the new setting: until then claims go through
            text = f"claim-{number}"
            claim = pool.submit(store.carry_out, scene.opening(text))
            pid = _until(lambda claim=claim: "done" if claim.done() else own_server.sql(waiting))
            if pid != "done":
                break
        own_server.sql(f"SELECT pg_cancel_backend({pid})")
        with pytest.raises(StoreUnavailable):
            claim.result(20)

    own_server.sql("ALTER SYSTEM RESET synchronous_standby_names")
    own_server.sql("SELECT pg_reload_conf()")
    found = store.carry_out(scene.opening(text))
    assert found.attempt == A
    store.close()


# -- tables --------------------------------------------------------------------------------------------


def test_missing_tables_are_told_with_the_command_that_makes_them(server, scene):
    """The store never makes tables by itself."""
    url = server.create_database()
    store = PostgresStore(url)
    with pytest.raises(Misconfigured, match=re.escape(f"samekey migrate --store {url}")):
        store.carry_out(scene.opening())
    store.close()

    store = PostgresStore(url)
    migrate(url)
    assert store.carry_out(scene.opening()).attempt == A
    sql(url, "DROP FUNCTION samekey_settle")
    with pytest.raises(Misconfigured, match="samekey migrate"):
        store.carry_out(settling(store.carry_out(scene.opening()), State.COMPLETED))
    store.close()


def _drop_all(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("DROP TABLE samekey_records, samekey_meta, samekey_audit CASCADE")
        admin.execute("DROP SEQUENCE samekey_tokens")
        functions = admin.execute("SELECT oid::regprocedure::text FROM pg_proc WHERE proname LIKE 'samekey%'")
        for (function,) in functions.fetchall():
            admin.execute(f"DROP FUNCTION {function}")


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_tables_that_were_made_anew_are_noticed(server, scene, colour):
    """Under a process that runs: it goes on with the new ones, and says that memory was lost."""
    url = server.create_database()
    migrate(url)
    store: Any = PostgresStore(url) if colour == "sync" else AsyncPostgresStore(url)

    async def said(answer: Any) -> Any:
        return await answer if colour == "async" else answer

    for number in range(3):
        before = await said(store.carry_out(scene.opening(str(number))))
    known = (await said(store.health())).incarnation
    _drop_all(url)
    migrate(url)
    after = await said(store.carry_out(scene.opening("2")))
    health = await said(store.health())

    assert (before.after_loss, after.after_loss) == (False, True)
    assert health.incarnation != known
    assert any("lost its memory" in warning for warning in health.warnings)
    await said(store.close())
    with contextlib.closing(PostgresStore(url)) as later:  # whoever was not there before is told too
        assert later.carry_out(scene.opening("3")).after_loss


def test_tables_that_were_restored_from_a_dump_are_noticed(server, scene):
    """They have the epoch that they had; what was claimed after the dump is gone."""
    url = server.create_database()
    migrate(url)
    with contextlib.closing(PostgresStore(url)) as store:
        store.carry_out(scene.opening("lost"))
        with psycopg.connect(url, autocommit=True) as admin:
            dump = admin.execute("SELECT name, value FROM samekey_meta").fetchall()
        _drop_all(url)
        migrate(url)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute("TRUNCATE samekey_meta")
            admin.cursor().executemany("INSERT INTO samekey_meta VALUES (%s, %s)", dump)
        assert store.carry_out(scene.opening("lost")).after_loss

    with contextlib.closing(PostgresStore(url)) as later:
        assert later.carry_out(scene.opening("later")).after_loss


def test_migrating_is_done_once_by_many(server):
    """Several processes start at once: one migrates, the others find it done; a dry run changes nothing."""
    url = server.create_database()
    assert [one.number for one in migrate(url, dry_run=True)] == [1]
    assert sql(url, "SELECT to_regclass('samekey_records')::text") is None

    with ThreadPoolExecutor(4) as pool:
        done = [[one.number for one in made] for made in pool.map(lambda _: migrate(url), range(4))]

    assert sorted(done) == [[], [], [], [1]]
    assert "CREATE TABLE samekey_records" in migrations()[0].sql


def test_a_newer_schema_is_refused(store, url, scene):
    """Tables that this version no longer understands; one that only has more in it is fine."""
    sql(url, "UPDATE samekey_meta SET value = '2' WHERE name = 'schema'")
    assert store.carry_out(scene.opening()).attempt == A

    sql(url, "UPDATE samekey_meta SET value = '2' WHERE name = 'oldest_client'")
    with contextlib.closing(PostgresStore(url)) as later, pytest.raises(Misconfigured, match="upgrade samekey"):
        later.carry_out(scene.opening())
    with pytest.raises(Misconfigured, match="upgrade samekey"):
        migrate(url)


def test_two_keys_with_one_digest_are_told_apart(store, scene):
    """128 bits will not collide; a damaged row might: it is never another key's answer."""
    held = store.carry_out(scene.opening("one"))
    stranger = replace(scene.opening("two"), key=scene.key("two")._replace(digest=held.key.digest))

    with pytest.raises(RecordUnreadable, match="another key"):
        store.carry_out(stranger)


def test_a_damaged_record_is_told(store, url, scene):
    held = store.carry_out(scene.opening())
    sql(url, "UPDATE samekey_records SET state = 'elsewhere'")

    with pytest.raises(RecordUnreadable):
        store.carry_out(Read(held.key))


def test_a_damaged_record_does_not_hide_the_others_from_an_operator(store, url, scene):
    keys = [store.carry_out(scene.opening(name)).key for name in ("one", "two", "three")]
    sql(url, f"UPDATE samekey_records SET state = 'elsewhere' WHERE key = '{keys[1].text}'")
    page = Ops(store).list_records(Query())

    assert [record.key for record in page.records] == [keys[2], keys[0]]
    assert [str(keys[1]) in str(one) for one in page.unreadable] == [True]


# -- settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durability", "claims", "settles"),
    [("durable", "on", "on"), ("claim-durable", "on", "off"), ("fast", "off", "off")],
)
def test_durability_is_said_for_claims_and_settles(url, durability, claims, settles):
    """Whatever the role or the database is set to."""
    sql(url, f"ALTER DATABASE {url.rpartition('/')[2]} SET synchronous_commit = 'local'")
    with contextlib.closing(PostgresStore(f"{url}?durability={durability}")) as store:
        links = store._links()
        show = ("SHOW synchronous_commit", ())

        assert [links.claims.ask(show), links.settles.ask(show)] == [[(claims,)], [(settles,)]]
        assert any("fast" in one for one in store.health().warnings) is (durability == "fast")


def test_health_names_what_weakens_the_promise(store):
    health = store.health()

    assert "fsync is off" in health.guarantee
    assert any("fsync" in one for one in health.warnings)
    assert dict(health.facts)["server"].startswith("PostgreSQL 1")


def test_addresses():
    """Our options are ours, the rest is libpq's, and a password is nobody's to see."""
    address = parse_url(
        "postgresql://app:s3cret@db1,db2:5433/shop?durability=claim-durable&sslmode=require&password=x&pgbouncer=1"
    )

    assert (address.durability, address.pgbouncer) == ("claim-durable", True)
    assert "s3cret" in address.url
    assert "durability" not in address.url
    assert "s3cret" not in address.name
    assert "password" not in address.name
    assert address.name.startswith("postgresql://app@db1,db2:5433/shop?durability=claim-durable")
    for wrong in (
        "mysql://x/y",
        "postgresql://db/x?durability=maybe",
        "postgresql://db/x?nonsense=1",
        "postgresql://db/x?pgbouncer=yes",
        "postgresql://db/x?target_session_attrs=any",
        "postgresql://[",
    ):
        with pytest.raises(Misconfigured):
            PostgresStore(wrong)


def test_whatever_encoding_an_address_names_texts_are_kept_as_they_are(url, scene):
    """A process that spoke another one would write keys that no other process finds."""
    command = scene.opening("ключ 😀")
    with contextlib.closing(PostgresStore(f"{url}?client_encoding=latin1")) as odd:
        odd.carry_out(command)
    with contextlib.closing(PostgresStore(url)) as store:
        found = store.carry_out(Read(command.key))

    assert found is not None
    assert sql(url, "SELECT key FROM samekey_records") == command.key.text


@pytest.mark.parametrize("address", ["postgresql:///shop", "postgresql://", "postgresql:///shop?host=/run/postgresql"])
def test_an_address_without_a_host_is_that_of_the_local_server(address):
    assert parse_url(address).name == address


def test_nothing_depends_on_the_session_behind_pgbouncer(url, scene):
    """Nothing prepared, nothing set, nobody listens - and everything works."""
    with contextlib.closing(PostgresStore(f"{url}?pgbouncer=1")) as store:
        held = store.carry_out(scene.opening())
        many = store.batch([scene.opening(str(number)) for number in range(5)])
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(store.wait, Wait(held), 10.0)
            time.sleep(0.05)
            with contextlib.closing(PostgresStore(url)) as other:
                other.carry_out(settling(held, State.COMPLETED, result=b"done"))
            found = waiting.result(5)
        claims = store._links().claims

        assert found is not None
        assert found.result == b"done"
        assert [one.attempt for one in many if not isinstance(one, Exception) and one is not None] == [A] * 5
        assert claims.ask(("SELECT count(*) FROM pg_prepared_statements", ())) == [(0,)]
        assert claims.ask(("SHOW statement_timeout", ())) == [("0",)]
        assert any("PgBouncer" in one for one in store.health().warnings)


# -- sweep ---------------------------------------------------------------------------------------------


def test_sweeping_while_claims_run(store, url, scene):
    """Expired records go, and the keys that are claimed anew at the same time are held, every one of them."""
    texts = [str(number) for number in range(400)]
    held = store.batch([scene.opening(text) for text in texts])
    store.batch([settling(one, State.COMPLETED, retain=0.001) for one in held])
    time.sleep(0.01)
    swept = []
    begun, over = threading.Event(), threading.Event()

    def sweep() -> None:
        with contextlib.closing(PostgresStore(url)) as sweeper:
            while not over.is_set():
                swept.append(sweeper.sweep(20))
                begun.set()

    with ThreadPoolExecutor(9) as pool:
        sweeping = pool.submit(sweep)
        begun.wait()
        anew = list(pool.map(lambda text: store.carry_out(scene.opening(text, by=B)), texts))
        over.set()
        sweeping.result()

    assert {one.attempt for one in anew} == {B}
    assert {store.carry_out(scene.opening(text)).fence for text in texts} == {one.fence for one in anew}
    assert 20 <= sum(swept) <= 400
    tokens = {one.key.text: one.token for one in held}
    assert all(one.token > tokens[one.key.text] for one in anew)


def test_a_sweep_keeps_its_limit_whatever_the_plan(store, url, scene):
    """In a small table that was never analyzed the limit was looked for row by row: five of five went."""
    held = store.batch([scene.opening(str(number)) for number in range(5)])
    store.batch([settling(one, State.COMPLETED, retain=0.001) for one in held])
    time.sleep(0.01)

    assert [store.sweep(2) for _ in range(4)] == [2, 2, 1, 0]


def test_a_row_that_somebody_writes_is_swept_the_next_time(store, url, scene):
    held = store.carry_out(scene.opening())
    store.carry_out(settling(held, State.COMPLETED, retain=0.001))
    time.sleep(0.01)
    with psycopg.connect(url) as rival:
        rival.execute("SELECT 1 FROM samekey_records FOR UPDATE")
        assert store.sweep(100) == 0

    assert store.sweep(100) == 1


def test_old_records_are_found_beyond_the_newest(store, url, scene):
    """A page looks at the newest first; what is older is found too, in order."""
    for number in range(6):
        store.carry_out(scene.opening(str(number)))
    sql(url, "UPDATE samekey_records SET created_at = created_at - 100000 * key::int")

    found = store.list(Query(operation=scene.operation, limit=4))
    rest = store.list(Query(operation=scene.operation, limit=4, before=(found[-1].created_at, found[-1].key.digest)))

    assert [one.key.text for one in (*found, *rest)] == ["0", "1", "2", "3", "4", "5"]


# -- the guard -----------------------------------------------------------------------------------------


def test_a_guard_runs_once_and_replays(url):
    ran = []
    with Guard(PostgresStore(url)) as guard:

        @guard.once(name="charge", key="order")
        def charge(order: str, amount: int) -> int:
            ran.append(order)
            return amount

        assert [charge("o-1", 200), charge("o-1", 200)] == [200, 200]
    assert ran == ["o-1"]


def test_a_rival_transaction_that_never_ends_is_told(store, url, scene):
    """A row that somebody's open transaction holds: refused after the lock timeout, not waited for for ever."""
    held = store.carry_out(scene.opening())
    with psycopg.connect(url) as rival:
        rival.execute("SELECT 1 FROM samekey_records FOR UPDATE")
        with pytest.raises(StoreBusy, match="somebody's transaction"):
            store.carry_out(settling(held, State.IN_DOUBT))
        assert store.carry_out(scene.opening("other")).attempt == A

    assert store.carry_out(settling(held, State.IN_DOUBT, role=Role.HOLDER)) is not None
    assert _batches.REASK_SECONDS > CONNECT_SECONDS - 1
