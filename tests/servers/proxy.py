"""A TCP proxy that loses replies: the one fault that every client of a store must survive.

    with FaultProxy(port=6379) as proxy:
        store = RedisStore(f"redis://127.0.0.1:{proxy.port}")
        proxy.lose_replies(1)      # the server carries the next command out, and nobody hears of it
        store.carry_out(command)

It speaks no protocol: whatever comes back from the server next is dropped, and the connection with it. `hold()`
keeps all that clients say until `release()`, so that a test can see what travels together.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

CHUNK = 1 << 16
CONNECT_SECONDS = 5.0


class FaultProxy:
    """A proxy on a free local port; as a with-block it is gone afterwards."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self.target = (host, port)  # may be changed: an address that moves to another server, for new connections
        self._mutex = threading.Lock()
        self._to_lose = 0
        self._released = threading.Event()
        self._released.set()
        self._sockets: set[socket.socket] = set()
        self.sent: list[bytes] = []  # what clients said, as it travelled
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._door.getsockname()[1]

    def __enter__(self) -> FaultProxy:
        threading.Thread(target=self._welcome, name="samekey-proxy", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._released.set()
        self._door.close()
        self.cut()

    def lose_replies(self, count: int) -> None:
        """The next so many replies are lost, each with its connection."""
        with self._mutex:
            self._to_lose = count

    @property
    def to_lose(self) -> int:
        """How many replies are still to be lost."""
        return self._to_lose

    def cut(self) -> None:
        """End every connection, now."""
        with self._mutex:
            ended, self._sockets = self._sockets, set()
        for one in ended:
            _end(one)

    def hold(self) -> None:
        self._released.clear()

    def release(self) -> None:
        self._released.set()

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):  # the door was closed
            while True:
                client, _ = self._door.accept()
                try:
                    server = socket.create_connection(self.target, CONNECT_SECONDS)
                except OSError:
                    client.close()
                    continue
                server.settimeout(None)  # that was for connecting: an idle connection is not a broken one
                for one in (client, server):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._mutex:  # from here on they may be cut at any moment
                    self._sockets |= {client, server}
                for source, target, work in ((client, server, self._forth), (server, client, self._back)):
                    threading.Thread(target=work, args=(source, target), name="samekey-proxy", daemon=True).start()

    def _forth(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while said := client.recv(CHUNK):
                self._released.wait()
                self.sent.append(said)
                server.sendall(said)
        self._hang_up(client, server)

    def _back(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while reply := server.recv(CHUNK):
                with self._mutex:
                    lost = self._to_lose > 0
                    self._to_lose -= lost
                if lost:
                    break
                client.sendall(reply)
        self._hang_up(client, server)

    def _hang_up(self, *ends: socket.socket) -> None:
        with self._mutex:
            self._sockets -= set(ends)
        for one in ends:
            _end(one)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
