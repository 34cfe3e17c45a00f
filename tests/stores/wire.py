"""A wire that can be cut: it swallows the answer to a chosen statement and hangs up, so that nobody knows."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any
from urllib.parse import urlsplit, urlunsplit


class Wire:
    """Stands before a server. `cut(n)`: the n-th answer from now on is swallowed, and its connection closed."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._there = (parts.hostname or "127.0.0.1", parts.port or 0)
        self._door = socket.create_server(("127.0.0.1", 0))
        user = f"{parts.username}@" if parts.username else ""
        self.url = urlunsplit(parts._replace(netloc=f"{user}127.0.0.1:{self._door.getsockname()[1]}"))
        self.cuts = 0
        self._until_cut = 0
        self._mutex = threading.Lock()
        self._sockets = [self._door]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self, number: int = 1) -> None:
        with self._mutex:
            self._until_cut = number

    def mend(self) -> bool:
        """Whether the cut was still to come."""
        with self._mutex:
            left, self._until_cut = self._until_cut, 0
        return left > 0

    def close(self) -> None:
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def _start(self, work: Any, *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._door.accept()
                try:
                    server = socket.create_connection(self._there)
                except OSError:
                    client.close()
                    continue
                self._sockets += [client, server]
                self._start(self._pump, client, server, False)
                self._start(self._pump, server, client, True)

    def _pump(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self._cuts_now():
                    break
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _cuts_now(self) -> bool:
        with self._mutex:
            if not self._until_cut:
                return False
            self._until_cut -= 1
            self.cuts += not self._until_cut
            return not self._until_cut
