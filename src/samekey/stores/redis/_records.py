"""Records as Redis keeps them: one string per key, with what the scripts look at in fixed places.

    k1                     the format
    version      10 digits }
    token        16 digits } the scripts compare these three as one
    attempt      32 digits }
    changed_at   16 digits   microseconds, written by the scripts from the server's clock
    state         1 letter   the body begins here: only Python reads it
    created_at   16 digits   zeros: the same as changed_at
    key          one line of JSON
    intent       one line of JSON: from the claim, unchanged for the life of the key
    story        one line of JSON
    payload      bytes, as many as the story says
    result       bytes, to the end

The client computes a record before it knows at which moment the server will write it. So a time in a body that is zero
or negative counts from changed_at: 0 is the moment of the write, -30000000 is thirty seconds after it. Readers replace
these times, and the writer of the next version writes absolute ones.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, NamedTuple

from samekey.core._json import fast_encoder
from samekey.core.boundary import repeats
from samekey.core.commands import Open
from samekey.core.errors import Misconfigured, RecordUnreadable
from samekey.core.inquiry import inquiry_of
from samekey.core.key import Key
from samekey.core.record import DAMAGED, Evidence, Move, Record, evidence_of, terms_of
from samekey.core.register import Moment, after_loss, apply
from samekey.core.states import State

FORMAT = b"k1"
HEAD = 76  # bytes before the body
KEY_AT = HEAD + 17  # where the line with the key begins
PEEK = KEY_AT + 3200  # enough bytes for the longest key: 1534 bytes of text, each of them escaped

_LETTERS = {
    State.STARTED: b"s",
    State.COMPLETED: b"c",
    State.CLOSED: b"x",
    State.RELEASED: b"r",
    State.IN_DOUBT: b"d",
}
_STATES = {letter[0]: state for state, letter in _LETTERS.items()}
_NOW = b"0" * 16

_dump = fast_encoder(json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False))

_at = Record._fields.index
_TOKEN, _CREATED, _CHANGED, _LEASE, _BEGUN = map(_at, ("token", "created_at", "changed_at", "lease_until", "begun_at"))
_SENT, _SETTLED, _RETAIN, _ASKED = map(_at, ("first_sent_at", "settled_at", "retain_until", "ask_until"))
_EVIDENCE, _MOVES = map(_at, ("evidence", "moves"))
_NOW_AT = _at("now")
_record = tuple.__new__  # without the count of fields that `_make` does
_DATES = (_CREATED, _CHANGED, _BEGUN, _SENT, _SETTLED)


class Draft(NamedTuple):
    """A record that is not written yet: complete except for the moment of the write."""

    body: bytes
    record: Record  # with `moment` as its time
    moment: float
    deadlines: list[tuple[int, int]]  # fields that count from the write, with their microseconds


KEPT = 4096  # keys in progress: their settle writes the lines of their claim again
INTENT_KEPT_MAX_BYTES = 2048  # 64 fields with names of usual length; a client may send much longer ones


def attempt_of(attempt: str) -> bytes:
    """An attempt id in its fixed spelling: in any other one it would not be recognised when it is read back."""
    try:
        if len(attempt) == 32 and bytes.fromhex(attempt).hex() == attempt:
            return attempt.encode()
    except ValueError:
        pass
    raise Misconfigured(f"an attempt id must be 32 hexadecimal digits in Redis, not {attempt!r}")


@lru_cache(maxsize=KEPT)
def key_line(key: Key) -> bytes:
    return _dump((key.operation, key.tenant, key.text)).encode()


class _Long(Exception):
    """Carries a line that is too long to keep: `lru_cache` does not keep exceptions."""


@lru_cache(maxsize=KEPT)
def _intent_line(
    fingerprint: bytes,
    form: str,
    fields: tuple[tuple[str, bytes], ...],
    content: bytes | None,
    attributes: tuple[tuple[str, str], ...],
) -> bytes:
    short, of_content = [(name, digest.hex()) for name, digest in fields], None if content is None else content.hex()
    line = _encoded((fingerprint.hex(), form, short, of_content, attributes))
    if len(line) > INTENT_KEPT_MAX_BYTES:
        raise _Long(line)
    return line


@lru_cache(maxsize=KEPT)
def _intent_of(
    line: bytes,
) -> tuple[bytes, str, tuple[tuple[str, bytes], ...], bytes | None, tuple[tuple[str, str], ...]]:
    fingerprint, form, fields, content, attributes = json.loads(line)
    return (
        bytes.fromhex(fingerprint),
        form,
        tuple([(name, bytes.fromhex(one)) for name, one in fields]),
        None if content is None else bytes.fromhex(content),
        tuple([(name, value) for name, value in attributes]),
    )


# -- writing -----------------------------------------------------------------------------------------------


def open_body(command: Open, attempt: bytes) -> bytes:
    """The body that a claim by this attempt writes if the key is free."""
    intended = command.fingerprint
    try:
        intent = _intent_line(*intended, command.attributes)
    except _Long as long:
        intent = long.args[0]
    payload, boundary = command.payload, command.boundary
    retain = command.retain_seconds if command.retain_seconds and repeats(boundary) else None
    size = None if payload is None else len(payload)
    begun, ended = _open_story(boundary, command.lease_seconds, command.sends, retain, size)
    return b"s%b%b\n%b\n%b%b%b\n%b" % (_NOW, key_line(command.key), intent, begun, attempt, ended, payload or b"")


@lru_cache(maxsize=1024)
def _open_story(
    boundary: str, lease_seconds: float, sends: bool, retain_seconds: float | None, payload_bytes: int | None
) -> tuple[bytes, bytes]:
    """The story of a new claim, before and after its attempt: the same for most claims of an operation."""
    story = (
        boundary,
        1,
        False,
        -micros(lease_seconds),
        None,
        0 if sends else None,
        0,
        None,
        None,
        None if retain_seconds is None else -micros(retain_seconds),
        False,
        None,
        None,
        None,
        (),
        ((0, 0, "", "started", "", ""),),
        payload_bytes,
        None,
        "",
        None,
    )
    begun, mark, ended = _encoded(story).rpartition(b'"started","')
    return begun + mark, ended


def opened(command: Open, now: int, *, lost: int) -> Record:
    """The record that this claim wrote at this moment."""
    wall = now / 1e6
    fields: list[Any] = list(apply(None, command, Moment(wall, wall, "", now)) or ())
    fields[_LEASE] = (now + micros(command.lease_seconds)) / 1e6
    if fields[_RETAIN] is not None:
        fields[_RETAIN] = (now + micros(command.retain_seconds)) / 1e6
    fields[_NOW_AT:] = (wall, fields[_LEASE] - wall, -wall, _after_loss(now, lost))
    return _record(Record, fields)


def draft(after: Record, before: Record, moment: float) -> Draft:
    """`after`, which was computed for `moment`, in a form that holds for any moment of the write."""
    deadlines: list[tuple[int, int]] = []
    evidence: Any = after.evidence and [
        (0 if one.at == moment else one.at, *one[1:4], None if one.result is None else one.result.hex(), one.why)
        for one in after.evidence
    ]
    moves: Any = after.moves
    if moves and moves[-1].at == moment:
        # Zeros mean the moment and the token of the write.
        moves = (*moves[:-1], (0, 0, *moves[-1][2:]))
    result = after.result
    story = (
        after.boundary,
        after.attempts,
        after.unsure,
        _deadline(_LEASE, after, before, moment, deadlines),
        0 if after.begun_at == moment else after.begun_at,
        0 if after.first_sent_at == moment else after.first_sent_at,
        after.round,
        after.settled_by,
        0 if after.settled_at == moment else after.settled_at,
        _deadline(_RETAIN, after, before, moment, deadlines),
        result is not None,
        after.error,
        after.asker,
        _deadline(_ASKED, after, before, moment, deadlines),
        evidence,
        moves,
        None if after.payload is None else len(after.payload),
        None if after.notes is None else after.notes.hex(),
        b"".join(after.terms).hex(),
        None if after.inquiry is None else after.inquiry._asdict(),
    )
    try:
        intent = _intent_line(after.fingerprint, after.form, after.fields, after.content, after.attributes)
    except _Long as long:
        intent = long.args[0]
    created_at = after.created_at
    body = b"%b%b%b\n%b\n%b\n%b%b" % (
        _LETTERS[after.state],
        _NOW if created_at == moment else b"%016d" % round(created_at * 1e6),
        key_line(after.key),
        intent,
        _encoded(story),
        after.payload or b"",
        result or b"",
    )
    return Draft(body, after, moment, deadlines)


def _deadline(field: int, after: Record, before: Record, moment: float, deadlines: list[tuple[int, int]]) -> Any:
    """A deadline as written: unchanged, or as negative microseconds after the write (then also in `deadlines`)."""
    ends: Any = after[field]
    if ends == before[field] or not ends:
        return ends or None
    left = round((ends - moment) * 1e6)
    deadlines.append((field, left))
    return -left


def dated(drafted: Draft, now: int, token: int, *, lost: int) -> Record:
    """The drafted record, as written at this moment with this token."""
    moment, wall = drafted.moment, now / 1e6
    fields: list[Any] = list(drafted.record)
    for field in _DATES:
        if fields[field] == moment:
            fields[field] = wall
    for field, left in drafted.deadlines:
        fields[field] = (now + left) / 1e6
    moves: tuple[Move, ...] = fields[_MOVES]
    if moves and moves[-1].at == moment:
        fields[_MOVES] = (*moves[:-1], Move(wall, token, *moves[-1][2:]))
    evidence: tuple[Evidence, ...] = fields[_EVIDENCE]
    if evidence and evidence[-1].at == moment:
        fields[_EVIDENCE] = (*evidence[:-1], evidence[-1]._replace(at=wall))
    fields[_TOKEN] = token
    fields[_NOW_AT:] = (
        wall,
        fields[_LEASE] - wall,
        fields[_ASKED] - wall,
        bool(lost) and _after_loss(micros(fields[_CREATED]), lost),
    )
    return _record(Record, fields)


def _encoded(story: tuple[Any, ...]) -> bytes:
    try:
        return _dump(story).encode()
    except UnicodeEncodeError as error:
        raise Misconfigured(f"Redis cannot store this text: {error}") from None


def micros(seconds: float) -> int:
    return round(seconds * 1e6)


# -- reading -----------------------------------------------------------------------------------------------


def written_at(value: bytes) -> int:
    """The time of the write, in microseconds."""
    return int(value[60:HEAD])


def record_of(value: bytes, key: Key | None, digest: bytes, *, now: int, lost: int) -> Record:
    """The value as a checked record. `key` is the one that was requested: the record must belong to it."""
    try:
        if value[:2] != FORMAT:
            raise RecordUnreadable(f"a record is damaged or was written by a newer version: it begins {value[:12]!r}")
        ends = value.index(b"\n", KEY_AT)
        line = value[KEY_AT:ends]
        if key is None:
            operation, tenant, text = json.loads(line)
            key = Key(operation, tenant, text, digest)
        elif line != key_line(key):
            raise RecordUnreadable(f"the record found for {key} belongs to {line.decode()}: two keys with one digest")
        intent_ends = value.index(b"\n", ends + 1)
        story_ends = value.index(b"\n", intent_ends + 1)
        intent = value[ends + 1 : intent_ends]
        fingerprint, form, fields, content, attributes = (
            _intent_of(intent) if len(intent) <= INTENT_KEPT_MAX_BYTES else _intent_of.__wrapped__(intent)
        )
        changed = int(value[60:HEAD])
        # fmt: off
        (
            boundary, attempts, unsure, lease_until, begun_at, first_sent_at, round_, settled_by, settled_at,
            retain_until, kept, error, asker, ask_until, evidence, moves, payload_bytes, notes, terms,
            inquiry,
        ) = json.loads(value[intent_ends + 1 : story_ends])
        # fmt: on
        result_at = story_ends + 1 + (payload_bytes or 0)
        token, wall, changed_at = int(value[12:28]), now / 1e6, changed / 1e6
        created = int(value[77:93]) or changed
        if lease_until is not None and lease_until <= 0:
            lease_until = (changed - lease_until) / 1e6
        if retain_until is not None and retain_until <= 0:
            retain_until = (changed - retain_until) / 1e6
        if ask_until is None:
            ask_until = 0.0
        elif ask_until <= 0:
            ask_until = (changed - ask_until) / 1e6
        return Record._make(
            (
                key,
                _STATES[value[HEAD]],
                token,
                value[28:60].decode("ascii"),
                fingerprint,
                form,
                fields,
                boundary,
                int(value[2:12]),
                attempts,
                created / 1e6,
                changed_at,
                lease_until or 0.0,
                "",
                unsure,
                begun_at or (None if begun_at is None else changed_at),
                first_sent_at or (None if first_sent_at is None else changed_at),
                round_,
                settled_by,
                settled_at or (None if settled_at is None else changed_at),
                retain_until,
                value[result_at:] if kept else None,
                error,
                asker,
                ask_until,
                attributes,
                tuple([evidence_of(at or changed_at, *rest) for at, *rest in evidence]),
                tuple([Move(at or changed_at, by or token, *rest) for at, by, *rest in moves]),
                content,
                None if payload_bytes is None else value[story_ends + 1 : result_at],
                None if notes is None else bytes.fromhex(notes),
                terms_of(bytes.fromhex(terms)) if terms else (),
                inquiry_of(inquiry),
                wall,
                (lease_until or 0.0) - wall,
                ask_until - wall,
                _after_loss(created, lost),
            )
        )
    except DAMAGED as error:
        raise RecordUnreadable(f"a record is damaged or was written by a newer version: {error!r}") from error


def peeked(value: bytes) -> tuple[State, int, tuple[str, str | None, str]]:
    """State, creation and key, from the beginning of a value."""
    try:
        operation, tenant, text = json.loads(value[KEY_AT : value.index(b"\n", KEY_AT)])
        return _STATES[value[HEAD]], int(value[77:93]) or written_at(value), (operation, tenant, text)
    except DAMAGED as error:
        raise RecordUnreadable(f"a record is damaged or was written by a newer version: {error!r}") from error


def _after_loss(created: int, lost: int) -> bool:
    return bool(lost) and after_loss(created / 1e6, lost / 1e6)
