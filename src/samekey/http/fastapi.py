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

from fastapi.routing import APIRoute

from samekey.guard import AsyncGuard
from samekey.http._exchange import Endpoint, rules_of
from samekey.http._problems import PROBLEMS
from samekey.http._visit import Rules, check_rules
from samekey.http.asgi import Passage, Receive, Scope, Send


def samekey_route(*, guard: AsyncGuard, endpoint: Rules) -> type[APIRoute]:
    """A route class that guards its routes; `@rules(...)` on a handler gives that one its own."""
    passage, default = Passage(guard), check_rules(endpoint)

    class SamekeyRoute(APIRoute):
        # Rules are read when they are needed, not when the route is made: `@rules` may stand above its decorator.
        @property
        def openapi_extra(self) -> dict[str, Any] | None:
            rules = rules_of(self.endpoint, default)
            if isinstance(rules, Endpoint) and rules.methods & {*(self.methods or ())}:
                return {**openapi(rules), **(self._extra or {})}
            return self._extra

        @openapi_extra.setter
        def openapi_extra(self, extra: dict[str, Any] | None) -> None:
            self._extra = extra

        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            route = template_of(self, scope) if scope.get("path_params") else None
            await passage(super().handle, rules_of(self.endpoint, default), scope, receive, send, route=route)

    return SamekeyRoute


def template_of(route: APIRoute, scope: Scope) -> str | None:
    """The whole path of a route with its parameters in braces: where it is mounted, included, and its own.

    Some versions of FastAPI keep the prefix of an included router in the route, others beside it. If neither tells
    of this path, the path itself is the name: two routes must never share one.
    """
    path, root = scope["path"], scope.get("root_path", "")
    mount = root if root and path.startswith(root + "/") else ""
    included = scope.get("fastapi", {}).get("effective_route_context")
    template: str = route.path_format
    if included is not None and included.original_route is route:
        template = included.path_format
    return mount + template if shape_of(template).fullmatch(path[len(mount) :]) else None


@lru_cache(maxsize=1024)
def shape_of(template: str) -> re.Pattern[str]:
    literal = re.split(r"\{[^}]*\}", template)
    return re.compile(".+".join(map(re.escape, literal)), re.DOTALL)


def openapi(endpoint: Endpoint) -> dict[str, Any]:
    """The header and the problems, as an operation in an OpenAPI document describes them."""
    told: dict[str, dict[str, Any]] = {}
    for problem in PROBLEMS:
        if problem.name == "bad-signature":
            continue  # webhooks only
        said = told.setdefault(str(problem.status), {"description": ""})
        said["description"] = f"{said['description']}. {problem.title}".lstrip(". ")
        said["content"] = {"application/problem+json": {"schema": PROBLEM_SCHEMA}}
    header = {
        "name": endpoint.header,
        "in": "header",
        "required": endpoint.required,
        "description": "Names this one request: send it again with the same key and it is not done twice.",
        "schema": {"type": "string", "pattern": QUOTED if endpoint.strict else f"{BARE}|{QUOTED}"},
    }
    return {"parameters": [header], "responses": told}


# What `_key.py` takes, as far as a client should care: parameters behind a quoted key are left out.
BARE = r"^[!#-+\--:<-~]{1,255}$"
QUOTED = r'^"(?! *")([ !#-\[\]-~]|\\["\\]){1,255}"$'

PROBLEM_SCHEMA = {
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
    },
}
