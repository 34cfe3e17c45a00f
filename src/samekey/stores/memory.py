"""Records in this process's memory: for tests and single-process tools; gone when the process is.

One dict, one mutex held for a few microseconds and never across a wait. `MemoryStore` and
`AsyncMemoryStore` may share their memory: `AsyncMemoryStore(store)`.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

from samekey.core.commands import Open, Read, StoreCommand, Wait
from samekey.core.errors import Misconfigured, RecordUnreadable, SamekeyError
from samekey.core.key import Key
from samekey.core.ports import LIST_MAX, Audits, Health, Query, Replies, Reply, no_transactions
from samekey.core.record import Record
from samekey.core.register import Moment, apply, audit_entry, expired, seen_at
from samekey.loops import Bells
from samekey.stores._waiting import async_wait, wait

Clock = Callable[[], float]


def check_url(url: str) -> None:
    if url not in ("memory:", "memory://"):
        raise Misconfigured("memory:// takes no path: each such store has its own memory")


class MemoryStore:
    """A store for `Guard`. `clock` is for tests: seconds that only move when a test moves them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.name = "memory://"
        self._incarnation = uuid4().hex
        self._records: dict[bytes, Record] = {}
        self._audit: Audits = []
        self._mutex = threading.Lock()
        self.bells = Bells()
        self._wall = clock or time.time
        self._tick = clock or time.monotonic
        self._token = 0
        _ALL.add(self)

    @classmethod
    def from_url(cls, url: str) -> MemoryStore:
        check_url(url)
        return cls()

    @property
    def incarnation(self) -> str:
        return self._incarnation

    def __repr__(self) -> str:
        return f"<MemoryStore: {len(self._records)} records, gone when this process ends>"

    def carry_out(self, command: StoreCommand) -> Reply:
        key = command.key
        if type(command) is Read:
            return self._read(key)
        digest = key.digest
        with self._mutex:
            moment = Moment(self._wall(), self._tick(), "", self._token + 1)
            records = self._records
            before = records.get(digest)
            if before is not None and before.key is not key:
                self._same_key(key, before)
            after = apply(before, command, moment)
            if after is before:
                return None if before is None else seen_at(before, moment)
            if after is None:
                del records[digest]
            else:
                records[digest] = after
                if after.token > self._token:
                    self._token = after.token
            if type(command) is not Open:
                entry = audit_entry(command, before, after, moment)
                if entry is not None:
                    self._audit.append(entry)
        self.bells.ring(digest)
        return None if after is None else seen_at(after, moment)

    def wait(self, command: Wait, timeout: float) -> Record | None:
        return wait(command.seen, timeout, lambda: self._read(command.key), self.bells)

    def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        replies: Replies = []
        for command in commands:
            try:
                replies.append(self.carry_out(command))
            except SamekeyError as error:
                replies.append(error)
        return replies

    def list(self, query: Query) -> Sequence[Record]:
        moment = self._moment()
        with self._mutex:
            found = [
                seen_at(record, moment)
                for record in self._records.values()
                if query.picks(record) and not expired(record, moment)
            ]
        found.sort(key=lambda record: (record.created_at, record.key.digest), reverse=True)
        return found[: min(query.limit, LIST_MAX)]

    def sweep(self, limit: int) -> int:
        moment = self._moment()
        with self._mutex:
            gone = [digest for digest, record in self._records.items() if expired(record, moment)][: max(0, limit)]
            for digest in gone:
                del self._records[digest]
        return len(gone)

    def audit(self, limit: int) -> Audits:
        return self._audit[: -max(0, limit) - 1 : -1]

    def health(self) -> Health:
        return Health(
            store=self.name,
            guarantee="claims last as long as this process and are seen by it alone",
            incarnation=self._incarnation,
            warnings=("records are gone when this process ends",),
        )

    def join(self, connection: Any) -> Any:
        raise no_transactions(self.name)

    def close(self) -> None:
        """Nothing to close; the records live as long as this object."""

    def _read(self, key: Key) -> Record | None:
        moment = self._moment()
        record = self._same_key(key, self._records.get(key.digest))
        return None if record is None or expired(record, moment) else seen_at(record, moment)

    def _same_key(self, key: Key, found: Record | None) -> Record | None:
        if found is not None and found.key != key:
            raise RecordUnreadable(f"the record found for {key} belongs to {found.key}: two keys with one digest")
        return found

    def _moment(self) -> Moment:
        return Moment(self._wall(), self._tick(), "", self._token + 1)


class AsyncMemoryStore:
    """A store for `AsyncGuard`, with its own memory or that of a MemoryStore."""

    def __init__(self, shared: MemoryStore | None = None, *, clock: Clock | None = None) -> None:
        self.sync = shared if shared is not None else MemoryStore(clock)
        self.name = self.sync.name

    @classmethod
    def from_url(cls, url: str) -> AsyncMemoryStore:
        check_url(url)
        return cls()

    @property
    def incarnation(self) -> str:
        return self.sync.incarnation

    def __repr__(self) -> str:
        return repr(self.sync).replace("<Memory", "<AsyncMemory")

    async def carry_out(self, command: StoreCommand) -> Reply:
        return self.sync.carry_out(command)

    async def wait(self, command: Wait, timeout: float) -> Record | None:
        return await async_wait(command.seen, timeout, lambda: self.carry_out(Read(command.key)), self.sync.bells)

    async def batch(self, commands: Sequence[StoreCommand]) -> Replies:
        return self.sync.batch(commands)

    async def list(self, query: Query) -> Sequence[Record]:
        return self.sync.list(query)

    async def sweep(self, limit: int) -> int:
        return self.sync.sweep(limit)

    async def audit(self, limit: int) -> Audits:
        return self.sync.audit(limit)

    async def health(self) -> Health:
        return self.sync.health()

    def join(self, connection: Any) -> Any:
        return self.sync.join(connection)

    async def close(self) -> None:
        self.sync.close()


_ALL: weakref.WeakSet[MemoryStore] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A copy of the records, and of a mutex that some thread of the parent may have held."""
    for store in _ALL:
        store._mutex, store.bells = threading.Lock(), Bells()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
