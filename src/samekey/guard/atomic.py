"""Inside the caller's transaction: claim, effect and result in one commit.

Two savepoints make it possible. The savepoint CLAIM is set before the claim: an error that the policy cannot classify
rolls back to it, record and effect together, as if nothing had run. In a transaction that we began ourselves its
beginning serves as CLAIM. The savepoint EFFECT is set after the claim: it undoes what an effect did before it raised,
so that `Refused` and `NotDone` can be written to the record. There is no single flight and no lease here, because no
other connection sees the record before the commit.

`core.transaction.Phase` says how far a call has come; `NEXT` there has every allowed move.

The steps are written once for both colours, as generators. Each `yield` hands out something to call; `drive` calls it,
`adrive` calls and awaits it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import ref

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
from samekey.core.drive import Steps, adrive, do, drive
from samekey.core.errors import Misconfigured, StoreError, StoreUnavailable, TransactionConflict
from samekey.core.record import Record
from samekey.core.transaction import (
    CLAIM,
    CLAIM_SET,
    EFFECT,
    MOVE,
    OFF_CONNECTION,
    OVER,
    OWN_OPEN,
    Act,
    AsyncTransaction,
    Commit,
    Phase,
    RecordGone,
    Release,
    RollbackTo,
    Savepoint,
    SavepointGone,
    Transaction,
    TransactionAborted,
    aborted,
    another_database,
    broken,
    occupied,
)
from samekey.guard.facts import Facts
from samekey.guard.hold import AsyncHeld, Held, lineage
from samekey.guard.operations import new_attempt
from samekey.guard.performer import AsyncPerformer, Performer
from samekey.loops import running

TRANSACTIONS_MAX = 20  # tries of a whole transaction that we began, while others win against it; 2 are the rule
WAIT_MIN_SECONDS = 0.001  # a database takes 0 for "for ever"

_log = logging.getLogger("samekey")

# The innermost guarded call on each connection, by the connection's id, which is valid as long as its performer lives.
_on_connection: dict[int, ref[_InTransaction]] = {}
_mutex = threading.RLock()  # reentrant: the garbage collector may drop a hold in here, and that departs


class _InTransaction:
    """What both colours share: savepoints around the core's commands."""

    call: Call
    _phase = Phase.AWAY
    _own = False  # the transaction is one that we began
    _outcome: Outcome | None = None  # of the effect, in phase RAN
    _outer: ref[_InTransaction] | None = None  # the call inside whose effect we use the same connection
    _patience_ends: float
    _run_effect: Any
    _surely: Any
    end_in: Callable[[BaseException], None]
    end_later: Callable[[str, str], None]
    note_answered: Callable[[Record | None], None]
    handed_out: Any
    perform: Any

    def __init__(
        self,
        call: Call,
        effect: Callable[[], Any],
        transaction: Transaction | AsyncTransaction,
        *,
        begins: bool,
        facts: Facts,
    ) -> None:
        super().__init__(call, effect, None, None, None, facts)  # type: ignore[call-arg]  # of Performer or AsyncPerformer
        self._transaction: Any = transaction
        self._begins = begins  # a transaction of its own, where the caller has none open
        self._depth = len(lineage())  # the effects around us may have savepoints on the same connection

    # -- one call at a time on a connection --------------------------------------------------------------------
    # Savepoints are a stack. Rolling back to one of them undoes what other calls did on top of it, and two calls that
    # do not know of each other use the same names. So a connection has one guarded call at a time, or one inside the
    # effect of the other.

    def _arrive(self) -> Steps:
        """Take the connection, or be refused."""
        waiting = self._take_connection()
        if waiting is not None:
            yield from self._overtake(waiting)

    def _take_connection(self) -> _InTransaction | None:
        """Take the connection. If a hold that was not entered has it, return that one: it may be out of date."""
        place = id(self._transaction.connection)
        with _mutex:
            known = _on_connection.get(place)
            other = None if known is None else known()
            if other is not None and other._phase not in OFF_CONNECTION and not other._has_committed():
                if other.call.attempt not in lineage():
                    if other._phase is Phase.WAITING:
                        return other
                    raise occupied(other.call.key)
                self._outer = known
            self._phase = MOVE[self._phase, Phase.ARRIVED]
            _on_connection[place] = ref(self)
        return None

    def _overtake(self, other: _InTransaction) -> Steps:
        """Take the connection from a hold whose transaction ended before it was entered: its claim ended with it."""
        if self._transaction.in_transaction:
            try:
                if not (yield self._transaction.same_database):
                    raise another_database(self._transaction.name)
                record = yield self._trip(Read(other.call.key))
            except TransactionAborted as error:
                raise aborted() from error
            if record is not None and record.attempt == other.call.attempt:
                raise occupied(other.call.key)
        other._depart(Phase.AWAY)
        if self._take_connection() is not None:
            raise occupied(other.call.key)

    def _has_committed(self) -> bool:
        """What a library calls as it commits (Django's `on_commit`) comes after this call, not inside it."""
        return self._phase is Phase.COMMITTING and not self._transaction.in_transaction

    def _depart(self, to: Phase) -> None:
        """The call is over on this connection."""
        if self._phase in OFF_CONNECTION:
            return
        place = id(self._transaction.connection)
        with _mutex:
            self._phase = MOVE[self._phase, to]
            if _on_connection.get(place) == ref(self):
                del _on_connection[place]
                if self._outer is not None:
                    _on_connection[place] = self._outer

    # -- from the beginning to the end ---------------------------------------------------------------------------

    def _whole(self) -> Steps:
        """One attempt in one transaction. A transaction of our own that lost against another one is begun again."""
        for tries_left in reversed(range(TRANSACTIONS_MAX)):
            yield from self._arrive()
            if self._begins and self._transaction.stale:
                yield self._transaction.look_again
            self._own = self._begins and not self._transaction.in_transaction
            again = self._own and tries_left > 0
            try:
                if self._own:
                    self._phase = MOVE[self._phase, Phase.BEGUN]  # from here on there may be something to roll back
                    patience = max(WAIT_MIN_SECONDS, self._patience_ends - time.monotonic())
                    yield partial(self._transaction.begin, patience)
                began_by_itself = self._begins and not self._own and self._transaction.began_by_itself
                ended = yield from self._attempt(attempt(self.call))
                yield from self._end()
                if began_by_itself and self._phase is Phase.DONE:
                    warn_not_committed(self.call)
            except TransactionConflict:
                yield from self._leave()
                if not (again and self._patience_ends > time.monotonic()):
                    raise
            else:
                undone = self._phase is not Phase.DONE and isinstance(ended, Failed)
                lost = undone and self._transaction.conflicts(ended.error)
                if not (lost and again and self._patience_ends > time.monotonic()):
                    return ended
            self.call = replace(self.call, attempt=new_attempt())  # an id is used for one hold only
        raise AssertionError("the last try returns or raises")

    def _hold(self) -> Steps:
        """As far as the effect, which is the caller's; or the answer that there is without it."""
        yield from self._arrive()
        steps = attempt(self.call)
        reached = yield from self._attempt(steps, until=RunEffect)
        if not isinstance(reached, RunEffect):
            yield from self._end()
        elif reached.held is not None:
            yield from self._mark()
            self._phase = MOVE[self._phase, Phase.WAITING]
        return self.handed_out(reached, steps)

    def _rest(self, steps: Generator[Command, Any, Any], outcome: Outcome) -> Steps:
        """The rest of an attempt whose hold was handed out and has been left."""
        if self._phase is Phase.WAITING:  # the http adapters enter a hold without `too_late`
            self._phase = MOVE[self._phase, Phase.RUNNING]
        ended = yield from self._attempt(steps, (yield from self._judge(outcome)))
        yield from self._end()
        return ended

    def _end(self) -> Steps:
        """The core came to an end: release the savepoints, and commit a transaction that we began."""
        phase = self._phase
        if phase in OVER:
            return
        if self._own:
            self._phase = MOVE[self._phase, Phase.COMMITTING]
            if self._transaction.in_transaction:
                yield self._transaction.commit
        elif phase in CLAIM_SET and self._transaction.in_transaction:
            yield self._trip(Release(CLAIM, self._depth))  # EFFECT is inside it and goes with it
        self._depart(Phase.AWAY if phase is Phase.ARRIVED else Phase.DONE)

    def _leave(self) -> Steps:
        """The call did not come to an end: roll back what it did. Interrupted, this is done again from the start."""
        phase, self._outcome, stuck = self._phase, None, False
        try:
            if self._own:
                if phase in OWN_OPEN:
                    yield self._transaction.rollback
            elif phase in CLAIM_SET and self._transaction.in_transaction:
                yield self._trip(RollbackTo(CLAIM, self._depth), Release(CLAIM, self._depth))
        except StoreError:
            # The connection is gone, and the transaction with it; or this is not the transaction that we marked.
            stuck = not self._transaction.lost
        except Misconfigured as error:  # no other: an interrupt may be an Exception too
            note(error, f"samekey: {self.call.key} could not be undone over this connection: roll its transaction back")
            self._depart(Phase.UNDONE)
            raise
        if phase is Phase.ARRIVED:
            self._depart(Phase.AWAY)
        elif phase is Phase.SETTLED and not self._own:
            self._depart(Phase.DONE)  # the savepoints are released: only the caller can roll it back
        else:
            self._depart(Phase.STUCK if stuck else Phase.UNDONE)

    @property
    def ended_it(self) -> bool:
        """Whether the caller's transaction ended during this call: going on would commit the other half of it."""
        return self._phase is Phase.STUCK or (self._phase in OVER and not self._transaction.in_transaction)

    def too_late(self) -> Misconfigured | None:
        """A hold is about to be entered. If its transaction is over, nothing may be done with it."""
        if self.call.unguarded:
            return None
        if self._phase is Phase.WAITING and self._transaction.in_transaction:
            self._phase = MOVE[self._phase, Phase.RUNNING]
            return None
        self._depart(Phase.AWAY)
        return Misconfigured(
            f"the hold on {self.call.key} was entered when the transaction in which it was taken had ended: nothing is "
            "claimed. Ask again in the transaction that is open now"
        )

    def dropped(self) -> None:
        """The garbage collector found a hold that was never entered. The end of its transaction removes the claim."""
        _log.warning(
            "a hold of %s was never entered, and stays claimed: roll its transaction back", self.call.key.operation
        )
        self._depart(Phase.AWAY)
        self.end_later("released", "released")

    def abandon(self) -> None:
        """The garbage collector found a hold in the middle of its block."""
        _log.warning(
            "a hold of %s was entered and never left, and stays claimed: roll its transaction back",
            self.call.key.operation,
        )
        self._depart(Phase.UNDONE if self._phase in OWN_OPEN else Phase.AWAY)
        self.end_later("abandoned", "released")

    def finish(self) -> None:
        """There is no flight in here that another caller could wait for."""

    # -- the core's commands -------------------------------------------------------------------------------------

    def _attempt(
        self, steps: Generator[Command, Any, Any], reply: Any = None, until: type[Command] | None = None
    ) -> Steps:
        """`core.drive.drive`, with the store's commands as acts on the caller's connection."""
        try:
            command = steps.send(reply)
            while True:
                if type(command) is until:
                    return command
                try:
                    if isinstance(command, Wait):
                        reply = command.seen  # work that others have not committed cannot be waited for in here
                    elif isinstance(command, StoreCommand):
                        reply = yield from (self._settle if self._phase is Phase.RAN else self._ask)(command)
                    elif isinstance(command, RunEffect):
                        reply = yield from self._run(command)
                    elif isinstance(command, Undo):
                        # Undo(claim_too=False) needs no trip of its own: `_settle` does it.
                        reply = (yield partial(self._surely, self._back_to_claim())) if command.claim_too else None
                    else:
                        reply = yield partial(self.perform, command)
                except Exception as error:
                    command = steps.throw(error)
                else:
                    command = steps.send(reply)
        except StopIteration as stop:
            return stop.value
        except BaseException:
            steps.close()  # or the steps would wake up in the garbage collector
            raise

    def _ask(self, command: StoreCommand) -> Steps:
        """Before the effect: claim, and set the savepoints around the claim."""
        phase, transaction = self._phase, self._transaction
        if phase is Phase.DONE:
            raise StoreUnavailable(f"the transaction of {self.call.key} is committed already")
        acts: list[Act] = [command]
        try:
            if phase is Phase.ARRIVED or phase is Phase.BEGUN:
                if not (yield transaction.same_database):
                    raise another_database(transaction.name)
                if transaction.writes_late:
                    yield transaction.flush  # the caller's own, before there is anything of ours
            marks = isinstance(command, Open | Take) and transaction.marks_ahead
            if marks:
                acts.append(Savepoint(EFFECT, self._depth))
            if not self._own and phase not in CLAIM_SET:
                acts.insert(0, Savepoint(CLAIM, self._depth))
            if phase is not Phase.OPEN and phase is not Phase.RUNNING:
                self._phase = MOVE[self._phase, Phase.OPEN]  # from here on there may be something to roll back
            record = yield self._trip(*acts)
        except TransactionAborted as error:
            raise aborted() from error
        self.note_answered(record)
        if marks:
            self._phase = MOVE[self._phase, Phase.MARKED]
        return record

    def _mark(self) -> Steps:
        if self._phase is Phase.OPEN:
            yield self._trip(Savepoint(EFFECT, self._depth))
            self._phase = MOVE[self._phase, Phase.MARKED]

    def _run(self, command: RunEffect) -> Steps:
        if command.held is None:  # not guarded: nothing is claimed
            return (yield partial(self._run_effect, command))
        if self._phase is Phase.OPEN:
            yield from self._mark()
        self._phase = MOVE[self._phase, Phase.RUNNING]
        return (yield from self._judge((yield partial(self._run_effect, command))))

    def _judge(self, outcome: Outcome) -> Steps:
        """The effect ended. What the library still has to write for it belongs to the effect."""
        if self._phase is not Phase.RUNNING:
            return outcome  # not guarded
        if isinstance(outcome, Returned) and self._transaction.in_transaction:
            try:
                yield self._transaction.effect_returned
            except (SavepointGone, TransactionAborted) as error:
                outcome = Raised(Misconfigured(broken(self.call.key, error, lost=self._transaction.lost)))
            except Exception as error:
                outcome = Raised(error, notes=outcome.notes, terms=outcome.terms)
        self._outcome = outcome
        self._phase = MOVE[self._phase, Phase.RAN]
        return outcome

    def _settle(self, command: StoreCommand) -> Steps:
        """After the effect: undo it if it raised, settle, and release the savepoints, all in one trip."""
        outcome, self._outcome = self._outcome, None
        acts: list[Act] = [RollbackTo(EFFECT, self._depth)] if isinstance(outcome, Raised) else []
        acts += [command, Release(EFFECT if self._own else CLAIM, self._depth)]
        last = self._own and self._transaction.commits_along
        if last:
            acts.append(Commit())
        try:
            if not self._transaction.in_transaction:
                raise SavepointGone("no transaction")
            record = yield self._trip(*acts)
        except (SavepointGone, RecordGone, TransactionAborted) as error:
            why = broken(self.call.key, error, lost=self._transaction.lost)
            if isinstance(outcome, Raised):
                note(outcome.error, f"samekey: {why}")  # the effect's own error matters more
                raise StoreUnavailable(why) from error
            raise Misconfigured(why) from error
        if last:
            self._depart(Phase.DONE)
        else:
            self._phase = MOVE[self._phase, Phase.SETTLED]
        self.last = record
        return record

    def _back_to_claim(self) -> Steps:
        """Undo effect and claim. The error of an effect that ended the transaction itself gets a note about that."""
        outcome, there = self._outcome, self._transaction.in_transaction
        yield from self._leave()
        ended = self._phase is Phase.STUCK or not there
        if isinstance(outcome, Raised) and ended and not self._transaction.lost:
            note(
                outcome.error, f"samekey: {broken(self.call.key, None, lost=self._transaction.lost)}"
            )  # `with connection:` rolls back on every error

    def _straight(self, command: Any) -> Any:
        return self._trip(command)()

    def _trip(self, *acts: Act) -> Callable[[], Any]:
        patience = max(WAIT_MIN_SECONDS, self._patience_ends - time.monotonic())
        return partial(self._transaction.carry_out, *acts, patience=patience)


