"""What an instance holds beside the value that its base shows: a Money is a Decimal, and a currency."""

from __future__ import annotations

from enum import Enum
from typing import Any

_PYTHONS_OWN = frozenset({"__dict__", "__weakref__"})


def carries_more(value: Any, base: type) -> bool:
    """Whether this instance of a subclass of `base` has attributes of its own. A member of an Enum is a constant."""
    cls = type(value)
    if issubclass(cls, Enum):
        return False
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        held = {}
    # A dict that shows its entries as attributes is often its own __dict__, and holds nothing twice.
    if held is not value and not all(is_cached(cls, name) for name in held):
        return True
    return any(_slots(kind) for kind in cls.__mro__[: cls.__mro__.index(base)])


def is_cached(cls: type, name: str) -> bool:
    """Whether an attribute is Python's own, or computed anew where it is missing."""
    return name.startswith("__") or type(getattr(cls, name, None)).__name__ == "cached_property"


def _slots(cls: type) -> set[str]:
    slots = vars(cls).get("__slots__", ())
    return {slots} - _PYTHONS_OWN if isinstance(slots, str) else set(slots) - _PYTHONS_OWN
