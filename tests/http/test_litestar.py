"""The Litestar adapter: the suite, and rules in `opt`."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Litestar, Request, Response, route
from litestar.response import Stream

from samekey import Opaque
from samekey.http import Endpoint
from samekey.http.litestar import SamekeyPlugin
from samekey.testing.http_suite import Called, Handle, HttpAdapterSuite, Said, Scene


def handler(handle: Handle, path: str, **options: Any) -> Any:
    @route(path, http_method=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"], name=path, **options)
    async def answer(request: Request[Any, Any, Any]) -> Response[Any]:
        body = await request.body()
        said = await asyncio.to_thread(handle, Called(request.method, request.url.path, body))
        headers = dict(said.headers)
        kind = headers.pop("Content-Type", "application/octet-stream")
        if isinstance(said.body, list):
            return Stream(iter(said.body), status_code=said.status, media_type=kind, headers=headers)
        return Response(said.body, status_code=said.status, media_type=kind, headers=headers)

    return answer


class TestLitestar(HttpAdapterSuite):
    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        paths = ("/charges", "/refunds", "/payments", "/free", "/slow")
        return Litestar(
            [handler(handle, path) for path in paths],
            plugins=[SamekeyPlugin(guard=guard, endpoint=endpoint)],
            openapi_config=None,
        )


class TestOwn(Scene):
    def make_app(self, guard: Any, endpoint: Any, handle: Handle) -> Any:
        strict = Endpoint(boundary=Opaque(), single_tenant=True, required=True)
        return Litestar(
            [handler(handle, "/strict", opt={"samekey": strict}), handler(handle, "/free", opt={"samekey": None})],
            plugins=[SamekeyPlugin(guard=guard, endpoint=endpoint)],
            openapi_config=None,
        )

    def test_rules_stand_in_opt(self) -> None:
        """One handler requires a key, another is left alone."""
        site = self.open(lambda called: Said())

        assert [site.post("/strict", key=None).status, site.post("/free", key=("a", "b")).status] == [400, 200]
