"""Keys and retries for requests, as an adapter.

session = requests.Session()
session.mount("https://api.example.com", KeyAdapter(hosts={"api.example.com"}))
session.post("https://api.example.com/charges", json=charge)    # one key, however often it is tried
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import ChunkedEncodingError

from samekey.clients._keys import key_for, seconds_left
from samekey.clients._retry import Course, Retry, utc_now
from samekey.clients._rules import KEY_HEADER, Rules
from samekey.core.errors import Misconfigured

__all__ = ["KeyAdapter"]

TAKEN_OFF = "samekey.given"  # among the hooks of a request, which a redirect copies too: none of this name is called


class KeyAdapter(HTTPAdapter):
    """As HTTPAdapter, without retries of urllib3: they know nothing of keys.

    `hosts` honour a key: a POST or PATCH to one of them gets a key and may be tried again; to any other host it gets
    none and is sent once. A body that is a stream is sent once, too. A redirect keeps its key, where it is honoured.
    """

    __attrs__ = (*HTTPAdapter.__attrs__, "_rules")  # what is pickled with a session

    def __init__(
        self,
        *,
        hosts: Iterable[str],
        retry: Retry | None = None,
        header: str = KEY_HEADER,
        quoted: bool = False,
        **pool: Any,
    ) -> None:
        if "max_retries" in pool:
            raise Misconfigured(
                "max_retries= is of urllib3, which knows nothing of keys: say retry=Retry(attempts=...)"
            )
        super().__init__(max_retries=0, **pool)
        self._rules = Rules(hosts, retry, header, quoted)

    def send(
        self, request: requests.PreparedRequest, stream: bool = False, *args: Any, **kwargs: Any
    ) -> requests.Response:
        request, course = self._begin(request)
        while True:  # ends with the course: its attempts are counted
            try:
                response = super().send(request, stream, *args, **kwargs)
                wait = course.after_answer(
                    response.status_code,
                    response.headers.get,
                    now=utc_now(),
                    chance=random.random(),  # noqa: S311
                )
                if wait is None:
                    if response.is_redirect:
                        self._take_off(request, response)
                    elif not stream:
                        _ = response.content  # read now: if it breaks off, it is asked for again
                    return response
            except (requests.ConnectionError, requests.Timeout, ChunkedEncodingError) as error:
                # A refused connection and one that broke in the middle are the same class; only this one is certain.
                unsent = isinstance(error, requests.ConnectTimeout)
                wait = course.after_error(sent=not unsent, chance=random.random())  # noqa: S311 - spreads a crowd
                if wait is None:
                    raise
            else:
                response.close()
            time.sleep(wait)

    def _begin(self, request: requests.PreparedRequest) -> tuple[requests.PreparedRequest, Course]:
        """Give the request its key; what to send of it."""
        rules, header = self._rules, self._rules.header
        method, url, body = request.method or "", request.url or "", request.body
        host = urlsplit(url).hostname
        if isinstance(body, str):
            body = body.encode()
        replayable = body is None or isinstance(body, bytes)
        ours = request.headers.get(header)
        kept: Any = request.hooks.get(TAKEN_OFF) if ours is None else ours
        before = kept if isinstance(kept, _OurKey) else None
        if rules.gives(method, host):
            if before is not None and before.to() is not request:
                request.headers[header] = before
            elif ours is None or before is not None:
                content = (body or b"") if replayable else None
                form = request.headers.get("Content-Type")
                key = key_for(method, url, content, form, before=before and before.key)
                request.headers[header] = _OurKey(rules.written(key), key, request)
        elif before is not None and before is ours:
            # Led by hand to where it means nothing. Of a copy: it may be led back.
            request = request.copy()
            del request.headers[header]
        keyed = header in request.headers and rules.honours(host)
        return request, Course(rules.retry, method, keyed, replayable, seconds_left)

    def _take_off(self, request: requests.PreparedRequest, response: requests.Response) -> None:
        """A redirect makes a new request and copies headers, and may go to another adapter, which knows no keys."""
        header = self._rules.header
        ours = request.headers.get(header)
        if isinstance(ours, _OurKey):
            response.request = request.copy()  # as it was sent
            request.hooks[TAKEN_OFF] = ours
            del request.headers[header]


class _OurKey(str):
    """The header with a key that we gave: we know it again in a request that was sent before, or redirected."""

    key: str
    to: weakref.ref[requests.PreparedRequest]

    def __new__(cls, written: str, key: str, request: requests.PreparedRequest) -> _OurKey:
        made = super().__new__(cls, written)
        made.key, made.to = key, weakref.ref(request)
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # in another process it is a header like any other
