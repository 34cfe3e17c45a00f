"""The ASGI adapter: the suite, bare and under Starlette; and what is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import trio
from litestar.response import Stream

from samekey import AsyncGuard, Guard, Misconfigured, Opaque, Policy, State, current
from samekey.http import Endpoint
from samekey.http.asgi import SamekeyMiddleware
from samekey.testing.http import Handle, HttpAdapterSuite
from samekey.testing.http.drivers import Sent, asgi_send
from tests.http.apps import METHODS, bare_asgi, starlette_endpoint


class TestBareAsgi(HttpAdapterSuite):
    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        return SamekeyMiddleware(bare_asgi(handle), guard=guard, endpoint=endpoint)


class TestStarletteMiddleware(HttpAdapterSuite):
    """For the whole application: outside the exception handlers, inside authentication."""

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route

        return Starlette(
            routes=[Route("/{path:path}", starlette_endpoint(handle), methods=METHODS)],
            middleware=[Middleware(SamekeyMiddleware, guard=guard, endpoint=endpoint)],
        )


class TestAroundStarlette(HttpAdapterSuite):
    """Around the whole application: it answers an exception itself, and raises it all the same."""

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        from starlette.applications import Starlette
        from starlette.routing import Route

        app = Starlette(routes=[Route("/{path:path}", starlette_endpoint(handle), methods=METHODS)])
        return SamekeyMiddleware(app, guard=guard, endpoint=endpoint)


class TestStarletteRoute(HttpAdapterSuite):
    """For one route."""

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route

        guarded = [Middleware(SamekeyMiddleware, guard=guard, endpoint=endpoint)]
        return Starlette(
            routes=[Route("/{path:path}", starlette_endpoint(handle), methods=METHODS, middleware=guarded)]
        )


ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True)


async def test_the_page_of_an_application_that_answers_its_exception_goes_out():
    """And the exception goes on to the server, who writes it down."""
    from starlette.applications import Starlette
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def charge(request: Any) -> Any:
        raise ValueError("boom")

    async def page(request: Any, error: Exception) -> Any:
        return JSONResponse({"page": "ours"}, 500)

    app = Starlette(routes=[Route("/charges", charge, methods=["POST"])], exception_handlers={500: page})
    for remember, status, state in (("success_only", 409, State.IN_DOUBT), ("stripe_v1", 500, State.COMPLETED)):
        guard = AsyncGuard("memory://")
        endpoint = Endpoint(boundary=Opaque(), single_tenant=True, remember=remember)  # type: ignore[arg-type]
        guarded = SamekeyMiddleware(app, guard=guard, endpoint=endpoint)
        sent = Sent("POST", "/charges", headers=(("Idempotency-Key", "k-1"),))
        first, second = await asgi_send(guarded, sent), await asgi_send(guarded, sent)
        record = await guard.peek("POST /charges", "k-1")

        assert (first.status, first.body, second.status) == (500, b'{"page":"ours"}', status)
        assert (type(first.error), first.header("idempotency-key")) == (ValueError, '"k-1"')
        assert getattr(record, "state", None) is state
        assert (second.body == first.body) is (remember == "stripe_v1")


def scope(**more: Any) -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": "/charges",
        "query_string": b"",
        "headers": [(b"idempotency-key", b"k-1"), (b"content-type", b"application/json")],
        **more,
    }


async def body() -> dict[str, Any]:
    return {"type": "http.request", "body": b"{}", "more_body": False}


class Sink:
    """Where answers go, and what else happened meanwhile."""

    def __init__(self) -> None:
        self.story: list[str] = []
        self.messages: list[Any] = []

    async def __call__(self, message: Any) -> None:
        self.story.append(message["type"].removeprefix("http.response."))
        self.messages.append(message)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])


def answering(sink: Sink, *, then: Callable[[], Any] | None = None, status: int = 200) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        sink.story.append("background")
        if then is not None:
            then()

    return app


async def state_of(guard: AsyncGuard) -> State | None:
    record = await guard.peek("POST /charges", "k-1")
    return None if record is None else record.state


@pytest.mark.parametrize("parts", [[b"12345"], [b"123", b"45"]], ids=["whole", "in parts"])
async def test_a_body_shorter_than_its_content_length_is_refused(parts: list[bytes]):
    """Granian ends an HTTP/2 body that broke off as if it were whole; WSGI compares the length, and so does ASGI."""
    messages = [
        {"type": "http.request", "body": part, "more_body": at + 1 < len(parts)} for at, part in enumerate(parts)
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    sink, guard = Sink(), AsyncGuard("memory://")
    short = scope(headers=[(b"idempotency-key", b"k-1"), (b"content-length", b"10")])
    await SamekeyMiddleware(answering(sink), guard=guard, endpoint=ENDPOINT)(short, receive, sink)

    assert (sink.status, await state_of(guard)) == (400, None)
    assert b"body-incomplete" in sink.messages[1]["body"]


async def test_an_idempotency_key_header_of_the_application_is_not_sent_twice():
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"Idempotency-Key", b"of the app")]})
        await send({"type": "http.response.body", "body": b"done"})

    guard = AsyncGuard("memory://")
    kept = Endpoint(boundary=Opaque(), single_tenant=True, keep_headers=("Idempotency-Key",))
    sinks = [Sink(), Sink()]
    for sink in sinks:
        await SamekeyMiddleware(app, guard=guard, endpoint=kept)(scope(), body, sink)

    for sink in sinks:
        named = [value for name, value in sink.messages[0]["headers"] if name.lower() == b"idempotency-key"]
        assert named == [b'"k-1"']


async def test_the_answer_waits_for_the_application_to_return():
    """What runs after the answer may still fail: a commit, a task."""
    sink, guard = Sink(), AsyncGuard("memory://")
    await SamekeyMiddleware(answering(sink), guard=guard, endpoint=ENDPOINT)(scope(), body, sink)

    assert sink.story == ["background", "start", "body"]


async def test_the_answer_may_be_settled_and_sent_before_that():
    """settle="before-send": background tasks do not keep the client waiting, and their errors change nothing."""

    def fails() -> None:
        raise ValueError("a mail could not be sent")

    sink, guard = Sink(), AsyncGuard("memory://")
    early = Endpoint(boundary=Opaque(), single_tenant=True, settle="before-send")
    app = SamekeyMiddleware(answering(sink, then=fails), guard=guard, endpoint=early)
    with pytest.raises(ValueError, match="mail"):
        await app(scope(), body, sink)

    assert sink.story == ["start", "body", "background"]
    assert await state_of(guard) is State.COMPLETED


@pytest.mark.parametrize("framework", ["starlette", "litestar"])
@pytest.mark.parametrize("long", [False, True])
async def test_a_streamed_answer_may_be_settled_before_it_is_sent(framework: str, long: bool, tmp_path: Any):
    """Frameworks cancel a stream when they hear of the client's end: they must not hear of it while we settle."""
    from litestar import Litestar, post
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    async def parts() -> Any:
        for _ in range(3):
            yield b"part " * (100 if long else 1)

    async def starlette(request: Any) -> Any:
        return StreamingResponse(parts(), 201)

    @post("/charges")
    async def litestar() -> Stream:
        return Stream(parts())

    guard = AsyncGuard(f"sqlite:///{tmp_path}/keys.db", policy=Policy(result_max_bytes=1000))  # settling takes a while
    early = Endpoint(boundary=Opaque(), single_tenant=True, settle="before-send")
    app: Any = Litestar([litestar], openapi_config=None)
    if framework == "starlette":
        app = Starlette(routes=[Route("/charges", starlette, methods=["POST"])])
    guarded = SamekeyMiddleware(app, guard=guard, endpoint=early)
    sent = Sent("POST", "/charges", headers=(("Idempotency-Key", "k-1"),))
    first, second = await asgi_send(guarded, sent), await asgi_send(guarded, sent)
    state = await state_of(guard)
    await guard.close()

    assert (first.status, first.body, first.error) == (201, b"part " * (300 if long else 3), None)
    assert (second.status, state) == (409 if long else 201, State.COMPLETED)


