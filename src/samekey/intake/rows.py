"""The database's part: runs and generations. Each command is a few statements, in one transaction.

The functions are steps: they yield `Sql` (one statement) and `Hand` (call the user's sink) and are sent the rows, so
that they exist once for PostgreSQL and SQLite, for threads and tasks (database.py runs them).
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import fields, replace
from typing import Any, NamedTuple

from samekey.intake import commands as c
from samekey.intake.runs import Run, RunState, apply, fold


class Sql(NamedTuple):
    """A statement with `?` parameters. Reply: its rows."""

    text: str
    values: tuple[Any, ...] = ()


class Hand(NamedTuple):
    """Hand the run to the user's sink, in this transaction."""

    run: Run


SqlSteps = Generator[Sql | Hand, Any, Any]

_COLUMNS = (
    "id", "environment", "task", "digest", "generation", "state", "created_at", "due_at", "tags", "batch", "unlisted",
    "facts", "payload",
)  # fmt: skip
COLUMNS = ", ".join(_COLUMNS)
_VALUES = "(" + ", ".join("?" * len(_COLUMNS)) + ")"
_FACTS = {one.name for one in fields(Run)} - {
    *{"id", "environment", "task", "digest", "generation", "state", "created_at"},
    *{"tags", "batch", "unlisted", "payload", "buffered"},
}
_DEFAULTS = {one.name: getattr(Run("", "", "", None), one.name) for one in fields(Run)}


def values_of(run: Run) -> tuple[Any, ...]:
    facts = {name: getattr(run, name) for name in _FACTS if getattr(run, name) != _DEFAULTS[name]}
    return (
        run.id,
        run.environment,
        run.task,
        run.digest,
        run.generation,
        run.state.value,
        run.created_at,
        run.expires_at if run.state is RunState.QUEUED else None,
        json.dumps(run.tags),
        run.batch,
        int(run.unlisted),
        json.dumps(facts),
        None if run.payload is None else run.payload.encode("utf-8", "surrogatepass"),
    )


def run_of(row: tuple[Any, ...]) -> Run:
    facts = json.loads(row[11])
    facts["applied"] = tuple(facts.get("applied", ()))
    return Run(
        id=row[0],
        environment=row[1],
        task=row[2],
        digest=row[3],
        generation=row[4],
        state=RunState(row[5]),
        created_at=row[6],
        tags=tuple(json.loads(row[8])),
        batch=row[9],
        unlisted=bool(row[10]),
        payload=None if row[12] is None else bytes(row[12]).decode("utf-8", "surrogatepass"),
        **facts,
    )


# -- generations ---------------------------------------------------------------------------------------------------

_GENERATION = "SELECT generation, secret FROM samekey_intake_generations WHERE environment = ? AND digest = ?"
# The insert is for a key without a row: that one has generation 0. Both conditions make a second raise of the same
# generation, a retry or a race, change nothing.
_RAISE = """
INSERT INTO samekey_intake_generations (environment, digest, generation, secret)
SELECT ?, ?, 1, ? WHERE ? = 0
ON CONFLICT (environment, digest) DO NOTHING
"""
_RAISE_MORE = """
UPDATE samekey_intake_generations SET generation = generation + 1, secret = ?
WHERE environment = ? AND digest = ? AND generation = ? AND generation > 0
"""


def generation(command: c.Generation) -> SqlSteps:
    rows = yield Sql(_GENERATION, (command.environment, command.digest))
    return c.Pinned(*rows[0]) if rows else c.FIRST


def raised(command: c.Raise) -> SqlSteps:
    where = (command.environment, command.digest)
    yield Sql(_RAISE, (*where, command.secret, command.seen))
    yield Sql(_RAISE_MORE, (command.secret, *where, command.seen))
    now = yield from generation(c.Generation(*where))
    if now.generation > command.seen:
        rows = yield Sql(
            f"SELECT {COLUMNS} FROM samekey_intake_runs"  # noqa: S608 - our own columns
            " WHERE environment = ? AND digest = ? AND generation = ?",
            (*where, command.seen),
        )
        if rows:
            yield from _rewrite(replace(run_of(rows[0]), key_freed=True))
    return now


# -- runs ----------------------------------------------------------------------------------------------------------

