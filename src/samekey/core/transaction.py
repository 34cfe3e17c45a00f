"""Inside somebody's transaction: what a database store offers there, in either colour.

A trip is a few acts in one go - savepoints, and at most one command - because between a program and its database
the trips are what costs. `guard.on(connection)` and `Atomic` are made of nothing else: see `samekey.guard.atomic`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from samekey.core.commands import StoreCommand
from samekey.core.errors import Misconfigured, StoreError
from samekey.core.record import Record

CLAIM, EFFECT = "claim", "effect"  # the two savepoints: before the claim, and before the effect
DROP = "drop"  # and where one is that may find them gone


@dataclass(frozen=True, slots=True)
class Savepoint:
    """Come back to here, if it must be."""

    name: str
    depth: int  # inside so many effects: theirs are other savepoints

    @property
    def sql(self) -> str:
        return f"SAVEPOINT samekey_{self.name}_{self.depth}"


@dataclass(frozen=True, slots=True)
class RollbackTo:
    """Undo everything since the savepoint; it stays."""

    name: str
    depth: int  # inside so many effects: theirs are other savepoints

    @property
    def sql(self) -> str:
        return f"ROLLBACK TO SAVEPOINT samekey_{self.name}_{self.depth}"


@dataclass(frozen=True, slots=True)
class Release:
    """Forget the savepoint, and those set after it; what was done stays done."""

    name: str
    depth: int  # inside so many effects: theirs are other savepoints

    @property
    def sql(self) -> str:
        return f"RELEASE SAVEPOINT samekey_{self.name}_{self.depth}"


@dataclass(frozen=True, slots=True)
class Commit:
    """The last act in a transaction that we began, where `commits_along` says that it may travel with the others."""

    sql = "COMMIT"


Mark = Savepoint | RollbackTo | Release | Commit
Act = Mark | StoreCommand


class SavepointGone(StoreError):
    """The transaction is not the one in which the savepoint was set."""


class RecordGone(StoreError):
    """What was claimed in this transaction is not there: the connection sees other tables now."""


class Unsaid(Misconfigured):
    """The acts cannot be said over this connection: nothing of them was sent, not even a savepoint."""


class TransactionAborted(StoreError):
    """A statement failed before, and the database refuses every other one until a rollback."""


class Transaction(Protocol):
    """A store inside a transaction of the caller's connection."""

    name: str
    marks_ahead: bool  # a savepoint behind a claim costs no trip of its own
    commits_along: bool  # and a commit behind a settle neither
    writes_late: bool  # the library may still have something to write that was asked of it before the claim

    @property
    def connection(self) -> Any:
        """Whose transactions these are: what the caller gave, or the one thing that it stands for."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open now."""

    @property
    def begins_by_itself(self) -> bool:
        """Whether the next statement would begin one that stays open until the caller ends it."""

    @property
    def lost(self) -> bool:
        """Whether the connection is gone."""

    @property
    def stale(self) -> bool:
        """Whether `in_transaction` may be out of date; `look_again` asks the server."""

    def look_again(self) -> None: ...

    def same_database(self) -> bool:
        """Whether the connection leads to the very tables that the store writes."""

    def begin(self) -> None: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...

    def carry_out(self, *acts: Act, patience: float) -> Record | None:
        """The acts in their order, up to the first that fails; the record that the command among them shows.

        Waits for other transactions that hold what the command needs, no longer than `patience` seconds.
        """

    def write_pending(self) -> None:
        """Before the claim, where the library `writes_late`: what it still had to write is written now, or raises."""

    def effect_returned(self) -> None:
        """Before the effect is settled: what the library still had to write for it is written now, or raises."""

    def conflicts(self, error: BaseException) -> bool:
        """Whether the transaction lost against another one, and may be run again as a whole."""

    def worth_waiting(self, error: StoreError) -> bool:
        """Whether another transaction is in the way and may soon be out of it, and nobody waited for that yet."""


class AsyncTransaction(Protocol):
    """The same, awaited."""

    name: str
    marks_ahead: bool
    commits_along: bool
    writes_late: bool
    immediate: bool  # nothing in it waits for anything: an abandoned hold can be undone by the garbage collector

    @property
    def connection(self) -> Any: ...
    @property
    def in_transaction(self) -> bool: ...
    @property
    def begins_by_itself(self) -> bool: ...
    @property
    def lost(self) -> bool: ...
    @property
    def stale(self) -> bool: ...
    async def look_again(self) -> None: ...
    async def same_database(self) -> bool: ...
    async def begin(self) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...
    async def carry_out(self, *acts: Act, patience: float) -> Record | None: ...
    async def write_pending(self) -> None: ...
    async def effect_returned(self) -> None: ...
    def conflicts(self, error: BaseException) -> bool: ...
    def worth_waiting(self, error: StoreError) -> bool: ...
