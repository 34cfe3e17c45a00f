"""The HTTP suite: everything an adapter promises, as tests to inherit.

    from samekey.testing.http import Called, HttpAdapterSuite

    class TestMyAdapter(HttpAdapterSuite):
        protocol = "asgi"                      # or "wsgi"

        def make_app(self, guard, endpoint, handle):
            return MyMiddleware(my_app(handle), guard=guard, endpoint=endpoint)

The application calls `handle(Called(method, path, body))` for every request - in a thread, if it is async - and
answers what it says: a `Said`, whose body may be a list of parts to be streamed, and whose headers are all of them (one
name may come twice, and a Content-Length is the application's own). Everything is driven without sockets, as a server
would call the application. No pytest plugin is needed, only a runner that calls `setup_method` and `teardown_method`
around each test, as pytest does.
"""

from __future__ import annotations

from samekey.testing.http.answers import Answers
from samekey.testing.http.identity import Identity
from samekey.testing.http.scene import Called, Handle, Said, Scene
from samekey.testing.http.trouble import Trouble

__all__ = ["Called", "Handle", "HttpAdapterSuite", "Said", "Scene"]


class HttpAdapterSuite(Identity, Answers, Trouble):
    """Inherit from it and give `make_app`."""
