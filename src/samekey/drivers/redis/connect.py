"""Redis and Valkey: how they are reached, and what their errors mean.

redis-py reads addresses and makes the connections; what goes over them is ours (`_redis_wire`). Nothing is retried by
the driver: a `SET .. NX` that it repeated after a lost reply came back as "somebody else has it" although it was our
own. Whoever asks again asks by attempt id.

A client of the user's own lends its settings, not its connections: ours have our own deadlines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

import redis
import redis.connection as sync_connections
from redis.crc import key_slot

from samekey.core.errors import Misconfigured, StoreError, StoreUnavailable
from samekey.drivers.redis.wire import CONNECT_SECONDS, AsyncWire, Kind, Lost, Place, Wire, packed, shape
from samekey.drivers.urls import split

__all__ = (
    "CONNECT_SECONDS",
    "Address",
    "AsyncWire",
    "DriverError",
    "Lost",
    "Place",
    "Refusal",
    "Wire",
    "is_again",
    "is_demoted",
    "is_silence",
    "is_unknown_script",
    "lent_by",
    "moved_to",
    "packed",
    "parse_url",
    "shape",
    "slot_of",
    "store_error",
)

DriverError = redis.RedisError
Refusal = redis.ResponseError  # an answer that is an error: the connection is fine

_OURS = ("allow_volatile", "wait_replicas", "cluster", "sentinel", "front_ttl")
_LEADING = ("host", "port", "db", "username", "password", "path", "credential_provider", "socket_keepalive")


# -- addresses ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Address:
    """A checked place, or several that know where it is."""

    name: str  # for people: no password
    places: tuple[Place, ...]
    cluster: bool = False
    sentinel: str | None = None  # the service's name; then `places` are its sentinels
    master: Place | None = None  # how to get in at the master that the sentinels name
    allow_volatile: bool = False
    wait_replicas: int = 0
    front_ttl: float | None = None  # said in an address: how old an answer of this front may be, in seconds

    @property
    def hasty(self) -> bool:
        return self.places[0].hasty

    @property
    def database(self) -> int:
        return int((self.master or self.places[0]).settings.get("db") or 0)

    def in_haste(self) -> Address:
        """The same, for whoever can do without: short deadlines, nothing asked again, and a server may forget."""
        places = tuple(replace(place, hasty=True) for place in self.places)
        master = None if self.master is None else replace(self.master, hasty=True)
        return replace(self, places=places, master=master, allow_volatile=True, wait_replicas=0)


def parse_url(url: str) -> Address:
    """`redis://user@host:port/db`, `rediss://` with TLS, `unix:///path.sock`; several hosts for cluster or sentinel."""
    parts, options = split(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise Misconfigured("a Redis address begins with redis://, rediss:// or unix://")
    if parts.scheme != "unix" and not re.fullmatch(r"(/[0-9]{0,5})?", parts.path):
        raise Misconfigured("the path of a Redis address is the number of a database: redis://host:6379/0")
    if parts.scheme == "unix" and not parts.path:
        raise Misconfigured("a unix address names a socket: unix:///run/redis/redis.sock")
    unknown = [name for name, _ in options if not (name in _OURS or name in _LEADING or name.startswith("ssl_"))]
    if unknown:  # a deadline, a retry: redis-py would take them, and we would not heed them
        raise Misconfigured(f"an option of this Redis address is not known: {unknown[0]!r}")
    ours = {name: value for name, value in options if name in _OURS}
    theirs = [(name, value) for name, value in options if name not in _OURS]
    user, at, hosts = parts.netloc.rpartition("@")
    if "@" in user or "" in hosts.split(",")[1:]:
        raise Misconfigured("several hosts are written redis://user:password@one:6379,two:6379, the user once")
    query = urlencode(theirs, quote_via=quote)
    rest = parts.path + (f"?{query}" if query else "")
    places = tuple(_place(f"{parts.scheme}://{user}{at}{host}{rest}") for host in hosts.split(","))
    cluster, sentinel = _flag(ours, "cluster"), ours.get("sentinel")
    if sentinel is not None and (cluster or not sentinel):
        raise Misconfigured("?sentinel=NAME is the name of the service that the sentinels watch, and no cluster")
    if len(places) > 1 and not (cluster or sentinel):
        raise Misconfigured("several hosts are a cluster (?cluster=1) or sentinels (?sentinel=NAME): say which")
    if cluster and places[0].settings.get("db"):
        raise Misconfigured("a cluster has no numbered databases: leave the number out of the address")
    shown = [(name, value) for name, value in options if "password" not in name]
    options_shown = f"?{urlencode(shown, safe='/', quote_via=quote)}" if shown else ""
    name = f"{parts.scheme}://{user.partition(':')[0]}{at}{hosts}{parts.path}{options_shown}"
    return _addressed(
        name,
        places,
        cluster=cluster,
        sentinel=sentinel,
        allow_volatile=_flag(ours, "allow_volatile"),
        wait_replicas=_count(ours),
        front_ttl=_seconds(ours, "front_ttl"),
    )


def lent_by(client: Any, *, allow_volatile: bool = False, wait_replicas: int = 0) -> Address:
    """The address of the server that this client of redis-py, of either colour, speaks to."""
    nodes = getattr(client, "nodes_manager", None)
    if nodes is not None:
        settings = getattr(client, "connection_kwargs", None) or nodes.connection_kwargs
        kind: Kind = "tls" if settings.get("ssl") or "SSL" in str(settings.get("connection_class", "")) else "tcp"
        startup = nodes.startup_nodes.values()
        places = tuple(Place(kind, {**_settings(settings), "host": one.host, "port": one.port}) for one in startup)
        return _addressed(
            f"redis://{places[0].node}?cluster=1",
            places,
            cluster=True,
            allow_volatile=allow_volatile,
            wait_replicas=wait_replicas,
        )
    pool = getattr(client, "connection_pool", None)
    if pool is None or not hasattr(pool, "connection_kwargs"):
        raise Misconfigured(f"client= takes a client of redis-py, not {type(client).__name__}")
    place = _place_of(pool)
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        scheme = {"tcp": "redis", "tls": "rediss", "unix": "unix"}[place.kind]
        database = f"/{place.settings.get('db') or 0}" if place.kind != "unix" else ""
        name = f"{scheme}://{place.node}{database}"
        return _addressed(name, (place,), allow_volatile=allow_volatile, wait_replicas=wait_replicas)
    return Address(
        f"redis://{pool.service_name}?sentinel={pool.service_name}",
        tuple(_place_of(one.connection_pool) for one in manager.sentinels),
        sentinel=pool.service_name,
        master=place,
        allow_volatile=allow_volatile,
        wait_replicas=wait_replicas,
    )


def _addressed(name: str, places: tuple[Place, ...], *, sentinel: str | None = None, **rest: Any) -> Address:
    if sentinel is None:
        return Address(name, places, **rest)
    # The user, the password and the database are the master's: sentinels have neither.
    sentinels = tuple(
        replace(
            one,
            settings={key: value for key, value in one.settings.items() if key not in ("username", "password", "db")},
        )
        for one in places
    )
    return Address(name, sentinels, sentinel=sentinel, master=places[0], **rest)


def _place(url: str) -> Place:
    try:
        settings = dict(sync_connections.parse_url(url))  # type: ignore[no-untyped-call]
    except (ValueError, redis.RedisError) as error:
        raise Misconfigured(f"this Redis address cannot be read: {error}") from None
    kind = _kind(settings.pop("connection_class", sync_connections.Connection))
    place = Place(kind, settings)
    try:
        Wire(place)
        AsyncWire(place)
    except (TypeError, ValueError, redis.RedisError) as error:
        raise Misconfigured(f"an option of this Redis address cannot be: {error}") from None
    return place


def _place_of(pool: Any) -> Place:
    return Place(_kind(pool.connection_class), _settings(pool.connection_kwargs))


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """What leads to the server; how a user's client behaves on the way is its own affair."""
    return {
        name: value
        for name, value in given.items()
        if (name in _LEADING or name.startswith("ssl_")) and not _unsaid(name, value)
    }


