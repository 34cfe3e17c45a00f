"""Bodies made from the user's body (another intent, another order, padding), and one field of an answer."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlencode

PADDING = "samekey_padding"


def another(body: bytes, content_type: str) -> bytes | None:
    """The same request with one value changed; None if the body cannot be read."""
    match _kind(content_type):
        case "json":
            parsed = _parsed(body)
            changed = _changed(parsed)
            return None if changed is None else json.dumps(changed).encode()
        case "form":
            pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True)
            if not pairs:
                return None
            (name, value), rest = pairs[-1], pairs[:-1]
            return urlencode([*rest, (name, str(int(value) + 1) if value.isdecimal() else value + "x")]).encode()
        case _:
            return None


def rewritten(body: bytes, content_type: str) -> bytes | None:
    """The same values in another order and with other spaces; None where there is nothing to reorder."""
    match _kind(content_type):
        case "json":
            parsed = _parsed(body)
            turned = json.dumps(_turned(parsed), indent=2).encode()
            return turned if isinstance(parsed, dict | list) and turned != body else None
        case "form":
            pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True)
            return urlencode(pairs[::-1]).encode() if len({name for name, _ in pairs}) > 1 else None
        case _:
            return None


def padded(body: bytes, content_type: str, size: int) -> bytes | None:
    """The same request with a field of this size; None if no field can be added."""
    match _kind(content_type):
        case "json":
            parsed = _parsed(body)
            return json.dumps({**parsed, PADDING: "x" * size}).encode() if isinstance(parsed, dict) else None
        case "form":
            return body + (b"&" if body else b"") + f"{PADDING}=".encode() + b"x" * size
        case _:
            return None


def found_at(path: tuple[str, ...], body: bytes) -> Any:
    """What the JSON has at this path, by names and numbers; ValueError if it has nothing there."""
    try:
        found = json.loads(body)
        for name in path:
            found = found[int(name)] if isinstance(found, list) else found[name]
    except (LookupError, TypeError, RecursionError) as error:
        raise ValueError from error
    return found


def _kind(content_type: str) -> str:
    name = content_type.partition(";")[0].strip().lower()
    if name == "application/json" or name.endswith("+json"):
        return "json"
    return "form" if name == "application/x-www-form-urlencoded" else ""


def _parsed(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _changed(value: Any) -> Any:
    """Change the first number, or else the first text; return None if there is neither."""
    for kind in (int | float, str):
        changed, found = _change_first(value, kind)
        if found:
            return changed
    return None


def _change_first(value: Any, kind: Any) -> tuple[Any, bool]:
    if isinstance(value, kind) and not isinstance(value, bool):
        return (value + "x" if isinstance(value, str) else value + 1), True
    entries: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in entries:
        changed, found = _change_first(inner, kind)
        if found:
            copy = value.copy()
            copy[name] = changed
            return copy, True
    return value, False


def _turned(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _turned(inner) for name, inner in reversed(value.items())}
    return [_turned(inner) for inner in value] if isinstance(value, list) else value
