"""A caller's asyncpg connection, as `Atomic` uses it: adjacent savepoints share a trip, a command has its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import asyncpg
from asyncpg.pool import PoolConnectionProxy


def link(connection: Any, asynchronous: bool, link_of: Callable[..., Any]) -> Any:
    if asynchronous and isinstance(connection, asyncpg.Connection | PoolConnectionProxy):
        return AsyncpgLink(connection)
    return None


class AsyncpgLink:
    marks_ahead = False  # it would be a trip of its own, and a replay does not need it
    commits_along = writes_late = committed = False
    takes_queries = False
    began_by_itself = begins_by_itself = False  # outside a transaction each statement is one
    errors = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._begun: Any = None

    @property
    def given(self) -> Any:
        # A proxy of a pool leads to one connection for as long as that is lent.
        return getattr(self._connection, "_con", None) or self._connection

    @property
    def in_transaction(self) -> bool:
        return not self.lost and bool(self._connection.is_in_transaction())

    @property
    def lost(self) -> bool:
        return bool(self._connection.is_closed())

    async def underlying(self) -> Any:
        return self.given

    async def begin(self) -> None:
        # The library's own object: in a transaction begun with a BEGIN statement it refuses connection.transaction().
        self._begun = self._connection.transaction()  # set first: the start may be interrupted
        await self._begun.start()

    async def commit(self) -> None:
        if self._begun is not None:
            try:
                await self._begun.commit()
            except asyncpg.PostgresError:
                self._begun = None  # the server replied with an error: the transaction is over
                raise
            self._begun = None

    async def rollback(self) -> None:
        begun, self._begun = self._begun, None
        if begun is None or self.lost:
            return
        try:
            await begun.rollback()
        except asyncpg.InterfaceError:
            # Cancelled as it began or ended, the library gives a transaction up, and the server may be in it still. The
            # next transaction on this connection would be a savepoint in it, and never be committed.
            self._connection.terminate()

    async def trip(self, operations: Sequence[Any]) -> Any:
        row = None
        for is_statement, some in groupby(operations, key=lambda one: isinstance(one, tuple)):
            if is_statement:
                for text, values in some:
                    row = await self._connection.fetchrow(numbered(text), *values)
            else:
                await self._connection.execute("; ".join(one.sql for one in some))
        return row

    async def effect_returned(self) -> None:
        """Nothing is written late."""


@lru_cache(maxsize=64)
def numbered(text: str) -> str:
    """`%s` as `$1`. Values are sent as text, and the server casts them to their types."""
    parts = re.split(r"%s::(\w+)", text)
    text_out = parts[0]
    for number, (kind, rest) in enumerate(zip(parts[1::2], parts[2::2], strict=True), start=1):
        text_out += f"${number}::text::{kind}" if kind in ("uuid", "bigint", "integer", "oid") else f"${number}::{kind}"
        text_out += rest
    return text_out
