"""A provider over HTTP that does as it was told: answers in order, or hangs up; it remembers what it was sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

DROPPED = 0  # hang up without an answer
GARBLED = 1  # answer with something that is no HTTP


@dataclass
class Provider:
    url: str = ""
    plan: list[tuple[int, dict[str, str]]] = field(default_factory=list)  # then 201
    seen: list[tuple[str, str, str | None, bytes]] = field(default_factory=list)  # method, path, key, body

    def will(self, *answers: int, **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.plan += [(answer, named) for answer in answers]

    @property
    def keys(self) -> list[str | None]:
        return [key for _, _, key, _ in self.seen]


@contextmanager
def opened(header: str = "Idempotency-Key") -> Iterator[Provider]:
    provider = Provider()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = b""
                while size := int(self.rfile.readline(), 16):
                    body += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            provider.seen.append((self.command, self.path, self.headers.get(header), body))
            status, headers = provider.plan.pop(0) if provider.plan else (201, {})
            if status in (DROPPED, GARBLED):
                self.close_connection = True
                self.wfile.write(b"what?\r\n\r\n" * status)
                return
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" in headers:
                self.close_connection = True  # more was announced than there is
            else:
                self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_PUT = do_PATCH = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True  # a client's pool keeps its connections open
    server.block_on_close = False
    provider.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield provider
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
