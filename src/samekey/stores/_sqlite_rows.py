"""SQLite's rows and statements: one compare-and-set per command, and a record in each row.

Named constants at the top, then the one function that carries a command out.
"""

from __future__ import annotations

import json
from typing import Any

from samekey.core._json import fast_encoder
from samekey.core.commands import Free, Read, Redact, Settle, StoreCommand
from samekey.core.errors import RecordUnreadable, StoreUnavailable
from samekey.core.key import Key
from samekey.core.ports import LIST_MAX, Query
from samekey.core.record import Evidence, Move, Record
from samekey.core.register import Moment, apply, expired
from samekey.core.states import Role, State

CAS_MAX = 50  # lost races for one row before we call the store busy; each one means somebody else won

_STATES = {state.value: state for state in State}

# fmt: off
_COLUMNS = [
    "digest", "operation", "tenant", "key", "state", "token", "attempt", "fingerprint", "form", "boundary", "version",
    "attempts", "created_at", "changed_at", "lease_until", "lease_clock", "unsure", "begun_at", "first_sent_at",
    "round", "settled_by", "settled_at", "retain_until", "result", "error", "asker", "ask_until", "story",
]
# fmt: on

SELECT = f"SELECT {', '.join(_COLUMNS)} FROM samekey_records WHERE digest = ?"  # noqa: S608 - constants only

INSERT = f"""
INSERT INTO samekey_records ({", ".join(_COLUMNS)})
VALUES ({", ".join("?" * len(_COLUMNS))})
ON CONFLICT (digest) DO NOTHING  -- the write is the check: whoever inserts holds the key
"""  # noqa: S608 - constants only

UPDATE = f"""
UPDATE samekey_records
   SET {", ".join(f"{column} = ?" for column in _COLUMNS[4:])}
 WHERE digest = ?
   AND version = ?  -- nobody wrote since the record this was computed from
   AND token = ?    -- and it is not a later life of the key that reached the same version
   AND attempt = ?
"""  # noqa: S608 - constants only

DELETE = """
DELETE FROM samekey_records
 WHERE digest = ? AND version = ? AND token = ? AND attempt = ?
"""

SWEEP = """
DELETE FROM samekey_records
 WHERE digest IN (SELECT digest FROM samekey_records WHERE retain_until <= :now LIMIT :limit)
   AND retain_until <= :now  -- said again by the delete itself: the key may have been made anew
   AND state IN ('completed', 'closed', 'released')
RETURNING token
"""

# Tokens only grow, also over the gap that a deleted record leaves.
RAISE_FLOOR = """
INSERT INTO samekey_meta (name, value) VALUES ('last_token', :token)
ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE CAST(value AS INTEGER) < CAST(excluded.value AS INTEGER)
"""

FLOOR = "SELECT CAST(value AS INTEGER) FROM samekey_meta WHERE name = 'last_token'"

AUDIT = """
INSERT INTO samekey_audit (at, who, action, operation, tenant, key, before, after, why)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
"""

AUDITS = """
SELECT at, who, action, operation, tenant, key, before, after, why
  FROM samekey_audit ORDER BY id DESC LIMIT ?
"""


def execute(connection: Any, command: StoreCommand, moment: Moment) -> tuple[Record | None, Record | None]:
    """Carry out one command by compare-and-set; the record before and after it (the same: nothing changed)."""
    if isinstance(command, Read):
        row = connection.execute(SELECT, (command.key.digest,)).fetchone()
        record = None if row is None else record_of(row, command.key)
        shown = None if record is None or expired(record, moment) else record
        return shown, shown
    before: Record | None = getattr(command, "seen", None)
    certain = False  # `before` was read from the file just now
    for _ in range(CAS_MAX):
        after = apply(before, command, moment)
        if after is before:
            if certain:
                return before, after
        elif _wrote(connection, before, after):
            return before, after
        row = connection.execute(SELECT, (command.key.digest,)).fetchone()
        before, certain = (None if row is None else record_of(row, command.key)), True
    raise StoreUnavailable(f"{command.key} changes faster than it can be written")


