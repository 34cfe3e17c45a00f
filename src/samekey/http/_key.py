"""The Idempotency-Key header: one key, or the reason why it is malformed. Read before anything is looked up.

The draft asks for a structured-field string, `"k"`; nearly every client sends `k`. Both are the key `k`. Two headers,
or a list in one, are refused: proxies join them, and each framework picks a different one.
"""

from __future__ import annotations

import re

from samekey.core.errors import KeyMalformed

KEY_MAX_CHARS = 255  # what Stripe takes, and more than any UUID
HEADER_MAX_BYTES = 1024  # a key with every character escaped, quotes, and room for parameters

_STRING = rb'"((?:[ !#-\[\]-~]|\\["\\])*)"'
_BARE = re.compile(rb"[!#-+\--:<-~]+")  # visible ASCII but quotes, commas and semicolons, which structure a field
_QUOTED = re.compile(_STRING + rb"(?: *; *[a-z*][a-z0-9_.*-]*(?:=(?:" + _STRING + rb"|[!#-+\--:<-~]+))?)*")
_ESCAPED = re.compile(rb'\\(["\\])')
_USUAL = re.compile(rb'"([!#-+\--:<-\[\]-~]{1,255})"|([!#-+\--:<-~]{1,255})')  # nearly every key there is


def parse_key(value: bytes, name: bytes = b"idempotency-key", strict: bool = False) -> str:
    """
    >>> parse_key(b'"8e03978e"'), parse_key(b"8e03978e")
    ('8e03978e', '8e03978e')
    """
    usual = _USUAL.fullmatch(value)
    if usual is not None and (usual[1] or not strict):
        return (usual[1] or usual[2]).decode("ascii")
    value = value.strip(b" \t")
    if len(value) > HEADER_MAX_BYTES:
        raise KeyMalformed(f"{shown(name)} is {len(value)} bytes long; {KEY_MAX_CHARS} characters is the limit")
    if value[:1] == b'"':
        quoted = _QUOTED.fullmatch(value)
        if quoted is None:
            raise KeyMalformed(f"{shown(name)} opens a quoted string and is not one")
        key = quoted[1]
        if b"\\" in key:
            key = _ESCAPED.sub(rb"\1", key)
    elif strict:
        raise KeyMalformed(f'{shown(name)} must be a quoted string: "..."')
    elif not value:
        raise KeyMalformed(f"{shown(name)} is empty")
    elif _BARE.fullmatch(value) is None:
        raise KeyMalformed(f"{shown(name)} holds a character that is not allowed outside a quoted string")
    else:
        key = value
    if not key.strip():
        raise KeyMalformed(f"{shown(name)} is empty")
    if len(key) > KEY_MAX_CHARS:
        raise KeyMalformed(f"{shown(name)} is {len(key)} characters long; {KEY_MAX_CHARS} is the limit")
    return key.decode("ascii")


def shown(name: bytes) -> str:
    return name.decode("latin-1").title()
