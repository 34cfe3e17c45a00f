"""Pure ASGI: for Starlette, FastAPI (see `fastapi` for routes), Quart, or a bare application.

samekey holds the application's answer back until the application has returned, because a dependency may still fail its
commit after the answer was made. Then the record is settled, and then the answer goes out. An answer that is too long
to keep, and an event stream, goes out while it is made, with `Idempotency-Stored: false`.

A client that hangs up stops nothing: the application learns of it only when its answer can no longer be kept.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, MutableMapping
from types import FrameType
from typing import Any
from urllib.parse import unquote_to_bytes

from samekey.core.errors import Misconfigured
from samekey.guard.guards import AsyncGuard
from samekey.http._ignored import refuse_ignored_rules
from samekey.http._message import BODY_HEADERS, WITHOUT_BODY, Header, Reply, Request, falls_short, is_endless, new_tuple
from samekey.http._rules import Rules, check_rules, choose
from samekey.http._visit import AsyncDoor, AsyncVisit, counts
from samekey.http.endpoint import Endpoint
from samekey.loops import running

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# A list in the scope, for frameworks that answer exceptions themselves: the adapter appends each exception that became
# a page, and whether it is only a way to answer.
RAISED = "samekey.raised"
Raised = list[tuple[Exception, bool]]
STARLETTE_HANDLERS = "starlette.exception_handlers"

# The modules whose responses have a `background` task, and how far from `send` such a response is looked for.
RESPONSES = ("starlette.responses", "litestar.response")
FRAMES_MAX = 20

# Server extensions that replace `http.response.body`: an answer sent through one could not be kept.
SHORTCUTS = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")


class SamekeyMiddleware:
    """Guards an ASGI application; `endpoint` is an Endpoint, or a function of the Request that chooses one."""

    _checked = False

    def __init__(self, app: App, *, guard: AsyncGuard, endpoint: Rules) -> None:
        self.app = app
        self._passage = Passage(guard)
        self._endpoint = check_rules(endpoint)
        self._passage.declare(self._endpoint)
        refuse_ignored_rules(app, "samekey.http.asgi.SamekeyMiddleware")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._checked:
            await self._check_views(scope, receive, send)
        if scope["type"] == "http":
            await self._passage(self.app, self._endpoint, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    async def _check_views(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Once more when the server starts, or with the first request: routes may come after the middleware."""
        try:
            refuse_ignored_rules(self.app, "samekey.http.asgi.SamekeyMiddleware")
            await self._passage.start()
        except Misconfigured as error:
            if scope["type"] == "lifespan":
                await receive()
                await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        self._checked = True


class Passage:
    """Runs requests of any ASGI application under one guard: what the adapter of every ASGI framework uses."""

    def __init__(self, guard: AsyncGuard) -> None:
        self._door = AsyncDoor(guard)
        self.declare, self.start = self._door.declare, self._door.start

    def __call__(
        self,
        app: App,
        rules: Rules | None,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        route: str | None = None,
        path: str | None = None,
    ) -> Awaitable[None]:
        """One request to `app`; `route` is its template, and `path` how the framework reads its path, if it differs."""
        query, headers = scope.get("query_string", b""), scope.get("headers", ())
        if path is None:
            path = path_of(scope)
        request = Request(scope["method"].upper(), path, query, headers, b"", route, scope)
        endpoint = rules if type(rules) is Endpoint else choose(rules, request)
        key = None if endpoint is None else endpoint.opening(request)
        if endpoint is None or key is None:
            return app(scope, receive, send)
        if not isinstance(key, str):
            return send_reply(send, key)
        return self._guarded(app, endpoint, request, key, receive, send)

    async def _guarded(
        self, app: App, endpoint: Endpoint, request: Request, key: str, receive: Receive, send: Send
    ) -> None:
        length, max_bytes = request.named.get(b"content-length", b""), endpoint.body_max_bytes
        if length.isdigit() and int(length[:20]) > max_bytes:
            return await send_reply(send, endpoint.too_large(key))
        message = await receive()
        body: Any = message.get("body", b"")
        if message.get("more_body") or message["type"] != "http.request":
            body = await read_on(message, receive, max_bytes)
            if body is None:
                return  # the client is gone, and nothing was claimed
        if len(body) > max_bytes:
            return await send_reply(send, endpoint.too_large(key))
        if length.isdigit() and len(body) < int(length[:20]):
            return await send_reply(send, endpoint.incomplete(key))  # some servers end a body that broke off
        if type(body) is not bytes:
            body = bytes(body)
        request.body = body
        entered = await self._door.enter(endpoint, request, key)
        if not isinstance(entered, AsyncVisit):
            return await send_reply(send, entered)
        scope: Scope = request.native
        exchange = _Exchange(entered, scope, body, receive, send)
        extensions = scope.get("extensions")
        if extensions:
            scope["extensions"] = {name: one for name, one in extensions.items() if name not in SHORTCUTS}
        handlers = scope.get(STARLETTE_HANDLERS)
        if handlers is not None:
            scope[RAISED] = raised = Raised()
            scope[STARLETTE_HANDLERS] = tuple([_Overheard(one, raised) for one in handlers])
        try:
            await app(scope, exchange.receive, exchange.send)
        except BaseException as error:  # the core judges every exception
            await exchange.failed(error)
        else:
            await exchange.settle()
        if exchange.background_error is not None:
            raise exchange.background_error  # the answer is out: this is for the log of the server


