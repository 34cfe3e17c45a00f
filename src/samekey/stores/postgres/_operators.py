"""Operator queries and the sweep: pages of records, the audit log, deletes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from samekey.core.ports import LIST_MAX, Query
from samekey.stores.postgres._rows import ROW, Statement, attribute_text

SWEEP_MAX = 1000  # rows in one delete: milliseconds, so that no claim waits for a sweep

# The start of the statement. clock_timestamp() is volatile: a comparison with it uses no index.
_NOW = "date_part('epoch', statement_timestamp())"


def list_statement(query: Query) -> Statement:
    """One page of records. With an indexed filter, or none, it visits about as many rows as it returns.

    Indexed are the time of creation, the states started and in_doubt, the digest, and search terms. By any other filter
    the records of the span from `since` to `until` are read, until the page is full.
    """
    # Past retention is gone, swept or not; of what is held, only a dead hold of Repeatable has a retention.
    gone = f"r.retain_until <= {_NOW} AND (r.state <> 'started' OR r.lease_until <= {_NOW})"
    conditions, values = [f"({gone}) IS NOT TRUE"], list[Any]()
    for condition, value in _conditions(query):
        conditions.append(condition)
        values += [value] * condition.count("%s")
    if query.states:
        # As constants: the planner must see that they are those of the index samekey_unsettled.
        conditions.append("r.state IN (" + ", ".join(f"'{state.value}'" for state in query.states) + ")")
    if query.waiting:
        held = f"r.lease_until <= {_NOW} AND split_part(r.boundary, ' ', 1) <> 'repeatable'"
        conditions.append(f"r.state IN ('started', 'in_doubt') AND (r.state = 'in_doubt' OR {held})")
    # What a digest or a term finds is sorted; no index has this order, so the planner does not read by creation.
    order = "(r.created_at + 0.0)" if query.digest or query.term is not None else "r.created_at"
    than, direction = (">", "ASC") if query.oldest_first else ("<", "DESC")
    if query.before is not None:
        conditions.append(f"({order}, r.digest) {than} (%s::float8, %s::uuid)")
        values += [query.before[0], query.before[1].hex()]
    values.append(query.size)
    return (
        f"SELECT {ROW} FROM samekey_records AS r WHERE {' AND '.join(conditions)} "  # noqa: S608 - constants only
        f"ORDER BY {order} {direction}, r.digest {direction} LIMIT %s::int",
        tuple(values),
    )


def _conditions(query: Query) -> Iterator[tuple[str, Any]]:
    """Conditions with one value each."""
    term = None if query.term is None else query.term.hex()
    wanted = (
        ("r.operation = %s", query.operation),
        ("r.tenant = %s", query.tenant),
        ("r.key = %s", query.text),
        ("r.error = %s", query.error),
        ("r.created_at >= %s::float8", query.since),
        ("r.created_at < %s::float8", query.until),
        ("r.changed_at < %s::float8", query.changed_before),
        ("r.content = %s::bytea", query.content),
        ("(r.provider = %s::uuid OR r.request = %s::uuid OR r.terms @> ARRAY[%s::uuid])", term),
    )
    yield from ((condition, value) for condition, value in wanted if value is not None)
    if query.digest:
        yield "r.digest >= %s::uuid", query.digest[:16].ljust(16, b"\x00").hex()
        yield "r.digest <= %s::uuid", query.digest[:16].ljust(16, b"\xff").hex()
    for pair in query.attributes:
        yield "position(%s in r.attributes) > 0", attribute_text(*pair)


def sweep_statement(limit: int) -> Statement:
    return "SELECT samekey_sweep(%s::int)", (max(0, min(limit, SWEEP_MAX)),)


def audit_statement(limit: int) -> Statement:
    return (
        "SELECT at, who, action, operation, tenant, key, before, after, why "
        "FROM samekey_audit ORDER BY id DESC LIMIT %s::int",
        (max(0, min(limit, LIST_MAX)),),
    )
