"""The async twins of a sync store and of its transactions, for libraries that block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from samekey.core.books import Count, Finding, FindingQuery
from samekey.core.parking import Parked, ParkedQuery
from samekey.core.ports import Audits, Due, Health, Query, Records, Store
from samekey.core.record import Audit
from samekey.core.transaction import Transaction
from samekey.loops import aside

S = TypeVar("S", bound=Store)
T = TypeVar("T")


class OverSync(Generic[S]):
    """The calls of an async store that its sync store answers; `carry_out`, `wait`, `batch` and `join` are its own."""

    def __init__(self, sync: S) -> None:
        self.sync = sync
        self.name = sync.name

    @property
    def incarnation(self) -> str:
        return self.sync.incarnation

    def __repr__(self) -> str:
        return repr(self.sync).replace("<", "<Async", 1)

    async def list(self, query: Query) -> Records:
        return await self._aside(lambda: self.sync.list(query))

    async def due(self, due: Due) -> Records:
        return await self._aside(lambda: self.sync.due(due))

    async def doubtful(self) -> Sequence[str]:
        return await self._aside(self.sync.doubtful)

    async def sweep(self, limit: int) -> int:
        return await self._aside(lambda: self.sync.sweep(limit))

    async def audit(self, limit: int) -> Audits:
        return await self._aside(lambda: self.sync.audit(limit))

    async def note_action(self, entry: Audit) -> None:
        await self._aside(lambda: self.sync.note_action(entry))

    async def add_counts(self, counts: Sequence[Count]) -> None:
        await self._aside(lambda: self.sync.add_counts(counts))

    async def counts(self, since: float, until: float) -> Sequence[Count]:
        return await self._aside(lambda: self.sync.counts(since, until))

    async def keep_finding(self, finding: Finding) -> bool:
        return await self._aside(lambda: self.sync.keep_finding(finding))

    async def findings(self, query: FindingQuery) -> Sequence[Finding]:
        return await self._aside(lambda: self.sync.findings(query))

    async def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Finding | None:
        return await self._aside(lambda: self.sync.accept_finding(id, by=by, why=why, until=until))

    async def park(self, parked: Parked) -> None:
        await self._aside(lambda: self.sync.park(parked))

    async def parked(self, query: ParkedQuery) -> Sequence[Parked]:
        return await self._aside(lambda: self.sync.parked(query))

    async def redelivered(self, id: str, *, by: str) -> Parked | None:
        return await self._aside(lambda: self.sync.redelivered(id, by=by))

    async def health(self) -> Health:
        return await self._aside(self.sync.health)

    async def close(self) -> None:
        await self._aside(self.sync.close)

    async def _aside(self, work: Callable[[], T]) -> T:
        return await aside(work)()


class PlainTransaction:
    """A transaction of a library that sends each statement at once, and does not show who began the transaction."""

    marks_ahead = commits_along = writes_late = False
    began_by_itself = begins_by_itself = False

    def flush(self) -> None:
        """Nothing is written late."""

    def effect_returned(self) -> None:
        """Nothing is written late."""


class OverSyncTransaction(ABC):
    """The same for async effects, on the caller's sync connection. A subclass decides where its calls run."""

    marks_ahead = commits_along = writes_late = False
    began_by_itself = begins_by_itself = False

    def __init__(self, sync: Transaction) -> None:
        self._sync = sync
        self.name = sync.name
        self.connection: Any = sync.connection
        self.conflicts = sync.conflicts

    @property
    def in_transaction(self) -> bool:
        return self._sync.in_transaction

    @property
    def lost(self) -> bool:
        return self._sync.lost

    @property
    def stale(self) -> bool:
        return self._sync.stale

    async def same_database(self) -> bool:
        return await self._do(self._sync.same_database)

    async def look_again(self) -> None:
        await self._do(self._sync.look_again)

    async def commit(self) -> None:
        await self._do(self._sync.commit)

    async def rollback(self) -> None:
        await self._do(self._sync.rollback)

    async def flush(self) -> None:
        self._sync.flush()

    async def effect_returned(self) -> None:
        self._sync.effect_returned()

    @abstractmethod
    async def _do(self, work: Callable[[], T]) -> T: ...
