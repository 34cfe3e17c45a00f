"""One process's connections to a SQLite file: the queue of writers, the writer thread, the watcher.

A fork is dangerous. SQLite remembers per process which file locks it holds. A child process inherits that memory but
not the locks, so parent and child could delete the log file under each other, and claims that were answered would be
gone. So no connection is open while the process forks: just before the fork we wait for the write under way and close
the connections. Afterwards parent and child each open their own when they next need one.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from samekey.core.commands import Open, StoreCommand
from samekey.core.errors import Misconfigured, SamekeyError, StoreUnavailable
from samekey.core.record import Record
from samekey.drivers import sqlite as driver
from samekey.loops import Bells, ring_together, started
from samekey.stores._watching import Versions, Watch
from samekey.stores.sqlite._rows import FLOOR, VERSION

if TYPE_CHECKING:
    from samekey.stores.sqlite.store import SqliteStore

BATCH_MAX = 256  # commands in one commit: bounds how long the first of them waits for the last
GATHER_MAX_SECONDS = 0.01  # the writer waits for a crowd: as long as a slow disk's fsync, and no lease is lost by it
# How long we assume that the file at our path is the one we have open: a look takes a tenth of a claim's time. What
# this process writes in that time to a file that was just deleted is lost, like all that was written to it before.
LOOK_SECONDS = 0.001
WATCH_SECONDS = 0.005  # how often the watcher looks at the shared counter, while a caller waits
WRITER_IDLE_SECONDS = 5.0  # then the writer thread ends; a new one is cheap


class Item:
    """One queued command, and the bell of the caller that waits for it."""

    __slots__ = ("bell", "command", "error", "finished", "reply")

    def __init__(self, command: StoreCommand, bell: Any) -> None:
        if type(command) is Open:
            command.intent.fingerprint()  # now: the caller may change the payload before the writer thread reads it
        self.command = command
        self.bell = bell
        self.reply: Record | None = None
        self.error: Exception | None = None
        self.finished = False

    def wait(self) -> None:
        while not self.finished:
            self.bell.wait(None)

    async def arrive(self) -> None:
        while not self.finished:
            await self.bell.wait(None)

    def outcome(self) -> Record | None:
        if self.error is not None:
            raise self.error
        return self.reply


def _finish(items: list[Item]) -> None:
    """Wake the callers that wait for these items, all callers of one event loop by one ring."""
    for item in items:
        item.finished = True
    ring_together([item.bell for item in items])


class Process:
    """The connections, queue and threads for one file in one process; made anew after a fork."""

    def __init__(self, store: SqliteStore, now: float) -> None:
        self.pid = os.getpid()
        self.closed = False
        self.turn = threading.Lock()  # whose turn it is on the writing connection
        self.reading = threading.Lock()  # and on the reading one
        self.queue: deque[Item] = deque()
        self.expects_new = True  # whether the next key is likely a new one
        self.bells = Bells()
        self._store, self.name = store, store.name
        self._heir: Process | None = None  # the Process of the file that replaced ours
        self._writer: driver.Connection | None = None
        self._cursor: driver.Cursor | None = None
        self._reader: driver.Connection | None = None
        self._file = str(store._path)  # looked at before a write: a Path would be turned into text each time
        self._look_again_at = 0.0
        self._writes_of_others: Any = None  # SQLite's counter of commits by other connections, at the last look
        self.newest: tuple[bytes, int] = (b"", 0)  # digest and token of the newest claim that this process knows of
        self.restored = False  # the file's content is older than what this process wrote or read
        self._work = threading.Event()
        self._wanted = 1  # so many commands in the queue wake the writer; more while it gathers them
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self.watch = Watch(self.bells, self._versions, WATCH_SECONDS, WATCH_SECONDS)
        _LIVE[self] = None
        if driver.file_id(store._path) in _inherited:
            raise Misconfigured(
                f"this process inherited an open connection to {store._path} through a fork, and SQLite would mistake "
                "its file locks for ours: close your own connections to it before the fork"
            )
        driver.require_one_name(store._path)
        with self.turn:
            try:
                if not store._create:
                    driver.require_ours(store._path, self.name)
                driver.migrate(self.writer, self.name)
                self.epoch, self.born = self._find_epoch(now)
                self.floor = 0
                self.find_floor()
                self.inode_and_device = (driver.file_id(store._path) or (0, 0))[::-1]
                self.has_our_claims()
            except BaseException:
                self.disconnect()  # no caller has this object yet, so no other code would close its connections
                raise

    @property
    def writer(self) -> driver.Connection:
        """The writing connection; only for the thread that has the turn."""
        if self._writer is None:
            self._writer = driver.connect(self._store._path, synchronous=self._store._synchronous)
        return self._writer

    @property
    def cursor(self) -> driver.Cursor:
        """A cursor of the writing connection, for statements that are done when they return; it is used again."""
        if self._cursor is None:
            self._cursor = self.writer.cursor()
        return self._cursor

    @property
    def reader(self) -> driver.Connection:
        """The reading connection; only for the thread that holds `reading`."""
        if self._reader is None:
            if self.closed:
                raise StoreUnavailable(f"{self.name} was closed")
            self._reader = driver.connect(self._store._path, synchronous=self._store._synchronous, read_only=True)
        return self._reader

    def close(self, heir: Process | None = None) -> None:
        """Queued and late commands are carried out by `heir`; without one they are refused."""
        self._heir = heir
        self.closed = True
        self.watch.close()
        self._work.set()
        with self.turn, self.reading:
            self.disconnect()
        self._leave_queue()

    def disconnect(self) -> None:
        """Close both connections; only for the thread that has the turn and `reading`. They open again when needed."""
        for connection in (self._writer, self._reader):
            if connection is not None:
                connection.close()
        self._writer = self._cursor = self._reader = None

    def enqueue(self, *items: Item, soon: Callable[[Callable[[], object]], None] | None = None) -> None:
        """Queue these items for the writer thread; `soon` belongs to the caller's event loop, if there is one.

        With `soon` the other tasks of the loop run first. Woken at once, the writer thread would commit this item
        alone, and the two threads would compete for the interpreter.
        """
        with self._starting:  # also held by a writer thread that is about to end, so that no item is left in the queue
            if self._thread is None:
                thread = threading.Thread(target=self._run_writer, name="samekey-writer", daemon=True)
                if not started(thread):  # queue nothing: a later writer thread would claim for a caller that has gone
                    raise StoreUnavailable(f"no thread can be started to write to {self.name}")
                self._thread = thread  # if we were interrupted before this, the next caller starts another one
            self.queue.extend(items)
        if soon is None:
            self._wake_writer()
        else:
            soon(self._wake_writer)

    def _wake_writer(self) -> None:
        if len(self.queue) >= self._wanted and not self._work.is_set():
            self._work.set()

    def ready(self) -> bool:
        """Whether the thread that has just taken the turn may write here."""
        self.rollback()
        return not self.closed and self.in_place()

    def in_place(self) -> bool:
        """Whether the file at our path is the one we have open, with all that we wrote to it; only with the turn."""
        now = time.monotonic()
        if now < self._look_again_at:
            return True
        if self.restored:
            return False
        try:
            found = os.stat(self._file)[1:3] == self.inode_and_device
        except OSError:
            return False
        if found and self.has_our_claims():
            self._look_again_at = now + LOOK_SECONDS
            return True
        return False

    def has_our_claims(self) -> bool:
        """Whether the file still holds the newest claim that this process knows of.

        A backup that is copied over the open file (SQLite's backup API) keeps inode and epoch, and claims made since
        the backup are gone. SQLite counts that as a commit of another connection, so only after such commits we look.
        """
        digest, token = self.newest
        try:
            writes = self.writer.execute("PRAGMA data_version").fetchone()
            if writes == self._writes_of_others:
                return True
            epoch, deleted, held = self.writer.execute(STILL_THERE, (digest,)).fetchone()
            row = self.writer.execute(NEWEST).fetchone()
        except (driver.DriverError, SamekeyError):
            return True  # the write that comes next meets the same trouble, and reports it to its caller
        # The record may have been deleted since: then `last_token` is at least as high.
        self.restored = str(epoch).partition(" ")[0] != self.epoch or max(held or 0, deleted or 0) < token
        if row is not None and row[1] > token:
            self.newest = (row[0], row[1])
        self._writes_of_others = writes
        return not self.restored

    def renew_epoch(self, now: float) -> None:
        """Give the file's life another name: it was restored, so what was claimed since the backup is gone.

        Every process that has the file open compares the name, so that all of them learn of it.
        """
        with self.turn, driver.translated(self.name):
            renewed = (f"{uuid4().hex} {now!r}", f"{self.epoch} {self.born!r}")
            driver.patiently(lambda: self.writer.execute(RENEW_EPOCH, renewed))
            self.epoch, self.born = self._find_epoch(now)

    def begin(self) -> None:
        """Begin a transaction; only for the thread that has the turn."""
        self.rollback()
        # Over the cursor: a statement of the cursor that was interrupted ends only with its next one.
        driver.patiently(lambda: self.cursor.execute("BEGIN IMMEDIATE"))

    def commit(self) -> None:
        self.writer.execute("COMMIT")

    def rollback(self) -> None:
        """End the transaction of this thread, or of the thread before it, which may have been interrupted."""
        if self._writer is not None and self._writer.in_transaction:
            with suppress(driver.DriverError):  # it cannot roll back any more; the caller gets the first error
                self._writer.execute("ROLLBACK")

    def _run_writer(self) -> None:
        answered, until = 0, 0.0  # by the last commit, and until when they are expected back
        while True:
            worked = self._work.wait(WRITER_IDLE_SECONDS)
            self._work.clear()
            while self.queue and not self.closed:
                with self.turn:
                    if self.closed:
                        break
                    self._gather(answered, until)
                    began, in_place = time.monotonic(), self.in_place()
                    if in_place:
                        answered = self._drain_some()
                        ended = time.monotonic()
                        until = ended + min(ended - began, GATHER_MAX_SECONDS)
                if not in_place:
                    self._move()
            if self.closed or not worked:
                with self._starting:
                    if self.closed or not self.queue:
                        self._thread = None
                        break
        self._leave_queue()

    def _gather(self, wanted: int, until: float) -> None:
        """Wait until as many items are queued as the last commit had, for no longer than that commit took.

        The callers that were just answered queue their next items one after the other. Without this wait the first of
        them gets a commit of its own, and the others wait for that. A caller that does not come back is waited for only
        once, because the next commit is a smaller one.
        """
        left = until - time.monotonic()
        if len(self.queue) >= wanted or left <= 0:
            return
        self._work.clear()
        self._wanted = min(wanted, BATCH_MAX)
        if len(self.queue) < wanted and not self.closed:
            self._work.wait(left)
        self._wanted = 1

    def _move(self) -> None:
        """Another file is at our path: the queued items are written to that one."""
        try:
            self._store._reopen(self)
        except Exception as error:
            self._leave_queue(error)

    def _drain_some(self) -> int:
        items = [self.queue.popleft() for _ in range(min(len(self.queue), BATCH_MAX))]
        try:
            self._store._commit_together(self, items)
        except Exception as error:  # a bug of ours: its callers get the error, and the next items are written
            for item in items:
                item.error = StoreUnavailable(f"{self.name}: the write failed ({type(error).__name__})")
                item.error.__cause__ = error
        finally:
            _finish(items)
        return len(items)

    def _leave_queue(self, why: Exception | None = None) -> None:
        """End every queued item: the heir takes it, or its caller gets an error."""
        while True:
            try:
                item = self.queue.popleft()
            except IndexError:
                return
            if self._heir is not None:
                self._heir.enqueue(item)
            else:
                item.error = why or StoreUnavailable(f"{self.name} was closed")
                _finish([item])

    @contextmanager
    def _versions(self) -> Iterator[Versions]:
        """For the watcher: reads the rows that callers wait for when other connections committed something."""
        counter, rows = None, dict[bytes, Any]()

        def versions(digests: Sequence[bytes]) -> dict[bytes, Any]:
            nonlocal counter, rows
            with self.reading, driver.translated(self.name):
                before, counter = counter, self.reader.execute("PRAGMA data_version").fetchone()
                if counter != before or not rows.keys() >= set(digests):
                    rows = {digest: self.reader.execute(VERSION, (digest,)).fetchone() for digest in digests}
            return rows

        yield versions

    def find_floor(self) -> None:
        """The highest token of any record that was deleted: the next one must be higher."""
        with driver.translated(self.name):
            row = self.writer.execute(FLOOR).fetchone()
        self.floor = max(self.floor, int(row[0]) if row else 0)

    def _find_epoch(self, now: float) -> tuple[str, float]:
        """The random name of this file's life, and when it began. Another name means that earlier records are gone."""
        with driver.translated(self.name):
            row = self.writer.execute(EPOCH).fetchone()
            if row is None:
                driver.patiently(lambda: self.writer.execute(NEW_EPOCH, (f"{uuid4().hex} {now!r}",)))
                row = self.writer.execute(EPOCH).fetchone()
        epoch, _, born = str(row[0]).partition(" ")
        return epoch, float(born)


EPOCH = "SELECT value FROM samekey_meta WHERE name = 'epoch'"
RENEW_EPOCH = "UPDATE samekey_meta SET value = ? WHERE name = 'epoch' AND value = ?"
STILL_THERE = """
SELECT (SELECT value FROM samekey_meta WHERE name = 'epoch'),
       (SELECT CAST(value AS INTEGER) FROM samekey_meta WHERE name = 'last_token'),
       (SELECT token FROM samekey_records WHERE digest = ?)
"""
NEWEST = "SELECT digest, token FROM samekey_records ORDER BY rowid DESC LIMIT 1"
NEW_EPOCH = "INSERT INTO samekey_meta (name, value) VALUES ('epoch', ?) ON CONFLICT (name) DO NOTHING"

# Not a WeakSet: a thread that opens a store while that is looked through breaks it.
_LIVE: weakref.WeakKeyDictionary[Process, None] = weakref.WeakKeyDictionary()
_forking = threading.local()  # per thread: two threads may fork at once, and neither may release what the other holds
_inherited: set[tuple[int, int]] = set()


def _quiet(process: Process) -> Generator[None, None, None]:
    """Keep this process's connections closed until the generator is closed; an interrupt gives the turns back too."""
    with process.turn, process.reading:
        process.disconnect()
        yield


def _before_fork() -> None:
    _forking.quiet = []
    live = [one for known in _LIVE.keyrefs() if (one := known()) is not None and one.pid == os.getpid()]
    for process in sorted(live, key=id):  # in one order: or two threads that fork at once would wait for each other
        quiet = _quiet(process)
        _forking.quiet.append(quiet)
        next(quiet)


def _after_fork_in_parent() -> None:
    _forking.quiet = []  # dropping the generators closes all of them, also if this line is interrupted


def _after_fork_in_child() -> None:
    _after_fork_in_parent()  # the child does not use them: `SqliteStore` makes a Process of its own
    _inherited.clear()
    _inherited.update(driver.open_files())  # what is open now was opened by other code before the fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
