"""The middleware: one class for sync and async, as Django requires."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings
from django.http.response import HttpResponseBase
from django.urls import Resolver404, resolve
from django.utils.module_loading import import_string

from samekey.core.errors import Misconfigured
from samekey.http._message import Reply
from samekey.http._rules import check_rules, choose, opened, rules_of
from samekey.http._visit import AsyncDoor, Door, counts
from samekey.http.django._exchange import asettle, body_of, chosen, page_of, request_of, response_of, settle
from samekey.http.django._stream import to_its_end

RAISED, JUDGED, VISIT = "_samekey_raised", "_samekey_judged", "_samekey_visit"  # attributes of a request


class SamekeyMiddleware:
    """Guards every view; `@rules(...)` on a view gives it its own, or none."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        given = getattr(settings, "SAMEKEY", None)
        if not isinstance(given, dict):
            raise Misconfigured('settings.SAMEKEY is missing: {"guard": Guard(...), "endpoint": Endpoint(...)}')
        self._endpoint = check_rules(_given(given, "endpoint"), sends=False)
        self._door: Any
        self.process_view: Any = self._check_view
        if iscoroutinefunction(get_response):
            self._door = AsyncDoor(_given(given, "async_guard"))
            self._door.declare(self._endpoint)
            self.process_view = self._acheck_view  # Django would call the other one in a thread
            markcoroutinefunction(self)
        else:
            self._door = Door(_given(given, "guard"))
            self._door.start(self._endpoint)

    def __call__(self, asked: Any) -> Any:
        if iscoroutinefunction(self):
            return self._acall(asked)
        ready = self._open(asked)
        if ready is None:
            return self._get_response(asked)
        visit = ready if isinstance(ready, Reply) else self._door.enter(*ready)
        if isinstance(visit, Reply):
            return response_of(visit)
        setattr(asked, VISIT, visit)
        try:
            response = self._get_response(asked)
            raised = failed(asked, response, visit)
            if raised is None:
                return settle(response, visit)
        except BaseException as error:
            visit.fail(error)
            raise
        page = page_of(response)
        return chosen(response, page, visit.fail(raised, page))

    async def _acall(self, asked: Any) -> Any:
        ready = self._open(asked)
        if ready is None:
            return await self._get_response(asked)
        if isinstance(ready, Reply):
            return response_of(ready)
        return await to_its_end(lambda: self._guarded(asked, ready))

    async def _guarded(self, asked: Any, ready: Any) -> HttpResponseBase:
        visit = await self._door.enter(*ready)
        if isinstance(visit, Reply):
            return response_of(visit)
        setattr(asked, VISIT, visit)
        try:
            response = await self._get_response(asked)
            raised = failed(asked, response, visit)
            if raised is None:
                return await asettle(response, visit)
        except BaseException as error:
            await visit.fail(error)
            raise
        page = page_of(response)
        return chosen(response, page, await visit.fail(raised, page))

    def _check_view(self, asked: Any, view: Any, args: Any, kwargs: Any) -> None:
        """Check that the view about to run is the one whose rules we read: a later middleware may change it."""
        if getattr(asked, JUDGED, None) is view:
            return
        visit = getattr(asked, VISIT, None)
        if visit is not None:
            visit.held.release()  # nothing has run
        else:
            request = request_of(asked)
            endpoint = choose(rules_of(view, self._endpoint, asked.method), request)
            if endpoint is None or endpoint.opening(request) is None:
                return
        raise Misconfigured(
            f"a middleware after SamekeyMiddleware changed the view of {asked.path}: list SamekeyMiddleware after "
            "LocaleMiddleware and after every middleware that sets request.urlconf"
        )

    async def _acheck_view(self, *given: Any) -> None:
        self._check_view(*given)

    def process_exception(self, asked: Any, error: Exception) -> None:
        """Django turns exceptions into pages before we see them; the core needs the exception itself."""
        setattr(asked, RAISED, error)

    def _open(self, asked: Any) -> Any:
        """(endpoint, request, key) if this request is guarded, its answer if that is known already, else None."""
        try:
            match = resolve(asked.path_info, getattr(asked, "urlconf", None))
        except Resolver404:
            return None  # no view has this path, or only a later middleware knows it: see _check_view
        setattr(asked, JUDGED, match.func)
        asked.resolver_match = match
        rules = rules_of(match.func, self._endpoint, asked.method)
        return opened(rules, request_of(asked), partial(body_of, asked))


def failed(asked: Any, response: Any, visit: Any) -> Exception | None:
    """The exception of which this answer was made, if the exception decides about the record."""
    raised: Exception | None = getattr(asked, RAISED, None)
    return raised if raised is not None and counts(visit, raised, response.status_code) else None


def _given(options: dict[str, Any], name: str) -> Any:
    """The option of settings.SAMEKEY with this name: the object itself, or imported from its dotted name."""
    if name not in options:
        raise Misconfigured(
            f'settings.SAMEKEY has no "{name}": it needs "endpoint", and "guard" (WSGI) or "async_guard" (ASGI)'
        )
    return import_string(options[name]) if isinstance(options[name], str) else options[name]
