"""Inside the caller's transaction: claim, effect and result in one commit.

Two savepoints do it. One before the claim: an error nobody can classify rolls back to it, record and effect
together, as if nothing had run. One after the claim: `Refused` and `NotDone` roll the effect back and keep
the word. There is no single flight and no lease here: nobody else sees the record before the commit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from samekey.core.call import Answer, Call, Failed
from samekey.core.commands import Command, Open, Outcome, Raised, RunEffect, StoreCommand, Undo, Wait
from samekey.core.errors import Misconfigured
from samekey.core.ports import Hook
from samekey.core.record import Record
from samekey.performing import AsyncPerformer, Performer

CLAIM, EFFECT = "claim", "effect"  # the two savepoints


class Transaction(Protocol):
    """What a database store offers inside a transaction of the caller's connection."""

    name: str

    @staticmethod
    def takes(connection: Any) -> bool: ...
    def same_database(self) -> bool: ...
    @property
    def in_transaction(self) -> bool: ...
    def begin_transaction(self, patience_seconds: float) -> None: ...
    def commit_transaction(self) -> None: ...
    def rollback_transaction(self) -> None: ...
    def savepoint(self, name: str) -> None: ...
    def rollback_to(self, name: str) -> None: ...
    def release_savepoint(self, name: str) -> None: ...
    def perform(self, command: StoreCommand, patience_seconds: float) -> Record | None: ...


class _InTransaction:
    """The part that both colours share: savepoints around the core's commands."""

    call: Call
    _transaction: Transaction
    _began: bool
    _savepoints: list[str]

    def _prepare(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._began = False
        self._savepoints = []

    def _store_command(self, command: Command) -> Any:
        match command:
            case Wait():
                return command.seen  # others' uncommitted work cannot be waited for in here
            case Undo(claim_too):
                if self._transaction.in_transaction:
                    self._transaction.rollback_to(CLAIM if claim_too else EFFECT)
                return None
            case Open():
                if not self._savepoints:
                    self._savepoint(CLAIM)
        if isinstance(command, StoreCommand):
            return self._transaction.perform(command, self.call.policy.patience_seconds)
        raise TypeError(f"{type(command).__name__} has no place in a transaction")

    def _savepoint(self, name: str) -> None:
        self._transaction.savepoint(name)
        self._savepoints.append(name)

    def _still_whole(self, outcome: Outcome) -> Outcome:
        """An effect that ended the transaction itself has broken the promise: say so, whatever it returned."""
        if self._transaction.in_transaction:
            return outcome
        error = Misconfigured(
            f"the effect of {self.call.key} committed or rolled back the transaction it was given: "
            "record and effect are no longer one. Leave the commit to the guard or to the caller"
        )
        if isinstance(outcome, Raised):
            error.__cause__ = outcome.error
        return Raised(error)

    def _begin(self) -> None:
        if not self._transaction.in_transaction:
            self._transaction.begin_transaction(self.call.policy.patience_seconds)
            self._began = True

    def _end(self, ended: Answer[Any] | Failed | Command | None) -> None:
        """Give the savepoints back; commit only what we began, and only if the core came to an end."""
        if not self._transaction.in_transaction:
            return  # the effect itself ended the transaction; what it committed is committed
        if self._savepoints:
            self._transaction.release_savepoint(CLAIM)  # and with it the one inside
            self._savepoints.clear()
        if self._began:
            if ended is None:
                self._transaction.rollback_transaction()
            else:
                self._transaction.commit_transaction()


class AtomicPerformer(_InTransaction, Performer):
    """Carries out commands on the caller's connection."""

    def __init__(
        self, call: Call, effect: Callable[[], Any], transaction: Transaction, *, hooks: tuple[Hook, ...]
    ) -> None:
        Performer.__init__(self, call, effect, guard=None, flights=None, leases=None, hooks=hooks)
        self._prepare(transaction)

    def perform(self, command: Any) -> Any:
        if isinstance(command, (StoreCommand, Undo)):
            return self._store_command(command)
        return super().perform(command)

    def _run_effect(self, command: RunEffect) -> Outcome:
        self._savepoint(EFFECT)
        return self._still_whole(super()._run_effect(command))

    def whole(self, work: Callable[[], Any]) -> Any:
        """Do the attempt in the caller's transaction, or in one of our own."""
        ended = None
        self._begin()
        try:
            ended = work()
        finally:
            self._end(ended)
        return ended

    def finish(self) -> None:
        """The end of a hold entered by hand."""
        self._end(None)

    def abandon(self) -> None:
        """Thrown away unentered: the caller's transaction, and its savepoint, are the caller's."""


class AsyncAtomicPerformer(_InTransaction, AsyncPerformer):
    """The same for async effects; the connection's own calls are short and stay in the loop."""

    def __init__(
        self, call: Call, effect: Callable[[], Any], transaction: Transaction, *, hooks: tuple[Hook, ...]
    ) -> None:
        AsyncPerformer.__init__(self, call, effect, guard=None, flights=None, leases=None, hooks=hooks)
        self._prepare(transaction)

    async def perform(self, command: Any) -> Any:
        if isinstance(command, (StoreCommand, Undo)):
            return self._store_command(command)
        return await super().perform(command)

    async def _run_effect(self, command: RunEffect) -> Outcome:
        self._savepoint(EFFECT)
        return self._still_whole(await super()._run_effect(command))

    async def whole(self, work: Callable[[], Awaitable[Any]]) -> Any:
        ended = None
        self._begin()
        try:
            ended = await work()
        finally:
            self._end(ended)
        return ended

    def finish(self) -> None:
        self._end(None)

    def abandon(self) -> None:
        """Thrown away unentered: the caller's transaction, and its savepoint, are the caller's."""
