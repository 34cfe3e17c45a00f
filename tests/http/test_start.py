"""What an adapter does when its application starts: it declares its operations and checks the store."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from flask import Flask
from litestar import Litestar

import tests.django_settings  # noqa: F401
from samekey import AsyncGuard, Guard, Keyed, Misconfigured, Opaque, Policy
from samekey.http import Endpoint, rules
from samekey.http.asgi import SamekeyMiddleware as AsgiMiddleware
from samekey.http.fastapi import samekey_route
from samekey.http.flask import Samekey
from samekey.http.litestar import SamekeyPlugin
from samekey.http.webhook import Webhook
from samekey.http.wsgi import SamekeyMiddleware as WsgiMiddleware
from samekey.stores.memory import AsyncMemoryStore, MemoryStore

ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True)
NAMED = Endpoint(boundary=Opaque(), single_tenant=True, operation="charge", aliases=["pay"])


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("not asked")


def django_middleware(guard: Any, endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.conf import settings

    from samekey.http.django import SamekeyMiddleware

    monkeypatch.setattr(settings, "SAMEKEY", {"guard": guard, "endpoint": endpoint}, raising=False)
    SamekeyMiddleware(lambda asked: None)


def django_view(guard: Any, endpoint: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from samekey.http.django import guarded

    guarded(guard, endpoint)(lambda asked: None)


SYNC = {
    "wsgi": lambda guard, endpoint, _: WsgiMiddleware(lambda *_: [], guard=guard, endpoint=endpoint),
    "flask": lambda guard, endpoint, _: Samekey(Flask(__name__), guard=guard, endpoint=endpoint),
    "django": django_middleware,
    "django view": django_view,
}
ASYNC = {
    "asgi": lambda guard, endpoint, _: AsgiMiddleware(nothing, guard=guard, endpoint=endpoint),
    "fastapi": lambda guard, endpoint, _: samekey_route(guard=guard, endpoint=endpoint),
    "litestar": lambda guard, endpoint, _: SamekeyPlugin(guard=guard, endpoint=endpoint),
}


def found(guard: Any) -> set[str]:
    return {one.name for one in guard.declared() if one.by == "http"}


@pytest.mark.parametrize("make", [*SYNC, *ASYNC])
def test_an_adapter_declares_its_operations_before_the_first_request(make: str, monkeypatch: pytest.MonkeyPatch):
    def guard_of(endpoint: Any) -> Any:
        guard = Guard("memory://") if make in SYNC else AsyncGuard("memory://")
        ({**SYNC, **ASYNC}[make])(guard, endpoint, monkeypatch)
        return guard

    assert {"PATCH /*", "POST /*"} <= found(guard_of(ENDPOINT))
    named = guard_of(NAMED)
    assert "charge" in found(named)
    assert any(one.covers("pay") for one in named.declared())
    assert "* /*" in found(guard_of(lambda request: ENDPOINT))


def test_rules_of_views_that_come_after_the_adapter_are_declared():
    guard = Guard("memory://")
    Samekey(Flask(__name__), guard=guard, endpoint=ENDPOINT)

    @rules(own := Endpoint(boundary=Opaque(), single_tenant=True, operation="refund-of-a-view"))
    def view() -> None: ...

    assert own.operation in found(guard)


def test_a_webhook_is_declared():
    guard = Guard("memory://")
    Webhook(guard, "stripe", boundary=Opaque(), verify=bool, event_id=str)

    assert [(one.name, one.by, one.payload) for one in guard.declared()] == [("stripe", "webhook", "event id")]


def test_rules_that_cannot_work_are_refused_at_start():
    """A window longer than the retention: the first request would have been the first to see it."""
    short = Endpoint(boundary=Keyed(3600), single_tenant=True, policy=Policy(retention=60))

    with pytest.raises(Misconfigured, match="retention"):
        WsgiMiddleware(lambda *_: [], guard=Guard("memory://"), endpoint=short)


# -- the store is checked --------------------------------------------------------------------------------------------


class Untabled(MemoryStore):
    checks = 0

    def health(self) -> Any:
        self.checks += 1
        raise Misconfigured("the tables are missing: samekey migrate --store ...")


class AsyncUntabled(AsyncMemoryStore):
    async def health(self) -> Any:
        raise Misconfigured("the tables are missing: samekey migrate --store ...")


@pytest.mark.parametrize("make", SYNC)
def test_a_sync_application_with_a_broken_store_does_not_start(make: str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Misconfigured, match="samekey migrate"):
        SYNC[make](Guard(Untabled()), ENDPOINT, monkeypatch)


@pytest.mark.parametrize("make", [*SYNC, *ASYNC])
def test_an_application_without_its_driver_does_not_start(make: str, monkeypatch: pytest.MonkeyPatch):
    from samekey.guard import store_urls

    def missing(dotted: str) -> Any:
        raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")

    monkeypatch.setattr(store_urls, "import_module", missing)
    guard = Guard("postgresql://db/app") if make in SYNC else AsyncGuard("postgresql://db/app")
    with pytest.raises(Misconfigured, match=r"pip install 'samekey\[postgres\]'"):
        ({**SYNC, **ASYNC}[make])(guard, ENDPOINT, monkeypatch)


async def lifespan(app: Any) -> list[Any]:
    """What the application answers when the server starts it."""
    sent: list[Any] = []
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if "message" in message:
            sent.append(message["message"])

    try:
        await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    except (Misconfigured, ExceptionGroup):
        pass
    return sent


@pytest.mark.parametrize("make", ["asgi", "fastapi", "fastapi router", "litestar"])
async def test_an_asgi_application_with_a_broken_store_does_not_start(make: str):
    guard = AsyncGuard(AsyncUntabled())
    app: Any = FastAPI()
    if make == "asgi":
        app = AsgiMiddleware(app, guard=guard, endpoint=ENDPOINT)
    elif make == "fastapi":
        samekey_route(guard=guard, endpoint=ENDPOINT, app=app)
    elif make == "fastapi router":
        samekey_route(guard=guard, endpoint=ENDPOINT, router=(router := APIRouter()))
        app.include_router(router)
    else:
        app = Litestar(plugins=[SamekeyPlugin(guard=guard, endpoint=ENDPOINT)])

    sent = await lifespan(app)

    assert sent[0] == "lifespan.startup.failed"
    assert "samekey migrate" in sent[1]


async def test_an_asgi_application_starts_and_is_checked_once():
    guard = AsyncGuard("memory://")
    checked: list[Any] = []
    check = guard.check

    async def counted() -> Any:
        checked.append(1)
        return await check()

    guard.check = counted  # type: ignore[method-assign]
    for _ in range(2):
        app = AsgiMiddleware(FastAPI(), guard=guard, endpoint=ENDPOINT)
        assert (await lifespan(app))[0] == "lifespan.startup.complete"

    assert checked == [1]
