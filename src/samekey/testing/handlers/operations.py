"""New operations: which field of a payload makes two operations different, and an unused value for it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID

NAMED_LIKE_KEYS = ("id", "key", "reference", "uuid")  # alone, or after an underscore: order_id

_numbers = itertools.count(1)  # never twice in a process: a handler may be tried again on the same records


def key_field(handler: Any, payload: Mapping[str, Any]) -> str | None:
    """The field that a guarded handler takes its key from (the first, if there are several); None: not guarded."""
    binding, instance = getattr(handler, "_binding", None), getattr(handler, "_instance", None)
    if binding is None:
        return None
    arguments = () if instance is None else (instance,)
    key = binding.bind(arguments, dict(payload)).key
    changed = (
        name
        for name in _fields(payload)
        if binding.bind(arguments, {**payload, name: renewed(payload[name])}).key != key
    )
    found = next(changed, None)
    if found is None:
        raise ValueError(
            "the handler's key is no field of the payload that can be numbered (a str, an int or a UUID): "
            "try a function that takes it as one and calls the handler"
        )
    return found


def likely_field(payload: Mapping[str, Any], but: Collection[str]) -> str:
    """The field that is meant, where it is plain; `but` names those that it cannot be."""
    fields = [name for name in _fields(payload) if name not in but]
    named = [name for name in fields if name.lower().rpartition("_")[2] in NAMED_LIKE_KEYS]
    for found in (fields, named):
        if len(found) == 1:
            return found[0]
    among = f" (it may be {' or '.join(named or fields)})" if fields else ""
    raise ValueError(f"give key=, the field of the payload that makes two operations different{among}")


def renewed(value: Any) -> Any:
    """The same kind of key, not used before."""
    number = next(_numbers)
    if isinstance(value, str):
        return f"{value}-{number}"
    if isinstance(value, UUID):
        return UUID(int=(value.int + number) % (1 << 128))
    if isinstance(value, int) and not isinstance(value, bool):
        return value + number
    raise ValueError(f"a key that can be numbered is a str, an int or a UUID, not {type(value).__name__}")


def _fields(payload: Mapping[str, Any]) -> list[str]:
    """Those whose values can be renewed."""
    return [name for name, one in payload.items() if isinstance(one, str | int | UUID) and not isinstance(one, bool)]
