"""An application that announces more than it says, as one does whose upstream broke off: what it did is unknown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.asgi import get_asgi_application
from django.test import override_settings

from samekey import AsyncGuard, Opaque, Policy
from samekey.http import Endpoint
from samekey.testing.http import Called, Said
from samekey.testing.http.drivers import AsgiDriver, Sent
from tests.http.apps import django_answer
from tests.http.sites import ADAPTERS, driven

POST = Sent("POST", "/charges", headers=(("Idempotency-Key", "k"),))


@contextmanager
def async_django(endpoint: Endpoint, handle: Any) -> Iterator[Any]:
    async def view(request: Any) -> Any:
        return django_answer(handle(Called(request.method, request.path, request.body)))

    with override_settings(
        ROOT_URLCONF="tests.http.django_async_urls",
        MIDDLEWARE=["samekey.http.django.SamekeyMiddleware"],
        SAMEKEY={"async_guard": AsyncGuard("memory://"), "endpoint": endpoint},
    ):
        app = get_asgi_application()
        driver = AsgiDriver(lambda scope, receive, send: app({**scope, "samekey.view": view}, receive, send))
        yield driver
        driver.close()


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume synchronous iterators")
@pytest.mark.parametrize("body", [b"12345", [b"123", b"45"]], ids=["whole", "streamed"])
@pytest.mark.parametrize("room", [1000, 4], ids=["kept", "too long to keep"])
@pytest.mark.parametrize("remember", ["success_only", "ietf_draft"])
@pytest.mark.parametrize("adapter", [*ADAPTERS, "async django"])
def test_an_answer_shorter_than_it_said_is_unknown(adapter: str, remember: Any, room: int, body: Any):
    """And never told, or kept, as a whole one, of any status."""
    ran: list[int] = []

    def handle(called: Called) -> Said:
        ran.append(1)
        return Said(201, body, (("Content-Length", "10"), ("Content-Type", "text/plain")))

    endpoint = Endpoint(
        boundary=Opaque(),
        single_tenant=True,
        remember=remember,
        policy=Policy(result_max_bytes=room + 2),
    )
    with async_django(endpoint, handle) if adapter == "async django" else driven(adapter, endpoint, handle) as driver:
        first, second = driver.send(POST), driver.send(POST)

    assert first.status == 500 or first.header("content-length") == "10"  # the server sees that it is not whole
    assert (second.status, b"in-doubt" in second.body, len(ran)) == (409, True, 1)
