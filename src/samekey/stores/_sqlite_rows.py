"""SQLite's rows and statements: one compare-and-set per command, and a record in each row.

Named constants at the top, then the one function that carries a command out.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from operator import is_not, itemgetter
from typing import Any

from samekey.core._json import fast_encoder
from samekey.core.commands import Free, Read, Redact, Settle, StoreCommand
from samekey.core.errors import RecordUnreadable, StoreUnavailable
from samekey.core.key import Key
from samekey.core.ports import LIST_MAX, Query
from samekey.core.record import DAMAGED, Evidence, Move, Record
from samekey.core.register import Moment, apply, expired
from samekey.core.states import Role, State

CAS_MAX = 50  # lost races for one row before we call the store busy; each one means somebody else won
UPDATES_MAX = 64  # ways in which a record changes: one or two for each command

_STATES = {state.value: state for state in State}
_STARTED = str(State.STARTED)

# fmt: off
_COLUMNS = [
    "digest", "operation", "tenant", "key", "state", "token", "attempt", "fingerprint", "form", "boundary", "version",
    "attempts", "created_at", "changed_at", "lease_until", "lease_clock", "unsure", "begun_at", "first_sent_at",
    "round", "settled_by", "settled_at", "retain_until", "result", "error", "asker", "ask_until", "story",
]
# fmt: on
_at = Record._fields.index
_KEY, _STATE, _FIELDS, _UNSURE, _RESULT = map(_at, ("key", "state", "fields", "unsure", "result"))
_ATTRIBUTES, _EVIDENCE, _MOVES = map(_at, ("attributes", "evidence", "moves"))
_of_story = itemgetter(_FIELDS, _ATTRIBUTES, _EVIDENCE, _MOVES)
_MOVES_ONLY = (False, False, False, True)

SELECT = f"SELECT {', '.join(_COLUMNS)} FROM samekey_records WHERE digest = ?"  # noqa: S608 - constants only


def _insert(*options: str) -> str:
    """A claim. What it never fills in is left out, or stands here as the constant it is."""
    columns = [*_COLUMNS[:2], *_COLUMNS[3:16], *options]
    return f"""
INSERT INTO samekey_records ({", ".join(columns)}, unsure, round, ask_until, story)
VALUES ({", ".join("?" * len(columns))}, 0, 0, 0.0, ?)
ON CONFLICT (digest) DO NOTHING  -- the write is the check: whoever inserts holds the key
"""  # noqa: S608 - constants only


INSERT = _insert()
INSERT_WITH_OPTIONS = _insert("tenant", "first_sent_at")


@lru_cache(maxsize=UPDATES_MAX)
def _update(changed: tuple[bool, ...], tells: bool) -> tuple[str, Callable[[list[Any]], tuple[Any, ...]]]:
    """The UPDATE of a record in which these fields changed, and what picks its values from the list of all."""
    at = [number for number in range(_ATTRIBUTES) if changed[number] and number not in (_KEY, _FIELDS)]
    columns = [Record._fields[number] for number in at]
    if tells:
        at.append(_MOVES)  # where the story lies in that list
        columns.append("story")
    statement = f"""
UPDATE samekey_records
   SET {", ".join(f"{column} = ?" for column in columns)}
 WHERE digest = ?
   AND version = ?  -- nobody wrote since the record this was computed from
   AND token = ?    -- and it is not a later life of the key that reached the same version
   AND attempt = ?
"""  # noqa: S608 - constants only
    return statement, itemgetter(*at)  # at least version and changed_at: a tuple


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
    if type(command) is Read:
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
    # Bytes are bound as bytearray, and None not at all where it can be avoided: for both, sqlite3 looks for an adapter
    # first, which takes five times as long as binding a number.
    if before is None:
        return after is None or _claimed(connection, after)
    fence = (bytearray(before.key.digest), before.version, before.token, before.attempt)
    if after is None:
        deleted = bool(connection.execute(DELETE, fence).rowcount == 1)
        if deleted:
            connection.execute(RAISE_FLOOR, {"token": before.token})
        return deleted
    changed = tuple(map(is_not, before, after))
    story = _of_story(changed)
    tells = any(story) and not (story == _MOVES_ONLY and before.state is State.STARTED and _plain(after))
    values: list[Any] = list(after)
    values[_STATE] = str(after.state)
    if after.result is not None:
        values[_RESULT] = bytearray(after.result)
    if tells:
        values[_MOVES] = _story(after)
    statement, chosen = _update(changed, tells)
    return bool(connection.execute(statement, chosen(values) + fence).rowcount == 1)


def _claimed(connection: Any, claim: Record) -> bool:
    operation, tenant, text, digest = claim.key
    values = (
        bytearray(digest),
        operation,
        text,
        str(claim.state),
        claim.token,
        claim.attempt,
        bytearray(claim.fingerprint),
        claim.form,
        *claim[_FIELDS + 1 : _UNSURE],
    )
    if tenant is None and claim.first_sent_at is None:
        return bool(connection.execute(INSERT, (*values, _story(claim))).rowcount == 1)
    options = (tenant, claim.first_sent_at, _story(claim))
    return bool(connection.execute(INSERT_WITH_OPTIONS, values + options).rowcount == 1)


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


def _story(record: Record) -> str:
    """What the columns do not say, as JSON."""
    return _dump(
        (
            [(name, digest.hex()) for name, digest in record.fields],
            record.attributes,
            [(*one[:4], None if one.result is None else one.result.hex(), one.why) for one in record.evidence],
            () if _plain(record) else record.moves,
        )
    )


def _plain(record: Record) -> bool:
    """Whether its moves are only what the columns say: claimed, or claimed and settled by its holder without a word."""
    return record.moves == _plain_moves(
        record.created_at, record.token, record.attempt, str(record.state), record.settled_at, record.settled_by
    )


def _plain_moves(
    created_at: float, token: int, attempt: str, state: str, settled_at: float | None, settled_by: str | None
) -> tuple[Any, ...]:
    claimed = (created_at, token, "", _STARTED, attempt, "")
    if state == _STARTED:
        return (claimed,)
    return (claimed, (settled_at, token, _STARTED, state, settled_by, ""))


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
        if len(moves) < 2:  # a plain story, or its beginning
            moves = _plain_moves(row[12], row[5], row[6], row[4], row[21], row[20])
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
    except DAMAGED as error:
        raise RecordUnreadable(f"a record is damaged or was written by a newer version: {error!r}") from error