def _unsaid(name: str, value: Any) -> bool:
    """Whether it says nothing: a client of one colour has settings that the other one does not know."""
    return (value is None and name != "ssl_cert_reqs") or (value is False and name.startswith("ssl_validate_"))


def _kind(connection_class: type) -> Kind:
    """By name: the clients of Valkey have classes of their own, and a password must not go where TLS was meant."""
    names = {one.__name__ for one in connection_class.__mro__}
    return "tls" if "SSLConnection" in names else "unix" if "UnixDomainSocketConnection" in names else "tcp"


def _flag(options: Mapping[str, str], name: str) -> bool:
    if options.get(name, "0") not in ("0", "1"):
        raise Misconfigured(f"{name} is 1 or 0, not {options[name]!r}")
    return options.get(name) == "1"


def _count(options: Mapping[str, str]) -> int:
    given = options.get("wait_replicas", "0")
    if not given.isdecimal():
        raise Misconfigured(f"wait_replicas is a number of replicas, not {given!r}")
    return int(given)


def _seconds(options: Mapping[str, str], name: str) -> float | None:
    if name not in options:
        return None
    try:
        return float(options[name])
    except ValueError:
        raise Misconfigured(f"{name} is a number of seconds, not {options[name]!r}") from None


# -- commands ----------------------------------------------------------------------------------------------


