"""One statement over libpq itself: sent, waited for, answered. No cursor, nothing adapted.

A cursor of the driver costs more than all the rest of a claim. Ours are a dozen statements that never change, their
values are made by who knows them, and most of their answers are three numbers: so they are sent prepared, in
binary, and the answer is handed on as libpq gives it.

Sans-IO and without the driver: `exchange` yields whenever the socket has to be waited for, so that it exists once for
threads and for event loops.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

BINARY = 1
ROWS = 2  # PGRES_TUPLES_OK
FAILED = 7  # PGRES_FATAL_ERROR
PREPARED = 1  # PGRES_COMMAND_OK


class Query(NamedTuple):
    """A statement with `$1` parameters, and their values in binary form."""

    name: bytes
    sql: bytes
    values: list[bytes | None]
    formats: list[int]  # BINARY, as many as there are values: made once, not each time


def exchange(link: Any, query: Query, prepared: set[bytes] | None) -> Generator[bool, None, Any]:
    """The answer to this query, which may be an error's; yields whether the socket is also waited for to write.

    `prepared`: the names that this session knows; None where nothing may be left in a session.
    """
    if prepared is None:
        link.send_query_params(query.sql, query.values, None, query.formats, BINARY)
        return (yield from _answer(link))
    if query.name not in prepared:
        link.send_prepare(query.name, query.sql)
        made = yield from _answer(link)
        if made.status != PREPARED:
            return made
        prepared.add(query.name)
    link.send_query_prepared(query.name, query.values, query.formats, BINARY)
    return (yield from _answer(link))


def _answer(link: Any) -> Generator[bool, None, Any]:
    while link.flush():  # more than the network takes at once; meanwhile the server may want to say something
        yield True
        link.consume_input()
    while True:
        yield False
        link.consume_input()  # raises when the server is gone
        if not link.is_busy():
            break
    answer = link.get_result()
    # The server says its rows before it commits, and a server that dies says them in its last breath: they count only
    # if nothing but the end comes after them.
    while (more := link.get_result()) is not None:
        if more.status == FAILED:
            answer = more
    return answer
