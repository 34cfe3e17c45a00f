"""Keys and retries for httpx, as a transport.

client = httpx.Client(transport=KeyTransport(hosts={"api.example.com"}))
client.post("https://api.example.com/charges", json=charge)     # one key, however often it is tried
"""

from __future__ import annotations

import httpx

from samekey.clients._transport import AsyncSending, Sending

__all__ = ["AsyncKeyTransport", "KeyTransport"]


class KeyTransport(Sending, httpx.BaseTransport):
    """Sends through `transport` (an HTTPTransport of its own by default).

    `hosts` honour a key: a POST or PATCH to one of them gets a key and may be tried again; to any other host it gets
    none and is sent once. A body that is a stream is sent once, too. A redirect keeps its key, where it is honoured.
    """

    library, default = httpx, httpx.HTTPTransport


class AsyncKeyTransport(AsyncSending, httpx.AsyncBaseTransport):
    """The same for AsyncClient."""

    library, default = httpx, httpx.AsyncHTTPTransport
