"""The buffer in tables of the database: the embedded default, and strict mode on PostgreSQL.

Steps as in rows.py. There is no copy of the generations here: `Look` knows nothing, and the pipeline reads the
database. `buffer.py` has the same commands as scripts for Redis; tests/intake/test_scenarios.py runs on both.
"""

from __future__ import annotations

import json
from typing import Any

from samekey.intake import commands as c
from samekey.intake.buffer_commands import AckMany, Fill, Load
from samekey.intake.gate import Gate, Rule, decide
from samekey.intake.rows import Sql, SqlSteps
from samekey.intake.runs import Run

NOW = "/*now*/"  # microseconds of the database's clock
_ENTRY = "SELECT blob, log, accepted, fence FROM samekey_intake_buffer WHERE environment = ? AND id = ?"
_GATE = "SELECT arrival, held_until, accepted, depth, /*now*/ FROM samekey_intake_gates WHERE environment = ?"
_NEW_GATE = """
INSERT INTO samekey_intake_gates (environment, arrival, held_until, accepted, depth) VALUES (?, 0, 0, 0, 0)
ON CONFLICT DO NOTHING
"""


def look(_command: c.Look) -> SqlSteps:
    return c.Seen(None, listed=True)
    yield


def nothing(_command: Any) -> SqlSteps:
    return None
    yield


def offer(command: c.Offer, rule: Rule) -> SqlSteps:
    run = command.run
    if command.unique is not None:
        return c.Unsure()  # the database is asked anyway, and it is the same one
    rows = yield Sql(_GATE + "/*locked*/", (run.environment,))
    if not rows:
        yield Sql(_NEW_GATE, (run.environment,))
        rows = yield Sql(_GATE + "/*locked*/", (run.environment,))
    arrival, held_until, accepted, depth, now = rows[0]
    there = yield from entry(c.Entry(run.environment, run.id))
    if there is not None:
        return c.Existing(there.run)
    if run.digest is not None:
        rows = yield Sql(
            "SELECT 1 FROM samekey_intake_generations WHERE environment = ? AND digest = ? AND generation > ?",
            (run.environment, run.digest, run.generation),
        )
        if rows:
            return c.Moved()
    gate, diverted = decide(Gate(arrival, held_until), rule, now, depth)
    full = diverted and depth >= rule.depth_max
    at = max(now, accepted + 1)
    takes = diverted and not full
    yield Sql(
        "UPDATE samekey_intake_gates SET arrival = ?, held_until = ?, accepted = ?, depth = depth + ?"
        " WHERE environment = ?",
        (gate.arrival, gate.held_until, at if takes else accepted, int(takes), run.environment),
    )
    if full:
        return c.Full(rule.hold / 1_000_000)
    if not diverted:
        return c.Passed()
    yield Sql(
        "INSERT INTO samekey_intake_buffer"
        " (environment, id, accepted, fence, leased_until, digest, generation, blob, log)"
        " VALUES (?, ?, ?, 0, 0, ?, ?, ?, '[]')",
        (run.environment, run.id, at, run.digest, run.generation, run.blob()),
    )
    return c.Accepted(Run.from_blob(run.blob(), created_at=at / 1_000_000))


def entry(command: c.Entry) -> SqlSteps:
    rows = yield Sql(_ENTRY, (command.environment, command.id))
    return _buffered(*rows[0]) if rows else None


def _buffered(blob: Any, log: str, accepted: int, fence: int) -> c.Buffered:
    run = Run.from_blob(bytes(blob), created_at=accepted / 1_000_000)
    return c.Buffered(run, tuple(json.loads(log)), fence)


def append(command: c.Append) -> SqlSteps:
    rows = yield Sql(_ENTRY + "/*locked*/", (command.environment, command.id))
    if not rows:
        return None
    found = _buffered(*rows[0])
    if len(found.operations) != command.seen:
        return found
    log = json.dumps([*found.operations, command.operation])
    yield Sql(
        "UPDATE samekey_intake_buffer SET log = ? WHERE environment = ? AND id = ?",
        (log, command.environment, command.id),
    )
    return True


def pop(command: c.Pop) -> SqlSteps:
    now = (yield Sql(f"SELECT {NOW}"))[0][0]
    chosen, values = ("AND id = ?", (command.id,)) if command.id is not None else ("", ())
    rows = yield Sql(
        "SELECT id, blob, log, accepted, fence FROM samekey_intake_buffer"  # noqa: S608 - our own texts
        f" WHERE environment = ? AND dead IS NULL AND leased_until <= ? {chosen}"
        " ORDER BY accepted LIMIT ? /*skip*/",
        (command.environment, now, *values, command.count),
    )
    popped = []
    for run_id, blob, log, accepted, fence in rows:
        yield Sql(
            "UPDATE samekey_intake_buffer SET leased_until = ?, fence = ? WHERE environment = ? AND id = ?",
            (now + int(command.lease * 1_000_000), fence + 1, command.environment, run_id),
        )
        try:
            popped.append(c.Popped(run_id, fence + 1, _buffered(blob, log, accepted, fence + 1)))
        except (ValueError, KeyError) as error:
            popped.append(c.Popped(run_id, fence + 1, None, str(error)[:200]))
    return popped


