"""A small shop over HTTP that keeps every promise about its keys; and the same shop with one mistake planted in it.

POST or PUT /charges charges; with `X-Fail: before` it declines, with `X-Fail: after` it charges and then fails
POST /streamed       charges, and answers in pieces
POST /anything-else  charges
GET  /count          how many charges there were
POST /break, /heal   the card is declined from now on, or no longer
"""

from __future__ import annotations

import hashlib
import json
import secrets
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BODY_MAX_BYTES = 1 << 20
PATIENCE_SECONDS = 2.0
GAP_SECONDS = 0.05  # how long a request that checked the key waits for another one

MISTAKES = (
    "no key at all",
    "bodies are not compared",
    "check, then act",
    "the key is deleted on an error",
    "a success after a failure is forgotten",
    "a decline is remembered",
    "a decline locks the key",
    "tenants share keys",
    "the status is not kept",
    "large bodies are not guarded",
    "bad keys are ignored",
    "the first of two keys is taken",
    "quotes belong to the key",
    "the browser belongs to the intent",
    "the key is claimed before the body is there",
    "equal requests without a key are one",
    "streams are not kept",
    "losers are answered 500",
    "a replay writes one row of twenty again",
    "a client that hangs up leaves its claim",
    "after thirty requests everybody is refused",
    "bad keys are answered later",
    "keys are compared without case",
    "keys are cut at 64 characters",
    "dashes are dropped from keys",
    "cookies are replayed",
    "the path is not compared",
    "the query is not compared",
    "the method is not compared",
    "PUT gets no answer",
    "long keys get no answer",
)
# Habits that are no mistakes: the examiner finds nothing wrong with them.
HABITS = (
    "keys over 64 characters are refused",
    "every answer sets the same cookie",
    "unknown queries are refused",
    "another query is another operation",
    "only POST is served",
    "only known paths are served",
)
ROWS = 20  # that a charge writes, where rows are counted


@dataclass
class Entry:
    intent: Any
    state: str = "started"  # completed, released, in_doubt
    answer: tuple[int, bytes, bool] | None = None
    failed_before: bool = False


class Declined(Exception):
    pass


