"""The decorator: one view, sync or async, inside ATOMIC_REQUESTS, `login_required` and all that is around the view."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation
from django.core.handlers.exception import response_for_exception
from django.http import Http404

from samekey.core.errors import Misconfigured
from samekey.guard.guards import AsyncGuard, Guard
from samekey.http._message import Reply, Request
from samekey.http._rules import Rules, check_rules, opened
from samekey.http._visit import AsyncDoor, Door, counts
from samekey.http.django._exchange import asettle, body_of, chosen, page_of, request_of, response_of, settle
from samekey.http.django._stream import to_its_end

ANSWERS = (Http404, PermissionDenied, BadRequest, SuspiciousOperation)  # exceptions that Django makes 4xx pages of


def guarded(guard: Guard | AsyncGuard, endpoint: Rules) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Guard one view: `@guarded(guard, Endpoint(...))`, next to the view itself."""
    rules = check_rules(endpoint, sends=False)

    def decorate(view: Callable[..., Any]) -> Callable[..., Any]:
        if iscoroutinefunction(view):
            async_door = AsyncDoor(guard)  # type: ignore[arg-type]
            async_door.declare(rules)
            return _async_view(async_door, rules, view)
        door = Door(guard)  # type: ignore[arg-type]
        door.start(rules)
        return _view(door, rules, view)

    return decorate


def _view(door: Door, rules: Rules, view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    def inner(asked: Any, *args: Any, **kwargs: Any) -> Any:
        ready = opened(rules, as_request(asked), partial(body_of, asked))
        if ready is None:
            return view(asked, *args, **kwargs)
        visit = ready if isinstance(ready, Reply) else door.enter(*ready)
        if isinstance(visit, Reply):
            return response_of(visit)
        try:
            try:
                response = view(asked, *args, **kwargs)
            except Exception as error:
                response = page_for(asked, error)
                rendered_by(asked, response)
                if counts(visit, error, response.status_code, answers=True):
                    page = page_of(response)
                    return chosen(response, page, visit.fail(error, page))
            rendered_by(asked, response)
            return settle(response, visit)
        except BaseException as error:
            reply = visit.fail(error)
            if reply is None:
                raise
            return response_of(reply)

    return inner


def _async_view(door: AsyncDoor, rules: Rules, view: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(view)
    async def inner(asked: Any, *args: Any, **kwargs: Any) -> Any:
        ready = opened(rules, as_request(asked), partial(body_of, asked))
        if ready is None:
            return await view(asked, *args, **kwargs)
        if isinstance(ready, Reply):
            return response_of(ready)
        return await to_its_end(lambda: held(ready, asked, *args, **kwargs))

    async def held(ready: Any, asked: Any, *args: Any, **kwargs: Any) -> Any:
        visit = await door.enter(*ready)
        if isinstance(visit, Reply):
            return response_of(visit)
        try:
            try:
                response = await view(asked, *args, **kwargs)
            except Exception as error:
                response = page_for(asked, error)
                if counts(visit, error, response.status_code, answers=True):
                    page = page_of(response)
                    return chosen(response, page, await visit.fail(error, page))
            return await asettle(response, visit)
        except BaseException as error:
            reply = await visit.fail(error)
            if reply is None:
                raise
            return response_of(reply)

    return inner


def as_request(asked: Any) -> Request:
    if not hasattr(asked, "META"):
        raise Misconfigured(
            f"guarded() is for a view, and {type(asked).__name__} is not a request: "
            "on a method write @method_decorator(guarded(...))"
        )
    return request_of(asked)


# REST framework wraps the request before the methods of its views run, and makes answers of their exceptions and
# responses afterwards. Below it, we ask it to make them.


def page_for(asked: Any, error: Exception) -> Any:
    """The answer that Django, or REST framework, makes of this exception; raises it again if there is none."""
    inside = getattr(asked, "parser_context", None)
    if inside is not None and not isinstance(error, (BadRequest, SuspiciousOperation)):
        return inside["view"].handle_exception(error)
    if isinstance(error, ANSWERS):
        return response_for_exception(asked, error)
    raise error


def rendered_by(asked: Any, response: Any) -> None:
    """Give REST framework's response the renderer that it would get after us."""
    if hasattr(asked, "accepted_renderer") and not hasattr(response, "accepted_renderer"):
        response.accepted_renderer = asked.accepted_renderer
        response.accepted_media_type = asked.accepted_media_type
        response.renderer_context = asked.parser_context["view"].get_renderer_context()
