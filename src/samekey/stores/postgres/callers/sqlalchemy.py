"""A caller's SQLAlchemy connection or session, as `Atomic` uses it.

Statements go straight to the driver's own connection, in the transaction that SQLAlchemy began on it: the driver's
link takes them. The savepoint around the effect is the session's own (`begin_nested`), because only then does
the session know which of its objects were rolled back; what was pending before is flushed before the claim.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.orm.session import SessionTransactionState

from samekey.core.drive import adrive, drive
from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.transaction import EFFECT, Mark, Release, RollbackTo, Savepoint, SavepointGone

Operation = Mark | tuple[str, tuple[Any, ...]]
Steps = Generator[Any, Any, Any]  # yields what is to be called


def link(connection: Any, asynchronous: bool, link_of: Callable[..., Any]) -> Any:
    if isinstance(connection, scoped_session | async_scoped_session):
        connection = connection()
    if not asynchronous and isinstance(connection, Connection | Session):
        return SqlalchemyLink(connection, link_of)
    if asynchronous and isinstance(connection, AsyncConnection | AsyncSession):
        return AsyncSqlalchemyLink(connection, link_of)
    return None


class _Shared:
    """What both colours share: in which order SQLAlchemy and the driver are spoken to."""

    begins_by_itself = True  # with its first statement; with isolation_level="AUTOCOMMIT" the driver will tell
    commits_along = False  # the commit is SQLAlchemy's
    committed = False
    asynchronous: bool

    def __init__(self, given: Any, link_of: Callable[..., Any]) -> None:
        self._given = given
        self._link_of = link_of
        self._orm = self.writes_late = isinstance(given, Session | AsyncSession)
        self._inner: Any = None  # the driver's link, of the connection that the last trip went over
        self._raw: Any = None
        self._nested: Any = None  # the session's own savepoint around the effect

    @property
    def given(self) -> Any:
        return self._given

    @property
    def marks_ahead(self) -> bool:
        return not self._orm and self._inner is not None and bool(self._inner.marks_ahead)

    @property
    def takes_queries(self) -> bool:
        return self._inner is not None and bool(self._inner.takes_queries)

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        # OSError: what asyncpg raises when it cannot connect.
        return (exc.DBAPIError, OSError, *(() if self._inner is None else self._inner.errors))

    @property
    def in_transaction(self) -> bool:
        return bool(self._given.in_transaction())

    @property
    def lost(self) -> bool:
        return self._inner is not None and bool(self._inner.lost)

    def _find(self) -> Steps:
        """The driver's link, in the transaction that SQLAlchemy has begun on it."""
        try:
            connection = (yield self._given.connection) if self._orm else self._given
        except exc.UnboundExecutionError as error:
            raise Misconfigured(
                "the session is bound to no database, or to one for each class, so its transaction is none that a "
                "record could be in: give it the bind= of the guard's database"
            ) from error
        if self.asynchronous:
            raw = (yield connection.get_raw_connection).driver_connection
        else:
            raw = connection.connection.driver_connection
        if self._inner is None or self._raw is not raw:
            self._inner, self._raw = self._link_of(raw, asynchronous=self.asynchronous), raw
        if not (self._inner.in_transaction or self._inner.begins_by_itself):
            yield lambda: connection.exec_driver_sql("SELECT 1")  # the dialect begins with its first statement
            if not self._inner.in_transaction:
                raise Misconfigured(
                    'the connection is in autocommit (isolation_level="AUTOCOMMIT"), so nothing would be atomic'
                )
        return raw

    def _trip(self, operations: Sequence[Operation]) -> Steps:
        row, straight = None, []
        for operation in operations:
            if self._orm and isinstance(operation, RollbackTo) and self._nested is not None:
                try:
                    yield from self._undo_nested()
                except SavepointGone:
                    if operation.name == EFFECT:
                        raise
                    # The effect ended it by itself; where we go back to lies before it. The session must look again.
                    self._given.expire_all()
            if not (self._orm and isinstance(operation, Savepoint | RollbackTo | Release) and operation.name == EFFECT):
                straight.append(operation)
                continue
            if isinstance(operation, Savepoint):
                row = (yield from self._straight(straight)) or row
                straight = []
                self._nested = yield self._given.begin_nested
        return (yield from self._straight(straight)) or row

    def _straight(self, operations: Sequence[Operation]) -> Steps:
        if not operations:
            return None
        try:
            yield from self._find()
        except exc.InvalidRequestError as error:
            if self.lost:
                raise StoreUnavailable(f"the connection was lost, and its transaction with it ({error})") from error
            if isinstance(operations[0], RollbackTo):
                raise SavepointGone(str(error)) from error  # the session has rolled all of it back by itself
            raise
        return (yield lambda: self._inner.trip(operations))

    def _commit(self) -> Steps:
        session = getattr(self._given, "sync_session", self._given)
        whole = session.get_transaction()
        try:
            yield self._given.commit
        except Exception:
            # Whoever listens to after_commit comes behind it.
            self.committed = self._orm and whole._state is SessionTransactionState.COMMITTED
            raise

    def _rollback(self) -> Steps:
        self._nested = None
        try:
            yield self._given.rollback
        except exc.InvalidRequestError:
            if not self._orm:
                raise
            yield self._given.close  # a listener failed in the middle of a commit, and left it neither here nor there

    def _undo_nested(self) -> Steps:
        nested, self._nested = self._nested, None
        try:
            yield nested.rollback
        except (exc.ResourceClosedError, exc.InvalidRequestError) as error:
            raise SavepointGone(str(error)) from error

    def _keep_nested(self) -> Steps:
        """The effect returned: flush what it left to be written. What fails there is the effect's own error."""
        nested = self._nested
        if nested is None:
            return
        if not nested.is_active:
            if not self._given.in_transaction() or self._given.is_active:
                self._nested = None
                raise SavepointGone("the session's savepoint is closed")
            raise exc.PendingRollbackError(
                "the session was left after a failed flush: roll back to a savepoint of its own, or let the error out"
            )
        yield nested.commit
        self._nested = None


def _do(work: Any) -> Any:
    return work()


class SqlalchemyLink(_Shared):
    """For Connection and Session."""

    asynchronous = False

    def underlying(self) -> Any:
        return drive(self._find(), _do)

    def begin(self) -> None:
        self._given.begin()

    def commit(self) -> None:
        drive(self._commit(), _do)

    def rollback(self) -> None:
        drive(self._rollback(), _do)

    def trip(self, operations: Sequence[Operation]) -> Any:
        return drive(self._trip(operations), _do)

    def write_pending(self) -> None:
        self._given.flush()

    def effect_returned(self) -> None:
        drive(self._keep_nested(), _do)


class AsyncSqlalchemyLink(_Shared):
    """For AsyncConnection and AsyncSession."""

    asynchronous = True

    async def underlying(self) -> Any:
        return await adrive(self._find(), _do)

    async def begin(self) -> None:
        await self._given.begin()

    async def commit(self) -> None:
        await adrive(self._commit(), _do)

    async def rollback(self) -> None:
        await adrive(self._rollback(), _do)

    async def trip(self, operations: Sequence[Operation]) -> Any:
        return await adrive(self._trip(operations), _do)

    async def write_pending(self) -> None:
        await self._given.flush()

    async def effect_returned(self) -> None:
        await adrive(self._keep_nested(), _do)
