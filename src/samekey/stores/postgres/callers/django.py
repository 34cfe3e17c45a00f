"""A caller's Django connection, as `Atomic` uses it.

Statements go straight to the psycopg connection that Django uses. Django's own state is updated with them: a rollback
to a savepoint resets `needs_rollback`, and drops the `on_commit` functions that the effect had registered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.db import transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import Error
from django.utils.connection import ConnectionProxy

from samekey.core.errors import Misconfigured
from samekey.core.transaction import RollbackTo, Savepoint, TransactionAborted


def link(connection: Any, asynchronous: bool, link_of: Callable[..., Any]) -> Any:
    if not asynchronous and isinstance(connection, BaseDatabaseWrapper | ConnectionProxy):
        return DjangoLink(connection, link_of)
    return None


class DjangoLink:
    marks_ahead = True
    commits_along = False  # the commit is Django's: it runs the on_commit functions
    writes_late = False
    begins_by_itself = False
    committed = False

    def __init__(self, connection: Any, link_of: Callable[..., Any]) -> None:
        self._connection = connection
        self._link_of = link_of
        self._inner: Any = None
        self._begun: Any = None
        self._promised: dict[tuple[str, int], list[Any]] = {}  # the on_commit functions known at each savepoint

    @property
    def given(self) -> Any:
        # A proxy leads to the connection that this thread has under the same alias.
        if isinstance(self._connection, ConnectionProxy):
            return transaction.get_connection(self._connection.alias)
        return self._connection

    @property
    def errors(self) -> tuple[type[BaseException], ...]:
        return (Error, *(() if self._inner is None else self._inner.errors))

    @property
    def in_transaction(self) -> bool:
        given = self.given
        if given.connection is None:  # not connected yet: get_autocommit() would connect, which may fail
            return bool(given.in_atomic_block or not given.settings_dict["AUTOCOMMIT"])
        return bool(given.in_atomic_block or not given.get_autocommit())

    @property
    def began_by_itself(self) -> bool:
        return not self.given.in_atomic_block  # with AUTOCOMMIT: False

    @property
    def takes_queries(self) -> bool:
        return self._inner is not None and bool(self._inner.takes_queries)

    @property
    def lost(self) -> bool:
        return self._inner is not None and bool(self._inner.lost)

    def underlying(self) -> Any:
        self._connection.ensure_connection()
        raw = self._connection.connection
        if self._inner is None or self._inner.underlying() is not raw:
            self._inner = self._link_of(raw, asynchronous=False)
        return raw

    def begin(self) -> None:
        alias = self._connection.alias
        if transaction.get_connection(alias).connection is not self._connection.connection:
            raise Misconfigured(f"this connection is not the one Django uses for {alias!r} in this thread")
        begun = transaction.atomic(using=alias)
        with self._whole():
            begun.__enter__()
            self._begun = begun

    def commit(self) -> None:
        with self._whole():
            begun, self._begun = self._begun, None
            promised = self.given.run_on_commit
            if promised:
                transaction.on_commit(self._has_committed, using=self._connection.alias)
                promised.insert(0, promised.pop())  # before the others: one of them may fail
            if begun is not None:
                begun.__exit__(None, None, None)

    def _has_committed(self) -> None:
        self.committed = True

    def rollback(self) -> None:
        with self._whole():
            begun, self._begun = self._begun, None
            if begun is not None:
                begun.__exit__(RolledBack, RolledBack(), None)

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Close the connection after an interrupt: Django would take the transaction for an outer one for ever."""
        try:
            yield
        except BaseException:
            given, self._begun = self.given, None
            if given.in_atomic_block or not given.autocommit:
                given.in_atomic_block = False
                given.close()  # Django opens a new one when it is next used
            raise

    def trip(self, operations: Sequence[Any]) -> Any:
        back = next((one for one in operations if isinstance(one, RollbackTo)), None)
        if back is None:
            self.effect_returned()
        for one in operations:
            if isinstance(one, Savepoint):
                self._promised[one.name, one.depth] = list(self._connection.run_on_commit)
        self.underlying()
        row = self._inner.trip(operations)
        if back is not None:
            known = self._promised.get((back.name, back.depth), [])
            kept = [one for one in self._connection.run_on_commit if any(one is other for other in known)]
            self._connection.run_on_commit = kept
            self._connection.needs_rollback = False
        return row

    def effect_returned(self) -> None:
        if self._connection.needs_rollback:
            raise TransactionAborted("an atomic block failed inside, and Django will roll the transaction back")


class RolledBack(Exception):
    """Raised through Django's own block, which then rolls back."""
