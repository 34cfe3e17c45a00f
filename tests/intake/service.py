"""A real `samekey intake serve` process for tests, and plain HTTP calls to it."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from samekey.testing.servers import free_port

START_SECONDS = 90.0


class Service:
    """A running service, and the API key that it printed."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self.port, self.process, self.key = port, process, ""
        self.url = f"http://127.0.0.1:{port}"

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """The status, the body and the headers of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = {"content-type": "application/json", "authorization": f"Bearer {self.key}"}
            sent |= {name.replace("_", "-"): value for name, value in headers.items()}
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            connection.request(method, path, data, sent)
            response = connection.getresponse()
            text = response.read()
            found = {name.lower(): value for name, value in response.getheaders()}
            kind = found.get("content-type", "")
            return response.status, json.loads(text) if kind.startswith("application/json") else text.decode(), found
        finally:
            connection.close()

    def trigger(self, task: str, payload: Any = None, **options: Any) -> Any:
        status, body, _ = self.call("POST", f"/api/v1/tasks/{task}/trigger", {"payload": payload, "options": options})
        assert status == 200, body
        return body


@contextmanager
def serving(*arguments: str, folder: Path, key: str = "") -> Iterator[Service]:
    """`samekey intake serve` in a process of its own, ready to answer."""
    port = free_port()
    with open(folder / f"serve-{port}.log", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "samekey", "intake", "serve", "--port", str(port), *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    service = Service(port, process)
    service.key = key
    try:
        if not key:
            assert process.stdout is not None
            reading = threading.Timer(START_SECONDS, process.kill)
            reading.start()
            service.key = process.stdout.readline().strip()
            reading.cancel()
        ends = time.monotonic() + START_SECONDS
        while True:
            try:
                if service.call("GET", "/healthz")[0] == 200:
                    break
            except OSError:
                pass
            assert process.poll() is None, (folder / f"serve-{port}.log").read_text()
            assert time.monotonic() < ends, "the service did not start"
            time.sleep(0.05)
        yield service
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
