"""The Redis store; read on in `store.py`."""

from samekey.stores.redis.store import AsyncRedisStore, RedisStore

__all__ = ["AsyncRedisStore", "RedisStore"]