def _wrote(connection: Any, before: Record | None, after: Record | None) -> bool:
    if before is None:
        if after is None:
            return True
        return bool(connection.execute(INSERT, _row(after)).rowcount == 1)
    fence = (before.key.digest, before.version, before.token, before.attempt)
    if after is None:
        deleted = bool(connection.execute(DELETE, fence).rowcount == 1)
        if deleted:
            connection.execute(RAISE_FLOOR, {"token": before.token})
        return deleted
    return bool(connection.execute(UPDATE, (*_row(after)[4:], *fence)).rowcount == 1)


def list_statement(query: Query, now: float) -> tuple[str, dict[str, Any]]:
    conditions = ["(retain_until IS NULL OR retain_until > :now)"]  # past retention is gone, swept or not
    named: dict[str, Any] = {"limit": max(0, min(query.limit, LIST_MAX)), "now": now}
    for column in ("operation", "tenant"):
        if getattr(query, column) is not None:
            conditions.append(f"{column} = :{column}")
            named[column] = getattr(query, column)
    if query.text is not None:
        conditions.append("key = :key")
        named["key"] = query.text
    if query.states:
        names = [f"state{number}" for number in range(len(query.states))]
        conditions.append(f"state IN ({', '.join(':' + name for name in names)})")
        named.update(zip(names, (state.value for state in query.states), strict=True))
    if query.before is not None:
        conditions.append("(created_at, digest) < (:created_at, :digest)")
        named["created_at"], named["digest"] = query.before
    statement = (
        f"SELECT {', '.join(_COLUMNS)} FROM samekey_records WHERE {' AND '.join(conditions)} "  # noqa: S608
        "ORDER BY created_at DESC, digest DESC LIMIT :limit"
    )
    return statement, named


def audited(command: StoreCommand) -> bool:
    return isinstance(command, (Redact, Free)) or (isinstance(command, Settle) and command.role is Role.OPERATOR)


# -- rows ------------------------------------------------------------------------------------------------------

VERSION = "SELECT version, token FROM samekey_records WHERE digest = ?"

_dump = fast_encoder(json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False))


def _row(record: Record) -> tuple[Any, ...]:
    key = record.key
    story = _dump(
        (
            [(name, digest.hex()) for name, digest in record.fields],
            record.attributes,
            [(*one[:4], None if one.result is None else one.result.hex(), one.why) for one in record.evidence],
            record.moves,
        )
    )
    return (
        key.digest,
        key.operation,
        key.tenant,
        key.text,
        record.state.value,
        *record[2:6],
        *record[7:14],
        int(record.unsure),
        *record[15:25],
        story,
    )


_NOT_STORED = (0.0, 0.0, 0.0, False)  # now, lease_left, ask_left, after_loss: the store's clock says them


def _evidence(at: float, token: int, attempt: str, state: str, result: str | None, why: str) -> Evidence:
    return Evidence(at, token, attempt, _STATES[state], None if result is None else bytes.fromhex(result), why)


def record_of(row: tuple[Any, ...], key: Key | None) -> Record:
    """The row as a record, checked; `key` is the one asked for, and a digest hit must be that very key."""
    try:
        found = Key(row[1], row[2], row[3], row[0])
        if key is not None and found != key:
            raise RecordUnreadable(f"the record found for {key} belongs to {found}: two keys with one digest")
        fields, attributes, evidence, moves = json.loads(row[27])
        return Record._make(
            (
                found,
                _STATES[row[4]],
                *row[5:9],
                tuple([(name, bytes.fromhex(digest)) for name, digest in fields]),
                *row[9:16],
                bool(row[16]),
                *row[17:27],
                tuple([(name, value) for name, value in attributes]),
                tuple([_evidence(*one) for one in evidence]),
                tuple([Move._make(move) for move in moves]),
                *_NOT_STORED,
            )
        )
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RecordUnreadable(f"a record is damaged or was written by a newer version: {error!r}") from error
