"""Inside a transaction of the caller: what a database store offers there, and the phases of a guarded call in it.

A trip to the database carries a few acts at once: savepoints, and at most one command. Trips are what costs between a
program and its database. `guard.on(connection)` and `Atomic` consist of such trips: see `samekey.guard.atomic`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

from samekey.core.commands import StoreCommand
from samekey.core.errors import Misconfigured, StoreError
from samekey.core.key import Key
from samekey.core.record import Record

CLAIM, EFFECT = "claim", "effect"  # the two savepoints: before the claim, and before the effect


# -- phases ------------------------------------------------------------------------------------------------------


class Phase(Enum):
    """How far a guarded call has come on the connection it was given."""

    AWAY = "away"  # nothing of this call is on the connection
    ARRIVED = "arrived"  # the connection is taken, nothing was sent yet
    BEGUN = "begun"  # our own transaction may have begun
    OPEN = "open"  # there may be a claim: after the savepoint CLAIM, or in our own transaction
    MARKED = "marked"  # the savepoint EFFECT is set after the claim
    WAITING = "waiting"  # the hold was handed out, and the caller has not entered it yet
    RUNNING = "running"  # the effect runs
    RAN = "ran"  # the effect ended, and its outcome is not written yet
    SETTLED = "settled"  # the outcome is written, and the savepoints are released
    COMMITTING = "committing"  # our own COMMIT was sent
    DONE = "done"  # the call ended and what it wrote stays, as far as its transaction does
    UNDONE = "undone"  # claim and effect are rolled back
    STUCK = "stuck"  # there was nothing to roll back to: the transaction is not the one that we marked

    __hash__ = object.__hash__  # Enum's own hashes the name, in Python


_UNDO = frozenset({Phase.UNDONE, Phase.STUCK})

# Every move that a call may make. Staying in a phase is not a move.
NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.AWAY: frozenset({Phase.ARRIVED}),
    Phase.ARRIVED: frozenset({Phase.BEGUN, Phase.OPEN, Phase.AWAY}),
    Phase.BEGUN: frozenset({Phase.OPEN}) | _UNDO,
    Phase.OPEN: frozenset({Phase.MARKED, Phase.COMMITTING, Phase.DONE}) | _UNDO,
    # Back to OPEN with every further command: the savepoint EFFECT must come after the last one.
    Phase.MARKED: frozenset({Phase.OPEN, Phase.WAITING, Phase.RUNNING, Phase.COMMITTING, Phase.DONE}) | _UNDO,
    Phase.WAITING: frozenset({Phase.RUNNING, Phase.AWAY}) | _UNDO,
    Phase.RUNNING: frozenset({Phase.RAN}) | _UNDO,
    Phase.RAN: frozenset({Phase.SETTLED, Phase.DONE}) | _UNDO,
    Phase.SETTLED: frozenset({Phase.OPEN, Phase.COMMITTING, Phase.DONE}) | _UNDO,
    Phase.COMMITTING: frozenset({Phase.DONE}) | _UNDO,
    Phase.DONE: frozenset(),
    Phase.UNDONE: frozenset({Phase.ARRIVED}),  # a transaction of our own that lost against another one: once more
    Phase.STUCK: frozenset({Phase.ARRIVED}),
}
MOVE = {(now, to): to for now, moves in NEXT.items() for to in moves}  # a KeyError is a move that is not allowed

OFF_CONNECTION = frozenset({Phase.AWAY, Phase.DONE, Phase.UNDONE, Phase.STUCK})  # another call may use the connection
OVER = frozenset({Phase.DONE, Phase.UNDONE, Phase.STUCK})
# Where a savepoint CLAIM is set in a transaction of the caller; before it there is nothing, and SETTLED released it.
CLAIM_SET = frozenset({Phase.OPEN, Phase.MARKED, Phase.WAITING, Phase.RUNNING, Phase.RAN})
# Where a transaction of our own may be open.
OWN_OPEN = CLAIM_SET | {Phase.BEGUN, Phase.SETTLED, Phase.COMMITTING}


# -- acts --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _AtSavepoint:
    name: str
    depth: int  # inside how many effects: the effects around have savepoints of the same names
    verb: ClassVar[str]

    @property
    def sql(self) -> str:
        return f"{self.verb} samekey_{self.name}_{self.depth}"


class Savepoint(_AtSavepoint):
    """A place to which the transaction can be rolled back."""

    __slots__ = ()
    verb = "SAVEPOINT"


class RollbackTo(_AtSavepoint):
    """Undo everything since the savepoint; the savepoint stays."""

    __slots__ = ()
    verb = "ROLLBACK TO SAVEPOINT"


class Release(_AtSavepoint):
    """Remove the savepoint and those set after it; what was done stays done."""

    __slots__ = ()
    verb = "RELEASE SAVEPOINT"


@dataclass(frozen=True, slots=True)
class Commit:
    """The last act in a transaction that we began, where `commits_along` allows it to share a trip."""

    sql = "COMMIT"


Mark = Savepoint | RollbackTo | Release | Commit
Act = Mark | StoreCommand


class SavepointGone(StoreError):
    """The transaction is not the one in which the savepoint was set."""


class RecordGone(StoreError):
    """What was claimed in this transaction is not there: the connection sees other tables now."""


class TransactionAborted(StoreError):
    """A statement failed before, and the database refuses every other one until a rollback."""


# -- what a store offers -----------------------------------------------------------------------------------------


class Transaction(Protocol):
    """A store inside a transaction of the caller's connection."""

    name: str
    marks_ahead: bool  # a savepoint after a claim costs no trip of its own
    commits_along: bool  # nor does a commit after a settle
    writes_late: bool  # the library may still have to write what was asked of it before the claim

    @property
    def connection(self) -> Any:
        """The connection that the caller gave; if that is a proxy, the connection it leads to."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open now."""

    @property
    def begins_by_itself(self) -> bool:
        """Whether the next statement would begin one that stays open until the caller ends it."""

    @property
    def began_by_itself(self) -> bool:
        """Whether the open transaction is known to have begun so: the caller may not know that it must commit."""

    @property
    def lost(self) -> bool:
        """Whether the connection is gone."""

    @property
    def stale(self) -> bool:
        """Whether `in_transaction` may be out of date; `look_again` asks the server."""

    def look_again(self) -> None: ...

    def same_database(self) -> bool:
        """Whether the connection leads to the very tables that the store writes."""

    def begin(self, patience: float) -> None:
        """Begin a transaction; wait for others no longer than `patience` seconds."""

    def commit(self) -> None: ...
    def rollback(self) -> None: ...

    def carry_out(self, *acts: Act, patience: float) -> Record | None:
        """The acts in their order, up to the first that fails; the record that the command among them shows.

        Waits for other transactions that hold what the command needs, no longer than `patience` seconds.
        """

    def flush(self) -> None:
        """Before the claim, where the library `writes_late`: what it still had to write is written now, or raises."""

    def effect_returned(self) -> None:
        """Before the effect is settled: what the library still had to write for it is written now, or raises."""

    def conflicts(self, error: BaseException) -> bool:
        """Whether the transaction lost against another one, and may be run again as a whole."""


