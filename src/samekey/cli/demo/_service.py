"""How the demo's processes talk: JSON lines with the parent, JSON over HTTP on 127.0.0.1 with each other.

A child learns its part from the first line on stdin and lives only as long as stdin is open. So nothing
stays when the parent ends, whatever ended it.
"""

from __future__ import annotations

import hmac
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any

Message = dict[str, Any]
Handlers = Mapping[str, Callable[..., Any]]
BODY_MAX_BYTES = 1 << 16


class NeverSent(ConnectionError):
    """No connection, so no request: this one certainly did not happen."""


# -- a child and its parent ----------------------------------------------------------------------------


def inbox() -> SimpleQueue[Message]:
    """What the parent says, line by line; the process ends with the last line."""
    messages: SimpleQueue[Message] = SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            messages.put(json.loads(line))
        os._exit(0)  # the parent is gone or has no more work; no thread of ours may outlive that

    threading.Thread(target=read, daemon=True).start()
    return messages


def tell(**message: Any) -> None:
    print(json.dumps(message), flush=True)


# -- a service and its callers -------------------------------------------------------------------------


def serve(handlers: Handlers, *, secret: str) -> None:
    """Answer POST /name with handlers[name](**body), each request in its own thread, until the parent ends."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.handlers, server.secret = handlers, secret
        tell(event="ready", port=server.server_port)
        server.serve_forever()


class Remote:
    """The other end of `serve`."""

    def __init__(self, *, port: int, secret: str) -> None:
        self._port, self._secret = port, secret

    def call(self, name: str, *, timeout_seconds: float, **body: Any) -> Any:
        """The answer; NeverSent if the service was not reached, TimeoutError if it did not answer in time."""
        connection = HTTPConnection("127.0.0.1", self._port, timeout=timeout_seconds)
        try:
            try:
                connection.connect()
            except OSError as error:
                raise NeverSent(str(error)) from error
            connection.request("POST", f"/{name}", json.dumps(body), {"Authorization": self._secret})
            response = connection.getresponse()
            answer = response.read()
        finally:
            connection.close()
        if response.status != 200:
            raise RuntimeError(f"/{name} answered {response.status}")
        return json.loads(answer)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # every worker may knock at once
    handlers: Handlers
    secret: str

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that went away is the point of the demo
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        # The port is open to every user of this machine, and the provider kills by pid: only our own may ask.
        allowed = hmac.compare_digest(self.headers.get("Authorization", ""), self.server.secret)
        handler = self.server.handlers.get(self.path.removeprefix("/"))
        length = int(self.headers.get("Content-Length", 0))
        if not allowed or handler is None or length > BODY_MAX_BYTES:
            self.send_error(403 if not allowed else 404 if handler is None else 413)
            return
        answer = json.dumps(handler(**json.loads(self.rfile.read(length)))).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: the ledger is the log."""
