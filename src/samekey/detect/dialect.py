"""SQL that differs between servers: quoting, canonical text, and the statement that counts a check."""

from __future__ import annotations

import unicodedata
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from samekey.detect.catalog import Catalog, Column, Engine, Kind, Table
from samekey.detect.findings import Check

WORST = 5  # groups that a report shows
SAMPLE = 100  # of so many keys, one is looked at

INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff"
SPACES = "\t\n\v\f\r\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


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

    # -- statements ----------------------------------------------------------------------------------------------------

    def count(self, check: Check, table: Table, *, sampled: bool = False) -> str:
        """One statement: the worst groups, and in each row the number of all groups and of all rows too many."""
        where = " AND ".join(f"({part})" for part in (check.where, self._sample(check) if sampled else "") if part)
        where = f" WHERE {where}" if where else ""
        source, keys = self._source(table), [f"{key} AS k{number}" for number, key in enumerate(check.keys)]
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

    def _source(self, table: Table) -> str:
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


def canonical(value: Any) -> Any:
    """The canonical text on SQLite, whose SQL knows ASCII only."""
    if not isinstance(value, str):
        return value
    kept = _not_in(INVISIBLE, unicodedata.normalize("NFKC", value))
    spaces = _members(SPACES)
    return "".join(" " if char in spaces else char for char in kept).strip(" ").lower()


def _hash(*values: Any) -> int:
    return zlib.crc32(repr(values).encode("utf-8", "surrogateescape"))


FUNCTIONS: Mapping[str, tuple[int, Callable[..., Any]]] = {"samekey_canon": (1, canonical), "samekey_hash": (-1, _hash)}


def _members(ranges: str) -> frozenset[str]:
    """The characters of a class such as `a-c_`."""
    found, at = set(), 0
    while at < len(ranges):
        if ranges[at + 1 : at + 2] == "-":
            found |= {chr(code) for code in range(ord(ranges[at]), ord(ranges[at + 2]) + 1)}
            at += 3
        else:
            found.add(ranges[at])
            at += 1
    return frozenset(found)


def _not_in(ranges: str, value: str) -> str:
    dropped = _members(ranges)
    return "".join(char for char in value if char not in dropped)


def _escaped(ranges: str) -> str:
    """For E'...': the statement itself stays ASCII."""
    return "".join(char if char == "-" else f"\\u{ord(char):04X}" for char in ranges)


def _mysql_class(ranges: str) -> str:
    """Two backslashes: the first one is for the string."""
    return "[" + "".join(char if char == "-" else f"\\\\x{{{ord(char):04X}}}" for char in ranges) + "]"
