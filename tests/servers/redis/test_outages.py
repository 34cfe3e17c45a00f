"""A server that dies under many callers: each caller gets an exception of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from samekey import AsyncGuard, Guard
from samekey.core.commands import Wait
from samekey.core.errors import RecordUnreadable, StoreUnavailable
from samekey.core.record import Record
from samekey.stores.redis import AsyncRedisStore, RedisStore
from samekey.stores.redis._waiters import Waiters
from samekey.testing.servers import RedisServer, redis_server
from tests.servers.proxy import FaultProxy
from tests.servers.redis.topologies import until
from tests.stores.reports import assert_apart

CALLERS = 20


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    monkeypatch.setattr("samekey.stores.redis._batches.REASK_SECONDS", 0.1)
    with redis_server() as running:
        yield running


@pytest.fixture
def proxy(server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(server.port) as running:
        yield running


def shop(guard: Guard, customer: str) -> BaseException:
    """What the guard raises for this customer, called while the customer's own exception is being handled."""
    try:
        raise LookupError(customer)
    except LookupError:
        try:
            guard.run("shop", lambda: customer, key=customer, payload=1)
        except Exception as error:
            return error
    raise AssertionError("the server is down")


async def async_shop(guard: AsyncGuard, customer: str) -> BaseException:
    async def effect() -> str:
        return customer

    try:
        await guard.run("shop", effect, key=customer, payload=1)
    except Exception as error:
        return error
    raise AssertionError("the server is down")


NAMES = [f"customer {number}" for number in range(CALLERS)]


@pytest.mark.parametrize("how", ["lost", "unreachable"])
def test_each_thread_gets_an_exception_of_its_own(server, proxy, how):
    """One reply is lost for all callers of a batch, and no new connection can be made for any of them."""
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}")
    with Guard(store) as guard, ThreadPoolExecutor(CALLERS) as pool:
        guard.run("shop", lambda: 1, key="warm", payload=1)
        proxy.hold()
        waiting = [pool.submit(shop, guard, name) for name in NAMES]
        until(lambda: len(store._process.queue._queue) == CALLERS - 1)
        server.stop(kill=True)
        if how == "unreachable":
            proxy.target = ("127.0.0.1", 1)
        proxy.release()
        errors = [(name, one.result()) for name, one in zip(NAMES, waiting, strict=True)]
        server.start()

    assert {type(error) for _, error in errors} == {StoreUnavailable}
    assert all(error.__cause__ is not None for _, error in errors)
    assert_apart(errors)


def test_a_damaged_record_is_reported_to_its_caller_without_the_leader_s_frames(server, proxy):
    """The leader of a batch reads the replies of all callers: what it meets there belongs to one of them."""
    store = RedisStore(f"redis://127.0.0.1:{proxy.port}")
    with Guard(store) as guard, ThreadPoolExecutor(CALLERS) as pool:
        for name in NAMES:
            guard.run("shop", lambda: 1, key=name, payload=1)
        for key in server.call("KEYS", "samekey:*:????????????????????????????????"):
            server.call("SETRANGE", key, 200, "{" * 20)
        proxy.hold()
        waiting = [pool.submit(shop, guard, name) for name in NAMES]
        until(lambda: len(store._process.queue._queue) == CALLERS - 1)
        proxy.release()
        errors = [(name, one.result()) for name, one in zip(NAMES, waiting, strict=True)]

    assert {type(error) for _, error in errors} == {RecordUnreadable}
    assert_apart(errors)
    assert all(isinstance(error.__cause__, ValueError) for _, error in errors)  # what the reader met is kept, as a copy


async def test_each_task_gets_an_exception_of_its_own(server, proxy):
    async with AsyncGuard(AsyncRedisStore(f"redis://127.0.0.1:{proxy.port}")) as guard:

        async def warm() -> int:
            return 1

        await guard.run("shop", warm, key="warm", payload=1)
        proxy.hold()
        waiting = [asyncio.create_task(async_shop(guard, name)) for name in NAMES]
        await asyncio.sleep(0)
        server.stop(kill=True)
        proxy.release()
        errors = [(name, await one) for name, one in zip(NAMES, waiting, strict=True)]
        server.start()

    assert {type(error) for _, error in errors} == {StoreUnavailable}
    assert_apart(errors)


async def test_each_waiting_task_gets_an_exception_of_its_own(server, proxy):
    """The waiters of one key share one read: when it fails, it fails for each of them."""
    store = AsyncRedisStore(f"redis://127.0.0.1:{proxy.port}")
    begun, over = asyncio.Event(), asyncio.Event()

    async def slow() -> int:
        begun.set()
        await over.wait()
        return 1

    async def waits(customer: str, held: Record) -> BaseException:
        try:
            await store.wait(Wait(held), 20.0)
        except Exception as error:
            return error
        raise AssertionError("the server is down")

    async with AsyncGuard(store) as guard:
        holder = asyncio.create_task(guard.run("shop", slow, key="held", payload=1))
        await begun.wait()
        held = await guard.peek("shop", "held")
        assert held is not None
        waiting = [asyncio.create_task(waits(name, held)) for name in NAMES]
        waiters = store._loop().waiters
        await asyncio.to_thread(until, lambda: sum(map(_count, list(waiters.values()))) == CALLERS)
        server.stop(kill=True)
        errors = [(name, await one) for name, one in zip(NAMES, waiting, strict=True)]
        server.start()
        over.set()
        await holder

    assert {type(error) for _, error in errors} == {StoreUnavailable}
    assert_apart(errors)


def _count(waiters: Waiters) -> int:
    return len(waiters._futures())
