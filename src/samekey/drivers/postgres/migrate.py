"""PostgreSQL's migrations: which there are, which are due, and carrying them out.

Theory. A migration is a numbered file of plain SQL with one of two phases. *pre* expands: it runs before the new code
is deployed, and code that is already running must not notice it. *post* contracts: it runs when the last process with
old code has ended. Each phase is counted separately in `samekey_meta`. The file itself counts, so that the count is
right no matter which tool runs the file. A pre-migration never builds on a post-migration, so a deploy may skip
versions. The code needs the newest pre-migration it knows; a post-migration raises `oldest_client` where older code
would break.

Each migration is one transaction under an advisory lock, so that two processes migrate one after the other. While a
migration waits for a table, all other sessions wait for that table too. So it waits briefly, gives up its place, and
tries again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Literal

from psycopg import errors

from samekey.core.errors import Misconfigured, StoreUnavailable
from samekey.drivers.postgres.address import Address, parse_url
from samekey.drivers.postgres.connect import arguments
from samekey.drivers.postgres.connection import Connection
from samekey.drivers.postgres.errors import first_line, translated
from samekey.drivers.schema import foreign_table, newer

Phase = Literal["pre", "post"]
Which = Literal["pre", "post", "all"]

MIGRATION_LOCK = 0x73616D656B6579  # "samekey"
TURN_SECONDS = 60.0  # for another process that migrates right now
LOCK_SECONDS = 1.0  # for a table: every claim waits as long as the migration does
TRIES_MAX = 20  # attempts that found a table busy; with the pauses between them about a minute
FIRST_PAUSE_SECONDS = 0.25
LAST_PAUSE_SECONDS = 4.0
MIGRATION_SECONDS = 600.0  # one statement of a migration; most only make new objects and take milliseconds
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
    found = re.search(r"^-- Phase: (pre|post)\b", sql, re.MULTILINE)
    if found is None:
        raise ValueError(f"{name} does not name its phase")
    phase: Phase = "pre" if found[1] == "pre" else "post"
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


# -- carrying out ------------------------------------------------------------------------------------------


class HeldUp(StoreUnavailable):
    """A table was busy each time: not everything was migrated. Nothing is half done; try again."""


def migrate(
    url: str,
    *,
    phase: Which = "all",
    dry_run: bool = False,
    partitions: int = 0,
    known: Sequence[Migration] | None = None,
    on_done: Callable[[Migration], None] = lambda migration: None,
) -> list[Migration]:
    """Bring the database to this version's schema.

    Returns the migrations that were carried out (with `dry_run`: that would be). Several processes may try at once: one
    migrates, the others wait and find it done. `on_done` is called with each migration when it is committed; `known`
    are the migrations there are.
    """
    address = parse_url(url)
    if known is None:
        known = migrations(partitions=partitions)
    options = {**arguments(address), "prepare_threshold": None}
    with translated(address), Connection.connect(address.url, **options) as connection:
        connection.silence_seconds = MIGRATION_SECONDS
        wanted = due(known, _done(connection), phase, address.name)
        if partitions:
            _check_partitions(address, connection, partitions, first=known[0] in wanted)
        if dry_run:
            return wanted
        made = []
        for migration in wanted:
            if _carry_out(address, connection, migration, known):
                made.append(migration)
                on_done(migration)
        return made


def _carry_out(address: Address, connection: Connection, migration: Migration, known: Sequence[Migration]) -> bool:
    """Whether this process carried it out; another one may have been faster."""
    *turn, sql = migration.statements()
    pause = FIRST_PAUSE_SECONDS
    for tries in range(1, TRIES_MAX + 1):
        try:
            with connection.transaction():
                _take_turn(address, connection, turn)
                if migration not in due(known, _done(connection), "all", address.name):
                    return False
                _execute(address, connection, sql)
                if migration in due(known, _done(connection), "all", address.name):
                    raise ValueError(f"{migration.number:04} {migration.title} does not count itself")
                return True
        except errors.LockNotAvailable as busy:
            if tries == TRIES_MAX:
                raise HeldUp(
                    f"{address.name}: {migration.number:04} {migration.title} found its tables busy {tries} times "
                    f"({first_line(busy)}); nothing of it was done, try again"
                ) from busy
        time.sleep(pause)
        pause = min(pause * 2, LAST_PAUSE_SECONDS)
    raise AssertionError("the last try returns or raises")


def _execute(address: Address, connection: Connection, sql: str) -> None:
    try:
        connection.execute(sql.encode())
    except errors.InvalidSchemaName as error:
        raise Misconfigured(
            f"{address.name}: there is no schema to make the tables in ({first_line(error)}). Make the first one of "
            "the search_path with CREATE SCHEMA, or name another"
        ) from error
    except errors.DuplicateTable as error:
        table = re.search(r'"(\w+)"', str(error))
        raise foreign_table(address.name, table[1] if table else "samekey_records") from error


def _take_turn(address: Address, connection: Connection, turn: Sequence[str]) -> None:
    try:
        for statement in turn:
            connection.execute(statement.encode())
    except errors.LockNotAvailable as busy:
        raise HeldUp(f"{address.name}: another process has been migrating it for a long time; try again") from busy


def _done(connection: Connection) -> dict[Phase, int]:
    # Read from the catalogue itself: within a transaction to_regclass remembers that there was no such table, also when
    # the process that held the lock before has made it.
    visible = "SELECT FROM pg_class WHERE relname = 'samekey_meta' AND pg_table_is_visible(oid)"
    if connection.execute(visible).rowcount == 0:
        return {"pre": 0, "post": 0}
    rows = dict(connection.execute("SELECT name, value FROM samekey_meta").fetchall())
    return {phase: int(rows.get(name, 0)) for phase, name in COUNTED.items()}


def _check_partitions(address: Address, connection: Connection, wanted: int, *, first: bool) -> None:
    """A table that exists keeps its partitions: refuse, or the caller would believe that its number was applied."""
    row = connection.execute(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = to_regclass('samekey_records')"
    ).fetchone()
    there = row[0] if row else 0
    if not first and there != wanted:
        raise Misconfigured(
            f"{address.name} has its table of records already, in {there or 1} piece{'s' if there > 1 else ''}: "
            "partitions are chosen with the first migration"
        )


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
