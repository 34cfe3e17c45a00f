"""What nobody should send, with a verdict each: no server error, no way around the key, no second effect.

A verdict is what a request gets and what its exact repetition gets, and how many effects that makes:
`GUARDED` runs once and replays; `MALFORMED` runs never; `TOO_LARGE` runs never; `NO_KEY` has no key and runs twice.
JSON has a file of its own, json_cases.txt; what stands on the wire is in tests/examples/raw_requests.py.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from samekey import Opaque
from samekey.http import Endpoint
from samekey.testing.http import Called, Said
from samekey.testing.http.drivers import Sent
from tests.http.sites import ADAPTERS, driven

JSON, FORM = "application/json", "application/x-www-form-urlencoded"
GUARDED, MALFORMED, TOO_LARGE, NO_KEY = (201, 201, 1), (400, 400, 0), (413, 413, 0), (201, 201, 2)
LIMIT = 1 << 20

BODIES: dict[str, tuple[str, bytes, tuple[int, int, int]]] = {
    "many names": (JSON, b"{" + b",".join(b'"%d":1' % n for n in range(20_000)) + b"}", GUARDED),
    "at the limit": (JSON, b'"' + b"x" * (LIMIT - 2) + b'"', GUARDED),
    "above the limit": (JSON, b'"' + b"x" * (LIMIT - 1) + b'"', TOO_LARGE),
    "form of nothing": (FORM, b"&&==&", GUARDED),
    "form not utf-8": (FORM, b"a=%ff%fe", GUARDED),
    "form half escape": (FORM, b"a=%&b=%1", GUARDED),
    "form of many": (FORM, b"&".join(b"a=1" for _ in range(5000)), GUARDED),
    "multipart without boundary": ("multipart/form-data", b"--x\r\n\r\n--x--", GUARDED),
    "multipart without end": ("multipart/form-data; boundary=x", b"--x\r\n\r\nhello", GUARDED),
    "multipart without heads": ("multipart/form-data; boundary=x", b"--x\r\nhello\r\n--x--\r\n", GUARDED),
    "multipart of garbage": ("multipart/form-data; boundary=x", bytes(range(256)), GUARDED),
    "multipart long boundary": (f"multipart/form-data; boundary={'x' * 5000}", b"--x--", GUARDED),
    "no content type": ("", b"{}", GUARDED),
    "content type of garbage": ("\x80;;=,;", b"{}", GUARDED),
    "json with odd charset": ("application/json; charset=utf-7", b"{}", GUARDED),
}

KEYS: dict[str, tuple[tuple[tuple[str, str], ...], tuple[int, int, int]]] = {
    "a megabyte": ((("Idempotency-Key", "k" * (1 << 20)),), MALFORMED),
    "a quoted megabyte": ((("Idempotency-Key", '"' + "\\\\" * (1 << 19) + '"'),), MALFORMED),
    "256": ((("Idempotency-Key", "k" * 256),), MALFORMED),
    "255": ((("Idempotency-Key", "k" * 255),), GUARDED),
    "255 escaped": ((("Idempotency-Key", '"' + "\\\\" * 255 + '"'),), GUARDED),
    "empty": ((("Idempotency-Key", ""),), MALFORMED),
    "blank": ((("Idempotency-Key", " \t "),), MALFORMED),
    "blank in quotes": ((("Idempotency-Key", '"  "'),), MALFORMED),
    "nul": ((("Idempotency-Key", "a\x00b"),), MALFORMED),
    "folded": ((("Idempotency-Key", "a\r\n b"),), MALFORMED),
    "another header inside": ((("Idempotency-Key", "a\r\nSet-Cookie: x=1"),), MALFORMED),
    "delete": ((("Idempotency-Key", "a\x7f"),), MALFORMED),
    "latin-1": ((("Idempotency-Key", "caf\xe9"),), MALFORMED),
    "utf-8": ((("Idempotency-Key", "caf\xc3\xa9"),), MALFORMED),
    "twice": ((("Idempotency-Key", "k"), ("Idempotency-Key", "k")), MALFORMED),
    "twice in two cases": ((("Idempotency-Key", "a"), ("IDEMPOTENCY-KEY", "b")), MALFORMED),
    "twice, one empty": ((("Idempotency-Key", "a"), ("idempotency-key", "")), MALFORMED),
    "joined": ((("Idempotency-Key", "a, b"),), MALFORMED),
    "joined and quoted": ((("Idempotency-Key", '"a", "b"'),), MALFORMED),
    "list": ((("Idempotency-Key", '("a" "b")'),), MALFORMED),
    "unfinished": ((("Idempotency-Key", '"a'),), MALFORMED),
    "finished twice": ((("Idempotency-Key", '"a"b"'),), MALFORMED),
    "bad escape": ((("Idempotency-Key", '"\\a"'),), MALFORMED),
    "parameters": ((("Idempotency-Key", '"a";v="1, 2"'),), GUARDED),
    "parameters without end": ((("Idempotency-Key", '"a"' + ";a" * 400),), GUARDED),
    "sql": ((("Idempotency-Key", "';DROP"),), MALFORMED),
    "quoted sql": ((("Idempotency-Key", '"\'; DROP TABLE keys; --"'),), GUARDED),
    "cluster tag": ((("Idempotency-Key", "{a}:{b}"),), GUARDED),
    "path": ((("Idempotency-Key", "../../etc/passwd"),), GUARDED),
    "percent": ((("Idempotency-Key", "%00%0d%0a"),), GUARDED),
    "another name": ((("X-Idempotency-Key", "a"),), NO_KEY),
    "none": ((), NO_KEY),
}


class Counted:
    def __init__(self) -> None:
        self.effects = 0

    def __call__(self, called: Called) -> Said:
        self.effects += 1
        return Said(201)


@pytest.fixture(params=ADAPTERS)
def site(request: pytest.FixtureRequest) -> Iterator[Any]:
    counted = Counted()
    endpoint = Endpoint(boundary=Opaque(), single_tenant=True, body_max_bytes=LIMIT)
    with driven(request.param, endpoint, counted) as driver:
        yield lambda sent: verdict(driver, counted, sent)


def verdict(driver: Any, counted: Counted, sent: Sent) -> tuple[int, int, int]:
    first, second = driver.send(sent), driver.send(sent)
    assert (first.error, second.error) == (None, None)
    replayed = second.header("idempotent-replayed") == "true"
    assert replayed == (counted.effects == 1), "one effect and a second answer is a replay, and nothing else is"
    return first.status, second.status, counted.effects


def differing(adapter: str, cases: Mapping[str, tuple[Sent, tuple[int, int, int]]]) -> dict[str, Any]:
    """Every case whose verdict is not the expected one, each tried on an application of its own."""
    wrong: dict[str, Any] = {}
    for name, (sent, expected) in cases.items():
        counted = Counted()
        endpoint = Endpoint(boundary=Opaque(), single_tenant=True, body_max_bytes=LIMIT)
        with driven(adapter, endpoint, counted) as driver:
            try:
                found: Any = verdict(driver, counted, sent)
            except AssertionError as error:
                found = error
        if found != expected:
            wrong[name] = found, expected
    return wrong


KEY = ("Idempotency-Key", "k")
QUERIES = ["a=%ff", "&&&", "a" * 10_000, "\xff\xfe", "%00", "a=1&a=2"]
PATHS = ["/%00", "/%ff%fe", "/" + "a" * 10_000, "//x", "/a/../b", "/%E2%80%AE", "/%0d%0aX: y"]


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_bodies(adapter: str):
    cases = {
        name: (Sent("POST", "/x", "", (KEY, ("Content-Type", content_type)), body), expected)
        for name, (content_type, body, expected) in BODIES.items()
    }
    assert differing(adapter, cases) == {}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_keys(adapter: str):
    cases = {name: (Sent("POST", "/x", "", headers, b"{}"), expected) for name, (headers, expected) in KEYS.items()}
    assert differing(adapter, cases) == {}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_queries(adapter: str):
    assert differing(adapter, {query: (Sent("POST", "/x", query, (KEY,), b"{}"), GUARDED) for query in QUERIES}) == {}


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_paths(adapter: str):
    assert differing(adapter, {path: (Sent("POST", path, "", (KEY,), b"{}"), GUARDED) for path in PATHS}) == {}


def test_a_method_in_small_letters_is_the_same_method(site: Any):
    """Some servers hand it on as it came, and Django and Werkzeug take it for the one in capitals."""
    assert site(Sent("post", "/x", "", (("Idempotency-Key", "k"),), b"{}")) == GUARDED


@pytest.mark.parametrize("first", [JSON, FORM])
def test_of_two_content_types_none_is_believed(first: str):
    """Each framework picks another one of them: only equal bytes are the same."""
    ran: list[bytes] = []

    def handle(called: Called) -> Said:
        ran.append(called.body)
        return Said(201)

    second = FORM if first == JSON else JSON
    headers = (("Idempotency-Key", "k"), ("Content-Type", first), ("Content-Type", second))
    bodies = (b'{"memo": "a&b&c&d"}', b'{"memo": "a&b&c&d"}', b'{"memo": "a&c&b&d"}')
    with driven("asgi", Endpoint(boundary=Opaque(), single_tenant=True), handle) as driver:
        got = [driver.send(Sent("POST", "/x", "", headers, body)).status for body in bodies]

    assert got == [201, 201, 422]
    assert ran == [bodies[0]]


def test_a_bomb_is_unpacked_no_further_than_the_limit(site: Any):
    """Ten megabytes in ten kilobytes are refused, as ten megabytes are."""
    bomb = gzip.compress(bytes(10 << 20), compresslevel=9)
    headers = (("Idempotency-Key", "k"), ("Content-Type", JSON), ("Content-Encoding", "gzip"))

    assert site(Sent("POST", "/x", "", headers, bomb)) == TOO_LARGE


def behind(driver: Any, told: Any) -> None:
    """Its application, behind a server that tells of requests like this."""
    inner = driver._app
    driver._app = lambda environ, start: inner(told(environ), start)


@pytest.mark.parametrize("adapter", ["wsgi", "flask", "django"])
def test_chunks_without_an_end_are_refused(adapter: str):
    """From a server that does not say where they end, the application reads nothing: any body would be the same."""
    ran: list[bytes] = []

    def handle(called: Called) -> Said:
        ran.append(called.body)
        return Said(201)

    with driven(adapter, Endpoint(boundary=Opaque(), single_tenant=True), handle) as driver:
        behind(driver, lambda environ: {name: environ[name] for name in environ if name != "wsgi.input_terminated"})
        headers = (("Idempotency-Key", "k"), ("Content-Type", "application/json"))
        bodies = (b'{"amount": 200}', b'{"amount": 500}')
        got = [driver.send(Sent("POST", "/charges", headers=headers, body=body, chunked=True)) for body in bodies]

    assert [one.status for one in got] == [400, 400]
    assert all(b"Content-Length" in one.body for one in got)
    assert ran == []


@pytest.mark.parametrize("adapter", ["wsgi", "flask", "django"])
def test_a_body_of_http_2_without_a_length_is_refused(adapter: str):
    """It has no chunks either, and the application would read nothing of it; a request without a body is served."""
    ran: list[bytes] = []

    def handle(called: Called) -> Said:
        ran.append(called.body)
        return Said(201)

    with driven(adapter, Endpoint(boundary=Opaque(), single_tenant=True), handle) as driver:
        behind(driver, lambda environ: {**environ, "SERVER_PROTOCOL": "HTTP/2", "CONTENT_LENGTH": ""})
        headers = (("Idempotency-Key", "k"), ("Content-Type", "application/json"))
        bodies = (b'{"amount": 200}', b'{"amount": 500}', b"")
        got = [driver.send(Sent("POST", "/charges", headers=headers, body=body)).status for body in bodies]

    assert got == [400, 400, 201]
    assert ran == [b""]
