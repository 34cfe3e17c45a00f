"""MySQL's rows and statements: a record in each row, and each command one look and one compare-and-set.

`core.register` decides what a record becomes; the statements here only write it if the row is still the version that
was read. The same read returns the server's clock, so that no clock of ours matters. A replay is that read alone: it
locks nothing and writes nothing.

Values are written as numbers and hexadecimal (`X'6162'`): nothing has to be escaped, whatever the connection's
character set and SQL mode. Text is asked for as bytes for the same reason. So any connection that a caller brings can
carry a statement out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from samekey.core.commands import Begin, Read, Renew, StoreCommand
from samekey.core.errors import Misconfigured, RecordUnreadable, StoreUnavailable
from samekey.core.inquiry import DUE, read_inquiry
from samekey.core.key import Key
from samekey.core.ports import LIST_MAX, Due, Query
from samekey.core.record import DAMAGED, Audit, Record, terms_of, unreadable
from samekey.core.register import Moment, apply, audit_entry, audited, expired
from samekey.core.search import claim_terms
from samekey.core.states import EXPIRES, STATES, State
from samekey.drivers.mysql.self_check import RECORD_COLUMNS
from samekey.stores._story import NOT_STORED, attribute_text, read_story, story_of

Row = Sequence[Any]
Run = Callable[[str], tuple[Sequence[Row], int]]  # a statement's rows, and how many it changed

CAS_MAX = 50  # lost races for one row before we call the store busy; in each one another process won
VERSIONS_MAX = 500  # rows in one look of the watcher
SWEEP_MAX = 1000  # rows in one delete: milliseconds, so that no claim waits for a sweep

CLOCK_SET_SECONDS = 900  # a session's clock that differs so much was set; time zones differ by 1800 or more


# UTC, and so the same in every time zone and on both sides of a summer's end; in microseconds.
CLOCK = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
# As it is when the row has been waited for, not when the statement began. Only on our own connections: theirs is UTC.
CLOCK_AFTER_WAITING = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6))"

# fmt: off
_CLAIMED = ("provider", "request")  # search terms of a claim: written with it, and never read
_COLUMNS = ["`key`" if column == "key" else column for column in RECORD_COLUMNS if column not in _CLAIMED]
_TEXTS = {
    "operation", "tenant", "`key`", "state", "attempt", "form", "boundary", "settled_by", "error", "asker", "story",
    "inquiry",
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

_NAMES = ", ".join((*_COLUMNS, *_CLAIMED))
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

AUDIT = """
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

_REPEATS = "(r.boundary = 'repeatable' OR r.boundary LIKE 'repeatable %%')"
_HOLD_ENDED = f"r.state = 'started' AND r.hold_until <= {CLOCK} / 1e6 AND r.lease_until <= {CLOCK} / 1e6"

# Dead holds of Repeatable. First without a lock: it reads all that is held.
_DEAD_HOLDS = f"""
SELECT r.digest FROM samekey_records AS r FORCE INDEX (samekey_by_retention)
 WHERE r.retain_until IS NULL AND {_HOLD_ENDED} AND {_REPEATS} LIMIT %d
"""  # noqa: S608 - constants only
_HELD_DEAD_HOLDS = f"""
SELECT r.digest, r.token FROM samekey_records AS r
 WHERE r.digest IN (%s) AND {_HOLD_ENDED} AND {_REPEATS} FOR UPDATE SKIP LOCKED
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
    """Compare-and-set; whether the record was still `before`.

    With an audit entry, or with other search terms, it is a transaction of its own.
    """
    if before is not None and after is not None and not audited(command) and _one_row(before, after):
        return update(run, before, after, lives=isinstance(command, Begin | Renew))
    if before is None:
        return after is None or run(_INSERT % (_claim(after), after.token))[1] == 1
    run("BEGIN")
    wrote = update(run, before, after) if after is not None else delete(run, before)
    entry = audit_entry(command, before, after, moment)
    if wrote and entry is not None:
        run(AUDIT % _literals(entry))
    run("COMMIT")
    return wrote


def insert_all(run: Run, records: Sequence[Record]) -> bool:
    """Many new records in one statement of the caller's transaction; whether all of them were new."""
    rows = ", ".join(f"({_claim(record)})" for record in records)
    return run(_INSERT_ALL % rows)[1] == len(records)


