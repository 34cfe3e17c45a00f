"""One failure ends the commands of many callers: each of them gets an exception of its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from samekey import AsyncGuard, Guard
from samekey.core.errors import RecordUnreadable, StoreUnavailable
from samekey.stores.postgres import AsyncPostgresStore, PostgresStore
from tests.servers.postgres.helpers import sql, until
from tests.servers.proxy import FaultProxy
from tests.stores.reports import assert_apart

pytestmark = pytest.mark.slow

NAMES = [f"customer {number}" for number in range(20)]


@pytest.fixture
def proxy(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    monkeypatch.setattr("samekey.stores.postgres._batches.REASK_SECONDS", 0.1)
    port = re.search(r":(\d+)/", url)
    assert port
    with FaultProxy(int(port[1])) as running:
        yield running


@pytest.fixture
def address(url: str, proxy: FaultProxy) -> str:
    return re.sub(r":\d+/", f":{proxy.port}/", url)


def shop(guard: Guard, customer: str) -> BaseException:
    """What the guard raises for this customer, called while the customer's own exception is being handled."""
    try:
        raise LookupError(customer)
    except LookupError:
        try:
            guard.run("shop", lambda: customer, key=customer, payload=1)
        except Exception as error:
            return error
    raise AssertionError("the server cannot be reached")


async def async_shop(guard: AsyncGuard, customer: str) -> BaseException:
    async def effect() -> str:
        return customer

    try:
        await guard.run("shop", effect, key=customer, payload=1)
    except Exception as error:
        return error
    raise AssertionError("the server cannot be reached")


def test_each_thread_gets_an_exception_of_its_own(address, proxy):
    """One reply is lost for all callers of a batch, and no new connection can be made for any of them."""
    store = PostgresStore(address)
    with Guard(store) as guard, ThreadPoolExecutor(len(NAMES)) as pool:
        guard.run("shop", lambda: 1, key="warm", payload=1)
        proxy.hold()
        waiting = [pool.submit(shop, guard, name) for name in NAMES]
        until(lambda: len(store._connections().claims._queue) == len(NAMES) - 1)
        proxy.target = ("127.0.0.1", 1)
        proxy.cut()
        proxy.release()
        errors = [(name, one.result()) for name, one in zip(NAMES, waiting, strict=True)]

    assert {type(error) for _, error in errors} == {StoreUnavailable}
    assert all(error.__cause__ is not None for _, error in errors)
    assert_apart(errors)


async def test_each_task_gets_an_exception_of_its_own(address, proxy):
    async with AsyncGuard(AsyncPostgresStore(address)) as guard:

        async def warm() -> int:
            return 1

        await guard.run("shop", warm, key="warm", payload=1)
        proxy.hold()
        waiting = [asyncio.create_task(async_shop(guard, name)) for name in NAMES]
        await asyncio.sleep(0)
        proxy.target = ("127.0.0.1", 1)
        proxy.cut()
        proxy.release()
        errors = [(name, await one) for name, one in zip(NAMES, waiting, strict=True)]

    assert {type(error) for _, error in errors} == {StoreUnavailable}
    assert_apart(errors)


def test_a_damaged_record_is_reported_to_its_caller_alone(address, url, proxy):
    """The leader reads the replies of all callers: an error that it meets there belongs to one of them."""
    store = PostgresStore(address)
    with Guard(store) as guard, ThreadPoolExecutor(len(NAMES)) as pool:
        for name in NAMES:
            guard.run("shop", lambda: 1, key=name, payload=1)
        sql(url, "UPDATE samekey_records SET moves = '{'")
        proxy.hold()
        waiting = [pool.submit(shop, guard, name) for name in NAMES]
        until(lambda: len(store._connections().claims._queue) == len(NAMES) - 1)
        proxy.release()
        errors = [(name, one.result()) for name, one in zip(NAMES, waiting, strict=True)]

    assert {type(error) for _, error in errors} == {RecordUnreadable}
    assert_apart(errors)
