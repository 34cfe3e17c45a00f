"""The ASGI adapter: the suite, bare and under Starlette; and what is its own."""

from __future__ import annotations

from typing import Any

from samekey.http.asgi import SamekeyMiddleware
from samekey.testing.http_suite import Handle, HttpAdapterSuite
from tests.http.apps import METHODS, bare_asgi, starlette_endpoint


class TestBareAsgi(HttpAdapterSuite):
    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        return SamekeyMiddleware(bare_asgi(handle), guard=guard, endpoint=endpoint)


class TestStarletteMiddleware(HttpAdapterSuite):
    """For the whole application: outside the exception handlers, inside authentication."""

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route

        return Starlette(
            routes=[Route("/{path:path}", starlette_endpoint(handle), methods=METHODS)],
            middleware=[Middleware(SamekeyMiddleware, guard=guard, endpoint=endpoint)],
        )


class TestStarletteRoute(HttpAdapterSuite):
    """For one route."""

    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route

        guarded = [Middleware(SamekeyMiddleware, guard=guard, endpoint=endpoint)]
        return Starlette(
            routes=[Route("/{path:path}", starlette_endpoint(handle), methods=METHODS, middleware=guarded)]
        )
