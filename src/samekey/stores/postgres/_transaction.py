"""PostgreSQL's part in a caller's transaction: the store's statements over the connection that the caller has.

A link is the caller's connection, used as its library requires (`callers/`, one file per library). It shows whether a
transaction is open, begins and ends one, and sends a few operations in as few trips as it can. This file has the
statements that a link sends, and what the server's errors mean inside a transaction. The errors of every driver carry
`sqlstate`.

A claim waits for the transactions that hold its key for as long as the patience allows: the statement itself sets
`lock_timeout` for its own duration and puts the caller's value back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import import_module
from operator import attrgetter
from typing import Any, NoReturn, Protocol, TypeGuard
from weakref import WeakKeyDictionary

from samekey.core.attempt import note
from samekey.core.commands import Open, Read, Settle, StoreCommand
from samekey.core.errors import InProgress, Misconfigured, StoreUnavailable, TransactionConflict
from samekey.core.record import Record
from samekey.core.states import Role
from samekey.core.transaction import (
    Act,
    Commit,
    Mark,
    RecordGone,
    Release,
    RollbackTo,
    Savepoint,
    SavepointGone,
    TransactionAborted,
)
from samekey.drivers.postgres.errors import first_line
from samekey.drivers.postgres.exchange import Query
from samekey.drivers.postgres.self_check import NOT_SHOWN
from samekey.stores.postgres._rows import CALLS, Statement, record_of, single
from samekey.stores.postgres._wire import open_inside, record_in, settle_inside

Operation = Mark | Statement | Query

LOCK_TIMEOUT_MAX = 2**31 - 1  # milliseconds, the server's limit: 24 days
RETRY_SECONDS = 1.0  # in the error, as the time to wait: the other transaction took longer than the patience already

# A connection is not compared by address: two names may lead to one server, and one name to two. Compared are the
# tables, the database and the cluster; to_regclass follows the connection's own search_path, as the statements do. A
# connection never changes its database, so that is asked once. Its search_path may change any time, so every claim
# names the table (oid).
_TABLES = "oid || '/' || coalesce(to_regclass('samekey_records')::oid, 0)"
IDENTITY = f"""
SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || {_TABLES}
FROM pg_database WHERE datname = current_database()
"""  # noqa: S608 - constants only
# For a server that does not show its system identifier: the random epoch in the tables themselves.
IDENTITY_BY_EPOCH = f"""
SELECT (SELECT value FROM samekey_meta WHERE name = 'epoch') || '/' || {_TABLES}
FROM pg_database WHERE datname = current_database()
"""  # noqa: S608

_known: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # of connections that lead to the store's own tables


class Link(Protocol):
    """A caller's connection. The methods of an async link have the same names, and are awaited."""

    given: Any  # the caller's connection; if a proxy was given, the connection it leads to
    errors: tuple[type[BaseException], ...]  # what the driver raises
    takes_queries: bool  # in binary, as well as statements in text; the reply comes back as libpq has it
    committed: bool  # the commit succeeded: an error after it comes from a function that was to be called then
    # As in `core.transaction.Transaction`:
    marks_ahead: bool
    commits_along: bool
    writes_late: bool
    in_transaction: bool
    begins_by_itself: bool
    began_by_itself: bool
    lost: bool

    def underlying(self) -> Any:
        """The driver's own connection, which never changes its database."""

    def begin(self) -> Any: ...
    def commit(self) -> Any: ...
    def rollback(self) -> Any: ...
    def trip(self, operations: Sequence[Operation]) -> Any:
        """All of them, in order, up to the first that fails; the row of the one that has a row."""

    def flush(self) -> Any:
        """Asked only of a link that `writes_late`."""

    def effect_returned(self) -> Any: ...


# -- which library ------------------------------------------------------------------------------------------

# Found by the name of the package that defines the connection's class: a caller that has such a connection has imported
# the package, and no other caller pays for the import.
_LIBRARIES = {"psycopg": "psycopg", "asyncpg": "asyncpg", "sqlalchemy": "sqlalchemy", "django": "django"}


def link_of(connection: Any, *, asynchronous: bool) -> Any:
    """The link for this connection: an async one for an AsyncGuard."""
    for base in type(connection).__mro__:
        found = _LIBRARIES.get(base.__module__.partition(".")[0])
        if found is not None:
            link = _library(found).link(connection, asynchronous, link_of)
            if link is not None:
                return link
    colour = "an async connection for AsyncGuard" if asynchronous else "a sync connection for Guard"
    raise Misconfigured(
        f"Atomic on PostgreSQL takes {colour}, of psycopg 3, asyncpg, SQLAlchemy 2 (over one of these) or Django, "
        f"not {type(connection).__module__}.{type(connection).__qualname__}"
    )


