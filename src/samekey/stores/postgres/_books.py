"""Counts and findings in PostgreSQL: one statement each, over the connection of the operator queries.

So claims, settles and renewals never wait for them, and they never wait for claims.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samekey.core.books import (
    COUNTS_AHEAD_SECONDS,
    COUNTS_FORGOTTEN_MAX,
    COUNTS_KEPT_SECONDS,
    COUNTS_MAX,
    Count,
    Finding,
    FindingQuery,
    check_acceptance,
    counts_of,
    finding_of,
    merged,
    minutes_between,
)
from samekey.core.record import Audit
from samekey.stores.postgres._rows import Statement

_NOW = "date_part('epoch', statement_timestamp())"
_MINUTE = f"floor({_NOW} / 60)::int"

_ADD = f"""
WITH kept AS (
  SELECT {_MINUTE} - {COUNTS_KEPT_SECONDS // 60} AS first, {_MINUTE} + {COUNTS_AHEAD_SECONDS // 60} AS last,
         set_config('synchronous_commit', 'off', true)  -- a crash may forget the last counts; writers wait less
), old AS MATERIALIZED (  -- once: a plan that looked for them row by row would forget the limit
  SELECT minute, operation, source, outcome FROM samekey_counts
   WHERE minute < (SELECT first FROM kept)
   ORDER BY minute LIMIT {COUNTS_FORGOTTEN_MAX}
     FOR UPDATE SKIP LOCKED  -- another writer deletes these
), forgotten AS (
  DELETE FROM samekey_counts AS c USING old
   WHERE (c.minute, c.operation, c.source, c.outcome) = (old.minute, old.operation, old.source, old.outcome)
), added AS (
  INSERT INTO samekey_counts (minute, operation, source, outcome, number)
  SELECT g.minute, g.operation, g.source, g.outcome, g.number
    FROM unnest(%s::int[], %s::text[], %s::text[], %s::text[], %s::bigint[])
      AS g (minute, operation, source, outcome, number), kept
   WHERE g.minute BETWEEN kept.first AND kept.last
   ORDER BY g.minute, g.operation, g.source, g.outcome  -- the same in every writer: no deadlock
  ON CONFLICT (minute, operation, source, outcome) DO UPDATE SET number = samekey_counts.number + excluded.number
  RETURNING 1
)
SELECT count(*) FROM added
"""  # noqa: S608 - constants only

_COUNTS = f"""
SELECT minute, operation, source, outcome, number FROM samekey_counts
 WHERE minute BETWEEN %s::int AND %s::int
   AND minute >= {_MINUTE} - {COUNTS_KEPT_SECONDS // 60}
 ORDER BY minute, operation, source, outcome LIMIT {COUNTS_MAX + 1}
"""  # noqa: S608 - constants only

_FIELDS = tuple(Finding.__dataclass_fields__)
_COLUMNS = ", ".join(_FIELDS)
_TIMES = ("at", "accepted_until")
_VALUES = ", ".join("%s::float8" if name in _TIMES else "%s::text" for name in _FIELDS)

_KEEP = f"""
INSERT INTO samekey_findings ({_COLUMNS}) VALUES ({_VALUES}) ON CONFLICT (id) DO NOTHING RETURNING id
"""  # noqa: S608 - constants only

# The row is locked first: of two acceptances at once the second one sees the first, and the audit log shows both.
_ACCEPT = f"""
WITH before AS (
  SELECT id, accepted_by FROM samekey_findings WHERE id = %s::text FOR UPDATE
), accepted AS (
  UPDATE samekey_findings AS f
     SET accepted_by = %s::text, accepted_why = %s::text, accepted_until = %s::float8
    FROM before WHERE f.id = before.id
  RETURNING f.*, before.accepted_by AS earlier
), audited AS (
  INSERT INTO samekey_audit (at, who, action, operation, tenant, key, before, after, why)
  SELECT date_part('epoch', clock_timestamp()), accepted_by, 'accept', operation, tenant, id,
         CASE WHEN earlier IS NULL THEN '' ELSE 'accepted' END, 'accepted', accepted_why
    FROM accepted
)
SELECT {_COLUMNS} FROM accepted
"""  # noqa: S608 - constants only


_NOTE = f"""
INSERT INTO samekey_audit (at, who, action, operation, tenant, key, before, after, why)
VALUES ({_NOW}, %s::text, %s::text, %s::text, %s::text, %s::text, %s::text, %s::text, %s::text)
RETURNING id
"""  # noqa: S608 - constants only


def note_statement(entry: Audit) -> Statement:
    return _NOTE, tuple(entry[1:])


def add_statement(counts: Sequence[Count]) -> Statement | None:
    """None where there is nothing to add."""
    added = merged(counts)
    columns = zip(*((*count.series, count.number) for count in added), strict=True)
    return (_ADD, tuple(list(column) for column in columns)) if added else None


def counts_statement(since: float, until: float) -> Statement:
    return _COUNTS, minutes_between(since, until)


def keep_statement(finding: Finding) -> Statement:
    return _KEEP, tuple(getattr(finding, name) for name in _FIELDS)


def findings_statement(query: FindingQuery) -> Statement:
    conditions, values = ["true"], list[Any]()
    for column in ("kind", "severity", "operation"):
        if getattr(query, column) is not None:
            conditions.append(f"{column} = %s")
            values.append(getattr(query, column))
    if query.accepted is not None:
        conditions.append(f"coalesce(accepted_until, 0) {'>' if query.accepted else '<='} {_NOW}")
    if query.before is not None:
        conditions.append("(at, id) < (%s::float8, %s::text)")
        values += query.before
    values.append(query.page_size)
    return (
        f"SELECT {_COLUMNS} FROM samekey_findings WHERE {' AND '.join(conditions)} "  # noqa: S608 - constants only
        "ORDER BY at DESC, id DESC LIMIT %s::int",
        tuple(values),
    )


def accept_statement(id: str, by: str, why: str, until: float) -> Statement:
    check_acceptance(by, why, until)
    return _ACCEPT, (id, by, why, until)


class Books:
    """The books of `PostgresStore`."""

    def _connections(self) -> Any:
        raise NotImplementedError

    def note_action(self, entry: Audit) -> None:
        self._connections().operators.ask(note_statement(entry))

    def add_counts(self, counts: Sequence[Count]) -> None:
        statement = add_statement(counts)
        if statement is not None:
            self._connections().operators.ask(statement)

    def counts(self, since: float, until: float) -> Sequence[Count]:
        return counts_of(self._connections().operators.ask(counts_statement(since, until)))

    def keep_finding(self, finding: Finding) -> bool:
        return bool(self._connections().operators.ask(keep_statement(finding)))

    def findings(self, query: FindingQuery) -> Sequence[Finding]:
        return [finding_of(row) for row in self._connections().operators.ask(findings_statement(query))]

    def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Finding | None:
        rows = self._connections().operators.ask(accept_statement(id, by, why, until))
        return finding_of(rows[0]) if rows else None


class AsyncBooks:
    """The books of `AsyncPostgresStore`."""

    def _connections(self) -> Any:
        raise NotImplementedError

    async def note_action(self, entry: Audit) -> None:
        await self._connections().operators.ask(note_statement(entry))

    async def add_counts(self, counts: Sequence[Count]) -> None:
        statement = add_statement(counts)
        if statement is not None:
            await self._connections().operators.ask(statement)

    async def counts(self, since: float, until: float) -> Sequence[Count]:
        return counts_of(await self._connections().operators.ask(counts_statement(since, until)))

    async def keep_finding(self, finding: Finding) -> bool:
        return bool(await self._connections().operators.ask(keep_statement(finding)))

    async def findings(self, query: FindingQuery) -> Sequence[Finding]:
        return [finding_of(row) for row in await self._connections().operators.ask(findings_statement(query))]

    async def accept_finding(self, id: str, *, by: str, why: str, until: float) -> Finding | None:
        rows = await self._connections().operators.ask(accept_statement(id, by, why, until))
        return finding_of(rows[0]) if rows else None
