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
from samekey.core.commands import Open, Read, StoreCommand
from samekey.core.errors import RecordUnreadable, StoreUnavailable
from samekey.core.key import Key
from samekey.core.ports import LIST_MAX, Query
from samekey.core.record import DAMAGED, Move, Record, evidence_of, unreadable
from samekey.core.register import Moment, apply, expired
from samekey.core.states import STATES, State
from samekey.drivers.sqlite import RECORD_COLUMNS

CAS_MAX = 50  # lost races for one row before we call the store busy; in each one another process won
UPDATES_MAX = 64  # ways in which a record changes: one or two for each command

_STARTED = str(State.STARTED)

_at = Record._fields.index
_version_and_fence = itemgetter(*map(_at, ("version", "token", "attempt")))
_of_claim = itemgetter(
    *map(_at, ("token", "attempt", "fingerprint", "form", "boundary", "created_at", "lease_until", "lease_clock"))
)
_KEY, _STATE, _FIELDS, _RESULT = map(_at, ("key", "state", "fields", "result"))
_ATTRIBUTES, _EVIDENCE, _MOVES = map(_at, ("attributes", "evidence", "moves"))

# The plus makes each column an expression of the same value, at no cost. So a caller's connection does not convert it
# by its declared type (detect_types), which is meant for the caller's own tables.
_VALUES = ", ".join(f"+{column}" for column in RECORD_COLUMNS)
SELECT = f"SELECT {_VALUES} FROM samekey_records WHERE digest = ?"  # noqa: S608 - constants only


def _insert(*options: str) -> str:
    """The INSERT of a claim; columns that every claim fills alike are constants in it."""
    columns = ["digest", "operation", "key", "token", "attempt", "fingerprint", "form", "boundary", "created_at"]
    columns += ["changed_at", "lease_until", "lease_clock", "story", *options]
    return f"""
INSERT INTO samekey_records
       ({", ".join(columns)}, state, version, attempts, unsure, round, ask_until)
VALUES ({", ".join("?" * len(columns))}, 'started', 1, 1, 0, 0, 0.0)
ON CONFLICT (digest) DO NOTHING  -- the write is the check: the attempt that inserts holds the key
"""  # noqa: S608 - constants only


INSERT = _insert()
INSERT_WITH_OPTIONS = _insert("tenant", "first_sent_at")


@lru_cache(maxsize=UPDATES_MAX)
def _update(changed: tuple[bool, ...], tells: bool) -> tuple[str, Callable[[list[Any]], tuple[Any, ...]], str]:
    """The UPDATE of a record in which these fields changed, what picks its values from the list of all, and the news.

    The news is what of its story changed: nothing, a move, or more.
    """
    at = [number for number in range(_ATTRIBUTES) if changed[number] and number not in (_KEY, _FIELDS)]
    columns = [Record._fields[number] for number in at]
    if tells:
        at.append(_MOVES)  # where the story lies in that list
        columns.append("story")
    statement = f"""
UPDATE samekey_records
   SET {", ".join(f"{column} = ?" for column in columns)}
 WHERE digest = ?
   AND version = ?  -- still the version that this was computed from
   AND token = ?    -- and it is not a later life of the key that reached the same version
   AND attempt = ?
"""  # noqa: S608 - constants only
    more = changed[_FIELDS] or changed[_ATTRIBUTES] or changed[_EVIDENCE]
    news = "more" if more else "move" if changed[_MOVES] else ""
    return statement, itemgetter(*at), news  # at least version and changed_at: a tuple


DELETE = """
DELETE FROM samekey_records
 WHERE digest = ? AND version = ? AND token = ? AND attempt = ?
"""

PAST_RETENTION = """
SELECT digest FROM samekey_records
 WHERE retain_until <= :now
   AND state IN ('completed', 'closed', 'released')
 LIMIT :limit
"""

