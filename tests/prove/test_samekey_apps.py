"""What samekey guards passes its own examiner, on real servers: uvicorn for ASGI, wsgiref for WSGI."""

from __future__ import annotations

import json
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route

from samekey import AsyncGuard, Guard, Opaque
from samekey.http import Endpoint, asgi, wsgi
from samekey.prove import Probe, Target, examine

ENDPOINT = Endpoint(boundary=Opaque(), principal=lambda request: request.header("authorization"))


@contextmanager
def under_asgi(store: str, *, guarded: bool = True) -> Iterator[str]:
    charges: list[Any] = []

    async def charge(request: Request) -> Any:
        payload = await request.json()
        if request.headers.get("x-fail") == "before":
            return JSONResponse({"declined": True}, 402)
        charges.append(payload)
        if request.headers.get("x-fail") == "after":
            return JSONResponse({"error": True}, 500)
        body = json.dumps({"charge": len(charges)})
        if request.url.path == "/streamed":
            return StreamingResponse(iter([body[:5], body[5:]]), 201, media_type="application/json")
        answer = PlainTextResponse(body, 201)
        answer.set_cookie("visit", secrets.token_hex(8))
        return answer

    async def count(request: Request) -> Any:
        return PlainTextResponse(str(len(charges)))

    app: Any = Starlette(
        routes=[Route("/charges", charge, methods=["POST", "PUT"]), Route("/streamed", charge, methods=["POST"])]
    )
    app.add_route("/count", count)
    if guarded:
        app.add_middleware(asgi.SamekeyMiddleware, guard=AsyncGuard(store), endpoint=ENDPOINT)
    listening = socket.create_server(("127.0.0.1", 0), backlog=64)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


@contextmanager
def under_wsgi(store: str) -> Iterator[str]:
    charges: list[Any] = []

    def app(environ: Any, start_response: Any) -> Any:
        def say(status: str, body: str) -> list[bytes]:
            cookie = ("Set-Cookie", f"visit={secrets.token_hex(8)}")
            head = [("Content-Type", "application/json"), ("Content-Length", str(len(body))), cookie]
            start_response(status, head)
            return [body.encode()]

        if environ["PATH_INFO"] == "/count":
            return say("200 OK", str(len(charges)))
        payload = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        if environ.get("HTTP_X_FAIL") == "before":
            return say("402 Payment Required", "{}")
        charges.append(payload)
        if environ.get("HTTP_X_FAIL") == "after":
            return say("500 Internal Server Error", "{}")
        return say("201 Created", json.dumps({"charge": len(charges)}))

    class Handler(WSGIRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingMixIn, WSGIServer):
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # clients that hang up are part of the examination

    with Guard(store) as guard, Server(("127.0.0.1", 0), Handler) as server:
        server.set_app(wsgi.SamekeyMiddleware(app, guard=guard, endpoint=ENDPOINT))
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def prove(url: str, **options: Any) -> Any:
    return examine(
        Target(
            url=f"{url}/charges",
            body=b'{"amount": 200, "currency": "usd"}',
            headers=(("Authorization", "ann"),),
            other_headers=(("Authorization", "bob"),),
            fail_headers=(("X-Fail", "before"), ("X-Fail", "after")),
            oversize_bytes=2 << 20,
            patience_seconds=0.3,
            settle_seconds=0.05,
            **options,
        ),
        probe=Probe(url=f"{url}/count"),
    )


@pytest.mark.parametrize("store", ["memory://", "sqlite:///keys.db"])
def test_an_asgi_application_guarded_by_samekey_holds_all_four(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with under_asgi(store) as url:
        report = prove(url, stream_url=f"{url}/streamed")

    assert [finding for finding in report.findings if finding.standing != "holds"] == []


def test_a_wsgi_application_guarded_by_samekey_holds_all_four():
    with under_wsgi("memory://") as url:
        report = prove(url, skip=("streamed-answer",))

    assert {finding.scenario for finding in report.findings if finding.standing != "holds"} == {"streamed-answer"}


def test_the_same_application_without_samekey_holds_none():
    with under_asgi("", guarded=False) as url:
        report = prove(url)

    assert report.broken == ("Claim", "Intent", "Memory", "Boundary")
