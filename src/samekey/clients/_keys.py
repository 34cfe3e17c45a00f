"""Which key an outgoing request gets. The key belongs to the operation, never to the attempt.

The one the request has already; else that of what is closest around it: `with same_key(...)`, or a guarded effect with
the provider key of its hold, which is the same after a crash and in every process; else a new one.

A key names one request. Two different ones under one key are a refusal at a provider that compares, and a lost effect
at one that does not: so that is an error here, before anything is sent.
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

KEYED_METHODS = frozenset({"POST", "PATCH"})  # the others may be repeated as they are
KEY_MAX_CHARS = 255  # what Stripe takes; others take less

_BOUNDARY = re.compile(r'multipart/[^;]+;(?:.*;)?\s*boundary="?([^";,]+)', re.IGNORECASE)


@dataclass(slots=True)
class _Block:
    """A `with same_key(...)`: its key or label, the hold it stands in, and which request has it."""

    key: str | None
    label: str
    inside: Any
    named: dict[str, bytes] = field(default_factory=dict)


_block: ContextVar[_Block | None] = ContextVar("samekey_client_key", default=None)
_holds: WeakKeyDictionary[Any, dict[str, bytes]] = WeakKeyDictionary()  # what a hold's keys name


@contextmanager
def same_key(key: str | None = None, *, label: str = "") -> Iterator[None]:
    """The request sent in this block has this key, however often the block's own code sends it.

    With `key` that one; with `label`, inside a guarded effect, the hold's provider key of that label (for the second
    request of an effect; the lookup asks with `record.provider_key(label)`); with neither a new one for the block. A
    guarded effect inside the block has keys of its own.

        with same_key("order-17"):
            client.post("/charges", json=charge)
    """
    held = _held()
    if key is not None:
        if label:
            raise Misconfigured("a key or a label: a label makes the hold's key another one")
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
    """The key of this request; `body` None where it is a stream, which is not compared.

    `before` is the one it was given when it was sent before, as the same object: a loop of the caller's own, unless an
    effect or a block says that it is another operation now.
    """
    block, held = _block.get(), _held()
    if block is not None and held is not None and _is_within(held, block):
        block = None  # an effect's key must be found again by whoever comes after a crash, and that one has no block
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
            "give it a key of its own, with same_key(label='what it does') or another same_key(key)"
        )
    return key


def digest(method: str, url: str, body: bytes | None) -> bytes:
    """What one request is known by."""
    whole = hashlib.sha256(f"{method} {url}\n".encode())
    whole.update(b"a stream" if body is None else hashlib.sha256(body).digest())
    return whole.digest()


def _without_boundary(body: bytes, content_type: str) -> bytes:
    """What stands between the parts of a form is drawn by chance, anew for each request."""
    found = _BOUNDARY.match(content_type)
    return body if found is None else body.replace(b"--" + found[1].encode(), b"--")


def seconds_left() -> float | None:
    """How long the guarded effect around us may still wait; None outside of one."""
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
    """Without what belongs in no log: a password, a query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _check(key: Any) -> None:
    if not (
        isinstance(key, str)
        and key
        and len(key) <= KEY_MAX_CHARS
        and key.isascii()
        and key.isprintable()
        and key == key.strip()
    ):
        raise Misconfigured(f"a key for a header is 1 to {KEY_MAX_CHARS} printable ASCII characters")
    if any(char in key for char in ',;"\\'):
        raise Misconfigured("a key for a header has no comma, semicolon, quote or backslash: they structure a header")
