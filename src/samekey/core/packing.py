"""A whole record as bytes, for stores that keep it in one piece: a line of JSON, then the result as it is.

Damaged, foreign or newer bytes are refused with RecordUnreadable, never guessed.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

from samekey.core._json import fast_encoder
from samekey.core.errors import RecordUnreadable
from samekey.core.inquiry import inquiry_of
from samekey.core.key import Key
from samekey.core.record import DAMAGED, Move, Record, evidence_of, terms_of
from samekey.core.states import STATES

LINES_KEPT = 1024  # parsed lines: one key is often read again, and its line is the same until the record changes
LINE_KEPT_MAX_BYTES = 4096  # evidence can make a line long; a usual line has a few hundred bytes

_dump = fast_encoder(json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, check_circular=False))
_load = json.JSONDecoder().decode  # json.loads would detect the encoding first
_at = Record._fields.index
_FINGERPRINT, _FIELDS, _RESULT, _NOW = map(_at, ("fingerprint", "fields", "result", "now"))
_ATTRIBUTES, _EVIDENCE, _MOVES = map(_at, ("attributes", "evidence", "moves"))
_CONTENT, _PAYLOAD, _NOTES, _TERMS = map(_at, ("content", "payload", "notes", "terms"))
_INQUIRY = _at("inquiry")


def pack(record: Record) -> bytes:
    """The whole record except its digest, which is the key it is stored under."""
    values: list[Any] = list(record)
    values[0] = record.key[:3]
    values[_FINGERPRINT] = record.fingerprint.hex()
    values[_FIELDS] = [(name, digest.hex()) for name, digest in record.fields]
    values[_RESULT] = record.result is not None
    values[_EVIDENCE] = [
        (*one[:4], None if one.result is None else one.result.hex(), one.why) for one in record.evidence
    ]
    if record.content is not None:
        values[_CONTENT] = record.content.hex()
    if record.payload is not None:
        values[_PAYLOAD] = record.payload.hex()
    if record.notes is not None:
        values[_NOTES] = record.notes.hex()
    values[_TERMS] = b"".join(record.terms).hex()
    if record.inquiry is not None:
        values[_INQUIRY] = record.inquiry._asdict()
    return b"%b\n%b" % (_dump(values).encode(), record.result or b"")


def unpack(data: bytes, key: Key, now: float | None = None) -> Record:
    """The record in these bytes, as seen `now`; RecordUnreadable if they are not a record of this key."""
    try:
        line, _, result = data.partition(b"\n")
        values = list(_read(line) if len(line) <= LINE_KEPT_MAX_BYTES else _read.__wrapped__(line))
        if values[0] != key[:3]:
            raise RecordUnreadable(f"the record found for {key} belongs to another key")
        values[0] = key
        values[_RESULT] = result if values[_RESULT] else None
        if now is not None:
            values[_NOW] = now
        return Record._make(values)
    except DAMAGED as error:
        raise RecordUnreadable(f"a record is damaged or was written by a newer version: {error!r}") from error


@lru_cache(maxsize=LINES_KEPT)
def _read(line: bytes) -> tuple[Any, ...]:
    """The values of a line. The result follows the line and is not kept here, except a short one in evidence."""
    values = _load(line.decode())
    values[0] = tuple(values[0])
    values[1] = STATES[values[1]]
    values[_FINGERPRINT] = bytes.fromhex(values[_FINGERPRINT])
    values[_FIELDS] = tuple([(name, bytes.fromhex(digest)) for name, digest in values[_FIELDS]])
    values[_ATTRIBUTES] = tuple([(name, value) for name, value in values[_ATTRIBUTES]])
    values[_EVIDENCE] = tuple([evidence_of(*one) for one in values[_EVIDENCE]])
    values[_MOVES] = tuple([Move._make(move) for move in values[_MOVES]])
    for number in (_CONTENT, _PAYLOAD, _NOTES):
        if values[number] is not None:
            values[number] = bytes.fromhex(values[number])
    values[_TERMS] = terms_of(bytes.fromhex(values[_TERMS]))
    values[_INQUIRY] = inquiry_of(values[_INQUIRY])
    return tuple(values)
