"""A deploy between a request and its retry: another name of a parameter, or of the operation; another adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.test import override_settings
from django.urls import include, path, re_path
from fastapi import FastAPI
from flask import Flask
from litestar import Litestar, post

import tests.django_settings  # noqa: F401
from samekey import AsyncGuard, Guard, Opaque
from samekey.http import Endpoint
from samekey.http.asgi import SamekeyMiddleware as AsgiMiddleware
from samekey.http.django._route import template_of
from samekey.http.fastapi import samekey_route
from samekey.http.flask import Samekey
from samekey.http.litestar import SamekeyPlugin
from samekey.http.wsgi import SamekeyMiddleware as WsgiMiddleware
from samekey.testing.http.drivers import Got, Sent, WsgiDriver, asgi_send

ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True)
URL = "/orders/17/pay"
PAY = Sent("POST", URL, headers=(("Idempotency-Key", "k"), ("Content-Type", "application/json")), body=b'{"amount":1}')

Deploy = Callable[[Sent], Got]


class Shop:
    """One guard, and one application after the other in front of it."""

    def __init__(self, kind: str) -> None:
        self.guard: Any = Guard("memory://") if kind in ("flask", "django", "wsgi") else AsyncGuard("memory://")
        self.paid: list[str] = []
        self.kind = kind

    def __call__(self, spelled: Any, endpoint: Endpoint = ENDPOINT, sent: Sent = PAY, kind: str = "") -> Got:
        """The answer of an application whose only route is spelled like this."""
        got: Got = getattr(self, kind or self.kind)(spelled, endpoint, sent)
        return got

    def pay(self, *positional: Any, **params: Any) -> str:
        self.paid.append(repr(params))
        return "paid"

    def fastapi(self, spelled: str, endpoint: Endpoint, sent: Sent) -> Got:
        app = FastAPI()
        app.router.route_class = samekey_route(guard=self.guard, endpoint=endpoint)
        app.post(spelled)(lambda: self.pay())
        return asyncio.run(asgi_send(app, sent))

    def asgi(self, spelled: str, endpoint: Endpoint, sent: Sent) -> Got:
        app = FastAPI()
        app.post(spelled)(lambda: self.pay())
        return asyncio.run(asgi_send(AsgiMiddleware(app, guard=self.guard, endpoint=endpoint), sent))

    def litestar(self, spelled: str, endpoint: Endpoint, sent: Sent) -> Got:
        @post(spelled)
        async def pay() -> str:
            return self.pay()

        plugin = SamekeyPlugin(guard=self.guard, endpoint=endpoint)
        return asyncio.run(asgi_send(Litestar([pay], plugins=[plugin], openapi_config=None), sent))

    def flask(self, spelled: str, endpoint: Endpoint, sent: Sent) -> Got:
        app = Flask("shop")
        app.add_url_rule(spelled, "pay", self.pay, methods=["POST"])
        Samekey(app, guard=self.guard, endpoint=endpoint)
        return WsgiDriver(app).send(sent)

    def wsgi(self, spelled: str, endpoint: Endpoint, sent: Sent) -> Got:
        app = Flask("shop")
        app.add_url_rule(spelled, "pay", self.pay, methods=["POST"])
        return WsgiDriver(WsgiMiddleware(app, guard=self.guard, endpoint=endpoint)).send(sent)

    def django(self, spelled: Callable[[Any], Any], endpoint: Endpoint, sent: Sent) -> Got:
        urls: Any = ModuleType("urls")
        urls.urlpatterns = [spelled(lambda *positional, **params: HttpResponse(self.pay(**params)))]
        with override_settings(
            ROOT_URLCONF=urls,
            MIDDLEWARE=["samekey.http.django.SamekeyMiddleware"],
            SAMEKEY={"guard": self.guard, "endpoint": endpoint},
        ):
            return WsgiDriver(get_wsgi_application()).send(sent)


SPELLED: dict[str, list[Any]] = {
    "fastapi": ["/orders/{id}/pay", "/orders/{order_id}/pay", "/orders/{order_id:path}/pay"],
    "litestar": ["/orders/{id:str}/pay", "/orders/{order_id:str}/pay", "/orders/{order_id:int}/pay"],
    "flask": ["/orders/<id>/pay", "/orders/<int:order_id>/pay", "/orders/<any('17', '<18>'):order_id>/pay"],
    "django": [
        lambda view: path("orders/<id>/pay", view),
        lambda view: path("orders/<int:order_id>/pay", view, {"by": "card"}),
        lambda view: path("orders/", include([path("<slug:order_id>/pay", view)])),
        lambda view: re_path(r"^orders/(?P<order_id>[0-9]{1,9}(?:-[)]+)?)/pay$", view),
        lambda view: re_path(r"^orders/([^/()]+)/pay$", view),
    ],
}


@pytest.mark.parametrize("kind", SPELLED)
def test_a_parameter_of_another_name_or_type_is_the_same_operation(kind: str):
    """And its name is the same under every framework."""
    shop = Shop(kind)
    first, *others = (shop(spelled) for spelled in SPELLED[kind])
    record = shop.guard.peek("POST /orders/{}/pay", "k")

    assert (asyncio.run(record) if kind in ("fastapi", "litestar") else record) is not None
    assert first.header("idempotent-replayed") is None
    assert {one.header("idempotent-replayed") for one in others} == {"true"}
    assert {one.body for one in others} == {first.body}
    assert len(shop.paid) == 1


@pytest.mark.parametrize("kind", SPELLED)
def test_another_value_under_one_key_is_told(kind: str):
    shop = Shop(kind)
    first, second = (shop(SPELLED[kind][0], sent=PAY._replace(path=url)) for url in (URL, "/orders/18/pay"))

    assert [first.status // 100, second.status, len(shop.paid)] == [2, 422, 1]


@pytest.mark.parametrize(("route", "around"), [("fastapi", "asgi"), ("flask", "wsgi")])
def test_whoever_moves_to_a_middleware_gives_the_old_name(route: str, around: str):
    """Around an application nobody knows its routes: there the path itself is the name."""
    for aliases, replayed, effects in (((), None, 2), (("POST /orders/{}/pay",), "true", 1)):
        shop = Shop(route)
        endpoint = Endpoint(boundary=Opaque(), single_tenant=True, aliases=aliases)
        shop(SPELLED[route][0])
        after = shop(SPELLED[route][0], endpoint, kind=around)

        assert (after.status // 100, after.header("idempotent-replayed"), len(shop.paid)) == (2, replayed, effects)


@pytest.mark.parametrize(("route", "around"), [("fastapi", "asgi"), ("flask", "wsgi")])
def test_whoever_moves_from_a_middleware_to_a_route_with_parameters_starts_anew(route: str, around: str):
    """Each path had a name of its own there: no list has them all."""
    shop = Shop(route)
    shop(SPELLED[route][0], kind=around)
    after = shop(SPELLED[route][0])

    assert (after.header("idempotent-replayed"), len(shop.paid)) == (None, 2)


@pytest.mark.parametrize("kind", SPELLED)
def test_a_new_name_finds_the_keys_of_the_old_ones(kind: str):
    """Without aliases= it runs again; with it, what the retry says is still compared with what was said."""
    for aliases, replayed, effects in (((), None, 2), (("pay", "POST /orders/{}/pay"), "true", 1)):
        shop = Shop(kind)
        named = Endpoint(boundary=Opaque(), single_tenant=True, operation="pay order", aliases=aliases)
        shop(SPELLED[kind][0])
        after = shop(SPELLED[kind][1], named)
        other = shop(SPELLED[kind][1], named, PAY._replace(body=b'{"amount":2}'))

        assert (after.status // 100, after.header("idempotent-replayed"), len(shop.paid)) == (2, replayed, effects)
        assert other.status == 422


@pytest.mark.parametrize(
    ("route", "template"),
    [
        (r"^orders/(?P<id>[])(]+)/pay$", "orders/{}/pay"),
        (r"^orders/(?P<id>[^])(]+)/pay$", "orders/{}/pay"),
        (r"(?P<id>\((a|b)\))/v1\.json", "{}/v1.json"),
        ("orders/<", "orders/{}"),
        ("orders/(", "orders/{}"),
    ],
)
def test_any_route_of_django_has_a_template(route: str, template: str):
    assert template_of(route) == template
