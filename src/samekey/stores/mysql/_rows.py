"""MySQL's rows and statements: a record in each row, and each command one look and one compare-and-set.

`core.register` decides what a record becomes; the statements here only write it if the row is still the version that
was read. The same read returns the server's clock, so that no clock of ours matters. A replay is that read alone: it
locks nothing and writes nothing.

Values are written as numbers and hexadecimal (`X'6162'`): nothing has to be escaped, whatever the connection's
character set and SQL mode. Text is asked for as bytes for the same reason. So any connection that a caller brings can
carry a statement out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from samekey.core._json import fast_encoder
from samekey.core.commands import Begin, Read, Renew, StoreCommand
from samekey.core.errors import Misconfigured, RecordUnreadable, StoreUnavailable
from samekey.core.key import Key
from samekey.core.ports import LIST_MAX, Query
from samekey.core.record import DAMAGED, Audit, Move, Record, evidence_of, unreadable
from samekey.core.register import Moment, apply, audit_entry, audited, expired
from samekey.core.states import EXPIRES, STATES
from samekey.drivers.mysql.self_check import RECORD_COLUMNS

Row = Sequence[Any]
Run = Callable[[str], tuple[Sequence[Row], int]]  # a statement's rows, and how many it changed

CAS_MAX = 50  # lost races for one row before we call the store busy; in each one another process won
SWEEP_MAX = 1000  # rows in one delete: milliseconds, so that no claim waits for a sweep

CLOCK_SET_SECONDS = 900  # a session's clock that differs so much was set; time zones differ by 1800 or more


# UTC, and so the same in every time zone and on both sides of a summer's end; in microseconds.
CLOCK = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
# As it is when the row has been waited for, not when the statement began. Only on our own connections: theirs is UTC.
CLOCK_AFTER_WAITING = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))"

# fmt: off
_COLUMNS = ["`key`" if column == "key" else column for column in RECORD_COLUMNS]
_TEXTS = {
    "operation", "tenant", "`key`", "state", "attempt", "form", "boundary", "settled_by", "error", "asker", "story",
}
# fmt: on
_SHOWN = ", ".join(f"CAST(r.{column} AS BINARY)" if column in _TEXTS else f"r.{column}" for column in _COLUMNS)

# The row that is always there carries the clock, whether the record is there or not.
_LOOK = f"""
SELECT {CLOCK}, CAST(m.value AS SIGNED), {_SHOWN}
  FROM samekey_meta AS m LEFT JOIN samekey_records AS r ON r.digest IN (%s)
 WHERE m.name = 'last_token'
"""  # noqa: S608 - constants only

# The same on a caller's connection, where SET timestamp may have set every clock but SYSDATE. Corrected by what lies
# between that one and NOW, which are in one time zone; by more than a wait may take, the zone's own offset could be
# another one then, so there is no clock to be had (null).
_OFF_BY = "TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))"
CLOCK_OF_A_CALLER = f"IF(ABS({_OFF_BY}) < {CLOCK_SET_SECONDS} * 1000000, {CLOCK} + {_OFF_BY}, NULL)"

LOOK_INSIDE = _LOOK.replace(CLOCK, CLOCK_OF_A_CALLER, 1) + " LIMIT 1"

# Inside a caller's transaction: this reads past its snapshot and locks the row until the transaction ends.
# LIMIT, here and in other statements on a caller's connection, overrules the session's sql_select_limit.
LOOK_AND_HOLD = f"""
SELECT {CLOCK_OF_A_CALLER}, 0, {_SHOWN}
  FROM samekey_records AS r WHERE r.digest = %s
 LIMIT 1 FOR UPDATE
