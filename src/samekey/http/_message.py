"""A request and an answer, as every adapter shows them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

Header = tuple[bytes, bytes]

BODY_HEADERS = (b"content-length", b"transfer-encoding")  # said anew by whoever sends a body

WITHOUT_BODY = frozenset({*range(100, 200), 204, 304})  # statuses: no length is said for them, or none of theirs

new_tuple = tuple.__new__  # for named tuples that every request makes: calling the class takes longer


class Request:
    """A request as every adapter shows it: to `principal=`, to `endpoint=` functions, to webhooks.

    `native` is the framework's own: an ASGI scope, a WSGI environ, a Django or Flask request. `host` is where it was
    routed by its host too: `//` and that part of it.
    """

    __slots__ = ("body", "headers", "host", "method", "named", "native", "path", "query", "route")

    def __init__(
        self,
        method: str,
        path: str,
        query: bytes = b"",
        headers: Iterable[Header] = (),
        body: bytes = b"",
        route: str | None = None,
        native: Any = None,
        host: str = "",
    ) -> None:
        self.method, self.path, self.query, self.host = method, path, query, host
        self.headers = headers if type(headers) is list else list(headers)  # names in lower case
        self.named = dict(self.headers)  # by name; of several with one name the last
        self.body = body
        self.route = path if route is None else route
        self.native = native

    def header(self, name: str) -> str | None:
        """The value of a header, several of them joined as HTTP says."""
        wanted = as_name(name)
        value = self.named.get(wanted)
        if value is None:
            return None
        if len(self.named) < len(self.headers):
            value = b", ".join(self.values(wanted))
        return value.decode("latin-1")

    def values(self, name: bytes) -> list[bytes]:
        """Every value of a header; its name in lower case."""
        return [value for header, value in self.headers if header == name]


@lru_cache(maxsize=256)
def as_name(name: str) -> bytes:
    return name.lower().encode("latin-1")


class Reply(NamedTuple):
    """An answer: the application's, a replay of it, or a problem. `body` is None where it went by unkept."""

    status: int
    headers: list[Header]
    body: bytes | None


def is_endless(headers: Iterable[Header]) -> bool:
    """An event stream has no end to wait for: it goes out at once, and says that it is not kept."""
    for name, value in headers:
        if len(value) >= 17 and name.lower() == b"content-type" and value[:17].lower() == b"text/event-stream":
            return True
    return False


def falls_short(reply: Reply, size: int) -> bool:
    """Whether an answer said that it was longer than these bytes: it broke off, and its application never noticed."""
    _, headers, _ = reply
    if (b"content-length", b"%d" % size) in headers or reply.status in WITHOUT_BODY:
        return False
    said = [value for name, value in headers if name.lower() == b"content-length" and value.isdigit()]
    return any(int(value[:20]) > size for value in said)
