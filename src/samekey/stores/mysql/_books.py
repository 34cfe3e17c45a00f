"""Counts and findings in MySQL. They use the connections of settles and renewals, and so never wait for claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from samekey.core.books import (
    COUNTS_AHEAD_SECONDS,
    COUNTS_FORGOTTEN_MAX,
    COUNTS_KEPT_SECONDS,
    COUNTS_MAX,
    Count,
    Finding,
    FindingQuery,
    acceptance_entry,
    check_acceptance,
    counts_of,
    finding_of,
    merged,
    minutes_between,
)
from samekey.core.record import Audit
from samekey.stores.mysql._connections import Links
from samekey.stores.mysql._rows import AUDIT, CLOCK, Run, literal

_MINUTE = f"{CLOCK} DIV 60000000"
_FIRST = f"({_MINUTE} - {COUNTS_KEPT_SECONDS // 60})"  # of the minutes that are kept
_LAST = f"({_MINUTE} + {COUNTS_AHEAD_SECONDS // 60})"

_ADD = """
INSERT INTO samekey_counts (minute, operation, source, outcome, number) VALUES %s
ON DUPLICATE KEY UPDATE number = number + VALUES(number)
"""

# Also what was just added, where it is not kept.
_FORGET = f"""
DELETE FROM samekey_counts WHERE minute < {_FIRST} OR minute > {_LAST} ORDER BY minute LIMIT {COUNTS_FORGOTTEN_MAX}
"""  # noqa: S608 - constants only

_COUNTS = f"""
SELECT minute, operation, source, outcome, number FROM samekey_counts
 WHERE minute BETWEEN %d AND %d
   AND minute BETWEEN {_FIRST} AND {_LAST}
 ORDER BY minute, operation, source, outcome LIMIT {COUNTS_MAX + 1}
"""  # noqa: S608 - constants only

_FIELDS = tuple(Finding.__dataclass_fields__)
_TIMES = ("at", "accepted_until")
_COLUMNS = ", ".join(_FIELDS)
_SHOWN = ", ".join(name if name in _TIMES else f"CAST({name} AS BINARY)" for name in _FIELDS)

_KEEP = f"INSERT INTO samekey_findings ({_COLUMNS}) VALUES (%s) ON DUPLICATE KEY UPDATE id = id"  # noqa: S608

_HELD = f"SELECT {CLOCK}, {_SHOWN} FROM samekey_findings WHERE id = %s FOR UPDATE"  # noqa: S608 - constants only

_ACCEPT = "UPDATE samekey_findings SET accepted_by = %s, accepted_why = %s, accepted_until = %s WHERE id = %s"


class Books:
    """The books of `MysqlStore`."""

    _links: Callable[[], Links]

    def note_action(self, entry: Audit) -> None:
        # Not again after a lost reply: the entry may have been written.
        self._links().insist(lambda run: _note(run, entry), again=False)

    def add_counts(self, counts: Sequence[Count]) -> None:
        added = merged(counts)
        if added:
            # Not again after a lost reply: the counts may have been added.
            self._links().insist(lambda run: _add(run, added), again=False)

    def counts(self, since: float, until: float) -> Sequence[Count]:
        statement = _COUNTS % minutes_between(since, until)
        (rows, _), _ = self._links().insist(lambda run: run(statement), desk=True)
        return counts_of((row[0], *map(bytes.decode, row[1:4]), int(row[4])) for row in rows)

    def keep_finding(self, finding: Finding) -> bool:
        statement = _KEEP % _literals(getattr(finding, name) for name in _FIELDS)
        (_, kept), asked_again = self._links().insist(lambda run: run(statement))
        return kept == 1 or asked_again  # after a lost reply it may have been new: an alarm twice is better than none

    def findings(self, query: FindingQuery) -> Sequence[Finding]:
        statement = _list_statement(query)
        (rows, _), _ = self._links().insist(lambda run: run(statement), desk=True)
        return [_finding_of(row) for row in rows]

    def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Finding | None:
        check_acceptance(by, why, until)
        # Not again after a lost reply: it would be audited twice.
        return self._links().insist(lambda run: _accept(run, id, by, why, until), again=False)[0]


def _note(run: Run, entry: Audit) -> None:
    ((row,), _) = run(f"SELECT {CLOCK}")
    run(AUDIT % _literals(entry._replace(at=int(row[0]) / 1e6)))


def _add(run: Run, counts: Sequence[Count]) -> None:
    rows = (f"({_literals((*count.series, count.number))})" for count in counts)
    run(_ADD % ", ".join(rows))
    run(_FORGET)


def _accept(run: Run, id: str, by: str, why: str, until: float) -> Finding | None:
    run("BEGIN")
    rows, _ = run(_HELD % literal(id))
    after = None
    if rows:
        before = _finding_of(rows[0][1:])
        after = before.accepted(by, why, until)
        run(_ACCEPT % (literal(by), literal(why), literal(float(until)), literal(id)))
        run(AUDIT % _literals(acceptance_entry(before, after, int(rows[0][0]) / 1e6)))
    run("COMMIT")
    return after


def _list_statement(query: FindingQuery) -> str:
    conditions = ["1 = 1"]
    for column in ("kind", "severity", "operation"):
        if getattr(query, column) is not None:
            # As bytes: even a binary collation takes "a" and "a " for equal.
            conditions.append(f"CAST({column} AS BINARY) = {literal(getattr(query, column))}")
    if query.accepted is not None:
        conditions.append(f"COALESCE(accepted_until, 0) {'>' if query.accepted else '<='} {CLOCK} / 1e6")
    if query.before is not None:
        at, id = literal(float(query.before[0])), literal(query.before[1])
        conditions.append(f"at <= {at} AND (at < {at} OR id < {id})")
    return (
        f"SELECT {_SHOWN} FROM samekey_findings FORCE INDEX (samekey_found) "  # noqa: S608
        f"WHERE {' AND '.join(conditions)} ORDER BY at DESC, id DESC LIMIT {query.page_size}"
    )


def _finding_of(row: Sequence[Any]) -> Finding:
    return finding_of([value.decode() if isinstance(value, bytes) else value for value in row])


def _literals(values: Iterable[Any]) -> str:
    return ", ".join(map(literal, values))