"""  # noqa: S608 - constants only

_NAMES = ", ".join(_COLUMNS)
# No INSERT IGNORE: it would also ignore what does not fit.
_UNLESS_THERE = "ON DUPLICATE KEY UPDATE digest = samekey_records.digest"

# The write is the check: the attempt that inserts holds the key.
_INSERT = f"""
INSERT INTO samekey_records ({_NAMES})
SELECT %s FROM DUAL
 WHERE NOT EXISTS (  -- tokens only grow, also over the gap that a deleted record leaves
         SELECT 1 FROM samekey_meta WHERE name = 'last_token' AND CAST(value AS SIGNED) >= %d
       )
{_UNLESS_THERE}
"""  # noqa: S608 - constants only

_INSERT_ALL = f"INSERT INTO samekey_records ({_NAMES}) VALUES %s {_UNLESS_THERE}"  # noqa: S608 - constants only

_STILL = """
 WHERE digest = %s
   AND version = %d  -- still the version that this was computed from
   AND token = %d    -- and it is not a later life of the key that reached the same version
   AND attempt = %s
"""

_LEASE_LIVES = f"   AND lease_until > {CLOCK_AFTER_WAITING} / 1e6\n"  # the wait for the row may have outlived it

_RAISE_FLOOR = "UPDATE samekey_meta SET value = %d WHERE name = 'last_token' AND CAST(value AS SIGNED) < %d"

FLOOR = "SELECT CAST(value AS SIGNED) FROM samekey_meta WHERE name = 'last_token'"

_AUDIT = """
INSERT INTO samekey_audit (at, who, action, operation, tenant, `key`, `before`, `after`, why) VALUES (%s)
"""

_AUDITS = """
SELECT at, CAST(who AS BINARY), CAST(action AS BINARY), CAST(operation AS BINARY), CAST(tenant AS BINARY),
       CAST(`key` AS BINARY), CAST(`before` AS BINARY), CAST(`after` AS BINARY), CAST(why AS BINARY)
  FROM samekey_audit ORDER BY id DESC LIMIT %d
"""

_SWEPT = f"""
SELECT digest, token FROM samekey_records
 WHERE retain_until <= {CLOCK} / 1e6
   AND state IN ('completed', 'closed', 'released')
 ORDER BY retain_until LIMIT %d
   FOR UPDATE SKIP LOCKED  -- rows that another transaction is writing are left for the next time
"""  # noqa: S608 - constants only

# Fails at once where another transaction holds the row, or has inserted it and not committed.
_PROBE = "SELECT digest FROM samekey_records WHERE digest = %s FOR UPDATE NOWAIT"

_VERSIONS = "SELECT digest, version, token FROM samekey_records WHERE digest IN (%s)"


# -- commands ------------------------------------------------------------------------------------------------


class Done(NamedTuple):
    """What a command did: the record before and after it (the same object: nothing changed), and when."""

    before: Record | None
    after: Record | None
    moment: Moment


def execute(run: Run, command: StoreCommand) -> Done:
    """Carry out one command, over a connection in autocommit."""
    for _ in range(CAS_MAX):
        before, moment = look(run, command.key)
        if isinstance(command, Read):
            shown = None if before is None or expired(before, moment) else before
            return Done(shown, shown, moment)
        after = apply(before, command, moment)
        if after is before or write(run, command, before, after, moment):
            return Done(before, after, moment)
    raise StoreUnavailable(f"{command.key} changes faster than it can be written")


def probe(run: Run, key: Key) -> None:
    """Raise the driver's error for a held row, without waiting for it."""
    run(_PROBE % literal(key.digest))


def look(run: Run, key: Key, statement: str = _LOOK) -> tuple[Record | None, Moment]:
    """The record of this key, if there is one, and the server's clock."""
    rows, _ = run(statement % literal(key.digest))
    return (None if rows[0][2] is None else record_of(rows[0], key)), moment_of(rows[0])


def look_at_all(run: Run, keys: Iterable[Key]) -> tuple[dict[bytes, Record], Moment]:
    known = {key.digest: key for key in keys}
    rows, _ = run(_LOOK % ", ".join(literal(digest) for digest in sorted(known)))
    found = {row[2]: record_of(row, known[row[2]]) for row in rows if row[2] is not None}
    return found, moment_of(rows[0])


