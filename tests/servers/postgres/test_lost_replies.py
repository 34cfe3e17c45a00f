"""A reply that never came: the command is sent again and recognises itself by its attempt id."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from samekey.core.commands import Ask, Begin, Read, Renew, Take, Testify
from samekey.core.record import Record
from samekey.core.states import State
from samekey.drivers.postgres import connection
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore
from samekey.testing.stores.scene import LEASE, A, B, settling
from tests.servers.postgres.helpers import CLAIM, attempt, sql, until, until_ended

pytestmark = pytest.mark.slow


def test_a_claim_whose_reply_was_lost_is_asked_again(wire, url, scene):
    """It finds itself by its attempt id, is confirmed by a write, and no second record or token is seen."""
    store = PostgresStore(wire.url)
    store.carry_out(scene.opening("connected"))
    wire.cut()

    held = store.carry_out(scene.opening("lost"))

    assert wire.cuts == 1
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
        store._connections().claims.ask(("SELECT 1", ()))
        store._connections().settles.ask(("SELECT 1", ()))
        wire.cut()
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
    assert wire.cuts == 7
    store.close()


async def test_a_batch_whose_reply_was_lost_is_asked_again(wire, scene):
    """All rows of it, in the other colour."""
    store = AsyncPostgresStore(wire.url)
    await store.carry_out(scene.opening("connected"))
    wire.cut()

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
            CLAIM,
            (key.digest.hex(), key.operation, key.text, B),
        )
        claim = pool.submit(store.carry_out, scene.opening())
        waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'samekey'"
        pid = until(lambda: sql(url, waiting))
        sql(url, f"SELECT pg_terminate_backend({pid})")
        until_ended(url, pid)
        rival.rollback()
        held = claim.result(10)

    assert held.attempt == A


def test_a_silent_server_is_not_waited_for_for_ever(store, url, scene, monkeypatch):
    """A backend that hangs is left behind, and the same claim is asked over another connection."""
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 0.3)
    store.carry_out(scene.opening("connected"))
    ((pid,),) = store._connections().claims.ask(("SELECT pg_backend_pid()", ()))
    os.kill(pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        held = store.carry_out(scene.opening())
        assert time.monotonic() - start < 3
    finally:
        os.kill(pid, signal.SIGCONT)

    assert held.attempt == A
    until_ended(url, pid)  # it woke up, and carried its statement out too
    assert store.carry_out(scene.opening(by=B)).fence == held.fence


def test_a_record_that_is_swept_while_its_batch_waits_is_claimed(store, url, scene):
    """Past retention when the batch looked, gone when its turn came: then it is made, and told in short."""
    store.carry_out(settling(store.carry_out(scene.opening("there")), State.COMPLETED, retain=3600.0))
    store.carry_out(settling(store.carry_out(scene.opening("past")), State.COMPLETED, retain=0.001))
    past, blocked = scene.opening("past", by=B), scene.opening("blocked", by=B)
    with psycopg.connect(url) as rival, ThreadPoolExecutor(1) as pool:
        rival.execute(
            CLAIM,
            (blocked.key.digest.hex(), blocked.key.operation, blocked.key.text, A),
        )
        claims = pool.submit(store.batch, [scene.opening("there", by=B), past, blocked])
        until(
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
    connection = store._connections().claims._connection
    assert connection is not None
    with psycopg.connect(url) as rival:
        rival.execute(
            CLAIM,
            (key.digest.hex(), key.operation, key.text, B),
        )
        claim = asyncio.create_task(store.carry_out(scene.opening()))
        while connection._steps is None:
            await asyncio.sleep(0)
        connection._struck(asyncio.get_running_loop())
        rival.rollback()
        held = await claim

    assert held.attempt == A
    assert store._connections().claims._connection is connection  # nobody hung up
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
