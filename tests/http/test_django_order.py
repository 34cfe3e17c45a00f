"""Django: a middleware behind ours that changes which view answers. Nothing may run unguarded because of it."""

from __future__ import annotations

import asyncio
from types import ModuleType
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf.urls.i18n import i18n_patterns
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from django.utils import translation

import tests.django_settings  # noqa: F401
from samekey import AsyncGuard, Guard, Opaque, State
from samekey.http import Endpoint, rules
from samekey.testing.http.drivers import Got, Sent, WsgiDriver, asgi_send

OURS, LOCALE = "samekey.http.django.SamekeyMiddleware", "django.middleware.locale.LocaleMiddleware"
HOSTS = f"{__name__}.Hosts"

ran: list[str] = []


def charge(request: Any, **params: Any) -> Any:
    ran.append(request.path)
    return HttpResponse("charged")


@rules(None)
def free(request: Any) -> Any:
    ran.append("free")
    return HttpResponse("free")


class Hosts:
    """Gives the host api.x other URLs."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        if request.get_host().startswith("api."):
            request.urlconf = API
        return self._get_response(request)


URLS: Any = ModuleType("urls")
URLS.urlpatterns = [
    *i18n_patterns(path("charges/<int:number>", charge)),
    path("own", charge),
    path("other", free),
]
API: Any = ModuleType("api")
API.urlpatterns = [path("v1/charges", charge), path("own", free), path("other", charge)]


class Site:
    def __init__(self, *middleware: str, asynchronous: bool, required: bool = False) -> None:
        self._asynchronous = asynchronous
        self.guard: Any = AsyncGuard("memory://") if asynchronous else Guard("memory://")
        endpoint = Endpoint(boundary=Opaque(), single_tenant=True, required=required)
        self._settings = override_settings(
            ROOT_URLCONF=URLS,
            MIDDLEWARE=list(middleware),
            SAMEKEY={"async_guard" if asynchronous else "guard": self.guard, "endpoint": endpoint},
            LANGUAGES=[("en", "English"), ("de", "Deutsch")],
        )

    def post(self, url: str, *, key: str | None = "k", host: str = "x") -> Got:
        sent = Sent("POST", url, headers=(("Host", host), *((("Idempotency-Key", key),) if key else ())))
        with self._settings, translation.override("en"):
            if self._asynchronous:
                return asyncio.run(asgi_send(get_asgi_application(), sent))
            return WsgiDriver(get_wsgi_application()).send(sent)

    def state(self, operation: str) -> State | None:
        record = self.guard.peek(operation, "k")
        record = asyncio.run(record) if self._asynchronous else record
        return None if record is None else record.state


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


COLOURS = pytest.mark.parametrize("asynchronous", [False, True])
BEHIND = pytest.mark.parametrize(
    ("behind", "url", "host"), [(LOCALE, "/de/charges/1", "x"), (HOSTS, "/v1/charges", "api.x")]
)


@COLOURS
@BEHIND
def test_a_view_that_we_could_not_know_is_refused(behind: str, url: str, host: str, asynchronous: bool):
    """It ran unguarded, and as often as it was sent."""
    site = Site(OURS, behind, asynchronous=asynchronous)
    keyed = [site.post(url, host=host).status for _ in range(2)]
    without = site.post(url, host=host, key=None)

    assert keyed == [500, 500]
    assert (without.status, ran) == (200, [url])


@COLOURS
@BEHIND
def test_a_key_that_is_required_is_required_there_too(behind: str, url: str, host: str, asynchronous: bool):
    site = Site(OURS, behind, asynchronous=asynchronous, required=True)

    assert (site.post(url, host=host, key=None).status, ran) == (500, [])


@COLOURS
@BEHIND
def test_in_the_right_order_it_is_guarded(behind: str, url: str, host: str, asynchronous: bool):
    site = Site(behind, OURS, asynchronous=asynchronous)
    first, second = site.post(url, host=host), site.post(url, host=host)

    assert (first.status, second.status, second.header("idempotent-replayed"), ran) == (200, 200, "true", [url])


@COLOURS
@pytest.mark.parametrize("url", ["/own", "/other"])
def test_another_view_at_the_same_path_is_refused(url: str, asynchronous: bool):
    """One of them is guarded, the other is not; whatever was claimed for it is free again: nothing ran."""
    site = Site(OURS, HOSTS, asynchronous=asynchronous)
    refused = site.post(url, host="api.x")
    state = site.state(f"POST {url}")

    assert (refused.status, ran) == (500, [])
    assert state is (State.RELEASED if url == "/own" else None)


@COLOURS
def test_what_nobody_knows_is_not_found(asynchronous: bool):
    assert Site(OURS, LOCALE, asynchronous=asynchronous).post("/nowhere").status == 404