class AtomicPerformer(_InTransaction, Performer):
    """Carries out commands on the caller's connection."""

    def go_on(self, steps: Generator[Command, Any, Any] | None = None, reply: Any = None) -> Any:
        """The attempt in the caller's transaction, or in one of our own; or the rest of it, after its effect."""
        return self._go(self._whole() if steps is None else self._rest(steps, reply))

    def hold(self, steps: Any = None, reply: Any = None) -> Held | Answer[Any]:
        held: Held | Answer[Any] = self._go(self._hold())
        return held

    def perform(self, command: Any) -> Any:
        if isinstance(command, StoreCommand):  # of held.sending()
            return drive(self._ask(command), do)
        return super().perform(command)

    def _go(self, steps: Steps) -> Any:
        try:
            return drive(steps, do)
        except BaseException as error:
            try:
                drive(self._leave(), do)
            finally:
                drive(self._leave(), do)  # the first one may have been interrupted; done twice is done once
            self.end_in(error)
            raise

    def _surely(self, steps: Steps) -> Any:
        return drive(steps, do)


class AsyncAtomicPerformer(_InTransaction, AsyncPerformer):
    """The same, awaited."""

    async def go_on(self, steps: Generator[Command, Any, Any] | None = None, reply: Any = None) -> Any:
        """The attempt in the caller's transaction, or in one of our own; or the rest of it, after its effect."""
        return await self._go(self._whole() if steps is None else self._rest(steps, reply))

    async def hold(self, steps: Any = None, reply: Any = None) -> AsyncHeld | Answer[Any]:
        held: AsyncHeld | Answer[Any] = await self._go(self._hold())
        return held

    async def perform(self, command: Any) -> Any:
        if isinstance(command, StoreCommand):
            return await adrive(self._ask(command), do)
        return await super().perform(command)

    async def _go(self, steps: Steps) -> Any:
        try:
            return await adrive(steps, do)
        except BaseException as error:
            await self._surely(self._leave())
            self.end_in(error)
            raise

    async def _surely(self, steps: Steps) -> Any:
        """Finish these steps although the caller is cancelled once more.

        Steps that await nothing need no shield and no loop: a coroutine that is being closed cannot await.
        """
        if self._transaction.immediate:
            return await adrive(steps, do)
        return await running().shielded(lambda: adrive(steps, do))


