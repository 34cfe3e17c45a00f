"""Ids that come back: counters that begin again or run out, and random ids from a space that is too small."""

from __future__ import annotations

import math
from collections.abc import Iterator

from samekey.detect import names
from samekey.detect.catalog import Catalog, Engine, Kind, Made
from samekey.detect.dialect import Dialect
from samekey.detect.findings import EVERYWHERE, Finding, Rule, Severity

USED_UP = 0.5  # of a counter: half a life is enough time to widen a column
BITS_PER_CHARACTER = math.log2(36)  # letters of one case and digits; hexadecimal is worse
COLLISION = 0.001  # the chance of one collision so far from which an id space is called too small
LENGTH_MAX = 12  # longer random texts are not met twice


def counters(catalog: Catalog) -> Iterator[Finding]:
    """SK121."""
    for sequence in catalog.sequences:
        used = (sequence.last or 0) / sequence.greatest
        owner = f"{sequence.table}.{sequence.column}" if sequence.table else sequence.name
        if sequence.cycles:
            why = "the sequence begins again at its end (CYCLE): ids are issued a second time"
            fix: tuple[str, ...] = (f"ALTER SEQUENCE {_spelled(catalog, sequence.name)} NO CYCLE;",)
        elif used >= USED_UP:
            why = f"{used:.0%} of the ids that {owner} can hold are used: the next inserts will fail or wrap"
            fix = (f"-- Make {owner} a bigint before the last id is used.",)
        else:
            continue
        yield Finding("SK121", Severity.HIGH, sequence.name, why, fix, sequence.table)


def _spelled(catalog: Catalog, name: str) -> str:
    return ".".join(map(Dialect(catalog).name, name.split(".", 1)))


def small_space(catalog: Catalog) -> Iterator[Finding]:
    """SK128."""
    for table in catalog.whole_tables():
        rows = table.rows or sum(
            part.rows for part in map(catalog.table, catalog.parts.get(table.full_name, ())) if part
        )
        for column in table.columns:
            named = names.RANDOM_ID.search(column.name) or column.made is Made.RANDOM
            if column.kind is not Kind.TEXT or not named or not column.length or column.length > LENGTH_MAX:
                continue
            bits = column.length * BITS_PER_CHARACTER
            chance = -math.expm1(-(rows**2) / 2 ** (bits + 1))
            if chance < COLLISION:
                continue
            yield Finding(
                "SK128",
                Severity.HIGH if chance >= 0.5 else Severity.MEDIUM,
                f"{table.full_name}.{column.name}",
                f"{column.length} characters are at most {bits:.0f} random bits: with about {rows:.0f} rows the chance "
                f"that two ids were equal by now is {chance:.2g}, if they are random",
                (f"-- Widen {column.name}: 22 characters of base 62 hold 128 bits, as a UUID does.",),
                table.full_name,
            )


RULES = (
    Rule("SK121", "counter begins again or runs out", "high", (Engine.POSTGRES, Engine.MYSQL), counters, False),
    Rule("SK128", "random id space too small", "high or medium", EVERYWHERE, small_space, False),
)