def path_of(scope: Scope) -> str:
    """The whole path of the request. Litestar removes the mount from `path`; `raw_path` still has it."""
    path: str = scope["path"]
    raw = scope.get("raw_path")
    if raw is None or len(raw) <= len(path):
        return path
    return unquote_to_bytes(raw.partition(b"?")[0]).decode("utf-8", "backslashreplace")


def whole_template(scope: Scope, whole: str, own: str, template: str) -> str:
    """The template of a route that knows its `own` part of the `whole` path, with the mount before it."""
    return (whole[: -len(own)] if own and whole.endswith(own) else scope.get("root_path", "")) + template


async def read_on(message: Message, receive: Receive, max_bytes: int) -> bytes | None:
    """The whole body, or more bytes than are allowed; None if the client hung up before the end."""
    parts, size = [], 0
    while message["type"] == "http.request":
        part = message.get("body", b"")
        parts.append(part)
        size += len(part)
        if size > max_bytes or not message.get("more_body"):
            return b"".join(parts)
        message = await receive()
    return None


def catch_background_errors(frame: FrameType | None, exchange: _Exchange) -> None:
    """Replace the background task of the response that is being sent by one that keeps its exception to itself.

    A response runs its task after its last byte. Its exception would travel through the `yield` dependencies of the
    handler, which would roll back, and then look like a failure of the handler. A middleware is not shown the
    response, so it is looked up in the frames that are sending; where it is not found, the exception counts.
    """
    for _ in range(FRAMES_MAX):
        if frame is None:
            return
        if frame.f_globals.get("__name__", "").startswith(RESPONSES):
            response = frame.f_locals.get("self")
            task = getattr(response, "background", None)
            if response is not None and task is not None:
                response.background = _Background(task, exchange)
            return
        frame = frame.f_back


class _Background:
    """A background task whose exception is raised again after the record is settled and the answer is sent."""

    def __init__(self, task: Any, exchange: _Exchange) -> None:
        # An application may return one response object for every request.
        self._task: Any = task._task if isinstance(task, _Background) else task
        self._exchange = exchange

    async def __call__(self) -> None:
        try:
            await self._task()
        except Exception as error:
            self._exchange.background_error = error


class _Overheard:
    """Starlette's exception handlers, by class or by status; notes the exception for which one is looked up."""

    __slots__ = ("_handlers", "_raised")

    def __init__(self, handlers: Any, raised: Raised) -> None:
        self._handlers, self._raised = handlers, raised

    def __contains__(self, kind: Any) -> bool:
        return kind in self._handlers

    def __getitem__(self, kind: Any) -> Any:
        return self.get(kind)

    def get(self, kind: Any) -> Any:
        error = sys.exc_info()[1]
        if isinstance(error, Exception):
            self._raised.append((error, True))  # a handler's answer is deliberate, whatever its status
        return self._handlers.get(kind)


