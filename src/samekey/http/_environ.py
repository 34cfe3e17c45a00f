"""The headers of a request in a WSGI environ; Flask's and Django's requests contain one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from samekey.http._message import Header

PREFIX = "HTTP_"
UNPREFIXED = ("CONTENT_TYPE", "CONTENT_LENGTH")
STREAMED = ("HTTP/2", "HTTP/3")  # where a body needs neither a length nor chunks


def headers_in(environ: Mapping[str, Any]) -> list[Header]:
    """Names in lower case; the type and length of a body only where the request has them."""
    return [
        (name, as_bytes(value))
        for variable, value in environ.items()
        if (name := header_name(variable)) is not None and (value or variable not in UNPREFIXED)
    ]


@lru_cache(maxsize=1024)
def header_name(variable: str) -> bytes | None:
    """The name of the header in this variable; None if it is no header. The same few come in every request."""
    if variable.startswith(PREFIX):
        name = variable[len(PREFIX) :]
        if name in UNPREFIXED:
            return None  # a header spelled Content_Type; the real ones come without the prefix
    elif variable in UNPREFIXED:
        name = variable
    else:
        return None
    return name.replace("_", "-").lower().encode("latin-1")


def has_unended_body(environ: Mapping[str, Any]) -> bool:
    """Whether a request without a length has a body all the same. Under HTTP/2 only reading shows it."""
    if "HTTP_TRANSFER_ENCODING" in environ:
        return True
    return environ.get("SERVER_PROTOCOL", "")[:6] in STREAMED and bool(environ["wsgi.input"].read(1))


def as_bytes(text: str) -> bytes:
    return text.encode("latin-1", "backslashreplace")
