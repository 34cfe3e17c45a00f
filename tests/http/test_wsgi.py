"""The WSGI adapter: the suite, and what is its own."""

from __future__ import annotations

from typing import Any

from samekey.http.wsgi import SamekeyMiddleware
from samekey.testing.http_suite import Handle, HttpAdapterSuite
from tests.http.apps import bare_wsgi


class TestBareWsgi(HttpAdapterSuite):
    protocol = "wsgi"

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        return SamekeyMiddleware(bare_wsgi(handle), guard=guard, endpoint=endpoint)
