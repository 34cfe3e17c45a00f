"""The duplicate detector: one pure function from what is known of a key and one stored row to alerts.

`watch` keeps the state of every key in a dictionary, and the Spark program keeps it in Spark's state store: both call
`Detector.fold`, so both give the same alerts. This file imports the standard library only, because `export-job` ships
it to clusters that have no samekey.

Rows of one key are ordered by time and then by row, shorter names first, so that row 9 comes before row 10. A row is a
duplicate when the row before it is at most `window` older: the window slides, each row starts it again. Rows may arrive
in any order. A row that arrives late, between or before known rows, gets or causes the alert that it would have got or
caused in order; no row gets two alerts. A change that is delivered again has a row that is known, and changes nothing.

The state of a key is bytes: a flag (whether older rows were dropped), then per row its time, whether it has its alert,
and its name. It holds at most `ROWS_KEPT` rows. A row that sorts before a dropped one gives no alert: it may be
a change that is delivered again.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from typing import NamedTuple

ROWS_KEPT = 32  # of one key; a key with more rows has its alerts already
ROW_MAX_BYTES = 1024  # a longer primary key is named by its digest
DIGEST_BYTES = 16  # 128 bits: two keys of a billion share one with probability 1e-21

_FIRST = struct.Struct("<BqBH")  # dropped, time, alerted, length of the row's name
_ROW = struct.Struct("<qBH")


class Event(NamedTuple):
    """One stored row, as a rule sees it."""

    key: bytes  # digest of the rule's key values
    row: bytes  # what identifies the row: its primary key as text
    at: int  # microseconds since 1970: when the row was stored
    position: str = ""  # where the change is in its stream
    source: tuple[str | None, ...] = ()  # values of the rule's source columns
    request_id: str | None = None


class Alert(NamedTuple):
    """Two rows with one key. `id` depends on the rule, the key and the later row only, so that it is stable."""

    id: str
    rule: str
    key: str  # hexadecimal digest
    first_row: str
    first_at: int
    row: str
    at: int
    event: Event  # the row whose arrival gave the alert; the first of the two when the later row was known before


class Detector:
    """The detector of one rule. It has no state of its own."""

    __slots__ = ("_salt", "rule", "window")

    def __init__(self, rule: str, window: int | None) -> None:
        self.rule = rule
        self.window = window  # microseconds; None: any distance
        self._salt = rule.encode() + b"\0"

    def fold(self, state: bytes, event: Event) -> tuple[bytes, tuple[Alert, ...]]:
        """The state of the key after this row, and the alerts that the row gives. An unknown key has the state b""."""
        row = event.row
        if not state:
            return _FIRST.pack(0, event.at, 0, len(row)) + row, ()
        return self._fold_known(state, event)

    def _fold_known(self, state: bytes, event: Event) -> tuple[bytes, tuple[Alert, ...]]:
        dropped, rows = unpack(state)
        place = _place(event.at, event.row)
        index = sum(_place(at, row) < place for at, row, _ in rows)
        if any(row == event.row for _, row, _ in rows) or (dropped and index == 0):
            return state, ()
        alerts = []
        before = rows[index - 1] if index else None
        alerted = before is not None and self._near(before[0], event.at)
        if before is not None and alerted:
            alerts.append(self._alert(event, before[0], before[1], event.at, event.row))
        if index < len(rows):
            at, row, known = rows[index]
            if not known and self._near(event.at, at):
                rows[index] = (at, row, True)
                alerts.append(self._alert(event, event.at, event.row, at, row))
        rows.insert(index, (event.at, event.row, alerted))
        return pack(dropped or len(rows) > ROWS_KEPT, rows[-ROWS_KEPT:]), tuple(alerts)

    def expired(self, state: bytes, now: int) -> bool:
        """Whether no row that is stored from now on can have its first row in this state."""
        return self.window is not None and not self._near(unpack(state)[1][-1][0], now)

    def _near(self, earlier: int, later: int) -> bool:
        return self.window is None or later - earlier <= self.window

    def _alert(self, event: Event, first_at: int, first_row: bytes, at: int, row: bytes) -> Alert:
        name = hashlib.blake2b(self._salt + event.key + row, digest_size=DIGEST_BYTES).hexdigest()
        first, second = first_row.decode("utf-8", "replace"), row.decode("utf-8", "replace")
        return Alert(name, self.rule, event.key.hex(), first, first_at, second, at, event)


def _place(at: int, row: bytes) -> tuple[int, int, bytes]:
    return at, len(row), row


def unpack(state: bytes) -> tuple[bool, list[tuple[int, bytes, bool]]]:
    """Whether older rows were dropped, and the rows: time, name, whether it has its alert."""
    rows, at, size = [], 1, len(state)
    while at < size:
        time, alerted, length = _ROW.unpack_from(state, at)
        at += _ROW.size
        rows.append((time, state[at : at + length], bool(alerted)))
        at += length
    return bool(state[0]), rows


def pack(dropped: bool, rows: Iterable[tuple[int, bytes, bool]]) -> bytes:
    parts = [b"\1" if dropped else b"\0"]
    for at, row, alerted in rows:
        parts += (_ROW.pack(at, alerted, len(row)), row)
    return b"".join(parts)


def row_name(values: Iterable[bytes | None]) -> bytes:
    """What identifies a row: the value of one column as it is, several with their lengths."""
    parts = list(values)
    if len(parts) == 1 and parts[0] is not None:
        name = parts[0]
    else:
        name = b",".join(b"-" if part is None else b"%d:%b" % (len(part), part) for part in parts)
    if len(name) <= ROW_MAX_BYTES:
        return name
    return b"#" + hashlib.blake2b(name, digest_size=DIGEST_BYTES).hexdigest().encode()


class Keys:
    """Digests of key values: keyed, so that a state file or an alert does not give away a short value."""

    __slots__ = ("_base",)

    def __init__(self, rule: str, secret: bytes) -> None:
        self._base = hashlib.blake2b(b"%d:%b" % (len(rule), rule.encode()), digest_size=DIGEST_BYTES, key=secret)

    def digest(self, values: Iterable[bytes | None]) -> bytes:
        """Each value goes in with its length: ("a", "bc") and ("ab", "c") differ, and so do NULL and an empty text."""
        made = self._base.copy()
        made.update(b"".join([b"-" if value is None else b"%d:%b" % (len(value), value) for value in values]))
        return made.digest()
