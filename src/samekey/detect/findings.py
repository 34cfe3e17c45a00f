"""What a rule returns: a gap, why it admits duplicates, how to count what came through it, and how to close it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from samekey.detect.catalog import Catalog, Engine


class Severity(IntEnum):
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4

    @property
    def label(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Check:
    """Rows of `table` that agree in `keys`, as SQL: `having` decides which groups count."""

    table: str  # full name
    keys: tuple[str, ...]  # SQL expressions
    where: str = ""
    having: str = "count(*) > 1"
    surplus: str = "count(*) - 1"  # how many rows of a group are too many
    contents: tuple[str, ...] = ()  # SQL: count different contents of a key instead of rows
    within_a_day: str = ""  # SQL of a time: only rows at most a day after the row before them count
    microseconds: float = 1.4  # for a row, measured on 10 million rows; a whole row takes 3.2


@dataclass(frozen=True, slots=True)
class Finding:
    """A gap in the schema."""

    rule: str  # SK101
    severity: Severity  # while no row is known that came through it
    object: str  # the table, index, sequence or setting
    why: str
    fix: tuple[str, ...] = ()  # SQL, one statement each; -- lines are advice
    table: str = ""  # full name, for --tables
    check: Check | None = None
    confirmed_severity: Severity = Severity.HIGH
    only_confirmed: bool = False  # the schema alone shows nothing
    unique_on: tuple[str, ...] = ()  # columns that a fix plan can make unique
    nulls_equal: bool = False  # in that unique index
    file: str = ""  # where the gap was made: a migration, or a line of code
    line: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of the catalogue."""

    id: str
    title: str
    severity: str  # for people: latent / confirmed
    engines: tuple[Engine, ...]
    find: Callable[[Catalog], Iterator[Finding]]
    confirms: bool = True  # whether rows can show it


EVERYWHERE = (Engine.POSTGRES, Engine.MYSQL, Engine.SQLITE)
POSTGRES = (Engine.POSTGRES,)