class AsyncTransaction(Protocol):
    """The same, awaited."""

    name: str
    marks_ahead: bool
    commits_along: bool
    writes_late: bool
    immediate: bool  # rolling back awaits nothing, so a coroutine that is being closed can do it

    @property
    def connection(self) -> Any: ...
    @property
    def in_transaction(self) -> bool: ...
    @property
    def begins_by_itself(self) -> bool: ...
    @property
    def began_by_itself(self) -> bool: ...
    @property
    def lost(self) -> bool: ...
    @property
    def stale(self) -> bool: ...
    async def look_again(self) -> None: ...
    async def same_database(self) -> bool: ...
    async def begin(self, patience: float) -> None: ...
    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...
    async def carry_out(self, *acts: Act, patience: float) -> Record | None: ...
    async def flush(self) -> None: ...
    async def effect_returned(self) -> None: ...
    def conflicts(self, error: BaseException) -> bool: ...


# -- what the caller reads ---------------------------------------------------------------------------------------


def broken(key: Key, error: StoreError | None, *, lost: bool) -> str:
    """Why record and effect could not be kept together."""
    if isinstance(error, TransactionAborted):
        return (
            f"a statement in the effect of {key} failed and its error was swallowed, so the database "
            "aborted the transaction: nothing of the effect is kept. Let the error out, or put the statement "
            "into a savepoint of its own"
        )
    if isinstance(error, RecordGone):
        return (
            f"the record of {key} is not where it was claimed: the effect changed which tables its "
            "connection sees (search_path, USE), or its transaction was rolled back on the way, so nothing of it "
            "is kept. Put the tables back before it returns, and let the error out that ended the transaction"
        )
    if lost:
        return f"the connection was lost while the effect of {key} ran: record and effect are rolled back"
    return (
        f"the effect of {key} committed or rolled back the transaction it was given: "
        "record and effect are no longer one. Leave the commit to the guard or to the caller"
    )


def occupied(other: Key) -> Misconfigured:
    return Misconfigured(
        f"the connection is in the middle of another guarded call ({other}): one at a time, "
        "or one inside the effect of the other. Give each task and each thread a connection of its own"
    )


def another_database(name: str) -> Misconfigured:
    return Misconfigured(
        f"the connection belongs to another database than {name}: it cannot be atomic. "
        "Give a connection to that one, or a guard of this one"
    )


def aborted() -> Misconfigured:
    return Misconfigured(
        "the transaction is aborted: a statement failed in it before the guard was asked. "
        "Roll it back, or put what may fail into a savepoint of its own"
    )
