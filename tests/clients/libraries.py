"""Every client library behind one function: send this, with these rules, and say what was answered."""

from __future__ import annotations

import asyncio

import aiohttp
import httpx
import httpx2
import pytest
import requests

from samekey.clients import Retry
from samekey.clients.aiohttp import KeyMiddleware
from samekey.clients.httpx import AsyncKeyTransport, KeyTransport
from samekey.clients.httpx2 import AsyncKeyTransport as AsyncKeyTransport2
from samekey.clients.httpx2 import KeyTransport as KeyTransport2
from samekey.clients.requests import KeyAdapter

QUICK = Retry(first_wait_seconds=0.001, longest_wait_seconds=5)
HERE = {"127.0.0.1"}


class Lost(Exception):
    """No answer, whatever the library calls it."""


def with_httpx(library, transport):
    def send(method, url, *, body=None, stream=None, headers=None, **options):
        with library.Client(transport=transport(**options), follow_redirects=True) as client:
            try:
                content = iter(stream) if stream else None
                return client.request(method, url, json=body, content=content, headers=headers).status_code
            except library.TransportError as error:
                raise Lost from error

    return send


def with_async_httpx(library, transport):
    def send(method, url, *, body=None, stream=None, headers=None, **options):
        async def pieces():
            for piece in stream:
                yield piece

        async def go():
            async with library.AsyncClient(transport=transport(**options), follow_redirects=True) as client:
                content = pieces() if stream else None
                return (await client.request(method, url, json=body, content=content, headers=headers)).status_code

        try:
            return asyncio.run(go())
        except library.TransportError as error:
            raise Lost from error

    return send


def with_requests(method, url, *, body=None, stream=None, headers=None, **options):
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", KeyAdapter(**options))
        try:
            data = iter(stream) if stream else None
            return session.request(method, url, json=body, data=data, headers=headers).status_code
        except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError) as error:
            raise Lost from error


def with_aiohttp(method, url, *, body=None, stream=None, headers=None, **options):
    async def pieces():
        for piece in stream:
            yield piece

    async def go():
        async with aiohttp.ClientSession(middlewares=(KeyMiddleware(**options),)) as session:
            sent = {"data": pieces()} if stream else {"json": body}
            async with session.request(method, url, headers=headers, **sent) as response:
                await response.read()
                return response.status

    try:
        return asyncio.run(go())
    except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
        raise Lost from error


READ_WHOLE = [  # those whose call ends with the last byte of the answer
    pytest.param(with_httpx(httpx, KeyTransport), id="httpx"),
    pytest.param(with_async_httpx(httpx, AsyncKeyTransport), id="httpx-async"),
    pytest.param(with_httpx(httpx2, KeyTransport2), id="httpx2"),
    pytest.param(with_async_httpx(httpx2, AsyncKeyTransport2), id="httpx2-async"),
    pytest.param(with_requests, id="requests"),
]
LIBRARIES = [*READ_WHOLE, pytest.param(with_aiohttp, id="aiohttp")]
