"""How a record is printed: as one JSON object, as named lines, as one row of a list."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from samekey.cli import _out as out
from samekey.cli._keys import sealer, with_plain_notes
from samekey.core.boundary import parse_terms
from samekey.core.errors import RecordUnreadable
from samekey.core.fingerprint import ADOPTED
from samekey.core.inquiry import Inquiry
from samekey.core.notes import decode
from samekey.core.record import Record
from samekey.core.sealing import RESULT, unseal
from samekey.core.shapes import Unreadable
from samekey.core.states import State
from samekey.ops.story import mark, overdue, since, span, when

COLUMNS = ("STATE", "AGE", "OPERATION", "KEY", "TENANT", "ERROR")


def print_list(entries: Sequence[Record | RecordUnreadable]) -> None:
    """Columns that fit 80 characters on a terminal; every column on a pipe, separated by tabs."""
    if out.is_terminal():
        rows = [as_short_row(entry) for entry in entries]
        empty = {number for number in (4, 5) if not any(row[number] for row in rows)}
        rows = [tuple(cell for number, cell in enumerate(row) if number not in empty) for row in rows]
        out.table([name for number, name in enumerate(COLUMNS) if number not in empty], rows)
    else:
        out.table((), [as_row(entry) for entry in entries])


def as_short_row(record: Record | RecordUnreadable) -> tuple[str, ...]:
    if isinstance(record, RecordUnreadable):
        return ("unreadable", "-", "-", "-", "", record.message)
    key = record.key
    state = "lease over" if overdue(record) else record.state.value
    return (state, span(record.now - record.created_at), key.operation, key.text, key.tenant or "", record.error or "")


def as_row(record: Record | RecordUnreadable) -> tuple[str, ...]:
    if isinstance(record, RecordUnreadable):
        return ("unreadable", "-", "-", "-", _created(record), "-", "-", record.message)
    state = f"{record.state} (lease over)" if overdue(record) else record.state.value
    key = record.key
    age = span(record.now - record.created_at)
    attempts, error = str(record.attempts), record.error or ""
    return (state, key.operation, key.text, key.tenant or "", when(record.created_at), age, attempts, error)


def _created(unreadable: RecordUnreadable) -> str:
    """A cursor is the creation time and the digest; of a row without a creation time it can be anything."""
    at = unreadable.cursor[0] if unreadable.cursor else None
    return when(at) if isinstance(at, float) else "-"


def as_object(record: Record, *, reveal: bool = False) -> dict[str, Any]:
    """The record for programs; payloads are never stored, and results stay masked unless revealed."""
    return {
        "operation": record.key.operation,
        "key": record.key.text,
        "tenant": record.key.tenant,
        "digest": record.key.digest.hex(),
        "state": record.state.value,
        "since": _iso(since(record)),
        "age_seconds": round(record.now - record.created_at, 3),
        "boundary": record.boundary,
        "truth": _truth(record),
        "token": record.token,
        "attempt": record.attempt,
        "attempts": record.attempts,
        "version": record.version,
        "seen": mark(record),
        "lease_live": record.lease_live,
        "lease_left_seconds": round(record.lease_left, 3) if record.state is State.STARTED else None,
        "unsure": record.unsure,
        "created_at": _iso(record.created_at),
        "changed_at": _iso(record.changed_at),
        "begun_at": _iso(record.begun_at),
        "first_sent_at": _iso(record.first_sent_at),
        "settled_at": _iso(record.settled_at),
        "settled_by": record.settled_by,
        "retain_until": _iso(record.retain_until),
        "provider_key": record.provider_key(),
        "round": record.round,
        "result": _envelope(record, record.result, reveal=reveal),
        "error": record.error,
        "asker": record.asker if record.being_asked else None,
        "inquiry": None if record.inquiry is None else _inquiry(record.inquiry),
        "attributes": dict(record.attributes),
        "notes": _notes(record),
        "content": None if record.content is None else record.content.hex(),
        "compared": record.form != ADOPTED,
        "fingerprint": record.fingerprint.hex(),
        "form": record.form,
        "fields": [name for name, _ in record.fields],
        "evidence": [
            {
                "at": _iso(one.at),
                "token": one.token,
                "attempt": one.attempt,
                "state": one.state.value,
                "why": one.why,
                "result": _envelope(record, one.result, reveal=reveal),
            }
            for one in record.evidence
        ],
        "moves": [{**move._asdict(), "at": _iso(move.at)} for move in record.moves],
    }


def _inquiry(inquiry: Inquiry) -> dict[str, Any]:
    """The looks at a doubt, and what callers got."""
    facts = {**inquiry._asdict(), "look_at": _iso(inquiry.look_at), "reported_at": _iso(inquiry.reported_at or None)}
    return {name: value for name, value in facts.items() if value not in (None, "", 0, False)}


def as_lines(record: Record, *, reveal: bool = False) -> Iterator[tuple[str, str]]:
    """Name and text of every field, for people; a list is one line per entry."""
    for name, value in as_object(record, reveal=reveal).items():
        if name == "result" or not isinstance(value, (list, dict)):
            yield name, _text(name, value, record)
        elif isinstance(value, dict):
            yield name, ", ".join(f"{one}={text}" for one, text in value.items())
        elif name == "fields":
            yield name, ", ".join(value)
        else:
            for entry in value:
                yield name, _entry(entry)


def _text(name: str, value: Any, record: Record) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case dict():
            return _result_text(value)
        case str() if name in _TIMES and (at := getattr(record, name, None)) is not None:
            return f"{value}  ({_relative(record.now - at)})"
        case _:
            return str(value)


_TIMES = ("created_at", "changed_at", "begun_at", "first_sent_at", "settled_at", "retain_until")


def _relative(seconds: float) -> str:
    return f"{span(seconds)} ago" if seconds >= 0 else f"in {span(-seconds)}"


def _entry(entry: dict[str, Any]) -> str:
    shown = {**entry, "result": _result_text(entry["result"])} if entry.get("result") else entry
    return "  ".join(f"{name}={value}" for name, value in shown.items() if value not in ("", None))


# -- results -----------------------------------------------------------------------------------------------------


def _envelope(record: Record, envelope: bytes | None, *, reveal: bool) -> dict[str, Any] | None:
    if envelope is None:
        return None
    kept: dict[str, Any] = {"bytes": len(envelope), "masked": not reveal}
    if not reveal:
        return kept
    try:
        return {**kept, "value": _value(unseal(sealer(), envelope, RESULT, record.key))}
    except Unreadable as unreadable:
        return {**kept, "value": None, "unreadable": str(unreadable)}


def _value(envelope: bytes) -> Any:
    """What the envelope holds, as it is stored. Classes are not rebuilt: `show` runs no code of the user."""
    if envelope[1:2] != b"B":
        try:
            return json.loads(envelope[2:])
        except (ValueError, RecursionError):
            pass  # damaged or encrypted: show the bytes
    return {"hex": envelope[2:].hex()}


def _result_text(kept: dict[str, Any]) -> str:
    if kept["masked"]:
        return f"kept, {kept['bytes']} bytes, masked (--reveal shows it)"
    if "unreadable" in kept:
        return f"kept, {kept['bytes']} bytes, and cannot be shown: {kept['unreadable']}"
    return json.dumps(kept["value"], ensure_ascii=False)


def _notes(record: Record) -> dict[str, Any]:
    """What the effect noted about itself; {"sealed": true} where it is encrypted and no key is at hand."""
    if record.notes is None:
        return {}
    try:
        return dict(decode(with_plain_notes(record).notes or b""))
    except RecordUnreadable:
        return {"sealed": True}


def _truth(record: Record) -> str | None:
    try:
        return parse_terms(record.boundary).truth
    except RecordUnreadable:
        return None  # a boundary of a newer version: `show` still shows the rest


def _iso(at: float | None) -> str | None:
    if at is None:
        return None
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError, OSError):
        return f"@{at!r}"
