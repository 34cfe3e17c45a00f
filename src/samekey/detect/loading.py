"""An import that can be run again: a file into a staging table, then one statement into the table.

Rows whose key is in the table already, or twice in the file, are reported and not stored. A run that was stopped starts
again: rows in the staging table are not read a second time, and the last statement inserts what is missing. So a second
run of a finished import changes nothing. Only rows with every key column are stored: without them a row has no key.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samekey.core.errors import Misconfigured, SamekeyError
from samekey.detect.audit import open_database, read_catalog
from samekey.detect.catalog import Engine, Table
from samekey.detect.dialect import quoted
from samekey.detect.opening import open_writing
from samekey.drivers.writing import Writing

CHUNK_ROWS = 10_000  # that are staged in one transaction
COLUMNS_MAX = 1000
REPORTED_MAX = 1000  # rows that a report names; all are counted

Values = Sequence[str | None]


class LoadStopped(SamekeyError):
    """The file cannot be loaded as it is; nothing of it is in the table."""


@dataclass(frozen=True, slots=True)
class Loaded:
    rows: int  # of the file
    inserted: int
    existing: int  # their key was in the table before
    repeated: int  # their key is in an earlier row of the file
    rejected: int  # they have no key, or the wrong number of columns
    reported: tuple[tuple[int, str], ...]  # (row of the file, why it was not stored), the first ones


def load(
    url: str, path: Path, table: str, key: Sequence[str], *, progress: Callable[[int], Any] = lambda rows: None
) -> Loaded:
    """Import the rows of a CSV or Parquet file that are not in the table yet."""
    engine, reading = open_database(url)
    try:
        found = _table(read_catalog(engine, reading).tables, table)
    finally:
        reading.close()
    columns, rows = open_file(path)
    _check(found, columns, key)
    link = open_writing(engine, url)
    try:
        return _Load(engine, link, found, path, columns, key).run(rows, progress)
    finally:
        link.close()


def _table(tables: Sequence[Table], name: str) -> Table:
    found = [one for one in tables if name in (one.full_name, one.name)]
    exact = [one for one in found if one.full_name == name]
    if len(exact or found) != 1:
        raise Misconfigured(f"{'several tables have' if found else 'no table has'} the name {name}")
    return (exact or found)[0]


def _check(table: Table, columns: Sequence[str], key: Sequence[str]) -> None:
    """Without a unique key over exactly these columns two imports at once could both insert a row."""
    there = {column.name for column in table.columns}
    unknown = [name for name in columns if name not in there]
    if unknown:
        raise Misconfigured(f"{table.full_name} has no column {', '.join(unknown)}; the file has it")
    missing = [name for name in key if name not in columns]
    if missing:
        raise Misconfigured(f"the file has no column {', '.join(missing)}, which is in --key")
    if not any({*one.columns} == {*key} and not one.expressions for one in table.enforced):
        names = ", ".join(key)
        raise Misconfigured(
            f"{table.full_name} has no unique key over ({names}): two imports at once would store a row twice. "
            f"`samekey db audit --fix-plan` prepares it: CREATE UNIQUE INDEX ON {table.full_name} ({names})"
        )


def open_file(path: Path) -> tuple[list[str], Iterator[Values]]:
    """The columns of a file, and its rows as texts; None is NULL, and so is an empty field of a CSV file."""
    try:
        if path.suffix == ".parquet":
            from samekey.detect.duckdb_files import parquet_rows

            return parquet_rows(path)
        if path.suffix == ".csv":
            return _csv(path)
    except ModuleNotFoundError as missing:
        raise Misconfigured(f".parquet needs {missing.name}: pip install 'samekey[cli,scan]'") from missing
    raise Misconfigured(f"{path.name}: a file to load is .csv or .parquet")


def _csv(path: Path) -> tuple[list[str], Iterator[Values]]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            columns = next(csv.reader(file, strict=True), [])
    except OSError as error:
        raise Misconfigured(f"{path} cannot be read: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise Misconfigured(f"{path} cannot be read: {error}") from error
    if not columns or len(set(columns)) != len(columns) or "" in columns or len(columns) > COLUMNS_MAX:
        raise Misconfigured(f"{path} begins with the names of its columns, each once")
    return columns, _csv_rows(path)


def _csv_rows(path: Path) -> Iterator[Values]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        try:
            next(reader)
            for row in reader:
                yield [value if value != "" else None for value in row]
        except (csv.Error, UnicodeDecodeError) as error:
            raise LoadStopped(f"{path}, line {reader.line_num}: {error}") from error


class _Load:
    def __init__(
        self, engine: Engine, link: Writing, table: Table, path: Path, columns: Sequence[str], key: Sequence[str]
    ) -> None:
        self._engine, self._link, self._columns, self._key = engine, link, columns, key
        self._table = self._name(table.full_name)
        self._types = {column.name: column.type for column in table.columns}
        facts = os.stat(path)
        digest = hashlib.blake2b(
            f"{path.absolute()} {facts.st_size} {facts.st_mtime_ns} {table.full_name} {columns} {key}".encode(),
            digest_size=8,
        ).hexdigest()
        schema = f"{table.schema}." if table.schema else ""
        self._staging = self._name(f"{schema}samekey_load_{digest}")
        self._reported: list[tuple[int, str]] = []

    def _name(self, full_name: str) -> str:
        return ".".join(quoted(part, self._engine) for part in full_name.split(".", 1))

    def _names(self, names: Sequence[str], prefix: str = "") -> str:
        return ", ".join(prefix + quoted(name, self._engine) for name in names)

    def run(self, rows: Iterator[Values], progress: Callable[[int], Any]) -> Loaded:
        staged = self._prepare()
        count, rejected = self._stage(rows, staged, progress)
        inserted, existing, repeated = self._insert()
        self._link.run(f"DROP TABLE {self._staging}")
        return Loaded(count, inserted, existing, repeated, rejected, tuple(self._reported[:REPORTED_MAX]))

    # -- staging ------------------------------------------------------------------------------------------------------

    def _prepare(self) -> int:
        """The staging table; the number of the last row of the file that an earlier run has staged."""
        kind = "LONGTEXT" if self._engine is Engine.MYSQL else "TEXT"
        columns = ", ".join(f"{quoted(name, self._engine)} {kind}" for name in self._columns)
        unlogged = "UNLOGGED " if self._engine is Engine.POSTGRES else ""
        self._link.run(
            f"CREATE {unlogged}TABLE IF NOT EXISTS {self._staging} (samekey_row BIGINT PRIMARY KEY, {columns})"
        )
        ((last,),) = self._link.run(f"SELECT coalesce(max(samekey_row), 0) FROM {self._staging}")
        return int(last)

    def _stage(self, rows: Iterator[Values], staged: int, progress: Callable[[int], Any]) -> tuple[int, int]:
        places = [list(self._columns).index(name) for name in self._key]
        width, number, rejected = len(self._columns), 0, 0
        while chunk := list(itertools.islice(rows, CHUNK_ROWS)):
            good = []
            for row in chunk:
                number += 1
                if len(row) != width:
                    why = f"it has {len(row)} columns, and the file has {width}"
                elif any(row[place] is None for place in places):
                    why = "a key column is empty"
                else:
                    if number > staged:
                        good.append((number, *row))
                    continue
                rejected += 1
                self._report(number, why)
            if good:
                self._write(good)
            progress(len(chunk))
        return number, rejected

    def _write(self, rows: list[tuple[Any, ...]]) -> None:
        names = f"samekey_row, {self._names(self._columns)}"
        copy_in = getattr(self._link, "copy_in", None)
        if copy_in is not None:
            copy_in(f"COPY {self._staging} ({names}) FROM STDIN", [_copy_text(rows)])
            return
        values = ", ".join(["%s"] * (len(self._columns) + 1))
        with self._link.transaction():
            self._link.run_many(f"INSERT INTO {self._staging} ({names}) VALUES ({values})", rows)

    def _report(self, row: int, why: str) -> None:
        if len(self._reported) < REPORTED_MAX:
            self._reported.append((row, why))

    # -- the one statement --------------------------------------------------------------------------------------------

    def _insert(self) -> tuple[int, int, int]:
        """Insert the first row of each key; the counts come from the same transaction."""
        with self._link.transaction():
            ((staged, keys),) = self._link.run(
                f"SELECT count(*), (SELECT count(*) FROM (SELECT DISTINCT {self._typed(self._key)} "
                f"FROM {self._staging}) k) FROM {self._staging}"
            )
            before = self._existing()
            inserted = self._run_insert()
        self._name_repeated()
        for row in before:
            self._report(row, "its key is in the table")
        return inserted, int(keys) - inserted, int(staged) - int(keys)

    def _existing(self) -> list[int]:
        """The first rows of the file whose key is in the table, for the report."""
        same = " AND ".join(f"t.{quoted(name, self._engine)} = {self._cast(name, 's.')}" for name in self._key)
        found = self._link.run(
            f"SELECT s.samekey_row FROM {self._staging} s WHERE EXISTS (SELECT 1 FROM {self._table} t WHERE {same}) "
            f"ORDER BY 1 LIMIT {REPORTED_MAX}"
        )
        return [int(row) for (row,) in found]

    def _run_insert(self) -> int:
        named = ", ".join(f"{self._cast(name)} AS {quoted(name, self._engine)}" for name in self._columns)
        chosen = (
            f"SELECT {named}, row_number() OVER (PARTITION BY {self._typed(self._key)} "
            f"ORDER BY samekey_row) AS samekey_place FROM {self._staging}"
        )
        names = self._names(self._columns)
        source = f"SELECT {names} FROM ({chosen}) s WHERE samekey_place = 1"
        if self._engine is Engine.MYSQL:
            first = quoted(self._key[0], self._engine)
            self._link.run(
                f"INSERT INTO {self._table} ({names}) {source} ON DUPLICATE KEY UPDATE {first} = {self._table}.{first}"
            )
            ((count,),) = self._link.run("SELECT ROW_COUNT()")  # an update to the same value counts as 0
            return int(count)
        target = self._names(self._key)
        statement = f"INSERT INTO {self._table} ({names}) {source} ON CONFLICT ({target}) DO NOTHING"
        if self._engine is Engine.SQLITE:  # its grammar would read ON as a join
            statement = statement.replace("samekey_place = 1", "samekey_place = 1 AND true")
            self._link.run(statement)
            return int(self._link.run("SELECT changes()")[0][0])
        ((count,),) = self._link.run(f"WITH done AS ({statement} RETURNING 1) SELECT count(*) FROM done")
        return int(count)

    def _name_repeated(self) -> None:
        again = (
            f"SELECT samekey_row, row_number() OVER (PARTITION BY {self._typed(self._key)} ORDER BY samekey_row) "
            f"AS place FROM {self._staging}"
        )
        found = self._link.run(f"SELECT samekey_row FROM ({again}) s WHERE place > 1 ORDER BY 1 LIMIT {REPORTED_MAX}")
        for (row,) in found:
            self._report(int(row), "its key is in an earlier row of the file")

    def _typed(self, names: Sequence[str]) -> str:
        return ", ".join(map(self._cast, names))

    def _cast(self, name: str, prefix: str = "") -> str:
        """The staged text as the column's type: '1' and '01' are one key of an integer column."""
        column = f"{prefix}{quoted(name, self._engine)}"
        return f"{column}::{self._types[name]}" if self._engine is Engine.POSTGRES else column


def _copy_text(rows: list[tuple[Any, ...]]) -> bytes:
    """Rows in the text format of COPY."""
    written = io.StringIO()
    for number, *values in rows:
        written.write(str(number))
        for value in values:
            written.write("\t")
            if value is None:
                written.write("\\N")
            else:
                written.write(
                    value.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
                )
        written.write("\n")
    return written.getvalue().encode()
