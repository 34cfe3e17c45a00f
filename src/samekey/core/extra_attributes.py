"""Attributes that an instance has in addition to the value of its base class: a Money is a Decimal and a currency."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from functools import lru_cache
from typing import Any

_PYTHONS_OWN = frozenset({"__dict__", "__weakref__"})
_ABSENT = object()


def carries_more(value: Any, base: type) -> bool:
    """Whether this instance of a subclass of `base` has attributes of its own; an Enum member is a constant."""
    cls = type(value)
    if issubclass(cls, Enum):
        return False
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        held = {}
    # A dict subclass that exposes its entries as attributes is often its own __dict__: those entries are no extra.
    if held is not value and not all(is_computed(cls, name) for name in held):
        return True
    return any(_slots(kind) for kind in cls.__mro__[: cls.__mro__.index(base)])


def extra_attributes(value: Any, known: Collection[str]) -> dict[str, Any]:
    """The attributes of an instance that are not `known`, from its dict and its slots, without computed ones."""
    cls: Any = type(value)
    held = getattr(value, "__dict__", {})
    extra = {name: held[name] for name in held if name not in known and not is_computed(cls, name)}
    if (slots := slots_of(cls)) and not slots.issubset(known):
        items = {name: getattr(value, name, _ABSENT) for name in sorted(slots.difference(known))}
        extra |= {name: item for name, item in items.items() if item is not _ABSENT}
    return extra


@lru_cache(maxsize=256)
def slots_of(cls: Any) -> frozenset[str]:
    """The names of the attributes that instances keep in slots, as they are read."""
    return frozenset(_mangled(kind, name) for kind in cls.__mro__ for name in _slots(kind))


def _mangled(cls: type, name: str) -> str:
    return f"_{cls.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name


def is_computed(cls: type, name: str) -> bool:
    """Whether an attribute is Python's own, or a `cached_property`, which is computed again where it is missing."""
    return name.startswith("__") or type(getattr(cls, name, None)).__name__ == "cached_property"


def _slots(cls: type) -> set[str]:
    slots = vars(cls).get("__slots__", ())
    return {slots} - _PYTHONS_OWN if isinstance(slots, str) else set(slots) - _PYTHONS_OWN
