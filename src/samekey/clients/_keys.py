"""Which key an outgoing request gets. The key belongs to the operation, never to the attempt.

A request that has a key keeps it. Else the innermost block around it gives the key: `with same_key(...)`, or a guarded
effect with the provider key of its hold, which is the same after a crash and in every process. Else the key is new.

A key names one request. A provider that compares requests refuses a second, different one under the same key; one that
does not compare loses its effect. So a second request under one key is an error here, before anything is sent.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from samekey.core.errors import Misconfigured
from samekey.guard.hold import current

KEYED_METHODS = frozenset({"POST", "PATCH"})  # the others may be repeated without a key
KEY_MAX_CHARS = 255  # Stripe's limit; other providers have a lower one

_PRINTABLE = re.compile(r"[!-~](?:[ -~]*[!-~])?")  # ASCII, with no space at its ends
_BOUNDARY = re.compile(r'multipart/[^;]+;(?:.*;)?\s*boundary="?([^";,]+)', re.IGNORECASE)


@dataclass(slots=True)
class _Block:
    """A `with same_key(...)`: its key or label, the hold in which it was opened, and the request that has the key."""

    key: str | None
    label: str
    inside: Any
    named: dict[str, bytes] = field(default_factory=dict)


_block: ContextVar[_Block | None] = ContextVar("samekey_client_key", default=None)
_holds: WeakKeyDictionary[Any, dict[str, bytes]] = WeakKeyDictionary()  # which request each key of a hold names


@contextmanager
def same_key(key: str | None = None, *, label: str = "") -> Iterator[None]:
    """The request sent in this block has one key, however often the code in the block sends it.

    `key` is that key. Inside a guarded effect, `label` makes it the hold's provider key of that label, for the second
    request of an effect (the lookup asks with `record.provider_key(label)`). With neither, the block gets a new key. A
    guarded effect inside the block has its own keys.

        with same_key("order-17"):
            client.post("/charges", json=charge)
    """
    held = _held()
    if key is not None:
        if label:
            raise Misconfigured("give a key or a label, not both: a label is for the hold's own key")
        _check(key)
    elif held is None:
        if label:
            raise Misconfigured("a label is for the second request of a guarded effect, and none is running here")
        key = new_key()
    token = _block.set(_Block(key, label, held))
    try:
        yield
    finally:
        _block.reset(token)


def key_for(
    method: str, url: str, body: bytes | None, content_type: str | None = None, *, before: str | None = None
) -> str:
    """The key of this request; `body` is None for a stream, which is not compared.

    `before` is the key that this request object got when it was sent before, by a loop of the caller. The request keeps
    it, unless a guarded effect or a block around it gives another key now.
    """
    block, held = _block.get(), _held()
    if block is not None and held is not None and _is_within(held, block):
        block = None  # the attempt after a crash must find the effect's key again, and it runs in no block
    if block is not None and block.key is not None:
        key, named = block.key, block.named
    elif held is not None:
        key = held.provider_key("" if block is None else block.label)
        named = _holds.setdefault(held, {})
    else:
        return before or new_key()
    request = digest(method, url, body if body is None else _without_boundary(body, content_type or ""))
    if named.setdefault(key, request) != request:
        raise Misconfigured(
            f"{method} {_shown(url)} is the second request under one key, and not the same as the first: "
            "give it its own key, with same_key(label='what it does') or another same_key(key)"
        )
    return key


def digest(method: str, url: str, body: bytes | None) -> bytes:
    """The digest by which a request is recognised."""
    whole = hashlib.sha256(f"{method} {url}\n".encode())
    whole.update(b"a stream" if body is None else hashlib.sha256(body).digest())
    return whole.digest()


def _without_boundary(body: bytes, content_type: str) -> bytes:
    """The body without the boundary between its parts, which is random and new for each request."""
    found = _BOUNDARY.match(content_type)
    return body if found is None else body.replace(b"--" + found[1].encode(), b"--")


def seconds_left() -> float | None:
    """How long the guarded effect around this call may still wait; None outside of one."""
    held = _held()
    if held is None:
        return None
    return 0.0 if held.lost else float(held.seconds_left)


def new_key() -> str:
    return str(uuid.uuid4())


def _held() -> Any:
    try:
        return current()
    except Misconfigured:
        return None


def _is_within(held: Any, block: _Block) -> bool:
    """Whether this hold began inside the block."""
    outer = block.inside
    return held is not outer and (outer is None or outer.attempt in held.lineage)


def _shown(url: str) -> str:
    """The URL without password and query, which belong in no log."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _check(key: Any) -> None:
    if not isinstance(key, str) or len(key) > KEY_MAX_CHARS or not _PRINTABLE.fullmatch(key):
        raise Misconfigured(f"a key for a header is 1 to {KEY_MAX_CHARS} printable ASCII characters")
    if any(char in key for char in ',;"\\'):
        raise Misconfigured("a key for a header has no comma, semicolon, quote or backslash: they structure a header")
