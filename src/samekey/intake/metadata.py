"""Operations on a run's metadata: set, delete, append, remove, increment, update; keys may be paths (`$.a.b[0]`)."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

METADATA_MAX_BYTES = 256 << 10
DEPTH_MAX = 32
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d{1,6})\]|\['([^']+)'\]")


class MetadataError(ValueError):
    """An operation that cannot be applied; the text names its place."""


def apply_operations(metadata: Mapping[str, Any], operations: Iterable[Any]) -> dict[str, Any]:
    """A new metadata object with the operations applied in their order."""
    if not isinstance(metadata, Mapping):
        raise MetadataError("metadata must be an object")
    result: dict[str, Any] = copy.deepcopy(dict(metadata))
    for at, operation in enumerate(operations):
        place = f"operations[{at}]"
        if not isinstance(operation, Mapping):
            raise MetadataError(f"{place} must be an object")
        kind = operation.get("type")
        if kind == "update":
            value = operation.get("value")
            if not isinstance(value, Mapping):
                raise MetadataError(f"{place}.value must be an object")
            result = copy.deepcopy(dict(value))
            continue
        _one(result, kind, operation, place)
    if len(json.dumps(result)) > METADATA_MAX_BYTES:
        raise MetadataError(f"metadata is larger than {METADATA_MAX_BYTES} bytes")
    return result


def _one(result: dict[str, Any], kind: Any, operation: Mapping[str, Any], place: str) -> None:
    holder, last = _holder(result, operation.get("key"), place, make=kind not in ("delete", "remove"))
    if holder is None:
        return
    present = last < len(holder) if isinstance(last, int) else last in holder
    value = operation.get("value")
    match kind:
        case "set":
            if "value" not in operation:
                raise MetadataError(f"{place}.value is missing")
            if isinstance(last, int) and last >= len(holder):
                if last > len(holder):
                    raise MetadataError(f"{place}.key leaves a gap in the list")
                holder.append(copy.deepcopy(value))
            else:
                holder[last] = copy.deepcopy(value)
        case "delete":
            if present:
                del holder[last]
        case "append":
            found = holder[last] if present else []
            holder_value = found if isinstance(found, list) else [found]
            holder[last] = [*holder_value, copy.deepcopy(value)]
        case "remove":
            if present and isinstance(holder[last], list):
                holder[last] = [one for one in holder[last] if one != value]
        case "increment":
            before = holder[last] if present else 0
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise MetadataError(f"{place}.value must be a number")
            if isinstance(before, bool) or not isinstance(before, (int, float)):
                raise MetadataError(f"{place}.key names a value that is no number")
            holder[last] = before + value
        case _:
            raise MetadataError(f"{place}.type must be set, delete, append, remove, increment or update")


def _holder(result: dict[str, Any], key: Any, place: str, *, make: bool) -> tuple[Any, Any]:
    """The object or list that holds the value, and its name or number in it; (None, None) where there is none."""
    steps = _steps(key, place)
    holder: Any = result
    for step, following in pairwise(steps):
        if isinstance(step, int) != isinstance(holder, list):
            raise MetadataError(f"{place}.key does not fit the metadata")
        present = step < len(holder) if isinstance(step, int) else step in holder
        if not present:
            if not make:
                return None, None
            if isinstance(step, int):
                raise MetadataError(f"{place}.key leaves a gap in the list")
            holder[step] = [] if isinstance(following, int) else {}
        holder = holder[step]
        if not isinstance(holder, (dict, list)):
            raise MetadataError(f"{place}.key goes through a value that is no object")
    if isinstance(steps[-1], int) != isinstance(holder, list):
        raise MetadataError(f"{place}.key does not fit the metadata")
    return holder, steps[-1]


def _steps(key: Any, place: str) -> list[Any]:
    if not isinstance(key, str) or not key:
        raise MetadataError(f"{place}.key must be a text")
    if not key.startswith("$"):
        return [key]
    found, position = [], 1
    while position < len(key):
        match = _STEP.match(key, position)
        if match is None:
            raise MetadataError(f"{place}.key is no readable path")
        name, number, quoted = match.groups()
        found.append(int(number) if number is not None else (name if name is not None else quoted))
        position = match.end()
    if not found or len(found) > DEPTH_MAX:
        raise MetadataError(f"{place}.key is no readable path")
    return found
