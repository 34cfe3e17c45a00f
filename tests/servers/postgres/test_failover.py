"""Servers that restart, die, fail over, and lose what they had."""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from samekey import Absent, Asks, Guard, Happened, Opaque
from samekey.core.commands import Read, Wait
from samekey.core.errors import StoreUnavailable
from samekey.core.record import Record
from samekey.core.states import State
from samekey.drivers.postgres import connection
from samekey.drivers.postgres.migrate import migrate
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore, _batches
from samekey.testing.servers import postgres
from samekey.testing.stores.scene import A, B, Scene, settling
from tests.servers.postgres.helpers import attempt, sql, until
from tests.servers.postgres.standby import promote, standby

pytestmark = pytest.mark.slow


@pytest.mark.minutes
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
        until(lambda: server.sql("SHOW synchronous_standby_names") == "nobody")
        server.sql("CHECKPOINT")  # the one who makes commits wait has read it, too
        with ThreadPoolExecutor(1) as pool:
            if colour == "sync":
                claiming = pool.submit(store.batch, commands)
            else:
                claiming = pool.submit(asyncio.run, claim(commands))
                waiting.wait(20)
            until(lambda: "SyncRep" in server.sql("SELECT string_agg(wait_event, ' ') FROM pg_stat_activity"))
            server.stop("immediate")
            replies = claiming.result()

        assert [type(reply) for reply in replies] == [StoreUnavailable] * together
        store.close()


@pytest.mark.minutes
def test_claims_survive_immediate_restarts(own_server):
    """Under load, three crashes of the server: no key is won twice, and what was answered is there afterwards."""
    url = own_server.create_database()
    migrate(url)
    stores = [PostgresStore(url), PostgresStore(url)]
    scene, stop = Scene(0.02), threading.Event()
    won: dict[str, list[str]] = {}
    settled: dict[str, str] = {}
    told = threading.Lock()
    refusals = []

    def work(number: int) -> None:
        chance, store = random.Random(number), stores[number % 2]
        while not stop.is_set():
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
                stop.wait(0.05)  # the server starts again

    with ThreadPoolExecutor(16) as pool:
        workers = [pool.submit(work, number) for number in range(16)]
        try:
            for _ in range(3):
                wanted = len(settled) + 100
                until(lambda wanted=wanted: len(settled) >= wanted, 60)
                own_server.restart("immediate")
            wanted = len(settled) + 100
            until(lambda: len(settled) >= wanted, 60)
        finally:
            stop.set()
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
        until(lambda: sql(url, "SELECT waited_for FROM samekey_records"))  # it listens, and has flagged the row
        own_server.restart("immediate")
        until(other._process.listener._listening.is_set)
        store.carry_out(settling(held, State.COMPLETED, result=b"done"))
        found = waiting.result(10)
    assert found is not None
    assert found.result == b"done"
    store.close()
    other.close()


@pytest.mark.minutes
def test_a_standby_is_refused_and_a_promoted_one_says_that_memory_was_lost(own_server, scene):
    """Claims go to the primary; after a failover new claims ask first, for a day."""
    url = own_server.create_database()
    migrate(url)
    store = PostgresStore(url)
    before = store.carry_out(scene.opening("before"))
    incarnation = store.health().incarnation
    assert not before.after_loss
    store.close()
    with standby(own_server) as copy:
        there = url.replace(f":{own_server.port}/", f":{copy.port}/")
        follower = PostgresStore(there)
        until(lambda: copy.sql("SELECT count(*) FROM samekey_records", url.rpartition("/")[2]) == "1")
        with pytest.raises(StoreUnavailable, match=r"read-only|standby"):
            follower.carry_out(scene.opening("before", by=B))
        with pytest.raises(StoreUnavailable):
            follower.carry_out(Read(before.key))

        own_server.stop("immediate")
        promote(copy)
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


@pytest.mark.minutes
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
    with standby(own_server) as copy:
        with Guard(url) as guard:
            charge(guard, "before", Opaque())
            until(lambda: own_server.sql("SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication") == "t")
            copy.sql("ALTER SYSTEM SET primary_conninfo = ''")
            copy.sql("SELECT pg_reload_conf()")
            until(lambda: own_server.sql("SELECT count(*) FROM pg_stat_replication") == "0")
            for key, boundary in boundaries.items():
                charge(guard, key, boundary)
        own_server.stop("immediate")
        promote(copy)
        with Guard(url.replace(f":{own_server.port}/", f":{copy.port}/")) as guard:
            for key, boundary in boundaries.items():
                assert charge(guard, key, boundary) == "paid"

    assert charged == ["before", "opaque", "asks", "opaque"]


@pytest.mark.minutes
def test_no_answered_claim_is_lost_with_a_synchronous_standby(own_server, scene):
    """The primary crashes under load, its synchronous standby is promoted: every answered claim is there."""
    url = own_server.create_database()
    migrate(url)
    answered: dict[str, str] = {}
    over = threading.Event()
    with standby(own_server) as copy:
        own_server.sql("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        own_server.sql("SELECT pg_reload_conf()")
        until(lambda: own_server.sql("SELECT sync_state FROM pg_stat_replication") == "sync")
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
            try:
                until(lambda: len(answered) >= 1000, 60)
                own_server.stop("immediate")
            finally:
                over.set()
            for worker in workers:
                worker.result()
        store.close()
        promote(copy)
        copy.sql("ALTER SYSTEM RESET synchronous_standby_names")
        copy.sql("SELECT pg_reload_conf()")
        there = PostgresStore(url.replace(f":{own_server.port}/", f":{copy.port}/"))
        found = there.batch([Read(scene.key(text)) for text in answered])
        there.close()

    assert len(answered) > 50
    assert [one.attempt for one in found if isinstance(one, Record)] == list(answered.values())


@pytest.mark.minutes
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
            pid = until(lambda claim=claim: "done" if claim.done() else own_server.sql(waiting))
            if pid != "done":
                break
        own_server.sql(f"SELECT pg_cancel_backend({pid})")
        with pytest.raises(StoreUnavailable) as refused:
            claim.result(20)

    assert refused.type is StoreUnavailable  # StoreBusy would be sent again as a new claim, and not be confirmed
    own_server.sql("ALTER SYSTEM RESET synchronous_standby_names")
    own_server.sql("SELECT pg_reload_conf()")
    found = store.carry_out(scene.opening(text))
    assert found.attempt == A
    store.close()
