"""Litestar: one middleware for the application; `opt={"samekey": Endpoint(...)}` on a handler gives it its own rules,
`opt={"samekey": None}` none at all."""

from __future__ import annotations

from typing import Any, cast

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from samekey.guard import AsyncGuard
from samekey.http._visit import Rules, check_rules
from samekey.http.asgi import Passage


class SamekeyMiddleware(ASGIMiddleware):
    """`Litestar(..., middleware=[SamekeyMiddleware(guard=guard, endpoint=Endpoint(...))])`"""

    scopes = (ScopeType.HTTP,)

    def __init__(self, *, guard: AsyncGuard, endpoint: Rules) -> None:
        self._passage = Passage(guard)
        self._endpoint = check_rules(endpoint)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        known = cast(Any, scope)
        rules = known["route_handler"].opt.get("samekey", self._endpoint)
        await self._passage(
            cast(Any, next_app), rules, known, cast(Any, receive), cast(Any, send), route=known.get("path_template")
        )
