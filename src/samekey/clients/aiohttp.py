"""Keys and retries for aiohttp, as a client middleware.

session = aiohttp.ClientSession(middlewares=(KeyMiddleware(hosts={"api.example.com"}),))
await session.post("https://api.example.com/charges", json=charge)      # one key, however often it is tried
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable

import aiohttp

from samekey.clients._keys import KEYED_METHODS, key_for, seconds_left
from samekey.clients._retry import Course, Retry, checked_hosts, utc_now

__all__ = ["KeyMiddleware"]


class KeyMiddleware:
    """`hosts` honour a key: a POST or PATCH to one of them gets a key and may be tried again; to any other host it gets
    none and is sent once. A body that is not bytes or JSON is sent once, too.

    The session's total timeout is for all attempts together: give each one `sock_read` or `sock_connect`.
    """

    def __init__(
        self,
        *,
        hosts: Iterable[str],
        retry: Retry | None = None,
        header: str = "Idempotency-Key",
        quoted: bool = False,
    ) -> None:
        self._hosts = checked_hosts(hosts)
        self._retry = retry or Retry()
        self._header = header
        self._quoted = quoted

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        course = await self._begin(request)
        while True:  # ends with the course: its attempts are counted
            try:
                response = await handler(request)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, TimeoutError) as error:
                unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
                wait = course.after_error(sent=not unsent, chance=random.random())  # noqa: S311 - spreads a crowd
                if wait is None:
                    raise
            else:
                wait = course.after_answer(
                    response.status,
                    response.headers.get,
                    now=utc_now(),
                    chance=random.random(),  # noqa: S311
                )
                if wait is None:
                    return response
                response.release()
            await asyncio.sleep(wait)

    async def _begin(self, request: aiohttp.ClientRequest) -> Course:
        """Give the request its key."""
        honoured = (request.url.host or "").lower() in self._hosts
        body = request.body
        replayable = isinstance(body, aiohttp.BytesPayload) or not body
        if request.method in KEYED_METHODS and honoured and self._header not in request.headers:
            content = await body.as_bytes() if isinstance(body, aiohttp.BytesPayload) else b"" if replayable else None
            key = key_for(request.method, str(request.url), content)
            request.headers[self._header] = f'"{key}"' if self._quoted else key
        keyed = honoured and self._header in request.headers
        return Course(self._retry, request.method, keyed, replayable, seconds_left)
