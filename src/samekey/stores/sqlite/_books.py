"""Counts and findings in a SQLite file. Reads use the reading connection; a write is one short transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from samekey.core.books import (
    COUNTS_FORGOTTEN_MAX,
    COUNTS_MAX,
    Count,
    Finding,
    FindingQuery,
    acceptance_entry,
    check_acceptance,
    counts_of,
    finding_of,
    kept_minutes,
    merged,
    minutes_between,
)
from samekey.core.record import Audit
from samekey.drivers import sqlite as driver
from samekey.stores.sqlite._process import Process
from samekey.stores.sqlite._rows import AUDIT

ADD = """
INSERT INTO samekey_counts (minute, operation, source, outcome, number) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (minute, operation, source, outcome) DO UPDATE SET number = number + excluded.number
"""

FORGET = """
DELETE FROM samekey_counts
 WHERE (minute, operation, source, outcome) IN (
   SELECT minute, operation, source, outcome FROM samekey_counts WHERE minute < ? ORDER BY minute LIMIT ?
 )
"""

COUNTS = """
SELECT minute, operation, source, outcome, number FROM samekey_counts
 WHERE minute BETWEEN ? AND ?
 ORDER BY minute, operation, source, outcome LIMIT ?
"""

_COLUMNS = ", ".join(Finding.__dataclass_fields__)

KEEP = f"""
INSERT INTO samekey_findings ({_COLUMNS})
VALUES ({", ".join("?" for _ in Finding.__dataclass_fields__)})
ON CONFLICT (id) DO NOTHING
"""  # noqa: S608 - constants only

FINDING = f"SELECT {_COLUMNS} FROM samekey_findings WHERE id = ?"  # noqa: S608 - constants only

ACCEPT = "UPDATE samekey_findings SET accepted_by = ?, accepted_why = ?, accepted_until = ? WHERE id = ?"


class Books:
    """The books of `SqliteStore`."""

    _wall: Callable[[], float]
    _here: Callable[[], Process]
    _same_file: Callable[[], Process]

    def note_action(self, entry: Audit) -> None:
        with self._writing() as writer:
            writer.execute(AUDIT, entry._replace(at=self._wall()))

    def add_counts(self, counts: Sequence[Count]) -> None:
        first, last = kept_minutes(self._wall())
        kept = [(*count.series, count.number) for count in merged(counts) if first <= count.minute <= last]
        if kept:
            with self._writing() as writer:
                writer.executemany(ADD, kept)
                writer.execute(FORGET, (first, COUNTS_FORGOTTEN_MAX))

    def counts(self, since: float, until: float) -> Sequence[Count]:
        first, last = minutes_between(since, until)
        return counts_of(self._rows(COUNTS, (max(first, kept_minutes(self._wall())[0]), last, COUNTS_MAX + 1)))

    def keep_finding(self, finding: Finding) -> bool:
        with self._writing() as writer:
            return bool(writer.execute(KEEP, _values(finding)).rowcount == 1)

    def findings(self, query: FindingQuery) -> Sequence[Finding]:
        return [finding_of(row) for row in self._rows(*_list_statement(query, self._wall()))]

    def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Finding | None:
        check_acceptance(by, why, until)
        with self._writing() as writer:
            row = writer.execute(FINDING, (id,)).fetchone()
            if row is None:
                return None
            before = finding_of(row)
            writer.execute(ACCEPT, (by, why, until, id))
            after = before.accepted(by, why, until)
            writer.execute(AUDIT, acceptance_entry(before, after, self._wall()))
            return after

    def _rows(self, statement: str, values: Any) -> list[Any]:
        here = self._here()
        with here.reading, driver.translated(here.name):
            return here.reader.execute(statement, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[driver.Connection]:
        """A transaction on the writing connection, which commits at the end of the block."""
        here = self._same_file()
        with here.turn, driver.translated(here.name):
            try:
                here.begin()
                yield here.writer
                here.commit()
            except BaseException:
                here.rollback()
                raise


def _values(finding: Finding) -> tuple[Any, ...]:
    return tuple(getattr(finding, name) for name in Finding.__dataclass_fields__)


def _list_statement(query: FindingQuery, now: float) -> tuple[str, dict[str, Any]]:
    conditions: list[str] = ["1"]
    named: dict[str, Any] = {"now": now, "limit": query.page_size}
    for column in ("kind", "severity", "operation"):
        if getattr(query, column) is not None:
            conditions.append(f"{column} = :{column}")
            named[column] = getattr(query, column)
    if query.accepted is not None:
        conditions.append(f"coalesce(accepted_until, 0) {'>' if query.accepted else '<='} :now")
    if query.before is not None:
        conditions.append("(at, id) < (:at, :id)")
        named["at"], named["id"] = query.before
    statement = (
        f"SELECT {_COLUMNS} FROM samekey_findings WHERE {' AND '.join(conditions)} "  # noqa: S608
        "ORDER BY at DESC, id DESC LIMIT :limit"
    )
    return statement, named
