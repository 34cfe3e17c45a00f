"""Times and lengths of time on the command line: 90s, 30m, 24h, 7d, or a date and time of day in UTC."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

import click

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
LENGTH_MAX = 100 * 365 * 86400.0


def length(value: str | float) -> float:
    """A length of time, in seconds."""
    seconds = value if isinstance(value, float) else length_of(value)
    if seconds is None:
        raise click.BadParameter(f"{value!r} is no length of time: write 90s, 30m, 24h, 7d or 2w.")
    return seconds


def moment(value: str | float) -> float:
    """A point in time, in seconds since 1970: so long ago, or a date, in UTC unless it names its zone."""
    if isinstance(value, float):
        return value
    seconds = length_of(value)
    if seconds is not None:
        return time.time() - seconds
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        wanted = "write 24h (that long ago), 2026-05-03 or 2026-05-03T14:00Z"
        raise click.BadParameter(f"{value!r} is no time: {wanted}.") from None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def length_of(text: str) -> float | None:
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)([smhdw])", text.strip())
    if found is None:
        return None
    seconds = float(found[1]) * SECONDS[found[2]]
    return seconds if seconds <= LENGTH_MAX else None