@lru_cache(maxsize=len(_LIBRARIES))
def _library(name: str) -> Any:
    return import_module(f"samekey.stores.postgres.callers.{name}")


# -- the transaction ------------------------------------------------------------------------------------------


class _Shared:
    """What both colours share: statements and errors."""

    stale = False  # libpq learns it with every reply
    _table = 0  # the oid of the store's own table, once it is known

    def __init__(self, name: str, link: Link, identity: Callable[[str], Any]) -> None:
        self.name = name
        self._link = link
        self.writes_late = link.writes_late
        self._identity = identity  # of the store, which asks its server again where it differs from this one

    connection = property(attrgetter("_link.given"))
    marks_ahead = property(attrgetter("_link.marks_ahead"))
    commits_along = property(attrgetter("_link.commits_along"))
    in_transaction = property(attrgetter("_link.in_transaction"))
    begins_by_itself = property(attrgetter("_link.begins_by_itself"))
    began_by_itself = property(attrgetter("_link.began_by_itself"))
    lost = property(attrgetter("_link.lost"))

    def _operations(self, acts: Sequence[Act], patience: float) -> list[Operation]:
        binary = self._link.takes_queries
        return [
            operation(act, self._table, patience, binary=binary) if isinstance(act, StoreCommand) else act
            for act in acts
        ]

    def _is_ours(self, found: str, ours: str) -> bool:
        self._table = int(ours.rpartition("/")[2])
        return found == ours

    def conflicts(self, error: BaseException) -> bool:
        return sqlstate(error) in _CONFLICTS

    def _raise(self, error: BaseException, acts: Sequence[Act] = ()) -> NoReturn:
        if sqlstate(error) == OTHER_TABLES:
            _known.clear()  # the search_path was changed; or the tables were made anew, the store's own too
        if any(isinstance(act, Commit) for act in acts) and (self._link.lost or not self._link.in_transaction):
            self._raise_commit(error)  # a commit that fails ends its transaction, a statement before it does not
        raise as_ours(self.name, error, acts, lost=self._link.lost) from error

    def _raise_commit(self, error: BaseException) -> NoReturn:
        if self._link.committed:
            note(error, "samekey: that came after the commit: record and effect are kept")
            raise error
        if isinstance(error, self._link.errors) and (self._link.lost or sqlstate(error) is None):
            raise StoreUnavailable(
                f"{self.name}: the connection was lost during the commit. Ask again with the same key: "
                "it answers if the commit got through, and runs if it did not"
            ) from error
        if self.conflicts(error):
            raise as_ours(self.name, error, (), lost=False) from error
        raise error  # a constraint of the caller's own tables: the caller gets it as it is

    def _raise_unless_own(self, error: BaseException, states: Sequence[str]) -> NoReturn:
        """`states` concern samekey. Other errors are the caller's own, such as a constraint of its tables."""
        if not states or self._link.lost or sqlstate(error) in states:
            self._raise(error)
        raise error


# Flushing what the caller left to be written; flushing what the effect left.
_FLUSH_STATES, _EFFECT_STATES = ("25P02", "40001", "40P01"), ("25P02", "3B001", "25P01")


class PostgresTransaction(_Shared):
    """The store's commands inside a transaction of the caller's connection."""

    def same_database(self) -> bool:
        try:
            connection = self._link.underlying()  # a session takes its connection when it is first used
            known = _known.get(connection, "")
            if self._is_ours(known, self._identity(known)):
                return True
            try:
                row = self._link.trip(_IDENTIFY)
            except self._link.errors as error:
                if sqlstate(error) not in NOT_SHOWN:
                    raise
                row = self._link.trip(_IDENTIFY_BY_EPOCH)
        except self._link.errors as error:
            self._raise(error)
        known = _known[connection] = str(row[0])
        return self._is_ours(known, self._identity(known))

    def look_again(self) -> None:
        """libpq is never out of date."""

    def begin(self, patience: float) -> None:
        self._do(self._link.begin)

    def commit(self) -> None:
        try:
            self._link.commit()
        except Exception as error:
            self._raise_commit(error)

    def rollback(self) -> None:
        self._do(self._link.rollback)

    def carry_out(self, *acts: Act, patience: float) -> Record | None:
        operations = self._operations(acts, patience)
        try:
            answer = self._link.trip(operations)
        except self._link.errors as error:
            self._raise(error, acts)
        return _record(answer, acts, operations)

    def flush(self) -> None:
        self._do(self._link.flush, _FLUSH_STATES)

    def effect_returned(self) -> None:
        self._do(self._link.effect_returned, _EFFECT_STATES)

    def _do(self, work: Callable[[], Any], states: Sequence[str] = ()) -> None:
        try:
            work()
        except self._link.errors as error:
            self._raise_unless_own(error, states)


