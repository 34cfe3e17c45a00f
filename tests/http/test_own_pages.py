"""An application's own pages for exceptions: the page goes out, what the exception says about the effect is recorded.

Every framework answers exceptions somewhere between the handler and us. Where the adapter stands so that it can hear
of them it does; where it cannot, the page is an answer like any other, and a test here shows what that means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.test import override_settings
from fastapi import APIRouter, FastAPI
from flask import Flask
from litestar import Litestar, post
from litestar import Response as LitestarResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route

from samekey import AsyncGuard, Guard, NotDone, Opaque, Policy, Refused, State, current
from samekey.http import Endpoint
from samekey.http.asgi import SamekeyMiddleware as AsgiMiddleware
from samekey.http.django import guarded
from samekey.http.fastapi import samekey_route
from samekey.http.flask import Samekey
from samekey.http.litestar import SamekeyPlugin
from samekey.http.wsgi import SamekeyMiddleware as WsgiMiddleware
from samekey.testing.http.drivers import AsgiDriver, Got, WsgiDriver
from samekey.testing.http.scene import Site, same_answer
from tests.django_settings import APIException, Response, api_view


class Broke(Exception):
    """The policy knows: nothing happened."""


class Stolen(Exception):
    """The policy knows: never."""


POLICY = Policy(releases=(Broke,), closes=(Stolen,))
ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True, policy=POLICY)


class Shop:
    """Raises what it is given, once, after the provider's key was taken: by its status alone, a page is unknown."""

    def __init__(self, error: Exception, status: int) -> None:
        self.error, self.status = error, status
        self.count = 0

    def charge(self) -> str:
        self.count += 1
        current().provider_key()
        if self.count == 1:
            raise self.error
        return "charged"

    @property
    def page(self) -> dict[str, str]:
        return {"page": type(self.error).__name__}


def starlette_page(shop: Shop) -> Any:
    async def page(request: Any, error: Exception) -> Any:
        return JSONResponse(shop.page, shop.status)

    return {type(shop.error): page}


@contextmanager
def fastapi(shop: Shop) -> Iterator[Site]:
    guard = AsyncGuard("memory://")
    app = FastAPI(exception_handlers=starlette_page(shop))
    router = APIRouter(route_class=samekey_route(guard=guard, endpoint=ENDPOINT))
    router.post("/charges")(shop.charge)
    app.include_router(router)
    yield Site(guard, AsgiDriver(app))


@contextmanager
def starlette_route(shop: Shop) -> Iterator[Site]:
    guard = AsyncGuard("memory://")
    inside = [Middleware(AsgiMiddleware, guard=guard, endpoint=ENDPOINT)]
    route = Route("/charges", lambda request: JSONResponse(shop.charge()), methods=["POST"], middleware=inside)
    yield Site(guard, AsgiDriver(Starlette(routes=[route], exception_handlers=starlette_page(shop))))


@contextmanager
def starlette_app(shop: Shop) -> Iterator[Site]:
    guard = AsyncGuard("memory://")
    around = [Middleware(AsgiMiddleware, guard=guard, endpoint=ENDPOINT)]
    route = Route("/charges", lambda request: JSONResponse(shop.charge()), methods=["POST"])
    yield Site(guard, AsgiDriver(Starlette(routes=[route], middleware=around, exception_handlers=starlette_page(shop))))


@contextmanager
def litestar(shop: Shop) -> Iterator[Site]:
    guard = AsyncGuard("memory://")

    @post("/charges", sync_to_thread=False)
    def charge() -> str:
        return shop.charge()

    def page(request: Any, error: Exception) -> Any:
        return LitestarResponse(shop.page, status_code=shop.status)

    app = Litestar(
        [charge],
        plugins=[SamekeyPlugin(guard=guard, endpoint=ENDPOINT)],
        exception_handlers={type(shop.error): page},
        openapi_config=None,
    )
    yield Site(guard, AsgiDriver(app))


