"""Private MariaDB servers for tests: a free port, a temporary folder, gone afterwards.

    with mariadb() as server:
        guard = Guard(server.create_database())

The programs are Debian's (`apt-get install mariadb-server-core mariadb-client-core`, which start no service); as root
the server runs as the user `nobody`. If SAMEKEY_TEST_MYSQL has an address, that server is used, MariaDB or MySQL: each
`create_database()` still makes a new database, and a test that must restart the server gets `NoServer`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from samekey.testing.servers._process import USER, NoServer, PrivateProcess, own_folder, printed

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
    with own_folder("my") as folder:
        server = PrivateMariadb(program, folder, settings)
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
        return printed(
            statement,
            [
                _client(), "--no-defaults", "--batch", "--skip-column-names", "--protocol=tcp",
                f"--host={parts.hostname}", f"--port={parts.port or 3306}", f"--user={parts.username}",
                *([f"--password={parts.password}"] if parts.password else []), f"--execute={statement}", database,
            ],
        )  # fmt: skip

    def start(self, **settings: str) -> None:
        raise NoServer("SAMEKEY_TEST_MYSQL names a server that is not ours to start and stop", "mariadb")

    def stop(self, how: str = "fast") -> None:
        raise NoServer("SAMEKEY_TEST_MYSQL names a server that is not ours to start and stop", "mariadb")

    def restart(self, how: str = "kill", **settings: str) -> None:
        self.stop(how)
        self.start(**settings)


class PrivateMariadb(PrivateProcess, Mariadb):
    """A server of our own, in a folder of its own."""

    title, required_as = "MariaDB", "mariadb"

    def __init__(self, program: str, folder: Path, settings: Mapping[str, str]) -> None:
        PrivateProcess.__init__(self, folder)
        Mariadb.__init__(self, f"mysql://{USER}@127.0.0.1:{self.port}/")
        self.socket = folder / "s"
        self._program = program
        self._settings = {**SETTINGS, **{name.replace("_", "-"): value for name, value in settings.items()}}

    def create(self) -> None:
        """The system tables, made by the server itself from the scripts in its folder."""
        data = self.folder / "data"
        data.mkdir()
        self.give(data)
        scripts = Path(self._settings["lc-messages-dir"])
        missing = [name for name in SYSTEM_TABLES if not (scripts / name).exists()]
        if missing:
            raise NoServer(f"MariaDB's {missing[0]} is not in {scripts}", "mariadb")
        script = "CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;\n" + "\n".join(
            (scripts / name).read_text(encoding="utf-8") for name in SYSTEM_TABLES
        )
        self.run([*self._command(), "--bootstrap"], script)
        (self.folder / "init.sql").write_text(INIT)

    def start(self, **settings: str) -> None:
        """Start it, with these settings too from now on, and wait until it answers."""
        self._settings.update({name.replace("_", "-"): value for name, value in settings.items()})
        self.launch(
            *self._command(),
            f"--port={self.port}",
            "--bind-address=127.0.0.1",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'pid'}",
            f"--init-file={self.folder / 'init.sql'}",
        )

    def stop(self, how: str = "fast") -> None:
        """Stop it: `fast`, as an administrator would, or `kill`, as the kernel would."""
        self.end(signal.SIGKILL if how == "kill" else signal.SIGTERM)

    def _command(self) -> list[str]:
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        # A tmpdir of its own: a server that starts clears away other servers' temporary tables.
        places = [f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}"]
        return [self._program, "--no-defaults", *places, *settings]

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as probe:
                return bool(probe.recv(1))  # its greeting
        except OSError:
            return False
