"""The proxy that loses replies is itself to be relied on."""

from __future__ import annotations

import socket
import threading

from samekey.testing.proxy import FaultProxy


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
