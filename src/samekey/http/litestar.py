"""Litestar: a plugin, `Litestar(..., plugins=[SamekeyPlugin(guard=guard, endpoint=Endpoint(...))])`.

`opt={"samekey": Endpoint(...)}` on a handler gives it its own rules, `opt={"samekey": None}` none at all; `@rules(...)`
does the same. The plugin's middleware runs inside those of the application, authentication among them, and outside
`guards=`: a replay does not run them.
"""

from __future__ import annotations

import re
from typing import Any, cast

from litestar.config.app import AppConfig
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.middleware import ASGIMiddleware
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation
from litestar.plugins import InitPlugin
from litestar.plugins.base import ReceiveRoutePlugin
from litestar.routes import BaseRoute
from litestar.types import ASGIApp, Receive, Scope, Send
from litestar.utils.path import normalize_path

from samekey.core.policy import Policy
from samekey.guard.guards import AsyncGuard
from samekey.http import _openapi as openapi
from samekey.http._operation import PARAMETER
from samekey.http._rules import Rules, check_rules, rules_of
from samekey.http.asgi import RAISED, Passage, path_of, whole_template
from samekey.http.endpoint import Endpoint

_BRACES = re.compile(r"\{[^}]*\}")


class SamekeyPlugin(InitPlugin, ReceiveRoutePlugin):
    """Guards every handler; `@rules(...)` on one, or `opt={"samekey": ...}`, gives it its own, or none."""

    samekey_reads_rules = True

    def __init__(self, *, guard: AsyncGuard, endpoint: Rules) -> None:
        self._passage = Passage(guard)
        self._middleware = _Middleware(self._passage, check_rules(endpoint))
        self._passage.declare(endpoint)
        self._policy = guard.policy

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        app_config.middleware.append(self._middleware)
        app_config.on_startup.append(self._passage.start)
        app_config.after_exception.append(_raised)
        return app_config

    def receive_route(self, route: BaseRoute) -> None:
        """Describe the header and our problems in the OpenAPI document."""
        for handler in getattr(route, "route_handlers", ()):
            made = getattr(handler, "operation_class", None)
            if made is not None and not isinstance(made, _Described):
                handler.operation_class = _Described(made, handler, self._middleware, self._policy)


class _Middleware(ASGIMiddleware):
    scopes = (ScopeType.HTTP,)

    def __init__(self, passage: Passage, rules: Rules) -> None:
        self._passage, self._rules = passage, rules

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        known = cast(Any, scope)
        known[RAISED] = []
        # Litestar routes /a/, //a and /a to one handler, so they are one operation and one path.
        path = normalize_path(path_of(known))
        template, route = known.get("path_template"), None
        if template and "{" in template:
            route = whole_template(known, path, known["path"], _BRACES.sub(PARAMETER, template))
        through: Any = self._passage
        await through(next_app, self.rules(known["route_handler"]), known, receive, send, route=route, path=path)

    def rules(self, handler: Any) -> Any:
        if "samekey" in handler.opt:
            return handler.opt["samekey"]
        return rules_of(handler, rules_of(handler.fn, self._rules))


async def _raised(error: Exception, scope: Scope) -> None:
    """Litestar answers exceptions before a middleware sees them; the core needs the exception itself."""
    raised = cast(Any, scope).get(RAISED)
    if raised is not None:
        raised.append((error, isinstance(error, HTTPException)))


class _Described:
    """In place of a handler's class of operations: makes the author's, and fills the fields that are left.

    Litestar renames its references after this, so what it made stays as objects; ours are dictionaries.
    """

    def __init__(self, made: Any, handler: Any, middleware: _Middleware, policy: Policy) -> None:
        self._made, self._handler = made, handler
        self._middleware, self._policy = middleware, policy

    def __call__(self, **given: Any) -> Operation:
        operation: Any = self._made(**given)
        endpoint = self._middleware.rules(self._handler)
        if isinstance(endpoint, Endpoint) and endpoint.methods & {str(one) for one in self._handler.http_methods}:
            describe(operation, endpoint, self._policy)
        return cast(Operation, operation)


def describe(operation: Any, endpoint: Endpoint, policy: Policy) -> None:
    if endpoint.key is None:
        describe_header(operation, endpoint, policy)
    operation.responses = responses = dict(operation.responses or {})
    for status, response in responses.items():
        if status[:1] in "23":
            add_headers(response, openapi.success_headers(endpoint))
    for status, titles in openapi.titles_by_status().items():
        problem: Any = OpenAPIMediaType(schema=cast(Any, openapi.problem_schema(titles)))
        response = responses.setdefault(status, OpenAPIResponse(description=titles))
        if isinstance(response, OpenAPIResponse):  # not a reference, to which nothing can be added
            response.content = {openapi.PROBLEM_JSON: problem, **(response.content or {})}
            add_headers(response, openapi.problem_headers(endpoint, status))


def describe_header(operation: Any, endpoint: Endpoint, policy: Policy) -> None:
    operation.parameters = list(operation.parameters or ())
    ours = openapi.header_parameter(endpoint, policy)
    for one in operation.parameters:
        if getattr(one, "param_in", "") == "header" and one.name.lower() == endpoint.header.lower():
            one.description = one.description or ours["description"]
            one.required = one.required or endpoint.required
            break
    else:
        operation.parameters.append(ours)


def add_headers(response: Any, headers: dict[str, Any]) -> None:
    if isinstance(response, OpenAPIResponse):
        theirs = response.headers or {}
        response.headers = {**theirs, **openapi.absent_headers(headers, theirs)}
