"""PostgreSQL's rows: the values of each command, and the record in each row.

`single` gives a command as one statement with `%s` parameters and plain values, so that any connection of a caller can
carry it out. samekey's own connections use the binary form: see `_wire`. `record_of` reads the rows of both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from samekey.core.boundary import parse_terms, repeats
from samekey.core.commands import (
    Ask,
    Begin,
    Deliver,
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
from samekey.core.inquiry import read_inquiry
from samekey.core.key import Key
from samekey.core.record import DAMAGED, Move, Record, evidence_of, unreadable
from samekey.core.register import Moment, after_loss, apply, expired, seen_at, storable
from samekey.core.search import TERMS_MAX, claim_terms, request_term
from samekey.core.states import STATES, Role, State, may
from samekey.drivers.postgres.self_check import COLUMNS as _TABLE

Statement = tuple[str, tuple[Any, ...]]
Values = tuple[Any, ...]

# The columns as this module reads them: in the order of the table, and the few types that drivers differ on as text.
_AS_TEXT = ("uuid", "jsonb", "uuid[]")
COLUMNS = tuple([_name + ("::text" if _kind in _AS_TEXT else "") for _name, _kind in map(str.split, _TABLE)])
NOW = "date_part('epoch', clock_timestamp())"
ROW = ", ".join(f"r.{column}" for column in COLUMNS) + f", {NOW}"
TOKEN, CHANGED_AT, STATE = COLUMNS.index("token"), COLUMNS.index("changed_at"), COLUMNS.index("state")


class Call:
    """One SQL function: the types of its parameters, and the values that a command gives them.

    An `enum` is a text with few different values. `together` names a function that takes many commands of this kind as
    arrays; without one the function is called for one command after the other, in the same statement.
    """

    def __init__(self, function: str, types: str, values: Callable[[Any], Values], *, together: str = "") -> None:
        self.function, self.together = function, together
        self.types = types.split()
        self.values = values
        one = ", ".join(f"%s::{SQL_TYPE.get(kind, kind)}" for kind in self.types)
        self.single = f"SELECT {ROW} FROM {function}({one}) AS r"  # noqa: S608 - constants only

    def plain(self, values: Values) -> Values:
        """The values as any driver understands them: an int's type would depend on how large it is."""
        return tuple(
            [
                _PLAIN[kind](value) if kind in _PLAIN and value is not None else value
                for kind, value in zip(self.types, values, strict=True)
            ]
        )


SQL_TYPE = {"enum": "text"}
_PLAIN: dict[str, Callable[[Any], Any]] = {
    "uuid": bytes.hex,
    "bigint": str,
    "integer": str,
}


# -- the values of each command ----------------------------------------------------------------------------


def _open(command: Open) -> Values:
    key, fingerprint = command.key, command.fingerprint
    return (
        key.digest,
        key.operation,
        key.tenant,
        key.text,
        _attempt(command.attempt),
        fingerprint.digest,
        fingerprint.form,
        _fields(fingerprint.fields) if fingerprint.fields else None,
        command.boundary,
        command.lease_seconds,
        command.sends,
        _attributes(command.attributes) if command.attributes else None,
        fingerprint.content,
        command.payload,
        _retained(command, command.boundary),
        *claim_terms(key, command.boundary, command.attributes),
    )


def _take(command: Take) -> Values:
    seen = command.seen
    if seen.state is State.STARTED:
        parse_terms(seen.boundary)  # RecordUnreadable, where this version cannot know what they allow
    return (
        *_fence(seen),
        seen.state.value,
        _attempt(command.attempt),
        command.boundary,
        command.lease_seconds,
        command.sends,
        _terms(command.terms),
        _retained(command, seen.boundary if seen.state is State.IN_DOUBT else command.boundary),
    )


def _retained(command: Open | Take | Renew, boundary: str) -> float | None:
    """How long a hold under these terms is remembered if it is never settled; only Repeatable's ends by itself."""
    return command.retain_seconds if command.retain_seconds and repeats(boundary) else None


# Where each role may come from. A start draws a new token, and that is what take is for: it is never a settle.
_FROM = {
    (role, after): " ".join(before.value for before in State if may(role, before, after) and after is not State.STARTED)
    for role in Role
    for after in State
}