_INSERT = f"INSERT INTO samekey_intake_runs ({COLUMNS}) VALUES {_VALUES} ON CONFLICT DO NOTHING RETURNING id"  # noqa: S608
# A later generation of the key refuses the insert: the trigger was overtaken by a reset and starts over.
_INSERT_KEYED = f"""
INSERT INTO samekey_intake_runs ({COLUMNS})
SELECT {{values}}
WHERE NOT EXISTS (
    SELECT 1 FROM samekey_intake_generations
    WHERE environment = ? AND digest = ? AND generation > ?
)
ON CONFLICT DO NOTHING RETURNING id
"""  # noqa: S608
_TYPES = ("text", "text", "text", "text", "integer", "text", "double precision", "double precision", "text", "text",
          "integer", "text", "bytea")  # fmt: skip
_INSERT_KEYED = _INSERT_KEYED.format(values=", ".join(f"CAST(? AS {kind})" for kind in _TYPES))
_BY_ID = f"SELECT {COLUMNS} FROM samekey_intake_runs WHERE environment = ? AND id = ?"  # noqa: S608
_BY_KEY = f"""
SELECT {COLUMNS} FROM samekey_intake_runs WHERE environment = ? AND digest = ? AND generation = ?
"""  # noqa: S608
_LOCKED = "/*locked*/"  # PostgreSQL reads FOR UPDATE here; a SQLite transaction has the file to itself


def insert(command: c.Insert) -> SqlSteps:
    run = command.run
    made = yield from _insert(run)
    if made:
        yield Hand(run)
        return c.Inserted(run)
    there = yield from _there(run)
    return c.Moved() if there is None else c.Existing(there)


def _insert(run: Run) -> SqlSteps:
    if run.digest is None:
        rows = yield Sql(_INSERT, values_of(run))
    else:
        rows = yield Sql(_INSERT_KEYED, (*values_of(run), run.environment, run.digest, run.generation))
    return bool(rows)


def _there(run: Run, lock: str = "") -> SqlSteps:
    rows = yield Sql(_BY_ID + lock, (run.environment, run.id))
    if not rows and run.digest is not None:
        rows = yield Sql(_BY_KEY + lock, (run.environment, run.digest, run.generation))
    return run_of(rows[0]) if rows else None


def fetch(command: c.Fetch) -> SqlSteps:
    rows = yield Sql(_BY_ID, (command.environment, command.id))
    return run_of(rows[0]) if rows else None


def change(command: c.Change) -> SqlSteps:
    rows = yield Sql(_BY_ID + _LOCKED, (command.environment, command.id))
    if not rows:
        return None
    before = run_of(rows[0])
    if command.operation["id"] in before.applied:
        return c.Changed(before, before)
    apply(before, command.operation)  # a Problem ends the transaction here
    after = fold(before, (command.operation,))
    yield from _rewrite(after)
    return c.Changed(before, after)


_REWRITE = """
UPDATE samekey_intake_runs SET state = ?, due_at = ?, tags = ?, facts = ? WHERE id = ?
"""


def _rewrite(run: Run) -> SqlSteps:
    values = values_of(run)
    yield Sql(_REWRITE, (values[5], values[7], values[8], values[11], run.id))


# -- draining ------------------------------------------------------------------------------------------------------


def absorb(command: c.Absorb) -> SqlSteps:
    """All entries in one multi-row insert; what was there already gets its log folded in."""
    folded = {run.id: fold(run, log) for run, log in command.entries}
    keyed = [run.digest for run in folded.values() if run.digest is not None]
    if keyed:  # a reset that died after its raise did not come to write that the run has no key any more
        rows = yield Sql(
            f"SELECT environment, digest, generation FROM samekey_intake_generations"  # noqa: S608
            f" WHERE digest IN ({', '.join('?' * len(keyed))})",
            tuple(keyed),
        )
        raised = {(environment, digest): generation for environment, digest, generation in rows}
        for run in list(folded.values()):
            if raised.get((run.environment, str(run.digest)), 0) > run.generation:
                folded[run.id] = replace(run, key_freed=True)
    runs = list(folded.values())
    rows = yield Sql(_insert_many(len(runs)), tuple(value for run in runs for value in values_of(run)))
    made = {row[0] for row in rows}
    outcomes = []
    for run, log in command.entries:
        if run.id in made:
            made.discard(run.id)
            if folded[run.id].state is RunState.QUEUED:  # a run that was canceled before it was written is not handed
                yield Hand(folded[run.id])
            outcomes.append("new")
            continue
        there = yield from _there(run, _LOCKED)
        if there is None:  # the unique key belongs to another id, which only a foreign secret makes
            outcomes.append("moved")
            continue
        after = fold(there, log)
        if after != there:
            yield from _rewrite(after)
        outcomes.append("there" if there.fingerprint == run.fingerprint else "differs")
    return outcomes


