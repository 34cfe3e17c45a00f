"""What all private servers share: a folder, a free port, a user that the server accepts, a program that is started."""
# ruff: noqa: S603 - starts the servers' own programs, with arguments made here

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

START_SECONDS = 60.0  # a busy machine takes long for an initdb
STOP_SECONDS = 30.0
USER = "samekey"


class NoServer(Exception):
    """There is no such server here; the message says what to install.

    A test or fixture that lets it pass is skipped by our pytest plugin, or fails where `server` is required.
    """

    def __init__(self, why: str, server: str = "postgres") -> None:
        super().__init__(why)
        self.server = server


@contextlib.contextmanager
def own_folder(name: str) -> Iterator[Path]:
    """A temporary folder. Its path is short: the path of a socket has 107 characters at most."""
    with tempfile.TemporaryDirectory(prefix=f"samekey-{name}-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


class PrivateProcess:
    """The program of one private server. It runs in its own folder and writes its output to `log` there."""

    title: str  # "PostgreSQL", in messages
    required_as: str  # "postgres", in --samekey-require
    refuses_root = True  # then the program runs as the system user `nobody` when the tests run as root

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = unprivileged() if self.refuses_root else {}
        self.give(folder)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise NoServer("the server is not running", self.required_as)
        return self._process.pid

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def give(self, path: Path) -> None:
        """Let the server's user own this folder."""
        if self._as_user:
            os.chown(path, self._as_user["user"], self._as_user["group"])

    def launch(self, *command: str) -> None:
        """Start the program and wait until it answers."""
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal is for the tests, not for the server
                **self._as_user,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.end(signal.SIGTERM)
                raise NoServer(f"{self.title} did not start:\n{self.log()[-2000:]}", self.required_as)
            time.sleep(0.02)

    def end(self, how: signal.Signals) -> None:
        """Send this signal and wait until the program is gone."""
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def run(self, command: Sequence[str], text: str = "") -> None:
        """Run another program of the server to its end, with this text as its input."""
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=START_SECONDS,
            check=False,
            **self._as_user,
        )
        if done.returncode:
            raise NoServer(f"{Path(command[0]).name} failed: {done.stderr.strip()[-2000:]}", self.required_as)

    def answers(self) -> bool:
        raise NotImplementedError


def printed(statement: str, command: Sequence[str]) -> str:
    """What a client program prints for this statement."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_SECONDS, check=False)
    if done.returncode:
        raise RuntimeError(f"{statement}: {done.stderr.strip()}")
    return done.stdout.strip()


def unprivileged() -> dict[str, int]:
    """The user that the server runs as: our own, or the system user `nobody` when we are root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
