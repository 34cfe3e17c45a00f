"""Whether two answers are the same, or cannot be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any


def same(one: Any, other: Any) -> bool | None:
    """Whether two answers are the same to their callers; 1 is not True, and a tuple is no list.

    None: they cannot be compared. An object without an == of its own equals only itself, so it is compared by its
    attributes: equal ones are the same answer, and others may differ by an address or a time.
    """
    if type(one) is not type(other):
        return False
    equal = _equal(one, other)
    if equal is not False:
        return equal
    if isinstance(one, list | tuple):
        return len(one) == len(other) and _every(map(_inside, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and _every(_inside(one[name], other[name]) for name in one)
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one) if field.compare]
        return _every(_inside(getattr(one, name), getattr(other, name)) for name in names)
    if equals_itself_only(one):
        return True if hasattr(one, "__dict__") and _equal(vars(one), vars(other)) else None
    return False


def equals_itself_only(thing: Any) -> bool:
    """Whether it has no == of its own."""
    equality: Any = type(thing).__eq__
    return equality is object.__eq__


def incomparable(answer: Any) -> str:
    """Why `same` returned None."""
    kind = type(answer).__name__
    if isinstance(answer, list | tuple | dict):
        kind = f"something in the {kind}"
    return (
        f"the answers could not be compared, because {kind} has no == of its own: let the handler return "
        "data (a dict, a dataclass, a text)"
    )


def _inside(one: Any, other: Any) -> bool | None:
    """The same for parts of an answer, where 1 and True have always been equal."""
    return _equal(one, other) or same(one, other)


def _every(compared: Iterable[bool | None]) -> bool | None:
    found = set(compared)
    return False if False in found else None if None in found else True


def _equal(one: Any, other: Any) -> bool | None:
    try:
        return bool(one == other)
    except Exception:  # arrays, for one, have no single answer
        return None
