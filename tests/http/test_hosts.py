"""One path at two hosts: two views, or one that looks at the host."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from flask import Flask
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Route, Router

from samekey import AsyncGuard, Guard, Opaque
from samekey.http import Endpoint
from samekey.http.asgi import SamekeyMiddleware as AsgiMiddleware
from samekey.http.flask import Samekey
from samekey.testing.http.drivers import Sent, WsgiDriver, asgi_send

NAMES = ("shop", "bank")


def saying(name: str) -> Any:
    async def orders(request: Any) -> Any:
        return PlainTextResponse(name)

    return orders


def sent(host: str, path: str = "/orders") -> Sent:
    return Sent("POST", path, headers=(("Host", host), ("Idempotency-Key", "order-17")))


def site(*, host_matching: bool, guard: Guard) -> Flask:
    app = Flask("site", host_matching=host_matching, subdomain_matching=not host_matching, static_folder=None)
    app.config["SERVER_NAME"] = None if host_matching else "ex.com"
    Samekey(app, guard=guard, endpoint=Endpoint(boundary=Opaque(), single_tenant=True))
    for name in NAMES:
        where: Any = {"host": f"{name}.ex.com"} if host_matching else {"subdomain": name}
        app.add_url_rule("/orders", name, lambda name=name: name, methods=["POST"], **where)
    where = {"host": "<who>.of.ex.com"} if host_matching else {"subdomain": "<who>.of"}
    app.add_url_rule("/orders", "of", lambda who: who, methods=["POST"], **where)
    return app


@pytest.mark.parametrize("host_matching", [False, True])
def test_flask_routes_by_host_and_so_do_keys(host_matching: bool):
    """The view of one host was answered with what the other's had said."""
    guard = Guard("memory://")
    driver = WsgiDriver(site(host_matching=host_matching, guard=guard))
    answers = [driver.send(sent(host)) for host in ("shop.ex.com", "bank.ex.com", "shop.ex.com", "bank.ex.com")]

    assert [(one.body, one.header("idempotent-replayed")) for one in answers] == [
        (b"shop", None),
        (b"bank", None),
        (b"shop", "true"),
        (b"bank", "true"),
    ]
    assert guard.peek("POST //shop.ex.com/orders" if host_matching else "POST //shop/orders", "order-17") is not None


@pytest.mark.parametrize("host_matching", [False, True])
def test_what_a_view_reads_in_the_host_belongs_to_the_request(host_matching: bool):
    """As with parameters in the path: one operation, and another value under the same key is told."""
    guard = Guard("memory://")
    driver = WsgiDriver(site(host_matching=host_matching, guard=guard))
    ann, bob, again = (driver.send(sent(host)) for host in ("ann.of.ex.com", "bob.of.ex.com", "ann.of.ex.com"))

    assert (ann.status, bob.status, again.header("idempotent-replayed")) == (200, 422, "true")
    assert guard.peek("POST //{}.of.ex.com/orders" if host_matching else "POST //{}.of/orders", "order-17") is not None


@pytest.mark.parametrize(("vary_on", "second"), [((), (200, b"shop")), (("host",), (422, None))])
def test_around_an_application_nobody_knows_that_it_routes_by_host(vary_on: Any, second: Any):
    """One key at two hosts gets one answer, unless vary_on= says that the host matters."""
    endpoint = Endpoint(boundary=Opaque(), single_tenant=True, vary_on=vary_on)
    app = Starlette(
        routes=[
            Host(
                f"{name}.ex.com",
                Router([Route("/orders", lambda request, name=name: PlainTextResponse(name), methods=["POST"])]),
            )
            for name in ("shop", "bank")
        ],
        middleware=[Middleware(AsgiMiddleware, guard=AsyncGuard("memory://"), endpoint=endpoint)],
    )

    async def main() -> list[Any]:
        return [await asgi_send(app, sent(host)) for host in ("shop.ex.com", "bank.ex.com")]

    first, other = asyncio.run(main())

    assert (first.status, first.body) == (200, b"shop")
    assert (other.status, other.body if other.status == 200 else None) == second
