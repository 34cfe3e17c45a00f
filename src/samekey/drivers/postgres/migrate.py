"""PostgreSQL's migrations: which there are, which are due, and the SQL that carries one out.

Sans-IO and without the driver: everything here can be printed, for people and for other tools.

Theory. A migration is a numbered file of plain SQL with one of two phases. *pre* expands: it runs before the new code
is deployed, and code that is already running must not notice it. *post* contracts: it runs when the last process with
old code is gone. Each phase is counted by itself in `samekey_meta` (the file does that, so that whoever runs it leaves
the same trace): a pre-migration never builds on a post-migration, so a deploy may skip versions. What the code needs
is the newest pre-migration it knows; a post-migration raises `oldest_client` where older code would break.

Each is one transaction, under an advisory lock, so that two at once are one after the other. While it waits for a
table nobody else gets at that table either, so it waits briefly, gives way, and tries again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib import resources
from typing import Literal

from samekey.core.errors import Misconfigured
from samekey.drivers.schema import newer

Phase = Literal["pre", "post"]
Which = Literal["pre", "post", "all"]

MIGRATION_LOCK = 0x73616D656B6579  # "samekey"
TURN_SECONDS = 60.0  # for another process that migrates right now
LOCK_SECONDS = 1.0  # for a table: as long as that, every claim stands behind us
TRIES_MAX = 20  # tables that were busy each time; with the pauses between them, about a minute
FIRST_PAUSE_SECONDS = 0.25
LAST_PAUSE_SECONDS = 4.0
PARTITIONS_MAX = 1024  # beyond it planning costs more than vacuuming saves

COUNTED: dict[Phase, str] = {"pre": "schema", "post": "contracted"}  # where samekey_meta counts each phase


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    phase: Phase
    title: str
    sql: str  # as shipped; without a transaction of its own

    def statements(self) -> tuple[str, ...]:
        """Exactly what is sent, in one transaction."""
        return (
            "SET LOCAL statement_timeout = 0",  # the role's own may be shorter than our turn takes to come
            f"SET LOCAL lock_timeout = '{TURN_SECONDS:.0f}s'",
            f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})",
            f"SET LOCAL lock_timeout = '{LOCK_SECONDS:.0f}s'",
            self.sql,
        )

    def script(self) -> str:
        """The same for psql."""
        *first, sql = self.statements()
        return "".join([f"{line};\n" for line in ("BEGIN", *first)]) + f"\n{sql.rstrip()}\n\nCOMMIT;\n"


def migrations(*, partitions: int = 0) -> list[Migration]:
    """All of them, in order; `partitions` of the table of records, where it is not made as one piece."""
    folder = resources.files("samekey.stores") / "migrations" / "postgres"
    files = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    found = [_read(name, (folder / name).read_text(encoding="utf-8")) for name in files]
    if partitions:
        found = [replace(found[0], sql=_partitioned(found[0].sql, partitions)), *found[1:]]
    return found


def _read(name: str, sql: str) -> Migration:
    said = re.search(r"^-- Phase: (pre|post)\b", sql, re.MULTILINE)
    if said is None:
        raise ValueError(f"{name} does not say its phase")
    phase: Phase = "pre" if said[1] == "pre" else "post"
    return Migration(int(name[:4]), phase, name[5:-4].replace("_", " "), sql)


def due(known: Iterable[Migration], done: dict[Phase, int], which: Which, name: str) -> list[Migration]:
    """What is still to be done of these phases, in the order in which it is done.

    `done` is the newest that the database has, of each phase; `name` is the database's, for people.
    """
    known = list(known)
    for phase in COUNTED:
        newest = max((one.number for one in known if one.phase == phase), default=0)
        if done[phase] > newest:
            raise newer(name, done[phase], newest)
    missing = {phase: [one for one in known if one.phase == phase and one.number > done[phase]] for phase in COUNTED}
    if which == "post" and missing["pre"] and missing["post"]:
        first = missing["pre"][0]
        raise Misconfigured(f"{name} has not been prepared yet: {first.number:04} {first.title} belongs to --phase pre")
    return [*(missing["pre"] if which != "post" else []), *(missing["post"] if which != "pre" else [])]


# -- partitions --------------------------------------------------------------------------------------------

_TABLE = re.compile(r"(CREATE TABLE samekey_records \(\n.*?\n\)) WITH (\(\n.*?\n\));\n", re.DOTALL)


def _partitioned(sql: str, partitions: int) -> str:
    """The same table in hash partitions. A partitioned table has no storage of its own, so its parts say how."""
    if not 1 < partitions <= PARTITIONS_MAX:
        raise Misconfigured(f"partitions is a number from 2 to {PARTITIONS_MAX}, not {partitions}")

    def divided(found: re.Match[str]) -> str:
        parts = [
            f"CREATE TABLE samekey_records_{number:04} PARTITION OF samekey_records\n"
            f"  FOR VALUES WITH (MODULUS {partitions}, REMAINDER {number}) WITH {found[2]};\n"
            for number in range(partitions)
        ]
        return f"{found[1]} PARTITION BY HASH (digest);\n\n" + "".join(parts)

    made, count = _TABLE.subn(divided, sql)
    if count != 1:
        raise ValueError("the table of records is not where it was")
    return made