def update(run: Run, before: Record, after: Record, *, lives: bool = False) -> bool:
    """Inside a transaction, if the search terms differ."""
    pairs = list(zip(_COLUMNS, _row(before), _row(after), strict=True))
    if after.created_at != before.created_at:  # claimed anew
        own = claim_terms(after.key, after.boundary, after.attributes)
        pairs += [(column, ..., one) for column, one in zip(_CLAIMED, own, strict=True)]
    changes = ", ".join(f"{column} = {literal(new)}" for column, old, new in pairs if old != new)
    still = _STILL % _fence(before) + (_LEASE_LIVES if lives else "")
    if run(f"UPDATE samekey_records SET {changes}{still}")[1] != 1:  # noqa: S608 - numbers and hexadecimal
        return False
    digest = literal(after.key.digest)
    if _late(after) and not _late(before):
        run(f"INSERT IGNORE INTO samekey_late (digest) VALUES ({digest})")  # noqa: S608 - hexadecimal
    elif _late(before) and not _late(after):
        _forget_late(run, digest)
    if before.terms and not after.terms:
        _forget_terms(run, digest)
    more = [one for one in after.terms if one not in before.terms]
    if more:
        values = ", ".join(f"({digest}, {literal(one)})" for one in more)
        run(f"INSERT IGNORE INTO samekey_terms (digest, term) VALUES {values}")  # noqa: S608 - hexadecimal
    return True


def _one_row(before: Record, after: Record) -> bool:
    """Whether the change is in the table of records alone."""
    return before.terms == after.terms and _late(before) == _late(after)


def _late(record: Record) -> bool:
    return record.inquiry is not None and record.inquiry.late == DUE


def _forget_late(run: Run, digests: str) -> None:
    run(f"DELETE FROM samekey_late WHERE digest IN ({digests})")  # noqa: S608 - hexadecimal


def _forget_terms(run: Run, digests: str) -> None:
    run(f"DELETE FROM samekey_terms WHERE digest IN ({digests})")  # noqa: S608 - hexadecimal


def delete(run: Run, before: Record) -> bool:
    """Inside a transaction: delete the record, and keep its token as a floor that the next token must exceed."""
    if run(f"DELETE FROM samekey_records{_STILL % _fence(before)}")[1] != 1:  # noqa: S608 - numbers and hexadecimal
        return False
    _forget_terms(run, literal(before.key.digest))
    _forget_late(run, literal(before.key.digest))
    run(_RAISE_FLOOR % (before.token, before.token))
    return True


def _fence(record: Record) -> tuple[str, int, int, str]:
    return literal(record.key.digest), record.version, record.token, literal(record.attempt)


# -- operators and the sweeper -------------------------------------------------------------------------------


def list_statement(query: Query) -> str:
    """One page of records. With an indexed filter, or none, it reads about as many rows as it returns.

    By other filters the records of the span from `since` to `until` are read, until the page is full.
    """
    source, conditions = _source(query), list(_conditions(query))
    at, than, direction = "r.created_at", "<", "DESC"
    if query.oldest_first:
        than, direction = ">", "ASC"
    if query.before is not None:
        place, digest = literal(query.before[0]), literal(query.before[1])
        conditions.append(f"{at} {than}= {place} AND ({at} {than} {place} OR r.digest {than} {digest})")
    return (
        f"SELECT {CLOCK}, 0, {_SHOWN} FROM {source} WHERE {' AND '.join(conditions)} "  # noqa: S608 - as literals
        f"ORDER BY {at} {direction}, r.digest {direction} LIMIT {query.size}"
    )


