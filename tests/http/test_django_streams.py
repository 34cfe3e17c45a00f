"""Long streams of async Django views: settled at their end, however that comes."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, StreamingHttpResponse
from django.test import override_settings
from django.urls import path

import tests.django_settings  # noqa: F401
from samekey import AsyncGuard, Misconfigured, Opaque, Policy, State, current
from samekey.http import Endpoint
from samekey.http.django import guarded
from samekey.testing.http.drivers import Sent, WsgiDriver

ENDPOINT = Endpoint(boundary=Opaque(), single_tenant=True, policy=Policy(result_max_bytes=1000))
SCOPE = {
    "type": "http",
    "method": "POST",
    "path": "/charges",
    "query_string": b"",
    "headers": [(b"idempotency-key", b"k-1"), (b"content-length", b"0")],
}
KINDS = ("middleware", "decorator")


class Client:
    """One request to an async Django application whose view streams `source()`; it hangs up when it is told to."""

    def __init__(self, source: Callable[[], Any], how: str, *middleware: str) -> None:
        self.guard = AsyncGuard("memory://")
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.deaf = False  # whatever is sent to it fails
        self._asked = False

        async def view(request: Any) -> Any:
            return StreamingHttpResponse(source(), content_type="text/plain")

        ours = ("samekey.http.django.SamekeyMiddleware",) if how == "middleware" else ()
        self._view: Any = view if ours else guarded(self.guard, ENDPOINT)(view)
        self._settings = override_settings(
            ROOT_URLCONF="tests.http.django_async_urls",
            MIDDLEWARE=(*middleware, *ours),
            SAMEKEY={"async_guard": self.guard, "endpoint": ENDPOINT},
        )

    async def post(self) -> None:
        with self._settings:
            await get_asgi_application()({**SCOPE, "samekey.view": self._view}, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if self.deaf:
            raise BrokenPipeError("the client is gone")
        self.sent.append(message)

    async def state(self) -> State | None:
        record = await self.guard.peek("POST /charges", "k-1")
        return None if record is None else record.state

    async def settled(self) -> State | None:
        """The state once it is settled; a few turns of the loop may pass until then."""
        for _ in range(20):
            if await self.state() is not State.STARTED:
                break
            gc.collect()
            await sync_to_async(gc.collect)()
        return await self.state()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("sync", [False, True], ids=["async source", "plain source"])
def test_it_is_settled_when_it_has_come_to_its_end(how: str, sync: bool) -> None:
    async def main() -> None:
        states: list[Any] = []

        async def source() -> Any:
            for _ in range(3):
                yield b"x" * 600
            states.append(await client.state())

        client = Client((lambda: iter([b"x" * 600] * 3)) if sync else source, how)
        await client.post()

        assert (len(client.body), states) == (1800, [] if sync else [State.STARTED])
        assert dict(client.sent[0]["headers"])[b"Idempotency-Stored"] == b"false"
        assert await client.state() is State.COMPLETED

    asyncio.run(main())


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("error", [ConnectionError("gone"), asyncio.CancelledError()], ids=["error", "cancelled task"])
def test_a_stream_that_breaks_is_a_doubt(how: str, error: BaseException) -> None:
    """Also where a task behind it was cancelled: that is not its client's end."""

    async def main() -> None:
        async def source() -> Any:
            for _ in range(3):
                yield b"x" * 600
            raise error

        client = Client(source, how)
        try:
            await client.post()
        except (ConnectionError, asyncio.CancelledError):  # a task group swallows the latter, up to Python 3.12
            pass

        assert (len(client.body), await client.state()) == (1800, State.IN_DOUBT)

    asyncio.run(main())


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("where", ["view", "source", "send"])
def test_a_client_that_hangs_up_leaves_no_wrong_word(how: str, where: str, keeps: bool) -> None:
    """Cut short before its end, it is a doubt, unless its handler had said that it is done; and nothing stays held."""

    async def main() -> None:
        ended: list[bool] = []

        async def source() -> Any:
            if keeps:
                current().keep()
            for number in range(3):
                if number == 0 and where == "view":  # what is gathered belongs to the view
                    client.gone.set()
                    await asyncio.sleep(0)
                if number == 2 and where == "source":
                    client.gone.set()
                    await asyncio.Event().wait()
                if number == 2 and where == "send":
                    client.gone.set()
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                yield b"x" * 600
            ended.append(True)

        client = Client(source, how)
        await client.post()

        assert await client.settled() is (State.COMPLETED if ended or keeps else State.IN_DOUBT)

    asyncio.run(main())


class Instead:
    """A middleware around ours that answers something else."""

    sync_capable, async_capable = True, False

    def __init__(self, get_response: Any) -> None:
        self._get_response = get_response

    def __call__(self, request: Any) -> Any:
        self._get_response(request)
        return HttpResponse("something else")


@pytest.mark.parametrize("how", KINDS)
@pytest.mark.parametrize("instead", [False, True], ids=["send fails", "another answer"])
def test_a_response_that_nobody_sends_is_settled_when_it_is_dropped(how: str, instead: bool) -> None:
    """Nobody closes it either: its lease would be renewed for as long as the process lives."""

    async def main() -> None:
        def source() -> Any:
            return iter([b"x" * 600] * 3)

        client = Client(source, how, *([f"{__name__}.Instead"] if instead else []))
        client.deaf = not instead
        try:
            await client.post()
        except BrokenPipeError:
            pass

        assert await client.settled() is State.IN_DOUBT

    asyncio.run(main())


def test_under_wsgi_it_is_told_and_not_cut_short() -> None:
    """The loop of an async view ends with the view there, and closes what it streams."""

    async def view(request: Any) -> Any:
        return StreamingHttpResponse(iter([b"x" * 600] * 3))

    guard = AsyncGuard("memory://")
    urls = type("urls", (), {"urlpatterns": [path("charges", guarded(guard, ENDPOINT)(view))]})
    with override_settings(ROOT_URLCONF=urls, MIDDLEWARE=[]), pytest.warns(Warning, match="asynchronous iterators"):
        got = WsgiDriver(get_wsgi_application()).send(Sent("POST", "/charges", "", (("Idempotency-Key", "k-1"),)))
    record = asyncio.run(guard.peek("POST /charges", "k-1"))

    assert isinstance(got.error, Misconfigured)
    assert getattr(record, "state", None) is State.IN_DOUBT
