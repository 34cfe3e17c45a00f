"""Applications behind an adapter of each kind, driven as a server would: pure ASGI, WSGI, Flask, Django."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.core.wsgi import get_wsgi_application
from django.test import override_settings
from flask import Flask
from werkzeug.routing import PathConverter

import tests.django_settings  # noqa: F401
from samekey import AsyncGuard, Guard
from samekey.http import Endpoint
from samekey.http.asgi import SamekeyMiddleware as AsgiMiddleware
from samekey.http.flask import Samekey
from samekey.http.wsgi import SamekeyMiddleware as WsgiMiddleware
from samekey.testing.http import Called, Handle
from samekey.testing.http.drivers import AsgiDriver, WsgiDriver
from tests.http.apps import METHODS, bare_asgi, bare_wsgi, django_answer, flask_view


class Anything(PathConverter):
    """A path with line breaks too: Flask's own does not match it, and then there is nothing to guard."""

    regex = r"(?s:.*)"
    part_isolating = False


ADAPTERS = ("asgi", "wsgi", "flask", "django")


@contextmanager
def driven(adapter: str, endpoint: Endpoint, handle: Handle) -> Iterator[Any]:
    """A driver of an application that gives every request to `handle`, under these rules, with a memory of its own."""
    if adapter == "asgi":
        async_driver = AsgiDriver(AsgiMiddleware(bare_asgi(handle), guard=AsyncGuard("memory://"), endpoint=endpoint))
        yield async_driver
        async_driver.close()
        return
    guard = Guard("memory://")
    if adapter == "wsgi":
        yield WsgiDriver(WsgiMiddleware(bare_wsgi(handle), guard=guard, endpoint=endpoint))
        return

    if adapter == "flask":
        app = Flask("shop")
        app.url_map.converters["anything"] = Anything
        app.add_url_rule(
            "/<anything:path>", "any", flask_view(handle), methods=METHODS, provide_automatic_options=False
        )
        Samekey(app, guard=guard, endpoint=endpoint)
        yield WsgiDriver(app)
        return

    def view(request: Any) -> Any:
        return django_answer(handle(Called(request.method, request.path, request.body)))

    with override_settings(
        ROOT_URLCONF="tests.http.django_urls",
        MIDDLEWARE=["samekey.http.django.SamekeyMiddleware"],
        SAMEKEY={"guard": guard, "endpoint": endpoint},
    ):
        django = get_wsgi_application()
        yield WsgiDriver(lambda environ, start: django({**environ, "samekey.view": view}, start))