def write(run: Run, command: StoreCommand, before: Record | None, after: Record | None, moment: Moment) -> bool:
    """Compare-and-set; whether the record was still `before`. With an audit entry it is a transaction of its own."""
    if before is not None and after is not None and not audited(command):
        return update(run, before, after, lives=isinstance(command, Begin | Renew))
    if before is None:
        return after is None or run(_INSERT % (_literals(_row(after)), after.token))[1] == 1
    run("BEGIN")
    wrote = update(run, before, after) if after is not None else delete(run, before)
    entry = audit_entry(command, before, after, moment)
    if wrote and entry is not None:
        run(_AUDIT % _literals(entry))
    run("COMMIT")
    return wrote


def insert_all(run: Run, records: Sequence[Record]) -> bool:
    """Many new records in one statement of the caller's transaction; whether all of them were new."""
    rows = ", ".join(f"({_literals(_row(record))})" for record in records)
    return run(_INSERT_ALL % rows)[1] == len(records)


def update(run: Run, before: Record, after: Record, *, lives: bool = False) -> bool:
    pairs = zip(_COLUMNS, _row(before), _row(after), strict=True)
    changes = ", ".join(f"{column} = {literal(new)}" for column, old, new in pairs if old != new)
    still = _STILL % _fence(before) + (_LEASE_LIVES if lives else "")
    return run(f"UPDATE samekey_records SET {changes}{still}")[1] == 1  # noqa: S608 - numbers and hexadecimal


def delete(run: Run, before: Record) -> bool:
    """Inside a transaction: delete the record, and keep its token as a floor that the next token must exceed."""
    if run(f"DELETE FROM samekey_records{_STILL % _fence(before)}")[1] != 1:  # noqa: S608 - numbers and hexadecimal
        return False
    run(_RAISE_FLOOR % (before.token, before.token))
    return True


def audit_statement(entry: Audit) -> str:
    return _AUDIT % _literals(entry)


def _fence(record: Record) -> tuple[str, int, int, str]:
    return literal(record.key.digest), record.version, record.token, literal(record.attempt)


# -- operators and the sweeper -------------------------------------------------------------------------------


def page(run: Run, query: Query) -> Any:
    """The rows of one page."""
    return run(_list_statement(query))[0]


def _list_statement(query: Query) -> str:
    index = "samekey_by_creation"  # newest first, and no further than the page is long
    conditions = [f"(r.retain_until IS NULL OR r.retain_until > {CLOCK} / 1e6)"]  # past retention is gone, swept or not
    if query.states:
        conditions.append(f"r.state IN ({_literals(state.value for state in query.states)})")
        if not EXPIRES & set(query.states):
            index = "samekey_by_retention"  # what has none is little, compared with all that is settled
            conditions = ["r.retain_until IS NULL", conditions[1]]
    for column, value in (("operation", query.operation), ("tenant", query.tenant), ("`key`", query.text)):
        if value is not None:
            # As bytes: even a binary collation takes "a" and "a " for equal.
            conditions.append(f"CAST(r.{column} AS BINARY) = {literal(value)}")
    if query.before is not None:
        at, digest = literal(query.before[0]), literal(query.before[1])
        conditions.append(f"r.created_at <= {at} AND (r.created_at < {at} OR r.digest < {digest})")
    return (
        f"SELECT {CLOCK}, 0, {_SHOWN} FROM samekey_records AS r FORCE INDEX ({index}) "  # noqa: S608
        f"WHERE {' AND '.join(conditions)} "
        f"ORDER BY r.created_at DESC, r.digest DESC LIMIT {max(0, min(query.limit, LIST_MAX))}"
    )


def sweep(run: Run, limit: int) -> int:
    """Delete in one transaction what is past retention: the rows are held first, so they are still what we saw."""
    run("BEGIN")
    rows, _ = run(_SWEPT % max(0, min(limit, SWEEP_MAX)))
    swept = 0
    if rows:
        digests = _literals(digest for digest, _ in rows)
        _, swept = run(f"DELETE FROM samekey_records WHERE digest IN ({digests})")  # noqa: S608 - hexadecimal
        highest = max(token for _, token in rows)
        run(_RAISE_FLOOR % (highest, highest))
    run("COMMIT")
    return swept


