"""Notes: what an effect writes about itself with its outcome, for people and for reconciliation.

A record keeps them as canonical JSON: names sorted, no spaces, ASCII. Bounded and typed, and never the payload.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from samekey.core.errors import Misconfigured, RecordUnreadable
from samekey.core.record import DAMAGED, Record
from samekey.core.sealing import NOTES, Sealer, unseal
from samekey.core.shapes import Unreadable

NOTES_MAX = 16  # names in one record
NOTE_MAX_CHARS = 256  # of a name, and of a text; of a number in decimal digits

Note = str | int | bool


def encode(notes: Mapping[str, Note]) -> bytes:
    """The notes as bytes; Misconfigured for what is no note.

    >>> encode({"currency": "EUR", "amount_minor": 200})
    b'{"amount_minor":200,"currency":"EUR"}'
    """
    if not isinstance(notes, Mapping):
        raise Misconfigured(f"notes map names to values; a {type(notes).__name__} does not")
    if len(notes) > NOTES_MAX:
        raise Misconfigured(f"{len(notes)} notes; {NOTES_MAX} is the limit")
    plain: dict[str, Note] = {}
    for name, value in notes.items():
        _check_name(name)
        plain[str.__str__(name)] = _plain(name, value)
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def decode(data: bytes) -> dict[str, Note]:
    """The notes in these bytes; RecordUnreadable if they are none."""
    try:
        notes = json.loads(data)
        if type(notes) is not dict or not all(type(value) in (str, int, bool) for value in notes.values()):
            raise ValueError("no notes")
        return notes
    except DAMAGED as error:
        raise RecordUnreadable(f"notes are damaged, or of a newer version: {error!r}") from error


def notes_of(record: Record, keys: Sealer | None = None) -> dict[str, Note]:
    """What the effect noted about itself by `held.note(...)`; {} if it noted nothing.

    `keys` are those of the guard, where it has some. RecordUnreadable if the notes do not open, or are damaged.
    """
    if record.notes is None:
        return {}
    try:
        return decode(unseal(keys, record.notes, NOTES, record.key))
    except Unreadable as unreadable:
        raise RecordUnreadable(f"the notes of {record.key} cannot be read: {unreadable}") from unreadable


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise Misconfigured(f"notes map names to values; {name!r} is no name")
    if len(name) > NOTE_MAX_CHARS or not name.isprintable():
        raise Misconfigured(f"the name of a note is printable and at most {NOTE_MAX_CHARS} long, not {name[:40]!a}")


def _plain(name: str, value: Any) -> Note:
    """The value as its plain type: a str-Enum, or an int of a library, would come back as another type."""
    if isinstance(value, bool):
        return bool(value)
    if isinstance(value, int):
        if abs(value) >= 10**NOTE_MAX_CHARS:
            raise Misconfigured(f"the note {name[:40]!r} is a number of more than {NOTE_MAX_CHARS} digits")
        return int(value)
    if not isinstance(value, str):
        raise Misconfigured(f"the note {name[:40]!r} is a str, an int or a bool, not a {type(value).__name__}")
    text = str.__str__(value)
    if len(text) > NOTE_MAX_CHARS:
        raise Misconfigured(f"the note {name[:40]!r} is longer than {NOTE_MAX_CHARS} characters")
    if not text.isprintable():
        raise Misconfigured(f"the note {name[:40]!r} holds what cannot be shown or stored")
    return text
