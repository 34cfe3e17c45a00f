"""The handlers without a broker: identity, both colours, batches, shutdown."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from samekey import (
    CONTENT,
    Asks,
    AsyncGuard,
    Guard,
    Happened,
    Keyed,
    Misconfigured,
    NotDone,
    Opaque,
    Policy,
    Repeatable,
    StoreUnavailable,
    current,
)
from samekey.core.parking import ParkedQuery
from samekey.core.ports import Query
from samekey.messages import Action, AsyncHandler, Handler, Message, Rules, header

NAME = "orders"


def message(key: str = "k1", *, headers: dict[str, str] | None = None, tries: int = 1, **more: Any) -> Message:
    return Message(json.dumps({"key": key, **more}).encode(), headers or {}, "orders-queue", tries)


@pytest.fixture
def guard():
    with Guard("memory://") as guard:
        yield guard


def handler(guard: Guard, function: Any, **options: Any) -> Handler:
    return Handler(guard, function, **{"name": NAME, "key": "key", "boundary": Keyed(), **options})


def verbs(actions: list[Action]) -> list[str]:
    return [action.verb for action in actions]


# -- identity ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "one", "other", "same"),
    [
        ("key", message("a"), message("b"), False),
        ("key", message("a"), message("a"), True),
        ("order.id", message(order={"id": 1}), message(order={"id": 2}), False),
        (("key", "line"), message("a", line=1), message("a", line=2), False),
        (header("Order-Id"), message(headers={"order-id": "7"}), message(headers={"ORDER-ID": "7"}), True),
        (CONTENT, message("a", sent=1), message("a", sent=2), True),
        (lambda found: found.value["key"].lower(), message("A"), message("b"), False),
    ],
)
def test_the_key_is_the_logical_one(guard, rule, one, other, same):
    runs: list[Any] = []
    consumer = handler(guard, runs.append, key=rule, ignore=["sent"])

    assert verbs([consumer.process(one), consumer.process(other)]) == ["ack", "ack"]
    assert len(runs) == (1 if same else 2)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "poison: "),
        (b"[1]", "poison: the key 'key' is not in the message: no 'key'"),
        (b'{"key": ""}', "poison: "),
        (b'{"key": null}', "poison: "),
        (b'{"key": "a", "key": "b"}', "poison: "),
        (b"\xff", "poison: the body"),
    ],
)
def test_a_message_without_a_key_is_set_aside_with_the_path(guard, body, why):
    consumer = handler(guard, lambda _: pytest.fail("it ran"))

    action = consumer.process(Message(body, {}, "orders-queue"))

    assert (action.verb, action.kind) == ("dead", "poison")
    assert action.reason.startswith(why)
    (parked,) = guard.store.parked(ParkedQuery())
    assert (parked.kind, parked.key, parked.destination, parked.body) == ("poison", "", "orders-queue", body)


def test_tenants_have_keys_of_their_own(guard):
    runs: list[Any] = []
    consumer = handler(guard, runs.append, tenant="shop")

    for shop in ("a", "b", "a"):
        assert consumer.process(message("k1", shop=shop)).verb == "ack"
    assert len(runs) == 2


def test_replays_are_counted_by_their_source():
    seen: Any = []
    with Guard("memory://", hooks=[seen.append]) as guard:
        consumer = handler(guard, lambda _: None, source=header("sender"))
        for sender in ("till", "web"):
            consumer.process(message(headers={"sender": sender}))
        consumer.process(message("k2"))

    assert {event.source for event in seen} == {"till", "web", "orders-queue"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"key": ()},
        {"key": 7},
        {"key": "a..b"},
        {"boundary": None},
        {"connection": lambda: None},
        {"rules": Rules(), "name": ""},
    ],
)
def test_a_wrong_declaration_is_refused_at_the_start(guard, wrong):
    with pytest.raises((Misconfigured, ValueError, Exception)) as raised:
        handler(guard, lambda _: None, **wrong)
    assert "samekey" in type(raised.value).__module__


def test_an_async_function_needs_the_async_handler(guard):
    async def run(_: Message) -> None: ...

    with pytest.raises(Misconfigured, match="async"):
        handler(guard, run)
    with pytest.raises(Misconfigured, match="AsyncHandler takes AsyncGuard"):
        AsyncHandler(guard, run, name=NAME, key="key", boundary=Keyed())


# -- one message -------------------------------------------------------------------------------------------------------


def test_a_replay_brings_the_stored_result(guard):
    consumer = handler(guard, lambda found: {"paid": found.value["amount"]})

    first, second = consumer.process(message(amount=5)), consumer.process(message(amount=5))

    assert (first.result, first.replayed) == ({"paid": 5}, False)
    assert (second.result, second.replayed) == ({"paid": 5}, True)


def test_the_effect_has_its_hold_and_the_timer_of_the_broker_is_renewed():
    with Guard("memory://", policy=Policy(lease=0.3)) as guard:
        renewed = threading.Event()
        consumer = handler(guard, lambda _: (current().provider_key(), renewed.wait(20)))

        action = consumer.process(message(), extend=renewed.set)

    assert (action.verb, action.result[1]) == ("ack", True)


def test_an_error_of_an_inner_guard_is_written_as_unknown(guard):
    """A handler calls a guarded function whose provider is busy: the message's own record is in doubt, and known so."""

    @guard.once(name="inner", key="key")
    def inner(key: str) -> None:
        raise TimeoutError

    consumer = handler(guard, lambda found: inner(found.value["key"]))
    again = handler(guard, lambda found: inner("k1"), name="second")

    assert consumer.process(message()).row == "7a"
    action = again.process(message("k2"))  # InDoubt of the inner guard leaves this effect
    assert (action.verb, action.row, action.counted) == ("later", "7a", True)


