"""SQS on this machine: moto's server, as a process of its own."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from samekey.testing.servers._process import NoServer, PrivateProcess, own_folder


@contextlib.contextmanager
def sqs_server() -> Iterator[SqsServer]:
    """A running server; its queues end with it."""
    if importlib.util.find_spec("moto") is None:
        raise NoServer("there is no SQS here: pip install 'moto[server]'", "sqs")
    with own_folder("sqs") as folder:
        server = SqsServer(folder)
        try:
            server.start()
            yield server
        finally:
            server.end(signal.SIGKILL)


class SqsServer(PrivateProcess):
    title, required_as, refuses_root = "moto", "sqs", False

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.launch(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port))

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5):
                return True
        except OSError:
            return False
