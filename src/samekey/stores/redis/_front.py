"""Redis as the front of a layered store: entries that may be lost, on connections with short deadlines.

It uses the connections of a Redis store, without retries. What an entry contains, and what a reader may conclude from
it, is decided in `core.layers`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any

from samekey.core.key import Key
from samekey.core.layers import Sight, order_of
from samekey.drivers.redis.address import parse_url
from samekey.loops import Bells
from samekey.stores.redis._knowledge import Knowledge
from samekey.stores.redis._requests import TAGS, Request, Script
from samekey.stores.redis.store import AsyncRedisStore, RedisStore

MARK_MILLISECONDS = b"1000"  # longer than a claim takes; a mark of a process that died delays the others no longer

_LOOK, _PUT = Script("look"), Script("put")


class _Front:
    """What both colours share; in `AsyncRedisFront` these calls return awaitables."""

    def __init__(self, url: str, store: Any) -> None:
        address = parse_url(url).in_haste()
        self.front_ttl = address.front_ttl  # from the address, or None
        self._store = store(address)
        self.name: str = self._store.name

    def look(self, digest: bytes, *, mark: bool) -> Any:
        return self._store._work(_looking(digest, mark=mark))

    def close(self) -> Any:
        return self._store.close()


class RedisFront(_Front):
    """For `LayeredStore`."""

    _store: RedisStore

    def __init__(self, url: str) -> None:
        super().__init__(url, RedisStore)

    @property
    def bells(self) -> Bells:
        return self._store._process_now().bells

    def watching(self, digest: bytes) -> AbstractContextManager[None]:
        return self._store._process_now().subscriber.watching(_known(digest))

    def put(self, digest: bytes, entry: bytes, until: float) -> None:
        self._store._work(_putting(digest, entry, until, self._store._process.known))
        self.bells.ring(digest)


class AsyncRedisFront(_Front):
    """For `AsyncLayeredStore`."""

    _store: AsyncRedisStore

    def __init__(self, url: str) -> None:
        super().__init__(url, AsyncRedisStore)

    @property
    def bells(self) -> Bells:
        return self._store.sync._process_now().bells

    def watching(self, digest: bytes) -> AbstractContextManager[None]:
        return self._store._loop().subscriber.watching(_known(digest))

    async def put(self, digest: bytes, entry: bytes, until: float) -> None:
        await self._store._work(_putting(digest, entry, until, self._store.sync._process.known))
        self.bells.ring(digest)


def _looking(digest: bytes, *, mark: bool) -> Generator[Request, Any, Sight]:
    now, entry = yield Request(digest[0], _LOOK, (_key(digest),), (MARK_MILLISECONDS if mark else b"",))
    return Sight(int(now) / 1e6, entry)


def _putting(digest: bytes, entry: bytes, until: float, known: Knowledge) -> Generator[Request, Any, None]:
    channel = known.channel(digest)  # the same channel as of the record: its waiters are woken
    arguments = (entry, b"%d" % len(order_of(entry)), b"%d" % round(until * 1e6), channel)
    yield Request(digest[0], _PUT, (_key(digest),), arguments)


def _key(digest: bytes) -> bytes:
    return TAGS[digest[0]] + b"front:" + digest.hex().encode()


def _known(digest: bytes) -> Key:
    """A key for the subscriber, which uses the digest alone."""
    return Key("", None, "", digest)
