"""Views whose `@rules(...)` a middleware around the whole application would not read: refused, before a request comes.

The middlewares of ASGI and WSGI see requests, not views. An application whose author decorated a view expects other
rules than it would get, so it must not start. Frameworks are recognised by their attributes: this file imports none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from functools import partial
from inspect import getattr_static
from typing import Any

from samekey.core.errors import Misconfigured
from samekey.http._rules import rules_of

LOOKED_AT_MAX = 10_000  # objects: an application with more routes than this is not looked through to its end
METHODS = ("POST", "PATCH", "PUT", "DELETE")
NO_RULES = object()


def refuse_ignored_rules(app: Any, middleware: str) -> None:
    """Raise Misconfigured if a view of this application has rules that nothing reads."""
    ignored = sorted({name_of(view) for view in views_of(app) if has_rules(view)})
    if ignored:
        raise Misconfigured(
            f"@rules on {', '.join(ignored)} would be ignored: {middleware} sees requests, not views. Guard them with "
            "the adapter of the framework (samekey.http.fastapi, litestar, flask, django), or remove @rules and give "
            "endpoint= a function of the request that returns the Endpoint of each path"
        )


def has_rules(view: Any) -> bool:
    if isinstance(view, type):  # a class of Starlette: its methods are the handlers
        return any(hasattr(one, "__samekey__") for one in (view, *(getattr(view, m.lower(), None) for m in METHODS)))
    return any(rules_of(view, NO_RULES, method) is not NO_RULES for method in METHODS)


def name_of(view: Any) -> str:
    return f"{getattr(view, '__module__', '?')}.{getattr(view, '__qualname__', type(view).__qualname__)}"


def views_of(app: Any) -> Iterator[Any]:
    """What may be a view in an application and in those inside it, unless another adapter of ours guards it."""
    left, seen = [app], dict[int, Any]()
    while left and len(seen) < LOOKED_AT_MAX:
        one = left.pop()
        if id(one) in seen or reads_rules(one):
            continue
        seen[id(one)] = one
        if callable(one):
            yield one
        left.extend(inside(one))


def inside(one: Any) -> Iterator[Any]:
    """The parts of an application, a router, a route or a function that may have views."""
    yield from closure_of(one)
    for attribute in ("routes", "route_handlers"):
        yield from members(attribute_of(one, attribute))
    yield from (attribute_of(one, "view_functions") or {}).values()  # Flask
    if type(one).__module__.startswith("django.core.handlers."):
        yield from django_views()
    # A middleware or a mount; an included router; a bound method; a route; a handler of Litestar.
    for attribute in ("app", "original_router", "__self__", "endpoint", "fn"):
        found = attribute_of(one, attribute)
        if callable(found) or hasattr(found, "routes"):
            yield found


def reads_rules(one: Any) -> bool:
    """Whether an adapter of ours reads the rules of this application or route."""
    if attribute_of(one, "samekey_reads_rules"):
        return True
    if "samekey" in members(attribute_of(one, "extensions")):
        return True
    return any(attribute_of(plugin, "samekey_reads_rules") for plugin in members(attribute_of(one, "plugins")))


def attribute_of(one: Any, name: str) -> Any:
    """The attribute, or None. An object that makes up attributes (a mock, a proxy) is not asked."""
    return None if getattr_static(one, name, None) is None else getattr(one, name, None)


def members(found: Any) -> Iterable[Any]:
    return list(found) if hasattr(type(found), "__iter__") and not isinstance(found, (str, bytes)) else ()


def closure_of(function: Any) -> Iterator[Any]:
    """What a function was made around: Starlette has the endpoint of a route nowhere else."""
    for cell in getattr(function, "__closure__", None) or ():
        try:
            held = cell.cell_contents
        except ValueError:  # not filled yet
            continue
        yield from (one for one in (held.args if isinstance(held, partial) else (held,)) if callable(one))


def django_views() -> Iterator[Any]:
    urls: Any = sys.modules.get("django.urls")
    conf: Any = sys.modules.get("django.conf")
    if urls is None or conf is None or "samekey.http.django.SamekeyMiddleware" in conf.settings.MIDDLEWARE:
        return
    left = [urls.get_resolver()]
    while left:
        one = left.pop()
        left.extend(getattr(one, "url_patterns", ()))
        if getattr(one, "callback", None) is not None:
            yield one.callback
