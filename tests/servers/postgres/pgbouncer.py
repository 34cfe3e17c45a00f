"""A private PgBouncer between a test and its private PostgreSQL server."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

from samekey.testing.servers import USER, NoServer, Postgres, PrivatePostgres, PrivateProcess, own_folder

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
"""


@contextlib.contextmanager
def pgbouncer(server: Postgres) -> Iterator[PgBouncer]:
    """A PgBouncer in transaction mode before this server, which must be one of our own."""
    if not isinstance(server, PrivatePostgres):
        raise NoServer("SAMEKEY_TEST_PG names a server that PgBouncer knows nothing of")
    program = shutil.which("pgbouncer", path=os.environ.get("PATH", "") + os.pathsep + "/usr/sbin")
    if program is None:
        raise NoServer("no PgBouncer here: apt-get install pgbouncer", "pgbouncer")
    with own_folder("pgb") as folder:
        bouncer = PgBouncer(program, folder, server.port)
        try:
            bouncer.start()
            yield bouncer
        finally:
            bouncer.stop()


class PgBouncer(PrivateProcess):
    title, required_as = "PgBouncer", "pgbouncer"

    def __init__(self, program: str, folder: Path, server_port: int) -> None:
        super().__init__(folder)
        self._program, self._server_port = program, server_port

    def url(self, address: str) -> str:
        """This address of the server, through us."""
        return address.replace(f":{self._server_port}/", f":{self.port}/")

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = BOUNCER.format(server=self._server_port, port=self.port, folder=self.folder)
        (self.folder / "pgbouncer.ini").write_text(settings)
        (self.folder / "users").write_text(f'"{USER}" ""\n')
        for name in ("pgbouncer.ini", "users"):
            (self.folder / name).chmod(0o644)
        self.launch(self._program, str(self.folder / "pgbouncer.ini"))

    def stop(self) -> None:
        self.end(signal.SIGTERM)  # at once: connections are dropped

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False
