"""The WSGI adapter: the suite, and what is its own."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from samekey import Guard, Opaque, Policy, State
from samekey.http import Endpoint
from samekey.http.wsgi import SamekeyMiddleware
from samekey.testing.http import Handle, HttpAdapterSuite
from samekey.testing.http.drivers import Sent, WsgiDriver
from tests.http.apps import bare_wsgi


class TestBareWsgi(HttpAdapterSuite):
    protocol = "wsgi"

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        return SamekeyMiddleware(bare_wsgi(handle), guard=guard, endpoint=endpoint)


@pytest.mark.parametrize(("settle", "state"), [("return", State.STARTED), ("before-send", State.COMPLETED)])
def test_what_the_iterable_does_when_it_is_closed_comes_first_or_last(settle: Any, state: State):
    """A commit belongs before the record, and so does its failure; with "before-send" clean-up does not delay it."""
    guard = Guard("memory://")
    seen: list[Any] = []

    class Made(list[bytes]):
        def close(self) -> None:
            seen.append(guard.peek("POST /charges", "k-1"))

    def app(environ: Any, start_response: Any) -> Any:
        start_response("201 Created", [])
        return Made([b"done"])

    endpoint = Endpoint(boundary=Opaque(), single_tenant=True, settle=settle)
    driver = WsgiDriver(SamekeyMiddleware(app, guard=guard, endpoint=endpoint))
    got = driver.send(Sent("POST", "/charges", "", (("Idempotency-Key", "k-1"),)))

    assert (got.status, got.body, [record.state for record in seen]) == (201, b"done", [state])


@pytest.mark.parametrize("begun", [b"", b"half", b"h" * 200], ids=["nothing yet", "a little", "too much to keep"])
def test_another_answer_comes_too_late_once_the_first_has_begun(begun: bytes):
    """`start_response` with an exception replaces a head; behind the first byte it raises, as at any server."""
    guard = Guard("memory://", policy=Policy(result_max_bytes=100))

    def app(environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        try:
            yield begun
            raise LookupError("in the middle")
        except LookupError:
            start_response("404 Not Found", [], sys.exc_info())
            yield b"a page"

    endpoint = Endpoint(boundary=Opaque(), single_tenant=True)
    driver = WsgiDriver(SamekeyMiddleware(app, guard=guard, endpoint=endpoint))
    request = Sent("POST", "/charges", "", (("Idempotency-Key", "k-1"),))
    got = driver.send(request)

    assert (got.status, got.body, type(got.error)) == (
        (500, b"", LookupError) if begun else (404, b"a page", type(None))
    )
    record = guard.peek("POST /charges", "k-1")
    assert record is not None
    assert record.state is (State.IN_DOUBT if begun else State.RELEASED)