SWEEP = """
DELETE FROM samekey_records
 WHERE digest = ?
   AND retain_until <= ?  -- checked by the delete itself: the key may have been claimed anew since
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


def execute(cursor: Any, command: StoreCommand, moment: Moment) -> tuple[Record | None, Record | None]:
    """Carry out one command by compare-and-set; the record before and after it (the same object if nothing changed)."""
    if type(command) is Open:
        claim = apply(None, command, moment)
        if claim is not None and _claimed(cursor, claim):
            return None, claim
        before, certain = _found(cursor, command.key), True
    elif type(command) is Read:
        record = _found(cursor, command.key)
        shown = None if record is None or expired(record, moment) else record
        return shown, shown
    else:
        before, certain = getattr(command, "seen", None), False  # whether it was read from the file just now
    for _ in range(CAS_MAX):
        after = apply(before, command, moment)
        if after is before:
            if certain:
                return before, after
        elif _wrote(cursor, before, after):
            return before, after
        before, certain = _found(cursor, command.key), True
    raise StoreUnavailable(f"{command.key} changes faster than it can be written")


def _found(cursor: Any, key: Key) -> Record | None:
    row = cursor.execute(SELECT, (key.digest,)).fetchone()
    return None if row is None else record_of(row, key)


def _wrote(cursor: Any, before: Record | None, after: Record | None) -> bool:
    if before is None:
        return after is None or _claimed(cursor, after)
    fence = (bytearray(before.key.digest), *_version_and_fence(before))
    if after is None:
        deleted = bool(cursor.execute(DELETE, fence).rowcount == 1)
        if deleted:
            cursor.execute(RAISE_FLOOR, {"token": before.token})
        return deleted
    changed = tuple(map(is_not, before, after))
    statement, chosen, news = _update(changed, False)
    values: list[Any] = list(after)
    values[_STATE] = str(after.state)
    if after.result is not None:
        values[_RESULT] = bytearray(after.result)
    if news:
        plain = _plain(after)
        if news == "more" or not plain or before.state is not State.STARTED:
            statement, chosen, _ = _update(changed, True)
            values[_MOVES] = _story(after, () if plain else after.moves)
    return bool(cursor.execute(statement, chosen(values) + fence).rowcount == 1)


def _claimed(cursor: Any, claim: Record) -> bool:
    # Bytes are bound as bytearray, and None not at all where it can be avoided: for both, sqlite3 looks for an adapter
    # first, which takes five times as long as binding a number.
    operation, tenant, text, digest = claim.key
    token, attempt, fingerprint, form, boundary, created_at, lease_until, lease_clock = _of_claim(claim)
    values = (
        bytearray(digest),
        operation,
        text,
        token,
        attempt,
        bytearray(fingerprint),
        form,
        boundary,
        created_at,
        created_at,  # changed when created
        lease_until,
        lease_clock,
        _story(claim, ()),  # the columns hold its one move
    )
    if tenant is None and claim.first_sent_at is None:
        return bool(cursor.execute(INSERT, values).rowcount == 1)
    return bool(cursor.execute(INSERT_WITH_OPTIONS, (*values, tenant, claim.first_sent_at)).rowcount == 1)


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
        f"SELECT {', '.join(RECORD_COLUMNS)} FROM samekey_records WHERE {' AND '.join(conditions)} "  # noqa: S608
        "ORDER BY created_at DESC, digest DESC LIMIT :limit"
    )
    return statement, named


# -- rows ------------------------------------------------------------------------------------------------------

VERSION = "SELECT version, token FROM samekey_records WHERE digest = ?"

_dump = fast_encoder(json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False))


def _story(record: Record, moves: tuple[Move, ...]) -> str:
    """What the columns do not hold, as JSON."""
    fields = ",".join([f'{_name_text(name)}{digest.hex()}"]' for name, digest in record.fields])
    if not (moves or record.attributes or record.evidence):
        return f"[[{fields}],[],[],[]]"
    evidence = [(*one[:4], None if one.result is None else one.result.hex(), one.why) for one in record.evidence]
    return f"[[{fields}],{_dump(record.attributes)},{_dump(evidence)},{_dump(moves)}]"


@lru_cache(maxsize=1024)
def _name_text(name: str) -> str:
    """A field up to its digest. Remembered: an operation's are the same every time."""
    return f'[{_dump(name)},"'


def _plain(record: Record) -> bool:
    """Whether the columns hold all its moves: claimed, or claimed and settled by its holder without a reason."""
    moves = record.moves
    last = moves[-1]
    return len(moves) == 1 or (len(moves) == 2 and last.who == record.settled_by and not last.why)


def _plain_moves(
    created_at: float, token: int, attempt: str, state: str, settled_at: float | None, settled_by: str | None
) -> tuple[Any, ...]:
    claimed = (created_at, token, "", _STARTED, attempt, "")
    if state == _STARTED:
        return (claimed,)
    return (claimed, (settled_at, token, _STARTED, state, settled_by, ""))


_NOT_STORED = (0.0, 0.0, 0.0, False)  # now, lease_left, ask_left, after_loss: computed from the store's clock


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
                STATES[row[4]],
                *row[5:9],
                tuple([(name, bytes.fromhex(digest)) for name, digest in fields]),
                *row[9:16],
                bool(row[16]),
                *row[17:27],
                tuple([(name, value) for name, value in attributes]),
                tuple([evidence_of(*one) for one in evidence]),
                tuple([Move._make(move) for move in moves]),
                *_NOT_STORED,
            )
        )
    except DAMAGED as error:
        raise unreadable(Key(row[1], row[2], row[3], row[0]), row[12], error) from error
