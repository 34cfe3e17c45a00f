"""Addresses of Redis and Valkey: one server, a cluster, or the sentinels that know the master.

redis-py parses each server's part of an address. A client of the user's own contributes its settings, not its
connections: samekey's connections have deadlines of their own (`connect`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

import redis
import redis.connection as sync_connections

from samekey.core.errors import Misconfigured
from samekey.drivers.redis.connect import Kind, Place, new_async_connection, new_connection
from samekey.drivers.urls import split

OPTIONS = ("allow_volatile", "wait_replicas", "cluster", "sentinel", "front_ttl")  # read here, not by redis-py
_SETTINGS = ("host", "port", "db", "username", "password", "path", "credential_provider", "socket_keepalive")


@dataclass(frozen=True, slots=True)
class Address:
    """A checked address: one server, the servers of a cluster, or sentinels that know where the master is."""

    name: str  # for messages: without the password
    places: tuple[Place, ...]
    cluster: bool = False
    sentinel: str | None = None  # the service's name; then `places` are its sentinels
    master: Place | None = None  # credentials and settings for the master that the sentinels name
    allow_volatile: bool = False
    wait_replicas: int = 0
    front_ttl: float | None = None  # how old an answer of this front may be, in seconds

    @property
    def hasty(self) -> bool:
        return self.places[0].hasty

    @property
    def database(self) -> int:
        return int((self.master or self.places[0]).settings.get("db") or 0)

    def in_haste(self) -> Address:
        """The same address for a front, which callers can do without: short deadlines, no retries, may be volatile."""
        places = tuple(replace(place, hasty=True) for place in self.places)
        master = None if self.master is None else replace(self.master, hasty=True)
        return replace(self, places=places, master=master, allow_volatile=True, wait_replicas=0)


def parse_url(url: str) -> Address:
    """`redis://user@host:port/db`, `rediss://` with TLS, `unix:///path.sock`; several hosts for cluster or sentinel."""
    parts, options = split(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise Misconfigured("a Redis address must begin with redis://, rediss:// or unix://")
    if parts.scheme != "unix" and not re.fullmatch(r"(/[0-9]{0,5})?", parts.path):
        raise Misconfigured("the path of a Redis address must be the number of a database: redis://host:6379/0")
    if parts.scheme == "unix" and not parts.path:
        raise Misconfigured("a unix address must name a socket: unix:///run/redis/redis.sock")
    unknown = [name for name, _ in options if not (name in OPTIONS or name in _SETTINGS or name.startswith("ssl_"))]
    if unknown:  # redis-py accepts timeouts and retries, and samekey would ignore them
        raise Misconfigured(f"unknown option in the Redis address: {unknown[0]!r}")
    ours = {name: value for name, value in options if name in OPTIONS}
    theirs = [(name, value) for name, value in options if name not in OPTIONS]
    user, at, hosts = parts.netloc.rpartition("@")
    if "@" in user or "" in hosts.split(",")[1:]:
        raise Misconfigured("write several hosts as redis://user:password@one:6379,two:6379, with the user once")
    query = urlencode(theirs, quote_via=quote)
    rest = parts.path + (f"?{query}" if query else "")
    places = tuple(_place(f"{parts.scheme}://{user}{at}{host}{rest}") for host in hosts.split(","))
    cluster, sentinel = _flag(ours, "cluster"), ours.get("sentinel")
    if sentinel is not None and (cluster or not sentinel):
        raise Misconfigured(
            "?sentinel=NAME needs the name of the service that the sentinels watch, and excludes ?cluster=1"
        )
    if len(places) > 1 and not (cluster or sentinel):
        raise Misconfigured("several hosts are either a cluster or sentinels: add ?cluster=1 or ?sentinel=NAME")
    if cluster and places[0].settings.get("db"):
        raise Misconfigured("a cluster has no numbered databases: leave the number out of the address")
    shown = [(name, value) for name, value in options if "password" not in name]
    options_shown = f"?{urlencode(shown, safe='/', quote_via=quote)}" if shown else ""
    name = f"{parts.scheme}://{user.partition(':')[0]}{at}{hosts}{parts.path}{options_shown}"
    address = Address(
        name,
        places,
        cluster=cluster,
        allow_volatile=_flag(ours, "allow_volatile"),
        wait_replicas=_count(ours),
        front_ttl=_seconds(ours, "front_ttl"),
    )
    if sentinel is None:
        return address
    return replace(address, places=tuple(map(_without_user, places)), sentinel=sentinel, master=places[0])


def _without_user(place: Place) -> Place:
    """A sentinel: the user, the password and the database of the address are the master's."""
    settings = {name: value for name, value in place.settings.items() if name not in ("username", "password", "db")}
    return replace(place, settings=settings)


