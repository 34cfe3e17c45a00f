"""PostgreSQL's rows and statements: one function call for each command, and a record in each row.

`single` gives a command as one statement; `many` gives several of one kind as one statement, and so as one
transaction. Both come back in the same columns, which `record_of` reads. The statements take `%s` parameters and
plain values, so that any connection which a caller brings can carry them out: see `execute`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from samekey.core.boundary import parse_terms
from samekey.core.commands import (
    Ask,
    Begin,
    Free,
    Open,
    Read,
    Redact,
    Renew,
    Settle,
    StoreCommand,
    Take,
    Testify,
    Wait,
)
from samekey.core.errors import Misconfigured, RecordUnreadable
from samekey.core.key import Key
from samekey.core.record import Evidence, Move, Record
from samekey.core.register import storable
from samekey.core.states import EXPIRES, Role, State, may

Statement = tuple[str, tuple[Any, ...]]
Values = tuple[Any, ...]

# fmt: off
_COLUMNS = (
    "operation", "tenant", "key", "digest::text", "state", "token", "attempt::text", "fingerprint", "form", "boundary",
    "version", "attempts", "created_at", "changed_at", "lease_until", "unsure", "begun_at", "first_sent_at", "round",
    "settled_by", "settled_at", "retain_until", "result", "error", "asker", "ask_until", "fields", "attributes",
    "evidence::text", "moves",
)
# fmt: on
ROW = ", ".join(f"r.{column}" for column in _COLUMNS) + ", date_part('epoch', clock_timestamp())"
DIGEST = 3  # the column that says which command of a batch this row answers
_COMMIT = "/*commit*/"  # where the driver may say how the statement commits

_STATES = {state.value: state for state in State}


class Call:
    """One of our functions: the types of its parameters, and the values that a command gives them.

    Where many commands of a kind come together, `together` names a function that takes them as arrays; without
    one the function is called for one after the other, in the same statement.
    """

    def __init__(self, function: str, types: str, values: Callable[[Any], Values], *, together: str = "") -> None:
        self.values = values
        self._types = types.split()
        one = ", ".join(f"%s::{kind}" for kind in self._types)
        self.single = f"SELECT {ROW}{_COMMIT} FROM {function}({one}) AS r"  # noqa: S608 - constants only
        arrays = ", ".join(f"%s::{kind}[]" for kind in self._types)
        names = [f"a{number}" for number in range(len(self._types))]
        each = f"unnest({arrays}) AS u ({', '.join(names)}), {function}({', '.join('u.' + name for name in names)})"
        source = f"{together}({arrays})" if together else each
        self.many = f"SELECT {ROW}{_COMMIT} FROM {source} AS r"  # noqa: S608 - constants only

    def arrays(self, rows: Sequence[Values]) -> Values:
        """The rows as one array literal for each parameter: an order faster than the driver's own lists."""
        columns = zip(*rows, strict=True)
        return tuple([_ARRAYS[kind](column) for kind, column in zip(self._types, columns, strict=True)])


# -- what each command says --------------------------------------------------------------------------------


def _open(command: Open) -> Values:
    key, fingerprint = command.key, command.fingerprint
    fields = [(name, digest.hex()) for name, digest in fingerprint.fields]
    return (
        key.digest.hex(),
        key.operation,
        key.tenant,
        key.text,
        _attempt(command.attempt),
        fingerprint.digest,
        fingerprint.form,
        _dump(fields) if fields else None,
        command.boundary,
        command.lease_seconds,
        command.sends,
        _dump(command.attributes) if command.attributes else None,
    )


def _take(command: Take) -> Values:
    seen = command.seen
    if seen.state is State.STARTED:
        parse_terms(seen.boundary)  # RecordUnreadable, where this version cannot know what they allow
    attempt = _attempt(command.attempt)
    return (*_fence(seen), seen.state.value, attempt, command.boundary, command.lease_seconds, command.sends)


def _begin(command: Begin) -> Values:
    return _fence(command.seen)


def _renew(command: Renew) -> Values:
    return (*_fence(command.seen), command.lease_seconds)