class AsyncPostgresTransaction(_Shared):
    """The same, awaited."""

    immediate = False

    async def same_database(self) -> bool:
        try:
            connection = await self._link.underlying()  # a session takes its connection when it is first used
            known = _known.get(connection, "")
            if self._is_ours(known, await self._identity(known)):
                return True
            try:
                row = await self._link.trip(_IDENTIFY)
            except self._link.errors as error:
                if sqlstate(error) not in NOT_SHOWN:
                    raise
                row = await self._link.trip(_IDENTIFY_BY_EPOCH)
        except self._link.errors as error:
            self._raise(error)
        known = _known[connection] = str(row[0])
        return self._is_ours(known, await self._identity(known))

    async def look_again(self) -> None:
        """libpq is never out of date."""

    async def begin(self, patience: float) -> None:
        await self._do(self._link.begin)

    async def commit(self) -> None:
        try:
            await self._link.commit()
        except Exception as error:
            self._raise_commit(error)

    async def rollback(self) -> None:
        await self._do(self._link.rollback)

    async def carry_out(self, *acts: Act, patience: float) -> Record | None:
        operations = self._operations(acts, patience)
        try:
            answer = await self._link.trip(operations)
        except self._link.errors as error:
            self._raise(error, acts)
        return _record(answer, acts, operations)

    async def flush(self) -> None:
        await self._do(self._link.flush, _FLUSH_STATES)

    async def effect_returned(self) -> None:
        await self._do(self._link.effect_returned, _EFFECT_STATES)

    async def _do(self, work: Callable[[], Any], states: Sequence[str] = ()) -> None:
        try:
            await work()
        except self._link.errors as error:
            self._raise_unless_own(error, states)


# -- statements ------------------------------------------------------------------------------------------------


def operation(act: StoreCommand, table: int, patience: float, *, binary: bool) -> Operation:
    if _is_holders_settle(act):  # the holder's row is locked by this transaction already: no wait
        return settle_inside(act) if binary else (_SETTLE_OR_FAIL, single(act)[1])
    waits = str(max(1, min(round(patience * 1000), LOCK_TIMEOUT_MAX)))
    if isinstance(act, Open):
        return open_inside(act, table, waits) if binary else (_CLAIM, (str(table), waits, *single(act)[1]))
    text, values = single(act)
    if isinstance(act, Read):
        return text + _HERE, (*values, str(table))
    return patient(text), (str(table), waits, *values)


# The claim is made by every transaction, so it has a function that waits: planned once for each connection.
_CLAIM = CALLS[Open].single.replace("samekey_open(", "samekey_open_waiting(%s::oid, %s::text, ", 1)
_SETTLE_OR_FAIL = CALLS[Settle].single.replace(") AS r", ", true) AS r", 1)
_HERE = " AND samekey_here(%s::oid)"


@lru_cache(maxsize=32)
def patient(text: str) -> str:
    """The same call, which waits for other transactions up to a limit and leaves the caller's `lock_timeout` as it was.

    Each part needs the one before it, so the planner cannot reorder them: read the old value; set the new one; call;
    put the old value back. After an error the rollback to a savepoint restores the setting too.
    """
    columns, function = text.removesuffix(" AS r").split(" FROM ", 1)
    function = function.replace("%s::uuid", "CASE WHEN w.now IS NOT NULL THEN %s::uuid END", 1)
    return (
        f"{columns}, set_config('lock_timeout', b.before, true)"
        " FROM (SELECT current_setting('lock_timeout') AS before WHERE samekey_here(%s::oid) OFFSET 0) AS b,"
        " LATERAL (SELECT set_config('lock_timeout', CASE WHEN b.before IS NOT NULL THEN %s::text END, true) AS now"
        f" OFFSET 0) AS w, LATERAL {function} AS r"
    )


