"""Webhooks: the event's id is the key, and every end has its answer."""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from samekey import (
    AsyncGuard,
    Atomic,
    Guard,
    InDoubt,
    InProgress,
    Keyed,
    Misconfigured,
    NotDone,
    Opaque,
    Policy,
    Refused,
    Repeatable,
    State,
    current,
)
from samekey.core.boundary import Boundary
from samekey.http import Reply, Request
from samekey.http.webhook import AsyncWebhook, Webhook
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing import AsyncFaultyStore, Fault, FaultyStore
from samekey.testing.clock import ManualClock

SECRET = b"whsec_for_the_tests"


def event(id: Any = "evt_1", *, secret: bytes = SECRET, **more: Any) -> Request:
    body = json.dumps({"id": id, **more}).encode()
    signature = hmac.digest(secret, body, "sha256").hex()
    return Request("POST", "/hooks/stripe", headers=[(b"x-signature", signature.encode())], body=body)


def verify(request: Request) -> bool:
    ours = hmac.new(SECRET, request.body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(ours, request.header("x-signature") or "")


def event_id(request: Request) -> Any:
    return json.loads(request.body)["id"]


class Side:
    """A webhook in one of both colours, and a handler that counts."""

    def __init__(
        self,
        colour: str,
        boundary: Boundary,
        *ends: Any,
        policy: Policy | None = None,
        clock: Any = None,
        faults: Sequence[Fault] = (),
        **more: Any,
    ) -> None:
        self.handled: list[Any] = []
        self._ends = list(ends)
        rules: Any = {"boundary": boundary, "verify": verify, "event_id": event_id, "policy": policy, **more}
        store = MemoryStore(clock)
        faulty, afaulty = FaultyStore(store, faults), AsyncFaultyStore(AsyncMemoryStore(store), faults)
        self.calls = faulty.calls if colour == "sync" else afaulty.calls
        self._sync = Webhook(Guard(faulty), "stripe", **rules) if colour == "sync" else None
        self._async = AsyncWebhook(AsyncGuard(afaulty), "stripe", **rules)

    async def receive(self, request: Request) -> Reply:
        if self._sync is not None:
            return self._sync.receive(request, self._handle)
        return await self._async.receive(request, self._ahandle)

    def _handle(self, request: Request) -> Any:
        self.handled.append(request)
        end = self._ends[min(len(self.handled), len(self._ends)) - 1] if self._ends else None
        if isinstance(end, Exception):
            raise end
        if callable(end):
            return end()
        return object()  # what a handler returns is nobody's answer

    async def _ahandle(self, request: Request) -> Any:
        made = self._handle(request)
        return await made if hasattr(made, "__await__") else made


both = pytest.mark.parametrize("colour", ["sync", "async"])


def said(reply: Reply) -> tuple[int, str]:
    told = json.loads(reply.body or b"{}")
    return reply.status, told.get("event") or str(told["type"]).rpartition("#")[2]


@both
async def test_a_redelivery_is_handled_once(colour: str):
    """Also when the sender wrote the event anew: Stripe counts its own deliveries in the body."""
    side = Side(colour, Opaque())

    assert said(await side.receive(event(pending=2))) == (200, "done")
    assert said(await side.receive(event(pending=1))) == (200, "replayed")
    assert said(await side.receive(event("evt_2"))) == (200, "done")
    assert len(side.handled) == 2


@both
async def test_an_unsigned_event_learns_nothing(colour: str):
    side = Side(colour, Opaque())
    await side.receive(event())

    assert said(await side.receive(event(secret=b"guessed"))) == (401, "bad-signature")
    assert len(side.handled) == 1


@both
async def test_a_check_that_raises_is_a_check_that_failed(colour: str, caplog: pytest.LogCaptureFixture):
    """Libraries raise on a bad signature; and a bug in the check must not become a way around it."""

    def raises(request: Request) -> bool:
        raise ValueError("bad signature")

    side = Side(colour, Opaque(), verify=raises)

    assert said(await side.receive(event())) == (401, "bad-signature")
    assert side.handled == []
    assert "ValueError" in caplog.text


async def forged(request: Request) -> bool:
    return False


async def handled(request: Request) -> None:
    raise AssertionError("never awaited, so never run")


class Checks:
    async def __call__(self, request: Request) -> bool:
        return False


@pytest.mark.parametrize("wrong", [{"boundary": "opaque"}, {"policy": {"retention": 3600}}])
def test_rules_that_cannot_work_are_refused_before_any_event(wrong: dict[str, Any]):
    with Guard("memory://") as guard, pytest.raises(Misconfigured, match=f"{next(iter(wrong))}= takes"):
        Webhook(guard, "hook", **{"boundary": Opaque(), "verify": print, "event_id": print, **wrong})


def test_a_check_of_the_wrong_colour_is_refused_before_any_event():
    """A coroutine is true, whatever it would have said."""
    rules: Any = {"boundary": Repeatable(), "event_id": event_id}
    for wrong in (forged, functools.partial(forged), Checks()):
        with pytest.raises(Misconfigured, match="verify="):
            Webhook(Guard("memory://"), "stripe", verify=wrong, **rules)
    colours: Any = ((Webhook, AsyncGuard("memory://")), (AsyncWebhook, Guard("memory://")))
    for hook, guard in colours:
        with pytest.raises(Misconfigured, match="Guard"):
            hook(guard, "stripe", verify=verify, **rules)
    with pytest.raises(Misconfigured, match="event_id="):
        AsyncWebhook(AsyncGuard("memory://"), "stripe", verify=verify, boundary=Repeatable(), event_id=forged)


def test_a_coroutine_is_no_signature():
    """However it came about: nothing is handled."""
    hook = Webhook(Guard("memory://"), "stripe", boundary=Repeatable(), verify=lambda r: forged(r), event_id=event_id)
    with pytest.raises(Misconfigured, match="AsyncWebhook"):
        hook.receive(event(), lambda request: None)


def test_a_handler_of_the_wrong_colour_is_not_recorded_as_done():
    guard = Guard("memory://")
    hook = Webhook(guard, "stripe", boundary=Repeatable(), verify=verify, event_id=event_id)
    with pytest.raises(Misconfigured, match="AsyncWebhook"):
        hook.receive(event(), handled)
    assert guard.peek("stripe", "evt_1") is None
    with pytest.raises(Misconfigured, match="AsyncWebhook"):
        hook.receive(event(), lambda request: handled(request))
    assert getattr(guard.peek("stripe", "evt_1"), "state", None) is State.RELEASED


async def test_an_async_webhook_takes_a_plain_handler_too():
    hook = AsyncWebhook(AsyncGuard("memory://"), "stripe", boundary=Opaque(), verify=verify, event_id=event_id)
    ran: list[Request] = []

    assert said(await hook.receive(event(), ran.append)) == (200, "done")
    assert len(ran) == 1


@both
@pytest.mark.parametrize("id", [None, "", True, 1.5, {"a": 1}, [], ["a", ""], "x" * 256, "a\nb"])
async def test_an_event_without_an_id_is_refused(colour: str, id: Any, caplog: pytest.LogCaptureFixture):
    """And told in the log: the sender may never send it again."""
    side = Side(colour, Opaque())

    assert said(await side.receive(event(id))) == (400, "event-id-missing")
    assert side.handled == []
    assert "an event of stripe" in caplog.text


@both
async def test_an_event_of_another_shape_has_no_id(colour: str, caplog: pytest.LogCaptureFixture):
    side = Side(colour, Opaque(), event_id=lambda request: json.loads(request.body)["data"]["id"])

    assert said(await side.receive(event())) == (400, "event-id-missing")
    assert "KeyError" in caplog.text


@both
async def test_an_id_is_whatever_a_key_may_be(colour: str):
    """A number; or the sender's name and its number, where two senders count alike."""
    side = Side(colour, Opaque())

    for id in (7, ["shop-1", 7], ["shop-2", 7], "7"):
        await side.receive(event(id))
    assert [json.loads(handled.body)["id"] for handled in side.handled] == [7, ["shop-1", 7], ["shop-2", 7]]


@both
async def test_refused_for_good_is_accepted(colour: str):
    """Sending it again would change nothing."""
    side = Side(colour, Opaque(), Refused("an account we closed"))

    assert [said(await side.receive(event())) for _ in range(2)] == [(200, "refused"), (200, "refused")]
    assert len(side.handled) == 1


class NoSuchCustomer(Exception):
    pass


@both
@pytest.mark.parametrize("boundary", [Opaque(), Keyed(), Repeatable()], ids=lambda one: type(one).__name__)
async def test_what_the_policy_closes_is_refused_for_good(colour: str, boundary: Boundary):
    side = Side(colour, boundary, NoSuchCustomer("ever"), policy=Policy(closes=(NoSuchCustomer,)))

    assert [said(await side.receive(event())) for _ in range(2)] == [(200, "refused"), (200, "refused")]
    assert len(side.handled) == 1


class Inner:
    """A handler that asks another guard, whose effect ends so."""

    def __init__(self, end: Exception) -> None:
        self._end = end
        self._guard = Guard("memory://")

    def _raise(self) -> None:
        raise self._end

    def __call__(self) -> None:
        self._guard.run("mail", self._raise, key="m-1", payload=None)


@both
@pytest.mark.parametrize("end", [Refused("no such address"), ValueError("boom")], ids=["refused", "in doubt"])
async def test_the_end_of_an_inner_effect_is_not_the_end_of_the_event(colour: str, end: Exception):
    """It can run again, and only the sender can bring it again."""
    inner = Inner(end)
    side = Side(colour, Repeatable(), inner, inner, None)

    with pytest.raises(type(end)):
        await side.receive(event())
    with pytest.raises((Refused, InDoubt)):
        await side.receive(event())
    assert said(await side.receive(event())) == (200, "done")


@both
@pytest.mark.parametrize("end", [Refused("no such address"), NotDone("later")], ids=["refused", "not done"])
async def test_an_inner_word_parks_what_nobody_can_tell(colour: str, end: Exception):
    side = Side(colour, Opaque(), Inner(end))

    assert [said(await side.receive(event())) for _ in range(2)] == [(200, "in doubt"), (200, "in doubt")]
    assert len(side.handled) == 1


@both
async def test_an_inner_key_that_is_busy_is_come_back_for(colour: str):
    side = Side(colour, Repeatable(), InProgress("busy", key="m-1", token=1, retry_after=2), None)

    assert said(await side.receive(event())) == (409, "in-progress")
    assert said(await side.receive(event())) == (200, "done")


@both
async def test_a_store_that_is_down_afterwards_has_the_event_sent_again(colour: str, caplog: pytest.LogCaptureFixture):
    """Then the record says what became of it; what the handler raised is in the log."""
    down = [Fault("settle", times=3)]  # as often as a settle is tried within this lease
    side = Side(colour, Opaque(), ValueError("boom"), policy=Policy(lease=0.1), faults=down)

    assert said(await side.receive(event())) == (503, "store-unavailable")
    assert "boom" in caplog.text
    assert said(await side.receive(event())) == (200, "in doubt")
    assert len(side.handled) == 1


@both
async def test_a_failing_event_costs_a_claim_and_a_settle(colour: str):
    """The settle's reply is the record: nothing is read after it."""
    side = Side(colour, Opaque(), ValueError("boom"))

    assert said(await side.receive(event())) == (200, "in doubt")
    assert side.calls == {"open": 1, "settle": 1}


@both
async def test_not_done_comes_again(colour: str):
    side = Side(colour, Opaque(), NotDone("later"), None)

    first = await side.receive(event())
    assert (said(first), dict(first.headers)[b"retry-after"]) == ((503, "not-done"), b"1")
    assert said(await side.receive(event())) == (200, "done")


@both
async def test_in_doubt_is_accepted_and_parked(colour: str, caplog: pytest.LogCaptureFixture):
    """Behind Opaque nobody can tell, and the sender can do nothing about it."""
    side = Side(colour, Opaque(), ValueError("boom"))

    assert [said(await side.receive(event())) for _ in range(2)] == [(200, "in doubt"), (200, "in doubt")]
    assert len(side.handled) == 1
    assert "is in doubt: its handler raised" in caplog.text


@both
async def test_a_hold_that_was_lost_is_sent_again(colour: str):
    """Who lost the key knows nothing about the event: a sender that is told "done" would lose it."""
    clock = ManualClock()

    def lose() -> Any:
        clock.advance(31)
        return current().sending()

    side = Side(colour, Opaque(marked=True), lose, None, clock=clock)

    first = await side.receive(event())
    assert (said(first), dict(first.headers)[b"retry-after"]) == ((409, "in-progress"), b"1")
    assert said(await side.receive(event())) == (200, "done")


@both
@pytest.mark.parametrize(
    ("boundary", "policy"),
    [(Opaque(marked=True), None), (Opaque(), Policy(releases=(ConnectionRefusedError,)))],
    ids=["before the mark", "listed"],
)
async def test_what_is_known_not_to_have_happened_is_sent_again(colour: str, boundary: Boundary, policy: Any):
    """Its key is free and the event is not kept here: the sender has the only copy."""
    side = Side(colour, boundary, ConnectionRefusedError("refused"), None, policy=policy)

    assert said(await side.receive(event())) == (503, "not-done")
    assert said(await side.receive(event())) == (200, "done")


@both
async def test_what_can_run_again_is_sent_again(colour: str):
    side = Side(colour, Repeatable(), ValueError("boom"), None)

    with pytest.raises(ValueError, match="boom"):
        await side.receive(event())
    assert said(await side.receive(event())) == (200, "done")


def test_a_delivery_that_is_running_comes_again_later():
    entered, go = threading.Event(), threading.Event()
    hook = Webhook(
        Guard("memory://"), "stripe", boundary=Opaque(), verify=verify, event_id=event_id, policy=Policy(patience=0)
    )

    def handle(request: Request) -> None:
        entered.set()
        assert go.wait(20)

    first = threading.Thread(target=hook.receive, args=(event(), handle))
    first.start()
    assert entered.wait(20)
    second = hook.receive(event(), handle)
    go.set()
    first.join()

    assert said(second) == (409, "in-progress")
    assert said(hook.receive(event(), handle)) == (200, "replayed")


# -- in the handler's own transaction ----------------------------------------------------------------------------------


@pytest.fixture
def database(tmp_path: Path) -> Iterator[tuple[Guard, sqlite3.Connection]]:
    guard = Guard(f"sqlite:///{tmp_path}/keys.db")
    guard.peek("stripe", "evt_1")  # makes the tables: later the transaction holds the file
    connection = sqlite3.connect(tmp_path / "keys.db", isolation_level=None)
    connection.execute("CREATE TABLE paid (id TEXT)")
    yield guard, connection
    connection.close()
    guard.close()


@pytest.mark.parametrize("boundary", [Atomic("connection"), Repeatable()], ids=lambda one: type(one).__name__)
def test_an_event_is_handled_in_a_transaction_of_the_caller(
    boundary: Boundary, database: tuple[Guard, sqlite3.Connection]
):
    """Record and rows are one commit; what is not committed yet is answered by what the handler said."""
    guard, connection = database
    ends: list[Any] = [ValueError("boom"), NotDone("later"), NoSuchCustomer("ever"), None]
    policy = Policy(closes=(NoSuchCustomer,))

    def handle(request: Request) -> None:
        connection.execute("INSERT INTO paid VALUES ('evt_1')")
        end = ends.pop(0)
        if end is not None:
            raise end

    def receive(id: str) -> tuple[int, str]:
        connection.execute("BEGIN IMMEDIATE")
        try:
            rules: Any = {"boundary": boundary, "verify": verify, "event_id": event_id, "policy": policy}
            return said(Webhook(guard.on(connection), "stripe", **rules).receive(event(id), handle))
        finally:
            connection.execute("COMMIT")

    with pytest.raises(ValueError, match="boom"):
        receive("evt_1")
    assert [receive("evt_1") for _ in range(3)] == [(503, "not-done"), (200, "refused"), (200, "refused")]
    assert [receive("evt_2") for _ in range(2)] == [(200, "done"), (200, "replayed")]
    assert connection.execute("SELECT count(*) FROM paid").fetchone() == (1,)


def test_atomic_needs_the_connection():
    with pytest.raises(Misconfigured, match=r"guard\.on"):
        Webhook(Guard("memory://"), "stripe", boundary=Atomic("connection"), verify=verify, event_id=event_id)


def test_an_event_keeps_its_request_id_and_what_the_webhook_adds():
    guard = Guard("memory://")
    hook = Webhook(
        guard,
        "stripe",
        boundary=Repeatable(),
        verify=verify,
        event_id=event_id,
        attributes=lambda request: {"kind": json.loads(request.body)["type"]},
    )
    sent = event("evt_1", type="paid")
    sent = Request("POST", "/hooks", headers=[*sent.headers, (b"x-request-id", b"req-1")], body=sent.body)

    assert hook.receive(sent, lambda request: None).status == 200

    record = guard.peek("stripe", "evt_1")
    assert record is not None
    assert record.attributes == (("kind", "paid"), ("request_id", "req-1"))
    with pytest.raises(Misconfigured, match="function of the request"):
        Webhook(guard, "x", boundary=Opaque(), verify=verify, event_id=event_id, attributes={"a": "b"})  # type: ignore[arg-type]
