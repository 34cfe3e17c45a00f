"""Stored text and numbers as pages show them. Stored text comes from outside: what does not print becomes visible."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from samekey.core.errors import RecordUnreadable
from samekey.core.notes import Note, notes_of
from samekey.core.record import Record
from samekey.core.sealing import RESULT, Sealer, unseal
from samekey.core.shapes import Unreadable
from samekey.core.states import State

TEXT_MAX_CHARS = 4096  # of one text on a page
RESULT_MAX_CHARS = 20_000

# State -> its class, its icon and what the badge says.
STATES = {
    State.STARTED: ("started", "started", "started"),
    State.COMPLETED: ("completed", "completed", "completed"),
    State.CLOSED: ("closed", "closed", "closed"),
    State.RELEASED: ("released", "released", "released"),
    State.IN_DOUBT: ("doubt", "doubt", "in doubt"),
}

# Currencies whose minor unit is not a hundredth.
_MINOR_DIGITS = {"JPY": 0, "KRW": 0, "CLP": 0, "ISK": 0, "VND": 0, "BHD": 3, "KWD": 3, "OMR": 3, "TND": 3, "JOD": 3}


def visible(text: Any) -> str:
    """A text without characters that hide or reorder their neighbours.

    >>> visible("a" + chr(0x202e) + "b")
    'a⟨U+202E⟩b'
    """
    given = str(text)
    cut = given[:TEXT_MAX_CHARS]
    shown = cut if cut.isprintable() else "".join(one if one.isprintable() else f"⟨U+{ord(one):04X}⟩" for one in cut)
    return shown if len(given) <= TEXT_MAX_CHARS else f"{shown}… ({len(given)} characters)"


def number(value: float) -> str:
    """
    >>> number(58204), number(0.44), number(12.0)
    ('58,204', '0.4', '12')
    """
    if value != int(value) and abs(value) < 100:
        return f"{value:.1f}"
    return f"{round(value):,}"


def percent(rate: float | None) -> str:
    return "-" if rate is None else f"{100 * rate:.1f} %"


def clock(at: float) -> str:
    """The time of day, in UTC."""
    return _moment(at, "%H:%M:%S")


def day(at: float) -> str:
    moment = _utc(at)
    return "" if moment is None else f"{moment.day} {moment:%B %Y}"


def iso(at: float) -> str:
    return _moment(at, "%Y-%m-%dT%H:%M:%SZ")


def brief(at: float, now: float) -> str:
    """The time of day, with the day where it is another one."""
    moment, today = _utc(at), _utc(now)
    if moment is None:
        return f"@{at!r}"
    if today is not None and moment.date() == today.date():
        return f"{moment:%H:%M:%S}"
    return f"{moment.day} {moment:%b %H:%M}" if today is None or moment.year == today.year else f"{moment:%Y-%m-%d}"


def _moment(at: float, form: str) -> str:
    moment = _utc(at)
    return f"@{at!r}" if moment is None else moment.strftime(form)


def _utc(at: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def noted(record: Record, sealer: Sealer | None) -> Mapping[str, Note]:
    """The notes of a record; none where they are encrypted and the keys are not here."""
    try:
        return notes_of(record, sealer)
    except RecordUnreadable:
        return {}


def money(notes: Mapping[str, Note]) -> tuple[int, str] | None:
    """Amount in minor units and currency, where the effect noted both."""
    amount, currency = notes.get("amount_minor"), notes.get("currency")
    if isinstance(amount, bool) or not isinstance(amount, int) or not isinstance(currency, str):
        return None
    return amount, currency.upper()[:8]


def amount(minor: int, currency: str) -> str:
    """
    >>> amount(941820, "EUR"), amount(-1850, "EUR"), amount(500, "JPY")
    ('9,418.20 EUR', '-18.50 EUR', '500 JPY')
    """
    digits = _MINOR_DIGITS.get(currency, 2)
    whole, rest = divmod(abs(minor), 10**digits)
    text = f"{whole:,}" + (f".{rest:0{digits}d}" if digits else "")
    return f"{'-' if minor < 0 else ''}{text} {currency}"


def result_text(record: Record, sealer: Sealer | None) -> str:
    """What the result envelope holds, as it is stored. Classes are not rebuilt: no code of the user runs."""
    if record.result is None:
        return ""
    try:
        envelope = unseal(sealer, record.result, RESULT, record.key)
    except Unreadable as unreadable:
        return f"It cannot be shown: {unreadable}"
    if envelope[1:2] != b"B":
        try:
            return json.dumps(json.loads(envelope[2:]), ensure_ascii=False, indent=2)[:RESULT_MAX_CHARS]
        except (ValueError, RecursionError):
            pass  # damaged: show the bytes
    return envelope[2:].hex()[:RESULT_MAX_CHARS]


def initials(name: str) -> str:
    parts = [part for part in name.replace("-", " ").split() if part]
    return "".join(part[0] for part in parts[:2]).upper() or "?"


def evidence_text(finding_evidence: str) -> str:
    """The evidence of a finding, indented."""
    try:
        return json.dumps(json.loads(finding_evidence), ensure_ascii=False, indent=2)[:RESULT_MAX_CHARS]
    except (ValueError, RecursionError):
        return finding_evidence[:RESULT_MAX_CHARS]
