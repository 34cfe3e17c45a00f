"""FastAPI: a route class, so that each route may have rules of its own, and the header is in the OpenAPI document.

    router = APIRouter(route_class=samekey_route(guard=guard, endpoint=Endpoint(...)))

It stands around the whole route: dependencies, validation, handler, and the `yield` dependencies that commit after
the answer was made. What a dependency checks is therefore not checked before a replay: `principal=` is, and must be
the place where the caller is authenticated (or a middleware before it).
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import fastapi.routing
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute

from samekey.guard.guards import AsyncGuard
from samekey.http._openapi import Extra, extra
from samekey.http._operation import PARAMETER
from samekey.http._rules import Rules, check_rules, rules_of
from samekey.http.asgi import Passage, Receive, Scope, Send, path_of, whole_template
from samekey.http.endpoint import Endpoint

# Newer versions of FastAPI keep an included route beside the original, and tell it of the inclusion - of responses and
# dependencies that are said there - nowhere else than here.
INCLUDED: Any = getattr(fastapi.routing, "_effective_route_context_var", None)


def samekey_route(*, guard: AsyncGuard, endpoint: Rules) -> type[APIRoute]:
    """A route class that guards its routes; `@rules(...)` on a handler gives that one its own."""
    passage, default = Passage(guard), check_rules(endpoint)

    class SamekeyRoute(APIRoute):
        # Rules are read when they are needed, not when the route is made: `@rules` may stand above its decorator.
        @property
        def openapi_extra(self) -> dict[str, Any] | None:
            return self._told(self)

        @openapi_extra.setter
        def openapi_extra(self, given: dict[str, Any] | None) -> None:
            # A route that is included in a router may be made anew, of what this one said.
            self._extra = given.own if isinstance(given, Extra) else given

        def get_route_handler(self) -> Any:
            included = INCLUDED and INCLUDED.get()
            if included is not None and included.original_route is self:
                included.openapi_extra = self._told(included)
            return super().get_route_handler()

        def _told(self, route: Any) -> dict[str, Any] | None:
            """The extra of this route, as it stands by itself or in the router that includes it."""
            rules = rules_of(self.endpoint, default)
            if not isinstance(rules, Endpoint) or not rules.methods & {*(self.methods or ())}:
                return self._extra
            validates = bool(route.body_field or get_flat_params(route.dependant))
            return extra(rules, self._extra, route.responses, validates=validates)

        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            route = template_of(self, scope) if scope.get("path_params") else None
            await passage(super().handle, rules_of(self.endpoint, default), scope, receive, send, route=route)

    return SamekeyRoute


def template_of(route: APIRoute, scope: Scope) -> str | None:
    """The whole path of a route with braces for its parameters: where it is mounted, included, and its own.

    Some versions of FastAPI keep the prefix of an included router in the route, others beside it. If neither tells
    of this path, the path itself is the name: two routes must never share one.
    """
    path, root = scope["path"], scope.get("root_path", "")
    mount = root if root and path.startswith(root + "/") else ""
    included = scope.get("fastapi", {}).get("effective_route_context")
    template: str = route.path_format
    if included is not None and included.original_route is route:
        template = included.path_format
    name, shape = shape_of(template)
    own = path[len(mount) :]
    return whole_template(scope, path_of(scope), own, name) if shape.fullmatch(own) else None


@lru_cache(maxsize=1024)
def shape_of(template: str) -> tuple[str, re.Pattern[str]]:
    """A template without the names of its parameters, and the paths that it may stand for."""
    literal = re.split(r"\{[^}]*\}", template)
    return PARAMETER.join(literal), re.compile(".+".join(map(re.escape, literal)), re.DOTALL)
