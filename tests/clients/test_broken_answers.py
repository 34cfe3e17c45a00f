"""An answer that breaks off in the middle is no answer; and one that comes piece by piece is not waited for."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import httpx
import httpx2
import pytest
import requests

from samekey.clients import Retry, same_key
from samekey.clients._transport import ANSWER_MAX_BYTES
from samekey.clients.aiohttp import KeyMiddleware
from samekey.clients.httpx import AsyncKeyTransport, KeyTransport
from samekey.clients.httpx2 import AsyncKeyTransport as AsyncKeyTransport2
from samekey.clients.httpx2 import KeyTransport as KeyTransport2
from samekey.clients.requests import KeyAdapter
from tests.clients.libraries import HERE, QUICK, READ_WHOLE, Lost, with_aiohttp
from tests.clients.provider import GARBLED

whole = pytest.mark.parametrize("whole", READ_WHOLE)


@whole
def test_it_is_asked_for_again_with_the_same_key(whole, provider):
    provider.will(201, 201, Content_Length="10")

    assert whole("POST", provider.url, body={"amount": 200}, hosts=HERE, retry=QUICK) == 201
    assert len(provider.keys) == 3
    assert len(set(provider.keys)) == 1


@whole
def test_attempts_are_counted_there_too(whole, provider):
    provider.will(503)
    provider.will(201, 201, Content_Length="10")

    with pytest.raises(Lost):
        whole("POST", provider.url, hosts=HERE, retry=Retry(attempts=2, first_wait_seconds=0))
    assert len(provider.seen) == 2


@whole
def test_a_post_without_a_key_is_not_repeated_for_it(whole, provider):
    provider.will(201, Content_Length="10")

    with pytest.raises(Lost):
        whole("POST", provider.url, hosts={"api.example.com"}, retry=QUICK)
    assert len(provider.seen) == 1


def test_with_aiohttp_it_is_the_callers_to_ask_again(provider):
    """Its call ends with the headers; the block keeps the key for the next one."""
    provider.will(201, Content_Length="10")

    with same_key():
        with pytest.raises(Lost):
            with_aiohttp("POST", provider.url, hosts=HERE, retry=QUICK)
        with_aiohttp("POST", provider.url, hosts=HERE, retry=QUICK)
    assert provider.keys[0] == provider.keys[1]


def test_what_is_no_http_is_no_answer(send, provider):
    provider.will(GARBLED)

    assert send("POST", provider.url, body={"amount": 200}) == 201
    assert provider.keys[0] == provider.keys[1]


def test_with_aiohttp_an_inner_middlewares_judgement_stands(provider):
    """An error about an answer that was understood is no broken answer."""

    async def judge(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        response = await handler(request)
        response.raise_for_status()
        return response

    async def go():
        async with (
            aiohttp.ClientSession(middlewares=(KeyMiddleware(hosts=HERE, retry=QUICK), judge)) as session,
            session.post(provider.url),
        ):
            pass

    provider.will(404)
    with pytest.raises(aiohttp.ClientResponseError, match="404"):
        asyncio.run(go())
    assert len(provider.seen) == 1


def test_with_aiohttp_the_total_timeout_is_the_end():
    """Whoever sends again after it will not hear the answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections are made, and nobody is at home
        silent.setblocking(False)

        async def go():
            async with (
                aiohttp.ClientSession(middlewares=(KeyMiddleware(hosts=HERE, retry=QUICK),)) as session,
                session.post(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout=aiohttp.ClientTimeout(total=0.2)),
            ):
                pass

        with pytest.raises(TimeoutError):
            asyncio.run(go())
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize(("library", "transport"), [(httpx, KeyTransport), (httpx2, KeyTransport2)])
def test_a_request_that_cannot_be_sent_is_not_tried_again(library, transport, provider):
    tried = []

    class Counting:
        def __init__(self):
            self._inner = library.HTTPTransport()
            self.close = self._inner.close

        def handle_request(self, request):
            tried.append(request)
            return self._inner.handle_request(request)

    with library.Client(transport=transport(Counting(), hosts=HERE, retry=QUICK)) as client:
        with pytest.raises(library.UnsupportedProtocol):
            client.post("gopher://127.0.0.1/")
        with pytest.raises(library.LocalProtocolError):
            client.post(provider.url, headers={"two words": "1"})
    assert len(tried) == 2


# -- piece by piece ----------------------------------------------------------------------------------------------------


@contextmanager
def piecemeal(*headers: str) -> Iterator[tuple[str, threading.Event]]:
    """A server that sends "one" and its second piece only when the event is set."""
    go_on = threading.Event()
    head = "\r\n".join(("HTTP/1.1 201 Created", "Connection: close", *headers)) + "\r\n\r\n"

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(head.encode() + b"one")
            assert go_on.wait(20)
            connection.sendall(b"two")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, args=(listening,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}", go_on
        finally:
            go_on.set()
            thread.join()


def streamed_by_httpx(library, transport):
    def first(url):
        with (
            library.Client(transport=transport(hosts=HERE)) as client,
            client.stream("POST", url) as response,
        ):
            return next(response.iter_raw())

    return first


def streamed_by_async_httpx(library, transport):
    def first(url):
        async def go():
            async with (
                library.AsyncClient(transport=transport(hosts=HERE)) as client,
                client.stream("POST", url) as response,
            ):
                return await anext(response.aiter_raw())

        return asyncio.run(go())

    return first


def streamed_by_requests(url):
    with requests.Session() as session:
        session.mount("http://", KeyAdapter(hosts=HERE))
        with session.post(url, stream=True) as response:
            return next(response.iter_content(3))


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(streamed_by_httpx(httpx, KeyTransport), id="httpx"),
        pytest.param(streamed_by_async_httpx(httpx, AsyncKeyTransport), id="httpx-async"),
        pytest.param(streamed_by_httpx(httpx2, KeyTransport2), id="httpx2"),
        pytest.param(streamed_by_async_httpx(httpx2, AsyncKeyTransport2), id="httpx2-async"),
        pytest.param(streamed_by_requests, id="requests"),
    ],
)
@pytest.mark.parametrize("headers", [(), (f"Content-Length: {ANSWER_MAX_BYTES + 1}",)], ids=["endless", "long"])
def test_a_stream_is_handed_on_as_it_comes(first, headers):
    with piecemeal(*headers) as (url, go_on):
        assert first(url) == b"one"
        assert not go_on.is_set()


def test_what_was_read_already_can_be_read_in_every_way(provider):
    with httpx.Client(transport=KeyTransport(hosts=HERE)) as client:
        for read in (lambda r: r.read(), lambda r: b"".join(r.iter_raw()), lambda r: b"".join(r.iter_bytes())):
            with client.stream("POST", provider.url) as response:
                assert read(response) == b"{}"