# Where each role may come from. A start draws a new token, and that is what take is for: it is never a settle.
_FROM = {
    (role, after): " ".join(before.value for before in State if may(role, before, after) and after is not State.STARTED)
    for role in Role
    for after in State
}


def _settle(command: Settle) -> Values:
    by, role, error = mended(command.by), command.role, command.error
    where = _FROM[role, command.state]
    if role is Role.OPERATOR:  # a person decided about what was shown, and about nothing else
        where = command.seen.state.value if command.seen.state.value in where.split() else ""
    return (
        *_fence(command.seen),
        where,
        role is Role.PASSER_BY,
        role is Role.LOOKUP or role is Role.OPERATOR,
        command.state.value,
        by,
        command.result,
        None if error is None else mended(error),
        _dump(by if role is Role.HOLDER or role is Role.PASSER_BY else f"{role}:{by}"),
        _dump(mended(command.why or error or "")),
        command.retain_seconds,
        command.next_round,
        mended(command.why) if role is Role.OPERATOR else None,
    )


def _ask(command: Ask) -> Values:
    return (*_fence(command.seen), mended(command.asker), command.lease_seconds)


def _testify(command: Testify) -> Values:
    key, said = command.key, None if command.result is None else command.result.hex()
    word = (mended(command.attempt), str(command.token), command.state.value, said, mended(command.why))
    return (key.digest.hex(), key.operation, key.tenant, key.text, *word)


def _redact(command: Redact) -> Values:
    by, why = mended(command.by), mended(command.why)
    return (*_fence(command.seen), by, why, _dump(by), _dump(f"redacted: {why}"))


def _free(command: Free) -> Values:
    return (*_fence(command.seen), command.seen.state.value, mended(command.by), mended(command.why))


def _watch(command: Wait) -> Values:
    return (command.key.digest.hex(), str(command.seen.token))


_FENCE = "uuid bigint uuid"  # the digest, and the fence
CALLS: dict[type[StoreCommand], Call] = {
    Open: Call(
        "samekey_open",
        "uuid text text text uuid bytea text text text float8 boolean text",
        _open,
        together="samekey_open_many",
    ),
    Take: Call("samekey_take", f"{_FENCE} text uuid text float8 boolean", _take),
    Begin: Call("samekey_begin", _FENCE, _begin),
    Renew: Call("samekey_renew", f"{_FENCE} float8", _renew),
    Settle: Call(
        "samekey_settle",
        f"{_FENCE} text boolean boolean text text bytea text text text float8 boolean text",
        _settle,
        together="samekey_settle_many",
    ),
    Ask: Call("samekey_ask", f"{_FENCE} text float8", _ask),
    Testify: Call("samekey_testify", "uuid text text text text bigint text text text", _testify),
    Redact: Call("samekey_redact", f"{_FENCE} text text text text", _redact),
    Free: Call("samekey_free", f"{_FENCE} text text text", _free),
    Wait: Call("samekey_watch", "uuid bigint", _watch),
}

_READ = f"SELECT {ROW} FROM samekey_records AS r WHERE r.digest = %s::uuid"  # noqa: S608 - constants only
_READ_MANY = f"SELECT {ROW} FROM samekey_records AS r WHERE r.digest = ANY (%s::uuid[])"  # noqa: S608


def single(command: StoreCommand) -> Statement:
    """One command as one statement."""
    if isinstance(command, Read):
        return _READ, (command.key.digest.hex(),)
    call = CALLS[type(command)]
    return call.single, call.values(command)


def many(commands: Sequence[StoreCommand]) -> Statement:
    """Several commands of one kind, each about another key, as one statement; rows come back in any order."""
    kind = type(commands[0])
    if kind is Read:
        return _READ_MANY, (_plain_array([command.key.digest.hex() for command in commands]),)
    call = CALLS[kind]
    return call.many, call.arrays([call.values(command) for command in commands])


def execute(cursor: Any, command: StoreCommand, lost_at: float | None = None) -> Record | None:
    """Carry out one command over any cursor with `execute` and `fetchone`, in whatever transaction it is in."""
    cursor.execute(*single(command))
    return record_of(cursor.fetchone(), command, lost_at)