def _settle(command: Settle) -> Values:
    seen, role, state = command.seen, command.role, command.state
    by, error, why = command.by, command.error, command.why
    fence = _fence(seen)
    where = _FROM[role, state]
    holder, person = role is Role.HOLDER, role is Role.OPERATOR
    if person:  # an operator decides about the state that was shown, and no other
        where = seen.state.value if seen.state.value in where.split() else ""
    doubt = state is State.IN_DOUBT
    reason = who = None  # the move follows from the other columns: nearly every record has but this one
    if why or doubt or not holder or by != seen.attempt:
        by = mended(by)
        who = _quoted(by if holder or role is Role.PASSER_BY else f"{role}:{by}")
        reason = _quoted(mended(why or error or ""))
    # A holder can compute the settled record itself, unless a text was mended: then the server sends it.
    known = holder and not ("\x00" in why or (error is not None and "\x00" in error))
    return (
        *fence,
        where,
        role is Role.PASSER_BY,
        (person or role is Role.LOOKUP or command.answered) and not doubt,
        state.value,
        by,
        command.result,
        None if error is None else mended(error),
        who,
        reason,
        None if doubt else command.retain_seconds,
        command.next_round,
        mended(why) if person else None,
        seen.version if known else None,
        command.notes,
        _terms(command.terms),
        holder and command.to_caller,
        command.answered,
    )


def _terms(terms: tuple[bytes, ...]) -> str | None:
    """As the text of a uuid[]: an array of arrays cannot hold different numbers of them."""
    return "{" + ",".join(map(bytes.hex, terms)) + "}" if terms else None


def _testify(command: Testify) -> Values:
    key, result = command.key, None if command.result is None else command.result.hex()
    evidence = (mended(command.attempt), command.token, command.state.value, result, mended(command.why))
    return (key.digest, key.operation, key.tenant, key.text, *evidence)


def _redact(command: Redact) -> Values:
    by, why = mended(command.by), mended(command.why)
    return (*_fence(command.seen), by, why, _quoted(by), _quoted(f"redacted: {why}"))


_FENCE = "uuid bigint uuid"  # the digest, and the fence
CALLS: dict[type[StoreCommand], Call] = {
    Open: Call(
        "samekey_open",
        "uuid enum enum text uuid bytea enum text enum float8 boolean text bytea bytea float8 uuid uuid",
        _open,
        together="samekey_open_many",
    ),
    Take: Call("samekey_take", f"{_FENCE} enum uuid enum float8 boolean text float8", _take),
    Begin: Call("samekey_begin", _FENCE, lambda begin: _fence(begin.seen)),
    Renew: Call(
        "samekey_renew",
        f"{_FENCE} float8 float8",
        lambda renew: (*_fence(renew.seen), renew.lease_seconds, _retained(renew, renew.seen.boundary)),
    ),
    Settle: Call(
        "samekey_settle",
        f"{_FENCE} enum boolean boolean enum text bytea text text text float8 boolean text integer bytea text "
        "boolean boolean",
        _settle,
        together="samekey_settle_many",
    ),
    Ask: Call(
        "samekey_ask",
        f"{_FENCE} text float8 float8 text text",
        lambda ask: (
            *_fence(ask.seen),
            mended(ask.asker),
            ask.lease_seconds,
            ask.look_after,
            mended(ask.verdict),
            mended(ask.parked),
        ),
    ),
    Deliver: Call("samekey_deliver", _FENCE, lambda deliver: _fence(deliver.seen)),
    Testify: Call("samekey_testify", "uuid text text text text bigint text text text", _testify),
    Redact: Call("samekey_redact", f"{_FENCE} text text text text", _redact),
    Free: Call(
        "samekey_free",
        f"{_FENCE} integer text text",
        lambda free: (*_fence(free.seen), free.seen.version, mended(free.by), mended(free.why)),
    ),
    Wait: Call("samekey_watch", "uuid bigint", lambda wait: (wait.key.digest, wait.seen.token)),
}

_READ = f"SELECT {ROW} FROM samekey_records AS r WHERE r.digest = %s::uuid"  # noqa: S608 - constants only


def single(command: StoreCommand) -> Statement:
    """One command as one statement."""
    if isinstance(command, Read):
        return _READ, (command.key.digest.hex(),)
    call = CALLS[type(command)]
    return call.single, call.plain(call.values(command))


# -- rows --------------------------------------------------------------------------------------------------


