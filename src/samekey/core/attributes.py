"""Attributes: a few short texts that a claim keeps with its record, such as a region or a request id.

What a program writes down is checked, and refused if it cannot be kept. What comes from a caller's arguments or from a
request is fitted instead: cut to the limit or left out, because a label must never be the reason to refuse a payment.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any
from uuid import UUID

from samekey.core.errors import Misconfigured
from samekey.core.record import ATTRIBUTE_MAX_CHARS, ATTRIBUTES_MAX

Attributes = Mapping[str, str]
Pairs = tuple[tuple[str, str], ...]

_NUMBERS = (int, float, Decimal, UUID)


def check_attributes(attributes: Attributes | Pairs) -> Pairs:
    """The attributes as a record keeps them; Misconfigured for what cannot be kept. Pairs were made by `fitted_to`."""
    if type(attributes) is tuple:
        return attributes
    given: Mapping[Any, Any] = _mapping(attributes)
    if len(given) > ATTRIBUTES_MAX:
        raise Misconfigured(f"{len(given)} attributes; {ATTRIBUTES_MAX} is the limit")
    for name, value in given.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise Misconfigured(f"attributes map names to strings; {name!r} does not")
        if not (name + value).isprintable():
            raise Misconfigured(f"the attribute {name[:40]!a} holds what cannot be shown or stored")
        if max(len(name), len(value)) > ATTRIBUTE_MAX_CHARS:
            raise Misconfigured(f"the attribute {name[:40]!r} is longer than {ATTRIBUTE_MAX_CHARS} characters")
    return tuple(sorted(given.items()))


def fitted_to(attributes: Mapping[str, Any]) -> Pairs:
    """The same, cut to fit: the first names, the beginning of a long text, and nothing that is no text or number.

    >>> fitted_to({"region": "eu", "shard": 7, "cart": {"items": 3}, "agent": None})
    (('region', 'eu'), ('shard', '7'))
    """
    kept: dict[str, str] = {}
    for name, value in _mapping(attributes).items():
        if not isinstance(name, str):
            raise Misconfigured(f"attributes map names to strings; {name!r} is no name")
        text = _text(value)
        if text and name and len(name) <= ATTRIBUTE_MAX_CHARS and (name + text).isprintable():
            kept[str.__str__(name)] = text
        if len(kept) == ATTRIBUTES_MAX:
            break
    return tuple(sorted(kept.items()))


def _text(value: Any) -> str:
    """The beginning of a text, a number as it is written; "" for any other value."""
    if isinstance(value, str):
        return str.__str__(value)[:ATTRIBUTE_MAX_CHARS]
    try:
        return str(value)[:ATTRIBUTE_MAX_CHARS] if isinstance(value, _NUMBERS) else ""
    except ValueError:  # Python writes no number of more than some thousand digits
        return ""


def _mapping(attributes: Any) -> Mapping[Any, Any]:
    if not isinstance(attributes, Mapping):
        raise Misconfigured(f"attributes map names to strings; a {type(attributes).__name__} does not")
    return attributes
