"""The proxy that loses replies is itself to be relied on."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.servers import proxy as proxies
from tests.servers.proxy import FaultProxy


def test_a_proxy_that_is_cut_all_the_time_still_welcomes():
    """A cut may strike a connection that has only just come; the next one is served all the same."""
    over = threading.Event()

    def cut() -> None:
        while not over.is_set():
            proxy.cut()

    with socket.create_server(("127.0.0.1", 0), backlog=500) as server, FaultProxy(server.getsockname()[1]) as proxy:
        cutting = threading.Thread(target=cut)
        cutting.start()
        for _ in range(300):
            socket.create_connection(("127.0.0.1", proxy.port), 10).close()
        over.set()
        cutting.join()
        server.settimeout(10)
        for _ in range(300):
            server.accept()[0].close()  # TimeoutError, if one did not get through


@pytest.fixture
def echo():
    with socket.create_server(("127.0.0.1", 0)) as door:

        def answer() -> None:
            client, _ = door.accept()
            with client:
                while said := client.recv(100):
                    client.sendall(said)

        threading.Thread(target=answer, daemon=True).start()
        yield door.getsockname()[1]


@pytest.mark.slow
def test_an_idle_connection_is_not_cut(echo, monkeypatch):
    monkeypatch.setattr(proxies, "CONNECT_SECONDS", 0.1)
    with FaultProxy(echo) as between, socket.create_connection(("127.0.0.1", between.port), 5) as line:
        time.sleep(0.4)  # real time: longer than a connection may take to be made
        line.sendall(b"still there")

        assert line.recv(100) == b"still there"


def test_a_lost_reply_takes_its_connection_with_it(echo):
    with FaultProxy(echo) as between, socket.create_connection(("127.0.0.1", between.port), 5) as line:
        between.lose_replies(1)
        line.sendall(b"anyone?")

        assert line.recv(100) == b""
        assert between.to_lose == 0
