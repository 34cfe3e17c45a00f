"""One small application per framework: every request goes to a handler, which the suite gives."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request

from samekey.testing.http import Called, Handle, Said


def parts_of(said: Said) -> list[bytes]:
    return said.body if isinstance(said.body, list) else [said.body]


def bare_asgi(handle: Handle) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        said = await asyncio.to_thread(handle, Called(scope["method"], scope["path"], body))
        headers = [(name.lower().encode(), value.encode()) for name, value in said.headers]
        await send({"type": "http.response.start", "status": said.status, "headers": headers})
        for part in parts_of(said):
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def bare_wsgi(handle: Handle) -> Any:
    def app(environ: Any, start_response: Any) -> Any:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        said = handle(Called(environ["REQUEST_METHOD"], environ["PATH_INFO"], body))
        start_response(f"{said.status} Said", list(said.headers))
        return iter(parts_of(said))

    return app


def starlette_answer(said: Said) -> Any:
    from starlette.responses import Response, StreamingResponse

    if isinstance(said.body, list):
        response: Any = StreamingResponse(iter(said.body), said.status)
    else:
        response = Response(said.body, said.status)
    own = [one for one in response.raw_headers if one[0] == b"content-length"]
    headers = [(name.lower().encode(), value.encode()) for name, value in said.headers]
    response.raw_headers = [*(own if b"content-length" not in dict(headers) else ()), *headers]
    return response


METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


def starlette_endpoint(handle: Handle) -> Any:
    async def endpoint(request: Request) -> Any:
        body = await request.body()
        return starlette_answer(await asyncio.to_thread(handle, Called(request.method, request.url.path, body)))

    return endpoint


def flask_view(handle: Handle) -> Any:
    from flask import Response, request

    def view(path: str) -> Any:
        said = handle(Called(request.method, request.path, request.get_data()))
        body: Any = iter(said.body) if isinstance(said.body, list) else said.body
        response = Response(body, said.status)
        del response.headers["Content-Type"]
        for name, value in said.headers:
            if name == "Content-Length":
                del response.headers[name]  # its own, which would be right
            response.headers.add(name, value)
        return response

    return view


def django_answer(said: Said) -> Any:
    from django.http import HttpResponse, StreamingHttpResponse

    response: Any
    if isinstance(said.body, list):
        response = StreamingHttpResponse(iter(said.body), status=said.status)
    else:
        response = HttpResponse(said.body, status=said.status)
    del response.headers["Content-Type"]
    for name, value in said.headers:
        if name == "Set-Cookie":
            response.set_cookie(*value.split("="))
        else:
            response.headers[name] = value
    return response
