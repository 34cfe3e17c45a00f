"""Two adapters around each other, with one guard: told at once, and nothing is claimed for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path as django_path
from fastapi import FastAPI
from flask import Flask
from litestar import Litestar, post

import tests.django_settings  # noqa: F401
from samekey import AsyncGuard, Guard, Misconfigured, Opaque, Policy, State, current
from samekey.http import Endpoint, rules
from samekey.http.asgi import SamekeyMiddleware as AsgiMiddleware
from samekey.http.django import guarded
from samekey.http.fastapi import samekey_route
from samekey.http.flask import Samekey
from samekey.http.litestar import SamekeyPlugin
from samekey.http.wsgi import SamekeyMiddleware as WsgiMiddleware
from samekey.testing.http.drivers import Got, Sent, WsgiDriver, asgi_send

ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True)
POST = Sent("POST", "/charges", headers=(("Idempotency-Key", "k"),))

ran: list[int] = []
heard: list[BaseException | None] = []


def charge() -> str:
    ran.append(1)
    return "charged"


def fastapi(guard: Any) -> Any:
    app = FastAPI()
    app.router.route_class = samekey_route(guard=guard, endpoint=ENDPOINT)
    app.post("/charges")(charge)
    app.add_middleware(AsgiMiddleware, guard=guard, endpoint=ENDPOINT)
    return app


def litestar(guard: Any) -> Any:
    plugin = SamekeyPlugin(guard=guard, endpoint=ENDPOINT)
    handler = post("/charges", sync_to_thread=False)(charge)

    async def hear(error: Exception, scope: Any) -> None:  # Litestar answers it, and tells a log of its own
        heard.append(error)

    app: Any = Litestar([handler], plugins=[plugin], openapi_config=None, after_exception=[hear])
    return AsgiMiddleware(app, guard=guard, endpoint=ENDPOINT)


def flask(guard: Any) -> Any:
    app = Flask("shop")
    Samekey(app, guard=guard, endpoint=ENDPOINT)
    Samekey(app, guard=guard, endpoint=ENDPOINT)
    app.post("/charges")(charge)
    return app


def flask_in_wsgi(guard: Any) -> Any:
    app = Flask("shop")
    Samekey(app, guard=guard, endpoint=ENDPOINT)
    app.post("/charges")(charge)
    return WsgiMiddleware(app, guard=guard, endpoint=ENDPOINT)


def django(guard: Any) -> Any:
    @guarded(guard, ENDPOINT)
    def view(request: Any) -> Any:
        return HttpResponse(charge())

    app = get_wsgi_application()
    return lambda environ, start: app({**environ, "samekey.view": view}, start)


def async_django(guard: Any) -> Any:
    @guarded(guard, ENDPOINT)
    async def view(request: Any) -> Any:
        return HttpResponse(charge())

    app = get_asgi_application()
    return lambda scope, receive, send: app({**scope, "samekey.view": view}, receive, send)


def sent(make: Any, guard: Any) -> Got:
    asynchronous = isinstance(guard, AsyncGuard)
    with override_settings(
        ROOT_URLCONF="tests.http.django_async_urls" if asynchronous else "tests.http.django_urls",
        MIDDLEWARE=["samekey.http.django.SamekeyMiddleware"],
        SAMEKEY={"async_guard" if asynchronous else "guard": guard, "endpoint": ENDPOINT},
    ):
        app = make(guard)
        return asyncio.run(asgi_send(app, POST)) if asynchronous else WsgiDriver(app).send(POST)


@pytest.mark.parametrize("make", [fastapi, litestar, flask, flask_in_wsgi, django, async_django])
def test_a_request_that_is_guarded_twice_is_told(make: Any, caplog: Any):
    """Each waited for itself for as long as its patience, and was told 409: nothing ever ran."""
    ran.clear()
    heard.clear()
    guard: Any = AsyncGuard("memory://") if make in (fastapi, litestar, async_django) else Guard("memory://")
    got = sent(make, guard)
    record = guard.peek("POST /charges", "k")
    record = asyncio.run(record) if isinstance(guard, AsyncGuard) else record
    heard.extend((got.error, *(one.exc_info[1] for one in caplog.records if one.exc_info)))

    assert (got.status, ran) == (500, [])
    assert any(isinstance(error, Misconfigured) and "guarded twice" in str(error) for error in heard)
    assert record.state is State.RELEASED


def test_a_view_that_has_reached_out_before_is_not_freed():
    """One guarded view calls another: what the first did is not undone by that."""
    guard = Guard("memory://")

    @guarded(guard, ENDPOINT)
    def inner(request: Any) -> Any:
        return HttpResponse(charge())

    @guarded(guard, ENDPOINT)
    def outer(request: Any) -> Any:
        current().sending()
        return inner(request)

    urls = type("urls", (), {"urlpatterns": [django_path("charges", outer)]})
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[]):
        got = WsgiDriver(get_wsgi_application()).send(POST)
    record = guard.peek("POST /charges", "k")

    assert (got.status, getattr(record, "state", None)) == (500, State.IN_DOUBT)


async def test_a_request_inside_a_request_is_another_one():
    """An application that calls itself with the key of whom it works for waits for itself, and is told so."""
    told: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if not told:
            told.append(0)
            told.append((await asgi_send(guarded_app, POST)).status)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    impatient = Endpoint(boundary=Opaque(), single_tenant=True, policy=Policy(patience=0))
    guarded_app = AsgiMiddleware(app, guard=AsyncGuard("memory://"), endpoint=impatient)

    assert ((await asgi_send(guarded_app, POST)).status, told) == (200, [0, 409])


def test_two_guards_may_stand_around_each_other():
    """Each has its own memory."""
    ran.clear()
    app = Flask("shop")
    Samekey(app, guard=Guard("memory://"), endpoint=Endpoint(boundary=Opaque(), single_tenant=True, operation="inner"))
    app.post("/charges")(charge)
    driver = WsgiDriver(WsgiMiddleware(app, guard=Guard("memory://"), endpoint=ENDPOINT))

    assert [driver.send(POST).status for _ in range(2)] == [200, 200]
    assert len(ran) == 1


def test_rules_keep_djangos_middleware_away_from_a_guarded_view():
    ran.clear()

    @rules(None)
    @guarded(Guard("memory://"), ENDPOINT)
    def view(request: Any) -> Any:
        return HttpResponse(charge())

    guard = Guard("memory://")
    with override_settings(
        ROOT_URLCONF=type("urls", (), {"urlpatterns": [django_path("charges", view)]}),
        MIDDLEWARE=["samekey.http.django.SamekeyMiddleware"],
        SAMEKEY={"guard": guard, "endpoint": ENDPOINT},
    ):
        driver = WsgiDriver(get_wsgi_application())
        answers = [driver.send(POST) for _ in range(2)]

    assert [one.status for one in answers] == [200, 200]
    assert (answers[1].header("idempotent-replayed"), len(ran)) == ("true", 1)
    assert guard.peek("POST /charges", "k") is None
