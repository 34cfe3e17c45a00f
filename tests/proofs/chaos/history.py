"""Whether what many processes saw of a record can be the story of one register.

Every write of a record raises its version, so the order of the writes is known, and what remains to be asked is simple:
whoever began to look when somebody else had already seen a version may not see an older one, and a version shows
the same thing to everybody. A register of which both hold is linearizable.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Sighting(NamedTuple):
    """A record as one process saw it, and when it asked and was answered, by the clock that all of them share."""

    began: float
    ended: float
    version: int
    what: str  # state, token, holder, result


def contradiction(sightings: Iterable[Sighting]) -> str:
    """Why these cannot all be sightings of one register; nothing, if they can."""
    seen = list(sightings)
    shown: dict[int, str] = {}
    for one in seen:
        if shown.setdefault(one.version, one.what) != one.what:
            return f"version {one.version} is {shown[one.version]} and {one.what}"
    newest = 0
    ended = iter(sorted(seen, key=lambda one: one.ended))
    last = next(ended, None)
    for one in sorted(seen, key=lambda one: one.began):
        while last is not None and last.ended < one.began:
            newest = max(newest, last.version)
            last = next(ended, None)
        if one.version < newest:
            return f"version {one.version} was seen after version {newest}"
    return ""
