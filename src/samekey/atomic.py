"""Inside the caller's transaction: claim, effect and result in one commit.

Two savepoints do it. One before the claim: an error nobody can classify rolls back to it, record and effect
together, as if nothing had run. One after the claim: whatever the effect did before it raised is undone, and
`Refused` and `NotDone` keep their word in the record. There is no single flight and no lease here: nobody else
sees the record before the commit.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from samekey.core.attempt import note
from samekey.core.call import Answer, Call, Failed
from samekey.core.commands import Command, Open, Outcome, Raised, StoreCommand, Undo, Wait
from samekey.core.errors import Misconfigured, StoreError, StoreUnavailable
from samekey.core.ports import Hook
from samekey.core.record import Record
from samekey.loops import running
from samekey.performing import AsyncPerformer, Performer

CLAIM, EFFECT = "claim", "effect"  # the two savepoints
BUSY_PAUSE_SECONDS = 0.002  # while another transaction holds what ours needs


class Transaction(Protocol):
    """What a database store offers inside a transaction of the caller's connection. Nothing in it waits."""

    name: str

    @staticmethod
    def takes(connection: Any) -> bool: ...
    def same_database(self) -> bool: ...
    @property
    def in_transaction(self) -> bool: ...
    def begin_transaction(self) -> None: ...
    def commit_transaction(self) -> None: ...
    def rollback_transaction(self) -> None: ...
    def savepoint(self, name: str) -> None: ...
    def rollback_to(self, name: str) -> None: ...
    def release_savepoint(self, name: str) -> None: ...
    def perform(self, command: StoreCommand) -> Record | None: ...
    def worth_waiting(self, error: StoreError) -> bool:
        """Whether another transaction is in the way, and may soon be out of it."""


class _InTransaction:
    """The part that both colours share: savepoints around the core's commands."""

    call: Call
    _patience_ends: float

    def _prepare(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._began = False
        self._marked: list[str] = []

    def _store_command(self, command: Command) -> Any:
        match command:
            case Wait():
                return command.seen  # others' uncommitted work cannot be waited for in here
            case Undo(claim_too):
                if claim_too:
                    self._went_back_to(CLAIM)
                return None  # back to before the effect it went already, when the effect raised
            case Open() if not self._marked:
                self._mark(CLAIM)
        if isinstance(command, StoreCommand):
            return self._transaction.perform(command)
        raise TypeError(f"{type(command).__name__} has no place in a transaction")

    def _mark(self, name: str) -> None:
        self._transaction.savepoint(name)
        self._marked.append(name)

    def before_effect(self) -> None:
        self._mark(EFFECT)

    def after_effect(self, outcome: Outcome) -> Outcome:
        """Undo what a failed effect did; and tell one that ended the transaction itself that it broke the promise."""
        if isinstance(outcome, Raised):
            if not self._went_back_to(EFFECT):
                # Its own error matters more: `with connection:` rolls back on every error.
                note(outcome.error, f"samekey: {self._broken()}")
            return outcome
        if self._gave_back(EFFECT):
            return outcome
        self._marked.clear()
        return Raised(Misconfigured(self._broken()))

    def _went_back_to(self, name: str) -> bool:
        """Whether the savepoint was still there to roll back to: it is not, if the effect ended the transaction."""
        try:
            if self._marked and self._transaction.in_transaction:
                self._transaction.rollback_to(name)
                return True
        except StoreError:
            pass
        self._marked.clear()
        return False

    def _gave_back(self, name: str) -> bool:
        try:
            if self._transaction.in_transaction:
                self._transaction.release_savepoint(name)
                return True
        except StoreError:
            pass
        return False

    def _broken(self) -> str:
        return (
            f"the effect of {self.call.key} committed or rolled back the transaction it was given: "
            "record and effect are no longer one. Leave the commit to the guard or to the caller"
        )

    def _end(self, ended: Answer[Any] | Failed | Command | None) -> None:
        """Give the savepoints back; commit only what we began, and only if the core came to an end."""
        if self._marked and self._transaction.in_transaction:
            self._transaction.release_savepoint(CLAIM)  # and with it the one inside
        self._marked.clear()
        if not self._began or not self._transaction.in_transaction:
            return
        if ended is None:
            self._transaction.rollback_transaction()
            return
        try:
            self._transaction.commit_transaction()
        except BaseException:  # a deferred constraint speaks here: what we began, we end
            self._transaction.rollback_transaction()
            raise

    def _straight(self, command: Any) -> Any:
        return self._transaction.perform(command)

    def finish(self) -> None:
        """The end of a hold entered by hand."""
        self._end(None)

    def abandon(self) -> None:
        """A hold thrown away unentered claims nothing."""
        try:
            self._went_back_to(CLAIM)
            self._end(None)
        except Exception:  # the collector may run in another thread than the connection's: then it stays claimed
            self._marked.clear()

    def _must_wait(self, error: StoreUnavailable) -> bool:
        return self._transaction.worth_waiting(error) and time.monotonic() < self._patience_ends


class AtomicPerformer(_InTransaction, Performer):
    """Carries out commands on the caller's connection."""

    def __init__(
        self, call: Call, effect: Callable[[], Any], transaction: Transaction, *, hooks: tuple[Hook, ...]
    ) -> None:
        Performer.__init__(self, call, effect, guard=None, flights=None, leases=None, hooks=hooks)
        self._prepare(transaction)

    def perform(self, command: Any) -> Any:
        if isinstance(command, (StoreCommand, Undo)):
            return self._patiently(lambda: self._store_command(command))
        return super().perform(command)

    def whole(self, work: Callable[[], Any]) -> Any:
        """Do the attempt in the caller's transaction, or in one of our own."""
        ended = None
        if not self._transaction.in_transaction:
            self._patiently(self._transaction.begin_transaction)
            self._began = True
        try:
            ended = work()
        finally:
            self._end(ended)
        return ended

    def _patiently(self, work: Callable[[], Any]) -> Any:
        while True:
            try:
                return work()
            except StoreUnavailable as error:
                if not self._must_wait(error):
                    raise
            time.sleep(BUSY_PAUSE_SECONDS)


class AsyncAtomicPerformer(_InTransaction, AsyncPerformer):
    """The same for async effects; the connection's own calls are short and stay in the loop, the waiting does not."""

    def __init__(
        self, call: Call, effect: Callable[[], Any], transaction: Transaction, *, hooks: tuple[Hook, ...]
    ) -> None:
        AsyncPerformer.__init__(self, call, effect, guard=None, flights=None, leases=None, hooks=hooks)
        self._prepare(transaction)

    async def _straight(self, command: Any) -> Any:
        return self._transaction.perform(command)

    async def perform(self, command: Any) -> Any:
        if isinstance(command, (StoreCommand, Undo)):
            return await self._patiently(lambda: self._store_command(command))
        return await super().perform(command)

    async def whole(self, work: Callable[[], Awaitable[Any]]) -> Any:
        ended = None
        if not self._transaction.in_transaction:
            await self._patiently(self._transaction.begin_transaction)
            self._began = True
        try:
            ended = await work()
        finally:
            self._end(ended)
        return ended

    async def _patiently(self, work: Callable[[], Any]) -> Any:
        while True:
            try:
                return work()
            except StoreUnavailable as error:
                if not self._must_wait(error):
                    raise
            await running().sleep(BUSY_PAUSE_SECONDS)
