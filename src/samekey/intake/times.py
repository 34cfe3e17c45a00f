"""Durations and dates as the public trigger API writes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

from samekey.intake.runs import Problem

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_PARTS = re.compile(r"(\d{1,9})([smhdw])")
SECONDS_MAX = 10 * 366 * 86400.0


def duration(what: str, given: Any) -> float:
    """Seconds of `30s`, `1h30m` or a number. Anything else is refused: a silent default would be a wrong promise."""
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        seconds = float(given)
    elif isinstance(given, str) and re.fullmatch(r"(\d{1,9}[smhdw])+", given):
        seconds = float(sum(int(count) * _UNITS[unit] for count, unit in _PARTS.findall(given)))
    else:
        raise Problem(400, f"{what} must be digits and one of s, m, h, d, such as 30s or 24h")
    if not 0 < seconds <= SECONDS_MAX:
        raise Problem(400, f"{what} must be more than zero and at most ten years")
    return seconds


def moment(what: str, given: Any, now: float) -> float:
    """A time, given as a duration from now or as an ISO date."""
    if isinstance(given, str) and re.match(r"\d{4}-\d\d-\d\d", given):
        try:
            read = datetime.fromisoformat(given)
        except ValueError:
            raise Problem(400, f"{what} is no readable date") from None
        return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()
    return now + duration(what, given)


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
