"""SQLite: where the file is, how it is opened, what it promises, and what its errors mean."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from samekey.core.errors import Misconfigured, RecordUnreadable, StoreBusy, StoreError, StoreUnavailable
from samekey.drivers.schema import OTHER_TABLES, RECORD_COLUMNS, quoted
from samekey.drivers.urls import split

Connection = sqlite3.Connection
Cursor = sqlite3.Cursor
DriverError = sqlite3.Error
Synchronous = Literal["full", "normal"]

SCHEMA = 1  # the newest migration this version knows
TABLES = ("samekey_records", "samekey_meta", *OTHER_TABLES)
BUSY_SECONDS = 5.0  # how long another process's write may keep us waiting; ours take milliseconds
BUSY_FIRST_PAUSE_SECONDS = 0.0005
BUSY_LAST_PAUSE_SECONDS = 0.002  # a writer that comes again at once leaves the file free for less than that
STATEMENTS_CACHED = 64
# So many pages of log are written to the file together: a fourth as often as SQLite's own 1000, for 16 MB of log. Not
# more: SQLite indexes the log in pieces of 4096 pages, and one piece is searched as fast as before.
LOG_PAGES = 4000


@dataclass(frozen=True, slots=True)
class Address:
    """A checked place for a database file."""

    path: Path
    synchronous: Synchronous = "full"


def parse_url(url: str) -> Address:
    """`sqlite:///keys.db` is relative, `sqlite:////var/lib/keys.db` absolute; `?synchronous=normal` is faster."""
    parts, given = split(url)
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or not path or path == ":memory:" or "\0" in path:
        raise Misconfigured(
            "this address names no file: write sqlite:///keys.db, sqlite:////absolute/keys.db, or memory:// for memory"
        )
    options = dict(given)
    synchronous = options.pop("synchronous", "full")
    if options:
        raise Misconfigured(f"unknown option {sorted(options)[0]!r} in this address; the one there is: synchronous")
    return Address(Path(path), check_synchronous(synchronous))


def check_synchronous(given: Any) -> Synchronous:
    if given not in ("full", "normal"):
        raise Misconfigured(f"synchronous is 'full' (survives power loss) or 'normal', not {given!r}")
    checked: Synchronous = given
    return checked


def check_path(path: Path) -> None:
    """One clear sentence for each way in which a file cannot be the store."""
    try:
        if path.is_dir():
            raise Misconfigured(f"{path} is a directory; name a file in it")
        if not path.parent.is_dir():
            raise Misconfigured(f"the directory {path.parent} does not exist; create it first")
        if path.exists() and not os.access(path, os.R_OK | os.W_OK):
            raise Misconfigured(f"{path} cannot be read and written by this user")
        if not os.access(path.parent, os.W_OK):
            raise Misconfigured(f"the directory {path.parent} is not writable, and SQLite writes its log there")
    except OSError as error:  # a directory that may not be read, or a name that is too long
        raise Misconfigured(f"{path} cannot be looked at: {error.strerror}") from error


def connect(path: Path, *, synchronous: Synchronous, read_only: bool = False) -> sqlite3.Connection:
    """A connection in WAL mode, in autocommit, with our own waiting instead of SQLite's."""
    check_path(path)
    with translated(str(path)):
        connection = sqlite3.connect(
            path,
            timeout=0,  # see `patiently`: a busy file must never block an event loop
            isolation_level=None,
            check_same_thread=False,
            cached_statements=STATEMENTS_CACHED,
        )
        try:
            with needing_the_file(str(path)):
                patiently(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone())
            connection.execute(f"PRAGMA synchronous = {synchronous.upper()}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
            if read_only:
                connection.execute("PRAGMA query_only = ON")
        except BaseException:
            connection.close()
            raise
    return connection


def file_id(path: Path) -> tuple[int, int] | None:
    """Which file lies at this path; None if there is none that we may see."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def require_one_name(path: Path) -> None:
    """SQLite names the log after the name of the file: two processes that open one file by two names have two logs."""
    try:
        found = os.stat(path)
    except OSError:
        return  # none yet
    names = found.st_nlink
    if names > 1 and stat.S_ISREG(found.st_mode):
        raise Misconfigured(
            f"{path} has {names} names (hard links): a process that opens it by another name does not see the "
            "claims made by this one, and both would run. Leave it one name; a symbolic link does no harm"
        )


def open_files() -> set[tuple[int, int]]:
    """Which files this process has open, where the operating system lists them."""
    found = set()
    folder = next((one for one in ("/proc/self/fd", "/dev/fd") if os.path.isdir(one)), None)
    for name in os.listdir(folder) if folder else ():
        try:
            entry = os.fstat(int(name))
        except (OSError, ValueError):
            continue  # the listing's own descriptor is closed by now
        found.add((entry.st_dev, entry.st_ino))
    return found


def require_ours(path: Path, name: str) -> None:
    """For operator commands: the file must exist and have our tables; nothing in it is changed."""
    if schema_of(path, name) == 0:
        trouble = "has no samekey tables: is it the right file?" if path.exists() else "does not exist"
        raise Misconfigured(f"{path} {trouble}")


def schema_of(path: Path, name: str) -> int:
    """The newest migration that this file has, 0 if none or no file; nothing of it is changed."""
    check_path(path)
    if not path.exists():
        return 0
    with translated(name):
        connection = sqlite3.connect(path.absolute().as_uri() + "?mode=ro", uri=True, timeout=BUSY_SECONDS)
        try:
            return _schema(connection)
        finally:
            connection.close()


def patiently(work: Any, seconds: float = BUSY_SECONDS) -> Any:
    """Do `work` again while another connection holds the file, for as long as `seconds`."""
    pause, deadline = BUSY_FIRST_PAUSE_SECONDS, time.monotonic() + seconds
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
        time.sleep(pause)
        pause = min(pause * 2, BUSY_LAST_PAUSE_SECONDS)


def is_busy(error: sqlite3.Error) -> bool:
    """Whether waiting can help. A transaction that read before another one wrote can never write: it cannot."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code != sqlite3.SQLITE_BUSY_SNAPSHOT and (code & 0xFF) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextmanager
def translated(name: str) -> Iterator[None]:
    """The driver's exceptions as ours, once, at the edge."""
    try:
        yield
    except sqlite3.Error as error:
        raise store_error(name, error) from error


@contextmanager
def needing_the_file(name: str) -> Iterator[None]:
    """While our tables are made: our own caller may hold the file, and would wait for us for ever."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if not is_busy(error):
            raise
        raise StoreUnavailable(
            f"{name} has no samekey tables yet, and they cannot be made while a transaction holds the file. "
            "If that is your own transaction, make them before it begins: `samekey migrate --store sqlite:///...`, once"
        ) from error


def store_error(name: str, error: sqlite3.Error) -> StoreError | Misconfigured:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if is_busy(error):
        return StoreBusy(
            f"{name} is held by another writer for longer than {BUSY_SECONDS:.0f} s; "
            "if that is a transaction of your own, claim in it: guard.on(connection)"
        )
    if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_BUSY_SNAPSHOT:
        return StoreUnavailable(f"{name}: the transaction read before another one wrote; begin it with BEGIN IMMEDIATE")
    if code == sqlite3.SQLITE_FULL:
        return StoreUnavailable(f"the disk of {name} is full; nothing was written")
    if code == sqlite3.SQLITE_READONLY:
        return Misconfigured(f"{name} is read-only for this process")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return RecordUnreadable(f"{name} is damaged, or not a SQLite database: restore it from a backup")
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreUnavailable(f"{name} cannot be opened")
    if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH):
        return Misconfigured(f"{name} refused a statement of samekey, so its samekey tables are not ours: {error}")
    return StoreUnavailable(f"{name}: {error}")


# -- schema ------------------------------------------------------------------------------------------------


def migrate(connection: sqlite3.Connection, name: str) -> None:
    """Bring the file to our schema; refuse one that a newer version wrote. Safe when many start at once."""
    with translated(name):
        if _schema(connection) == SCHEMA:
            _require_our_columns(connection, name)
            return
        with needing_the_file(name):
            patiently(lambda: connection.execute("BEGIN IMMEDIATE"))
        try:
            found = _schema(connection)
            if found > SCHEMA:
                raise Misconfigured(
                    f"{name} was written by a newer samekey (schema {found}, this one knows {SCHEMA}): upgrade samekey"
                )
            if found == 0:
                _require_no_tables(connection, name)
            for number in range(found + 1, SCHEMA + 1):
                for statement in migration(number).split(";\n"):
                    if statement.strip():
                        connection.execute(statement)
                connection.execute(
                    "INSERT INTO samekey_meta (name, value) VALUES ('schema', ?) "
                    "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
                    (str(number),),
                )
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _require_no_tables(connection: sqlite3.Connection, name: str) -> None:
    """Before the first migration: a table of another program under one of our names would stop it half-way."""
    there = sorted({*TABLES} - missing_tables(connection))
    if there:
        raise Misconfigured(f"{name} has a table {there[0]} that samekey did not make: rename it, or give another file")


def missing_tables(connection: sqlite3.Connection) -> set[str]:
    return {*TABLES} - {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}


def _require_our_columns(connection: sqlite3.Connection, name: str) -> None:
    found = {row[1] for row in connection.execute("PRAGMA table_info(samekey_records)")}
    missing = sorted(set(RECORD_COLUMNS) - found)
    if missing:
        raise Misconfigured(f"the table samekey_records of {name} is not ours: it has no column {missing[0]}")


def migration(number: int) -> str:
    """The SQL of one migration, as shipped."""
    folder = resources.files("samekey.stores") / "migrations" / "sqlite"
    return next(
        entry.read_text(encoding="utf-8") for entry in folder.iterdir() if entry.name.startswith(f"{number:04d}_")
    )


def _schema(connection: sqlite3.Connection) -> int:
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'samekey_meta'").fetchone():
        return 0
    row = connection.execute("SELECT value FROM samekey_meta WHERE name = 'schema'").fetchone()
    if row is not None and not str(row[0]).isdecimal():
        raise Misconfigured(f"the table samekey_meta is not ours: its schema is {str(row[0])[:40]!r}")
    return int(row[0]) if row else 0


# -- the lease clock ---------------------------------------------------------------------------------------


BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
TIME_NAMESPACE = Path("/proc/self/timens_offsets")


def lease_clock() -> tuple[str, Callable[[], float]]:
    """Which clock leases count on, and its seconds: since this boot of the machine, sleep included.

    A lease of another boot is dead, whatever its number says. Without a boot's id (no /proc, an unknown system) that
    could not be told from a lease of this one, which may look alive for as long as the machine was up before: then
    the wall clock judges, and a step back keeps a lease alive longer.
    """
    boot = boot_id()
    if boot is None:
        return "wall", time.time
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return boot, time.monotonic
    read: Callable[[], float] = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
    ahead = _ahead_of_the_machine()
    return boot, (lambda: read() - ahead) if ahead else read


def boot_id() -> str | None:
    """Which boot of this machine this is, where the operating system knows it."""
    try:
        return BOOT_ID.read_text().strip() or None
    except OSError:
        pass
    if sys.platform == "darwin":
        found = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False
        )
        if found.returncode == 0:
            return found.stdout.strip() or None
    return None


def _ahead_of_the_machine() -> float:
    """How far off the boot clock of our time namespace is: it has its machine's boot id, and a clock of its own."""
    try:
        for name, seconds, nanoseconds in map(str.split, TIME_NAMESPACE.read_text().splitlines()):
            if name == "boottime":
                return int(seconds) + int(nanoseconds) / 1e9
    except (OSError, ValueError):
        pass  # a kernel that has none
    return 0.0


def network_file_system(path: Path) -> str | None:
    """The kind of network file system the file lies on, if any: SQLite's locks are not reliable there."""
    try:
        mounts = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return None
    real, best, kind = str(path.resolve()), "", ""
    for line in mounts:
        _, where, fs, *_ = line.split(" ")
        if (real == where or real.startswith(where.rstrip("/") + "/")) and len(where) >= len(best):
            best, kind = where, fs
    return kind if kind.startswith(("nfs", "cifs", "smb", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs")) else None


def read_table(path: Path, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """These columns of every row of a table in any file, which is only read."""
    with translated(str(path)):
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        try:
            names = ", ".join(map(quoted, columns))
            yield from connection.execute(f"SELECT {names} FROM {quoted(table)}")  # noqa: S608 - quoted
        finally:
            connection.close()