def slot_of(key: bytes) -> int:
    slot: int = key_slot(key)
    return slot


# -- errors ------------------------------------------------------------------------------------------------

_DEMOTED = ("READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED")
_REARRANGED = ("CLUSTERDOWN", "TRYAGAIN")
_FORBIDDEN = ("NOPERM", "ERR ACL failure", "ERR The user executing the script", "The user executing the script")
_UNKNOWN_USER = ("NOAUTH", "WRONGPASS", "ERR invalid username-password")

# Redis 6 tells first where in a script it happened, and then what.
_IN_SCRIPT = re.compile(r"ERR Error running script \(call to f_\w+\): (@user_script: ?\d+: )+-?")


def _said(error: BaseException) -> str:
    """A server's refusal, from the word on that says which one; "" if no server said it.

    Whatever else stands in it may be anybody's: a host, a path, a user that is called READONLY.
    """
    return _IN_SCRIPT.sub("", str(error), count=1) if isinstance(error, Refusal) else ""


def is_unknown_script(error: BaseException) -> bool:
    return isinstance(error, redis.exceptions.NoScriptError) or _said(error).startswith("NOSCRIPT")


def is_demoted(error: BaseException) -> bool:
    """Whether this server is no master, or not yet: nothing was written, and another may be."""
    if isinstance(error, (redis.exceptions.ReadOnlyError, redis.exceptions.BusyLoadingError)):
        return True
    return _said(error).startswith(_DEMOTED)


def is_silence(error: BaseException) -> bool:
    """Whether there was no answer, and not even a no."""
    return isinstance(error, (TimeoutError, redis.TimeoutError))


def is_again(error: BaseException) -> bool:
    """Whether nothing was written, and the same may be asked again soon: masters change, or slots move."""
    classes = (redis.exceptions.ClusterDownError, redis.exceptions.TryAgainError)
    return is_demoted(error) or isinstance(error, classes) or _said(error).startswith(_REARRANGED)


def moved_to(error: BaseException) -> tuple[bool, str, int] | None:
    """Where a cluster says that this key is: for good (True) or just now (False), and the server."""
    if isinstance(error, redis.exceptions.AskError):  # MovedError derives from it
        return isinstance(error, redis.exceptions.MovedError), str(error.host), int(error.port)
    word, _, where = str(error).partition(" ")  # older versions of redis-py know these only in their cluster client
    if word not in ("MOVED", "ASK"):
        return None
    host, _, port = where.partition(" ")[2].rpartition(":")
    return word == "MOVED", host, int(port)


def store_error(name: str, error: BaseException) -> StoreError | Misconfigured:
    """The driver's exception as ours, once, at the edge."""
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    refused = _said(error)
    match error:
        case redis.exceptions.NoPermissionError():
            return Misconfigured(f"{name}: this user may not do what the store needs ({said})")
        case redis.exceptions.AuthenticationError() | redis.exceptions.AuthorizationError():
            return Misconfigured(f"{name}: {said}")
        case _ if refused.startswith(_FORBIDDEN):
            return Misconfigured(f"{name}: this user may not do what the store needs ({said})")
        case _ if refused.startswith(_UNKNOWN_USER):
            return Misconfigured(f"{name}: {said}")
        case _ if refused.startswith("CROSSSLOT"):  # as one server we ask about all buckets at once
            return Misconfigured(f"{name} is one server of a cluster: say so in its address, with ?cluster=1")
        case _ if refused.startswith("OOM") or isinstance(error, getattr(redis.exceptions, "OutOfMemoryError", ())):
            return StoreUnavailable(f"the memory of {name} is full; nothing was written")
        case _:
            return StoreUnavailable(f"{name}: {said}")
