"""Windows that remain over HTTP: each is produced here, and shut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from samekey import AsyncGuard, Guard, Opaque, Refused, current
from samekey.http import Endpoint
from samekey.http.asgi import SamekeyMiddleware as AsgiMiddleware
from samekey.http.wsgi import SamekeyMiddleware as WsgiMiddleware
from samekey.testing.http import Called, Said
from samekey.testing.http.drivers import AsgiDriver, Sent, WsgiDriver
from tests.http.sites import ADAPTERS, driven

POST = Sent("POST", "/charges", headers=(("Idempotency-Key", "k"),))


def nothing() -> None:
    pass


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize(
    ("before", "after", "remember", "statuses", "effects"),
    [
        (nothing, nothing, "success_only", [404, 404], 2),  # the window
        (lambda: current().sending(), nothing, "success_only", [404, 409], 1),
        (lambda: current().provider_key(), nothing, "success_only", [404, 409], 1),
        (nothing, lambda: current().keep(), "success_only", [404, 404], 1),
        (nothing, nothing, "ietf_draft", [404, 404], 1),
    ],
)
def test_a_4xx_after_an_effect_that_nobody_was_told_of_frees_the_key(
    adapter: str, before: Callable[[], Any], after: Callable[[], Any], remember: Any, statuses: list[int], effects: int
):
    """A 4xx is taken for "I did nothing": where the handler says so after it did something, it must say that too."""
    charged: list[int] = []

    def handle(called: Called) -> Said:
        before()
        charged.append(200)
        after()
        return Said(404, b"no receipt for this country")

    with driven(adapter, Endpoint(boundary=Opaque(), single_tenant=True, remember=remember), handle) as driver:
        assert [driver.send(POST).status for _ in range(2)] == statuses
    assert len(charged) == effects


@pytest.mark.parametrize("framework", ["starlette", "flask"])
@pytest.mark.parametrize(("final", "effects"), [((), 2), ((402,), 1)])
def test_a_page_that_an_application_makes_of_a_refusal_is_all_we_see_around_it(
    framework: str, final: tuple[int, ...], effects: int
):
    """Outside its exception handlers, Refused is a 402 like any other: it frees the key, unless final= lists it."""
    asked: list[int] = []

    def refuse(*request: Any) -> Any:
        asked.append(1)
        raise Refused("stolen card")

    endpoint = Endpoint(boundary=Opaque(), single_tenant=True, final=final)
    if framework == "flask":
        flask = Flask("shop")
        flask.register_error_handler(Refused, lambda error: ("refused", 402))
        flask.post("/charges")(refuse)
        driver: Any = WsgiDriver(WsgiMiddleware(flask, guard=Guard("memory://"), endpoint=endpoint))
    else:
        starlette = Starlette(
            routes=[Route("/charges", refuse, methods=["POST"])],
            exception_handlers={Refused: lambda request, error: PlainTextResponse("refused", 402)},
        )
        driver = AsgiDriver(AsgiMiddleware(starlette, guard=AsyncGuard("memory://"), endpoint=endpoint))
    answers = [driver.send(POST) for _ in range(2)]
    driver.close()

    assert [(one.status, one.body) for one in answers] == [(402, b"refused")] * 2
    assert len(asked) == effects