def _source(query: Query) -> str:
    """The table, by the index that fits the query."""
    if query.term is not None:
        term = literal(query.term)
        return (
            f"(SELECT digest FROM samekey_terms WHERE term = {term}"  # noqa: S608 - hexadecimal
            f" UNION SELECT digest FROM samekey_records WHERE provider = {term}"
            f" UNION SELECT digest FROM samekey_records WHERE request = {term}"
            ") AS found JOIN samekey_records AS r ON r.digest = found.digest"
        )
    index = "samekey_by_creation"  # in this order, and no further than the page is long
    if query.digest:
        index = "PRIMARY"
    elif query.waiting or (query.states and not EXPIRES & set(query.states)):
        index = "samekey_by_retention"  # what has none is little, compared with all that is settled
    return f"samekey_records AS r FORCE INDEX ({index})"


def _conditions(query: Query) -> Iterator[str]:
    yield f"({_HOLD_ENDED}) IS NOT TRUE"  # past its time is gone, swept or not
    if query.waiting or (query.states and not EXPIRES & set(query.states)):
        yield "r.retain_until IS NULL"
    else:
        yield f"(r.retain_until IS NULL OR r.retain_until > {CLOCK} / 1e6)"
    if query.states:
        yield f"r.state IN ({_literals(state.value for state in query.states)})"
    if query.waiting:
        yield f"(r.state = 'in_doubt' OR r.state = 'started' AND r.lease_until <= {CLOCK} / 1e6 AND NOT {_REPEATS})"
    texts = (("operation", query.operation), ("tenant", query.tenant), ("`key`", query.text), ("error", query.error))
    # As bytes: even a binary collation takes "a" and "a " for equal.
    yield from (f"CAST(r.{column} AS BINARY) = {literal(value)}" for column, value in texts if value is not None)
    if query.digest:
        low, high = query.digest.ljust(16, b"\x00"), query.digest.ljust(16, b"\xff")
        yield f"r.digest BETWEEN {literal(low)} AND {literal(high)}"
    times = (("created_at >=", query.since), ("created_at <", query.until), ("changed_at <", query.changed_before))
    yield from (f"r.{compared} {literal(float(value))}" for compared, value in times if value is not None)
    if query.content is not None:
        yield f"r.content = {literal(query.content)}"
    yield from (f"LOCATE({literal(attribute_text(*pair))}, CAST(r.story AS BINARY)) > 0" for pair in query.attributes)


DOUBTFUL = """
SELECT DISTINCT CAST(operation AS BINARY) FROM samekey_records FORCE INDEX (samekey_by_retention)
 WHERE retain_until IS NULL AND state IN ('started', 'in_doubt')
"""


def due_statement(due: Due) -> str:
    """What is due. It reads what is held or in doubt, which has no retention yet, and nothing of what is settled."""
    now, conditions = f"{CLOCK} / 1e6", [f"CONV(HEX(LEFT(r.digest, 1)), 16, 10) % {due.shard[1]:d} = {due.shard[0]:d}"]
    if due.operation is not None:
        conditions.append(f"CAST(r.operation AS BINARY) = {literal(due.operation)}")
    if due.late:
        source, order = "samekey_late AS l JOIN samekey_records AS r ON r.digest = l.digest", "r.digest"
    else:
        source, quiet = "samekey_records AS r FORCE INDEX (samekey_by_retention)", literal(float(due.quiet))
        look_at = "CAST(JSON_VALUE(r.inquiry, '$.look_at') AS DOUBLE)"
        order = f"COALESCE(IF(r.state = 'started', NULL, {look_at}), r.lease_until + {quiet})"
        held = f"r.state = 'started' AND (r.payload IS NOT NULL OR NOT {_REPEATS.replace('%%', '%')})"
        doubted = f"r.state = 'in_doubt' AND NOT (r.asker IS NOT NULL AND r.ask_until > {now})"
        conditions.append(f"r.retain_until IS NULL AND {order} <= {now} AND ({held} OR {doubted})")
    return (
        f"SELECT {CLOCK}, 0, {_SHOWN} FROM {source} WHERE {' AND '.join(conditions)} "  # noqa: S608 - as literals
        f"ORDER BY {order} LIMIT {due.size}"
    )