# -- whose transaction ---------------------------------------------------------------------------------------------


_warned: set[str] = set()  # operations, once each: their next calls are as this one


def warn_not_committed(call: Call) -> None:
    """The caller's library had begun a transaction, which the caller may not know of."""
    operation = call.key.operation
    if operation not in _warned:
        _warned.add(operation)
        _log.warning(
            "a call of %s joined a transaction that its connection had begun by itself with an earlier statement: "
            "nothing is committed before you commit it. Begin it in the open (with session.begin():, with "
            "connection.transaction():), or end it before the call, and the guard commits its own",
            operation,
        )


def require_same_database(transaction: Transaction) -> None:
    try:
        if not transaction.same_database():
            raise another_database(transaction.name)
    except TransactionAborted as error:
        raise aborted() from error


def require_transaction(transaction: Transaction | AsyncTransaction) -> None:
    # Where the answer may be out of date, the savepoint before the claim will show it.
    if not (transaction.in_transaction or transaction.begins_by_itself or transaction.stale):
        raise Misconfigured(
            "the connection is in no transaction, so nothing would be atomic: begin one first "
            "(psycopg and asyncpg: connection.transaction(); Django: transaction.atomic(); "
            "PyMySQL: connection.begin(); sqlite3: connection.execute('BEGIN IMMEDIATE'))"
        )