async def test_a_failure_after_the_answer_is_not_a_success():
    def fails() -> None:
        raise ConnectionError("the commit failed")

    sink, guard = Sink(), AsyncGuard("memory://")
    app = SamekeyMiddleware(answering(sink, then=fails), guard=guard, endpoint=ENDPOINT)
    with pytest.raises(ConnectionError):
        await app(scope(), body, sink)

    assert sink.messages == []
    assert await state_of(guard) is State.IN_DOUBT


async def test_an_application_that_does_not_answer_is_a_doubt():
    async def silent(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    sink, guard = Sink(), AsyncGuard("memory://")
    with pytest.raises(RuntimeError, match="whole answer"):
        await SamekeyMiddleware(silent, guard=guard, endpoint=ENDPOINT)(scope(), body, sink)

    assert (sink.messages, await state_of(guard)) == ([], State.IN_DOUBT)


async def test_a_cancelled_request_is_a_doubt():
    """C21: a server that cancels tells us nothing about the effect."""
    entered = asyncio.Event()

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    sink, guard = Sink(), AsyncGuard("memory://")
    task = asyncio.create_task(SamekeyMiddleware(endless, guard=guard, endpoint=ENDPOINT)(scope(), body, sink))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await state_of(guard) is State.IN_DOUBT


async def test_whoever_listens_for_a_hang_up_hears_it_after_the_answer():
    heard: list[str] = []

    async def listening(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.request"
        later = asyncio.create_task(receive())
        await asyncio.sleep(0)
        heard.append(f"before: {later.done()}")
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})
        heard.append(f"after: {(await later)['type']}")

    given = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> dict[str, Any]:
        return given.pop() if given else {"type": "http.disconnect"}

    guard = AsyncGuard("memory://")
    await SamekeyMiddleware(listening, guard=guard, endpoint=ENDPOINT)(scope(), receive, Sink())

    assert heard == ["before: False", "after: http.disconnect"]
    assert await state_of(guard) is State.COMPLETED