def sweep(run: Run, limit: int) -> int:
    """Delete in one transaction what is past retention: the rows are held first, so they are still what we saw."""
    run("BEGIN")
    wanted, swept = max(0, min(limit, SWEEP_MAX)), 0
    rows = list(run(_SWEPT % wanted)[0])
    dead = run(_DEAD_HOLDS % (wanted - len(rows)))[0]
    if dead:
        rows += run(_HELD_DEAD_HOLDS % _literals(digest for (digest,) in dead))[0]
    if rows:
        digests = _literals(digest for digest, _ in rows)
        _, swept = run(f"DELETE FROM samekey_records WHERE digest IN ({digests})")  # noqa: S608 - hexadecimal
        _forget_terms(run, digests)
        _forget_late(run, digests)
        highest = max(token for _, token in rows)
        run(_RAISE_FLOOR % (highest, highest))
    run("COMMIT")
    return swept


def audits(run: Run, limit: int) -> list[Audit]:
    rows, _ = run(_AUDITS % max(0, min(limit, LIST_MAX)))
    return [Audit._make((row[0], *map(_text, row[1:]))) for row in rows]


def versions(run: Run, digests: Sequence[bytes]) -> dict[bytes, Row]:
    parts = (digests[start : start + VERSIONS_MAX] for start in range(0, len(digests), VERSIONS_MAX))
    return {row[0]: row for part in parts for row in run(_VERSIONS % _literals(part))[0]}


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


def _row(record: Record) -> tuple[Any, ...]:
    operation, tenant, text, digest = record.key
    held = record.state is State.STARTED
    return (
        *(digest, operation, tenant, text),
        record.state.value,
        *record[2:6],  # token, attempt, fingerprint, form
        *record[7:13],  # boundary to lease_until
        int(record.unsure),
        *record[15:20],  # begun_at to settled_at
        None if held else record.retain_until,
        *record[21:25],  # result to ask_until
        story_of(record, record.moves),
        *record[28:31],  # content, payload, notes
        b"".join(record.terms) or None,
        None if record.inquiry is None else record.inquiry.text(),
        # Not in retain_until: by its index what is held or in doubt is found, as what has none.
        record.retain_until if held else None,
    )


def _claim(record: Record) -> str:
    """All values of a new row."""
    return _literals((*_row(record), *claim_terms(record.key, record.boundary, record.attributes)))


def record_of(row: Row, key: Key | None) -> Record:
    """The row (after clock and floor) as a record, checked; a digest hit must be the very key asked for."""
    found: Key | None = None
    created_at = None
    try:
        (
            digest, operation, tenant, text, state, token, attempt, fingerprint, form, boundary, version, attempts,
            created_at, changed_at, lease_until, unsure, begun_at, first_sent_at, round, settled_by, settled_at,
            retain_until, result, error, asker, ask_until, story, content, payload, notes, terms, inquiry, hold_until,
        ) = row[2:]  # fmt: skip
        found = Key(operation.decode(), _text(tenant), text.decode(), digest)
        if key is not None and found != key:
            raise RecordUnreadable(f"the record found for {key} belongs to {found}: two keys with one digest")
        fields, attributes, evidence, moves = read_story(story)
        return Record._make(
            (
                found,
                STATES[state.decode()],
                int(token),
                attempt.decode(),
                fingerprint,
                form.decode(),
                fields,
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
                _time(retain_until if hold_until is None else hold_until),
                result,
                _text(error),
                _text(asker),
                float(ask_until),
                attributes,
                evidence,
                moves,
                content,
                payload,
                notes,
                terms_of(terms) if terms else (),
                None if inquiry is None else read_inquiry(inquiry),
                *NOT_STORED,
            )
        )
    except DAMAGED as error:
        raise unreadable(found, created_at, error) from error


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _time(value: Any) -> float | None:
    return None if value is None else float(value)
