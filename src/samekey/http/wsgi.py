"""WSGI: any sync application. The record is settled when the application's iterable is closed, then answered."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from http import HTTPStatus
from typing import Any

from samekey.guard.guards import Guard
from samekey.http._environ import as_bytes, has_unended_body, headers_in
from samekey.http._ignored import refuse_ignored_rules
from samekey.http._message import Header, Reply, Request, is_endless
from samekey.http._rules import Rules, check_rules, opened
from samekey.http._visit import Door, Stream, Visit, close
from samekey.http.endpoint import Endpoint

Environ = dict[str, Any]
StartResponse = Callable[..., Callable[[bytes], Any]]
App = Callable[[Environ, StartResponse], Iterable[bytes]]


class SamekeyMiddleware:
    """Guards a WSGI application; `endpoint` is an Endpoint, or a function of the Request that chooses one."""

    _checked = False

    def __init__(self, app: App, *, guard: Guard, endpoint: Rules) -> None:
        self.app = app
        self._door = Door(guard)
        self._endpoint = check_rules(endpoint)
        self._door.start(self._endpoint)
        refuse_ignored_rules(app, "samekey.http.wsgi.SamekeyMiddleware")

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        if not self._checked:  # once more with the first request: views may be added after the middleware
            refuse_ignored_rules(self.app, "samekey.http.wsgi.SamekeyMiddleware")
            self._checked = True
        request = request_of(environ)
        ready = opened(self._endpoint, request, partial(read_body, environ), sends=True)
        if ready is None:
            return self.app(environ, start_response)
        entered = ready if isinstance(ready, Reply) else self._door.enter(*ready)
        if isinstance(entered, Reply):
            return send_reply(start_response, entered)
        environ["wsgi.input"], environ["CONTENT_LENGTH"] = io.BytesIO(request.body), str(len(request.body))
        return run_app(self.app, environ, start_response, entered)


def request_of(environ: Environ) -> Request:
    path = as_bytes(environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).decode("utf-8", "backslashreplace")
    return Request(
        environ["REQUEST_METHOD"].upper(),  # as Django and Werkzeug read it
        path,
        query=as_bytes(environ.get("QUERY_STRING", "")),
        headers=headers_in(environ),
        native=environ,
    )


def read_body(environ: Environ, endpoint: Endpoint, key: str) -> bytes | Reply:
    """The whole body, or the problem with it; nothing is claimed before its end."""
    given, most = environ.get("CONTENT_LENGTH") or "", endpoint.body_max_bytes
    if not given and not environ.get("wsgi.input_terminated"):
        # Without a length, WSGI gives an empty body. A body in chunks has no end to which it could be read.
        return endpoint.endless(key) if has_unended_body(environ) else b""
    if given and not (given.isascii() and given.isdigit()):
        return endpoint.incomplete(key)
    if len(given) > 20 or int(given or 0) > most:
        return endpoint.too_large(key)
    try:
        body: bytes = environ["wsgi.input"].read(int(given) if given else most + 1)
    except OSError:
        return endpoint.incomplete(key)
    if len(body) > most:
        return endpoint.too_large(key)
    return body if not given or len(body) == int(given) else endpoint.incomplete(key)


def run_app(app: App, environ: Environ, start_response: StartResponse, visit: Visit) -> Iterable[bytes]:
    started = _Started()
    made: Any = None
    try:
        made = app(environ, started)
        parts = iter(made)
        while not is_endless(started.headers) and started.size <= visit.room:
            part = next(parts, None)
            if part is None:
                return finish(made, started, start_response, visit)
            started.write(part)
    except BaseException as error:
        try:
            if not started.closed:
                close(made)
        finally:
            reply = visit.fail(error)
        if reply is None:
            raise
        return send_reply(start_response, reply)
    # Too long to keep, or an event stream: sent as it is made, settled when it is closed.
    started.out = True
    reply = started.reply(kept=False)
    out = visit.endpoint.first(reply, visit.key, stored=False)
    start_response(started.line, [(name.decode("latin-1"), value.decode("latin-1")) for name, value in out.headers])
    return Stream(itertools.chain(started.parts, parts), made, visit, reply)


def finish(made: Any, started: _Started, start_response: StartResponse, visit: Visit) -> Iterable[bytes]:
    """The application has sent all parts: close it and settle, in the order that `settle=` gives; then answer."""
    early = visit.endpoint.settle == "before-send"
    reply = started.reply()
    if not early:
        started.closed = True
        close(made)
    out = visit.leave(reply)
    started.closed = True
    if early:
        close(made)
    return send_reply(start_response, out)


class _Started:
    """What the application gave to `start_response`, and the parts that it has sent since."""

    def __init__(self) -> None:
        self.status, self.headers = 0, list[Header]()
        self.line = ""
        self.parts: list[bytes] = []
        self.size = 0
        self.out = self.closed = False

    def __call__(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], Any]:
        if exc_info and (self.out or self.size):  # too late for another answer, as at any server: raise the error
            raise exc_info[1].with_traceback(exc_info[2])
        self.line, self.status = status, int(status[:3])
        self.headers = [(as_bytes(name), as_bytes(value)) for name, value in headers]
        return self.write

    def write(self, part: bytes) -> None:
        self.parts.append(part)
        self.size += len(part)

    def reply(self, *, kept: bool = True) -> Reply:
        if not self.status:
            raise RuntimeError("the application returned without calling start_response")
        return Reply(self.status, self.headers, b"".join(self.parts) if kept else None)


def send_reply(start_response: StartResponse, reply: Reply) -> list[bytes]:
    body = reply.body or b""
    headers = [
        (name.decode("latin-1"), value.decode("latin-1"))
        for name, value in reply.headers
        if name.lower() not in (b"content-length", b"transfer-encoding")
    ]
    if reply.status not in (204, 304):
        headers.append(("Content-Length", str(len(body))))
    try:
        phrase = HTTPStatus(reply.status).phrase
    except ValueError:  # a status of the application's own
        phrase = "Unknown"
    start_response(f"{reply.status} {phrase}", headers)
    return [body]
