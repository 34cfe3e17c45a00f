"""A caller's SQLAlchemy connection or session, as `Atomic` uses it.

Statements go straight to the driver's own connection, in the transaction that SQLAlchemy began on it: the driver's
link sends them. The savepoint EFFECT is the session's own (`begin_nested`), because only then does the session know
which of its objects were rolled back. What the session had to flush before is flushed before the claim.

An async connection or session is a sync one inside a greenlet. So the async link runs the sync link there (`run_sync`),
and only the trips over the driver's async connection are awaited.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.orm.session import SessionTransactionOrigin, SessionTransactionState

from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.core.transaction import EFFECT, RollbackTo, Savepoint, SavepointGone


def link(connection: Any, asynchronous: bool, link_of: Callable[..., Any]) -> Any:
    if asynchronous:
        # Imported for async callers only: since SQLAlchemy 2.1 it needs greenlet, which a sync program may not have.
        from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

        if isinstance(connection, async_scoped_session):
            connection = connection()
        return (
            AsyncSqlalchemyLink(connection, link_of) if isinstance(connection, AsyncConnection | AsyncSession) else None
        )
    if isinstance(connection, scoped_session):
        connection = connection()
    return SqlalchemyLink(connection, link_of) if isinstance(connection, Connection | Session) else None


class SqlalchemyLink:
    """For Connection and Session."""

    begins_by_itself = True  # with its first statement; with isolation_level="AUTOCOMMIT" the driver shows it
    commits_along = False  # the commit is SQLAlchemy's
    committed = False
    takes_queries = False
    marks_ahead = False

    def __init__(self, given: Any, link_of: Callable[..., Any], await_only: Callable[[Any], Any] | None = None) -> None:
        self.given = given
        self._link_of = link_of
        self._await_only = await_only  # for a driver's connection that is async; None for a sync one
        self._orm = self.writes_late = isinstance(given, Session)
        self._inner: Any = None  # the driver's link, of the connection that the last trip went over
        self._raw: Any = None
        self._nested: Any = None  # the session's own savepoint around the effect

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        # OSError: what asyncpg raises when it cannot connect.
        return (exc.DBAPIError, OSError, *(() if self._inner is None else self._inner.errors))

    @property
    def in_transaction(self) -> bool:
        return bool(self.given.in_transaction())

    @property
    def began_by_itself(self) -> bool:
        # A Connection does not show who began it.
        return self._orm and self.given.get_transaction().origin is SessionTransactionOrigin.AUTOBEGIN

    @property
    def lost(self) -> bool:
        return self._inner is not None and bool(self._inner.lost)

    def underlying(self) -> Any:
        """The driver's connection, in the transaction that SQLAlchemy has begun on it."""
        try:
            connection = self.given.connection() if self._orm else self.given
        except exc.UnboundExecutionError as error:
            raise Misconfigured(
                "the session is bound to no database, or to one for each class, so its transaction is none that a "
                "record could be in: give it the bind= of the guard's database"
            ) from error
        raw = connection.connection.driver_connection
        if self._raw is not raw:
            self._inner, self._raw = self._link_of(raw, asynchronous=self._await_only is not None), raw
            self.takes_queries = self._inner.takes_queries
            self.marks_ahead = self._inner.marks_ahead and not self._orm
        if not (self._inner.in_transaction or self._inner.begins_by_itself):
            connection.exec_driver_sql("SELECT 1")  # the dialect begins with its first statement
            if not self._inner.in_transaction:
                raise Misconfigured(
                    'the connection is in autocommit (isolation_level="AUTOCOMMIT"), so nothing would be atomic'
                )
        return raw

    def begin(self) -> None:
        self.given.begin()

    def trip(self, operations: Sequence[Any]) -> Any:
        if self._orm:
            first = operations[0]
            if isinstance(first, RollbackTo) and self._nested is not None:
                try:
                    self._undo_nested()
                except SavepointGone:
                    if first.name == EFFECT:
                        raise
                    # The effect ended it by itself, and we go back to a place before it. The session must look again.
                    self.given.expire_all()
            # The savepoint EFFECT is the session's own.
            operations = [one for one in operations if getattr(one, "name", "") != EFFECT]
            if isinstance(first, Savepoint) and first.name == EFFECT:  # it has a trip of its own: see marks_ahead
                self._nested = self.given.begin_nested()
                return None
        try:
            self.underlying()
        except exc.InvalidRequestError as error:
            if self.lost:
                raise StoreUnavailable(f"the connection was lost, and its transaction with it ({error})") from error
            if isinstance(operations[0], RollbackTo):
                raise SavepointGone(str(error)) from error  # the session has rolled all of it back by itself
            raise
        row = self._inner.trip(operations)
        return row if self._await_only is None else self._await_only(row)

    def commit(self) -> None:
        whole = self.given.get_transaction()
        try:
            self.given.commit()
        except Exception:
            # A listener of after_commit runs after the commit.
            self.committed = self._orm and whole._state is SessionTransactionState.COMMITTED
            raise

    def rollback(self) -> None:
        self._nested = None
        try:
            self.given.rollback()
        except exc.InvalidRequestError:
            if not self._orm:
                raise
            self.given.close()  # a listener failed in the middle of a commit, which is neither done nor undone

    def flush(self) -> None:
        self.given.flush()

    def effect_returned(self) -> None:
        """Flush what the effect left to be written. What fails there is the effect's own error."""
        nested = self._nested
        if nested is None:
            return
        if not nested.is_active:
            if not self.given.in_transaction() or self.given.is_active:
                self._nested = None
                raise SavepointGone("the session's savepoint is closed")
            raise exc.PendingRollbackError(
                "the session was left after a failed flush: roll back to a savepoint of its own, or let the error out"
            )
        nested.commit()
        self._nested = None

    def _undo_nested(self) -> None:
        nested, self._nested = self._nested, None
        try:
            nested.rollback()
        except (exc.ResourceClosedError, exc.InvalidRequestError) as error:
            raise SavepointGone(str(error)) from error


def _in_greenlet(name: str) -> Callable[..., Any]:
    """The method of the sync link that has this name, run in a greenlet of the async connection."""

    async def method(link: AsyncSqlalchemyLink, *values: Any) -> Any:
        work = getattr(link._sync, name)
        return await link.given.run_sync(lambda _: work(*values))

    return method


class AsyncSqlalchemyLink:
    """For AsyncConnection and AsyncSession."""

    begins_by_itself = True
    commits_along = False

    def __init__(self, given: Any, link_of: Callable[..., Any]) -> None:
        from sqlalchemy.util import await_only

        self.given = given
        self._sync = SqlalchemyLink(getattr(given, "sync_session", None) or given.sync_connection, link_of, await_only)
        self.writes_late = self._sync.writes_late

    marks_ahead = property(attrgetter("_sync.marks_ahead"))
    takes_queries = property(attrgetter("_sync.takes_queries"))
    committed = property(attrgetter("_sync.committed"))
    errors = property(attrgetter("_sync.errors"))
    in_transaction = property(attrgetter("_sync.in_transaction"))
    began_by_itself = property(attrgetter("_sync.began_by_itself"))
    lost = property(attrgetter("_sync.lost"))

    underlying = _in_greenlet("underlying")
    begin = _in_greenlet("begin")
    commit = _in_greenlet("commit")
    rollback = _in_greenlet("rollback")
    trip = _in_greenlet("trip")
    flush = _in_greenlet("flush")
    effect_returned = _in_greenlet("effect_returned")
