"""gunicorn's sync workers, which serve one request at a time, and a Redis that dies under them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from samekey import Guard, State
from samekey.testing.servers import RedisServer, redis_server
from samekey.testing.servers._process import free_port
from tests.guard.helpers import Thread, until

APP = """
import json, os, pathlib, time
from samekey import Guard, Opaque, Policy
from samekey.http.wsgi import SamekeyMiddleware
from samekey.http.endpoint import Endpoint

folder = pathlib.Path(os.environ["SHOP_FOLDER"])

def app(environ, start_response):
    (folder / "entered").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps({"worker": os.getpid()}).encode()]

guard = Guard(os.environ["SHOP_STORE"], policy=Policy(patience=60))
app = SamekeyMiddleware(app, guard=guard, endpoint=Endpoint(boundary=Opaque(), single_tenant=True))
"""
SILENT_SECONDS = 8  # after so long gunicorn kills a worker; without settle_patience the answer takes 30 s


class Got(NamedTuple):
    status: int
    headers: Any
    body: Any


class Workers:
    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self._url = folder, f"http://127.0.0.1:{port}/charges"

    def post(self, key: str = "o-1") -> Got:
        request = urllib.request.Request(self._url, b"{}", {"Idempotency-Key": f'"{key}"'})
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return Got(reply.status, reply.headers, json.load(reply))
        except urllib.error.HTTPError as error:
            with error:
                return Got(error.code, error.headers, json.load(error))


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server(appendonly="yes", appendfsync="always") as running:
        yield running


@contextlib.contextmanager
def gunicorn(server: RedisServer, folder: Path, workers: int) -> Iterator[Workers]:
    (folder / "shop.py").write_text(APP)
    port = free_port()
    command = f"gunicorn shop:app --bind 127.0.0.1:{port} --workers {workers} --timeout {SILENT_SECONDS}"
    environ = {**os.environ, "SHOP_FOLDER": str(folder), "SHOP_STORE": server.url()}
    process = subprocess.Popen(
        [sys.executable, "-m", *command.split(), "--log-level", "error"], cwd=folder, env=environ
    )
    try:
        until(lambda: _listens(port))
        yield Workers(folder, port)
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_store_that_dies_in_mid_effect_costs_neither_the_answer_nor_the_worker(server: RedisServer, tmp_path: Path):
    with gunicorn(server, tmp_path, workers=1) as shop:
        first = Thread(shop.post)
        until((tmp_path / "entered").exists)
        server.stop(kill=True)
        (tmp_path / "go").touch()
        got = first.outcome(60)
        server.start()
        with Guard(server.url()) as guard:
            until(lambda: _state(guard) is State.COMPLETED)
        again = shop.post()

    assert (got.status, got.headers["Idempotency-Stored"]) == (200, "false")
    assert (again.status, again.body, again.headers["Idempotent-Replayed"]) == (200, got.body, "true")


def _state(guard: Guard) -> State | None:
    return getattr(guard.peek("POST /charges", "o-1"), "state", None)


def test_a_loser_keeps_a_worker_that_serves_one_request_at_a_time_for_a_second_only(
    server: RedisServer, tmp_path: Path
):
    with gunicorn(server, tmp_path, workers=2) as shop:
        first = Thread(shop.post)
        until((tmp_path / "entered").exists)
        loser = shop.post()  # its policy would wait for a minute
        (tmp_path / "go").touch()
        got = first.outcome(60)

    assert (loser.status, got.status) == (409, 200)
    assert int(loser.headers["Retry-After"]) >= 1
