"""Operator queries and the sweep: pages of records, the audit log, deletes."""

from __future__ import annotations

from typing import Any

from samekey.core.ports import LIST_MAX, Query
from samekey.core.record import Audit
from samekey.core.states import EXPIRES
from samekey.stores.postgres._rows import ROW, Statement

SWEEP_MAX = 1000  # rows in one delete: milliseconds, so that no claim waits for a sweep

# The start of the statement. clock_timestamp() is volatile: a comparison with it uses no index.
_NOW = "date_part('epoch', statement_timestamp())"


def list_statement(query: Query) -> Statement:
    """One page of records, newest first. It visits about as many rows as it returns, however large the table is."""
    conditions, values = [f"(r.retain_until <= {_NOW}) IS NOT TRUE"], list[Any]()
    for column, value in (("operation", query.operation), ("tenant", query.tenant), ("key", query.text)):
        if value is not None:
            conditions.append(f"r.{column} = %s")
            values.append(value)
    order = "r.created_at"  # by the index samekey_created
    if query.states:
        conditions.append("r.state = ANY (%s::text[])")
        values.append([state.value for state in query.states])
        if not EXPIRES & set(query.states):
            # Records that are held or in doubt are few among many: found by the index samekey_retained, and sorted.
            conditions.append("r.retain_until IS NULL")
            order = "(r.created_at + 0.0)"  # no index has this order
    if query.before is not None:
        conditions.append(f"({order}, r.digest) < (%s::float8, %s::uuid)")
        values += [query.before[0], query.before[1].hex()]
    values.append(page_size(query))
    return (
        f"SELECT {ROW} FROM samekey_records AS r WHERE {' AND '.join(conditions)} "  # noqa: S608 - constants only
        f"ORDER BY {order} DESC, r.digest DESC LIMIT %s::int",
        tuple(values),
    )


def page_size(query: Query) -> int:
    return max(0, min(query.limit, LIST_MAX))


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
