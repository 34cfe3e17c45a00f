"""The WSGI adapter: the suite, and what is its own."""

from __future__ import annotations

from typing import Any

import pytest

from samekey import Guard, Opaque, State
from samekey.http import Endpoint
from samekey.http.wsgi import SamekeyMiddleware
from samekey.testing._http_drivers import Sent, WsgiDriver
from samekey.testing.http_suite import Handle, HttpAdapterSuite
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
