"""SQLite's rows and statements: one compare-and-set per command, and a record in each row.

Named constants at the top, then the one function that carries a command out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from operator import is_not, itemgetter
from typing import Any

from samekey.core.commands import Open, Read, StoreCommand
from samekey.core.errors import RecordUnreadable, StoreUnavailable
from samekey.core.inquiry import read_inquiry
from samekey.core.key import Key
from samekey.core.ports import Due, Query
from samekey.core.record import DAMAGED, Move, Record, terms_of, unreadable
from samekey.core.register import Moment, apply, expired
from samekey.core.search import claim_terms
from samekey.core.states import STATES, State
from samekey.drivers.schema import RECORD_COLUMNS
from samekey.stores._story import NOT_STORED, attribute_text, read_story, story_of

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
_CONTENT, _PAYLOAD, _NOTES, _TERMS = map(_at, ("content", "payload", "notes", "terms"))
_INQUIRY = _at("inquiry")
_IN_COLUMNS = [number for number in range(_ATTRIBUTES) if number not in (_KEY, _FIELDS)]
_IN_COLUMNS += [_CONTENT, _PAYLOAD, _NOTES, _TERMS, _INQUIRY]

# The plus makes each column an expression of the same value, at no cost. So a caller's connection does not convert it
# by its declared type (detect_types), which is meant for the caller's own tables.
_VALUES = ", ".join(f"+{column}" for column in RECORD_COLUMNS)
SELECT = f"SELECT {_VALUES} FROM samekey_records WHERE digest = ?"  # noqa: S608 - constants only


def _insert(*options: str) -> str:
    """The INSERT of a claim; columns that every claim fills alike are constants in it."""
    columns = ["digest", "operation", "key", "token", "attempt", "fingerprint", "form", "boundary", "created_at"]
    columns += ["changed_at", "lease_until", "lease_clock", "story", "content", *options]
    return f"""
INSERT INTO samekey_records
       ({", ".join(columns)}, state, version, attempts, unsure, round, ask_until)
VALUES ({", ".join("?" * len(columns))}, 'started', 1, 1, 0, 0, 0.0)
ON CONFLICT (digest) DO NOTHING  -- the write is the check: the attempt that inserts holds the key
"""  # noqa: S608 - constants only


INSERT = _insert()
INSERT_WITH_OPTIONS = _insert("tenant", "first_sent_at", "retain_until", "payload")


@lru_cache(maxsize=UPDATES_MAX)
def _update(changed: tuple[bool, ...], tells: bool) -> tuple[str, Callable[[list[Any]], tuple[Any, ...]], str]:
    """The UPDATE of a record in which these fields changed, what picks its values from the list of all, and the news.

    The news is what of its story changed: nothing, a move, or more.
    """
    at = [number for number in _IN_COLUMNS if changed[number]]
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

# As `register.expired`: of what is held, only a dead hold of Repeatable ends.
_DEAD = "state = 'started' AND (lease_clock <> :clock OR lease_until <= :tick)"
_REPEATS = "(boundary = 'repeatable' OR boundary LIKE 'repeatable %')"
_EXPIRED = f"""
retain_until <= :now
   AND (state IN ('completed', 'closed', 'released') OR ({_DEAD} AND {_REPEATS}))
