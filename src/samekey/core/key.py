"""A key names one intent: operation + tenant + the caller's own key.

The digest is what stores index. It is unkeyed and frozen for ever: a deploy that changed it would
turn one intent into two keys. Every part is length-prefixed, so `a/b` + `c` never equals `a` + `b/c`.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from samekey.core.errors import KeyMalformed, KeyMissing

KEY_MAX_BYTES = 1024  # room for a composite business key; over HTTP the limit is 255
NAME_MAX_BYTES = 255  # operation and tenant: what every store can index and a person can read


_new = tuple.__new__  # every call makes one: calling the class takes twice as long


class Key(NamedTuple):
    """A checked key; build it with `make_key`."""

    operation: str
    tenant: str | None
    text: str
    digest: bytes

    def __str__(self) -> str:
        return (
            f"{self.operation} {self.text}"
            if self.tenant is None
            else f"{self.operation} {self.text} (tenant {self.tenant})"
        )

    @property
    def short(self) -> str:
        """Eight hex digits for logs: enough to find the record, nothing of the key itself."""
        return self.digest[:4].hex()


def make_key(operation: str, text: str, tenant: str | None = None) -> Key:
    """The checked key of these parts; raises KeyMissing or KeyMalformed, never truncates."""
    if type(operation) is str and (tenant is None or type(tenant) is str):
        scope: bytes = _scope(operation, tenant)
    else:
        scope = _scope.__wrapped__(operation, tenant)  # an odd type: judged each time, never remembered
        # A str-Enum shows its name where it is written, in the line that resolves a doubt: the key has the text.
        operation, tenant = str.__str__(operation), None if tenant is None else str.__str__(tenant)
    if not (type(text) is str and 0 < len(text) <= KEY_MAX_BYTES and text.isascii() and text.isprintable()):
        _check("key", text, KEY_MAX_BYTES)
    return _new(Key, (operation, tenant, text, sha256(scope + text.encode()).digest()[:16]))


@lru_cache(maxsize=1024)
def _scope(operation: str, tenant: str | None) -> bytes:
    """What the digest begins with; no tenant is not the same as any. Checked once: names and tenants come again."""
    _check("operation name", operation, NAME_MAX_BYTES)
    if tenant is not None:
        _check("tenant", tenant, NAME_MAX_BYTES)
    name = operation.encode()
    whose = b"" if tenant is None else b"t" + tenant.encode()
    return b"samekey.key.1%d:%b%d:%b" % (len(name), name, len(whose), whose)


def key_text(parts: tuple[Any, ...]) -> str:
    """The text of a key made of one or several values, each escaped so that parts never run together."""
    if not parts:
        raise KeyMissing("the key has no parts: give at least one value")
    if len(parts) == 1:
        return part_text(parts[0])
    if not all(parts) and any(part == "" for part in parts):
        raise KeyMissing("a part of the key is empty")
    return "/".join(part_text(part).replace("\\", "\\\\").replace("/", "\\/") for part in parts)


def as_text(key: Any) -> str:
    """The text of a key given as one value, or as a tuple or list of values."""
    return key_text(tuple(key)) if isinstance(key, (tuple, list)) else part_text(key)


def part_text(value: Any, what: str = "key") -> str:
    """A str, int or UUID as text. Anything else is refused: a guess would merge or split keys."""
    if type(value) is str:
        text: str = value
        return text
    if isinstance(value, str):
        # str() of a str-Enum is the member's name on some Pythons and its value on others.
        return str.__str__(value)
    if value is None:
        raise KeyMissing(f"the {what} is None: give a str, int or UUID")
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return int.__repr__(value)
        except ValueError:  # Python writes no number of more than some thousand digits
            raise KeyMalformed(f"the {what} is a number too long to write: {KEY_MAX_BYTES} bytes at most") from None
    if isinstance(value, UUID):
        return str(value)
    raise KeyMalformed(f"a {what} must be str, int or UUID, not {type(value).__name__}")


def _check(what: str, text: Any, max_bytes: int) -> None:
    if not isinstance(text, str):
        raise KeyMalformed(f"the {what} must be a string, not {type(text).__name__}")
    if not text:
        raise KeyMissing(f"the {what} is empty")
    if text.isascii() and text.isprintable() and len(text) <= max_bytes:
        return
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise KeyMalformed(f"the {what} holds a lone surrogate, which no store can keep") from None
    if size > max_bytes:
        raise KeyMalformed(f"the {what} is {size} bytes long; {max_bytes} is the limit")
    for at, char in enumerate(text):
        if char < " " or "\x7f" <= char <= "\x9f":
            raise KeyMalformed(f"the {what} holds a control character (U+{ord(char):04X} at {at})")
