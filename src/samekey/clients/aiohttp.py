"""Keys and retries for aiohttp, as a client middleware.

session = aiohttp.ClientSession(middlewares=(KeyMiddleware(hosts={"api.example.com"}),))
await session.post("https://api.example.com/charges", json=charge)      # one key, however often it is tried
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp

from samekey.clients._keys import digest, key_for, seconds_left
from samekey.clients._retry import Course, Retry
from samekey.clients._rules import KEY_HEADER, Rules

__all__ = ["KeyMiddleware"]

REDIRECTS = frozenset({301, 302, 307, 308})  # of these a method may outlive some; 303 always asks for a GET


class KeyMiddleware:
    """Gives requests a key and retries them.

    `hosts` honour a key: a POST or PATCH to one of them gets a key and may be tried again; to any other host it gets
    none and is sent once. A body that is neither bytes nor JSON is sent once, too. A redirect keeps its key where it
    is honoured.

    The session's total timeout is for all attempts together: give each one `sock_read` or `sock_connect`. An answer
    that breaks off after its headers is not requested again: the caller reads it after this middleware has returned.
    """

    def __init__(
        self, *, hosts: Iterable[str], retry: Retry | None = None, header: str = KEY_HEADER, quoted: bool = False
    ) -> None:
        self._rules = Rules(hosts, retry, header, quoted)
        # A redirect comes back here as a new request, by the same task and at once.
        self._redirected: WeakKeyDictionary[Any, tuple[bytes, str]] = WeakKeyDictionary()

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        content = await _content(request.body)
        course, key = self._begin(request, content)
        while True:  # ends with the course: its attempts are counted
            try:
                response = await handler(request)
            except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, aiohttp.ClientResponseError) as error:
                # A bare TimeoutError is not caught: the time for all attempts is over.
                wait = _wait_after(error, course)
                if wait is None:
                    raise
            else:
                wait = course.after_answer(response.status, response.headers.get)
                if wait is None:
                    self._expect_redirected(request, content, response, key)
                    return response
                response.release()
            await asyncio.sleep(wait)

    def _begin(self, request: aiohttp.ClientRequest, content: bytes | None) -> tuple[Course, str | None]:
        """Give the request its key; returns our key too, even where it may not be sent."""
        rules, header = self._rules, self._rules.header
        method, url, host = request.method, str(request.url), request.url.raw_host
        sent_on = self._redirected.pop(asyncio.current_task(), None)
        key = sent_on[1] if sent_on is not None and sent_on[0] == digest(method, url, content) else None
        if rules.gives(method, host) and header not in request.headers:
            key = key or key_for(method, url, content, request.headers.get("Content-Type"))
            request.headers[header] = rules.written(key)
        keyed = header in request.headers and rules.honours(host)
        return Course(rules.retry, method, keyed, content is not None, seconds_left), key

    def _expect_redirected(
        self, request: aiohttp.ClientRequest, content: bytes | None, response: aiohttp.ClientResponse, key: str | None
    ) -> None:
        """Keep the key for the request to which this answer redirects."""
        location = response.headers.get("Location")
        if key is None or location is None or response.status not in REDIRECTS:
            return
        try:
            to = request.url.join(type(request.url)(location)).with_fragment(None).with_user(None)
        except ValueError:  # not an address: aiohttp raises for it
            return
        self._redirected[asyncio.current_task()] = digest(request.method, str(to), content), key


def _wait_after(error: aiohttp.ClientError, course: Course) -> float | None:
    if isinstance(error, aiohttp.ClientResponseError) and not isinstance(
        error.__cause__, aiohttp.http.HttpProcessingError
    ):
        return None  # the server answered in HTTP: this error is from another middleware
    unsent = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
    return course.after_error(sent=not unsent)


async def _content(body: aiohttp.payload.Payload | bytes) -> bytes | None:
    """The body if it can be sent twice; None for a stream."""
    if isinstance(body, aiohttp.BytesPayload):
        return await body.as_bytes()
    return None if body else b""
