"""Litestar: a plugin, `Litestar(..., plugins=[SamekeyPlugin(guard=guard, endpoint=Endpoint(...))])`.

`opt={"samekey": Endpoint(...)}` on a handler gives it its own rules, `opt={"samekey": None}` none at all; `@rules(...)`
does the same. The plugin's middleware stands inside those of the application, authentication among them.
"""

from __future__ import annotations

import re
from typing import Any, cast

from litestar.config.app import AppConfig
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.middleware import ASGIMiddleware
from litestar.plugins import InitPlugin
from litestar.types import ASGIApp, Receive, Scope, Send
from litestar.utils.path import normalize_path

from samekey.guard.guards import AsyncGuard
from samekey.http._operation import PARAMETER
from samekey.http._rules import Rules, check_rules, rules_of
from samekey.http.asgi import RAISED, Passage, path_of, whole_template

_BRACES = re.compile(r"\{[^}]*\}")


class SamekeyPlugin(InitPlugin):
    """Guards every handler; `@rules(...)` on one, or `opt={"samekey": ...}`, gives it its own, or none."""

    def __init__(self, *, guard: AsyncGuard, endpoint: Rules) -> None:
        self._middleware = _Middleware(Passage(guard), check_rules(endpoint))

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.middleware.append(self._middleware)
        app_config.after_exception.append(_raised)
        return app_config


class _Middleware(ASGIMiddleware):
    scopes = (ScopeType.HTTP,)

    def __init__(self, passage: Passage, rules: Rules) -> None:
        self._passage, self._rules = passage, rules

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        known = cast(Any, scope)
        handler = known["route_handler"]
        rules = (
            handler.opt["samekey"] if "samekey" in handler.opt else rules_of(handler, rules_of(handler.fn, self._rules))
        )
        known[RAISED] = []
        # Litestar routes /a/, //a and /a to one handler, so they are one operation and one path.
        path = normalize_path(path_of(known))
        template, route = known.get("path_template"), None
        if template and "{" in template:
            route = whole_template(known, path, known["path"], _BRACES.sub(PARAMETER, template))
        through: Any = self._passage
        await through(next_app, rules, known, receive, send, route=route, path=path)


async def _raised(error: Exception, scope: Scope) -> None:
    """Litestar answers exceptions before a middleware sees them; the core must hear of the exception itself."""
    raised = cast(Any, scope).get(RAISED)
    if raised is not None:
        raised.append((error, isinstance(error, HTTPException)))
