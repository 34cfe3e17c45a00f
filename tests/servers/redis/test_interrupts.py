"""Interrupts: Ctrl-C, or a signal handler that raises when a time limit is over, at every line where they may strike.

An interrupt ends its own caller only: no reply to that caller reaches the next one, and the turn is passed on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any
from uuid import uuid4

import pytest

from samekey import Guard
from samekey.core.commands import Open, Read, Settle, Wait
from samekey.core.errors import StoreUnavailable
from samekey.core.fingerprint import Fingerprint
from samekey.core.key import make_key
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.drivers.redis.wire import Wire
from samekey.stores import _turns
from samekey.stores.redis import AsyncRedisStore, RedisStore
from samekey.testing.servers import RedisServer, redis_server
from tests.servers.proxy import FaultProxy
from tests.servers.redis.topologies import until
from tests.stores.interrupts import TimeLimit, interrupted_at

A, B = "a" * 32, "b" * 32
ANSWER_SECONDS = 20.0  # a caller that waits longer will never be answered


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    ours = RedisStore(server.url())
    yield ours
    ours.close()


def opening(text: str | None = None, *, by: str = A) -> Open:
    return Open(make_key("own", text or uuid4().hex), by, Fingerprint(b"\x01" * 32, "1", ()), "opaque", 30.0, False)


# -- replies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [KeyboardInterrupt, TimeLimit])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_reply_to_an_interrupted_caller_reaches_no_other(server, monkeypatch, kind, nth):
    """After the bytes of a claim, or of a settle, have left: the next caller's key was completed, and is replayed."""
    effects: list[str] = []

    def twice() -> str:
        effects.append("twice")
        return "paid again"

    keys = [uuid4().hex for _ in range(3)]
    with Guard(server.url()) as guard:
        for key in keys:
            guard.run("charge", lambda: "paid", key=key, payload=1)
        send, sent = Wire.send, count(1)

        def striking(self: Wire, data: bytes, replies: int) -> int:
            owed = send(self, data, replies)
            if next(sent) == nth:
                raise kind
            return owed

        with monkeypatch.context() as patched:
            patched.setattr(Wire, "send", striking)
            with pytest.raises(kind):
                guard.run("charge", lambda: "other", key=uuid4().hex, payload=1)
        again = [guard.run("charge", twice, key=key, payload=1) for key in keys]

    assert [(one.result, one.replayed) for one in again] == [("paid", True)] * 3
    assert effects == []


def claim(store: RedisStore) -> None:
    store.carry_out(opening())


def settle(store: RedisStore) -> None:
    store.carry_out(Settle(store.carry_out(opening()), Role.HOLDER, State.COMPLETED, A, b"done", None, "", 3600.0))


def claim_two(store: RedisStore) -> None:
    store.batch([opening(), opening()])


def meet(store: RedisStore) -> None:
    for connection in store._process.queue.servers.connections.values():
        connection.wire.close()
    store.carry_out(opening())


@pytest.mark.parametrize("work", [claim, settle, claim_two, RedisStore.health, meet])
def test_an_interrupt_at_any_line_leaves_nothing_to_the_next_caller(store, work: Callable[[RedisStore], Any]):
    paid = store.carry_out(opening())
    store.carry_out(Settle(paid, Role.HOLDER, State.COMPLETED, A, b"paid", None, "", 3600.0))
    for number in count(1):
        with interrupted_at(number, "/redis/", "stores/_turns") as strike:
            work(store)
        assert store._process.queue._leader is None, strike.where
        found = store.carry_out(opening(paid.key.text, by=B))
        mine = opening(by=B)

        assert (found.state, found.result, found.attempt) == (State.COMPLETED, b"paid", A)
        assert store.carry_out(mine).fence == (store.carry_out(Read(mine.key)) or paid).fence
        assert store.carry_out(Read(make_key("own", "free"))) is None
        if not strike.struck:
            break
    assert number > 20


