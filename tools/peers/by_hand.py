"""The floor beside the libraries: a key claimed and completed by hand, with two plain commands (or two steps on a
dictionary). Nothing is compared, nothing expires, nobody waits and a crash leaves the key taken for ever: not a way to
guard anything, but what any library has to pay at least on the same shop and store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

KEY = b"idempotency-key"


class ByHand:
    """Around an ASGI application; `client` is one of redis-py's asyncio, or a `Dictionary`."""

    def __init__(self, app: Any, client: Any) -> None:
        self._app, self._client = app, client

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        key = next((value for name, value in scope["headers"] if name == KEY), None)
        if key is None:
            return await self._app(scope, receive, send)
        if not await self._client.set(key, b"", nx=True):
            status, body = read(await self._client.get(key))
            await send({"type": "http.response.start", "status": status, "headers": []})
            return await send({"type": "http.response.body", "body": body})
        made: list[Any] = []

        async def keep(message: Any) -> None:
            made.append(message)

        await self._app(scope, receive, keep)
        await self._client.set(key, b"%d%b" % (made[0]["status"], made[1]["body"]))
        for message in made:
            await send(message)


class Dictionary:
    """As much of a client of Redis as `ByHand` asks for."""

    def __init__(self) -> None:
        self._kept: dict[bytes, bytes] = {}

    async def set(self, key: bytes, value: bytes, *, nx: bool = False) -> bool:
        if nx:
            return self._kept.setdefault(key, value) is value
        self._kept[key] = value
        return True

    async def get(self, key: bytes) -> bytes:
        return self._kept[key]


def by_hand(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same for Django, as a middleware; `settings.BY_HAND` is a client of Redis, or a dict."""
    from django.conf import settings
    from django.http import HttpResponse

    client = settings.BY_HAND

    def middleware(request: Any) -> Any:
        key = request.META.get("HTTP_IDEMPOTENCY_KEY")
        if key is None:
            return get_response(request)
        if isinstance(client, dict):
            taken = client.setdefault(key, key) is not key
        else:
            taken = not client.set(key, b"", nx=True)
        if taken:
            status, body = read(client.get(key))
            return HttpResponse(body, status=status)
        response = get_response(request)
        kept = b"%d%b" % (response.status_code, response.content)
        if isinstance(client, dict):
            client[key] = kept
        else:
            client.set(key, kept)
        return response

    return middleware


def read(kept: Any) -> tuple[int, bytes]:
    """Status and body; 409 for one who came while the first was under way."""
    return (int(kept[:3]), kept[3:]) if isinstance(kept, bytes) and kept else (409, b"")
