"""What changes an answer for one client - compression, CORS - stands around samekey, so that a replay gets it anew.

So does what sends a request on to another address: it comes again with the same key.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.test import override_settings
from litestar import Litestar, post
from litestar.config.compression import CompressionConfig
from litestar.middleware import DefineMiddleware
from litestar.middleware.compression import CompressionMiddleware
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.httpsredirect import HTTPSRedirectMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

import tests.django_settings  # noqa: F401
from samekey import AsyncGuard, Guard, Opaque
from samekey.http import Endpoint
from samekey.http.asgi import SamekeyMiddleware
from samekey.http.litestar import SamekeyPlugin
from samekey.testing.http.drivers import Got, Sent, WsgiDriver, asgi_send

ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True)
LONG = "paid " * 200
KEYED = (("Idempotency-Key", "k"), ("Origin", "https://shop.example"))
PLAIN = Sent("POST", "/charges", headers=KEYED)
ZIPPED = Sent("POST", "/charges", headers=(*KEYED, ("Accept-Encoding", "gzip")))


async def starlette(*, ours_inside: bool) -> list[Got]:
    async def charge(request: Any) -> Any:
        return PlainTextResponse(LONG)

    ours = Middleware(SamekeyMiddleware, guard=AsyncGuard("memory://"), endpoint=ENDPOINT)
    others = [Middleware(CORSMiddleware, allow_origins=["https://shop.example"]), Middleware(GZipMiddleware)]
    app = Starlette(
        routes=[Route("/charges", charge, methods=["POST"])],
        middleware=[*others, ours] if ours_inside else [ours, *others],
    )
    return [await asgi_send(app, sent) for sent in (ZIPPED, PLAIN)]


def said(got: Got) -> tuple[str | None, ...]:
    return tuple(map(got.header, ("idempotent-replayed", "content-encoding", "access-control-allow-origin")))


async def test_inside_them_a_replay_fits_its_client():
    first, second = await starlette(ours_inside=True)

    assert said(first) == (None, "gzip", "https://shop.example")
    assert said(second) == ("true", None, "https://shop.example")
    assert second.body == LONG.encode()


async def test_around_them_a_replay_fits_the_first_client():
    """Why the page says so: it is kept as it was sent, compressed, and headers for one origin are not kept."""
    first, second = await starlette(ours_inside=False)

    assert said(first) == (None, "gzip", "https://shop.example")
    assert said(second) == ("true", "gzip", None)


async def led_on(to: str, *, operation: str, ours: str) -> tuple[int, list[bytes]]:
    """Where a client ends that follows redirects; `ours` stands around what redirects, inside it, or on the route."""
    ran: list[bytes] = []

    async def charge(request: Any) -> Any:
        ran.append(await request.body())
        return PlainTextResponse("paid", 201)

    named = Endpoint(boundary=Opaque(), single_tenant=True, operation=operation)
    guard = [Middleware(SamekeyMiddleware, guard=AsyncGuard("memory://"), endpoint=named)]
    others = [Middleware(HTTPSRedirectMiddleware)]
    app = Starlette(
        routes=[Route("/charges", charge, methods=["POST"], middleware=guard if ours == "route" else [])],
        middleware={"around": guard + others, "inside": others + guard, "route": others}[ours],
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, follow_redirects=True, max_redirects=3) as client:
        answer = await client.post(to, json={"amount": 200}, headers={"Idempotency-Key": "k"})
    return answer.status_code, ran


@pytest.mark.parametrize("ours", ["inside", "route"])
async def test_inside_of_what_redirects_the_request_arrives(ours: str):
    assert await led_on("http://shop.example/charges", operation="charge", ours=ours) == (201, [b'{"amount":200}'])


async def test_around_it_a_redirect_is_the_answer_of_its_key():
    """Why the page says so: the request that was sent on has the same key, and is sent on again."""
    with pytest.raises(httpx.TooManyRedirects):
        await led_on("http://shop.example/charges", operation="charge", ours="around")


@pytest.mark.parametrize(("ours", "ends"), [("inside", (422, [])), ("route", (201, [b'{"amount":200}']))])
async def test_with_a_name_of_its_own_a_slash_too_many_is_another_request(ours: str, ends: Any):
    """Around the router its redirect has the key already, for another path; a route has not seen it."""
    assert await led_on("https://shop.example/charges/", operation="charge", ours=ours) == ends


@pytest.mark.parametrize("ours_inside", [True, False])
def test_django_has_the_same_order(ours_inside: bool):
    ours, zips = "samekey.http.django.SamekeyMiddleware", "django.middleware.gzip.GZipMiddleware"
    with override_settings(
        ROOT_URLCONF="tests.http.django_urls",
        MIDDLEWARE=[zips, ours] if ours_inside else [ours, zips],
        SAMEKEY={"guard": Guard("memory://"), "endpoint": ENDPOINT},
    ):
        app = get_wsgi_application()
        view = {"samekey.view": lambda request: HttpResponse(LONG)}
        driver = WsgiDriver(lambda environ, start: app({**environ, **view}, start))
        first, second = driver.send(ZIPPED), driver.send(PLAIN)

    assert (first.header("content-encoding"), second.header("idempotent-replayed")) == ("gzip", "true")
    assert second.header("content-encoding") == (None if ours_inside else "gzip")


@pytest.mark.parametrize("ours_inside", [True, False])
async def test_litestars_compression_config_stands_inside_and_its_middleware_does_not(ours_inside: bool):
    """What `compression_config=` makes is the innermost of all; as a middleware it stands where it is listed."""

    @post("/charges", media_type="text/plain")
    async def charge() -> str:
        return LONG

    zips = CompressionConfig(backend="gzip")
    app = Litestar(
        [charge],
        plugins=[SamekeyPlugin(guard=AsyncGuard("memory://"), endpoint=ENDPOINT)],
        middleware=[DefineMiddleware(CompressionMiddleware, config=zips)] if ours_inside else [],
        compression_config=None if ours_inside else zips,
    )
    first, second = await asgi_send(app, ZIPPED), await asgi_send(app, PLAIN)

    assert (first.header("content-encoding"), second.header("idempotent-replayed")) == ("gzip", "true")
    assert second.header("content-encoding") == (None if ours_inside else "gzip")
