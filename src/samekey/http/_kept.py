"""An answer as the record keeps it: a status line, header lines, an empty line, the body."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from samekey.http._message import BODY_HEADERS, Header, Reply, new_tuple


def pack(reply: Reply, kept: Collection[bytes]) -> bytes:
    """The answer with those of its headers that are `kept`, by their names in lower case."""
    status, headers, body = reply
    lines = [b"%d" % status]
    for name, value in headers:
        name = name.lower()
        if name in kept and b"\n" not in value and b"\r" not in value:  # no server would send such a value
            lines.append(b"%b: %b" % (name, value))
    return b"%b\n\n%b" % (b"\n".join(lines), body or b"")


def unpack(result: Any) -> Reply:
    """The kept answer; a result that a lookup or a person gave is answered as JSON."""
    if not isinstance(result, bytes):
        return Reply(200, [(b"content-type", b"application/json")], json.dumps(result).encode())
    head, cut, body = result.partition(b"\n\n")
    if not cut:
        raise ValueError("not a kept answer")
    status, headers = (_known_head if len(head) <= KNOWN_HEAD_BYTES else _read_head)(head)
    return new_tuple(Reply, (status, list(headers), body))


def _read_head(head: bytes) -> tuple[int, tuple[Header, ...]]:
    status, *lines = head.split(b"\n")
    if not (status.isdigit() and len(status) == 3):
        raise ValueError("not a kept answer")
    headers = []
    for line in lines:
        name, cut, value = line.partition(b": ")
        if not cut:
            raise ValueError("not a kept answer")
        if name not in BODY_HEADERS:
            headers.append((name, value))
    return int(status), tuple(headers)


# The answers of an endpoint differ in their bodies, but hardly ever in their heads.
KNOWN_HEAD_BYTES = 500
_known_head = lru_cache(maxsize=256)(_read_head)


def answer(status: int, body: bytes | str, *, content_type: str = "application/json", **headers: str) -> bytes:
    """An answer to be kept for a key, for a lookup to return: `Happened(answer(201, '{"id": "ch_1"}'))`."""
    given = {"content-type": content_type, **headers}
    named = [(name.replace("_", "-").encode("latin-1"), value.encode("latin-1")) for name, value in given.items()]
    reply = Reply(status, named, body if isinstance(body, bytes) else body.encode())
    return pack(reply, {name.lower() for name, _ in named if b"\n" not in name and b"\r" not in name})
