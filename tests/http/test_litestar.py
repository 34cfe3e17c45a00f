"""The Litestar adapter: the suite, and rules in `opt`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from litestar import Litestar, Request, Response, WebSocket, asgi, post, route, websocket
from litestar.exceptions import ServiceUnavailableException
from litestar.response import Stream
from litestar.testing import TestClient
from litestar.types import Receive, Scope, Send
from starlette.applications import Starlette
from starlette.routing import Mount

from samekey import AsyncGuard, Opaque, current
from samekey.http import Endpoint, rules
from samekey.http.asgi import SamekeyMiddleware
from samekey.http.litestar import SamekeyPlugin
from samekey.testing.http import Called, Handle, HttpAdapterSuite, Said, Scene
from samekey.testing.http.drivers import Sent, asgi_send


def handler(handle: Handle, path: str, **options: Any) -> Any:
    @route(path, http_method=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"], name=path, **options)
    async def answer(request: Request[Any, Any, Any]) -> Response[Any]:
        body = await request.body()
        said = await asyncio.to_thread(handle, Called(request.method, request.url.path, body))
        cookies = dict(value.split("=") for name, value in said.headers if name == "Set-Cookie")
        headers = {name: value for name, value in said.headers if name != "Set-Cookie"}
        more: Any = {"media_type": headers.pop("Content-Type", "application/octet-stream"), "cookies": cookies}
        if isinstance(said.body, list):
            return Stream(iter(said.body), status_code=said.status, headers=headers, **more)
        return Response(said.body, status_code=said.status, headers=headers, **more)

    return answer


class TestLitestar(HttpAdapterSuite):
    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        paths = ("/charges", "/refunds", "/payments", "/free", "/slow")
        return Litestar(
            [handler(handle, path) for path in paths],
            plugins=[SamekeyPlugin(guard=guard, endpoint=endpoint)],
            openapi_config=None,
        )


@dataclass
class Charge:
    amount: int
    lines: dict[str, int]


class TestOwn(Scene):
    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        strict = Endpoint(boundary=Opaque(), single_tenant=True, required=True)
        return Litestar(
            [handler(handle, "/strict", opt={"samekey": strict}), handler(handle, "/free", opt={"samekey": None})],
            plugins=[SamekeyPlugin(guard=guard, endpoint=endpoint)],
            openapi_config=None,
        )

    def test_rules_stand_in_opt(self) -> None:
        """One handler requires a key, another is left alone."""
        site = self.open(lambda called: Said())

        assert [site.post("/strict", key=None).status, site.post("/free", key=("a", "b")).status] == [400, 200]

    def test_an_http_exception_is_an_answer(self) -> None:
        """Raised or returned, a 503 is a 503: listed, it closes the key; and the handler may keep it."""
        keeps: list[bool] = []

        @post("/charges")
        async def charge() -> str:
            if keeps[-1]:
                current().keep()
            raise ServiceUnavailableException("later")

        for final, keep in (((503,), False), ((), True)):
            keeps.append(keep)
            endpoint = Endpoint(boundary=Opaque(), single_tenant=True, final=final)
            plugin = SamekeyPlugin(guard=AsyncGuard("memory://"), endpoint=endpoint)
            with TestClient(Litestar([charge], plugins=[plugin], openapi_config=None)) as client:
                first, second = (client.post("/charges", headers={"Idempotency-Key": "k"}) for _ in range(2))

            assert (first.status_code, second.status_code, second.content) == (503, 503, first.content)
            assert second.headers["idempotent-replayed"] == "true"

    def test_rules_stand_on_the_function_too(self) -> None:
        strict = rules(Endpoint(boundary=Opaque(), single_tenant=True, required=True))

        @post("/below")
        @strict
        async def below() -> str:
            return "ran"

        @strict
        @post("/above")
        async def above() -> str:
            return "ran"

        plugin = SamekeyPlugin(guard=AsyncGuard("memory://"), endpoint=Endpoint(boundary=Opaque(), single_tenant=True))
        with TestClient(Litestar([below, above], plugins=[plugin], openapi_config=None)) as client:
            assert [client.post(path).status_code for path in ("/below", "/above")] == [400, 400]

    def test_what_a_handler_returns_is_kept_as_the_bytes_it_became(self) -> None:
        """C64: dataclasses and dicts; a websocket beside them is left alone (C69)."""
        effects: list[int] = []

        @post("/charges")
        async def charge() -> Charge:
            effects.append(1)
            return Charge(200, {"z": 1, "a": 2})

        @websocket("/live")
        async def live(socket: WebSocket[Any, Any, Any]) -> None:
            await socket.accept()
            await socket.send_text(await socket.receive_text())
            await socket.close()

        plugin = SamekeyPlugin(
            guard=AsyncGuard("memory://"), endpoint=Endpoint(boundary=Opaque(), single_tenant=True, required=True)
        )
        headers = {"Idempotency-Key": "k-1"}
        with TestClient(Litestar([charge, live], plugins=[plugin], openapi_config=None)) as client:
            first, second = client.post("/charges", headers=headers), client.post("/charges", headers=headers)
            with client.websocket_connect("/live", headers={"Idempotency-Key": "a, b"}) as socket:
                socket.send_text("hello")
                heard = socket.receive_text()

        assert (first.status_code, first.content) == (201, b'{"amount":200,"lines":{"z":1,"a":2}}')
        assert (second.content, second.headers["idempotent-replayed"], len(effects)) == (first.content, "true", 1)
        assert heard == "hello"


def mounted(where: str, app: Any) -> Any:
    @asgi(where, is_mount=True, copy_scope=True)
    async def mount(scope: Scope, receive: Receive, send: Send) -> None:
        await app(scope, receive, send)

    return mount


def saying(who: bytes, **given: Any) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": who})

    return SamekeyMiddleware(app, **given) if given else app


@pytest.mark.parametrize("inside", [False, True])
def test_what_is_mounted_in_two_places_is_two_operations(inside: bool):
    """Litestar cuts the mount off the path: /shop/orders was answered with what /bank/orders had said."""
    given: Any = {
        "guard": AsyncGuard("memory://"),
        "endpoint": Endpoint(boundary=Opaque(), single_tenant=True),
    }
    mounts = [mounted("/" + who, saying(who.encode(), **(given if inside else {}))) for who in ("bank", "shop")]
    app: Any = Litestar(mounts, plugins=[] if inside else [SamekeyPlugin(**given)], openapi_config=None)

    async def main() -> list[Any]:
        sent = [Sent("POST", path, headers=(("Idempotency-Key", "k"),)) for path in ("/bank/orders", "/shop/orders")]
        answers = [await asgi_send(app, one) for one in (*sent, *sent)]
        return [(one.body, one.header("idempotent-replayed")) for one in answers]

    assert asyncio.run(main()) == [(b"bank", None), (b"shop", None), (b"bank", "true"), (b"shop", "true")]


@pytest.mark.parametrize("around", ["litestar", "starlette"])
def test_a_mounted_application_has_its_mount_in_its_templates(around: str):
    guard = AsyncGuard("memory://")
    plugin = SamekeyPlugin(guard=guard, endpoint=Endpoint(boundary=Opaque(), single_tenant=True))

    @post("/orders/{number:int}/pay")
    async def pay() -> str:
        return "paid"

    shop: Any = Litestar([pay], plugins=[plugin], openapi_config=None)
    app: Any = Litestar([mounted("/shop", shop)]) if around == "litestar" else Starlette(routes=[Mount("/shop", shop)])

    async def main() -> Any:
        sent = Sent("POST", "/shop/orders/17/pay", headers=(("Idempotency-Key", "k"),))
        got = await asgi_send(app, sent)
        return got.status, await guard.peek("POST /shop/orders/{}/pay", "k") is not None

    assert asyncio.run(main()) == (201, True)


@pytest.mark.parametrize(
    ("template", "paths", "operation"),
    [
        ("/c/a", ("/c/a", "/c/a/", "/c//a", "//c/a"), "POST /c/a"),
        ("/c/{number:int}", ("/c/7", "/c/7/", "/c//7"), "POST /c/{}"),
    ],
)
@pytest.mark.parametrize("mount", ["", "/shop"])
def test_paths_that_litestar_routes_to_one_handler_are_one_operation(
    template: str, paths: tuple[str, ...], operation: str, mount: str
):
    guard, effects = AsyncGuard("memory://"), list[int]()
    plugin = SamekeyPlugin(guard=guard, endpoint=Endpoint(boundary=Opaque(), single_tenant=True))

    @post(template)
    async def pay() -> str:
        effects.append(1)
        return "paid"

    app: Any = Litestar([pay], plugins=[plugin], openapi_config=None)
    if mount:
        app = Starlette(routes=[Mount(mount, app)])

    async def main() -> list[Any]:
        sent = [Sent("POST", mount + path, headers=(("Idempotency-Key", "k"),)) for path in paths]
        answers = [await asgi_send(app, one) for one in sent]
        assert await guard.peek(operation.replace(" ", " " + mount), "k") is not None
        return [(one.status, one.header("idempotent-replayed")) for one in answers]

    assert asyncio.run(main()) == [(201, None), *[(201, "true")] * (len(paths) - 1)]
    assert len(effects) == 1
