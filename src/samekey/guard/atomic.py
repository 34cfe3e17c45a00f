"""Inside the caller's transaction: claim, effect and result in one commit.

Two savepoints do it. One before the claim: an error nobody can classify rolls back to it, record and effect
together, as if nothing had run (in a transaction that we began, its beginning is that savepoint). One after the
claim: whatever the effect did before it raised is undone, and `Refused` and `NotDone` keep their word in the
record. There is no single flight and no lease here: nobody else sees the record before the commit.

What is to be done is said once, as steps for both colours: each yields something to call, and whoever drives the
steps calls it, or calls and awaits it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any

from samekey.core.attempt import attempt, note
from samekey.core.call import Answer, Call, Failed
from samekey.core.commands import (
    Command,
    Open,
    Outcome,
    Raised,
    Read,
    Returned,
    RunEffect,
    StoreCommand,
    Take,
    Undo,
    Wait,
)
from samekey.core.drive import adrive, drive
from samekey.core.errors import Misconfigured, StoreError, StoreUnavailable, TransactionConflict
from samekey.core.ports import Hook
from samekey.core.record import Record
from samekey.core.transaction import (
    CLAIM,
    DROP,
    EFFECT,
    Act,
    AsyncTransaction,
    Commit,
    RecordGone,
    Release,
    RollbackTo,
    Savepoint,
    SavepointGone,
    Transaction,
    TransactionAborted,
    Unsaid,
)
from samekey.guard.connections import AtWork, occupied
from samekey.guard.hold import AsyncHeld, Held, depth
from samekey.guard.operations import new_attempt
from samekey.guard.performer import AsyncPerformer, Performer
from samekey.loops import running

BUSY_PAUSE_SECONDS = 0.002  # while another transaction holds what ours needs
TRANSACTIONS_MAX = 20  # whole transactions tried, where we began them and they lost against others; 2 is the rule
WAIT_MIN_SECONDS = 0.001  # a database takes 0 for "for ever"

_log = logging.getLogger("samekey")

Steps = Generator[Any, Any, Any]  # yields what is to be called


class _InTransaction(AtWork):
    """What both colours share: savepoints around the core's commands."""

    _patience_ends: float

    def _prepare(self, transaction: Transaction | AsyncTransaction, begins: bool) -> None:
        self._transaction = transaction
        self._begins = begins  # what nobody else began
        self._depth = depth()  # the effects around us may have savepoints on the same connection
        self._began = self._claim_marked = self._effect_marked = self._checked = self._undone = False
        self._stuck = self._joined = False  # there was nothing to come back to; there had been a transaction
        self._over = False  # our own transaction was committed together with what was settled
        self._outcome: Outcome | None = None  # of the effect, until its savepoint is dealt with

    # -- from the beginning to the end ---------------------------------------------------------------------

    def _whole(self, work: Callable[[], Any]) -> Steps:
        """One attempt in one transaction; what we began ourselves and lost against another is begun again."""
        for tries_left in reversed(range(TRANSACTIONS_MAX)):
            waiting = self._arrive()
            if waiting is not None:
                yield from self._overtake(waiting)
            if self._begins and self._transaction.stale:
                yield self._transaction.look_again
            begins = self._begins and not self._transaction.in_transaction
            again = begins and tries_left > 0
            self._undone = self._over = False
            try:
                if begins:
                    self._began = True  # from here on there may be something to roll back
                    yield from self._patiently(self._transaction.begin)
                ended = yield work
                yield from self._end()
            except TransactionConflict:
                yield from self._leave()
                if not again or not self._patience_left():
                    raise
            else:
                lost = self._undone and isinstance(ended, Failed) and self._transaction.conflicts(ended.error)
                if not (lost and again and self._patience_left()):
                    return ended
            self.call = replace(self.call, attempt=new_attempt())  # an id is used for one hold only
        raise AssertionError("the last try returns or raises")

    def _end(self) -> Steps:
        """The core came to an end: give the savepoints back, and commit what we began."""
        if self._claim_marked and self._transaction.in_transaction:
            yield partial(self._carry_out, Release(CLAIM, self._depth))  # and with it the one inside
        self._claim_marked = False
        if self._began and self._transaction.in_transaction:
            self._committing = True
            yield self._transaction.commit
        self._began = False
        self._depart()

    def _leave(self) -> Steps:
        """It did not come to an end: nothing of it stays."""
        self._outcome = None
        try:
            if self._began:
                yield self._transaction.rollback
            elif self._claim_marked and self._transaction.in_transaction:
                yield partial(self._carry_out, RollbackTo(CLAIM, self._depth), Release(CLAIM, self._depth))
        except StoreError:
            # The connection is gone, and the transaction with it; or it is not the transaction that we marked.
            self._stuck = not self._transaction.lost
        except Misconfigured as error:  # no other: an interrupt may be an Exception, and then it is done again
            note(error, f"samekey: {self.call.key} could not be undone over this connection: roll its transaction back")
            self._began = self._claim_marked = self._effect_marked = False
            self._depart()
            raise
        self._began = self._claim_marked = self._effect_marked = False  # not before: interrupted, it is done again
        self._depart()

    def _drop(self) -> Steps:
        """A hold was thrown away unentered. By then another transaction may be open, which shall not be harmed."""
        try:
            if self._claim_marked and self._transaction.in_transaction:
                back = RollbackTo(CLAIM, self._depth), Release(CLAIM, self._depth)
                try:
                    yield partial(self._carry_out, Savepoint(DROP, self._depth), *back)
                except SavepointGone:
                    yield partial(self._carry_out, RollbackTo(DROP, self._depth), Release(DROP, self._depth))
        finally:
            self._claim_marked = False
            self._depart()

    def _overtake(self, other: AtWork) -> Steps:
        """Go past a hold that was not entered while its transaction lasted: what it had claimed is gone with it."""
        if self._transaction.in_transaction:
            try:
                if not (yield self._transaction.same_database):
                    raise another_database(self._transaction)
                record = yield partial(self._carry_out, Read(other.call.key))
            except TransactionAborted as error:
                raise aborted() from error
            if record is not None and record.attempt == other.call.attempt:
                raise occupied(other.call)
        other.passed_by()
        if self._arrive() is not None:
            raise occupied(other.call)

    def passed_by(self) -> None:
        self._claim_marked = self._effect_marked = False
        self._depart()

    @property
    def ended_it(self) -> bool:
        """Whether the caller's transaction came to an end under this call: going on would commit its other half."""
        return self._stuck or (self._joined and not self._transaction.in_transaction)

    def too_late(self) -> Misconfigured | None:
        """A hold is about to be entered: whether its transaction is over, and nothing may be done with it."""
        self._waits = False
        if self._working and self._transaction.in_transaction:
            return None
        self.passed_by()
        return Misconfigured(
            f"the hold on {self.call.key} was entered when the transaction in which it was taken had ended: nothing is "
            "claimed. Ask again in the transaction that is open now"
        )

    # -- the core's commands -------------------------------------------------------------------------------

    def _obey(self, command: Command) -> Steps:
        match command:
            case Wait():
                return command.seen  # others' uncommitted work cannot be waited for in here
            case Undo(claim_too):
                if claim_too:
                    yield from self._back_to_claim()
                return None  # back to before the effect it goes together with what is settled
            case StoreCommand() if self._outcome is not None:
                return (yield from self._settle_effect(command))
            case StoreCommand():
                return (yield from self._ask(command))
        raise TypeError(f"{type(command).__name__} has no place in a transaction")

    def _ask(self, command: StoreCommand) -> Steps:
        """Before the effect: claim, and set the savepoints around the claim."""
        if self._over:
            raise StoreUnavailable(f"the transaction of {self.call.key} is committed already")
        try:
            if not self._checked:
                if not (yield self._transaction.same_database):
                    raise another_database(self._transaction)
                if self._transaction.writes_late:
                    yield self._transaction.write_pending  # the caller's own: before there is anything of ours
                self._checked = True
            ahead = isinstance(command, Open | Take) and self._transaction.marks_ahead
            acts: list[Act] = [command, Savepoint(EFFECT, self._depth)] if ahead else [command]
            if not self._began and not self._claim_marked:
                acts.insert(0, Savepoint(CLAIM, self._depth))
                self._claim_marked = self._joined = True  # from here on there may be something to come back to
            record = yield from self._patiently(partial(self._carry_out, *acts))
        except Unsaid:
            self._claim_marked = self._claim_marked and not isinstance(acts[0], Savepoint)
            raise
        except TransactionAborted as error:
            raise aborted() from error
        self._effect_marked = ahead
        return record

    def _mark_effect(self) -> Steps:
        if not self._effect_marked:
            yield partial(self._carry_out, Savepoint(EFFECT, self._depth))
            self._effect_marked = True

    def _judge(self, outcome: Outcome) -> Steps:
        """The effect ended: what the library still has to write for it is the effect's, too."""
        if isinstance(outcome, Returned) and self._transaction.in_transaction:
            try:
                yield self._transaction.effect_returned
            except (SavepointGone, TransactionAborted) as error:
                outcome = Raised(Misconfigured(self._broken(error)))
            except Exception as error:
                outcome = Raised(error)
        self._outcome = outcome
        return outcome

    def _settle_effect(self, command: StoreCommand) -> Steps:
        """After the effect: undo it if it raised, settle, and give the savepoints back, all in one trip."""
        outcome, self._outcome = self._outcome, None
        acts: list[Act] = [RollbackTo(EFFECT, self._depth)] if isinstance(outcome, Raised) else []
        acts += [command, Release(CLAIM if self._claim_marked else EFFECT, self._depth)]
        last = self._began and self._transaction.commits_along
        if last:
            acts.append(Commit())
        try:
            if not self._transaction.in_transaction:
                raise SavepointGone("no transaction")
            record = yield from self._patiently(partial(self._carry_out, *acts))
        except (SavepointGone, RecordGone, TransactionAborted) as error:
            told = self._broken(error)
            if isinstance(outcome, Raised):
                note(outcome.error, f"samekey: {told}")  # its own error matters more
                raise StoreUnavailable(told) from error
            raise Misconfigured(told) from error
        self._claim_marked = False
        self._over = last
        self._began = self._began and not last
        return record

    def _back_to_claim(self) -> Steps:
        """Effect and claim are undone; an effect that ended the transaction itself is told so."""
        outcome = self._outcome
        there = self._transaction.in_transaction
        yield from self._leave()
        self._undone = True
        if isinstance(outcome, Raised) and (self._stuck or not there) and not self._transaction.lost:
            note(outcome.error, f"samekey: {self._broken(None)}")  # `with connection:` rolls back on every error

    def _broken(self, error: StoreError | None) -> str:
        if isinstance(error, TransactionAborted):
            return (
                f"a statement in the effect of {self.call.key} failed and its error was swallowed, so the database "
                "aborted the transaction: nothing of the effect is kept. Let the error out, or put the statement "
                "into a savepoint of its own"
            )
        if isinstance(error, RecordGone):
            return (
                f"the record of {self.call.key} is not where it was claimed: the effect changed which tables its "
                "connection sees (search_path, USE), or its transaction was rolled back on the way, so nothing of it "
                "is kept. Put the tables back before it returns, and let the error out that ended the transaction"
            )
        if self._transaction.lost:
            return f"the connection was lost while the effect of {self.call.key} ran: record and effect are rolled back"
        return (
            f"the effect of {self.call.key} committed or rolled back the transaction it was given: "
            "record and effect are no longer one. Leave the commit to the guard or to the caller"
        )

    # -- waiting -------------------------------------------------------------------------------------------

    def _carry_out(self, *acts: Act) -> Any:
        return self._transaction.carry_out(*acts, patience=max(WAIT_MIN_SECONDS, self._patience_left()))

    def _patiently(self, work: Callable[[], Any]) -> Steps:
        while True:
            try:
                return (yield work)
            except StoreUnavailable as error:
                if not (self._transaction.worth_waiting(error) and self._patience_left()):
                    raise
            yield self._pause

    def _patience_left(self) -> float:
        return max(0.0, self._patience_ends - time.monotonic())

    def _pause(self) -> Any:
        raise TypeError("a performer has a colour")

    def finish(self) -> None:
        """There is no flight in here that anybody could wait for."""


