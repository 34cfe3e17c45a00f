"""The body of a request as a payload, so that a retry which was written anew is still the same intent.

JSON is read as values, forms and multipart bodies as their fields. Any other body is compared by its digest. So is a
body that claims to be one of these and is not (malformed, ambiguous): equal bytes are the same intent, and the
application decides what it answers to them. A gzip body is decompressed first, up to the limit of a body; one that is
damaged, or has another encoding, is compared by its digest.

A JSON object is the payload itself, so that a mismatch can name its fields. What is compared in addition to the body
(the query, chosen headers, another media type) has keys that are not text, so no JSON object can imitate it.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from functools import lru_cache
from typing import Any
from urllib.parse import unquote_to_bytes

from samekey.core.canonical import canonical
from samekey.core.errors import PayloadRefused
from samekey.core.json_text import read_json

FIELDS_MAX = 1000  # of a form or a multipart body; one with more is compared byte for byte

GZIP = (b"gzip", b"x-gzip")
GZIP_WINDOW = 31  # zlib's number for the gzip format with the largest window

# Keys of what is not a member of a JSON object.
WHOLE, KIND, QUERY, PATH, VARIES = 1, 2, 3, 4, 5

_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]{1,70})"|([^\s";,]{1,70}))', re.IGNORECASE | re.ASCII)

_NAMED = re.compile(
    r'content-disposition: *form-data *; *name="([^"\\\r\n]+)"(?: *; *filename="[^"\\\r\n]*")?',
    re.IGNORECASE | re.ASCII,
)

Read = tuple[dict[Any, Any], bytes]  # a payload, and its canonical bytes


class TooLarge(Exception):
    """A compressed body whose content is larger than a body may be."""


def payload_of(
    body: bytes,
    content_type: bytes,
    content_encoding: bytes | None = None,
    beside: dict[int, Any] | None = None,
    max_bytes: int = 1 << 20,
) -> Read:
    """The payload of a body of this type, together with what is compared `beside` the body."""
    kind = media_of(content_type)
    read: Read | None = None
    plain: bytes | None = body
    if content_encoding and content_encoding.lower() != b"identity":
        plain = decompressed(body, max_bytes) if content_encoding.lower() in GZIP else None
    if plain is None:
        kind = f"{kind} {(content_encoding or b'').decode('latin-1')}"
    else:
        body = plain
        try:
            if kind == "application/json" or kind.endswith("+json"):
                read = from_json(body)
            elif kind == "application/x-www-form-urlencoded":
                read = from_form(body)
            elif kind == "multipart/form-data":
                read = from_multipart(body, content_type.decode("latin-1"))
        except PayloadRefused:
            pass  # it has no exact reading: compared by its digest
    if read is None or kind != "application/json":
        beside = {KIND: kind, **(beside or {})}
    payload, written = read or as_a_whole(digest(body))
    if not beside:
        return payload, written
    payload.update(beside)
    # Keys that are not text come last, in their order.
    for key in sorted(beside) if len(beside) > 1 else beside:
        value = beside[key]
        value = path_written(value) if key == PATH and type(value) is str else canonical(value)
        written = b"%b%b%d:%b}" % (written[:-1], b"" if written == b"{}" else b",", key, value)
    return payload, written


def decompressed(body: bytes, max_bytes: int) -> bytes | None:
    """The content of a gzip body; None if it is damaged, or is not exactly one gzip member."""
    reader = zlib.decompressobj(GZIP_WINDOW)
    try:
        plain = reader.decompress(body, max_bytes + 1)
    except zlib.error:
        return None
    if len(plain) > max_bytes:
        raise TooLarge
    return plain if reader.eof and not reader.unused_data else None


path_written = lru_cache(maxsize=1024)(canonical)  # most requests go to few paths


@lru_cache(maxsize=256)
def media_of(content_type: bytes) -> str:
    return content_type.decode("latin-1").partition(";")[0].strip().lower()


def as_a_whole(value: Any) -> Read:
    payload = {WHOLE: value}
    return payload, canonical(payload)


def from_json(body: bytes) -> Read:
    value, written = read_json(body)
    if type(value) is not dict:
        return as_a_whole(value)
    return value, canonical(value) if written is None else written


def from_form(body: bytes) -> Read | None:
    """Names with all their values; the order of equal names counts, that of different names does not."""
    fields: dict[Any, Any] = {}
    if body.count(b"&") >= FIELDS_MAX:
        return None
    for pair in body.split(b"&") if body else ():
        name, _, value = pair.partition(b"=")
        try:
            fields.setdefault(_form_text(name), []).append(_form_text(value))
        except UnicodeDecodeError:
            return None
    return fields, canonical(fields)


def _form_text(quoted: bytes) -> str:
    return unquote_to_bytes(quoted.replace(b"+", b" ")).decode()


def from_multipart(body: bytes, content_type: str) -> Read | None:
    """Parts by name, each with its headers and the digest of its content. The boundary between them does not count.

    A part whose head could be read as another name is named by its whole head: `ignore=` must drop the field that the
    application reads under that name, and no other.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        return None
    mark = b"--" + (found[1] or found[2]).encode()
    body = body.removeprefix(b"\r\n")  # some clients write a line break before the first delimiter too
    if body.count(mark) > FIELDS_MAX or not body.startswith(mark + b"\r\n"):
        return None
    *parts, last = (b"\r\n" + body).split(b"\r\n" + mark)[1:]
    if last not in (b"--", b"--\r\n") or not all(part.startswith(b"\r\n") for part in parts):
        return None
    fields: dict[Any, Any] = {}
    for part in parts:
        head, cut, content = part[2:].partition(b"\r\n\r\n")
        if not cut:
            return None
        try:
            lines = sorted(line.strip() for line in head.decode().split("\r\n"))
        except UnicodeDecodeError:
            return None
        whole = "\r\n".join(lines)
        fields.setdefault(name_of(lines) or whole, []).append([whole, digest(content)])
    return fields, canonical(fields)


def name_of(lines: list[str]) -> str | None:
    """The name in the head of a part, if every reader would find the same one."""
    found = [line for line in lines if line[:19].lower() == "content-disposition"]
    named = _NAMED.fullmatch(found[0]) if len(found) == 1 else None
    return None if named is None else named[1]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
