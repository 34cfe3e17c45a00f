"""What a user meets: once, run, current, answer, peek, aliases, attributes, and what is refused at decoration."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import pickle
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import samekey
from samekey import (
    Asks,
    AsyncGuard,
    Guard,
    Keyed,
    KeyReused,
    Misconfigured,
    NotDone,
    Policy,
    Refused,
    State,
    current,
)
from tests.guard.helpers import Ledger, Place, Seen, Side, Thread

# -- once -----------------------------------------------------------------------------------------------------


def test_a_decorated_function_keeps_its_signature_name_and_doc(side: Side):
    def charge(order_id: str, amount: int = 200, *, note: str = "") -> str:
        """Charge the order."""
        return order_id

    guarded = side.once(name="charge", key="order_id")(charge)
    guarded = getattr(guarded, "guarded", guarded)

    assert inspect.signature(guarded) == inspect.signature(charge)
    assert (guarded.__doc__, guarded.__name__, guarded.__qualname__) == (
        "Charge the order.",
        "charge",
        charge.__qualname__,
    )
    assert inspect.unwrap(guarded) in (charge, inspect.unwrap(guarded.__wrapped__))
    assert guarded.operation.name == "charge"


def test_the_default_name_is_module_and_qualname(side: Side):
    @side.once(key="order_id")
    def charge(order_id: str) -> str:
        return order_id

    charge("o-1")
    record = charge.peek("o-1")
    assert record.key.operation.startswith(f"{__name__}:")
    assert record.key.operation.endswith("charge")


def test_answer_tells_more_than_the_result(side: Side):
    @side.once(name="charge", key="order_id")
    def charge(order_id: str) -> str:
        return "receipt"

    first, again = charge.answer("o-1"), charge.answer("o-1")

    assert (first.result, first.state, first.replayed, first.key) == ("receipt", State.COMPLETED, False, "o-1")
    assert (again.result, again.replayed, again.token) == ("receipt", True, first.token)
    assert (first.attempts, first.recorded, first.guarded) == (1, True, True)


def test_peek_looks_and_changes_nothing(side: Side, ledger: Ledger):
    @side.once(name="charge", key="order_id")
    def charge(order_id: str) -> int:
        return ledger.add()

    assert charge.peek("o-1") is None
    charge("o-1")
    before = charge.peek("o-1")
    after = charge.peek("o-1")
    assert before.state is State.COMPLETED
    assert after.version == before.version
    assert len(ledger) == 1


def test_peek_takes_every_key_that_run_takes(place: Place):
    guard = place.guard()
    for key in ("a", 7, ("a", "b"), ["c", 1]):
        guard.run("charge", lambda: 1, key=key, payload={})

        assert guard.peek("charge", key) is not None


def test_methods_leave_self_out_of_the_payload(side: Side, ledger: Ledger):
    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        def charge(self, order_id: str, amount: int = 1) -> str:
            ledger.add()
            return f"{self.name} {order_id}"

    guarded = side.once(name="charge", key="order_id")(Shop.charge)
    one, other = Shop("one"), Shop("other")

    assert [guarded(one, "o-1"), guarded(other, "o-1"), guarded(one, order_id="o-1")] == ["one o-1"] * 3
    assert len(ledger) == 1
    with pytest.raises(KeyReused, match="amount"):
        guarded(one, "o-1", 2)


def test_methods_classmethods_and_staticmethods_work_when_once_is_next_to_the_function(place: Place, ledger: Ledger):
    guard = place.guard()

    class Shop:
        @guard.once(name="method", key="order_id")
        def method(self, order_id: str) -> str:
            ledger.add()
            return f"method {order_id}"

        @classmethod
        @guard.once(name="classmethod", key="order_id")
        def of_class(cls, order_id: str) -> str:
            ledger.add()
            return f"{cls.__name__} {order_id}"

        @staticmethod
        @guard.once(name="staticmethod", key="order_id")
        def static(order_id: str) -> str:
            ledger.add()
            return f"static {order_id}"

    shop = Shop()
    for _ in range(2):
        assert shop.method("o-1") == Shop.method(shop, "o-1") == "method o-1"
        assert Shop.of_class("o-1") == shop.of_class("o-1") == "Shop o-1"
        assert Shop.static("o-1") == shop.static(order_id="o-1") == "static o-1"
    assert len(ledger) == 3
    assert shop.method.answer("o-1").replayed
    of_class = () if sys.version_info < (3, 13) else (Shop,)  # classmethod no longer hands its class on
    assert Shop.of_class.answer(*of_class, "o-1").replayed
    assert Shop.static.answer("o-1").replayed
    assert shop.method.peek("o-1") is not None


def test_a_bound_method_shows_the_signature_without_self(place: Place):
    """Frameworks look at it: a `self` in there would become a request parameter."""
    guard = place.guard()

    class Shop:
        @guard.once(name="method", key="order_id")
        def method(self, order_id: str) -> str:
            return order_id

        def plain(self, order_id: str) -> str:
            return order_id

    assert inspect.signature(Shop().method) == inspect.signature(Shop().plain)
    assert inspect.signature(Shop.method) == inspect.signature(Shop.plain)


async def test_async_methods_work_too_and_frameworks_see_that_they_are_async(place: Place, ledger: Ledger):
    guard = place.async_guard()

    class Shop:
        @guard.once(name="method", key="order_id")
        async def method(self, order_id: str) -> str:
            ledger.add()
            return order_id

        @classmethod
        @guard.once(name="classmethod", key="order_id")
        async def of_class(cls, order_id: str) -> str:
            ledger.add()
            return order_id

    shop = Shop()
    assert [await shop.method("o-1"), await shop.method("o-1"), await Shop.of_class("o-2")] == ["o-1", "o-1", "o-2"]
    assert len(ledger) == 2
    assert (await shop.method.answer("o-1")).replayed
    assert await shop.method.peek("o-1") is not None


def test_frameworks_see_that_a_guarded_async_function_is_async(place: Place):
    """Starlette and FastAPI ask one of these before they await; a wrong no sends it to a thread."""
    guard = place.async_guard()

    @guard.once(name="charge", key="order_id")
    async def charge(order_id: str) -> str:
        return order_id

    asked = (
        inspect.iscoroutinefunction(charge),
        asyncio.iscoroutinefunction(charge),
        inspect.iscoroutinefunction(type(charge).__call__),  # what Starlette falls back to
    )
    assert any(asked)


def test_partials_and_callable_objects_need_a_name(place: Place, ledger: Ledger):
    def charge(shop: str, order_id: str) -> int:
        return ledger.add()

    class Charge:
        def __call__(self, order_id: str) -> int:
            return ledger.add()

    guard = place.guard()
    for function in (functools.partial(charge, "a"), Charge()):
        with pytest.raises(TypeError, match="name="):
            guard.once(key="order_id")(function)

    of_a = guard.once(name="of a", key="order_id")(functools.partial(charge, "a"))
    of_object = guard.once(name="object", key="order_id")(Charge())
    assert [of_a("o-1"), of_a("o-1"), of_object("o-1"), of_object("o-1")] == [1, 1, 2, 2]


def test_a_callable_that_does_not_tell_its_parameters_is_refused(place: Place):
    with pytest.raises(Misconfigured, match=r"max.*parameters.*function of your own"):
        place.guard().once(name="largest", key=lambda *given: "k")(max)


def test_generators_are_refused(place: Place):
    def steps(order_id: str) -> Iterator[str]:
        yield order_id

    async def asteps(order_id: str) -> AsyncIterator[str]:
        yield order_id

    for guard in (place.guard(), place.async_guard()):
        for function in (steps, asteps):
            with pytest.raises(Misconfigured, match="generator"):
                guard.once(name="steps", key="order_id")(function)


def test_once_above_staticmethod_or_classmethod_is_refused_with_the_way_to_do_it(place: Place):
    guard = place.guard()
    for kind in (staticmethod, classmethod):
        with pytest.raises(TypeError, match="below"):
            guard.once(name="charge", key="order_id")(kind(lambda order_id: order_id))


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": "order"},
        {"key": ("order_id", "nope")},
        {"key": "nope.id"},
        {"key": "*"},
        {"key": "note.*.id"},
        {"key": ("order_id", "note.*")},
        {"key": "note..id"},
        {"key": "order_id", "tenant": "*"},
        {"key": "order_id", "tenant": "note.*"},
        {"key": ()},
        {"key": ""},
        {"key": 7},
        {"key": "order_id", "ignore": {"nope"}},
        {"key": "order_id", "ignore": {"nope.deep"}},
        {"key": "order_id", "ignore": "note"},
        {"key": "order_id", "tenant": "shop"},
        {"key": "order_id", "boundary": samekey.Atomic("session")},
    ],
    ids=str,
)
def test_unknown_names_are_a_typeerror_at_decoration(place: Place, wrong: dict[str, Any]):
    def charge(order_id: str, note: str = "") -> str:
        return order_id

    with pytest.raises(TypeError):
        place.guard().once(name="charge", **wrong)(charge)


@pytest.mark.parametrize(
    "wrong",
    [
        {"boundary": "opaque"},
        {"boundary": samekey.Opaque},
        {"name": ""},
        {"name": "x" * 300},
        {"name": "a\nb"},
        {"boundary": Keyed(window=100_000)},
        {"policy": Policy(retention=10), "boundary": Keyed(window=11)},
    ],
    ids=str,
)
def test_rules_that_cannot_work_are_refused_at_decoration(place: Place, wrong: dict[str, Any]):
    def charge(order_id: str) -> str:
        return order_id

    with pytest.raises(samekey.CallerError):
        place.guard().once(**{"name": "charge", "key": "order_id", **wrong})(charge)


def test_a_lookup_that_is_not_callable_is_refused():
    with pytest.raises(Misconfigured, match="lookup"):
        Asks("find")  # type: ignore[arg-type]


# -- current ----------------------------------------------------------------------------------------------------


def test_current_is_the_hold_of_the_effect_and_only_there(side: Side):
    seen: list[Any] = []

    def effect() -> str:
        held = current()
        seen.append(held)
        assert (held.key, held.tenant) == ("o-1", "ann")
        assert held.seconds_left > 0
        return str(held.token)

    answer = side.run("charge", effect, key="o-1", payload={}, tenant="ann")

    assert answer.result == str(answer.token)
    with pytest.raises(Misconfigured, match="inside an effect"):
        current()
    assert "o-1" not in repr(seen[0])  # a key may be personal data


async def test_current_is_each_tasks_own(place: Place):
    guard, all_inside = place.async_guard(), asyncio.Barrier(20)

    async def effect() -> str:
        await all_inside.wait()
        return str(current().key)

    answers = await asyncio.gather(*(guard.run("op", effect, key=f"k{n}", payload={}) for n in range(20)))

    assert [answer.result for answer in answers] == [f"k{n}" for n in range(20)]


def test_current_is_each_threads_own(place: Place):
    guard = place.guard()
    threads = [
        Thread(lambda n=n: guard.run("op", lambda: current().key, key=f"k{n}", payload={}).result)  # type: ignore[misc]
        for n in range(10)
    ]

    assert [thread.result() for thread in threads] == [f"k{n}" for n in range(10)]


# -- run, aliases, attributes, hooks ------------------------------------------------------------------------------


def test_an_alias_answers_for_the_old_name(place: Place, colour: str, ledger: Ledger):
    old, new = place.side(colour), place.side(colour)

    @old.once(name="old", key="order_id")
    def before(order_id: str, amount: int = 1) -> int:
        return ledger.add()

    @new.once(name="new", key="order_id", aliases=["older", "old"])
    def after(order_id: str, amount: int = 1) -> int:
        return ledger.add()

    before("o-1")
    assert after.answer("o-1").replayed
    with pytest.raises(KeyReused, match="amount"):
        after("o-1", 2)
    after("o-2")
    assert len(ledger) == 2
    assert place.look("old", "o-2") is None
    assert [after.peek(key).key.operation for key in ("o-1", "o-2")] == ["old", "new"]  # looks where the call looks
    assert after.peek("o-3") is None


def test_old_code_beside_a_rename_does_not_see_what_was_claimed_under_the_new_name(place: Place, ledger: Ledger):
    """The window of a rolling deploy: aliases look back, nobody looks ahead. Finish the old processes first."""
    old, new = place.guard(), place.guard()
    before = old.once(name="old", key="order_id")(lambda order_id: ledger.add())
    after = new.once(name="new", key="order_id", aliases=["old"])(lambda order_id: ledger.add())

    after("o-1")
    before("o-1")

    assert len(ledger) == 2


@pytest.mark.parametrize(
    "today",
    [{"name": "new"}, {"key": ("shop", "order_id")}, {"tenant": "shop"}, {"tenant": "shop", "aliases": ["old"]}],
    ids=["name", "key", "tenant", "tenant with an alias"],
)
def test_a_deploy_that_makes_keys_of_something_else_starts_anew(place: Place, ledger: Ledger, today: dict[str, Any]):
    """A window: a key is its operation, its tenant and its text, and an alias speaks for the operation alone."""
    rules: dict[str, Any] = {"name": "charge", "key": "order_id"}
    before = place.guard().once(**rules | {"name": "old" if "aliases" in today else "charge"})
    after = place.guard().once(**rules | today)

    for deployed in (before, after):
        deployed(lambda shop, order_id: ledger.add())("ann", "o-1")

    assert len(ledger) == 2


def test_an_alias_that_is_free_or_in_doubt_is_carried_on_under_the_old_name(place: Place, colour: str):
    """Not claimed a second time under the new name: that would be two keys for one intent."""
    old, new = place.side(colour), place.side(colour)
    for key, error in (("free", NotDone()), ("doubt", ValueError())):
        with pytest.raises(type(error)):
            old.run("old", lambda error=error: (_ for _ in ()).throw(error), key=key, payload={"order_id": key})  # type: ignore[misc]

    @new.once(name="new", key="order_id", aliases=["old"])
    def after(order_id: str) -> str:
        return "done"

    assert after("free") == "done"
    with pytest.raises(samekey.InDoubt, match=r"old doubt|new doubt"):
        after("doubt")
    assert place.peek("old", "free").state is State.COMPLETED
    assert place.look("new", "free") is None
    assert place.look("new", "doubt") is None


def test_attributes_are_kept_with_the_record(place: Place, side: Side):
    side.run("charge", lambda: 1, key="o-1", payload={}, attributes={"region": "eu", "client": "1.2"})

    assert place.peek("charge", "o-1").attributes == (("client", "1.2"), ("region", "eu"))


@pytest.mark.parametrize(
    "attributes",
    [{"a": 1}, {1: "a"}, {"a": "x" * 300}, {f"n{n}": "" for n in range(20)}, {"a": "\ud800"}, {"\udfff": "a"}, ["a"]],
    ids=["number", "name", "long", "many", "surrogate", "surrogate-name", "list"],
)
def test_attributes_that_cannot_be_kept_are_refused_before_the_claim(
    place: Place, side: Side, ledger: Ledger, attributes
):
    outcome = Thread(lambda: side.run("charge", ledger.add, key="o-1", payload={}, attributes=attributes)).outcome(3)

    assert isinstance(outcome, Misconfigured)
    assert len(ledger) == 0
    assert Thread(lambda: side.run("charge", ledger.add, key="o-1", payload={})).result(3).result == 1


def test_hooks_hear_what_happened_and_cannot_break_it(place: Place, colour: str, caplog):
    seen = Seen()

    def broken(event):
        raise RuntimeError("a hook")

    side = place.side(colour, hooks=[broken, seen])
    side.run("charge", lambda: 1, key="o-1", payload={})
    side.run("charge", lambda: 1, key="o-1", payload={})

    assert seen.names == ["claimed", "completed", "replayed"]
    assert all("o-1" not in repr(event) for event in seen.events)
    assert "hook raised" in caplog.text


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_guard_is_not_copied_and_says_what_to_do(side: Side, again: Any):
    """As multiprocessing would, with what it hands to a process that it starts anew."""
    with pytest.raises(TypeError, match="make one in each process"):
        again(side.guard)


def test_a_guard_is_a_context_manager_that_closes_its_store(sqlite: Place):
    with Guard(sqlite.url) as guard:
        guard.run("charge", lambda: 1, key="o-1", payload={})

    with pytest.raises(samekey.StoreUnavailable, match="closed"):
        guard.run("charge", lambda: 1, key="o-2", payload={})


async def test_an_async_guard_is_one_too(sqlite: Place):
    async with AsyncGuard(sqlite.url) as guard:
        await guard.run("charge", lambda: asyncio.sleep(0, 1), key="o-1", payload={})

    with pytest.raises(samekey.StoreUnavailable, match="closed"):
        await guard.run("charge", lambda: asyncio.sleep(0, 1), key="o-2", payload={})


def test_errors_travel_between_processes_with_their_facts(side: Side):
    side.run("charge", lambda: 1, key="o-1", payload={"amount": 1})
    with pytest.raises(KeyReused) as told:
        side.run("charge", lambda: 1, key="o-1", payload={"amount": 2})

    again = pickle.loads(pickle.dumps(told.value))
    assert (type(again), again.fields, str(again)) == (KeyReused, ("amount",), str(told.value))
    refused = pickle.loads(pickle.dumps(Refused("stolen", detail=[1])))
    assert (refused.reason, refused.detail) == ("stolen", [1])


def test_importing_samekey_loads_no_driver_and_no_framework():
    import subprocess
    import sys
    from pathlib import Path

    code = "import sys, samekey; print([m for m in ('sqlite3', 'trio', 'anyio', 'asyncio') if m in sys.modules])"
    source = Path(samekey.__file__).parents[1]
    said = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(source)}, capture_output=True, text=True, check=True
    )
    assert "sqlite3" not in said.stdout
    assert "trio" not in said.stdout
    assert "anyio" not in said.stdout


def test_what_looks_at_its_call_finds_no_self_to_be_given():
    """Celery does, and refused `charge.delay(order_id=...)` for the want of one."""
    guard, async_guard = Guard("memory://"), AsyncGuard("memory://")

    class Shop:
        @guard.once(name="charge", key="order_id")
        def charge(self, order_id: str) -> str:
            return order_id

        @async_guard.once(name="charge", key="order_id")
        async def charge_later(self, order_id: str) -> str:
            return order_id

    for guarded in (Shop.charge, Shop().charge, Shop.charge_later, Shop().charge_later):
        assert inspect.getfullargspec(guarded.__call__)[:3] == ([], "args", "kwargs")
        assert list(inspect.signature(guarded).parameters)[-1] == "order_id"