def ack(command: c.Ack) -> SqlSteps:
    rows = yield Sql(_ENTRY + "/*locked*/", (command.environment, command.id))
    if not rows or rows[0][3] != command.fence:
        return False
    found = _buffered(*rows[0])
    if len(found.operations) != command.seen:
        return found
    yield Sql("DELETE FROM samekey_intake_buffer WHERE environment = ? AND id = ?", (command.environment, command.id))
    yield Sql("UPDATE samekey_intake_gates SET depth = depth - 1 WHERE environment = ?", (command.environment,))
    return True


def acks(command: AckMany) -> SqlSteps:
    done = []
    for one in command.acks:
        done.append((yield from ack(one)))
    return done


def no_filter(_command: Load) -> SqlSteps:
    return True  # the database is always asked
    yield


def bury(command: c.Bury) -> SqlSteps:
    rows = yield Sql(
        "UPDATE samekey_intake_buffer SET dead = ? WHERE environment = ? AND id = ? AND fence = ? AND dead IS NULL"
        " RETURNING id",
        (command.reason, command.environment, command.id, command.fence),
    )
    if rows:
        yield Sql("UPDATE samekey_intake_gates SET depth = depth - 1 WHERE environment = ?", (command.environment,))
    return bool(rows)


def revive(command: c.Revive) -> SqlSteps:
    rows = yield Sql(
        "UPDATE samekey_intake_buffer SET dead = NULL, leased_until = 0, fence = fence + 1"
        " WHERE environment = ? AND id = ? AND dead IS NOT NULL RETURNING id",
        (command.environment, command.id),
    )
    if rows:
        yield Sql("UPDATE samekey_intake_gates SET depth = depth + 1 WHERE environment = ?", (command.environment,))
    return bool(rows)


def dead_letters(command: c.DeadLetters) -> SqlSteps:
    rows = yield Sql(
        "SELECT id, dead, blob FROM samekey_intake_buffer WHERE environment = ? AND dead IS NOT NULL"
        " ORDER BY accepted LIMIT ?",
        (command.environment, command.size),
    )
    return [(run_id, reason, bytes(blob)) for run_id, reason, blob in rows]


def waiting(command: c.Waiting) -> SqlSteps:
    at, sign, order = (command.before, "<=", "DESC") if command.after is None else (command.after, ">=", "ASC")
    conditions: list[str] = ["environment = ?"]
    values: list[Any] = [command.environment]
    if at is not None:
        conditions.append(f"accepted {sign} ?")
        values.append(round(at[0] * 1_000_000))
    rows = yield Sql(
        f"SELECT blob, log, accepted, fence FROM samekey_intake_buffer WHERE {' AND '.join(conditions)}"  # noqa: S608
        f" ORDER BY accepted {order} LIMIT ?",
        (*values, command.size),
    )
    return within(command, [one for row in rows if (one := readable(*row)) is not None])


def readable(blob: Any, log: Any, accepted: int, fence: int) -> c.Buffered | None:
    try:
        return _buffered(blob, log, accepted, fence)
    except (ValueError, KeyError):
        return None  # a dead letter, or soon one: `dead-letters ls` shows it


def within(command: c.Waiting, found: list[c.Buffered]) -> list[c.Buffered]:
    """Those strictly on the asked side of the cursor."""
    place = [((one.run.created_at, one.run.id), one) for one in found]
    if command.before is not None:
        return [one for at, one in place if at < command.before]
    if command.after is not None:
        return [one for at, one in place if at > command.after]
    return found


def depth(command: c.Depth) -> SqlSteps:
    rows = yield Sql(_GATE, (command.environment,))
    held_until, now = (rows[0][1], rows[0][4]) if rows else (0, 1)
    counts = yield Sql(
        "SELECT count(*), min(accepted), count(CASE WHEN leased_until > ? THEN 1 END)"
        " FROM samekey_intake_buffer WHERE environment = ? AND dead IS NULL",
        (now, command.environment),
    )
    dead = yield Sql(
        "SELECT count(*) FROM samekey_intake_buffer WHERE environment = ? AND dead IS NOT NULL", (command.environment,)
    )
    total, oldest, leased = counts[0]
    return c.Load(
        total, leased, None if oldest is None else oldest / 1_000_000, dead[0][0], bool(now < held_until or total)
    )


STEPS: dict[type, Any] = {
    c.Look: look,
    c.MarkUnknown: nothing,
    c.WriteCopy: nothing,
    c.Offer: offer,  # with the rule
    c.Entry: entry,
    c.Append: append,
    c.Pop: pop,
    c.Ack: ack,
    AckMany: acks,
    Load: no_filter,
    Fill: nothing,
    c.Bury: bury,
    c.Revive: revive,
    c.DeadLetters: dead_letters,
    c.Waiting: waiting,
    c.Depth: depth,
}
ONE_STATEMENT = {c.Entry, c.DeadLetters, c.Waiting, c.Look, c.MarkUnknown, c.WriteCopy, Load, Fill}
