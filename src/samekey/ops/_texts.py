"""The name and the reason that a person gives with a decision."""

from __future__ import annotations

from samekey.core.errors import Misconfigured

TEXT_MAX_CHARS = 500  # of a name or a reason: a record carries its last 16 moves in every read


def written(what: str, given: str) -> str:
    """The text without spaces around it; Misconfigured if it is empty, too long, or cannot be printed."""
    text = given.strip()
    if not text:
        raise Misconfigured(f"an operator's decision needs a {what}")
    if not text.isprintable():  # also lone surrogates, which a terminal's broken bytes become
        raise Misconfigured(f"the {what} holds characters that cannot be printed")
    if len(text) > TEXT_MAX_CHARS:
        raise Misconfigured(f"the {what} is {len(text)} characters long; {TEXT_MAX_CHARS} is the limit")
    return text
