"""What operators and the sweeper ask of PostgreSQL: pages of records, the audit log, deletes."""

from __future__ import annotations

from typing import Any

from samekey.core.ports import LIST_MAX, Query
from samekey.core.record import Audit
from samekey.core.states import EXPIRES
from samekey.stores.postgres._rows import ROW, Statement

SWEEP_MAX = 1000  # rows in one delete: milliseconds, so that no claim waits for a sweep

# How far back a page looks, in seconds: the newest records are in the newest pages of the table, and BRIN knows
# which these are. Only a page that is not full needs the next, wider look.
LOOKS = (600.0, 24 * 3600.0, None)


def list_statement(query: Query, look: float | None) -> Statement:
    """One page of records, newest first, no older than `look` seconds (before the cursor, if there is one)."""
    conditions, values = ["(r.retain_until <= date_part('epoch', clock_timestamp())) IS NOT TRUE"], list[Any]()
    for column, value in (("operation", query.operation), ("tenant", query.tenant), ("key", query.text)):
        if value is not None:
            conditions.append(f"r.{column} = %s")
            values.append(value)
    if query.states:
        conditions.append("r.state = ANY (%s::text[])")
        values.append([state.value for state in query.states])
        if not EXPIRES & set(query.states):
            conditions.append("r.retain_until IS NULL")  # the same in the index's words
    newest = "date_part('epoch', clock_timestamp())"
    if query.before is not None:
        conditions.append("(r.created_at, r.digest) < (%s::float8, %s::uuid)")
        values += [query.before[0], query.before[1].hex()]
        newest = "%s::float8"
    if look is not None:
        conditions.append(f"r.created_at >= {newest} - %s::float8")
        values += ([] if query.before is None else [query.before[0]]) + [look]
    values.append(page_size(query))
    return (
        f"SELECT {ROW} FROM samekey_records AS r WHERE {' AND '.join(conditions)} "  # noqa: S608 - constants only
        "ORDER BY r.created_at DESC, r.digest DESC LIMIT %s::int",
        tuple(values),
    )


def page_size(query: Query) -> int:
    return max(0, min(query.limit, LIST_MAX))


def looks(query: Query) -> tuple[float | None, ...]:
    """What is held or in doubt has an index of its own; everything else is looked for from the newest backwards."""
    unsettled = bool(query.states) and not EXPIRES & set(query.states)
    return (None,) if unsettled else LOOKS


def sweep_statement(limit: int) -> Statement:
    return "SELECT samekey_sweep(%s::int)", (max(0, min(limit, SWEEP_MAX)),)


def audit_statement(limit: int) -> Statement:
    return (
        "SELECT at, who, action, operation, tenant, key, before, after, why "
        "FROM samekey_audit ORDER BY id DESC LIMIT %s::int",
        (max(0, min(limit, LIST_MAX)),),
    )


def audit_of(row: Any) -> Audit:
    return Audit(*row)