_IDENTIFY = Savepoint("same", 0), (IDENTITY, ()), Release("same", 0)
_IDENTIFY_BY_EPOCH = RollbackTo("same", 0), (IDENTITY_BY_EPOCH, ()), Release("same", 0)


def _record(answer: Any, acts: Sequence[Act], operations: Sequence[Operation]) -> Record | None:
    if answer is None:
        return None
    for act, sent in zip(acts, operations, strict=True):
        if isinstance(act, StoreCommand):
            try:
                return record_in(answer, act, None) if isinstance(sent, Query) else record_of(answer, act)
            except (TypeError, ValueError) as error:
                raise Misconfigured(
                    f"the server's reply about {act.key} cannot be read over this connection ({error}): are there "
                    "codecs of its own for text, float8 or the like (set_type_codec)?"
                ) from error
    return None


def _is_holders_settle(act: Act) -> TypeGuard[Settle]:
    return isinstance(act, Settle) and act.role is Role.HOLDER


def _command(acts: Sequence[Act]) -> StoreCommand | None:
    return next((act for act in acts if isinstance(act, StoreCommand)), None)


# -- errors ------------------------------------------------------------------------------------------------------

_CONFLICTS = ("40001", "40P01")
OTHER_TABLES, NO_RECORD = "SK001", "SK002"  # raised by our own functions


_NO_TABLES = ("42P01", "42883", "42703", "3F000")


def sqlstate(error: BaseException) -> str | None:
    """The server's code of an error, also where a library wrapped the driver's error in its own."""
    seen: BaseException | None = error
    for _ in range(4):  # an ORM's error, the dialect's, the adapter's, the driver's
        if seen is None:
            return None
        found = getattr(seen, "sqlstate", None)
        if isinstance(found, str):
            return found
        seen = getattr(seen, "orig", None) or seen.__cause__
    return None


def as_ours(name: str, error: BaseException, acts: Sequence[Act], *, lost: bool) -> Exception:
    """The driver's error as one of ours: inside a transaction some mean something else than outside."""
    state, command = sqlstate(error), _command(acts)
    key = "this transaction" if command is None else str(command.key)
    text = "" if command is None else command.key.text
    first = first_line(error)
    match state:
        case "25P02":
            return TransactionAborted(f"{name}: {first}")
        case "3B001" | "25P01":
            return SavepointGone(f"{name}: {first}")
        case str() if state == OTHER_TABLES:
            return Misconfigured(
                f"the connection sees other samekey tables than {name}: it cannot be atomic. Its search_path was "
                "changed, or the tables were made anew"
            )
        case str() if state == NO_RECORD:
            return RecordGone(f"{name}: {first}")
        case "40001":
            return TransactionConflict(
                f"{key}: another transaction wrote this after yours had begun, and REPEATABLE READ and SERIALIZABLE "
                "never see what was committed after they began (40001). Roll back and run the whole transaction again "
                "with the same key - under READ COMMITTED it would have waited and replayed",
                key=text,
                retry_after=0.0,
            )
        case "40P01":
            return TransactionConflict(
                f"{key}: a deadlock (40P01): two transactions hold what the other one waits for. Claim keys in the "
                "same order everywhere; roll back and run the whole transaction again with the same key",
                key=text,
                retry_after=0.0,
            )
        case str() if state == "55P03" or (state == "57014" and isinstance(command, Open)):
            # 57014: the caller's own statement_timeout ended first. A claim takes no time except for waiting.
            return InProgress(
                f"{key} is held by another transaction that has not ended; try again with the same key",
                key=text,
                token=0,
                retry_after=RETRY_SECONDS,
            )
        case "25006":
            return Misconfigured(f"{key}: the transaction is read-only, and a claim is a write")
        case "42501":
            return Misconfigured(f"{name}: the role of this connection may not use the samekey tables ({first})")
        case str() if state in _NO_TABLES:
            return Misconfigured(f"{name}: this connection does not see the samekey tables ({first})")
        case str() if state.startswith("22"):
            return Misconfigured(f"{name} cannot keep this: {first}")
        case _ if lost or state is None or state.startswith(("08", "57P")):
            return StoreUnavailable(f"{name}: the connection was lost, and its transaction with it ({first})")
        case _:
            return StoreUnavailable(f"{name}: {first}")
