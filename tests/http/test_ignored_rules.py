"""What would be left unguarded, or guarded otherwise than its author wrote: refused or named before a request comes."""

import logging
from typing import Any
from unittest.mock import MagicMock

import pytest
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.test import override_settings
from django.urls import include, path
from django.views import View
from fastapi import APIRouter, FastAPI
from fastapi.testclient import TestClient
from flask import Flask
from litestar import Litestar, post
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import tests.django_settings  # noqa: F401
from samekey import AsyncGuard, Guard, Misconfigured, Opaque
from samekey.http import Endpoint, rules
from samekey.http._ignored import views_of
from samekey.http.asgi import SamekeyMiddleware as AsgiMiddleware
from samekey.http.fastapi import samekey_route
from samekey.http.flask import Samekey
from samekey.http.litestar import SamekeyPlugin
from samekey.http.wsgi import SamekeyMiddleware as WsgiMiddleware

ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True)
STRICT = rules(Endpoint(boundary=Opaque(), single_tenant=True, required=True))


@STRICT
async def strict(request: Any) -> Any:
    return PlainTextResponse("ran")


async def plain(request: Any) -> Any:
    return PlainTextResponse("ran")


class Charges(HTTPEndpoint):
    @rules(None)
    async def post(self, request: Any) -> Any:
        return PlainTextResponse("ran")


def fastapi_app(handler: Any) -> FastAPI:
    app, router = FastAPI(), APIRouter()
    router.post("/charges")(handler)
    app.include_router(router, prefix="/v1")
    return app


def litestar_app(handler: Any, **options: Any) -> Litestar:
    return Litestar([post("/charges")(handler)], openapi_config=None, **options)


async def strict_handler() -> str:
    return "ran"


ASGI = {
    "starlette": lambda: Starlette(routes=[Route("/charges", strict, methods=["POST"])]),
    "starlette class": lambda: Starlette(routes=[Route("/charges", Charges)]),
    "starlette mount": lambda: Starlette(routes=[Mount("/v1", routes=[Route("/charges", strict, methods=["POST"])])]),
    "fastapi": lambda: fastapi_app(STRICT(strict_handler)),
    "litestar": lambda: litestar_app(STRICT(strict_handler)),
    "behind another middleware": lambda: wrapped(Starlette(routes=[Route("/charges", strict, methods=["POST"])])),
}


def wrapped(app: Any) -> Any:
    async def around(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)

    return around


@pytest.mark.parametrize("name", ASGI)
def test_rules_that_an_asgi_middleware_would_ignore_are_refused(name: str):
    with pytest.raises(Misconfigured, match=r"@rules on .*(strict|Charges).* would be ignored"):
        AsgiMiddleware(ASGI[name](), guard=AsyncGuard("memory://"), endpoint=ENDPOINT)


def test_rules_that_a_wsgi_middleware_would_ignore_are_refused():
    app = Flask("shop")
    app.post("/charges")(STRICT(lambda: "ran"))
    with pytest.raises(Misconfigured, match="@rules on"):
        WsgiMiddleware(app.wsgi_app, guard=Guard("memory://"), endpoint=ENDPOINT)


class DjangoCharges(View):  # type: ignore[misc]
    @rules(None)
    def post(self, request: Any) -> Any:
        return HttpResponse("ran")


urlpatterns = [path("v1/", include([path("charges", DjangoCharges.as_view())]))]


@pytest.mark.parametrize("colour", ["wsgi", "asgi"])
def test_rules_on_a_django_view_are_refused_around_django(colour: str):
    middleware: Any = WsgiMiddleware if colour == "wsgi" else AsgiMiddleware
    guard = Guard("memory://") if colour == "wsgi" else AsyncGuard("memory://")
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=[]):
        app = get_wsgi_application() if colour == "wsgi" else get_asgi_application()
        with pytest.raises(Misconfigured, match="@rules on"):
            middleware(app, guard=guard, endpoint=ENDPOINT)


def test_an_application_whose_routes_come_later_does_not_start():
    app = Starlette(middleware=[Middleware(AsgiMiddleware, guard=AsyncGuard("memory://"), endpoint=ENDPOINT)])
    app.router.routes.append(Route("/charges", strict, methods=["POST"]))
    with pytest.raises(Misconfigured, match="strict"), TestClient(app):
        pass

    outside = Starlette()
    guarded = AsgiMiddleware(outside, guard=AsyncGuard("memory://"), endpoint=ENDPOINT)
    outside.router.routes.append(Route("/charges", strict, methods=["POST"]))
    with pytest.raises(Misconfigured, match="strict"), TestClient(guarded):
        pass
    with pytest.raises(Misconfigured, match="strict"):  # a server that does not speak lifespan
        TestClient(guarded).post("/charges")


