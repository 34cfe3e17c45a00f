"""A hot standby of a private PostgreSQL server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from samekey.testing.servers import USER, NoServer, Postgres, PrivatePostgres, own_folder


@contextlib.contextmanager
def standby(primary: Postgres) -> Iterator[PrivatePostgres]:
    """A server that follows this one; `promote` makes it a primary."""
    if not isinstance(primary, PrivatePostgres):
        raise NoServer("SAMEKEY_TEST_PG names a server that is not ours to copy")
    with own_folder("pg") as folder:
        copy = PrivatePostgres(primary.programs, folder, primary.settings)
        source = f"host=127.0.0.1 port={primary.port} user={USER} application_name=standby"
        backup = [str(copy.programs / "pg_basebackup"), "-D", str(copy.data), "-R", "-X", "stream"]
        copy.run([*backup, "-c", "fast", "--no-sync", "-d", source])
        try:
            copy.start()
            yield copy
        finally:
            copy.stop("immediate")


def promote(copy: Postgres) -> None:
    copy.sql("SELECT pg_promote(true, 30)")
