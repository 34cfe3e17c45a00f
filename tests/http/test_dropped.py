"""Long answers that somebody replaces or wraps on their way out: no key is held on to."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, StreamingHttpResponse
from django.test import override_settings
from flask import Flask, Response

import tests.django_settings  # noqa: F401
from samekey import Guard, Misconfigured, Opaque, Policy, State, current
from samekey.http import Endpoint
from samekey.http.flask import Samekey
from samekey.testing.http.drivers import Sent, WsgiDriver

ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True, policy=Policy(result_max_bytes=1000))
SENT = Sent("POST", "/charges", "", (("Idempotency-Key", "k-1"),))


kept: list[Any] = []  # holds, by the handler that they were made for


def parts() -> Any:
    kept[:] = [current()]
    return iter([b"x" * 600] * 3)


def test_what_flask_replaces_is_renewed_no_more() -> None:
    """By `after_request`, which comes after us: nobody sends our answer, and nobody closes it."""
    app, guard = Flask("shop"), Guard("memory://")
    Samekey(app, guard=guard, endpoint=ENDPOINT)
    app.post("/charges")(lambda: Response(parts()))
    app.after_request(lambda response: Response("something else"))
    got = WsgiDriver(app).send(SENT)
    gc.collect()

    assert got.body == b"something else"
    assert [held.over for held in kept] == [True]  # although somebody has it still
    assert guard._leases.living() == []
    with pytest.raises(Misconfigured):
        current()  # nor is it the hold of whatever this thread does next


def test_what_flask_wraps_is_settled_at_its_end() -> None:
    """As something that compresses does."""
    app, guard = Flask("shop"), Guard("memory://")
    Samekey(app, guard=guard, endpoint=ENDPOINT)
    app.post("/charges")(lambda: Response(parts()))

    @app.after_request
    def wrapped(response: Response) -> Response:
        inside: Any = response.response
        response.response = (part.upper() for part in inside)
        return response

    got = WsgiDriver(app).send(SENT)
    record = guard.peek("POST /charges", "k-1")

    assert got.body == b"X" * 1800
    assert getattr(record, "state", None) is State.COMPLETED


class Instead:
    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        self._get_response(request)
        return HttpResponse("something else")


def test_what_django_replaces_is_renewed_no_more() -> None:
    """By a middleware around ours."""
    guard = Guard("memory://")
    with override_settings(
        ROOT_URLCONF="tests.http.django_urls",
        MIDDLEWARE=[f"{__name__}.Instead", "samekey.http.django.SamekeyMiddleware"],
        SAMEKEY={"guard": guard, "endpoint": ENDPOINT},
    ):
        app = get_wsgi_application()
        view = {"samekey.view": lambda request: StreamingHttpResponse(parts())}
        got = WsgiDriver(lambda environ, start: app({**environ, **view}, start)).send(SENT)
    gc.collect()

    assert got.body == b"something else"
    assert [held.over for held in kept] == [True]
    assert guard._leases.living() == []
