"""PostgreSQL goes away: before the claim, in the middle, after the effect; loudly, and without a word.

A server that is stopped with SIGSTOP accepts connections and says nothing: the worst kind. Every call has an end of its
own then; the numbers are made small here, and the tests' only clock is that they end at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from samekey import AsyncGuard, Guard, InDoubt, Opaque, Policy, Repeatable, State, StoreUnavailable
from samekey.core.commands import Read, Wait
from samekey.drivers.postgres import connect, connection
from samekey.drivers.postgres.migrate import migrate
from samekey.stores import _waiting
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore, _batches
from samekey.testing.servers import PrivatePostgres, postgres
from samekey.testing.stores.scene import A, Scene, settling
from tests.guard.helpers import until
from tests.stores.files import many_files, no_files

pytestmark = pytest.mark.slow

HANGS_SECONDS = 60.0  # many times what all timeouts together allow: whoever is not back by then hangs


@pytest.fixture(scope="module")
def server():
    if os.environ.get("SAMEKEY_TEST_PG"):
        pytest.skip("SAMEKEY_TEST_PG names a server that is not ours to stop")
    with postgres() as running:
        yield running


@pytest.fixture(scope="module")
def url(server):
    address = server.create_database()
    migrate(address)
    return address


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """The same timeouts, in small."""
    monkeypatch.setattr(connection, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 2)  # libpq knows no shorter one
    monkeypatch.setattr(_batches, "REASK_SECONDS", 0.5)


@pytest.fixture
def scene():
    return Scene(0.02)


@contextlib.contextmanager
def stopped(server: PrivatePostgres):
    """The server is gone: connections are refused."""
    server.stop("immediate")
    try:
        yield
    finally:
        server.start()


@contextlib.contextmanager
def silent(server: PrivatePostgres):
    """The postmaster and all its children stand still; the kernel still accepts connections for them."""
    everybody = [server.pid, *_children(server.pid)]
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in everybody:
            os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


# -- before the claim ------------------------------------------------------------------------------------


def test_a_server_that_is_gone_refuses_by_default(server, url):
    """Nothing runs; when it is back the same guard goes on."""
    ran = []
    with Guard(url) as guard:
        guard.run("charge", lambda: "connected", key="before", payload={})
        with stopped(server), pytest.raises(StoreUnavailable):
            guard.run("charge", lambda: ran.append(1), key="refused", payload={})
        answer = guard.run("charge", lambda: "paid", key="refused", payload={})

    assert ran == []
    assert (answer.result, answer.replayed) == ("paid", False)


async def test_the_same_in_the_other_colour(server, url):
    guard = AsyncGuard(url)

    async def effect() -> str:
        return "paid"

    await guard.run("charge", effect, key="before-async", payload={})
    with stopped(server), pytest.raises(StoreUnavailable):
        await guard.run("charge", effect, key="refused-async", payload={})
    answer = await guard.run("charge", effect, key="refused-async", payload={})
    await guard.close()

    assert (answer.result, answer.replayed) == ("paid", False)


def test_with_run_the_effect_runs_unguarded_and_says_so(server, url):
    with Guard(url, policy=Policy(store_down="run")) as guard, stopped(server):
        answer = guard.run("charge", lambda: "paid", key="run", payload={})

    assert (answer.result, answer.guarded, answer.recorded) == ("paid", False, False)


# -- after the effect ------------------------------------------------------------------------------------


def test_a_settle_is_tried_again_until_the_server_is_back(server, url):
    """It crashes while the effect runs, and comes back within the lease: the answer is recorded."""
    with Guard(url, policy=Policy(lease=60)) as guard:
        back = threading.Thread(target=server.start)

        def effect() -> str:
            server.stop("immediate")
            back.start()
            return "paid"

        answer = guard.run("charge", effect, key="back", payload={})
        back.join()

    assert (answer.result, answer.recorded) == ("paid", True)
    with Guard(url) as other:
        assert other.run("charge", lambda: "again", key="back", payload={}).result == "paid"


@pytest.mark.parametrize(
    ("boundary", "then"), [(Opaque(), "in doubt"), (Repeatable(), "again")], ids=["opaque", "repeatable"]
)
def test_a_settle_that_never_gets_through_is_told_and_the_record_follows_its_boundary(server, url, boundary, then):
    """The caller has its result, marked `recorded=False`; whoever asks next hears what the boundary says."""
    key = f"lost-{then}"
    with Guard(url, policy=Policy(lease=0.5)) as guard:

        def effect() -> str:
            server.stop("immediate")
            return "paid"

        try:
            answer = guard.run("charge", effect, key=key, payload={}, boundary=boundary)
        finally:
            server.start()

        assert (answer.result, answer.recorded, answer.guarded) == ("paid", False, True)
        try:
            heard = guard.run("charge", lambda: "again", key=key, payload={}, boundary=boundary).result
        except InDoubt:
            heard = "in doubt"
    assert heard == then


# -- a server that says nothing --------------------------------------------------------------------------


def test_no_call_hangs_on_a_silent_server(server, url, scene):
    """Connect, claim, settle, read and wait, over old connections and new ones: each ends by itself."""
    connected = PostgresStore(url)
    held = connected.carry_out(scene.opening("held"))
    connected.carry_out(settling(connected.carry_out(scene.opening("ended")), State.COMPLETED))
    seen = connected.carry_out(Read(held.key))
    assert seen is not None
    fresh = PostgresStore(url)
    calls: dict[str, Any] = {
        "connect": lambda: fresh.carry_out(scene.opening("fresh")),
        "claim": lambda: connected.carry_out(scene.opening("claim")),
        "settle": lambda: connected.carry_out(settling(held, State.COMPLETED)),
        "wait": lambda: connected.wait(Wait(seen), 0.1),
        "batch": lambda: fresh.batch([Read(held.key)])[0],
        "sweep": lambda: fresh.sweep(1),
        "health": lambda: PostgresStore(url).health(),
    }
    with ThreadPoolExecutor(len(calls)) as pool, silent(server):
        pending = {name: pool.submit(call) for name, call in calls.items()}
        ended = {name: _outcome(one) for name, one in pending.items()}

    assert ended == dict.fromkeys(calls, "StoreUnavailable")
    assert connected.carry_out(scene.opening("claim")).attempt == A  # awake again, it goes on
    connected.close()
    fresh.close()


async def test_no_task_hangs_on_a_silent_server(server, url, scene):
    """And the loop goes on meanwhile."""
    connected, fresh = AsyncPostgresStore(url), AsyncPostgresStore(url)
    held = await connected.carry_out(scene.opening("held"))
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticking = asyncio.create_task(tick())
    with silent(server):
        ended = await asyncio.wait_for(
            asyncio.gather(
                fresh.carry_out(scene.opening("fresh")),
                connected.carry_out(scene.opening("claim")),
                connected.carry_out(settling(held, State.COMPLETED)),
                connected.wait(Wait(held), 0.1),
                return_exceptions=True,
            ),
            HANGS_SECONDS,
        )
    ticking.cancel()

    assert [type(one).__name__ for one in ended] == ["StoreUnavailable"] * 4
    assert ticks > 10
    await connected.close()
    await fresh.close()


def test_a_caller_whose_settle_meets_silence_is_answered_all_the_same(server, url):
    """The lease is the end of its patience: the result comes out, marked as not recorded."""
    with contextlib.ExitStack() as stack, Guard(url, policy=Policy(lease=1)) as guard, ThreadPoolExecutor(1) as pool:

        def effect() -> str:
            stack.enter_context(silent(server))
            return "paid"

        answer = pool.submit(guard.run, "charge", effect, key="silent", payload={}).result(HANGS_SECONDS)
        stack.close()

    assert (answer.result, answer.recorded) == ("paid", False)


def _outcome(call: Future[Any]) -> str:
    try:
        found = call.result(HANGS_SECONDS)
    except Exception as error:
        found = error
    return type(found).__name__ if isinstance(found, Exception) else repr(found)


@pytest.mark.parametrize("left", [0, 1])
def test_where_no_file_is_left_for_a_connection_the_store_is_down(url, left):
    """Nothing runs, and it is told as ours; with files to be had again everything goes on."""
    key, effects = f"no-files-{left}", []
    with Guard(url) as guard:
        with no_files(but=left), pytest.raises(StoreUnavailable):
            guard.run("outage", lambda: effects.append(1), key=key, payload={})
        assert effects == []

        assert not guard.run("outage", lambda: effects.append(1), key=key, payload={}).replayed


def test_a_process_with_many_open_files_is_still_told(url, scene, monkeypatch):
    """The listener knows no limit to the number of a file; behind 1,024 of them it used to fall over."""
    monkeypatch.setattr(_waiting, "REREAD_SECONDS", 60.0)
    with contextlib.closing(PostgresStore(url)) as store, many_files(), ThreadPoolExecutor(1) as pool:
        other = PostgresStore(url)
        held = store.carry_out(scene.opening())
        waiting = pool.submit(other.wait, Wait(held), 5.0)
        until(lambda: store.carry_out(Read(held.key)) is not None and _listening())
        (listener,) = _listening()
        store.carry_out(settling(held, State.COMPLETED))
        told = waiting.result()
        assert told is not None
        assert told.state is State.COMPLETED

        assert _listening() == [listener]
        other.close()


def _listening() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "samekey-listener"]
