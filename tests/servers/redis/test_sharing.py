"""Callers share connections: pipelines of tasks, turns of threads, event loops, and forks."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from socket import SHUT_RDWR

import pytest

from samekey.core.commands import Read
from samekey.core.key import make_key
from samekey.core.states import State
from samekey.stores.redis import AsyncRedisStore, RedisStore
from samekey.stores.redis.store import _Loop
from tests.servers.proxy import FaultProxy
from tests.servers.redis.helpers import A, B, opening, settling, there
from tests.servers.redis.topologies import until


async def test_commands_of_concurrent_tasks_share_pipelines(server):
    """Thirty at once are three pipelines, not thirty: the first goes alone, the server need not wait for the last."""
    with FaultProxy(server.port) as proxy:
        store = AsyncRedisStore(f"redis://127.0.0.1:{proxy.port}")
        await store.carry_out(opening())  # connected, and the server knows the script
        proxy.sent.clear()

        await asyncio.gather(*(store.carry_out(opening()) for _ in range(30)))

        assert len(proxy.sent) <= 3
        await store.close()


async def test_a_reply_in_flight_is_not_given_to_a_later_command(server):
    """It may be older than the question: a waiter that was rung in between would sleep on."""
    with FaultProxy(server.port) as proxy:
        store = AsyncRedisStore(f"redis://127.0.0.1:{proxy.port}")
        held = await store.carry_out(opening())
        await store.carry_out(Read(held.key))  # the server knows the script
        proxy.sent.clear()
        proxy.hold()
        first = asyncio.create_task(store.carry_out(Read(held.key)))
        await asyncio.sleep(0)
        later = [asyncio.create_task(store.carry_out(Read(held.key))) for _ in range(20)]
        await asyncio.sleep(0)
        proxy.release()

        assert [there(one).fence for one in await asyncio.gather(first, *later)] == [held.fence] * 21
        assert len(proxy.sent) == 2  # the first, and one for all who came after it
        await store.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # asyncio's own: loops were closed over open connections
def test_a_store_outlives_the_loop_that_used_it(server):
    """A second asyncio.run finds new connections, whatever became of those of the first."""
    store = AsyncRedisStore(server.url())
    commands = [opening(), opening()]

    held = [asyncio.run(store.carry_out(command)) for command in commands]

    assert [one.key for one in held] == [command.key for command in commands]
    asyncio.run(store.close())
    del store
    gc.collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("socket", [None, "refuses"])
def test_a_connection_of_a_loop_that_is_gone_may_have_no_socket_left(server, monkeypatch, socket):
    """TLS, when the server has hung up; and uvloop, which closes its own and does not allow it to others."""

    class Refusing:
        def shutdown(self, how: int) -> None:
            raise TypeError("transport sockets do not support shutdown() method")

    store = AsyncRedisStore(server.url())
    asyncio.run(store.carry_out(opening()))
    (before,) = store._loops.values()
    (link,) = before.queue.servers.connections.values()
    transport = link.wire._transport
    mine = transport.get_extra_info("socket")
    with monkeypatch.context() as patched:
        patched.setitem(transport._extra, "socket", None if socket is None else Refusing())
        command = opening()
        assert asyncio.run(store.carry_out(command)).key == command.key
    mine.shutdown(SHUT_RDWR)
    asyncio.run(store.close())
    del before, link, transport, store
    gc.collect()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_loops_of_several_threads_may_end_at_once(server, monkeypatch):
    """Two threads begin a loop each, and both find the same ones gone."""
    store = AsyncRedisStore(server.url())
    gone = [asyncio.new_event_loop(), asyncio.new_event_loop()]
    for loop in gone:
        loop.run_until_complete(store.carry_out(opening()))
    for loop in gone:
        loop.close()
    abandon = _Loop.abandon

    def meanwhile(links: _Loop) -> None:
        monkeypatch.setattr(_Loop, "abandon", abandon)
        abandon(links)
        thread = threading.Thread(target=asyncio.run, args=(store.carry_out(opening()),))
        thread.start()
        thread.join()

    monkeypatch.setattr(_Loop, "abandon", meanwhile)
    command = opening()

    assert asyncio.run(store.carry_out(command)).key == command.key
    assert not set(gone) & set(store._loops)
    asyncio.run(store.close())
    del gone, loop
    gc.collect()


async def test_a_cancelled_task_stops_no_command_and_takes_no_other_reply(server):
    with FaultProxy(server.port) as proxy:
        store = AsyncRedisStore(f"redis://127.0.0.1:{proxy.port}")
        await store.carry_out(Read(make_key("own", "warm")))
        commands = [opening() for _ in range(10)]
        proxy.hold()
        tasks = [asyncio.create_task(store.carry_out(command)) for command in commands]
        await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        await asyncio.sleep(0)
        proxy.release()

        assert [there(await task).key for task in tasks[1::2]] == [one.key for one in commands[1::2]]
        assert all([there(await store.carry_out(Read(one.key))).attempt == A for one in commands])
        await store.close()


def test_commands_of_concurrent_threads_share_pipelines(server):
    """While one waits for its answer the others gather, and go together when it has come."""
    with FaultProxy(server.port) as proxy, ThreadPoolExecutor(20) as pool:
        store = RedisStore(f"redis://127.0.0.1:{proxy.port}")
        store.carry_out(Read(make_key("own", "warm")))
        proxy.sent.clear()
        proxy.hold()
        futures = [pool.submit(store.carry_out, opening()) for _ in range(20)]
        until(lambda: len(store._process.queue._queue) == 19)
        proxy.release()

        assert all(future.result().attempt == A for future in futures)
        assert len(proxy.sent) == 2
        store.close()


def in_child(url: str, store: RedisStore, text: str, answer) -> None:
    answer.send(store.carry_out(opening(text, by=B)).attempt)


def test_a_forked_child_has_connections_of_its_own(server, store):
    held = store.carry_out(opening("forked"))
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_child, args=("", store, "forked", theirs))
    child.start()
    child.join(20)

    assert ours.recv() == A
    assert there(store.carry_out(settling(held))).state is State.COMPLETED
