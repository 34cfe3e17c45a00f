"""One process's connections to a SQLite file: the queue of writers, the writer thread, the watcher."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from samekey.core.commands import StoreCommand
from samekey.core.errors import StoreUnavailable
from samekey.core.record import Record
from samekey.drivers import sqlite as driver
from samekey.loops import Bells
from samekey.stores._sqlite_rows import VERSION

WATCH_SECONDS = 0.005  # how often the watcher looks at the shared counter, while somebody waits
WRITER_IDLE_SECONDS = 5.0  # the writer thread goes home after that; a new one is cheap

INHERITED: list[Any] = []  # what a forked child got from its parent and must not touch


class Job:
    """One queued command and whoever waits for it."""

    __slots__ = ("bell", "command", "error", "finished", "reply")

    def __init__(self, command: StoreCommand, bell: Any) -> None:
        self.command = command
        self.bell = bell
        self.reply: Record | None = None
        self.error: Exception | None = None
        self.finished = False

    def done(self) -> None:
        self.finished = True
        if self.bell is not None:
            self.bell.ring()

    def wait(self) -> None:
        while not self.finished:
            self.bell.wait(1.0)  # rung by the writer; the second is for a bell that rang before we listened

    async def arrive(self) -> None:
        while not self.finished:
            await self.bell.wait(1.0)

    def outcome(self) -> Record | None:
        if self.error is not None:
            raise self.error
        return self.reply


class Process:
    """Everything that belongs to one process and one file, and is made anew after a fork."""

    def __init__(
        self, path: Path, synchronous: driver.Synchronous, name: str, drain: Callable[[Process], None]
    ) -> None:
        self.pid = os.getpid()
        self.closed = False
        self.writer = driver.connect(path, synchronous=synchronous)
        try:
            driver.migrate(self.writer, name)
            self.epoch = self._find_epoch(name)
            self.reader = driver.connect(path, synchronous=synchronous, read_only=True)
        except BaseException:
            self.writer.close()
            raise
        found = os.stat(path)
        self.file_id = (found.st_dev, found.st_ino)
        self.turn = threading.Lock()  # whose turn it is on the writing connection
        self.reading = threading.Lock()
        self.queue: deque[Job] = deque()
        self.bells = Bells()
        self._drain = drain
        self._work = threading.Event()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._watch = Watch(path, synchronous, self.bells)

    def close(self) -> None:
        self.closed = True
        self._work.set()
        self._watch.close()
        with self.turn, self.reading:
            self.writer.close()
            self.reader.close()
        self.refuse_all()

    def enqueue(self, job: Job) -> None:
        with self._starting:  # also held by a writer that wants to go home: no job is left behind
            self.queue.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run_writer, name="samekey-writer", daemon=True)
                self._thread.start()
        self._work.set()

    def wake_writer(self) -> None:
        if self.queue:
            self._work.set()

    def drain(self, limit: int) -> list[Job]:
        jobs: list[Job] = []
        while self.queue and len(jobs) < limit:
            jobs.append(self.queue.popleft())
        return jobs

    def rollback(self) -> None:
        try:
            if self.writer.in_transaction:
                self.writer.execute("ROLLBACK")
        except driver.DriverError:
            pass  # the connection is beyond it; the error that brought us here is the one to tell

    def watched(self, digest: bytes) -> Watched:
        return Watched(self._watch, digest)

    def _run_writer(self) -> None:
        while True:
            worked = self._work.wait(WRITER_IDLE_SECONDS)
            self._work.clear()
            while self.queue and not self.closed:
                with self.turn:
                    if not self.closed:
                        self._drain(self)
            if self.closed or not worked:
                with self._starting:
                    if self.closed or not self.queue:
                        self._thread = None
                        break
        self.refuse_all()

    def refuse_all(self) -> None:
        """The store is closed: nobody must wait for a turn that never comes."""
        for job in self.drain(len(self.queue)):
            job.error = StoreUnavailable("the store was closed")
            job.done()

    def _find_epoch(self, name: str) -> str:
        """A random name for this file's life: another one means the records of before are gone."""
        with driver.translated(name):
            driver.patiently(
                lambda: self.writer.execute(
                    "INSERT INTO samekey_meta (name, value) VALUES ('epoch', ?) ON CONFLICT (name) DO NOTHING",
                    (uuid4().hex,),
                )
            )
            row = self.writer.execute("SELECT value FROM samekey_meta WHERE name = 'epoch'").fetchone()
        return str(row[0])


class Watch:
    """Looks out for other processes' commits while somebody here waits."""

    def __init__(self, path: Path, synchronous: driver.Synchronous, bells: Bells) -> None:
        self._path, self._synchronous, self._bells = path, synchronous, bells
        self._mutex = threading.Lock()
        self._digests: dict[bytes, int] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def add(self, digest: bytes) -> None:
        with self._mutex:
            self._digests[digest] = self._digests.get(digest, 0) + 1
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="samekey-watch", daemon=True)
                self._thread.start()

    def remove(self, digest: bytes) -> None:
        with self._mutex:
            self._digests[digest] -= 1
            if not self._digests[digest]:
                del self._digests[digest]

    def close(self) -> None:
        self._closed = True

    def _run(self) -> None:
        try:
            connection = driver.connect(self._path, synchronous=self._synchronous, read_only=True)
        except Exception:
            self._thread = None
            return
        seen: dict[bytes, Any] = {}
        counter = None
        try:
            while True:
                with self._mutex:
                    if self._closed or not self._digests:
                        self._thread = None
                        return
                    digests = list(self._digests)
                now = connection.execute("PRAGMA data_version").fetchone()
                if now != counter or any(digest not in seen for digest in digests):
                    counter = now
                    for digest in digests:
                        row = connection.execute(VERSION, (digest,)).fetchone()
                        if row != seen.get(digest):
                            seen[digest] = row
                            self._bells.ring(digest)
                time.sleep(WATCH_SECONDS)
        except driver.DriverError:
            with self._mutex:
                self._thread = None
        finally:
            connection.close()


class Watched:
    """`with` somebody waits for this digest."""

    __slots__ = ("_digest", "_watch")

    def __init__(self, watch: Watch, digest: bytes) -> None:
        self._watch, self._digest = watch, digest

    def __enter__(self) -> None:
        self._watch.add(self._digest)

    def __exit__(self, *exc: object) -> None:
        self._watch.remove(self._digest)
