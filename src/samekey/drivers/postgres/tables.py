"""Reading a table of the user's own, for `samekey adopt`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from samekey.drivers.postgres.address import parse_url
from samekey.drivers.postgres.connect import arguments
from samekey.drivers.postgres.connection import Connection
from samekey.drivers.postgres.errors import translated
from samekey.drivers.schema import quoted

PIECE = 1000  # rows fetched in one go: bounds memory


def read_table(url: str, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """These columns of every row of a table, in one read-only transaction; the table may have its schema before it."""
    address = parse_url(url)
    names = ", ".join(map(quoted, columns))
    whole = ".".join(map(quoted, table.split(".", 1)))
    with translated(address):
        given = {**arguments(address), "autocommit": False, "target_session_attrs": "any"}
        connection = Connection.connect(address.url, **given)
        try:
            connection.read_only = True
            with connection.cursor(name="samekey_adopt") as cursor:
                cursor.itersize = PIECE
                cursor.execute(f"SELECT {names} FROM {whole}")  # noqa: S608 - quoted
                yield from cursor
        finally:
            connection.close()
