"""Keys and retries for requests, as an adapter.

session = requests.Session()
session.mount("https://api.example.com", KeyAdapter(hosts={"api.example.com"}))
session.post("https://api.example.com/charges", json=charge)    # one key, however often it is tried
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from requests.exceptions import ChunkedEncodingError

from samekey.clients._keys import key_for, seconds_left
from samekey.clients._retry import Course, Retry
from samekey.clients._rules import KEY_HEADER, Rules
from samekey.core.errors import Misconfigured

__all__ = ["KeyAdapter"]

REMOVED = "samekey.given"  # among the hooks of a request, which a redirect copies; no hook of this name is called


class KeyAdapter(HTTPAdapter):
    """An HTTPAdapter without the retries of urllib3, which know nothing of keys.

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
            raise Misconfigured("max_retries= is urllib3's, which knows nothing of keys: use retry=Retry(attempts=...)")
        super().__init__(max_retries=0, **pool)
        self._rules = Rules(hosts, retry, header, quoted)

    def send(
        self, request: requests.PreparedRequest, stream: bool = False, *args: Any, **kwargs: Any
    ) -> requests.Response:
        request, course = self._begin(request)
        while True:  # ends with the course: its attempts are counted
            try:
                response = super().send(request, stream, *args, **kwargs)
                wait = course.after_answer(response.status_code, response.headers.get)
                if wait is None:
                    if response.is_redirect:
                        self._remove_key(request, response)
                    elif not stream:
                        _ = response.content  # read now: if it breaks off, the request is sent again
                    return response
            except (requests.ConnectionError, requests.Timeout, ChunkedEncodingError) as error:
                # A refused connection and one that broke later are the same class; only ConnectTimeout is certain.
                unsent = isinstance(error, requests.ConnectTimeout)
                wait = course.after_error(sent=not unsent)
                if wait is None:
                    raise
            else:
                response.close()
            time.sleep(wait)

    def _begin(self, request: requests.PreparedRequest) -> tuple[requests.PreparedRequest, Course]:
        """Give the request its key; returns the request to send."""
        rules, header = self._rules, self._rules.header
        method, url, body = request.method or "", request.url or "", request.body
        host = urlsplit(url).hostname
        if isinstance(body, str):
            body = body.encode()
        replayable = body is None or isinstance(body, bytes)
        ours = request.headers.get(header)
        kept: Any = request.hooks.get(REMOVED) if ours is None else ours
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
            # The caller sends it to a host without keys. Change a copy: the caller may send it to the first host again.
            request = request.copy()
            del request.headers[header]
        keyed = header in request.headers and rules.honours(host)
        return request, Course(rules.retry, method, keyed, replayable, seconds_left)

    def _remove_key(self, request: requests.PreparedRequest, response: requests.Response) -> None:
        """A redirect makes a new request with the same headers, and may go to an adapter that knows nothing of keys."""
        header = self._rules.header
        ours = request.headers.get(header)
        if isinstance(ours, _OurKey):
            response.request = request.copy()  # as it was sent
            request.hooks[REMOVED] = ours
            del request.headers[header]


class _OurKey(str):
    """A header with a key that we gave: recognised in a request that was sent before, or redirected."""

    key: str
    to: weakref.ref[requests.PreparedRequest]

    def __new__(cls, written: str, key: str, request: requests.PreparedRequest) -> _OurKey:
        made = super().__new__(cls, written)
        made.key, made.to = key, weakref.ref(request)
        return made

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)  # in another process it is a header like any other