def flask_app(shop: Shop) -> Flask:
    app = Flask("shop")
    app.errorhandler(type(shop.error))(lambda error: (shop.page, shop.status))
    app.post("/charges")(shop.charge)
    return app


@contextmanager
def flask(shop: Shop) -> Iterator[Site]:
    app, guard = flask_app(shop), Guard("memory://")
    Samekey(app, guard=guard, endpoint=ENDPOINT)
    yield Site(guard, WsgiDriver(app))


@contextmanager
def flask_under_wsgi(shop: Shop) -> Iterator[Site]:
    guard = Guard("memory://")
    yield Site(guard, WsgiDriver(WsgiMiddleware(flask_app(shop), guard=guard, endpoint=ENDPOINT)))


class Pages:
    """A middleware of a Django project that answers exceptions."""

    sync_capable, async_capable = True, False
    shop: Shop

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        return self._get_response(request)

    def process_exception(self, request: Any, error: Exception) -> Any:
        return HttpResponse(json.dumps(self.shop.page), status=self.shop.status, content_type="application/json")


OURS, THEIRS = "samekey.http.django.SamekeyMiddleware", f"{__name__}.Pages"


def django(*middleware: str, wsgi: bool = True) -> Any:
    @contextmanager
    def made(shop: Shop) -> Iterator[Site]:
        Pages.shop = shop
        guard: Any = Guard("memory://") if wsgi else AsyncGuard("memory://")

        def view(request: Any) -> Any:
            return HttpResponse(shop.charge())

        async def async_view(request: Any) -> Any:
            return HttpResponse(shop.charge())

        with override_settings(
            ROOT_URLCONF="tests.http.django_urls" if wsgi else "tests.http.django_async_urls",
            MIDDLEWARE=middleware,
            SAMEKEY={"guard" if wsgi else "async_guard": guard, "endpoint": ENDPOINT},
        ):
            if wsgi:
                app = get_wsgi_application()
                yield Site(guard, WsgiDriver(lambda environ, start: app({**environ, "samekey.view": view}, start)))
            else:
                asgi = get_asgi_application()
                scope = {"samekey.view": async_view}
                yield Site(guard, AsgiDriver(lambda given, receive, send: asgi({**given, **scope}, receive, send)))

    return made


def rest_framework(*middleware: str) -> Any:
    @contextmanager
    def made(shop: Shop) -> Iterator[Site]:
        guard = Guard("memory://")

        def charge(request: Any) -> Any:
            return Response(shop.charge())

        def page(error: Exception, context: Any) -> Any:
            return Response(shop.page, status=shop.status)

        view = api_view(["POST"])(charge if middleware else guarded(guard, ENDPOINT)(charge))
        view.cls.get_exception_handler = lambda self: page
        with override_settings(
            ROOT_URLCONF="tests.http.django_urls",
            MIDDLEWARE=middleware,
            SAMEKEY={"guard": guard, "endpoint": ENDPOINT},
        ):
            app = get_wsgi_application()
            yield Site(guard, WsgiDriver(lambda environ, start: app({**environ, "samekey.view": view}, start)))

    return made


Make = Callable[[Shop], Any]

HEARD: dict[str, Make] = {
    "fastapi": fastapi,
    "starlette route": starlette_route,
    "litestar": litestar,
    "flask": flask,
    "django": django(THEIRS, OURS),
    "async django": django(THEIRS, OURS, wsgi=False),
    "rest framework, decorated": rest_framework(),
}
UNHEARD: dict[str, Make] = {
    "starlette application": starlette_app,
    "flask under wsgi": flask_under_wsgi,
    "django, their middleware inside": django(OURS, THEIRS),
    "rest framework under the middleware": rest_framework(OURS),
}


def twice(make: Make, shop: Shop) -> tuple[Got, Got, Any]:
    with make(shop) as site:
        first = site.post()
        record = site.record(tenant=None)
        second = site.post()
        site.close()
    assert record is not None
    return first, second, record.state