def test_a_message_that_cannot_be_parked_comes_again(guard, monkeypatch):
    consumer = handler(guard, _fails, boundary=Opaque())

    def down(parked: Any) -> None:
        raise StoreUnavailable("down")

    with monkeypatch.context() as patched:
        patched.setattr(guard.store, "park", down)
        action = consumer.process(message())
    again = consumer.process(message())

    assert (action.verb, action.stop) == ("later", True)
    assert (again.verb, again.row) == ("park", "9")


def _fails(_: Message) -> None:
    raise RuntimeError("an ordinary failure")


def test_ten_thousand_ordinary_failures_leave_no_doubt(guard):
    """Under Repeatable; a tenth of them in `make test`."""
    consumer = handler(guard, _fails, boundary=Repeatable())

    actions = [consumer.process(message(f"k{number}")) for number in range(1000)]

    assert {(action.verb, action.counted) for action in actions} == {("later", True)}
    assert {str(one.state) for one in guard.store.list(Query(limit=1000)).records} == {"released"}


def test_a_shutdown_cuts_what_runs_once():
    with Guard("memory://") as guard:
        running, go_on = threading.Event(), threading.Event()

        def run(_: Message) -> None:
            running.set()
            go_on.wait(20)

        consumer, actions = handler(guard, run), list[Action]()
        thread = threading.Thread(target=lambda: actions.append(consumer.process(message())))
        thread.start()
        running.wait(20)
        cut = consumer.cut()
        go_on.set()
        thread.join(20)
        after = consumer.process(message("k2"))

    assert [(one.value["key"], action.verb) for one, action in cut] == [("k1", "silent")]
    assert [(action.verb, action.row) for action in actions] == [("silent", "16")]
    assert (after.verb, after.row, after.counted) == ("later", "16", False)


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boundary", [Keyed(), Repeatable(), Opaque()])
def test_a_batch_handles_each_key_once_and_spares_the_neighbours(guard, boundary):
    runs: list[str] = []

    def run(found: Message) -> Any:
        runs.append(found.value["key"])
        if found.value["key"] == "bad":
            raise NotDone("busy")
        return found.value["key"]

    messages = [message(key) for key in ("a", "b", "a", "bad", "c", "a")]
    messages.insert(2, Message(b"{", {}, "orders-queue"))
    consumer = handler(guard, run, boundary=boundary)

    actions = consumer.process_many(messages)

    assert verbs(actions) == ["ack", "ack", "dead", "ack", "later", "ack", "ack"]
    assert runs == ["a", "b", "bad", "c"]
    assert [actions[number].result for number in (3, 6)] == ["a", "a"]
    assert [actions[number].replayed for number in (0, 3, 6)] == [False, True, True]


