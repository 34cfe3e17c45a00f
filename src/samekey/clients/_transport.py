"""What the transports of httpx and httpx2 share. Both libraries have the same classes; a file for each imports them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

from samekey.clients._keys import key_for, seconds_left
from samekey.clients._retry import Course, Retry
from samekey.clients._rules import KEY_HEADER, Rules
from samekey.loops import running

ANSWER_MAX_BYTES = 1 << 20  # of an answer that is read here, so that the request is sent again if it breaks off
OURS = "samekey.given"  # among the extensions of a request


class Given(NamedTuple):
    """The key that we gave, and the request that got it.

    A redirect makes a new request and copies headers and extensions, to any host. So we recognise our own key, remove
    it where keys are not honoured, and add the same one where they are.
    """

    key: str
    to: weakref.ref[Any]


class _Transport:
    """Which requests get a key, and how often they are tried. Uses only attributes that both libraries have."""

    library: Any  # httpx or httpx2
    default: Any  # the class of its own transport

    def __init__(
        self,
        transport: Any = None,
        *,
        hosts: Iterable[str],
        retry: Retry | None = None,
        header: str = KEY_HEADER,
        quoted: bool = False,
    ) -> None:
        self._inner: Any = self.default() if transport is None else transport
        self._rules = Rules(hosts, retry, header, quoted)

    def begin(self, request: Any) -> Course:
        """Give the request its key."""
        rules, header = self._rules, self._rules.header
        host = request.url.raw_host.decode("ascii")
        replayable = isinstance(request.stream, self.library.ByteStream)
        given: Given | None = request.extensions.get(OURS)
        if given is not None and request.headers.get(header) == rules.written(given.key):
            del request.headers[header]
        if rules.gives(request.method, host) and header not in request.headers:
            if given is None or given.to() is request:
                body = b"".join(request.stream) if replayable else None
                form = request.headers.get("Content-Type")
                key = key_for(request.method, str(request.url), body, form, before=given and given.key)
                given = Given(key, weakref.ref(request))
                request.extensions = {**request.extensions, OURS: given}
            request.headers[header] = rules.written(given.key)
        keyed = header in request.headers and rules.honours(host)
        return Course(rules.retry, request.method, keyed, replayable, seconds_left)

    def failed(self, course: Course, error: Exception) -> float | None:
        library = self.library
        if isinstance(error, library.LocalProtocolError | library.UnsupportedProtocol):
            return None  # the request itself is wrong, and would be wrong again
        unsent = isinstance(error, library.ConnectError | library.ConnectTimeout | library.PoolTimeout)
        return course.after_error(sent=not unsent)

    def reads(self, course: Course, response: Any) -> bool:
        """Whether to read the answer here. Not one of unknown length: its reader may need each part at once."""
        length = response.headers.get("Content-Length", "")
        return course.may_repeat and length.isdecimal() and int(length) <= ANSWER_MAX_BYTES


class Sending(_Transport):
    def handle_request(self, request: Any) -> Any:
        course = self.begin(request)
        while True:  # ends with the course: its attempts are counted
            try:
                response = self._inner.handle_request(request)
                wait = course.after_answer(response.status_code, response.headers.get)
                if wait is None:
                    return self._read(response) if self.reads(course, response) else response
            except self.library.TransportError as error:
                wait = self.failed(course, error)
                if wait is None:
                    raise
            else:
                response.close()
            time.sleep(wait)

    def _read(self, response: Any) -> Any:
        try:
            body = b"".join(response.stream)
        finally:
            response.stream.close()
        response.stream = self.library.ByteStream(body)  # not decoded: a reader of raw bytes gets what was sent
        return response

    def close(self) -> None:
        self._inner.close()


class AsyncSending(_Transport):
    async def handle_async_request(self, request: Any) -> Any:
        course = self.begin(request)
        while True:
            try:
                response = await self._inner.handle_async_request(request)
                wait = course.after_answer(response.status_code, response.headers.get)
                if wait is None:
                    return await self._read(response) if self.reads(course, response) else response
            except self.library.TransportError as error:
                wait = self.failed(course, error)
                if wait is None:
                    raise
            else:
                await response.aclose()
            await running().sleep(wait)

    async def _read(self, response: Any) -> Any:
        try:
            body = b"".join([piece async for piece in response.stream])
        finally:
            await response.stream.aclose()
        response.stream = self.library.ByteStream(body)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()
