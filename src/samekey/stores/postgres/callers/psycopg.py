"""A caller's psycopg connection, as `Atomic` uses it.

A trip is one use of libpq's pipeline: statements with their values in binary, and one reply to wait for. The BEGIN of
a transaction that has not begun yet, and the COMMIT of one that we began, are among the statements. Rows are read from
the bytes that the server sent: the loaders and row factories that a caller gave to the connection are for the caller's
rows.

The claim and the settle are prepared statements where the connection prepares its own, and after as many uses: with
`prepare_threshold=None`, for PgBouncer, none of ours is prepared. Prepared statements can disappear unnoticed (psycopg
drops all of them at a rollback, and DISCARD ALL does), and using one that is gone aborts the transaction. So a prepared
statement is sent after a BEGIN or a savepoint: the link can roll back to it and send the statement in full.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import errors
from psycopg.pq import ConnStatus, DiagnosticField, Escaping, ExecStatus, PipelineStatus, TransactionStatus
from psycopg.waiting import Ready, Wait

from samekey.core.errors import Misconfigured
from samekey.core.transaction import Mark, SavepointGone
from samekey.drivers.postgres.exchange import BINARY, Query

Operation = Mark | Query | tuple[str, tuple[Any, ...]]

_OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def link(connection: Any, asynchronous: bool, link_of: Callable[..., Any]) -> Any:
    if not psycopg.Pipeline.is_supported():
        raise Misconfigured("Atomic needs libpq 14 or newer under psycopg: pip install 'psycopg[binary]' has one")
    if not asynchronous and isinstance(connection, psycopg.Connection):
        return PsycopgLink(connection)
    if asynchronous and isinstance(connection, psycopg.AsyncConnection):
        return AsyncPsycopgLink(connection)
    return None


class _Shared:
    marks_ahead = commits_along = takes_queries = True
    writes_late = committed = False
    errors = (psycopg.Error,)
    _begins = False  # a BEGIN goes with the next trip; until then there is nothing to roll back

    def __init__(self, connection: Any) -> None:
        self.given = self._connection = connection

    @property
    def in_transaction(self) -> bool:
        pgconn = self._connection.pgconn
        if pgconn.pipeline_status != PipelineStatus.OFF:
            raise Misconfigured("the connection is in pipeline mode: leave connection.pipeline() before the guard")
        return self._begins or pgconn.transaction_status in _OPEN

    @property
    def begins_by_itself(self) -> bool:
        """Without autocommit the first statement begins a transaction, and only the caller ends it."""
        idle = self._connection.pgconn.transaction_status == TransactionStatus.IDLE
        return idle and not self._connection.autocommit

    @property
    def began_by_itself(self) -> bool:
        # psycopg counts its `with connection.transaction():` blocks; without one its first statement began it.
        return not (self._connection.autocommit or getattr(self._connection, "_num_transactions", 1))

    @property
    def lost(self) -> bool:
        return bool(self._connection.closed)

    def _begin(self) -> None:
        self._begins = True
        if self._connection.pgconn.transaction_status == TransactionStatus.ACTIVE:
            raise Misconfigured(_BUSY)

    def _queries(self, operations: Sequence[Operation], cursor: Callable[[Any], Any]) -> list[Query]:
        pgconn, queries = self._connection.pgconn, list[Query]()
        if pgconn.transaction_status == TransactionStatus.IDLE:
            if not (self._begins or self.begins_by_itself):
                raise SavepointGone("no transaction")
            queries.append(_plain(begin_statement(self._connection)))
        elif self._begins and not self.lost:
            raise Misconfigured(_BUSY)
        if pgconn.parameter_status(b"client_encoding") not in (b"UTF8", None):  # None: the connection is gone
            raise Misconfigured(
                f"the connection's client_encoding is {self._connection.info.encoding}: Atomic needs UTF8. Connect "
                "with client_encoding=UTF8, or put it back before the guard is called"
            )
        self._begins = False
        for operation in operations:
            if isinstance(operation, Query):
                queries.append(operation)
            elif isinstance(operation, tuple):
                text, values = operation
                if values:
                    text = cursor(self._connection).mogrify(text, list(values))
                queries.append(Query(b"", text.encode(), [], []))
            else:
                queries.append(_plain(operation.sql))
        return queries


# A statement is in progress, so we cannot tell whose transaction this is. Refuse: we might commit another caller's.
_BUSY = (
    "the connection is in the middle of a statement, or of another thread's transaction (cursor.stream(), a COPY): "
    "let it end, or give the guard a connection of its own"
)


@lru_cache(maxsize=64)
def _plain(sql: str) -> Query:
    return Query(b"", sql.encode(), [], [])


class PsycopgLink(_Shared):
    def underlying(self) -> Any:
        return self._connection

    begin = _Shared._begin

    def commit(self) -> None:
        self._begins = False
        self._connection.commit()

    def rollback(self) -> None:
        unsent, self._begins = self._begins, False
        if not (unsent or self.lost):
            self._connection.rollback()

    def trip(self, operations: Sequence[Operation]) -> Any:
        connection = self._connection
        with connection.lock:
            queries = self._queries(operations, psycopg.ClientCursor)
            steps = travelling(connection.pgconn, queries, prepared_in(connection))
            try:
                answer = connection.wait(steps)
            except BaseException:
                _break_off(connection, steps)
                raise
        return row_of(answer)

    def effect_returned(self) -> None:
        """Nothing is written late."""


class AsyncPsycopgLink(_Shared):
    async def underlying(self) -> Any:
        return self._connection

    async def begin(self) -> None:
        self._begin()

    async def commit(self) -> None:
        self._begins = False
        await self._connection.commit()

    async def rollback(self) -> None:
        unsent, self._begins = self._begins, False
        if not (unsent or self.lost):
            await self._connection.rollback()

    async def trip(self, operations: Sequence[Operation]) -> Any:
        connection = self._connection
        async with connection.lock:
            queries = self._queries(operations, psycopg.AsyncClientCursor)
            steps = travelling(connection.pgconn, queries, prepared_in(connection))
            try:
                answer = await connection.wait(steps)
            except BaseException:
                _break_off(connection, steps)
                raise
        return row_of(answer)

    async def effect_returned(self) -> None:
        """Nothing is written late."""


def _break_off(connection: Any, steps: Waiting) -> None:
    """End an interrupted trip now, and not when the last traceback that refers to these steps is dropped."""
    steps.close()
    if not connection.closed and connection.pgconn.pipeline_status != PipelineStatus.OFF:
        connection.pgconn.finish()  # the interrupt came while the pipeline was being left


def begin_statement(connection: Any) -> str:
    """The BEGIN that psycopg itself would send for this connection."""
    words = ["BEGIN"]
    if connection.isolation_level is not None:
        words.append("ISOLATION LEVEL " + psycopg.IsolationLevel(connection.isolation_level).name.replace("_", " "))
    if connection.read_only is not None:
        words.append("READ ONLY" if connection.read_only else "READ WRITE")
    if connection.deferrable is not None:
        words.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    return " ".join(words)


class Prepared:
    """Which of our statements a session has prepared, and how often each other one was sent in full."""

    threshold = 0  # the connection's own: when asked so often, a statement is worth it

    def __init__(self) -> None:
        self.there: set[bytes] = set()
        self._asked: dict[bytes, int] = {}

    def wants(self, query: Query) -> bool:
        if query.name in self.there:
            return True
        asked = self._asked[query.name] = self._asked.get(query.name, 0) + 1
        return asked > self.threshold

    def forget(self) -> None:
        self.there.clear()
        self._asked.clear()


_prepared: WeakKeyDictionary[Any, Prepared] = WeakKeyDictionary()


def prepared_in(connection: Any) -> Prepared | None:
    threshold = connection.prepare_threshold
    if threshold is None:
        return None
    known = _prepared.get(connection)
    if known is None:
        known = _prepared[connection] = Prepared()
    known.threshold = threshold
    return known


_OTHER_FUNCTIONS = b"0A000"  # "cached plan must not change result type": the tables were made anew
_NOT_AS_KNOWN = (b"26000", b"42P05", _OTHER_FUNCTIONS)  # no such prepared statement; one of that name is there
_STEP = "SAVEPOINT samekey_step"
# The link can roll back to these. A transaction that a statement of the effect has aborted takes no new savepoint.
_COME_BACK = (b"BEGIN", b"SAVEPOINT", b"ROLLBACK TO SAVEPOINT")

# As plain numbers: every answer is compared with them.
_DONE, _ROWS = int(ExecStatus.COMMAND_OK), int(ExecStatus.TUPLES_OK)
_SYNC, _ABORTED = int(ExecStatus.PIPELINE_SYNC), int(ExecStatus.PIPELINE_ABORTED)
_READ = Wait.R

Waiting = Generator[Wait, Ready, Any]  # yields whenever the socket has to be waited for


def travelling(pgconn: Any, queries: list[Query], known: Prepared | None) -> Waiting:
    """All of these in one go, up to the first that fails; its error, or the rows among their results, or None."""
    counted_on = [] if known is None else [query for query in queries if query.name and known.wants(query)]
    if known is None or not counted_on:
        return (yield from _turn(pgconn, queries, None))
    if not queries[0].sql.startswith(_COME_BACK):
        queries = [_plain(_STEP), *queries]  # the release of an outer savepoint removes it too
    answer = yield from _turn(pgconn, queries, known)
    state = None if answer is None else answer.error_field(DiagnosticField.SQLSTATE)
    if state in _NOT_AS_KNOWN:
        known.forget()
        first = queries[0].sql.decode()
        began = first.startswith("BEGIN")
        back = [_plain("ROLLBACK" if began else first if first.startswith("ROLLBACK") else f"ROLLBACK TO {first}")]
        if state == _OTHER_FUNCTIONS:
            back += [_plain(f"DEALLOCATE {query.name.decode()}") for query in counted_on]
        yield from _turn(pgconn, back, None)
        answer = yield from _turn(pgconn, queries if began else queries[1:], None)
    return answer


def _turn(pgconn: Any, queries: Sequence[Query], known: Prepared | None) -> Waiting:
    answer = None
    answered = 0
    making: dict[int, bytes] = {}  # which result belongs to the preparation of which statement
    try:
        pgconn.enter_pipeline_mode()
        for number, (name, sql, values, formats) in enumerate(queries):
            if known is None or not name:
                pgconn.send_query_params(sql, values, None, formats, BINARY if formats else 0)
                continue
            if name not in known.there:
                pgconn.send_prepare(name, sql)
                making[number + len(making)] = name
            pgconn.send_query_prepared(name, values, formats, BINARY)
        pgconn.pipeline_sync()
        if pgconn.flush():
            yield from _flushing(pgconn)
        while True:
            if pgconn.is_busy():
                yield from _reading(pgconn)
            result = pgconn.get_result()
            if result is None:
                if pgconn.status == ConnStatus.BAD:
                    return answer  # what it sent before it was gone
                continue
            status = result.status
            if status == _SYNC:
                return answer
            if status == _DONE:
                if answered in making and known is not None:
                    known.there.add(making[answered])
            elif status != _ABORTED and (answer is None or answer.status == _ROWS):
                answer = result  # an error is the reply, whatever came before and comes after it
            answered += 1
            pgconn.get_result()  # None, the end of that statement: it came with the result, so this does not wait
    finally:
        try:
            pgconn.exit_pipeline_mode()
        except psycopg.Error:
            if pgconn.pipeline_status != PipelineStatus.OFF:
                pgconn.finish()  # left in the middle of it: the server rolls back, or the caller asks again


# Functions of their own: Python 3.13 would skip the `finally` of `_turn` if it were interrupted where such a loop in it
# jumps back (python/cpython#130279).


def _flushing(pgconn: Any) -> Waiting:
    """Send more than the network takes at once; meanwhile the server may send something."""
    while True:
        if (yield Wait.RW) & Ready.R:
            pgconn.consume_input()
        if not pgconn.flush():
            return


def _reading(pgconn: Any) -> Waiting:
    while pgconn.is_busy():
        if (yield _READ):
            pgconn.consume_input()  # raises when the server is gone


def row_of(answer: Any) -> Any:
    """The row of a reply, or the error that it is; a binary row is returned as libpq has it."""
    if answer is None:
        return None
    if answer.status != _ROWS:
        raise errors.error_from_result(answer)
    if not answer.ntuples:
        return None  # a key that is not there
    if answer.fformat(0) == BINARY:
        return answer
    loads = [_LOADS.get(answer.ftype(column)) for column in range(answer.nfields)]
    values = [answer.get_value(0, column) for column in range(answer.nfields)]
    return tuple(
        [
            None if value is None else value.decode() if load is None else load(value)
            for value, load in zip(values, loads, strict=True)
        ]
    )


_LOADS: dict[int, Callable[[Any], Any]] = {
    16: lambda value: value == b"t",
    17: lambda value: bytes(Escaping().unescape_bytea(value)),
    20: int,
    23: int,
    26: int,
    701: float,
}