def _insert_many(count: int) -> str:
    values = ", ".join([_VALUES] * count)
    return f"INSERT INTO samekey_intake_runs ({COLUMNS}) VALUES {values} ON CONFLICT DO NOTHING RETURNING id"  # noqa: S608


# -- lists ---------------------------------------------------------------------------------------------------------


def page(command: c.Page) -> SqlSteps:
    conditions: list[str] = ["environment = ?"]
    values: list[Any] = [command.environment]
    for at, sign in ((command.before, "<"), (command.after, ">")):
        if at is not None:
            conditions.append(f"(created_at, id) {sign} (?, ?)")
            values += at
    for name, given in command.filters.items():
        condition, more = _FILTERS[name](given)
        conditions.append(condition)
        values += more
    order = "ASC" if command.after is not None else "DESC"
    rows = yield Sql(
        f"SELECT {COLUMNS} FROM samekey_intake_runs WHERE {' AND '.join(conditions)}"  # noqa: S608 - our own texts
        f" ORDER BY created_at {order}, id {order} LIMIT ?",
        (*values, command.size),
    )
    return [run_of(row) for row in rows]


def _one_of(column: str) -> Any:
    return lambda given: (f"{column} IN ({', '.join('?' * len(given))})", list(given))


def _tags(given: Any) -> tuple[str, list[Any]]:
    texts = [json.dumps(one).replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") for one in given]
    return "(" + " OR ".join(["tags LIKE ? ESCAPE '\\'"] * len(texts)) + ")", [f"%{text}%" for text in texts]


_FILTERS: dict[str, Any] = {
    "state": _one_of("state"),
    "task": _one_of("task"),
    "batch": _one_of("batch"),
    "tag": _tags,
    "from": lambda given: ("created_at >= ?", [given]),
    "to": lambda given: ("created_at <= ?", [given]),
}

# -- upkeep --------------------------------------------------------------------------------------------------------


def digests(command: c.Digests) -> SqlSteps:
    rows = yield Sql(
        "SELECT DISTINCT digest FROM samekey_intake_runs"
        " WHERE environment = ? AND digest IS NOT NULL AND digest > ? ORDER BY digest LIMIT ?",
        (command.environment, command.after, command.size),
    )
    return [row[0] for row in rows]


def raised_keys(command: c.Raised) -> SqlSteps:
    rows = yield Sql(
        "SELECT digest, generation, secret FROM samekey_intake_generations"
        " WHERE environment = ? AND digest > ? ORDER BY digest LIMIT ?",
        (command.environment, command.after, command.size),
    )
    return [(digest, c.Pinned(generation, secret)) for digest, generation, secret in rows]


def unlisted(command: c.Unlisted) -> SqlSteps:
    rows = yield Sql(
        "SELECT id, digest FROM samekey_intake_runs WHERE environment = ? AND unlisted = 1 LIMIT ?",
        (command.environment, command.size),
    )
    return [(run_id, digest) for run_id, digest in rows]


def listed(command: c.Listed) -> SqlSteps:
    marks = ", ".join("?" * len(command.ids))
    yield Sql(f"UPDATE samekey_intake_runs SET unlisted = 0 WHERE id IN ({marks})", command.ids)  # noqa: S608


def due(command: c.Due) -> SqlSteps:
    rows = yield Sql(
        "SELECT environment, id FROM samekey_intake_runs WHERE due_at IS NOT NULL AND due_at <= ? LIMIT ?",
        (command.now, command.size),
    )
    return [(environment, run_id) for environment, run_id in rows]


STEPS: dict[type, Any] = {
    c.Digests: digests,
    c.Raised: raised_keys,
    c.Unlisted: unlisted,
    c.Listed: listed,
    c.Due: due,
    c.Generation: generation,
    c.Raise: raised,
    c.Insert: insert,
    c.Fetch: fetch,
    c.Change: change,
    c.Absorb: absorb,
    c.Page: page,
}
ONE_STATEMENT = {
    c.Generation,
    c.Fetch,
    c.Page,
    c.Digests,
    c.Raised,
    c.Unlisted,
    c.Listed,
    c.Due,
}  # no transaction is needed