def test_a_batch_needs_two_round_trips_for_a_hundred_messages(monkeypatch):
    """One for the claims and one for the settles of each 64."""
    with Guard("memory://") as guard:
        calls: list[int] = []
        inner = guard.store.batch

        def batch(commands: Any) -> Any:
            calls.append(len(commands))
            return inner(commands)

        monkeypatch.setattr(guard.store, "batch", batch)
        consumer = handler(guard, lambda _: None)

        actions = consumer.process_many([message(f"k{number}") for number in range(100)])

    assert verbs(actions) == ["ack"] * 100
    assert sum(calls) == 200
    assert calls[:2] == [64, 36]


# -- async -------------------------------------------------------------------------------------------------------------


def async_handler(guard: AsyncGuard, function: Any, **options: Any) -> AsyncHandler:
    return AsyncHandler(guard, function, **{"name": NAME, "key": "key", "boundary": Keyed(), **options})


async def test_the_async_handler_runs_each_key_once():
    runs: list[str] = []

    async def run(found: Message) -> Any:
        runs.append(current().key)
        await asyncio.sleep(0)
        return found.value["key"]

    async with AsyncGuard("memory://") as guard:
        consumer = async_handler(guard, run)
        first = await asyncio.gather(*(consumer.process(message()) for _ in range(5)))
        again = await consumer.process(message())
        batch = await consumer.process_many([message(key) for key in ("a", "b", "a")])

    assert sorted(verbs(first)) == ["ack"] + ["later"] * 4
    assert (again.verb, again.replayed, again.result) == ("ack", True, "k1")
    assert (verbs(batch), runs) == (["ack"] * 3, ["k1", "a", "b"])


@pytest.mark.parametrize("error", [NotDone("busy"), RuntimeError("x"), asyncio.CancelledError()])
async def test_errors_of_an_async_effect_are_judged(error):
    async def run(_: Message) -> None:
        raise error

    async with AsyncGuard("memory://") as guard:
        action: Any = None
        try:
            action = await async_handler(guard, run).process(message())
        except asyncio.CancelledError:
            assert isinstance(error, asyncio.CancelledError)
        record = await guard.peek(NAME, "k1")

    assert record is not None
    assert str(record.state) == ("released" if isinstance(error, NotDone) else "in_doubt")
    assert action is None or (action.verb, action.counted) == ("later", True)


async def test_a_shutdown_cancels_the_effect_and_answers_for_its_message():
    ended: list[str] = []

    async def run(_: Message) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async with AsyncGuard("memory://") as guard:
        consumer = async_handler(guard, run)
        task = asyncio.ensure_future(consumer.process(message()))
        while not consumer._runs:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        cut = await consumer.cut()
        own = await task

    assert [action.verb for _, action in cut] == ["silent"]
    assert (own.verb, own.row, ended) == ("silent", "16", ["cancelled"])


async def test_the_async_handler_asks_and_parks():
    async with AsyncGuard("memory://") as guard:
        asked = async_handler(guard, _afails, boundary=Asks(lambda _: Happened("found")))
        opaque = async_handler(guard, _afails, name="other", boundary=Opaque())
        actions = [await asked.process(message()), await asked.process(message()), await opaque.process(message())]
        parked = await guard.store.parked(ParkedQuery())

    assert [action.row for action in actions] == ["7b", "2", "7c"]
    assert (actions[1].result, [one.operation for one in parked]) == ("found", ["other"])


async def _afails(_: Message) -> None:
    raise RuntimeError("an ordinary failure")
