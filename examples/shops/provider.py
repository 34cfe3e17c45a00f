"""The shops' card provider, a process of its own: `python provider.py PORT`. Its ledger is the judge.

POST /charges    honours an Idempotency-Key: one key, one line in the ledger; above LIMIT it declines with 402
POST /vouchers   knows no keys: every request is a line
GET  /ledger     the lines
POST /hold       the next request gets its line, but no answer ...
GET  /held       ... here it is, and the worker that waits for the answer: kill it, and what happened is unknown
"""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LIMIT = 10_000
ledger: list[dict[str, Any]] = []
known: dict[str, dict[str, Any]] = {}
mutex, held = threading.Lock(), threading.Condition()
holding: list[dict[str, Any]] = []  # empty: nothing is held. {}: the next request will be. Else: the one that is


class Provider(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/held":
            with held:
                held.wait_for(lambda: bool(holding and holding[0]), timeout=30)
                return self.say(200, holding.pop())
        with mutex:
            self.say(200, ledger)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        key = self.headers.get("Idempotency-Key") if self.path == "/charges" else None
        if self.path == "/hold":
            with held:
                holding[:] = [{}]
            return self.say(200, {})
        with mutex:
            line = known.get(key or "")
            if line is None and asked["amount"] > LIMIT:
                return self.say(402, {"declined": "insufficient funds"})
            if line is None:
                line = {"id": f"{self.path[1:3]}_{len(ledger) + 1}", "kind": self.path[1:], "key": key, **asked}
                ledger.append(line)
                known[key or line["id"]] = line
        with held:
            withheld = holding == [{}]
            if withheld:
                holding[:] = [{**line, "worker": int(self.headers["Shop-Worker"])}]
                held.notify_all()
        if withheld:
            threading.Event().wait()  # the answer never comes
        self.say(201, {"id": line["id"], "amount": line["amount"]})

    def say(self, status: int, what: Any) -> None:
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Quiet."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Provider).serve_forever()
