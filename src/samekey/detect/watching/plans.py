"""A rule on the columns of one change: from the values of a row to the event that the detector takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from samekey.core.errors import Misconfigured
from samekey.detect.canonical import canonical
from samekey.detect.detector import Detector, Event, Keys, row_name
from samekey.detect.rule_file import Bound

Values = Sequence[bytes | None]  # of one row, as text in UTF-8

SOURCE_MAX = 200  # characters of a source value that an alert shows
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = datetime(1970, 1, 1)


class Plan:
    """One rule, for rows that have these columns in this order."""

    def __init__(self, bound: Bound, columns: Sequence[str], secret: bytes) -> None:
        self.bound, rule = bound, bound.rule
        missing = [name for name in bound.columns if name not in columns]
        if missing:
            raise Misconfigured(f"rule {rule.name}: the changes of {rule.table} lack {', '.join(missing)}")
        places = {name: place for place, name in enumerate(columns)}
        self.detector = Detector(rule.name, None if rule.window_seconds is None else int(rule.window_seconds * 1e6))
        self._keys = Keys(rule.name, secret)
        self._key = [(places[name], name in rule.canonical) for name in bound.key]
        self._plain = [] if rule.canonical else [place for place, _ in self._key]
        self._nulls_equal = rule.nulls_equal
        self._row = [places[name] for name in rule.row_id]
        self._one_row = self._row[0] if len(self._row) == 1 else None
        self._time = places[rule.time] if rule.time else None
        self._source = [places[name] for name in rule.source]
        self._request = places[rule.request_id] if rule.request_id else None
        self._last_time: tuple[bytes | None, int] = (None, 0)  # rows of one transaction often have one time

    def event(self, values: Values, stored_at: int, position: str) -> Event | None:
        """The event of a row; None when the row has no key. `stored_at`: for a rule without a time column."""
        if self._plain:
            key = [values[place] for place in self._plain]
        else:
            key = [_canonical(values[place]) if folds else values[place] for place, folds in self._key]
        if None in key and not self._nulls_equal:
            return None
        if self._one_row is not None and (only := values[self._one_row]) is not None and len(only) < 256:
            row = only
        else:
            row = row_name([values[place] for place in self._row])
        if self._time is None:
            at = stored_at
        else:
            text = values[self._time]
            known, at = self._last_time
            if text is None or text != known:
                at = _microseconds(text, stored_at)
                self._last_time = (text, at)
        source = tuple([_shown(values[place]) for place in self._source]) if self._source else ()
        request = _shown(values[self._request]) if self._request is not None else None
        return Event(self._keys.digest(key), row, at, position, source, request)


def _canonical(value: bytes | None) -> bytes | None:
    if value is None:
        return None
    text: str = canonical(value.decode("utf-8", "surrogateescape"))
    return text.encode("utf-8", "surrogateescape")


def _shown(value: bytes | None) -> str | None:
    return None if value is None else value[: 4 * SOURCE_MAX].decode("utf-8", "replace")[:SOURCE_MAX]


def _microseconds(value: bytes | None, otherwise: int) -> int:
    """A time column as text, in microseconds since 1970; without a zone it is UTC. NULL and infinity: `otherwise`."""
    if value is None:
        return otherwise
    try:
        at = datetime.fromisoformat(value.decode("ascii"))
    except ValueError:
        return _number(value, otherwise)
    span = at - (_NAIVE_EPOCH if at.tzinfo is None else EPOCH)
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


def _number(value: bytes, otherwise: int) -> int:
    """Seconds, milliseconds or microseconds since 1970: which of them, the size of the number shows."""
    try:
        number = float(value)
    except ValueError:
        return otherwise
    for least, factor in ((1e14, 1.0), (1e11, 1e3), (0.0, 1e6)):
        if number >= least:
            return int(number * factor) if number < 1e18 else otherwise
    return otherwise


Planned = Callable[[Sequence[str]], list[Plan]]  # the columns of a table to the plans of its rules
