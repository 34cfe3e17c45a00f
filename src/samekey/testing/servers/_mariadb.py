"""Private MariaDB servers for tests: a free port, a temporary folder, gone afterwards.

    with mariadb() as server:
        guard = Guard(server.create_database())

The programs are Debian's (`apt-get install mariadb-server-core mariadb-client-core`, which start no service); as root
the server runs as the user `nobody`. If SAMEKEY_TEST_MYSQL has an address, that server is used, MariaDB or MySQL: each
`create_database()` still makes a new database, and a test that must restart the server gets `NoServer`.
"""
# ruff: noqa: S603 - starts the server's own program, with arguments made here

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from samekey.testing.servers._process import START_SECONDS, STOP_SECONDS, USER, NoServer, free_port, unprivileged

# A claim is in the kernel's hands when it is answered (2), so a killed server keeps it; say 1 where a test is about
# power losses. Small, because tests start several.
SETTINGS = {
    "innodb-flush-log-at-trx-commit": "2",
    "innodb-buffer-pool-size": "32M",
    "innodb-log-file-size": "16M",
    "innodb-use-native-aio": "0",  # else a few servers use up what a user may lock in memory
    "max-connections": "300",
    "skip-name-resolve": "1",
    "lc-messages-dir": "/usr/share/mysql",
}

SYSTEM_TABLES = ("mysql_system_tables.sql", "mysql_performance_tables.sql", "mysql_system_tables_data.sql")

# Sent at every start: a user that may do everything, over the network, without a password.
INIT = f"""\
CREATE OR REPLACE USER '{USER}'@'%' IDENTIFIED BY '';
GRANT ALL ON *.* TO '{USER}'@'%' WITH GRANT OPTION;
"""


@contextlib.contextmanager
def mariadb(**settings: str) -> Iterator[Mariadb]:
    """A running server; these settings are added to ours (`innodb_doublewrite="0"`)."""
    elsewhere = os.environ.get("SAMEKEY_TEST_MYSQL")
    if elsewhere:
        yield Mariadb(elsewhere)
        return
    program = shutil.which("mariadbd", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
    if program is None:
        raise NoServer(
            "no MariaDB here: apt-get install mariadb-server-core, or name a server in SAMEKEY_TEST_MYSQL", "mariadb"
        )
    # Short: a socket's path has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="samekey-my-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        server = PrivateMariadb(program, Path(folder), settings)
        try:
            server.create()
            server.start()
            yield server
        finally:
            server.stop("kill")


def _client() -> str:
    program = shutil.which("mariadb") or shutil.which("mysql")
    if program is None:
        raise NoServer("no client for MariaDB here: apt-get install mariadb-client-core", "mariadb")
    return program


class Mariadb:
    """A server that was started elsewhere."""

    def __init__(self, address: str) -> None:
        self._address = address

    def url(self, database: str = "") -> str:
        """The address of this database, or of none."""
        return urlunsplit(urlsplit(self._address)._replace(path=f"/{database}"))

    def create_database(self) -> str:
        """The address of a new, empty database; it stays until the server goes."""
        name = f"samekey_{uuid4().hex[:12]}"
        self.sql(f"CREATE DATABASE {name}")
        return self.url(name)

    def sql(self, statement: str, database: str = "") -> str:
        """What the client prints for this statement, without decoration."""
        parts = urlsplit(self._address)
        done = subprocess.run(
            [
                _client(), "--no-defaults", "--batch", "--skip-column-names", "--protocol=tcp",
                f"--host={parts.hostname}", f"--port={parts.port or 3306}", f"--user={parts.username}",
                *([f"--password={parts.password}"] if parts.password else []), f"--execute={statement}", database,
            ],
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{statement}: {done.stderr.strip()}")
        return done.stdout.strip()

    def start(self) -> None:
        raise NoServer("SAMEKEY_TEST_MYSQL names a server that is not ours to start and stop", "mariadb")

    def stop(self, how: str = "fast") -> None:
        raise NoServer("SAMEKEY_TEST_MYSQL names a server that is not ours to start and stop", "mariadb")

    def restart(self, how: str = "kill", **settings: str) -> None:
        raise NoServer("SAMEKEY_TEST_MYSQL names a server that is not ours to start and stop", "mariadb")


class PrivateMariadb(Mariadb):
    """A server of our own, in a folder of its own."""

    def __init__(self, program: str, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.port = free_port()
        self.socket = folder / "s"
        super().__init__(f"mysql://{USER}@127.0.0.1:{self.port}/")
        self._program = program
        self._settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in settings.items()}}
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = unprivileged()
        if self._as_user:
            os.chown(folder, self._as_user["user"], self._as_user["group"])

    @property
    def pid(self) -> int:
        if self._process is None:
            raise NoServer("the server is not running", "mariadb")
        return self._process.pid

    def create(self) -> None:
        """The system tables, made by the server itself from the scripts in its folder."""
        data = self.folder / "data"
        data.mkdir()
        if self._as_user:
            os.chown(data, self._as_user["user"], self._as_user["group"])
        scripts = Path(self._settings["lc-messages-dir"])
        missing = [name for name in SYSTEM_TABLES if not (scripts / name).exists()]
        if missing:
            raise NoServer(f"MariaDB's {missing[0]} is not in {scripts}", "mariadb")
        script = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n" + "\n".join(
            (scripts / name).read_text(encoding="utf-8") for name in SYSTEM_TABLES
        )
        done = subprocess.run(
            [*self._command(), "--bootstrap"],
            input=script,
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=START_SECONDS,
            check=False,
            **self._as_user,
        )
        if done.returncode:
            raise NoServer(f"MariaDB could not make its tables: {done.stderr.strip()[-2000:]}", "mariadb")
        (self.folder / "init.sql").write_text(INIT)

    def start(self, **settings: str) -> None:
        """Start it, with these settings too from now on, and wait until it answers."""
        self._settings.update({name.replace("_", "-"): value for name, value in settings.items()})
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._command(),
                    f"--port={self.port}",
                    "--bind-address=127.0.0.1",
                    f"--socket={self.socket}",
                    f"--pid-file={self.folder / 'pid'}",
                    f"--init-file={self.folder / 'init.sql'}",
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C in the terminal is for the tests, not for the server
                **self._as_user,
            )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop("kill")
                raise NoServer(f"MariaDB did not start:\n{self.log()[-2000:]}", "mariadb")
            time.sleep(0.02)

    def stop(self, how: str = "fast") -> None:
        """Stop it: `fast`, as an administrator would, or `kill`, as the kernel would."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def restart(self, how: str = "kill", **settings: str) -> None:
        self.stop(how)
        self.start(**settings)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _command(self) -> list[str]:
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        # A tmpdir of its own: a server that starts clears away other servers' temporary tables.
        places = [f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}"]
        return [self._program, "--no-defaults", *places, *settings]

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as probe:
                return bool(probe.recv(1))  # its greeting
        except OSError:
            return False
