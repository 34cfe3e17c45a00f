"""Redis as the front of a layered store: words that may be lost, on connections that never make anyone wait long.

It speaks over the lanes of a Redis store, in haste: short deadlines, nothing asked again. What it says and what it
may be believed for is decided in `core.layers`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any

from samekey.core.key import Key
from samekey.core.layers import Sight, order_of
from samekey.drivers.redis import connect as driver
from samekey.loops import Bells
from samekey.stores.redis._servers import TAGS, Memory, Request, Script
from samekey.stores.redis.store import AsyncRedisStore, RedisStore

MARK_MILLISECONDS = b"1000"  # longer than a claim takes; whoever left the mark and died costs the others no more

_LOOK, _PUT = Script("look"), Script("put")


class RedisFront:
    """For `LayeredStore`."""

    def __init__(self, url: str) -> None:
        address = driver.parse_url(url).in_haste()
        self.front_ttl = address.front_ttl  # said in the address, or None
        self._store = RedisStore(address)
        self.name = self._store.name

    @classmethod
    def from_url(cls, url: str) -> RedisFront:
        return cls(url)

    @property
    def bells(self) -> Bells:
        return self._store._links().bells

    def watching(self, digest: bytes) -> AbstractContextManager[None]:
        return self._store._links().subscriber.watching(_known(digest))

    def look(self, digest: bytes, *, mark: bool) -> Sight:
        sight: Sight = self._store._work(_looking(digest, mark=mark))
        return sight

    def put(self, digest: bytes, word: bytes, until: float) -> None:
        self._store._work(_putting(digest, word, until, self._store._here.memory))
        self.bells.ring(digest)

    def close(self) -> None:
        self._store.close()


class AsyncRedisFront:
    """For `AsyncLayeredStore`."""

    def __init__(self, url: str) -> None:
        address = driver.parse_url(url).in_haste()
        self.front_ttl = address.front_ttl  # said in the address, or None
        self._store = AsyncRedisStore(address)
        self.name = self._store.name

    @classmethod
    def from_url(cls, url: str) -> AsyncRedisFront:
        return cls(url)

    @property
    def bells(self) -> Bells:
        return self._store.sync._links().bells

    def watching(self, digest: bytes) -> AbstractContextManager[None]:
        return self._store._loop().subscriber.watching(_known(digest))

    async def look(self, digest: bytes, *, mark: bool) -> Sight:
        sight: Sight = await self._store._work(_looking(digest, mark=mark))
        return sight

    async def put(self, digest: bytes, word: bytes, until: float) -> None:
        await self._store._work(_putting(digest, word, until, self._store.sync._here.memory))
        self.bells.ring(digest)

    async def close(self) -> None:
        await self._store.close()


def _looking(digest: bytes, *, mark: bool) -> Generator[Request, Any, Sight]:
    now, word = yield Request(digest[0], _LOOK, (_key(digest),), (MARK_MILLISECONDS if mark else b"",))
    return Sight(int(now) / 1e6, word)


def _putting(digest: bytes, word: bytes, until: float, memory: Memory) -> Generator[Request, Any, None]:
    channel = memory.channel(digest)  # the one that those who wait for a record hear
    words = (word, b"%d" % len(order_of(word)), b"%d" % round(until * 1e6), channel)
    yield Request(digest[0], _PUT, (_key(digest),), words)


def _key(digest: bytes) -> bytes:
    return TAGS[digest[0]] + b"front:" + digest.hex().encode()


def _known(digest: bytes) -> Key:
    """A subscriber goes by the digest alone."""
    return Key("", None, "", digest)
