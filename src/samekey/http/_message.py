"""A request and an answer, as every adapter presents them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

Header = tuple[bytes, bytes]

BODY_HEADERS = (b"content-length", b"transfer-encoding")  # written anew where a body is sent

WITHOUT_BODY = frozenset({*range(100, 200), 204, 304})  # statuses whose answers have no length of a body

new_tuple = tuple.__new__  # for named tuples that every request makes: calling the class takes longer


class Request:
    """A request as every adapter presents it: to `principal=`, to `endpoint=` functions, to webhooks.

    `native` is the framework's own: an ASGI scope, a WSGI environ, a Django or Flask request. `host` is set where the
    framework routed by host too: `//` and that part of it.
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
        """The value of a header; several values are joined by commas, as HTTP defines it."""
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
    """An answer: the application's, a replay of it, or a problem. `body` is None where it was sent and not kept."""

    status: int
    headers: list[Header]
    body: bytes | None


def is_endless(headers: Iterable[Header]) -> bool:
    """Whether this is an event stream: it has no end to wait for, so it is sent at once and not kept."""
    for name, value in headers:
        if len(value) >= 17 and name.lower() == b"content-type" and value[:17].lower() == b"text/event-stream":
            return True
    return False


def falls_short(reply: Reply, size: int) -> bool:
    """Whether an answer is shorter than its Content-Length: it broke off, and the application did not notice."""
    _, headers, _ = reply
    if (b"content-length", b"%d" % size) in headers or reply.status in WITHOUT_BODY:
        return False
    lengths = [value for name, value in headers if name.lower() == b"content-length" and value.isdigit()]
    return any(int(value[:20]) > size for value in lengths)
