"""Clients without sockets: one request straight into a WSGI or an ASGI application, as a server would hand it in.

No client library is used, so a test can send what no client library would: two keys, half a body, a hang-up.
"""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes
from wsgiref.util import setup_testing_defaults

SECONDS_MAX = 30  # for one request: a test that hangs must say so


class Got(NamedTuple):
    """What came back; `error` if the application raised into the server, which would have answered 500."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    error: BaseException | None = None

    def header(self, name: str) -> str | None:
        found = [value for one, value in self.headers if one.lower() == name.lower()]
        return ", ".join(found) if found else None


class Sent(NamedTuple):
    """A request; `cut`: the client hangs up before the last of these bytes; `hangs_up`: right after them.

    `chunked`: without a length; `terminated`: through a WSGI server that ends the body itself, as gunicorn does;
    `unended`: in chunks through one that does not.
    """

    method: str
    path: str
    query: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    cut: bool = False
    hangs_up: bool = False
    chunked: bool = False
    terminated: bool = False
    unended: bool = False


class _HungUp(io.RawIOBase):
    """The body of a client that is gone before the end of its chunks."""

    def __init__(self, body: bytes) -> None:
        self._rest = body

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= len(self._rest):
            raise ConnectionResetError("the client is gone")
        part, self._rest = self._rest[:size], self._rest[size:]
        return part


class WsgiDriver:
    def __init__(self, app: Any) -> None:
        self._app = app

    def call(self, work: Callable[[], Any]) -> Any:
        return work()

    def send(self, sent: Sent) -> Got:
        environ: dict[str, Any] = {
            "REQUEST_METHOD": sent.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": unquote_to_bytes(sent.path).decode("latin-1"),
            "QUERY_STRING": sent.query,
            "SERVER_NAME": "testserver",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "REMOTE_ADDR": "127.0.0.1",
            "wsgi.input": _HungUp(sent.body) if sent.cut and sent.chunked else io.BytesIO(sent.body),
            "wsgi.multithread": True,
        }
        setup_testing_defaults(environ)
        del environ["HTTP_HOST"]  # the request has its own, or none
        if sent.chunked:
            environ["HTTP_TRANSFER_ENCODING"] = "chunked"
        else:
            environ["CONTENT_LENGTH"] = str(len(sent.body) + (7 if sent.cut else 0))
        if (sent.chunked or sent.terminated) and not sent.unended:
            environ["wsgi.input_terminated"] = True
        for name, value in sent.headers:
            plain = name.upper().replace("-", "_")
            where = plain if plain == "CONTENT_TYPE" else f"HTTP_{plain}"
            environ[where] = f"{environ[where]},{value}" if where in environ else value  # as WSGI servers join them
        started: list[Any] = []
        parts: list[bytes] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            started[:] = [int(status[:3]), list(headers)]
            return parts.append

        made: Any = ()
        try:
            made = self._app(environ, start_response)
            for part in made:
                parts.append(part)
                if sent.hangs_up:
                    break
        except Exception as error:
            return Got(500, [], b"", error)
        finally:
            if hasattr(made, "close"):
                made.close()
        return Got(started[0], started[1], b"".join(parts))

    def close(self) -> None:
        """Nothing runs between requests."""


class AsgiDriver:
    """The application lives in a loop of its own, in a thread of its own, as under a server."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def call(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def awaited() -> Any:
            return await work()

        future: Future[Any] = asyncio.run_coroutine_threadsafe(awaited(), self._loop)
        return future.result(SECONDS_MAX)

    def send(self, sent: Sent) -> Got:
        got: Got = self.call(lambda: asgi_send(self._app, sent))
        return got

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(SECONDS_MAX)
        self._loop.close()


async def asgi_send(app: Any, sent: Sent) -> Got:
    """One request into an ASGI application, in the loop that runs."""
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in sent.headers]
    if sent.chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    elif not sent.cut:
        headers.append((b"content-length", b"%d" % len(sent.body)))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": sent.method,
        "scheme": "http",
        "path": unquote_to_bytes(sent.path).decode("utf-8", "replace"),
        "raw_path": sent.path.encode("latin-1"),
        "query_string": sent.query.encode("latin-1"),
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("testserver", 80),
    }
    half = len(sent.body) // 2
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": sent.body[:half], "more_body": True}]
    if not sent.cut:
        messages.append({"type": "http.request", "body": sent.body[half:], "more_body": False})
    if sent.cut or sent.hangs_up:
        messages.append({"type": "http.disconnect"})
    over = asyncio.Event()

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop(0)
        if not (sent.cut or sent.hangs_up):
            await over.wait()
        return {"type": "http.disconnect"}

    started: list[Any] = []
    parts: list[bytes] = []

    async def send(message: Any) -> None:
        if sent.hangs_up:
            raise BrokenPipeError("the client is gone")
        if message["type"] == "http.response.start":
            started[:] = [message["status"], list(message.get("headers", ()))]
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))
            if not message.get("more_body"):
                over.set()

    error: BaseException | None = None
    try:
        await app(scope, receive, send)
    except Exception as raised:
        error = raised
    if not started:
        return Got(500 if error is not None else 0, [], b"", error)
    decoded = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in started[1]]
    return Got(started[0], decoded, b"".join(parts), error)


def together(*works: Callable[[], Any]) -> list[Any]:
    """Run all of these at once, each in a thread; what they return, in order."""
    results: list[Any] = [None] * len(works)

    def run(number: int) -> None:
        results[number] = works[number]()

    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    return results
