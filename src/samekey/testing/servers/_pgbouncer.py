"""A private PgBouncer between a test and its private PostgreSQL server."""
# ruff: noqa: S603 - starts the program itself, with arguments made here

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from samekey.testing.servers._postgres import Postgres, PrivatePostgres
from samekey.testing.servers._process import START_SECONDS, STOP_SECONDS, USER, NoServer, free_port, unprivileged

# Two server connections for all clients: what a statement changes in its session, the next client would find.
BOUNCER = """\
[databases]
* = host=127.0.0.1 port={server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users
pool_mode = transaction
default_pool_size = 2
max_client_conn = 500
server_reset_query_always = 0
logfile = {folder}/log
"""


@contextlib.contextmanager
def pgbouncer(server: Postgres) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode before this server, which must be one of our own."""
    if not isinstance(server, PrivatePostgres):
        raise NoServer("SAMEKEY_TEST_PG names a server that PgBouncer knows nothing of")
    program = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
    if program is None:
        raise NoServer("no PgBouncer here: apt-get install pgbouncer", "pgbouncer")
    with tempfile.TemporaryDirectory(prefix="samekey-pgb-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        bouncer = PgBouncer(program, Path(folder), server.port)
        try:
            bouncer.start()
            yield bouncer
        finally:
            bouncer.stop()


class PgBouncer:
    def __init__(self, program: str, folder: Path, server_port: int) -> None:
        self.port = free_port()
        self._program, self._folder, self._server_port = program, folder, server_port
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, address: str) -> str:
        """This address of the server, through us."""
        return address.replace(f":{self._server_port}/", f":{self.port}/")

    def start(self) -> None:
        """Start it and wait until it answers."""
        as_user: dict[str, Any] = unprivileged()
        if as_user:
            os.chown(self._folder, as_user["user"], as_user["group"])
        settings = BOUNCER.format(server=self._server_port, port=self.port, folder=self._folder)
        (self._folder / "pgbouncer.ini").write_text(settings)
        (self._folder / "users").write_text(f'"{USER}" ""\n')
        for name in ("pgbouncer.ini", "users"):
            (self._folder / name).chmod(0o644)
        self._process = subprocess.Popen(
            [self._program, "-q", str(self._folder / "pgbouncer.ini")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            **as_user,  # it refuses root, as the server does
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise NoServer(f"PgBouncer did not start:\n{(self._folder / 'log').read_text()[-2000:]}", "pgbouncer")
            time.sleep(0.02)

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.terminate()  # at once: connections are dropped
            process.wait(STOP_SECONDS)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False