def test_the_server_reads_why_it_does_not_start():
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    outside = Starlette()
    guarded = AsgiMiddleware(outside, guard=AsyncGuard("memory://"), endpoint=ENDPOINT)
    outside.router.routes.append(Route("/charges", strict, methods=["POST"]))
    with pytest.raises(Misconfigured):
        guarded({"type": "lifespan"}, receive, send).__await__().send(None)

    assert sent[0]["type"] == "lifespan.startup.failed"
    assert "@rules" in sent[0]["message"]


def test_views_that_come_after_a_wsgi_middleware_are_refused_with_the_first_request():
    app = Flask("shop")
    app.wsgi_app = WsgiMiddleware(app.wsgi_app, guard=Guard("memory://"), endpoint=ENDPOINT)  # type: ignore[method-assign]
    app.post("/charges")(STRICT(lambda: "ran"))
    with pytest.raises(Misconfigured, match="@rules on"):
        app.test_client().post("/charges")


def test_rules_that_another_adapter_reads_are_no_reason():
    guard: Any = AsyncGuard("memory://")
    app, router = FastAPI(), APIRouter(route_class=samekey_route(guard=guard, endpoint=ENDPOINT))
    router.post("/charges")(STRICT(strict_handler))
    app.include_router(router)
    AsgiMiddleware(app, guard=guard, endpoint=lambda request: None)
    plugin = SamekeyPlugin(guard=guard, endpoint=ENDPOINT)
    AsgiMiddleware(litestar_app(strict_handler, plugins=[plugin]), guard=guard, endpoint=lambda request: None)  # type: ignore[arg-type]

    flask = Flask("shop")
    Samekey(flask, guard=Guard("memory://"), endpoint=ENDPOINT)
    flask.post("/charges")(STRICT(lambda: "ran"))
    WsgiMiddleware(flask, guard=Guard("memory://"), endpoint=lambda request: None)
    AsgiMiddleware(
        Starlette(routes=[Route("/charges", plain, methods=["POST"])]), guard=guard, endpoint=lambda request: None
    )


def test_an_application_that_makes_up_attributes_is_not_looked_through():
    """A MagicMock has whatever is asked for, without end."""
    assert len(list(views_of(MagicMock()))) == 1


# -- FastAPI: routes that the route class does not see


def shop(given: str) -> Any:
    """A guarded route; one that came before the route class, one of a plain router, and two that need no guard."""
    app, guard = FastAPI(), AsyncGuard("memory://")
    app.post("/late")(strict_handler_of("late"))
    guarded: Any = APIRouter() if "router" in given else app
    if given in ("app", "router"):
        samekey_route(guard=guard, endpoint=ENDPOINT, **{given: guarded})
    else:
        getattr(guarded, "router", guarded).route_class = samekey_route(guard=guard, endpoint=ENDPOINT)
    guarded.post("/charges")(strict_handler_of("charges"))
    if "router" in given:
        outer = APIRouter()
        outer.include_router(guarded)
        app.include_router(outer)
    app.get("/read")(strict_handler_of("read"))
    router = APIRouter()
    router.patch("/plain/{number}")(strict_handler_of("plain"))
    router.post("/open")(rules(None)(strict_handler_of("open")))
    app.include_router(router, prefix="/v1")
    return app


def strict_handler_of(name: str) -> Any:
    async def handler() -> str:
        return name

    return handler


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING and one.name == "samekey"]


@pytest.mark.parametrize("given", ["app", "router", "route_class of the app"])
def test_unguarded_routes_are_named_when_the_application_starts(given: str, caplog: pytest.LogCaptureFixture):
    app = shop(given)
    for _ in range(2):
        with TestClient(app) as client:
            named = warned(caplog)
            client.post("/charges", headers={"Idempotency-Key": "k"})

    assert warned(caplog) == named
    (line,) = named
    assert line.startswith("samekey does not guard PATCH /v1/plain/{number}, POST /late:")


@pytest.mark.parametrize("given", ["route_class of the app", "route_class of a router"])
def test_a_route_class_by_itself_names_them_with_the_first_request(given: str, caplog: pytest.LogCaptureFixture):
    client = TestClient(shop(given))
    for key in ("a", "b"):
        client.post("/charges", headers={"Idempotency-Key": key})

    (line,) = warned(caplog)
    assert "POST /late" in line


def test_an_application_keeps_its_own_lifespan(caplog: pytest.LogCaptureFixture):
    from contextlib import asynccontextmanager

    story: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Any) -> Any:
        story.append("start")
        yield {"state": 1}
        story.append("end")

    app = FastAPI(lifespan=lifespan)
    samekey_route(guard=AsyncGuard("memory://"), endpoint=ENDPOINT, app=app)
    app.post("/charges")(strict_handler_of("charges"))
    with TestClient(app) as client:
        assert client.post("/charges", headers={"Idempotency-Key": "k"}).status_code == 200

    assert (story, warned(caplog)) == (["start", "end"], [])
