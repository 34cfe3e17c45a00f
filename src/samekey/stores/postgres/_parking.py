"""Parked messages in PostgreSQL: one statement each, over the connection of the operator queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from samekey.core.parking import (
    REDELIVERED_FORGOTTEN_MAX,
    REDELIVERED_KEPT_SECONDS,
    Parked,
    ParkedQuery,
    check_redelivery,
    parked_of,
)
from samekey.stores.postgres._rows import Statement

_FIELDS = tuple(Parked.__dataclass_fields__)
_COLUMNS = ", ".join(_FIELDS)
_TYPES = {"at": "float8", "redelivered_at": "float8", "body": "bytea"}
_VALUES = ", ".join(f"%s::{_TYPES.get(name, 'text')}" for name in _FIELDS)
_NOW = "date_part('epoch', clock_timestamp())"

_PARK = f"""
INSERT INTO samekey_parked ({_COLUMNS}) VALUES ({_VALUES})
ON CONFLICT (id) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _FIELDS if name != "id")}
RETURNING id
"""  # noqa: S608 - constants only

# The row is locked first: of two redeliveries at once the second one sees the first, and the audit log shows both.
_REDELIVERED = f"""
WITH before AS (
  SELECT id, redelivered_at FROM samekey_parked WHERE id = %s::text FOR UPDATE
), marked AS (
  UPDATE samekey_parked AS p
     SET redelivered_at = {_NOW}, redelivered_by = %s::text
    FROM before WHERE p.id = before.id
  RETURNING p.*, before.redelivered_at AS earlier
), audited AS (
  INSERT INTO samekey_audit (at, who, action, operation, tenant, key, before, after, why)
  SELECT redelivered_at, redelivered_by, 'redeliver', operation, tenant, id,
         CASE WHEN earlier IS NULL THEN 'parked' ELSE 'redelivered' END, 'redelivered', kind
    FROM marked
), old AS MATERIALIZED (
  SELECT id FROM samekey_parked
   WHERE redelivered_at < {_NOW} - {REDELIVERED_KEPT_SECONDS}
   LIMIT {REDELIVERED_FORGOTTEN_MAX}
     FOR UPDATE SKIP LOCKED  -- another redelivery deletes these
), forgotten AS (
  DELETE FROM samekey_parked AS p USING old WHERE p.id = old.id AND p.id NOT IN (SELECT id FROM marked)
)
SELECT {_COLUMNS} FROM marked
"""  # noqa: S608 - constants only


def park_statement(parked: Parked) -> Statement:
    return _PARK, tuple(getattr(parked, name) for name in _FIELDS)


def parked_statement(query: ParkedQuery) -> Statement:
    conditions, values = ["true"], list[Any]()
    for column in ("id", "operation", "tenant", "key", "kind"):
        if getattr(query, column) is not None:
            conditions.append(f"{column} = %s")
            values.append(getattr(query, column))
    if query.waiting is not None:
        conditions.append(f"redelivered_at IS {'' if query.waiting else 'NOT '}NULL")
    if query.before is not None:
        conditions.append("(at, id) < (%s::float8, %s::text)")
        values += query.before
    values.append(query.page_size)
    return (
        f"SELECT {_COLUMNS} FROM samekey_parked WHERE {' AND '.join(conditions)} "  # noqa: S608 - constants only
        "ORDER BY at DESC, id DESC LIMIT %s::int",
        tuple(values),
    )


def redelivered_statement(id: str, by: str) -> Statement:
    check_redelivery(by)
    return _REDELIVERED, (id, by)


class Parking:
    """The parked messages of `PostgresStore`."""

    def _connections(self) -> Any:
        raise NotImplementedError

    def park(self, parked: Parked) -> None:
        self._connections().operators.ask(park_statement(parked))

    def parked(self, query: ParkedQuery) -> Sequence[Parked]:
        return [parked_of(row) for row in self._connections().operators.ask(parked_statement(query))]

    def redelivered(self, id: str, *, by: str) -> Parked | None:
        rows = self._connections().operators.ask(redelivered_statement(id, by))
        return parked_of(rows[0]) if rows else None


class AsyncParking:
    """The parked messages of `AsyncPostgresStore`."""

    def _connections(self) -> Any:
        raise NotImplementedError

    async def park(self, parked: Parked) -> None:
        await self._connections().operators.ask(park_statement(parked))

    async def parked(self, query: ParkedQuery) -> Sequence[Parked]:
        return [parked_of(row) for row in await self._connections().operators.ask(parked_statement(query))]

    async def redelivered(self, id: str, *, by: str) -> Parked | None:
        rows = await self._connections().operators.ask(redelivered_statement(id, by))
        return parked_of(rows[0]) if rows else None
