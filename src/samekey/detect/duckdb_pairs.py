"""The pairs of a rule found by DuckDB, over a thin extract: row id, keyed hash, time. No other value leaves the server.

For a database whose processor must be spared: it reads the table once, without a sort. Each pair that DuckDB finds is
then read from the database by its row ids, which gives its key, source and requests, and drops a pair whose hashes are
equal by chance.
"""

from __future__ import annotations

import csv
import secrets
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb

from samekey.detect.catalog import Kind
from samekey.detect.dialect import text
from samekey.detect.pairs import Pair, PairSql, Span
from samekey.drivers.reading import Reading, Row

MEMORY = "1GB"  # DuckDB writes the rest to its own temporary files
LOOKED_UP = 500  # pairs whose rows one statement reads

Ids = tuple[Any, ...]


def thin_pairs(reading: Reading, sql: PairSql, span: Span, seconds: float) -> Generator[Pair, None, None]:
    """The same pairs that the database itself would find, in any order."""
    with tempfile.TemporaryDirectory(prefix="samekey-scan-") as folder:
        extract = Path(folder) / "extract.csv"
        _extract(reading, sql.thin(span, secrets.randbits(60)), extract, seconds)
        with closing(_candidates(sql, span, extract, folder)) as found:
            while batch := list(islice(found, LOOKED_UP)):
                yield from _looked_up(reading, sql, batch, seconds)


def _extract(reading: Reading, statement: str, target: Path, seconds: float) -> None:
    copy_out = getattr(reading, "copy_out", None)
    if copy_out is not None:  # PostgreSQL makes the file itself
        with target.open("wb") as file:
            copy_out(statement, file, seconds=seconds)
        return
    with target.open("w", encoding="utf-8", newline="") as lines:
        csv.writer(lines).writerows(reading.each(statement, seconds=seconds, whole_table=True))


def compare(sql: PairSql, span: Span, extract: Path) -> str:
    """DuckDB's statement: hashes that occur once are dropped before the rest is sorted."""
    ids = [f"r{number}" for number in range(len(sql.rule.row_id))]
    types = {name: _type(sql, column) for name, column in zip(ids, sql.rule.row_id, strict=True)}
    columns = ", ".join(
        f"{text(name)}: {text(kind)}" for name, kind in (types | {"h": "BIGINT", "t": "BIGINT"}).items()
    )
    over = f"OVER (PARTITION BY h ORDER BY t, {', '.join(ids)})"
    lagged = ", ".join(f"lag({name}) {over} AS e{number}" for number, name in enumerate(ids))
    near = ["e0 IS NOT NULL"]
    if sql.rule.window_seconds is not None:
        near.append(f"coalesce(t - s <= {sql.rule.window_seconds * 1e6:.0f}, true)")
    if span.since is not None:
        near.append(f"t >= {span.since * 1e6:.0f}")
    return f"""
        CREATE TEMP TABLE e AS SELECT * FROM read_csv({text(str(extract))}, header = false, columns = {{{columns}}});
        SELECT {", ".join(ids)}, {", ".join(f"e{number}" for number in range(len(ids)))}, t / 1e6, (t - s) / 1e6
        FROM (SELECT {", ".join(ids)}, {lagged}, t, lag(t) {over} AS s FROM e
              WHERE h IN (SELECT h FROM e GROUP BY h HAVING count(*) > 1)) x
        WHERE {" AND ".join(near)}"""


def _type(sql: PairSql, column: str) -> str:
    return "BIGINT" if sql.table.column(column).kind is Kind.INTEGER else "VARCHAR"


def _candidates(sql: PairSql, span: Span, extract: Path, folder: str) -> Generator[Row, None, None]:
    limits: dict[str, Any] = {"memory_limit": MEMORY, "temp_directory": folder}
    with duckdb.connect(":memory:", config=limits) as link:
        link.execute(compare(sql, span, extract))
        while found := link.fetchmany(LOOKED_UP):
            yield from found


def _looked_up(reading: Reading, sql: PairSql, batch: list[Row], seconds: float) -> Iterator[Pair]:
    width = len(sql.rule.row_id)
    ids = {tuple(map(str, row[start : start + width])) for row in batch for start in (0, width)}
    there: dict[Ids, Row] = {}
    for row in reading.rows(sql.lookup(sorted(ids)), seconds=seconds):
        there[tuple(row[:width])] = row[width:]
    for row in batch:
        second, first = there.get(tuple(map(str, row[:width]))), there.get(tuple(map(str, row[width : 2 * width])))
        if second is None or first is None:
            continue  # deleted since: no duplicate any more
        one = sql.read((*row[:width], *second[: sql.extras], *row[width : 2 * width], *first[: sql.extras],
                        *row[2 * width : 2 * width + 2], *second[sql.extras :]))  # fmt: skip
        if second[sql.extras :] == first[sql.extras :]:
            yield one