def audits(run: Run, limit: int) -> list[Audit]:
    rows, _ = run(_AUDITS % max(0, min(limit, LIST_MAX)))
    return [Audit._make((row[0], *map(_text, row[1:]))) for row in rows]


def versions(run: Run, digests: Sequence[bytes]) -> dict[bytes, Row]:
    rows, _ = run(_VERSIONS % _literals(digests))
    return {row[0]: row for row in rows}


# -- values --------------------------------------------------------------------------------------------------


def literal(value: Any) -> str:
    """The value as SQL: a number, or bytes in hexadecimal."""
    match value:
        case None:
            return "NULL"
        case bytes():
            return f"X'{value.hex()}'"
        case str():
            return f"X'{value.encode().hex()}'"
        case float():
            text = repr(value)
            return text if "e" in text else f"{text}e0"  # a DOUBLE from the start, not a DECIMAL on the way
        case int():
            return str(int(value))
        case _:
            raise Misconfigured(f"a record cannot hold a {type(value).__name__}")


def _literals(values: Iterable[Any]) -> str:
    return ", ".join(map(literal, values))


def moment_of(row: Row) -> Moment:
    """The server's clock, as this row brought it: one clock for leases, retention and people."""
    if row[0] is None:
        raise Misconfigured(
            "the clock of this session was set (SET timestamp), and leases and retention go by the server's: "
            "run SET timestamp = DEFAULT before the guard is called"
        )
    now = int(row[0])
    return Moment(now / 1e6, now / 1e6, "", max(now, int(row[1]) + 1))


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
        *record[2:6],  # token, attempt, fingerprint, form
        *record[7:13],  # boundary to lease_until
        int(record.unsure),
        *record[15:25],  # begun_at to ask_until
        story,
    )


_NOT_STORED = (0.0, 0.0, 0.0, False)  # now, lease_left, ask_left, after_loss: computed from the server's clock


def record_of(row: Row, key: Key | None) -> Record:
    """The row (after clock and floor) as a record, checked; a digest hit must be the very key asked for."""
    found: Key | None = None
    created_at = None
    try:
        (
            digest, operation, tenant, text, state, token, attempt, fingerprint, form, boundary, version, attempts,
            created_at, changed_at, lease_until, unsure, begun_at, first_sent_at, round, settled_by, settled_at,
            retain_until, result, error, asker, ask_until, story,
        ) = row[2:]  # fmt: skip
        found = Key(operation.decode(), _text(tenant), text.decode(), digest)
        if key is not None and found != key:
            raise RecordUnreadable(f"the record found for {key} belongs to {found}: two keys with one digest")
        fields, attributes, evidence, moves = json.loads(story)
        return Record._make(
            (
                found,
                STATES[state.decode()],
                int(token),
                attempt.decode(),
                fingerprint,
                form.decode(),
                tuple([(name, bytes.fromhex(short)) for name, short in fields]),
                boundary.decode(),
                int(version),
                int(attempts),
                float(created_at),
                float(changed_at),
                float(lease_until),
                "",
                bool(int(unsure)),  # a connection without converters returns '0'
                _time(begun_at),
                _time(first_sent_at),
                int(round),
                _text(settled_by),
                _time(settled_at),
                _time(retain_until),
                result,
                _text(error),
                _text(asker),
                float(ask_until),
                tuple([(name, value) for name, value in attributes]),
                tuple([evidence_of(*one) for one in evidence]),
                tuple([Move._make(move) for move in moves]),
                *_NOT_STORED,
            )
        )
    except DAMAGED as error:
        raise unreadable(found, created_at, error) from error


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _time(value: Any) -> float | None:
    return None if value is None else float(value)
