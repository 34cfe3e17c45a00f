"""A caller's psycopg connection, as `Atomic` uses it.

A trip is one message: several statements with their values written into them by the driver, the BEGIN of a
transaction that has not begun yet and the COMMIT of one that we began among them. Nothing is prepared, so it works
behind PgBouncer; one message is faster than a pipeline of three. The rows are read here, as the server writes them:
the loaders and row factories that a caller gave to the connection are for the caller's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import psycopg
from psycopg import errors, generators
from psycopg.pq import Escaping, ExecStatus, PipelineStatus, TransactionStatus

from samekey.core.errors import Misconfigured
from samekey.core.transaction import Mark, SavepointGone

Operation = Mark | tuple[str, tuple[Any, ...]]

_OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def link(connection: Any, asynchronous: bool, link_of: Callable[..., Any]) -> Any:
    if not asynchronous and isinstance(connection, psycopg.Connection):
        return PsycopgLink(connection)
    if asynchronous and isinstance(connection, psycopg.AsyncConnection):
        return AsyncPsycopgLink(connection)
    return None


class _Shared:
    marks_ahead = commits_along = True
    errors = (psycopg.Error,)
    _connection: Any
    _begins = False  # with the next trip

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
    def lost(self) -> bool:
        return bool(self._connection.closed)

    def _message(self, operations: Sequence[Operation], literal: Callable[[str, list[Any]], str]) -> bytes:
        texts: list[str] = []
        if self._connection.pgconn.transaction_status == TransactionStatus.IDLE:
            if not (self._begins or self.begins_by_itself):
                raise SavepointGone("no transaction")
            texts.append(begin_statement(self._connection))
        self._begins = False
        for operation in operations:
            if isinstance(operation, tuple):
                texts.append(literal(operation[0], list(operation[1])) if operation[1] else operation[0])
            else:
                texts.append(operation.sql)
        return "; ".join(texts).encode(self._connection.info.encoding)


class PsycopgLink(_Shared):
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def underlying(self) -> Any:
        return self._connection

    def begin(self) -> None:
        self._begins = True

    def commit(self) -> None:
        self._begins = False
        self._connection.commit()

    def rollback(self) -> None:
        self._begins = False
        if not self.lost:
            self._connection.rollback()

    def trip(self, operations: Sequence[Operation]) -> Any:
        connection = self._connection
        message = self._message(operations, psycopg.ClientCursor(connection).mogrify)
        with connection.lock:
            connection.pgconn.send_query(message)
            results = connection.wait(generators.execute(connection.pgconn))
        return row_of(results, connection.info.encoding)

    def effect_returned(self) -> None:
        """Nothing is written late."""


class AsyncPsycopgLink(_Shared):
    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def underlying(self) -> Any:
        return self._connection

    async def begin(self) -> None:
        self._begins = True

    async def commit(self) -> None:
        self._begins = False
        await self._connection.commit()

    async def rollback(self) -> None:
        self._begins = False
        if not self.lost:
            await self._connection.rollback()

    async def trip(self, operations: Sequence[Operation]) -> Any:
        connection = self._connection
        message = self._message(operations, psycopg.AsyncClientCursor(connection).mogrify)
        async with connection.lock:
            connection.pgconn.send_query(message)
            results = await connection.wait(generators.execute(connection.pgconn))
        return row_of(results, connection.info.encoding)

    async def effect_returned(self) -> None:
        """Nothing is written late."""


def begin_statement(connection: Any) -> str:
    """As the connection itself would begin one."""
    words = ["BEGIN"]
    if connection.isolation_level is not None:
        words.append("ISOLATION LEVEL " + psycopg.IsolationLevel(connection.isolation_level).name.replace("_", " "))
    if connection.read_only is not None:
        words.append("READ ONLY" if connection.read_only else "READ WRITE")
    if connection.deferrable is not None:
        words.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    return " ".join(words)


def row_of(results: Sequence[Any], encoding: str) -> tuple[Any, ...] | None:
    """The row among the results, or the error that was the last of them."""
    row = None
    for result in results:
        if result.status == ExecStatus.TUPLES_OK:
            if not result.ntuples:
                continue  # a key that is not there
            loads = [_LOADS.get(result.ftype(column)) for column in range(result.nfields)]
            values = [result.get_value(0, column) for column in range(result.nfields)]
            row = tuple(
                [
                    None if value is None else str(value, encoding) if load is None else load(value)
                    for value, load in zip(values, loads, strict=True)
                ]
            )
        elif result.status != ExecStatus.COMMAND_OK:
            raise errors.error_from_result(result, encoding=encoding)
    return row


_LOADS: dict[int, Callable[[Any], Any]] = {
    16: lambda value: value == b"t",
    17: lambda value: bytes(Escaping().unescape_bytea(value)),
    20: int,
    23: int,
    26: int,
    701: float,
}