def test_an_interrupt_at_any_line_of_a_loop_leaves_nothing_to_its_next_task(server, store):
    """A loop that Ctrl-C has left and that is run again, as in a notebook: its connections go on, or are left."""
    paid = store.carry_out(opening())
    store.carry_out(Settle(paid, Role.HOLDER, State.COMPLETED, A, b"paid", None, "", 3600.0))
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)  # for tasks that were interrupted
    ours = AsyncRedisStore(server.url())

    async def together(*commands: Open) -> list[Record]:
        async with asyncio.timeout(ANSWER_SECONDS):
            return await asyncio.gather(*[ours.carry_out(command) for command in commands])

    async def apart(*commands: Open) -> None:  # each task ends by itself
        await asyncio.wait([asyncio.create_task(ours.carry_out(command)) for command in commands])

    loop.run_until_complete(together(opening()))
    for number in count(1):
        with interrupted_at(number, "/redis/", "stores/_turns") as strike:
            loop.run_until_complete(apart(opening(), opening(), opening()))
        mine = opening(by=B)
        found, held = loop.run_until_complete(together(opening(paid.key.text, by=B), mine))

        assert (found.state, found.result, found.attempt) == (State.COMPLETED, b"paid", A), strike.where
        assert (held.key, held.attempt) == (mine.key, B), strike.where
        if not strike.struck:
            break
    assert number > 20
    loop.run_until_complete(asyncio.wait_for(ours.close(), ANSWER_SECONDS))
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()


# -- turns -----------------------------------------------------------------------------------------------------


def test_an_interrupt_at_any_line_of_a_leader_ends_no_other_caller(server):
    """It waits for its turn, sends the commands of the queue and passes the lead on: all are answered wherever it ends.

    If it ended while it read the reply of another caller, that caller gets an error, and asks again by attempt id.
    """
    with FaultProxy(server.port) as proxy, ThreadPoolExecutor(5) as pool:
        store = RedisStore(f"redis://127.0.0.1:{proxy.port}")
        queue = store._process.queue
        store.carry_out(Read(make_key("own", "warm")))
        for number in count(1):
            commands, over = [opening() for _ in range(4)], threading.Event()
            others: list[Future[Record]] = []

            def crowd(commands=commands, others=others, over=over) -> None:
                until(lambda: queue._queue or over.is_set())
                others += [pool.submit(store.carry_out, command) for command in commands[1:]]
                until(lambda: len(queue._queue) >= 3 + (not over.is_set()))
                proxy.release()

            proxy.hold()
            others.append(pool.submit(store.carry_out, commands[0]))
            until(lambda: queue._leader is not None)
            crowded = pool.submit(crowd)
            with interrupted_at(number, "/redis/", "stores/_turns") as strike:
                store.carry_out(opening())
            over.set()
            crowded.result(ANSWER_SECONDS)

            for command, other in zip(commands, others, strict=True):
                try:
                    record = other.result(ANSWER_SECONDS)
                except StoreUnavailable as error:
                    if "interrupted" not in str(error):
                        raise
                    record = store.carry_out(command)
                assert (record.key, record.attempt, record.state) == (command.key, A, State.STARTED)
            assert queue._leader is None, strike.where
            assert not queue._queue
            if not strike.struck:
                break
        assert number > 20
        store.close()


def test_a_lead_that_no_thread_has_any_more_is_taken_over(store, monkeypatch):
    """A leader that was interrupted twice at the same moment; its connections are not used again."""
    queue = store._process.queue
    command = opening()
    store.carry_out(opening())
    (connection,) = queue.servers.connections.values()
    queue._leader = [object()]
    monkeypatch.setattr(_turns, "TURN_SECONDS", 0.01)

    assert store.carry_out(command).key == command.key
    assert queue._leader is None
    assert connection not in queue.servers.connections.values()
    connection.wire.close()


# -- waiting ---------------------------------------------------------------------------------------------------


def test_an_interrupt_at_any_line_of_a_waiter_leaves_the_next_one_subscribed(server, store):
    """The next waiter has a subscription, and is woken by a message rather than by its own read."""
    held = store.carry_out(opening())
    for number in count(1):
        ours = RedisStore(server.url())
        subscriber = ours._process.subscriber
        ours.carry_out(Read(held.key))
        with interrupted_at(number, "/redis/", "stores/_turns") as strike:
            ours.wait(Wait(held), 0.0)

        with subscriber.watching(held.key):
            until(lambda: held.key.digest.hex() in "".join(server.call("PUBSUB", "CHANNELS", "samekey:*")))
        ours.close()
        if not strike.struck:
            break
    assert number > 20
