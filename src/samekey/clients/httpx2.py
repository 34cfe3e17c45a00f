"""Keys and retries for httpx2, as a transport.

client = httpx2.Client(transport=KeyTransport(hosts={"api.example.com"}))
client.post("https://api.example.com/charges", json=charge)     # one key, however often it is tried
"""

from __future__ import annotations

import httpx2

from samekey.clients._transport import AsyncSending, Sending

__all__ = ["AsyncKeyTransport", "KeyTransport"]


class KeyTransport(Sending, httpx2.BaseTransport):
    """As `samekey.clients.httpx.KeyTransport`."""

    library, default = httpx2, httpx2.HTTPTransport


class AsyncKeyTransport(AsyncSending, httpx2.AsyncBaseTransport):
    """The same for AsyncClient."""

    library, default = httpx2, httpx2.AsyncHTTPTransport