def lent_by(client: Any) -> Address:
    """The address of the server that this redis-py client (sync or async) is connected to."""
    nodes = getattr(client, "nodes_manager", None)
    if nodes is not None:
        settings = getattr(client, "connection_kwargs", None) or nodes.connection_kwargs
        kind: Kind = "tls" if settings.get("ssl") or "SSL" in str(settings.get("connection_class", "")) else "tcp"
        startup = nodes.startup_nodes.values()
        places = tuple(Place(kind, {**_settings(settings), "host": one.host, "port": one.port}) for one in startup)
        return Address(f"redis://{places[0].node}?cluster=1", places, cluster=True)
    pool = getattr(client, "connection_pool", None)
    if pool is None or not hasattr(pool, "connection_kwargs"):
        raise Misconfigured(f"client= takes a redis-py client, not {type(client).__name__}")
    place = _place_of(pool)
    manager = getattr(pool, "sentinel_manager", None)
    if manager is None:
        scheme = {"tcp": "redis", "tls": "rediss", "unix": "unix"}[place.kind]
        database = f"/{place.settings.get('db') or 0}" if place.kind != "unix" else ""
        return Address(f"{scheme}://{place.node}{database}", (place,))
    return Address(
        f"redis://{pool.service_name}?sentinel={pool.service_name}",
        tuple(_place_of(one.connection_pool) for one in manager.sentinels),
        sentinel=pool.service_name,
        master=place,
    )


def _place(url: str) -> Place:
    try:
        settings = dict(sync_connections.parse_url(url))  # type: ignore[no-untyped-call]
    except (ValueError, redis.RedisError) as error:
        raise Misconfigured(f"the Redis address cannot be parsed: {error}") from None
    kind = _kind(settings.pop("connection_class", sync_connections.Connection))
    place = Place(kind, settings)
    try:
        new_connection(place)
        new_async_connection(place)
    except (TypeError, ValueError, redis.RedisError) as error:
        raise Misconfigured(f"invalid option in the Redis address: {error}") from None
    return place


def _place_of(pool: Any) -> Place:
    return Place(_kind(pool.connection_class), _settings(pool.connection_kwargs))


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that lead to the server. How the user's client behaves otherwise is not copied."""
    return {
        name: value
        for name, value in given.items()
        if (name in _SETTINGS or name.startswith("ssl_")) and not _unset(name, value)
    }


def _unset(name: str, value: Any) -> bool:
    """Whether this is a default. It is left out, because sync and async clients do not know the same settings."""
    return (value is None and name != "ssl_cert_reqs") or (value is False and name.startswith("ssl_validate_"))


def _kind(connection_class: type) -> Kind:
    """Decided by class name, because Valkey's clients have classes of their own.

    A wrong answer would send the password without TLS.
    """
    names = {one.__name__ for one in connection_class.__mro__}
    return "tls" if "SSLConnection" in names else "unix" if "UnixDomainSocketConnection" in names else "tcp"


def _flag(options: Mapping[str, str], name: str) -> bool:
    if options.get(name, "0") not in ("0", "1"):
        raise Misconfigured(f"{name} must be 1 or 0, not {options[name]!r}")
    return options.get(name) == "1"


def _count(options: Mapping[str, str]) -> int:
    given = options.get("wait_replicas", "0")
    if not given.isdecimal():
        raise Misconfigured(f"wait_replicas must be a number of replicas, not {given!r}")
    return int(given)


def _seconds(options: Mapping[str, str], name: str) -> float | None:
    if name not in options:
        return None
    try:
        return float(options[name])
    except ValueError:
        raise Misconfigured(f"{name} must be a number of seconds, not {options[name]!r}") from None
