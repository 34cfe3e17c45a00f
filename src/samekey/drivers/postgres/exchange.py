"""One statement over libpq itself: send it, wait, read the answer. There is no cursor and no adaptation of values.

A cursor of the driver costs more than the rest of a claim. samekey has a dozen statements that never change, `_wire`
makes their values in binary, and most answers are three numbers. So the statements are sent prepared, in binary, and
the answer is returned as libpq gives it.

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
COMMIT = "/*commit*/"  # where a statement has room for the settings of its commit


class Query(NamedTuple):
    """A statement with `$1` parameters, and their values in binary form."""

    name: bytes
    sql: bytes
    values: list[bytes | None]
    formats: list[int]  # BINARY, as many as there are values: made once, not each time


def exchange(link: Any, query: Query, prepared: set[bytes] | None) -> Generator[bool, None, Any]:
    """Send the query. Returns a generator of its answer, which may be an error's.

    The generator yields whenever the socket has to be waited for: True if the socket should also take more bytes.
    `prepared`: the names that this session knows; None where nothing may be left in a session.
    """
    if prepared is None:
        link.send_query_params(query.sql, query.values, None, query.formats, BINARY)
    elif query.name in prepared:
        link.send_query_prepared(query.name, query.values, query.formats, BINARY)
    else:
        link.send_prepare(query.name, query.sql)
        return _prepared_first(link, query, prepared)
    return _answer(link)


def _prepared_first(link: Any, query: Query, prepared: set[bytes]) -> Generator[bool, None, Any]:
    made = yield from _answer(link)
    if made.status != PREPARED:
        return made
    prepared.add(query.name)
    return (yield from exchange(link, query, prepared))


def _answer(link: Any) -> Generator[bool, None, Any]:
    while link.flush():  # more than the network takes at once; meanwhile the server may send something
        yield True
        link.consume_input()
    while True:
        yield False
        link.consume_input()  # raises when the server is gone
        if not link.is_busy():
            break
    answer = link.get_result()
    # The server sends the rows before it commits. A server that dies in between has sent them too: they count only if
    # no error follows them.
    while (more := link.get_result()) is not None:
        if more.status == FAILED:
            answer = more
    return answer