@dataclass
class Shop:
    mistake: str = ""
    charges: list[Any] = field(default_factory=list)
    entries: dict[Any, Entry] = field(default_factory=dict)
    declining: bool = False
    rows_again: int = 0
    seen: list[tuple[str, str]] = field(default_factory=list)  # (path, authorization)
    lock: threading.Condition = field(default_factory=threading.Condition)
    gap: threading.Barrier = field(default_factory=lambda: threading.Barrier(2))

    def has(self, mistake: str) -> bool:
        assert mistake in (*MISTAKES, *HABITS)
        return self.mistake == mistake

    def charge(self, payload: Any, fail: str) -> tuple[int, bytes, bool]:
        if self.declining or fail == "before":
            raise Declined
        with self.lock:
            self.charges.append(payload)
            number = len(self.charges)
        if self.has("losers are answered 500"):
            threading.Event().wait(GAP_SECONDS)  # so that there are losers
        if fail == "after":
            raise RuntimeError("the line to the bank went dead")
        return 201, json.dumps({"charge": number}).encode(), False

    @property
    def count(self) -> int:
        rows = self.has("a replay writes one row of twenty again")
        return len(self.charges) * ROWS + self.rows_again if rows else len(self.charges)

    def answer(
        self, key: Any, intent: Any, payload: Any, fail: str, *, forget: bool, gone: Callable[[], bool]
    ) -> tuple[int, bytes, bool] | None:
        """(status, body, replayed); None if the client does not want it any more"""
        entry = self.claim(key, intent)
        if not isinstance(entry, Entry):
            return entry
        if self.has("a client that hangs up leaves its claim") and gone():
            self.settle(entry, "in_doubt", None)
            return None
        try:
            answer = self.charge(payload, fail)
        except Declined:
            answer = 402, b'{"declined": true}', False
            entry.failed_before = True
            ends = "completed" if self.has("a decline is remembered") else "released"
            self.settle(entry, "in_doubt" if self.has("a decline locks the key") else ends, answer)
        except RuntimeError:
            answer = 500, b'{"error": true}', False
            if self.has("the key is deleted on an error"):
                del self.entries[key]
            self.settle(entry, "in_doubt", None)
        else:
            self.settle(entry, "completed", answer)
            if forget or (entry.failed_before and self.has("a success after a failure is forgotten")):
                del self.entries[key]
        return answer

    def claim(self, key: Any, intent: Any) -> Entry | tuple[int, bytes, bool]:
        if self.has("check, then act") and key not in self.entries:
            try:
                self.gap.wait(GAP_SECONDS)
            except threading.BrokenBarrierError:
                self.gap.reset()
            self.entries[key] = Entry(intent)
            return self.entries[key]
        with self.lock:
            entry = self.entries.get(key)
            if entry is None:
                self.entries[key] = entry = Entry(intent)
                return entry
            if entry.intent not in (None, intent):
                return 422, b'{"error": "another body"}', False
            if self.has("losers are answered 500") and entry.state == "started":
                raise KeyError(key)
            self.lock.wait_for(lambda: entry.state != "started", PATIENCE_SECONDS)
            if entry.state == "released":
                entry.state, entry.intent = "started", intent
                return entry
            if entry.state != "completed" or entry.answer is None:
                return 409, b'{"error": "unknown"}', False
            self.rows_again += 1
            status, body, _ = entry.answer
            return (200 if self.has("the status is not kept") else status), body, True

    def settle(self, entry: Entry, state: str, answer: tuple[int, bytes, bool] | None) -> None:
        with self.lock:
            entry.state, entry.answer = state, answer
            self.lock.notify_all()


