"""Canonical text: a text without the differences that people do not see.

Two spellings of one name, such as a key with a trailing space or a full-width letter, have one canonical text.
"""

from __future__ import annotations

import unicodedata
from typing import Any

INVISIBLE = "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff"
SPACES = "\t\n\v\f\r\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def _members(ranges: str) -> list[int]:
    """The code points of a class such as `a-c_`."""
    found: list[int] = []
    at = 0
    while at < len(ranges):
        if ranges[at + 1 : at + 2] == "-":
            found += range(ord(ranges[at]), ord(ranges[at + 2]) + 1)
            at += 3
        else:
            found.append(ord(ranges[at]))
            at += 1
    return found


_SEEN: dict[int, str | None] = {**dict.fromkeys(_members(INVISIBLE)), **dict.fromkeys(_members(SPACES), " ")}


def canonical(value: Any) -> Any:
    """The canonical form of a text; any other value as it is.

    >>> canonical(" Order\\u00a017 ")
    'order 17'
    """
    if not isinstance(value, str):
        return value
    if not value.isascii():
        value = unicodedata.normalize("NFKC", value)
    return value.translate(_SEEN).strip(" ").lower()
