"""FastAPI: a route class, so that each route may have its own rules, and the header is in the OpenAPI document.

    app, router = FastAPI(), APIRouter()
    samekey_route(guard=guard, endpoint=Endpoint(...), app=app)        # guards the routes that are added from here on
    samekey_route(guard=guard, endpoint=Endpoint(...), router=router)  # a router has its own route class

A guarded route contains everything FastAPI does for it: dependencies, validation, handler, and the `yield` dependencies
that commit after the answer was made. A replay runs none of them, so authenticate the caller in `principal=` or in a
middleware, not in a dependency.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any
from weakref import WeakSet, ref

import fastapi.routing
from fastapi import FastAPI
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute, APIRouter

from samekey.guard.guards import AsyncGuard
from samekey.http._openapi import Extra, extra
from samekey.http._operation import PARAMETER
from samekey.http._rules import Rules, check_rules, rules_of
from samekey.http.asgi import Passage, Receive, Scope, Send, path_of, whole_template
from samekey.http.endpoint import METHODS, Endpoint

_log = logging.getLogger("samekey")

# Newer versions of FastAPI keep an included route and the original, and describe the inclusion (its responses and
# dependencies) to the route only here.
INCLUDED: Any = getattr(fastapi.routing, "_effective_route_context_var", None)
# Those versions list an included router as one route; this function lists the routes inside it.
EVERY_ROUTE: Any = getattr(fastapi.routing, "iter_route_contexts", list)

_named = WeakSet[Any]()  # applications whose unguarded routes are in the log already


def samekey_route(
    *, guard: AsyncGuard, endpoint: Rules, app: FastAPI | None = None, router: APIRouter | None = None
) -> type[APIRoute]:
    """A route class that guards its routes; `@rules(...)` on a handler gives that one its own.

    With `app` or `router` it becomes the route class of that application or router, for the routes that are added
    from then on. When the application starts, the store is checked, and `POST` and `PATCH` routes of the application
    that are not guarded are named in the log. For a router this needs a version of FastAPI that runs the lifespan of
    an included router. A class that is given as `route_class=` of the application does the same; as `route_class=` of
    a router it does not know its application: the first request to a route of it names them, and the store is checked
    by the first claim.
    """
    passage, default = Passage(guard), check_rules(endpoint)
    passage.declare(default)
    started = False
    checked: list[ref[APIRouter]] = []  # a router cannot be hashed

    def check(target: APIRouter) -> None:
        if not any(one() is target for one in checked):
            checked.append(ref(target))
            check_at_start(target, passage)

    class SamekeyRoute(APIRoute):
        samekey_reads_rules = True

        def __init__(self, *given: Any, dependency_overrides_provider: Any = None, **named: Any) -> None:
            super().__init__(*given, dependency_overrides_provider=dependency_overrides_provider, **named)
            if isinstance(dependency_overrides_provider, FastAPI):  # the application to which this route is added
                check(dependency_overrides_provider.router)

        # Rules are read when they are needed, not when the route is made: `@rules` may be above the route's decorator.
        @property
        def openapi_extra(self) -> dict[str, Any] | None:
            return self._described(self)

        @openapi_extra.setter
        def openapi_extra(self, given: dict[str, Any] | None) -> None:
            # FastAPI may make the route of an included router anew, from the attributes of this one.
            self._extra = given.own if isinstance(given, Extra) else given

        def get_route_handler(self) -> Any:
            included = INCLUDED and INCLUDED.get()
            if included is not None and included.original_route is self:
                included.openapi_extra = self._described(included)
            return super().get_route_handler()

        def _described(self, route: Any) -> dict[str, Any] | None:
            """The extra of this route, by itself or in the router that includes it."""
            rules = rules_of(self.endpoint, default)
            if not isinstance(rules, Endpoint) or not rules.methods & {*(self.methods or ())}:
                return self._extra
            return extra(
                rules,
                guard.policy,
                self._extra,
                route.responses,
                validates=bool(route.body_field or get_flat_params(route.dependant)),
                success=success_status(self),
            )

        async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal started
            if not started:
                started = True
                name_unguarded(scope.get("app"))
            route = template_of(self, scope) if scope.get("path_params") else None
            await passage(super().handle, rules_of(self.endpoint, default), scope, receive, send, route=route)

    for target in (app.router if app is not None else None, router):
        if target is not None:
            target.route_class = SamekeyRoute
            check(target)
    return SamekeyRoute


def check_at_start(router: APIRouter, passage: Passage) -> None:
    """Add our check to the router's lifespan. FastAPI runs it with the application that includes the router."""
    lifespan = router.lifespan_context

    @asynccontextmanager
    async def checked(app: Any) -> AsyncIterator[Any]:
        await passage.start()
        name_unguarded(app)
        async with lifespan(app) as state:
            yield state

    router.lifespan_context = checked


def name_unguarded(app: Any) -> None:
    """Warn, once for each application, of routes that were added before the route class, or by a plain APIRouter."""
    if app is None or app in _named:
        return
    _named.add(app)
    names = sorted(unguarded(app))
    if names:
        _log.warning(
            "samekey does not guard %s: give their router route_class=samekey_route(...) before it gets its routes; "
            "@rules(None) on a handler says that it is not to be guarded",
            ", ".join(names),
        )


def unguarded(app: Any) -> Iterator[str]:
    for listed in EVERY_ROUTE(app.routes):
        route = getattr(listed, "original_route", listed)
        if isinstance(route, APIRoute) and not getattr(route, "samekey_reads_rules", False):
            methods = sorted({*METHODS} & {*(route.methods or ())})
            if methods and not hasattr(route.endpoint, "__samekey__"):
                yield f"{'/'.join(methods)} {listed.path}"


def success_status(route: APIRoute) -> str:
    """The status of the handler's answer, as FastAPI's document finds it."""
    if route.status_code is not None:
        return str(int(route.status_code))
    response: Any = getattr(route.response_class, "value", route.response_class)
    status = inspect.signature(response.__init__).parameters.get("status_code")
    return str(status.default) if status is not None and isinstance(status.default, int) else "200"


def template_of(route: APIRoute, scope: Scope) -> str | None:
    """The whole path of a route with braces for its parameters: of the mount, of the inclusion, and its own.

    Some versions of FastAPI keep the prefix of an included router in the route, others outside it. If neither template
    fits this path, the path itself is the name: two routes must never share one.
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
    """A template without the names of its parameters, and a pattern of the paths that fit it."""
    literal = re.split(r"\{[^}]*\}", template)
    return PARAMETER.join(literal), re.compile(".+".join(map(re.escape, literal)), re.DOTALL)