@pytest.mark.parametrize("kind", ["text/plain", "text/event-stream"])
@pytest.mark.parametrize("keeps", [False, True])
async def test_a_framework_that_stops_a_stream_leaves_a_doubt(kind: str, keeps: bool):
    """Starlette hears of its client's end and cancels what it streams: how far that came, nobody knows."""
    from starlette.applications import Starlette
    from starlette.responses import StreamingResponse
    from starlette.routing import Route

    came: list[int] = []
    gone = asyncio.Event()

    async def parts() -> Any:
        if keeps:
            current().keep()
        for number in range(60):
            came.append(number)
            yield b"x" * 600
            if number == 2:
                gone.set()
                await asyncio.Event().wait()

    async def charge(request: Any) -> Any:
        return StreamingResponse(parts(), media_type=kind)

    given = [{"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if given:
            return given.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    endpoint = Endpoint(boundary=Opaque(), single_tenant=True, policy=Policy(result_max_bytes=1000))
    guard, app = AsyncGuard("memory://"), Starlette(routes=[Route("/charges", charge, methods=["POST"])])
    asgi = {"version": "3.0", "spec_version": "2.3"}
    await SamekeyMiddleware(app, guard=guard, endpoint=endpoint)(scope(asgi=asgi), receive, Sink())

    assert len(came) == 3
    assert await state_of(guard) is (State.COMPLETED if keeps else State.IN_DOUBT)


async def test_a_mark_before_the_provider_is_called_counts_as_reaching_out():
    async def marking(scope: Any, receive: Any, send: Any) -> None:
        await current().sending()
        await send({"type": "http.response.start", "status": 402, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})

    sink, guard = Sink(), AsyncGuard("memory://")
    marked = Endpoint(boundary=Opaque(marked=True), single_tenant=True)
    await SamekeyMiddleware(marking, guard=guard, endpoint=marked)(scope(), body, sink)

    assert (sink.status, await state_of(guard)) == (402, State.IN_DOUBT)


async def test_shortcuts_of_the_server_are_not_offered():
    """An answer sent as a path could not be kept."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(set(scope["extensions"]))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    offered: dict[str, Any] = {"http.response.pathsend": {}, "tls": {}}
    guarded = SamekeyMiddleware(app, guard=AsyncGuard("memory://"), endpoint=ENDPOINT)
    await guarded(scope(extensions=offered), body, Sink())

    assert seen == [{"tls"}]


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
async def test_other_scopes_are_left_alone(kind: str):
    """C69."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["type"], receive, send))

    sink = Sink()
    await SamekeyMiddleware(app, guard=AsyncGuard("memory://"), endpoint=ENDPOINT)({"type": kind}, body, sink)

    assert seen == [(kind, body, sink)]


def test_trio_runs_it_too():
    sink = Sink()

    async def main() -> None:
        app = SamekeyMiddleware(answering(sink), guard=AsyncGuard("memory://"), endpoint=ENDPOINT)
        await app(scope(), body, sink)
        await app(scope(), body, sink)

    trio.run(main)
    assert sink.story == ["background", "start", "body", "start", "body"]


def test_the_colour_must_fit():
    with pytest.raises(Misconfigured, match="AsyncGuard"):
        SamekeyMiddleware(answering(Sink()), guard=Guard("memory://"), endpoint=ENDPOINT)  # type: ignore[arg-type]
    with pytest.raises(Misconfigured, match="endpoint="):
        SamekeyMiddleware(answering(Sink()), guard=AsyncGuard("memory://"), endpoint=None)  # type: ignore[arg-type]
