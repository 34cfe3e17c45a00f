"""The registry of operations, and `check()`: what a guard can tell at start, before the first call."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import pytest

from samekey import Asks, AsyncGuard, Atomic, Guard, Misconfigured, Opaque, Policy, StillUnknown, StoreUnavailable
from samekey.guard.operations import OPERATIONS_MAX, Declared
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing.faulty import AsyncFaultyStore, Fault, FaultyStore


async def done(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made


def lookup(record: Any) -> StillUnknown:
    return StillUnknown()


def names(guard: Any) -> dict[str, str]:
    return {one.name: one.by for one in guard.declared()}


def test_each_way_to_declare_an_operation_is_in_the_registry():
    guard = Guard("memory://")
    asks = Asks(lookup)

    @guard.once(name="charge", key="order_id", boundary=asks, policy=Policy(lease=7), aliases=["pay"])
    def charge(order_id: str) -> str:
        return order_id

    @guard.once(key="order_id")
    def unnamed(order_id: str) -> str:
        return order_id

    guard.run("mail", int, key="m-1", payload={})
    guard.run_many("mails", int, ["1"], key=str)
    guard.hold("export", key="e-1", payload={})
    guard.operation("queue", boundary=Opaque())

    found = {one.name: one for one in guard.declared()}
    nameless = next(name for name in found if name.endswith("unnamed"))
    assert {name: one.by for name, one in found.items()} == {
        "charge": "decorator",
        nameless: "decorator",
        "mail": "run",
        "mails": "run",
        "export": "hold",
        "queue": "adapter",
    }
    declared = found["charge"]
    assert (declared.boundary, declared.lookup, declared.aliases) == (asks, lookup, ("pay",))
    assert (declared.policy and declared.policy.lease, declared.named, declared.payload) == (7, True, "arguments")
    assert (found[nameless].named, found["mail"].payload, found["mail"].lookup) == (False, "payload", None)


def test_an_async_guard_and_a_guard_on_a_connection_have_the_same_registry():
    guard = AsyncGuard("memory://")
    guard.operation("queue", boundary=Opaque())

    assert names(guard) == {"queue": "adapter"}


def test_the_registry_is_bounded():
    """Names are code, not data: a program that makes them of data must not fill the memory."""
    guard = Guard("memory://")
    for number in range(OPERATIONS_MAX + 10):
        guard.run(f"mail-{number}", int, key="m-1", payload={})

    assert len(guard.declared()) == OPERATIONS_MAX


def test_an_entry_covers_its_name_its_aliases_and_what_its_star_stands_for():
    plain = Declared("charge", "run", aliases=("pay",))
    routes = Declared("POST /*", "http", aliases=("charge",))
    chosen = Declared("* /*", "http")

    assert [plain.covers(name) for name in ("charge", "pay", "charges", "")] == [True, True, False, False]
    assert [routes.covers(name) for name in ("POST /a/{}", "POST /", "PATCH /a", "charge")] == [True, True, False, True]
    assert [chosen.covers(name) for name in ("POST /a", "PUT /b.c", "charge")] == [True, True, False]


def test_entries_that_come_later_are_read_with_the_registry():
    guard = Guard("memory://")
    later: list[Declared] = []
    guard.declare_later(lambda: later)
    assert guard.declared() == []

    later.append(Declared("refund", "http"))
    assert names(guard) == {"refund": "http"}


# -- check() ---------------------------------------------------------------------------------------------------------

both = pytest.mark.parametrize("colour", ["sync", "async"])


def guard_on(colour: str, *faults: Fault, **options: Any) -> Any:
    store = MemoryStore()
    if colour == "sync":
        return Guard(FaultyStore(store, faults), **options)
    return AsyncGuard(AsyncFaultyStore(AsyncMemoryStore(store), faults), **options)


@both
async def test_check_opens_the_store_and_returns_its_health(colour: str):
    health = await done(guard_on(colour).check())

    assert health.store == "memory://"


@both
async def test_a_server_that_does_not_answer_at_start_is_one_warning_and_an_event(
    colour: str, caplog: pytest.LogCaptureFixture
):
    events: list[Any] = []
    guard = guard_on(colour, Fault("health", times=2), hooks=[events.append, lambda event: 1 / 0])
    with caplog.at_level(logging.WARNING, "samekey"):
        assert await done(guard.check()) is None
        assert await done(guard.check()) is None

    warnings = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "did not answer at start" in warnings[0].getMessage()
    assert [(one.name, one.detail) for one in events] == [("store_unreachable", "StoreUnavailable")]
    assert (await done(guard.check())).store == "memory://"


@pytest.mark.parametrize("kind", [Guard, AsyncGuard])
async def test_a_missing_driver_is_misconfigured(kind: Any, monkeypatch: pytest.MonkeyPatch):
    import sys

    for name in [name for name in sys.modules if name.partition(".")[0] == "pymysql" or "samekey.stores.mysql" in name]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if "samekey.drivers.mysql" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pymysql", None)

    with pytest.raises(Misconfigured, match=r"pip install 'samekey\[mysql\]'"):
        await done(kind("mysql://localhost/app").check())


@both
async def test_a_store_that_is_not_as_it_must_be_is_misconfigured(colour: str):
    guard = guard_on(colour)

    def health() -> Any:
        raise Misconfigured("the tables are missing: samekey migrate --store ...")

    guard.store.health = health
    with pytest.raises(Misconfigured, match="samekey migrate"):
        await done(guard.check())


@both
async def test_a_closed_guard_is_not_checked(colour: str):
    guard = guard_on(colour)
    await done(guard.check())
    await done(guard.close())

    with pytest.raises(StoreUnavailable, match="was closed"):
        await done(guard.check())


def test_atomic_is_in_the_registry_with_its_boundary():
    guard = Guard("memory://")
    guard.once(name="order", key="key", boundary=Atomic("db"))(lambda db, key: key)

    assert guard.declared()[0].boundary == Atomic("db")
