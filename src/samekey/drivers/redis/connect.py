"""Where one Redis server is, and how redis-py connects to it (TLS, users, sockets, databases).

The driver retries nothing. A `SET .. NX` that it repeated after a lost reply came back as taken, although the caller's
own first try had written it. The store asks again by attempt id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import redis
import redis.asyncio.connection as async_connections
import redis.connection as sync_connections
from redis.backoff import NoBackoff
from redis.retry import Retry

from samekey.core.errors import Misconfigured

CONNECT_SECONDS = 3.0  # a server on the same network answers in milliseconds
ANSWER_SECONDS = 5.0  # a script of ours takes microseconds; after that the server counts as gone
HASTY_SECONDS = 0.25  # both, for a front: there a slow answer is no better than none

Kind = Literal["tcp", "tls", "unix"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one server is, with the settings and credentials for a connection."""

    kind: Kind
    settings: Mapping[str, Any] = field(repr=False)  # under redis-py's names; may hold a password
    hasty: bool = False

    @property
    def connect_seconds(self) -> float:
        return HASTY_SECONDS if self.hasty else CONNECT_SECONDS

    @property
    def answer_seconds(self) -> float:
        return HASTY_SECONDS if self.hasty else ANSWER_SECONDS

    @property
    def node(self) -> str:
        if self.kind == "unix":
            return str(self.settings.get("path", ""))
        return f"{self.host}:{self.settings.get('port', 6379)}"

    @property
    def host(self) -> str:
        return str(self.settings.get("host", "localhost"))

    def at(self, host: str, port: int) -> Place:
        """The same settings, for another server."""
        return replace(self, settings={**self.settings, "host": host, "port": port})


_CLASSES: dict[Kind, str] = {"tcp": "Connection", "tls": "SSLConnection", "unix": "UnixDomainSocketConnection"}


def new_connection(place: Place) -> Any:
    """A connection of redis-py, not connected yet."""
    return _made(sync_connections, place, place.answer_seconds, Retry(NoBackoff(), 0))


def new_async_connection(place: Place) -> Any:
    """The same for asyncio. `AsyncWire` has its own deadline for answers, so redis-py gets none."""
    from redis.asyncio.retry import Retry as AsyncRetry

    return _made(async_connections, place, None, AsyncRetry(NoBackoff(), 0))


def _made(connections: Any, place: Place, answer_seconds: float | None, retry: Any) -> Any:
    settings = {
        **({} if place.kind == "unix" else {"socket_keepalive": True}),
        **place.settings,
        "socket_timeout": answer_seconds,
        "socket_connect_timeout": place.connect_seconds,
        "health_check_interval": 0,
        "decode_responses": False,
        "protocol": 2,  # the replies of our scripts are the same in both, and messages arrive as plain lists
        "retry": retry,
    }
    try:
        return getattr(connections, _CLASSES[place.kind])(**settings)
    except TypeError as error:  # sync, async and the versions of redis-py do not know the same settings
        raise Misconfigured(
            f"this version of redis-py does not accept the settings of the connection: {error}"
        ) from None


def connect(connection: Any) -> None:
    """Connect. An exception of the user's own code, such as a credential provider, becomes a connection error."""
    try:
        connection.connect()
    except (redis.RedisError, OSError):
        raise
    except Exception as error:
        connection.disconnect()
        raise _refused(error) from error


async def connect_async(connection: Any) -> None:
    try:
        await connection.connect()
    except (redis.RedisError, OSError):
        raise
    except Exception as error:
        await connection.disconnect(nowait=True)
        raise _refused(error) from error


def _refused(error: Exception) -> redis.ConnectionError:
    """Names only the type: the message of a credential provider may contain a credential."""
    return redis.ConnectionError(f"{type(error).__name__} before a connection was made")
