"""The rules of a request: those of its view, or of the whole application.

Rules are an `Endpoint`, a function of the request that chooses one, or None for a request that is not guarded.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any, TypeVar
from weakref import WeakSet

from samekey.core.errors import Misconfigured
from samekey.http._message import Reply, Request
from samekey.http.endpoint import Endpoint

Rules = Endpoint | Callable[[Request], Endpoint | None]

View = TypeVar("View", bound=Callable[..., Any])

OF_VIEWS: WeakSet[Endpoint] = WeakSet()  # the rules that views have of their own, for the registry of operations


def rules(endpoint: Endpoint | None) -> Callable[[View], View]:
    """Give a view its own rules; with None it is not guarded. For the adapters that know their views.

    A view is a function, a class of views, or one of its methods; a method's rules come before those of its class.
    """
    if endpoint is not None:
        check_rules(endpoint)
        OF_VIEWS.add(endpoint)

    def decorate(view: View) -> View:
        view.__samekey__ = endpoint  # type: ignore[attr-defined]
        return view

    return decorate


def rules_of(view: Any, otherwise: Any, method: str = "") -> Any:
    """The rules of the handler for this method, of the view, or of the class of the view; else `otherwise`."""
    kind = getattr(view, "view_class", None) or getattr(view, "cls", None)
    if kind is None:
        return getattr(view, "__samekey__", otherwise)
    named = (getattr(view, "actions", None) or {}).get(method.lower(), method.lower())
    handler = getattr(kind, named, None)
    found = otherwise
    for one in (kind, view, under_api_view(handler), handler):  # the nearest comes last
        found = getattr(one, "__samekey__", found)
    return found


def under_api_view(handler: Any) -> Any:
    """The function that REST framework's `api_view` made this handler of: only the handler's closure has it."""
    if getattr(handler, "__qualname__", "") != "api_view.<locals>.decorator.<locals>.handler":
        return None
    return next((cell.cell_contents for cell in handler.__closure__ if callable(cell.cell_contents)), None)


def check_rules(endpoint: Any, *, sends: bool = True) -> Rules:
    """The rules, checked; an adapter that `sends` the answer itself can settle before or after that."""
    if isinstance(endpoint, Endpoint) and not sends:
        check_settle(endpoint)
    if callable(endpoint) and (iscoroutinefunction(endpoint) or iscoroutinefunction(type(endpoint).__call__)):
        raise Misconfigured("endpoint= takes a plain function of the request, not an async one: it must not wait")
    if isinstance(endpoint, Endpoint) or (callable(endpoint) and not isinstance(endpoint, type)):
        rules: Rules = endpoint
        return rules
    what = f"the class {endpoint.__name__}" if isinstance(endpoint, type) else type(endpoint).__name__
    raise Misconfigured(f"endpoint= takes an Endpoint, or a function that chooses one, not {what}")


def check_settle(endpoint: Endpoint) -> None:
    """Refuse an option that would do nothing: here the record is settled before anything is sent."""
    if endpoint.settle == "before-send":
        raise Misconfigured('settle="before-send" is for ASGI and WSGI: here a record settles before its answer anyway')


def choose(rules: Any, request: Request) -> Endpoint | None:
    """The rules of this request."""
    if rules is None or isinstance(rules, Endpoint):
        return rules
    chosen = rules(request)
    if chosen is not None and not isinstance(chosen, Endpoint):
        raise Misconfigured(f"the function of endpoint= gives an Endpoint or None, not {type(chosen).__name__}")
    return chosen


def opened(
    rules: Any, request: Request, read_body: Callable[[Endpoint, str], bytes | Reply], *, sends: bool = False
) -> tuple[Endpoint, Request, str] | Reply | None:
    """Read a request under a sync server: what `Door.enter` takes, the answer where it is known, None if unguarded."""
    endpoint = choose(rules, request)
    key = None if endpoint is None else endpoint.opening(request)
    if endpoint is None or key is None:
        return None
    if not sends:
        check_settle(endpoint)
    if isinstance(key, Reply):
        return key
    body = read_body(endpoint, key)
    if isinstance(body, Reply):
        return body
    request.body = body
    return endpoint, request, key