"""

PAST_RETENTION = f"SELECT digest FROM samekey_records WHERE {_EXPIRED} LIMIT :limit"  # noqa: S608 - constants only

# Checked by the delete itself, too: the key may have been claimed anew since.
SWEEP = f"DELETE FROM samekey_records WHERE digest = :digest AND {_EXPIRED} RETURNING token"  # noqa: S608 - the same

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
    for number in (_RESULT, _CONTENT, _PAYLOAD, _NOTES):
        if changed[number] and values[number] is not None:
            values[number] = bytearray(values[number])
    if changed[_INQUIRY] and after.inquiry is not None:
        values[_INQUIRY] = after.inquiry.text()
    if changed[_TERMS]:
        values[_TERMS] = b"".join(after.terms) or None
    if news:
        plain = _plain(after)
        if news == "more" or not plain or before.state is not State.STARTED:
            statement, chosen, _ = _update(changed, True)
            values[_MOVES] = story_of(after, () if plain else after.moves)
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
        story_of(claim, ()),  # the columns hold its one move
        None if claim.content is None else bytearray(claim.content),
    )
    options = (tenant, claim.first_sent_at, claim.retain_until, claim.payload)
    if options == _NO_OPTIONS:
        return bool(cursor.execute(INSERT, values).rowcount == 1)
    return bool(cursor.execute(INSERT_WITH_OPTIONS, (*values, *options)).rowcount == 1)


_NO_OPTIONS = (None, None, None, None)


# -- lists -----------------------------------------------------------------------------------------------------


def clock_of(moment: Moment) -> dict[str, Any]:
    return {"now": moment.wall, "tick": moment.tick, "clock": moment.clock}


def list_statement(query: Query, moment: Moment) -> tuple[str, dict[str, Any]]:
    """One page of records: every one is looked at, and no more than a page is kept meanwhile."""
    conditions, values = [f"({_EXPIRED}) IS NOT TRUE"], {**clock_of(moment), "limit": query.size}
    for number, (condition, value) in enumerate(_conditions(query)):
        name = f"v{number}"
        conditions.append(condition.replace("?", f":{name}"))
        values[name] = value
    if query.states:
        conditions.append("state IN (" + ", ".join(f"'{state.value}'" for state in query.states) + ")")
    if query.waiting:
        conditions.append(f"(state = 'in_doubt' OR ({_DEAD} AND NOT {_REPEATS}))")
    if query.before is not None:
        than = ">" if query.oldest_first else "<"
        conditions.append(f"(created_at, digest) {than} (:created_at, :digest)")
        values["created_at"], values["digest"] = query.before
    order = "ASC" if query.oldest_first else "DESC"
    statement = (
        f"SELECT {', '.join(RECORD_COLUMNS)} FROM samekey_records WHERE {' AND '.join(conditions)} "  # noqa: S608
        f"ORDER BY created_at {order}, digest {order} LIMIT :limit"
    )
    return statement, values


_HALF = "(instr('0123456789ABCDEF', substr(hex(substr(digest, 1, 1)), {}, 1)) - 1)"
_FIRST_BYTE = f"({_HALF.format(1)} * 16 + {_HALF.format(2)})"
_LOOK_AT = "json_extract(inquiry, '$.look_at')"
_LEASE_LEFT = "(CASE WHEN lease_clock <> :clock THEN 0.0 ELSE lease_until - :tick END)"
# How long until it is due: seconds of the lease clock, or of the wall clock.
_DUE_IN = f"(CASE WHEN {_LOOK_AT} IS NULL THEN {_LEASE_LEFT} + :quiet ELSE {_LOOK_AT} - :now END)"


def due_statement(due: Due, moment: Moment) -> tuple[str, dict[str, Any]]:
    """What is due: every record is looked at, as for a list."""
    values = {**clock_of(moment), "limit": due.size, "quiet": due.quiet, "of": due.shard[1], "shard": due.shard[0]}
    conditions, order = [f"{_FIRST_BYTE} % :of = :shard"], "digest"
    if due.operation is not None:
        conditions.append("operation = :operation")
        values["operation"] = due.operation
    if due.late:
        conditions.append("inquiry IS NOT NULL AND json_extract(inquiry, '$.late') = 'due'")
    else:
        asked = "asker IS NOT NULL AND lease_clock = :clock AND ask_until > :tick"
        held = f"state = 'started' AND {_LEASE_LEFT} + :quiet <= 0 AND (payload IS NOT NULL OR NOT {_REPEATS})"
        conditions.append(f"(state = 'in_doubt' AND NOT ({asked}) AND {_DUE_IN} <= 0 OR {held})")
        order = f"CASE WHEN state = 'started' THEN {_LEASE_LEFT} ELSE {_DUE_IN} END"
    columns = ", ".join(RECORD_COLUMNS)
    where = " AND ".join(conditions)
    return f"SELECT {columns} FROM samekey_records WHERE {where} ORDER BY {order} LIMIT :limit", values  # noqa: S608


DOUBTFUL = "SELECT DISTINCT operation FROM samekey_records WHERE state IN ('started', 'in_doubt') ORDER BY operation"


def _conditions(query: Query) -> Iterator[tuple[str, Any]]:
    """Conditions with one value each."""
    wanted = (
        ("operation = ?", query.operation),
        ("tenant = ?", query.tenant),
        ("key = ?", query.text),
        ("error = ?", query.error),
        ("created_at >= ?", query.since),
        ("created_at < ?", query.until),
        ("changed_at < ?", query.changed_before),
        ("content = ?", query.content),
        ("instr(terms, ?) > 0" if query.noted else "samekey_found_by(?, digest, boundary, story, terms)", query.term),
    )
    yield from ((condition, value) for condition, value in wanted if value is not None)
    if query.digest:
        yield "digest >= ?", query.digest  # by the primary key
        yield "digest <= ?", query.digest.ljust(16, b"\xff")
    for pair in query.attributes:
        yield "instr(story, ?) > 0", attribute_text(*pair)


def found_by(term: bytes, digest: bytes, boundary: str, story: str, terms: bytes | None) -> bool:
    """The SQL function samekey_found_by: there is no index of terms, and most of them follow from other columns."""
    try:
        attributes = read_story(story)[1]
        own = claim_terms(Key("", None, "", digest), boundary, attributes)
        return term in (*own, *terms_of(terms or b""))
    except DAMAGED:
        return True  # the list shows it as unreadable


# -- rows ------------------------------------------------------------------------------------------------------

VERSION = "SELECT version, token FROM samekey_records WHERE digest = ?"


def _plain(record: Record) -> bool:
    """Whether the columns hold all its moves: claimed, or claimed and settled by its holder without a reason."""
    moves = record.moves
    last = moves[-1]
    return len(moves) == 1 or (len(moves) == 2 and last.who == record.settled_by and not last.why)


def _plain_moves(
    created_at: float, token: int, attempt: str, state: str, settled_at: Any, settled_by: Any
) -> tuple[Move, ...]:
    claimed = Move(created_at, token, "", _STARTED, attempt, "")
    if state == _STARTED:
        return (claimed,)
    return (claimed, Move(settled_at, token, _STARTED, state, settled_by, ""))


def record_of(row: tuple[Any, ...], key: Key | None) -> Record:
    """The row as a record, checked; `key` is the one asked for, and a digest hit must be that very key."""
    try:
        found = Key(row[1], row[2], row[3], row[0])
        if key is not None and found != key:
            raise RecordUnreadable(f"the record found for {key} belongs to {found}: two keys with one digest")
        fields, attributes, evidence, moves = read_story(row[27])
        if len(moves) < 2:  # a plain story, or its beginning
            moves = _plain_moves(row[12], row[5], row[6], row[4], row[21], row[20])
        return Record._make(
            (
                found,
                STATES[row[4]],
                *row[5:9],
                fields,
                *row[9:16],
                bool(row[16]),
                *row[17:27],
                attributes,
                evidence,
                moves,
                *row[28:31],
                terms_of(row[31]) if row[31] else (),
                None if row[32] is None else read_inquiry(row[32]),
                *NOT_STORED,
            )
        )
    except DAMAGED as error:
        raise unreadable(Key(row[1], row[2], row[3], row[0]), row[12], error) from error
