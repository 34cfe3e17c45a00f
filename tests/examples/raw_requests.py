"""Requests that no client library would send: what is wrong with their keys, lengths and chunks stands on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

HEAD = b"Host: 127.0.0.1\r\nAuthorization: Bearer ann-token\r\nContent-Type: application/json\r\nConnection: close\r\n"
KEY = b"Idempotency-Key: %K\r\n"
LENGTH = b"Content-Length: %L\r\n"
BODY = b'{"item": "%I"}'
CHUNKED = b"Transfer-Encoding: chunked\r\n"


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (*parts, b""))


class Raw(NamedTuple):
    """Bytes on a connection, and what they get: status (0: hung up without an answer) and orders, of each shop.

    Where the two differ, the servers do: uvicorn unfolds, ends lines at a bare newline and lets chunks overrule a
    length; gunicorn refuses all of that. What they let through is one key, or a problem.
    """

    fastapi: tuple[int, int]
    django: tuple[int, int]
    headers: bytes = KEY + LENGTH
    frame: Callable[[bytes], bytes] = bytes
    body: bytes = BODY
    line: bytes = b"POST /orders HTTP/1.1\r\n"


RAW: dict[str, Raw] = {
    "one key": Raw((201, 1), (201, 1)),
    "quoted": Raw((201, 1), (201, 1), b'Idempotency-Key: "%K"\r\n' + LENGTH),
    "tabs around it": Raw((201, 1), (201, 1), b"Idempotency-Key:\t %K \t\r\n" + LENGTH),
    "name in capitals": Raw((201, 1), (201, 1), b"IDEMPOTENCY-KEY: %K\r\n" + LENGTH),
    "parameters": Raw((201, 1), (201, 1), b'Idempotency-Key: "%K";v="1, 2";w\r\n' + LENGTH),
    "no key": Raw((400, 0), (400, 0), LENGTH),
    "empty": Raw((400, 0), (400, 0), b"Idempotency-Key:\r\n" + LENGTH),
    "twice": Raw((400, 0), (400, 0), KEY + KEY + LENGTH),
    "twice in two cases": Raw((400, 0), (400, 0), KEY + b"idempotency-KEY: %K-b\r\n" + LENGTH),
    "twice, far apart": Raw((400, 0), (400, 0), KEY + LENGTH + b"X-Between: 1\r\n" * 20 + KEY),
    "twice, one empty": Raw((400, 0), (400, 0), KEY + b"Idempotency-Key:\r\n" + LENGTH),
    "a list": Raw((400, 0), (400, 0), b"Idempotency-Key: %K, %K-b\r\n" + LENGTH),
    "a quoted list": Raw((400, 0), (400, 0), b'Idempotency-Key: "%K", "%K-b"\r\n' + LENGTH),
    "an inner list": Raw((400, 0), (400, 0), b'Idempotency-Key: ("%K")\r\n' + LENGTH),
    "two strings": Raw((400, 0), (400, 0), b'Idempotency-Key: "%K" "b"\r\n' + LENGTH),
    "parameters in capitals": Raw((400, 0), (400, 0), b'Idempotency-Key: "%K";V=1\r\n' + LENGTH),
    "parameters of a bare key": Raw((400, 0), (400, 0), b"Idempotency-Key: %K;v=1\r\n" + LENGTH),
    "unfinished": Raw((400, 0), (400, 0), b'Idempotency-Key: "%K\r\n' + LENGTH),
    "bad escape": Raw((400, 0), (400, 0), b'Idempotency-Key: "%K\\n"\r\n' + LENGTH),
    "binary": Raw((201, 1), (201, 1), b"Idempotency-Key: :%K:\r\n" + LENGTH),  # bare, and only a name for us
    "folded": Raw((400, 0), (400, 0), b"Idempotency-Key: %K\r\n b\r\n" + LENGTH),
    "folded from the start": Raw((201, 1), (400, 0), b"Idempotency-Key:\r\n %K\r\n" + LENGTH),
    "a tab inside": Raw((400, 0), (400, 0), b"Idempotency-Key: %K\tb\r\n" + LENGTH),
    "nul": Raw((400, 0), (400, 0), b"Idempotency-Key: %K\0b\r\n" + LENGTH),
    "a bare return": Raw((400, 0), (400, 0), b"Idempotency-Key: %K\rb\r\n" + LENGTH),
    "a bare newline": Raw((201, 1), (400, 0), b"Idempotency-Key: %K\nX-B: b\r\n" + LENGTH),
    "delete": Raw((400, 0), (400, 0), b"Idempotency-Key: %K\x7f\r\n" + LENGTH),
    "latin-1": Raw((400, 0), (400, 0), b"Idempotency-Key: %K\xe9\r\n" + LENGTH),
    "utf-8": Raw((400, 0), (400, 0), b"Idempotency-Key: %K\xc3\xa9\r\n" + LENGTH),
    "not utf-8": Raw((400, 0), (400, 0), b"Idempotency-Key: %K\xff\xfe\r\n" + LENGTH),
    "a space before the colon": Raw((400, 0), (400, 0), b"Idempotency-Key : %K\r\n" + LENGTH),
    "an underscore": Raw((400, 0), (400, 0), b"Idempotency_Key: %K\r\n" + LENGTH),  # WSGI could mix them up
    "an underscore beside it": Raw((201, 1), (201, 1), b"Idempotency_Key: other\r\n" + KEY + LENGTH),
    "256 characters": Raw((400, 0), (400, 0), b"Idempotency-Key: " + b"k" * 256 + b"\r\n" + LENGTH),
    "sixty kilobytes": Raw((400, 0), (431, 0), b"Idempotency-Key: " + b"k" * 60_000 + b"\r\n" + LENGTH),
    "a megabyte": Raw((400, 0), (431, 0), b"Idempotency-Key: " + b"k" * (1 << 20) + b"\r\n" + LENGTH),
    "in the query": Raw((400, 0), (400, 0), LENGTH, line=b"POST /orders?Idempotency-Key=%K HTTP/1.1\r\n"),
    "in a trailer": Raw((400, 0), (400, 0), CHUNKED, lambda body: chunks(body)[:-2] + KEY + b"\r\n"),
    "body not utf-8": Raw((400, 0), (400, 0), body=b'{"item": "\xff"}'),
    "body of nothing": Raw((422, 0), (400, 0), body=b""),
    "body cut short": Raw((0, 0), (400, 0), KEY + b"Content-Length: 50\r\n"),
    "body longer than said": Raw((422, 0), (400, 0), KEY + b"Content-Length: 5\r\n"),
    "no length": Raw((422, 0), (400, 0), KEY),
    "two lengths": Raw((400, 0), (400, 0), KEY + LENGTH + b"Content-Length: 5\r\n"),
    "a length twice": Raw((201, 1), (400, 0), KEY + LENGTH + LENGTH),
    "a negative length": Raw((400, 0), (400, 0), KEY + b"Content-Length: -1\r\n"),
    "a length with a sign": Raw((400, 0), (400, 0), KEY + b"Content-Length: +16\r\n"),
    "a length in hex": Raw((400, 0), (400, 0), KEY + b"Content-Length: 0x10\r\n"),
    "a length beyond reason": Raw((413, 0), (413, 0), KEY + b"Content-Length: 99999999999999999\r\n"),
    "chunks": Raw(
        (201, 1), (400, 0), KEY + CHUNKED, lambda body: chunks(body[:5], body[5:])
    ),  # Django reads no more than a length says
    "chunks and a length": Raw((201, 1), (400, 0), KEY + CHUNKED + LENGTH, chunks),
    "chunks cut short": Raw((0, 0), (400, 0), KEY + CHUNKED, lambda body: chunks(body)[:-5]),
    "a chunk of no size": Raw((400, 0), (400, 0), KEY + CHUNKED, lambda body: b"x\r\n" + body + b"\r\n0\r\n\r\n"),
    "chunks, twice": Raw((400, 0), (400, 0), KEY + CHUNKED + CHUNKED, chunks),
    "an encoding nobody knows": Raw((400, 0), (501, 0), KEY + b"Transfer-Encoding: xchunked\r\n", chunks),
    "it waits to be let on": Raw((201, 1), (201, 1), KEY + LENGTH + b"Expect: 100-continue\r\n"),
    "an old protocol": Raw((201, 1), (201, 1), line=b"POST /orders HTTP/1.0\r\n"),
}


def bytes_of(name: str, item: str) -> bytes:
    """The request of this name, for an order of this item, under a key of its own."""
    raw = RAW[name]
    body = raw.body.replace(b"%I", item.encode())
    sent = raw.line + HEAD + raw.headers.replace(b"%L", b"%d" % len(body)) + b"\r\n" + raw.frame(body)
    return sent.replace(b"%K", item.replace(" ", "-").encode())
