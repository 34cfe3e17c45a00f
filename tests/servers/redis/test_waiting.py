"""Waiters: subscriptions, messages, and reads without them."""

from __future__ import annotations

import asyncio
import threading
import types
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any
from uuid import uuid4

import pytest

from samekey.core.commands import Read, Settle, Take, Wait
from samekey.core.record import Record
from samekey.core.states import Role, State
from samekey.stores import _waiting
from samekey.stores.redis import AsyncRedisStore, RedisStore
from samekey.stores.redis._front import RedisFront
from samekey.stores.redis._subscriber import AsyncSubscriber, _Subscriptions
from samekey.testing.servers import RedisServer, redis_server
from tests.servers.redis.helpers import LEASE, RETAIN, RIGHTS, A, B, channel, opening, settling, subscribed, there
from tests.servers.redis.topologies import until
from tests.stores.files import many_files


@types.coroutine
def _rest(begun: Any, waits_for: Any) -> Generator[Any, Any, None]:
    with suppress(StopIteration):
        while True:
            try:
                reply = yield waits_for
            except BaseException as error:
                waits_for = begun.throw(error)
            else:
                waits_for = begun.send(reply)


def _at_once(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
    """As asyncio.eager_task_factory of Python 3.12: a watch has run as far as it can when its task is there."""
    if coroutine.__name__ != "_keep_watch":
        return asyncio.Task(coroutine, loop=loop, **options)
    return asyncio.Task(_rest(coroutine, coroutine.send(None)), loop=loop, **options)


async def test_waiters_are_answered_in_a_loop_with_eager_tasks(server):
    """asyncio.eager_task_factory: what looks for all who wait must not go home before the first of them is there."""
    store = AsyncRedisStore(server.url())
    held = there(await store.carry_out(opening()))
    asyncio.get_running_loop().set_task_factory(getattr(asyncio, "eager_task_factory", _at_once))

    async with asyncio.timeout(20):
        assert there(await store.wait(Wait(held), 0.01)).state is State.STARTED
        waiting = [asyncio.create_task(store.wait(Wait(held), 15.0)) for _ in range(3)]
        await store.carry_out(Settle(held, Role.HOLDER, State.COMPLETED, A, b"done", None, "", RETAIN))
        assert [there(await one).result for one in waiting] == [b"done"] * 3
    await store.close()


def test_five_hundred_waiters_cost_a_few_commands(server, store):
    """One subscription and a handful of reads for a process and a key, however many wait; none when they wake."""

    async def wait_all() -> list[Record | None]:
        ours = AsyncRedisStore(server.url())
        held = await ours.carry_out(opening())
        server.call("CONFIG", "RESETSTAT")
        tasks = [asyncio.create_task(ours.wait(Wait(held), 20.0)) for _ in range(500)]
        while not server.call("PUBSUB", "NUMSUB", channel(held))[1]:
            await asyncio.sleep(0.01)
        store.carry_out(settling(held))
        replies = list(await asyncio.gather(*tasks))
        assert calls(server, "subscribe") == 1
        assert calls(server, "evalsha") + calls(server, "eval") <= 10  # the settle is one of them
        await ours.close()
        return replies

    replies = asyncio.run(wait_all())

    assert {there(reply).result for reply in replies} == {b"done"}


def test_one_subscriber_connection_with_many_open_files(server, store, monkeypatch):
    """The subscriber knows no limit to the number of a file; with `select` it connected again and again above 1,023."""
    monkeypatch.setattr(_waiting, "REREAD_SECONDS", 60.0)
    held = store.carry_out(opening())
    with many_files(), ThreadPoolExecutor(1) as pool:
        other = RedisStore(server.url())
        waiting = pool.submit(other.wait, Wait(held), 5.0)
        until(lambda: server.call("PUBSUB", "NUMSUB", channel(held))[1])
        before = int(server.info("total_connections_received"))
        store.carry_out(settling(held))
        assert there(waiting.result()).result == b"done"

        assert int(server.info("total_connections_received")) - before == 1  # this very look
        other.close()


def test_a_subscriber_without_a_connection_queues_no_commands():
    """A subscriber that cannot connect (no more clients, no right) has nothing to say later: it says it all anew."""
    with redis_server() as crowded:
        ours = RedisStore(crowded.url())
        held = ours.carry_out(opening())
        crowded.call("CONFIG", "SET", "maxclients", "1")
        for _ in range(200):
            assert there(ours.wait(Wait(held), 0.0)).fence == held.fence

        assert len(ours._process.subscriber._to_send) <= 1
        ours.close()


async def test_each_of_several_waiters_wakes_for_what_it_has_not_seen(server, store):
    """Waiters that saw other versions, with other timeouts, and one that leaves: each gets what is new to it."""
    ours = AsyncRedisStore(server.url())
    first = await ours.carry_out(opening())
    released = there(await ours.carry_out(settling(first, State.RELEASED)))
    taken = there(await ours.carry_out(Take(released, B, "opaque", LEASE, False)))
    many = [asyncio.create_task(ours.wait(Wait(taken), 20.0)) for _ in range(5)]
    leaving = asyncio.create_task(ours.wait(Wait(taken), 20.0))
    late, patient, hasty = (
        asyncio.create_task(ours.wait(Wait(seen), timeout))
        for seen, timeout in ((first, 20.0), (released, 20.0), (taken, 0.0))
    )

    assert there(await late).fence == there(await patient).fence == taken.fence
    assert there(await hasty).state is State.STARTED
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert not any(task.done() for task in many)
    assert len(ours._loop().waiters) == 1

    store.carry_out(settling(taken, by=B))
    assert {there(reply).result for reply in await asyncio.gather(*many)} == {b"done"}
    await asyncio.sleep(0)  # an iteration of the loop: the watch ends after the last waiter
    assert not ours._loop().waiters
    await ours.close()


async def test_the_loop_itself_receives_messages_for_its_tasks(server, store, monkeypatch):
    """No thread between the server and the loop, no second look; a connection that was lost is made again."""
    monkeypatch.setattr("samekey.stores._waiting.REREAD_SECONDS", 60.0)  # so only a message can wake them
    ours = AsyncRedisStore(server.url())
    subscriber = ours._loop().subscriber
    before = {one.ident for one in threading.enumerate()}
    for lost in (False, True):
        held = await ours.carry_out(opening())
        waiting = asyncio.create_task(ours.wait(Wait(held), 60.0))
        await subscribed(server, held)
        if lost:
            wire = subscriber._wire
            server.call("CLIENT", "KILL", "TYPE", "pubsub")
            async with asyncio.timeout(20):
                while subscriber._wire in (wire, None):
                    await asyncio.sleep(0.01)
            await subscribed(server, held)
        await asyncio.to_thread(store.carry_out, settling(held))
        async with asyncio.timeout(20):
            assert there(await waiting).result == b"done"
    begun = [one.name for one in threading.enumerate() if one.ident not in before]
    assert "samekey-subscriber" not in begun
    await ours.close()
    assert subscriber._wire is None


async def test_a_subscriber_in_a_loop_ends_without_waiters(server, store, monkeypatch):
    """It stays while a task waits, and starts again with the next waiter."""
    monkeypatch.setattr("samekey.stores.redis._subscriber.IDLE_SECONDS", 0.05)
    ours = AsyncRedisStore(server.url())
    checks: list[bool] = []
    idle = AsyncSubscriber._idle

    def counting(subscriber: AsyncSubscriber) -> bool:
        checks.append(idle(subscriber))
        return checks[-1]

    monkeypatch.setattr(AsyncSubscriber, "_idle", counting)
    for _ in range(2):
        held = await ours.carry_out(opening())
        waiting = asyncio.create_task(ours.wait(Wait(held), 20.0))
        await subscribed(server, held)
        checks.clear()
        async with asyncio.timeout(20):
            while len(checks) < 3:
                await asyncio.sleep(0.01)
        assert not any(checks)
        assert ours._loop().subscriber._wire is not None
        await asyncio.to_thread(store.carry_out, settling(held))
        assert there(await waiting).result == b"done"
        async with asyncio.timeout(20):
            while ours._loop().subscriber._wire is not None:
                await asyncio.sleep(0.01)
    await ours.close()


async def test_a_loop_that_cannot_subscribe_reads_again(server, store):
    """A user without the right to subscribe, and a server that is away for a while: slower, never wrong."""
    server.call("ACL", "SETUSER", "deaf", "on", ">secret", *RIGHTS.split(), "-subscribe")
    ours = AsyncRedisStore(f"redis://deaf:secret@127.0.0.1:{server.port}/0")
    held = await ours.carry_out(opening())
    waiting = asyncio.create_task(ours.wait(Wait(held), 20.0))
    await ours.carry_out(Read(held.key))
    await asyncio.to_thread(store.carry_out, settling(held))
    assert there(await waiting).result == b"done"
    await ours.close()


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_a_message_of_one_database_wakes_no_waiter_of_another(server, monkeypatch, colour):
    """One server, two applications, the same operation and key: each waiter is woken for its own record only."""
    messages: list[str] = []
    receive = _Subscriptions._receive

    def recording(subscriber: _Subscriptions, message: list[bytes]) -> None:
        if message[0] == b"message":
            messages.append(message[1].decode())
        receive(subscriber, message)

    monkeypatch.setattr(_Subscriptions, "_receive", recording)
    ours, theirs = RedisStore(server.url(4)), RedisStore(server.url(5))
    waiter = AsyncRedisStore(server.url(4))
    command = opening()
    held, other = ours.carry_out(command), theirs.carry_out(command)
    waiting = asyncio.create_task(
        waiter.wait(Wait(held), 20.0) if colour == "async" else asyncio.to_thread(waiter.sync.wait, Wait(held), 20.0)
    )
    await subscribed(server, held, 4)
    theirs.carry_out(Settle(other, Role.HOLDER, State.COMPLETED, A, b"theirs", None, "", RETAIN))
    server.call("PUBLISH", channel(held, 4), "")  # without a record: the waiter reads. It comes after the other message
    async with asyncio.timeout(20):
        while not messages:
            await asyncio.sleep(0.01)
    assert messages == [channel(held, 4)]
    assert not waiting.done()
    ours.carry_out(Settle(held, Role.HOLDER, State.COMPLETED, A, b"ours", None, "", RETAIN))

    assert there(await waiting).result == b"ours"
    ours.close()
    theirs.close()
    await waiter.close()


def test_a_front_wakes_the_waiters_of_its_own_database(server):
    digest = uuid4().bytes
    rung = {number: threading.Event() for number in (4, 5)}
    fronts = {number: RedisFront(server.url(number)) for number in rung}
    teller = RedisFront(server.url(5))
    with ExitStack() as ears:
        for number, front in fronts.items():
            front.bells.add(digest, Ringing(rung[number]))
            ears.enter_context(front.watching(digest))
        until(lambda: all(server.call("PUBSUB", "NUMSUB", *channels_of(digest))[1::2]))
        until(lambda: all(one.is_set() for one in rung.values()))  # rung when they began to listen
        for one in rung.values():
            one.clear()
        teller.put(digest, b"\x00" * 64, 2e9)

        assert rung[5].wait(20)
        assert not rung[4].is_set()
    for front in (*fronts.values(), teller):
        front.close()


class Ringing:
    def __init__(self, rung: threading.Event) -> None:
        self.ring = rung.set


def channels_of(digest: bytes) -> list[str]:
    return [f"samekey:{{{digest.hex()[:2]}}}:{digest.hex()}@{number}" for number in (4, 5)]


async def test_watching_a_key_ends_with_its_last_waiter(server):
    ours = AsyncRedisStore(server.url())
    held = await ours.carry_out(opening())
    waiting = [asyncio.create_task(ours.wait(Wait(held), 20.0)) for _ in range(3)]
    await ours.carry_out(Read(held.key))  # a trip to the server: they surely wait
    for task in waiting:
        task.cancel()

    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError] * 3
    async with asyncio.timeout(10):
        while ours._loop().waiters:
            await ours.carry_out(Read(held.key))
    await ours.close()


def calls(server: RedisServer, command: str) -> int:
    line = server.info(f"cmdstat_{command}")
    return int(line.partition("calls=")[2].partition(",")[0] or 0)
