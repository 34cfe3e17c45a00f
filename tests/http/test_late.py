"""A request that took so long that its key changed hands: it is answered with what the record says by then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from samekey import Asks, AsyncGuard, Declined, Guard, Policy
from samekey.http import Endpoint
from samekey.http.asgi import SamekeyMiddleware as AsgiMiddleware
from samekey.http.wsgi import SamekeyMiddleware as WsgiMiddleware
from samekey.stores.memory import AsyncMemoryStore, MemoryStore
from samekey.testing import ManualClock
from samekey.testing.http.drivers import Got, Sent, WsgiDriver, asgi_send, together
from samekey.testing.http.scene import same_answer

SENT = Sent("POST", "/charges", "", (("Idempotency-Key", "k-1"),))
# The provider says that the first attempt was declined: the second one runs, and is refused for good.
ENDPOINT = Endpoint(
    boundary=Asks(lambda record: Declined(reason="no funds")),
    single_tenant=True,
    final={402},
    policy=Policy(lease=5, patience=0),
)


def by_wsgi(clock: ManualClock) -> tuple[Got, Got]:
    other: list[Got] = []

    def app(environ: Any, start_response: Any) -> Any:
        late = clock() == 0
        if late:
            clock.advance(60)
            other.extend(together(lambda: driver.send(SENT)))
        start_response("201 Created" if late else "402 Payment Required", [])
        return [b"late" if late else b"declined"]

    driver = WsgiDriver(WsgiMiddleware(app, guard=Guard(MemoryStore(clock=clock)), endpoint=ENDPOINT))
    return driver.send(SENT), other[0]


def by_asgi(clock: ManualClock) -> tuple[Got, Got]:
    other: list[Got] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        late = clock() == 0
        if late:
            clock.advance(60)
            other.append(await asgi_send(guarded, SENT))
        await send({"type": "http.response.start", "status": 201 if late else 402, "headers": []})
        await send({"type": "http.response.body", "body": b"late" if late else b"declined"})

    guarded = AsgiMiddleware(app, guard=AsyncGuard(AsyncMemoryStore(clock=clock)), endpoint=ENDPOINT)
    return asyncio.run(asgi_send(guarded, SENT)), other[0]


@pytest.mark.parametrize("ask", [by_wsgi, by_asgi])
def test_whoever_comes_late_is_answered_with_the_refusal_on_record(ask: Callable[..., tuple[Got, Got]]):
    late, other = ask(ManualClock())

    assert (other.status, other.body) == (402, b"declined")
    same_answer(other, late)
