"""SQL that differs between servers: quoting, canonical text, and the statement that counts a check."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from samekey.detect.canonical import INVISIBLE, SPACES, canonical
from samekey.detect.catalog import Catalog, Column, Engine, Kind, Table
from samekey.detect.findings import Check

WORST = 5  # groups that a report shows
SAMPLE = 100  # of so many keys, one is looked at


def quoted(name: str, engine: Engine) -> str:
    """A name as a statement has it."""
    return "`" + name.replace("`", "``") + "`" if engine is Engine.MYSQL else '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


class Dialect:
    def __init__(self, catalog: Catalog) -> None:
        self.engine = catalog.engine
        self._unicode = catalog.unicode

    def name(self, name: str) -> str:
        return quoted(name, self.engine)

    def names(self, names: Iterable[str]) -> str:
        return ", ".join(map(self.name, names))

    def table(self, table: Table) -> str:
        return f"{self.name(table.schema)}.{self.name(table.name)}" if table.schema else self.name(table.name)

    # -- expressions ---------------------------------------------------------------------------------------------------

    def all_set(self, names: Iterable[str]) -> str:
        return " AND ".join(f"{self.name(name)} IS NOT NULL" for name in names)

    def any_null(self, names: Iterable[str]) -> str:
        return "(" + " OR ".join(f"{self.name(name)} IS NULL" for name in names) + ")"

    def exactly(self, column: Column) -> str:
        """The column's value so that only identical values are equal, whatever its collation or type."""
        name = self.name(column.name)
        if self.engine is Engine.POSTGRES:
            # json and geometric types have no equality, citext and some collations fold: their texts have and do not.
            other = column.kind in (Kind.DOCUMENT, Kind.OTHER)
            return f'{name}::text COLLATE "C"' if other or column.kind is Kind.TEXT else name
        if self.engine is Engine.MYSQL and column.kind in (Kind.TEXT, Kind.BYTES, Kind.DOCUMENT):
            return f"SHA2({name}, 256)"  # a long text would be compared by its first max_sort_length bytes
        if self.engine is Engine.SQLITE:
            return f"{name} COLLATE BINARY"
        return name

    def canonical(self, name: str) -> str:
        """A text without differences that people do not see."""
        column = self.name(name)
        if self.engine is Engine.SQLITE:
            return f"samekey_canon({column})"
        if self.engine is Engine.MYSQL:
            hidden = f"REGEXP_REPLACE({column}, '{_mysql_class(INVISIBLE)}', '')"
            return f"LOWER(TRIM(REGEXP_REPLACE({hidden}, '{_mysql_class(SPACES)}', ' ')))"
        column = f"{column}::text"
        if not self._unicode:
            return f"lower(btrim({column}))"
        ascii_only = f"lower(btrim(translate({column}, E'\\t\\n\\x0b\\f\\r', '     ')))"
        shown = f"regexp_replace(normalize({column}, NFKC), E'[{_escaped(INVISIBLE)}]', '', 'g')"
        spaced = f"regexp_replace({shown}, E'[\\\\s{_escaped(SPACES)}]', ' ', 'g')"
        # The short way is for the common case: it costs a third.
        plain = f"octet_length({column}) = char_length({column})"
        return f"CASE WHEN {plain} THEN {ascii_only} ELSE lower(btrim({spaced})) END"

    def different_spellings(self, name: str) -> str:
        """Whether a group has more than one spelling, byte for byte."""
        column = self.name(name)
        if self.engine is Engine.POSTGRES:
            return f'count(DISTINCT {column}::text COLLATE "C") > 1'
        if self.engine is Engine.MYSQL:
            return f"count(DISTINCT CAST({column} AS BINARY)) > 1"
        return f"count(DISTINCT {column} COLLATE BINARY) > 1"

    def rounded(self, name: str) -> str:
        column = self.name(name)
        return f"round({column}::numeric, 6)" if self.engine is Engine.POSTGRES else f"round({column}, 6)"

    def as_text(self, value: str) -> str:
        cast = {Engine.POSTGRES: "text", Engine.MYSQL: "CHAR", Engine.SQLITE: "TEXT"}[self.engine]
        return f"CAST({value} AS {cast})"

    def literal(self, value: str, column: Column) -> str:
        """A value of the column as SQL: a number, or hexadecimal, in which nothing has to be escaped."""
        if column.kind is Kind.INTEGER:
            return str(int(value))
        spelled = value.encode("utf-8", "surrogateescape").hex()
        match self.engine:
            case Engine.POSTGRES:
                return f"convert_from(decode('{spelled}', 'hex'), 'UTF8')::{column.type}"
            case Engine.MYSQL:
                return f"CONVERT(X'{spelled}' USING utf8mb4)"
            case Engine.SQLITE:
                return f"CAST(X'{spelled}' AS TEXT)"

    def keyed_hash(self, keys: Iterable[str], seed: int) -> str:
        """A number below 2**63 in which the key cannot be read. The parts stay separate: 'a','bc' is not 'ab','c'."""
        if self.engine is Engine.POSTGRES:
            return f"hashtextextended(ROW({', '.join(keys)})::text, {seed})"
        if self.engine is Engine.SQLITE:
            return f"samekey_hash64({seed}, {', '.join(keys)})"
        texts = [f"CAST({key} AS CHAR)" for key in keys]
        parts = ", ".join(f"coalesce(CONCAT(LENGTH({one}), ':', {one}), '-')" for one in texts)
        return f"CAST(CONV(LEFT(SHA2(CONCAT({seed}, '/', {parts}), 256), 15), 16, 10) AS SIGNED)"

    def microseconds(self, time: str) -> str:
        """A time as microseconds since 1970; of SQLite's, which is seconds already."""
        match self.engine:
            case Engine.POSTGRES:
                return f"(date_part('epoch', {time}) * 1e6)::bigint"
            case Engine.MYSQL:
                return f"CAST(UNIX_TIMESTAMP({time}) * 1000000 AS SIGNED)"
            case Engine.SQLITE:
                return f"CAST(({time}) * 1000000 AS INTEGER)"

    # -- statements ----------------------------------------------------------------------------------------------------

    def count(self, check: Check, table: Table, *, sampled: bool = False) -> str:
        """One statement: the worst groups, and in each row the number of all groups and of all rows too many."""
        where = " AND ".join(f"({part})" for part in (check.where, self._sample(check) if sampled else "") if part)
        where = f" WHERE {where}" if where else ""
        source, keys = self.source(table), [f"{key} AS k{number}" for number, key in enumerate(check.keys)]
        if check.within_a_day:
            return self._window(check, source, keys, where)
        shown = ", ".join(f"k{number}" for number in range(len(keys)))
        if check.contents:
            contents = [f"{content} AS c{number}" for number, content in enumerate(check.contents)]
            source = f"(SELECT DISTINCT {', '.join([*keys, *contents])} FROM {source}{where}) x"
            keys, grouping, where = [shown], shown, ""
        else:
            grouping = ", ".join(check.keys)
        grouped = (
            f"SELECT {', '.join(keys)}, count(*) AS n, {check.surplus} AS too_many FROM {source}{where} "
            f"GROUP BY {grouping} HAVING {check.having}"
        )
        return (
            f"SELECT count(*) OVER () AS all_groups, sum(too_many) OVER () AS all_too_many, n, {shown} "
            f"FROM ({grouped}) d ORDER BY n DESC LIMIT {WORST}"
        )

    def _window(self, check: Check, source: str, keys: list[str], where: str) -> str:
        """Rows with the same content at most a day after the row before them. An unknown time counts as near."""
        names = ", ".join(f"k{number}" for number in range(len(keys)))
        over = f"OVER (PARTITION BY {names} ORDER BY at)"
        near = {
            Engine.POSTGRES: "coalesce(at - earlier <= interval '24 hours', true)",
            Engine.MYSQL: "coalesce(TIMESTAMPDIFF(SECOND, earlier, at) <= 86400, true)",
            Engine.SQLITE: "coalesce(julianday(at) - julianday(earlier) <= 1, true)",
        }[self.engine]
        stamped = f"SELECT {', '.join(keys)}, {check.within_a_day} AS at FROM {source}{where}"
        paired = f"SELECT {names}, at, lag(at) {over} AS earlier, row_number() {over} AS place FROM ({stamped}) s"
        grouped = (
            f"SELECT {names}, count(*) + 1 AS n, count(*) AS too_many FROM ({paired}) p "
            f"WHERE place > 1 AND {near} GROUP BY {names}"
        )
        return (
            f"SELECT count(*) OVER () AS all_groups, sum(too_many) OVER () AS all_too_many, n, {names} "
            f"FROM ({grouped}) d ORDER BY n DESC LIMIT {WORST}"
        )

    def source(self, table: Table) -> str:
        """The table, without its indexes: one that is broken would hide the duplicates that it let in."""
        hint = {Engine.POSTGRES: "", Engine.MYSQL: " USE INDEX ()", Engine.SQLITE: " NOT INDEXED"}[self.engine]
        return self.table(table) + hint

    def _sample(self, check: Check) -> str:
        """One key of a hundred, with all of its rows: a sample of rows would lose one row of nearly every pair."""
        keys = ", ".join(check.keys)
        if self.engine is Engine.POSTGRES:
            return f"hashtext(ROW({keys})::text) % {SAMPLE} = 0"
        if self.engine is Engine.MYSQL:
            return f"CRC32(CONCAT_WS('|', {keys})) % {SAMPLE} = 0"
        return f"samekey_hash({keys}) % {SAMPLE} = 0"


def _hash(*values: Any) -> int:
    return zlib.crc32(repr(values).encode("utf-8", "surrogateescape"))


def _hash64(seed: int, *values: Any) -> int:
    data = repr(values).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, key=seed.to_bytes(8), digest_size=8).digest()) >> 1


FUNCTIONS: Mapping[str, tuple[int, Callable[..., Any]]] = {
    "samekey_canon": (1, canonical),
    "samekey_hash": (-1, _hash),
    "samekey_hash64": (-1, _hash64),
}


def _escaped(ranges: str) -> str:
    """For E'...': the statement itself stays ASCII."""
    return "".join(char if char == "-" else f"\\u{ord(char):04X}" for char in ranges)


def _mysql_class(ranges: str) -> str:
    """Two backslashes: the first one is for the string."""
    return "[" + "".join(char if char == "-" else f"\\\\x{{{ord(char):04X}}}" for char in ranges) + "]"