def record_of(row: Sequence[Any] | None, command: StoreCommand | None, lost_at: float | None = None) -> Record | None:
    """The row as a record, checked; a digest hit must be the very key that was asked for."""
    if row is None or row[TOKEN] is None:
        return None  # a function that found nothing returns a row of nulls
    if row[STATE] is None:
        return from_short(command, row[TOKEN], row[CHANGED_AT], lost_at)
    key: Key | None = None
    created_at = None
    try:
        # fmt: off
        (
            digest, attempt, token, created_at, changed_at, lease_until, begun_at, first_sent_at, settled_at,
            retain_until, ask_until, _waited_for, version, attempts, round_, unsure, _happened, state, operation,
            tenant, text, fingerprint, form, boundary, fields, attributes, settled_by, error, asker, result, moves,
            evidence, content, payload, notes, terms, inquiry, now, *_,
        ) = row
        # fmt: on
        if command is not None:
            key = command.key
            if key.text != text or key.operation != operation or key.tenant != tenant:
                raise RecordUnreadable(f"the record found for {key} belongs to another key with the same digest")
        else:
            key = Key(operation, tenant, text, bytes.fromhex(digest.replace("-", "")))
        labels = tuple([(name, value) for name, value in _parsed(attributes)]) if attributes else ()
        record = Record._make(
            (
                key,
                STATES[state],
                token,
                attempt.replace("-", ""),
                fingerprint,
                form,
                tuple([(name, bytes.fromhex(one)) for name, one in _parsed(fields)]) if fields else (),
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
                labels,
                tuple([evidence_of(*one) for one in _parsed(evidence)]) if evidence else (),
                tuple([Move._make(one) for one in _parsed("[" + moves.replace("\n", ",") + "]")])
                if moves is not None
                else _plain_story(created_at, token, attempt.replace("-", ""), state, settled_at, error),
                content,
                payload,
                notes,
                _terms_of(terms, labels) if terms else (),
                None if inquiry is None else read_inquiry(inquiry),
                now,
                lease_until - now,
                (ask_until or 0.0) - now,
                after_loss(created_at, lost_at),
            )
        )
        if type(command) is Read and expired(record, Moment(now, now, "", 0)):
            return None  # past retention counts as gone, swept or not
        return record
    except DAMAGED as error:
        raise unreadable(key, created_at, error) from error


def _plain_story(
    created_at: float, token: int, attempt: str, state: str, settled_at: float, error: str | None
) -> tuple[Move, ...]:
    """The moves of a record that keeps none: its only attempt claimed it, and may have settled it."""
    claimed = Move(created_at, token, "", "started", attempt, "")
    if state == "started":
        return (claimed,)
    return claimed, Move(settled_at, token, "started", state, attempt, error or "")


def _terms_of(text: str, attributes: tuple[tuple[str, str], ...]) -> tuple[bytes, ...]:
    """The search terms of the record; the column has that of the request id too, which follows from the attributes."""
    request = request_term(attributes)
    terms = [bytes.fromhex(one) for one in text[1:-1].replace("-", "").split(",")]
    return tuple([one for one in terms if one != request][:TERMS_MAX])


def from_short(command: StoreCommand | None, token: int, wall: float, lost_at: float | None) -> Record:
    """Rebuild the record from a short reply (digest, token, changed_at).

    The server sends one when a claim found no record, or when a settle hit exactly the record that the client knew.
    """
    moment = Moment(wall, wall, "", token)
    seen = command.seen if type(command) is Settle else None
    record = None if command is None else apply(seen, command, moment)
    if record is None or record is seen:
        raise RecordUnreadable(f"the server carried out a command that it should have refused: {command!r}")
    record = seen_at(record, moment)
    if lost_at is not None and after_loss(record.created_at, lost_at):
        return record.changed(after_loss=True)
    return record


# -- values ------------------------------------------------------------------------------------------------

_quoted: Callable[[str], str] = json.encoder.encode_basestring_ascii  # ASCII: so any text can be stored


# JSON of pairs: a general encoder takes three times as long for these few.


def _attributes(pairs: Sequence[tuple[str, str]]) -> str:
    return "[" + ",".join([attribute_text(*pair) for pair in pairs]) + "]"


def attribute_text(name: str, value: str) -> str:
    """One attribute as the column has it."""
    return f"[{_quoted(name)},{_quoted(value)}]"


def _fields(pairs: Sequence[tuple[str, bytes]]) -> str:
    return "[" + ",".join([f'[{_quoted_name(name)},"{digest.hex()}"]' for name, digest in pairs]) + "]"


_quoted_name = lru_cache(maxsize=1024)(_quoted)  # the parameters of a function have the same names every time


_scan = json.JSONDecoder().raw_decode


def _parsed(text: str) -> Any:
    """As json.loads, without what it does around every value."""
    value, end = _scan(text)
    if end != len(text):
        raise ValueError(f"more than JSON: {text[:80]!r}")
    return value


def _fence(seen: Record) -> Values:
    return (seen.key.digest, seen.token, _attempt(seen.attempt))


def _attempt(attempt: str) -> bytes:
    """An attempt id as the column keeps it: 128 bits. Another spelling would come back as another attempt's."""
    try:
        raw = bytes.fromhex(attempt)
    except ValueError:
        raw = b""
    if len(raw) != 16 or raw.hex() != attempt:
        raise Misconfigured(f"an attempt id is 32 hexadecimal digits in PostgreSQL, not {attempt!r}")
    return raw


def mended(text: str) -> str:
    """A text as the server can keep it: besides what no store can keep, a text in PostgreSQL has no NUL."""
    return storable(text).replace("\x00", "\\x00")
