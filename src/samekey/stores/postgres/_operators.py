"""Operator queries and the sweep: pages of records, the audit log, deletes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from samekey.core.ports import LIST_MAX, Due, Query
from samekey.core.states import State
from samekey.stores.postgres._rows import ROW, Statement, attribute_text

SWEEP_MAX = 1000  # rows in one delete: milliseconds, so that no claim waits for a sweep

# The start of the statement. clock_timestamp() is volatile: a comparison with it uses no index.
_NOW = "date_part('epoch', statement_timestamp())"
_STATE = 'r.state COLLATE "C"'  # as the index samekey_states has it


def list_statement(query: Query) -> Statement:
    """One page of records. With an indexed filter, or none, it visits about as many rows as it returns of each state.

    Indexed are the state with the time of creation, the digest, and search terms. By any other filter the records of
    the span from `since` to `until` are read, until the page is full.
    """
    # Past retention is gone, swept or not; of what is held, only a dead hold of Repeatable has a retention.
    gone = f"r.retain_until <= {_NOW} AND (r.state <> 'started' OR r.lease_until <= {_NOW})"
    conditions, values = [f"({gone}) IS NOT TRUE"], list[Any]()
    for condition, value in _conditions(query):
        conditions.append(condition)
        values += [value] * condition.count("%s")
    states = [state for state in State if not query.states or state in query.states]
    if query.waiting:
        held = f"r.lease_until <= {_NOW} AND split_part(r.boundary, ' ', 1) <> 'repeatable'"
        conditions.append(f"(r.state = 'in_doubt' OR {held})")
        states = [state for state in states if state in (State.STARTED, State.IN_DOUBT)]
    # What a digest or a term finds is sorted; no index has this order, so the planner does not read by creation.
    found = bool(query.digest) or query.term is not None
    order = "(r.created_at + 0.0)" if found else "r.created_at"
    than, direction = (">", "ASC") if query.oldest_first else ("<", "DESC")
    if query.before is not None:
        conditions.append(f"({order}, r.digest) {than} (%s::float8, %s::uuid)")
        values += [query.before[0], query.before[1].hex()]
    values.append(query.size)
    names = sorted([f"'{state.value}'" for state in states]) or ["''"]
    page = f"ORDER BY {order} {direction}, r.digest {direction} LIMIT %s::int"
    rows = f"FROM samekey_records AS r WHERE {' AND '.join(conditions)}"
    every = len(names) == len(State)
    if found:
        state = "" if every else f"AND r.state IN ({', '.join(names)})"
        return f"SELECT {ROW} {rows} {state} {page}", tuple(values)
    # The index has one order for each state: a page of each, merged. As constants, so that the planner knows how many
    # records a state has.
    wanted = [f"{_STATE} = {name}" for name in names]
    if every:
        # A state that this version does not know: between two names. As NOT IN it would read the whole table.
        between = (f"{_STATE} > {one} AND {_STATE} < {other}" for one, other in pairwise(names))
        wanted.append(" OR ".join((f"({_STATE} < {names[0]}", *between, f"{_STATE} > {names[-1]})")))
    pages = [f"(SELECT r.* {rows} AND {condition} {page})" for condition in wanted]
    merged = f"SELECT {ROW} FROM ({' UNION ALL '.join(pages)}) AS r {page}"  # noqa: S608 - constants only
    return merged, (*values * len(pages), query.size)


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
        ("(r.provider = %s::uuid OR r.terms @> ARRAY[%s::uuid])", term),
    )
    yield from ((condition, value) for condition, value in wanted if value is not None)
    if query.digest:
        yield "r.digest >= %s::uuid", query.digest[:16].ljust(16, b"\x00").hex()
        yield "r.digest <= %s::uuid", query.digest[:16].ljust(16, b"\xff").hex()
    for pair in query.attributes:
        yield "position(%s in r.attributes) > 0", attribute_text(*pair)


# As the index samekey_inquiries has them.
_LOOK_AT = "(r.inquiry ->> 'look_at')::float8"
_LATE = "r.inquiry IS NOT NULL AND coalesce(r.inquiry ->> 'late', '')"
_SHARD = "('x' || left(r.digest::text, 2))::bit(8)::int %% %s::int = %s::int"


def due_statement(due: Due) -> Statement:
    """What is due: doubts by the index of their next look, holds by that of the states."""
    of_operation = "" if due.operation is None else " AND r.operation = %s"
    picked: tuple[Any, ...] = (due.shard[1], due.shard[0], *(() if due.operation is None else (due.operation,)))
    if due.late:
        return (
            f"SELECT {ROW} FROM samekey_records AS r WHERE {_LATE} = 'due' "  # noqa: S608 - constants only
            f"AND {_SHARD}{of_operation} ORDER BY r.digest LIMIT %s::int",
            (*picked, due.size),
        )
    doubts = (
        f"SELECT {ROW}, coalesce({_LOOK_AT}, r.lease_until) AS due FROM samekey_records AS r "  # noqa: S608
        f"WHERE {_LATE} = '' AND r.state = 'in_doubt' AND {_SHARD}{of_operation} "
        f"AND ({_LOOK_AT} <= {_NOW} OR {_LOOK_AT} IS NULL AND r.lease_until + %s::float8 <= {_NOW}) "
        f"AND (r.asker IS NULL OR r.ask_until <= {_NOW}) ORDER BY {_LOOK_AT} NULLS FIRST LIMIT %s::int"
    )
    holds = (
        f"SELECT {ROW}, r.lease_until AS due FROM samekey_records AS r "  # noqa: S608 - constants only
        f"WHERE {_STATE} = 'started' AND {_SHARD}{of_operation} "
        f"AND r.lease_until + %s::float8 <= {_NOW} "
        "AND (r.payload IS NOT NULL OR split_part(r.boundary, ' ', 1) <> 'repeatable') LIMIT %s::int"
    )
    both = f"SELECT * FROM (({doubts}) UNION ALL ({holds})) AS found ORDER BY due LIMIT %s::int"  # noqa: S608
    return both, (*picked, due.quiet, due.size, *picked, due.quiet, due.size, due.size)


DOUBTFUL = (
    f"SELECT DISTINCT operation FROM samekey_records AS r WHERE {_STATE} IN ('started', 'in_doubt') ORDER BY operation",  # noqa: S608
    (),
)


def sweep_statement(limit: int) -> Statement:
    return "SELECT samekey_sweep(%s::int)", (max(0, min(limit, SWEEP_MAX)),)


def audit_statement(limit: int) -> Statement:
    return (
        "SELECT at, who, action, operation, tenant, key, before, after, why "
        "FROM samekey_audit ORDER BY id DESC LIMIT %s::int",
        (max(0, min(limit, LIST_MAX)),),
    )