class _Exchange:
    """One guarded request as the application sees it: what it receives, and what is done with what it sends."""

    _start: Message | None = None
    _headers: list[Header]
    _complete = False  # the application has sent the last part of its answer
    _over = False  # and `receive` may report the client's end
    _flowing = False  # too long to keep, or endless: each part is sent at once
    _settled = False
    _gone = False
    _bell: Any = None
    _size = 0  # of the body so far
    background_error: Exception | None = None

    def __init__(self, visit: AsyncVisit, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        self._visit, self._scope = visit, scope
        self._body: bytes | None = body
        self._receive, self._send = receive, send
        self._parts: list[bytes] = []

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        while not (self._over or self._flowing):
            # Reporting the client's end now would cut an answer short for which other requests may wait.
            self._bell = self._bell or running().bell()
            await self._bell.wait(None)
        if self._over:
            return {"type": "http.disconnect"}
        return await self._receive()

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind == "http.response.start":
            headers = message.get("headers", ())
            self._start = message
            if type(headers) is not list:
                headers = list(headers)
            self._headers = headers
            if is_endless(headers):
                await self._flow(more=True)
        elif kind == "http.response.body":
            more = message.get("more_body", False)
            if self._flowing:
                self._size += len(message.get("body", b""))
                await self._forward(message)
            else:
                part = message.get("body", b"")
                if type(part) is not bytes:
                    part = bytes(part)
                self._parts.append(part)
                self._size += len(part)
                if self._size > self._visit.room:
                    await self._flow(more=more)
            if not more:
                self._complete = True
                catch_background_errors(sys._getframe().f_back, self)
                # Settle before `receive` reports the end: a framework that listens for it would cancel this task.
                if self._visit.endpoint.settle == "before-send":
                    await self.settle()
                self._over = True
                if self._bell is not None:
                    self._bell.ring()
        else:  # early hints and the like are for this client only
            await self._forward(message)

    async def _flow(self, *, more: bool) -> None:
        """Send each part at once from now on."""
        self._flowing = True
        if self._bell is not None:
            self._bell.ring()
        start = self._start or {}
        made = Reply(start["status"], self._headers, None)
        reply = self._visit.endpoint.first(made, self._visit.key, stored=False)
        await self._forward({**start, "headers": reply.headers})
        if self._parts:
            await self._forward({"type": "http.response.body", "body": b"".join(self._parts), "more_body": more})
            self._parts.clear()

    async def _forward(self, message: Message) -> None:
        if self._gone:
            return
        try:
            await self._send(message)
        except OSError:  # the client hung up; the application goes on to its end
            self._gone = True

    async def settle(self) -> None:
        """The application has returned."""
        if self._settled:
            return
        self._settled = True
        start = self._start
        if start is None or not self._complete:
            if self._flowing and start is not None:  # the framework stopped it: the client is gone
                return await self._visit.cut(Reply(start["status"], self._headers, None))
            broken = RuntimeError("the application returned without a whole answer")
            await self._visit.fail(broken)
            raise broken
        body = None if self._flowing else b"".join(self._parts)
        made = new_tuple(Reply, (start["status"], self._headers, body))
        raised: Raised | None = self._scope.get(RAISED)
        error, answers = raised[-1] if raised else (None, False)
        if error is not None and counts(self._visit, error, made.status, answers=answers):
            reply = await self._visit.fail(error, made) or self._visit.endpoint.first(made, self._visit.key)
        elif body is None and falls_short(made, self._size):
            return await self._visit.cut(made)
        else:
            reply = await self._visit.leave(made)
        if not self._flowing:
            await send_reply(self._send, reply, ours=False)

    async def failed(self, error: BaseException) -> None:
        """The application raised: answer the error if we can, else raise it again."""
        if self._settled:
            raise error
        self._settled = True
        made: Reply | None = None
        start = self._start
        if start is not None and self._complete and not self._flowing and start["status"] >= 500:
            made = Reply(start["status"], self._headers, b"".join(self._parts))  # the page for this exception
        reply = await self._visit.fail(error, made)
        if made is not None and reply is None:
            reply = self._visit.endpoint.first(made, self._visit.key)
        if reply is None or self._flowing:
            raise error
        await send_reply(self._send, reply, ours=False)
        if made is not None and reply.body is made.body:
            raise error  # the application answered and raised, and so do we: the server logs it


async def send_reply(send: Send, reply: Reply, *, ours: bool = True) -> None:
    """Send an answer with its length; a length that the application set may be wrong by now."""
    status, headers, body = reply
    body = body or b""
    if status not in WITHOUT_BODY:
        length = (b"content-length", b"%d" % len(body))
        if ours:
            headers.append(length)
        elif length not in headers:
            headers = [*(one for one in headers if one[0].lower() not in BODY_HEADERS), length]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
