"""The FastAPI adapter: the suite, and what is its own."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, WebSocket
from fastapi.testclient import TestClient
from pydantic import BaseModel

from samekey import AsyncGuard, Opaque, State
from samekey.http import Endpoint, rules
from samekey.http.fastapi import samekey_route
from samekey.testing.http import Handle, HttpAdapterSuite, Scene
from tests.http.apps import METHODS, starlette_endpoint


class TestFastapi(HttpAdapterSuite):
    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        app = FastAPI()
        router = APIRouter(route_class=samekey_route(guard=guard, endpoint=endpoint))
        for path in ("/charges", "/refunds", "/payments", "/free", "/slow"):
            router.add_api_route(path, starlette_endpoint(handle), methods=METHODS)
        app.include_router(router)
        return app


class Charge(BaseModel):
    amount: int


def failing_session() -> Any:
    yield "session"
    raise ConnectionError("the commit failed")


ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True)


class TestOwn(Scene):
    def make_app(self, guard: Any, endpoint: Any, handle: Any) -> Any:
        app = FastAPI()
        router = APIRouter(prefix="/v1", route_class=samekey_route(guard=guard, endpoint=endpoint))
        handle(router)
        app.include_router(router)
        return app

    def test_models_and_dicts_are_answers(self) -> None:
        """C64: what a handler returns is kept as the bytes it became."""
        effects = []

        def routes(router: APIRouter) -> None:
            @router.post("/charges", response_model=Charge, status_code=201)
            def charge(wanted: Charge) -> Any:
                effects.append(wanted)
                return {"amount": wanted.amount, "secret": "left out"}

        site = self.open(routes, chosen=ENDPOINT)  # type: ignore[arg-type]
        first, second = site.post("/v1/charges"), site.post("/v1/charges")

        assert (first.status, first.body, second.body, len(effects)) == (201, b'{"amount":200}', b'{"amount":200}', 1)

    def test_a_body_that_does_not_validate_frees_the_key(self) -> None:
        def routes(router: APIRouter) -> None:
            @router.post("/charges")
            def charge(wanted: Charge) -> int:
                return wanted.amount

        site = self.open(routes, chosen=ENDPOINT)  # type: ignore[arg-type]
        got = site.post("/v1/charges", {"amount": "much"})
        record = site.record(operation="POST /v1/charges", tenant=None)

        assert got.status == 422
        assert getattr(record, "state", None) is State.RELEASED

    def test_a_commit_that_fails_after_the_answer_is_not_called_done(self) -> None:
        """A `yield` dependency ends after the handler: the record waits for it, and so does the client."""

        def routes(router: APIRouter) -> None:
            @router.post("/charges")
            def charge(session: Annotated[str, Depends(failing_session)]) -> str:
                return "charged"

        site = self.open(routes, chosen=ENDPOINT)  # type: ignore[arg-type]
        got = site.post("/v1/charges")
        record = site.record(operation="POST /v1/charges", tenant=None)

        assert got.status == 500
        assert getattr(record, "state", None) is State.IN_DOUBT

    def test_each_handler_may_have_its_own_rules(self) -> None:
        def routes(router: APIRouter) -> None:
            @router.post("/free")
            @rules(None)
            def free() -> str:
                return "free"

            @router.post("/strict")
            @rules(Endpoint(boundary=Opaque(), single_tenant=True, required=True))
            def strict() -> str:
                return "strict"

        site = self.open(routes, chosen=ENDPOINT)  # type: ignore[arg-type]
        assert [site.post("/v1/strict", key=None).status, site.post("/v1/free", key=("a", "b")).status] == [400, 200]

    def test_rules_above_the_route_are_heard_too(self) -> None:
        def routes(router: APIRouter) -> None:
            @rules(Endpoint(boundary=Opaque(), single_tenant=True, required=True))
            @router.post("/strict")
            def strict() -> str:
                return "strict"

        site = self.open(routes, chosen=ENDPOINT)  # type: ignore[arg-type]
        assert site.post("/v1/strict", key=None).status == 400
        app = FastAPI()
        router = APIRouter(route_class=samekey_route(guard=site.guard, endpoint=ENDPOINT))
        routes(router)
        app.include_router(router)
        assert app.openapi()["paths"]["/strict"]["post"]["parameters"][0]["required"] is True

    def test_one_route_is_one_operation_and_its_path_belongs_to_the_request(self) -> None:
        def routes(router: APIRouter) -> None:
            @router.post("/orders/{order}/pay")
            def pay(order: str) -> str:
                return order

        site = self.open(routes, chosen=ENDPOINT)  # type: ignore[arg-type]
        first, other = site.post("/v1/orders/1/pay"), site.post("/v1/orders/2/pay")

        assert (first.body, other.status) == (b'"1"', 422)
        assert site.record(operation="POST /v1/orders/{}/pay", tenant=None) is not None

    def test_an_operation_has_the_whole_path_in_its_name(self) -> None:
        """A router that is included or mounted at two places is two operations, whatever this FastAPI makes of it."""
        endpoint, effects = ENDPOINT, list[str]()

        class Mounted(Scene):
            def make_app(self, guard: Any, endpoint: Any, handle: Any) -> Any:
                route_class = samekey_route(guard=guard, endpoint=endpoint)
                inner, outer = APIRouter(route_class=route_class), APIRouter()

                @inner.post("/{number}/pay")
                def pay(number: int) -> str:
                    effects.append(str(number))
                    return "paid"

                outer.include_router(inner, prefix="/parts")
                app, mounted = FastAPI(), FastAPI()
                app.include_router(inner, prefix="/orders")
                app.include_router(inner, prefix="/of/{tenant}")
                app.include_router(outer, prefix="/invoices")
                mounted.include_router(inner)
                app.mount("/v2", mounted)
                app.mount("/v3", mounted)
                return app

        scene = Mounted()
        scene.setup_method()
        site = scene.open(lambda called: None, chosen=endpoint)  # type: ignore[arg-type, return-value]
        paths = ("/orders/1/pay", "/of/ann/1/pay", "/invoices/parts/1/pay", "/v2/1/pay", "/v3/1/pay")
        assert [site.post(path).status for path in paths] == [200] * 5
        assert len(effects) == 5
        for name in (
            "/orders/{}/pay",
            "/of/{}/{}/pay",
            "/invoices/parts/{}/pay",
            "/v2/{}/pay",
            "/v3/{}/pay",
        ):
            assert site.record(operation=f"POST {name}", tenant=None) is not None, name
        scene.teardown_method()

    def test_http_exceptions_are_answers(self) -> None:
        def routes(router: APIRouter) -> None:
            @router.post("/charges")
            def charge() -> str:
                raise HTTPException(402, "no funds")

        site = self.open(routes, chosen=Endpoint(boundary=Opaque(), single_tenant=True, final={402}))  # type: ignore[arg-type]
        first, second = site.post("/v1/charges"), site.post("/v1/charges")

        assert (first.status, second.status, second.body) == (402, 402, first.body)
        assert second.header("idempotent-replayed") == "true"

    def test_a_websocket_is_left_alone(self) -> None:
        """C69."""
        router = APIRouter(route_class=samekey_route(guard=AsyncGuard("memory://"), endpoint=ENDPOINT))

        @router.websocket("/live")
        async def live(socket: WebSocket) -> None:
            await socket.accept()
            await socket.send_text(await socket.receive_text())
            await socket.close()

        app = FastAPI()
        app.include_router(router)
        with TestClient(app) as client, client.websocket_connect("/live", headers={"Idempotency-Key": "a, b"}) as one:
            one.send_text("hello")
            assert one.receive_text() == "hello"

    def test_the_openapi_document_tells_of_header_and_problems(self) -> None:
        guard = AsyncGuard("memory://")
        app = FastAPI()
        router = APIRouter(route_class=samekey_route(guard=guard, endpoint=ENDPOINT))

        @router.post("/charges")
        def charge(wanted: Charge) -> int:
            return wanted.amount

        @router.get("/charges")
        def charges() -> int:
            return 0

        app.include_router(router)
        told = app.openapi()["paths"]["/charges"]

        assert [one["name"] for one in told["post"]["parameters"]] == ["Idempotency-Key"]
        assert {"400", "409", "413", "422", "503"} <= told["post"]["responses"].keys()
        assert told["post"]["responses"]["422"]["content"].keys() == {"application/json", "application/problem+json"}
        assert "parameters" not in told["get"]