@pytest.mark.parametrize("make", HEARD.values(), ids=HEARD)
@pytest.mark.parametrize("error", [NotDone("no funds"), Broke("no funds")], ids=["word", "listed"])
@pytest.mark.parametrize("status", [402, 200, 503])
def test_a_page_for_what_did_not_happen_frees_the_key(make: Make, error: Exception, status: int) -> None:
    """Also where the page says 200, and where the provider's key was taken: the effect knows."""
    shop = Shop(error, status)
    first, second, state = twice(make, shop)

    assert (first.status, json.loads(first.body), state) == (status, shop.page, State.RELEASED)
    assert first.header("idempotency-key") == '"k-1"'
    assert (second.status // 100, second.header("idempotent-replayed"), shop.count) == (2, None, 2)


@pytest.mark.parametrize("make", HEARD.values(), ids=HEARD)
@pytest.mark.parametrize("error", [Refused("stolen card"), Stolen("card")], ids=["word", "listed"])
@pytest.mark.parametrize("status", [410, 200, 503])
def test_a_page_for_what_is_refused_is_the_answer_from_now_on(make: Make, error: Exception, status: int) -> None:
    shop = Shop(error, status)
    first, second, state = twice(make, shop)

    assert (first.status, json.loads(first.body), state) == (status, shop.page, State.CLOSED)
    same_answer(first, second)
    assert shop.count == 1


@pytest.mark.parametrize("make", HEARD.values(), ids=HEARD)
def test_a_page_for_anything_else_is_an_answer(make: Make) -> None:
    """A 404 that was raised is a 404: the provider's key was taken, so what it means is unknown."""
    shop = Shop(KeyError("card"), 404)
    first, second, state = twice(make, shop)

    assert (first.status, state, second.status, shop.count) == (404, State.IN_DOUBT, 409, 1)


@pytest.mark.parametrize("make", HEARD.values(), ids=HEARD)
def test_a_page_that_says_no_more_than_500_makes_room_for_ours(make: Make) -> None:
    """One page for every exception there is says nothing of this one."""
    shop = Shop(NotDone("no funds"), 500)
    first, second, state = twice(make, shop)

    assert (first.status, first.header("content-type"), state) == (503, "application/problem+json", State.RELEASED)
    assert (second.status // 100, shop.count) == (2, 2)


def test_an_exception_that_brings_its_own_page_may_be_listed() -> None:
    """REST framework's exceptions know their status; listed, they are a word about the effect too."""

    class Declined(APIException):  # type: ignore[misc]
        status_code = 402

    guard, tries = Guard("memory://"), list[int]()
    endpoint = Endpoint(boundary=Opaque(), single_tenant=True, policy=Policy(closes=(Declined,)))

    @api_view(["POST"])
    @guarded(guard, endpoint)
    def view(request: Any) -> Any:
        tries.append(1)
        raise Declined("stolen card")

    with override_settings(ROOT_URLCONF="tests.http.django_urls", MIDDLEWARE=[]):
        app = get_wsgi_application()
        site = Site(guard, WsgiDriver(lambda environ, start: app({**environ, "samekey.view": view}, start)))
        first, second = site.post(), site.post()
        site.close()

    assert (first.status, first.body, len(tries)) == (402, b'{"detail":"stolen card"}', 1)
    same_answer(first, second)


@pytest.mark.parametrize("make", UNHEARD.values(), ids=UNHEARD)
def test_where_nobody_tells_us_a_page_is_an_answer(make: Make) -> None:
    """Around a whole application, or behind its own exception handlers: the status is all there is to go by."""
    kept, unknown = Shop(Refused("stolen card"), 200), Shop(NotDone("no funds"), 402)
    first, second, state = twice(make, kept)
    assert (first.status, state, kept.count) == (200, State.COMPLETED, 1)
    same_answer(first, second)

    first, second, state = twice(make, unknown)
    assert (first.status, state, second.status, unknown.count) == (402, State.IN_DOUBT, 409, 1)