def _do(work: Any) -> Any:
    return work()


class AtomicPerformer(_InTransaction, Performer):
    """Carries out commands on the caller's connection."""

    def __init__(
        self, call: Call, effect: Callable[[], Any], transaction: Transaction, *, begins: bool, hooks: tuple[Hook, ...]
    ) -> None:
        Performer.__init__(self, call, effect, guard=None, flights=None, leases=None, hooks=hooks)
        self._prepare(transaction, begins)

    def whole(self) -> Answer[Any] | Failed:
        """The attempt in the caller's transaction, or in one of our own."""
        ended: Answer[Any] | Failed = self._or_leave(
            lambda: self._go(self._whole(lambda: drive(attempt(self.call), self.perform)))
        )
        return ended

    def hold(self) -> Held | Answer[Any]:
        steps = attempt(self.call)

        def work() -> Any:
            waiting = self._arrive()
            if waiting is not None:
                self._go(self._overtake(waiting))
            reached = drive(steps, self.perform, until=RunEffect)
            self._go(self._mark_effect() if isinstance(reached, RunEffect) else self._end())
            self._waits = self._working
            return self.handed_out(reached, steps)

        held: Held | Answer[Any] = self._or_leave(work)
        return held

    def end(self, steps: Generator[Command, Any, Any], outcome: Outcome) -> Any:
        def work() -> Any:
            ended = drive(steps, self.perform, reply=self.after_effect(outcome))
            self._go(self._end())
            return ended

        return self._or_leave(work)

    def abandon(self) -> None:
        """A hold thrown away unentered claims nothing."""
        try:
            self._go(self._drop())
        except Exception:  # the collector may run in another thread than the connection's
            _log.warning("a hold of %s was never entered, and stays claimed", self.call.key.operation)

    def perform(self, command: Any) -> Any:
        if isinstance(command, (StoreCommand, Undo)):
            return self._go(self._obey(command))
        return super().perform(command)

    def _run_effect(self, command: RunEffect) -> Outcome:
        if not self._effect_marked:
            self._go(self._mark_effect())
        return self.after_effect(super()._run_effect(command))

    def after_effect(self, outcome: Outcome) -> Outcome:
        """What the core shall hear of an effect's end."""
        judged: Outcome = self._go(self._judge(outcome))
        return judged

    def _straight(self, command: Any) -> Record | None:
        record: Record | None = self._carry_out(command)
        return record

    def _or_leave(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except BaseException:
            try:
                self._go(self._leave())
            finally:
                self._go(self._leave())  # that may have been interrupted; done twice is done once
            raise

    def _go(self, steps: Steps) -> Any:
        return drive(steps, _do)

    def _pause(self) -> None:
        time.sleep(BUSY_PAUSE_SECONDS)


class AsyncAtomicPerformer(_InTransaction, AsyncPerformer):
    """The same, awaited."""

    def __init__(
        self,
        call: Call,
        effect: Callable[[], Any],
        transaction: AsyncTransaction,
        *,
        begins: bool,
        hooks: tuple[Hook, ...],
    ) -> None:
        AsyncPerformer.__init__(self, call, effect, guard=None, flights=None, leases=None, hooks=hooks)
        self._prepare(transaction, begins)
        self._immediate = transaction.immediate

    async def whole(self) -> Answer[Any] | Failed:
        """The attempt in the caller's transaction, or in one of our own."""
        ended: Answer[Any] | Failed = await self._or_leave(
            lambda: self._go(self._whole(lambda: adrive(attempt(self.call), self.perform)))
        )
        return ended

    async def hold(self) -> AsyncHeld | Answer[Any]:
        steps = attempt(self.call)

        async def work() -> Any:
            waiting = self._arrive()
            if waiting is not None:
                await self._go(self._overtake(waiting))
            reached = await adrive(steps, self.perform, until=RunEffect)
            await self._go(self._mark_effect() if isinstance(reached, RunEffect) else self._end())
            self._waits = self._working
            return self.handed_out(reached, steps)

        held: AsyncHeld | Answer[Any] = await self._or_leave(work)
        return held

    async def end(self, steps: Generator[Command, Any, Any], outcome: Outcome) -> Any:
        async def work() -> Any:
            ended = await adrive(steps, self.perform, reply=await self.after_effect(outcome))
            await self._go(self._end())
            return ended

        return await self._or_leave(work)

    def abandon(self) -> None:
        """A hold thrown away unentered claims nothing - where that can be said without waiting."""
        if not self._immediate:
            _log.warning(
                "a hold of %s was never entered, and stays claimed: roll its transaction back", self.call.key.operation
            )
            self._depart()
            return
        leaving = self._go(self._drop())
        try:
            leaving.send(None)
        except StopIteration:
            pass
        except Exception:  # the collector may run in another thread than the connection's
            _log.warning("a hold of %s was never entered, and stays claimed", self.call.key.operation)

    async def perform(self, command: Any) -> Any:
        if isinstance(command, StoreCommand):
            return await self._go(self._obey(command))
        if isinstance(command, Undo):
            return await self._surely(self._obey(command))
        return await super().perform(command)

    async def _run_effect(self, command: RunEffect) -> Outcome:
        if not self._effect_marked:
            await self._go(self._mark_effect())
        return await self.after_effect(await super()._run_effect(command))

    async def after_effect(self, outcome: Outcome) -> Outcome:
        judged: Outcome = await self._go(self._judge(outcome))
        return judged

    async def _straight(self, command: Any) -> Record | None:
        record: Record | None = await self._carry_out(command)
        return record

    async def _or_leave(self, work: Callable[[], Awaitable[Any]]) -> Any:
        try:
            return await work()
        except BaseException:
            await self._surely(self._leave())
            raise

    async def _surely(self, steps: Steps) -> Any:
        """Begun is done, whoever is cancelled once more. What waits for nothing needs no shield for that, and no loop:
        a coroutine that is closed, or dropped with its loop, could not wait."""
        if self._immediate:
            return await self._go(steps)
        return await running().shielded(lambda: self._go(steps))

    def _go(self, steps: Steps) -> Any:
        return adrive(steps, _do)

    async def _pause(self) -> None:
        await running().sleep(BUSY_PAUSE_SECONDS)


# -- whose transaction ---------------------------------------------------------------------------------------------


def join(store: Any, connection: Any) -> Any:
    """The store inside this connection's transactions: a Transaction, or an AsyncTransaction of an async store."""
    joined = getattr(store, "join", None)
    if joined is None:
        raise Misconfigured(f"{store.name} cannot take part in a transaction: Atomic needs a database store")
    return joined(connection)


def another_database(transaction: Transaction | AsyncTransaction) -> Misconfigured:
    return Misconfigured(
        f"the connection belongs to another database than {transaction.name}: it cannot be atomic. "
        "Give a connection to that one, or a guard of this one"
    )


def require_same_database(transaction: Transaction) -> None:
    try:
        if not transaction.same_database():
            raise another_database(transaction)
    except TransactionAborted as error:
        raise aborted() from error


def aborted() -> Misconfigured:
    return Misconfigured(
        "the transaction is aborted: a statement failed in it before the guard was asked. "
        "Roll it back, or put what may fail into a savepoint of its own"
    )


def require_transaction(transaction: Transaction | AsyncTransaction) -> None:
    # Where that may be out of date, the savepoint before the claim will tell.
    if not (transaction.in_transaction or transaction.begins_by_itself or transaction.stale):
        raise Misconfigured(
            "the connection is in no transaction, so nothing would be atomic: begin one first "
            "(psycopg and asyncpg: connection.transaction(); Django: transaction.atomic(); "
            "PyMySQL: connection.begin(); sqlite3: connection.execute('BEGIN IMMEDIATE'))"
        )