class Malformed(Exception):
    pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    shop: Shop

    def do_GET(self) -> None:
        self.say(200, str(self.shop.count).encode())

    def do_PUT(self) -> None:
        if self.shop.has("PUT gets no answer"):
            self.close_connection = True
            return None
        if self.shop.has("only POST is served"):
            return self.say(405, b"{}")
        return self.do_POST()

    def do_POST(self) -> None:
        shop = self.shop
        path, _, query = self.path.partition("?")
        shop.seen.append((self.path, self.headers.get("Authorization", "")))
        if self.path in ("/break", "/heal"):
            shop.declining = self.path == "/break"
            return self.say(200, b"{}")
        if shop.has("after thirty requests everybody is refused") and len(shop.seen) > 30:
            return self.say(429, b"{}")
        if shop.has("long keys get no answer") and len(self.headers.get("Idempotency-Key", "")) > 200:
            self.close_connection = True
            return None
        try:
            key = self.key()
        except Malformed:
            return self.say(429 if shop.has("bad keys are answered later") else 400, b'{"error": "key"}')
        length = int(self.headers.get("Content-Length", 0))
        if query and shop.has("unknown queries are refused"):
            self.rfile.read(length)
            return self.say(400, b'{"error": "query"}')
        if shop.has("only known paths are served") and path not in ("/charges", "/streamed"):
            self.rfile.read(length)
            return self.say(404, b"{}")
        who = None if shop.has("tenants share keys") else self.headers.get("Authorization")
        if shop.has("no key at all") or (shop.has("large bodies are not guarded") and length > BODY_MAX_BYTES):
            key = None
        if key is not None and shop.has("another query is another operation"):
            key = f"{key} {query}"
        if key is not None and length > BODY_MAX_BYTES:
            return self.say(413, b'{"error": "large"}')
        early = None
        if key is not None and shop.has("the key is claimed before the body is there"):
            with shop.lock:
                if (who, key) not in shop.entries:
                    shop.entries[who, key] = early = Entry(None, "in_doubt")
        body = self.rfile.read(length)
        if len(body) < length:
            self.close_connection = True
            return None
        if early is not None:
            shop.settle(early, "released", None)
        try:
            payload = json.loads(body)
        except ValueError:
            return self.say(400, b'{"error": "body"}')
        if key is None and shop.has("equal requests without a key are one"):
            key = json.dumps(payload, sort_keys=True)
        fail = self.headers.get("X-Fail", "")
        try:
            if key is None:
                status, body, replayed = shop.charge(payload, fail)
            else:
                forget = self.path == "/streamed" and shop.has("streams are not kept")
                intent = self.intent(payload)
                answer = shop.answer((who, key), intent, payload, fail, forget=forget, gone=self.gone)
                if answer is None:
                    self.close_connection = True
                    return None
                status, body, replayed = answer
        except Declined:
            return self.say(402, b"{}")
        except (RuntimeError, KeyError):
            return self.say(500, b"{}")
        return self.say(status, body, replayed=replayed)

    def gone(self) -> bool:
        """Whether the client hung up; a client that has just sent its request is given a moment to do so."""
        ready, _, _ = select.select([self.connection], [], [], GAP_SECONDS)
        return bool(ready) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def key(self) -> str | None:
        shop = self.shop
        found = self.headers.get_all("Idempotency-Key") or []
        if not found:
            return None
        value = found[0].strip()
        if shop.has("keys are compared without case"):
            value = value.lower()
        if shop.has("keys are cut at 64 characters"):
            value = value[:64]
        if shop.has("dashes are dropped from keys"):
            value = value.replace("-", "")
        if len(value) > 64 and shop.has("keys over 64 characters are refused"):
            raise Malformed
        if len(found) > 1 and not shop.has("the first of two keys is taken"):
            raise Malformed
        if len(value) > 1 and value[0] == value[-1] == '"' and not shop.has("quotes belong to the key"):
            value = value[1:-1]
        if not value or len(value) > 255 or "," in value or not (value.isascii() and value.isprintable()):
            if shop.has("bad keys are ignored"):
                return None
            raise Malformed
        if value[0] == '"' and not shop.has("quotes belong to the key"):
            raise Malformed
        return value

    def intent(self, payload: Any) -> Any:
        shop = self.shop
        path, _, query = self.path.partition("?")
        return (
            None if shop.has("the method is not compared") else self.command,
            None if shop.has("the path is not compared") else path,
            None if shop.has("the query is not compared") else query,
            self.headers.get("User-Agent") if shop.has("the browser belongs to the intent") else None,
            None if shop.has("bodies are not compared") else json.dumps(payload, sort_keys=True),
        )

    def cookie(self, body: bytes) -> str:
        """A new value for every answer, also for a replay: the safe habit."""
        if self.shop.has("every answer sets the same cookie"):
            return "currency=usd"
        if self.shop.has("cookies are replayed"):
            return f"visit={hashlib.sha256(body).hexdigest()}; Path=/; HttpOnly"
        return f"visit={secrets.token_hex(8)}; Path=/; HttpOnly"

    def say(self, status: int, body: bytes, *, replayed: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        if status == 201:
            self.send_header("Set-Cookie", "theme=dark")
            self.send_header("Set-Cookie", self.cookie(body))
        if replayed:
            self.send_header("Idempotent-Replayed", "true")
        if status == 413:
            self.close_connection = True
            self.send_header("Connection", "close")
        if self.path == "/streamed" and status == 201:
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in (body[:5], body[5:]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 64  # all callers of a crowd at once
    block_on_close = True
    daemon_threads = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients that hang up are part of the examination


@contextmanager
def opened(mistake: str = "") -> Iterator[tuple[str, Shop]]:
    """A shop on a free port: its address, and itself."""
    shop = Shop(mistake)
    server = Server(("127.0.0.1", 0), type("ShopHandler", (Handler,), {"shop": shop}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", shop
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