# -- rows --------------------------------------------------------------------------------------------------

AFTER_LOSS_SECONDS = 24 * 3600.0  # how long claims count as "after a loss": the usual retention


def record_of(row: Sequence[Any] | None, command: StoreCommand | None, lost_at: float | None = None) -> Record | None:
    """The row as a record, checked; a digest hit must be the very key that was asked for."""
    if row is None or row[0] is None:
        return None  # a function that found nothing answers with a row of nulls
    try:
        # fmt: off
        (
            operation, tenant, text, digest, state, token, attempt, fingerprint, form, boundary, version, attempts,
            created_at, changed_at, lease_until, unsure, begun_at, first_sent_at, round_, settled_by, settled_at,
            retain_until, result, error, asker, ask_until, fields, attributes, evidence, moves, now, *_,
        ) = row
        # fmt: on
        if command is not None:
            key = command.key
            if key.text != text or key.operation != operation or key.tenant != tenant:
                raise RecordUnreadable(f"the record found for {key} belongs to another key with the same digest")
        else:
            key = Key(operation, tenant, text, bytes.fromhex(digest.replace("-", "")))
        if type(command) is Read and retain_until is not None and retain_until <= now and state in EXPIRES:
            return None  # past retention counts as gone, swept or not
        return Record._make(
            (
                key,
                _STATES[state],
                token,
                attempt.replace("-", ""),
                fingerprint,
                form,
                tuple([(name, bytes.fromhex(one)) for name, one in json.loads(fields)]) if fields else (),
                boundary,
                version,
                attempts,
                created_at,
                changed_at,
                lease_until,
                "",
                unsure,
                begun_at,
                first_sent_at,
                round_,
                settled_by,
                settled_at,
                retain_until,
                result,
                error,
                asker,
                ask_until or 0.0,
                tuple([(name, value) for name, value in json.loads(attributes)]) if attributes else (),
                tuple([_evidence(*one) for one in json.loads(evidence)]) if evidence else (),
                tuple([Move._make(one) for one in json.loads(f"[{moves.replace(_NEWLINE, ',')}]")]),
                now,
                lease_until - now,
                (ask_until or 0.0) - now,
                lost_at is not None and created_at >= lost_at and created_at - lost_at < AFTER_LOSS_SECONDS,
            )
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordUnreadable(f"a record is damaged or was written by a newer version: {error!r}") from error


_NEWLINE = "\n"


def _evidence(at: float, token: int, attempt: str, state: str, result: str | None, why: str) -> Evidence:
    return Evidence(at, token, attempt, _STATES[state], None if result is None else bytes.fromhex(result), why)


# -- values ------------------------------------------------------------------------------------------------

_dump = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode  # ASCII: any text at all can be kept
_HEX = frozenset("0123456789abcdef")


def _fence(seen: Record) -> Values:
    return (seen.key.digest.hex(), str(seen.token), _attempt(seen.attempt))


def _attempt(attempt: str) -> str:
    """An attempt id as the column keeps it: 128 bits; another spelling would come back as a stranger's."""
    if len(attempt) != 32 or not _HEX.issuperset(attempt):
        raise Misconfigured(f"an attempt id is 32 hexadecimal digits in PostgreSQL, not {attempt!r}")
    return attempt


def mended(text: str) -> str:
    """Foreign text as the server can keep it: besides what no store can keep, PostgreSQL's texts have no NUL."""
    return storable(text).replace("\x00", "\\x00")


def _plain_array(values: Sequence[Any]) -> str:
    return "{" + ",".join(["NULL" if value is None else str(value) for value in values]) + "}"


def _text_array(values: Sequence[str | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else _quoted(value) for value in values]) + "}"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _bytes_array(values: Sequence[bytes | None]) -> str:
    return "{" + ",".join(["NULL" if value is None else f'"\\\\x{value.hex()}"' for value in values]) + "}"


_ARRAYS: dict[str, Callable[[Sequence[Any]], str]] = {
    "uuid": _plain_array,
    "bigint": _plain_array,
    "float8": _plain_array,
    "boolean": _plain_array,
    "text": _text_array,
    "bytea": _bytes_array,
}
