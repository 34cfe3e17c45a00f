"""Rows of a Parquet file, read by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import duckdb

from samekey.core.errors import Misconfigured

AT_ONCE = 5000
MEMORY = "500MB"


def parquet_rows(path: Path) -> tuple[list[str], Iterator[Sequence[str | None]]]:
    """The columns, and the rows as texts in the order of the file."""
    link = duckdb.connect(config={"memory_limit": MEMORY, "threads": 1, "preserve_insertion_order": "true"})
    try:
        described = link.execute("DESCRIBE SELECT * FROM read_parquet(?)", [str(path)]).fetchall()
    except duckdb.Error as error:
        link.close()
        raise Misconfigured(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    columns = [str(row[0]) for row in described]

    def rows() -> Iterator[Sequence[str | None]]:
        with closing(link):
            texts = ", ".join('CAST("' + name.replace('"', '""') + '" AS VARCHAR)' for name in columns)
            found = link.execute(f"SELECT {texts} FROM read_parquet(?)", [str(path)])
            while some := found.fetchmany(AT_ONCE):
                yield from some

    return columns, rows()
