"""Store addresses: which store an URL names, and whether a given object can be one."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from samekey.core.errors import Misconfigured

# Scheme -> the sync and the async store; imported when an address asks for it. Third parties register a
# pair of their own under the same scheme name in the entry-point group `samekey.stores`.
SCHEMES: Mapping[str, tuple[str, str]] = {
    "mariadb": ("samekey.stores.mysql:MysqlStore", "samekey.stores.mysql:AsyncMysqlStore"),
    "memory": ("samekey.stores.memory:MemoryStore", "samekey.stores.memory:AsyncMemoryStore"),
    "mysql": ("samekey.stores.mysql:MysqlStore", "samekey.stores.mysql:AsyncMysqlStore"),
    "postgresql": ("samekey.stores.postgres:PostgresStore", "samekey.stores.postgres:AsyncPostgresStore"),
    "postgres": ("samekey.stores.postgres:PostgresStore", "samekey.stores.postgres:AsyncPostgresStore"),
    "redis": ("samekey.stores.redis:RedisStore", "samekey.stores.redis:AsyncRedisStore"),
    "rediss": ("samekey.stores.redis:RedisStore", "samekey.stores.redis:AsyncRedisStore"),
    "sqlite": ("samekey.stores.sqlite:SqliteStore", "samekey.stores.sqlite:AsyncSqliteStore"),
    "unix": ("samekey.stores.redis:RedisStore", "samekey.stores.redis:AsyncRedisStore"),
}

_PASSWORD = re.compile(
    r"://([^/?#@:\s]*):\S*@"
)  # a password with / ? # in it makes the address invalid, and must be hidden all the same
_PASSWORD_OPTION = re.compile(r"([?&])[^=&#\s]*pass(?:word|wd)?[^=&#\s]*=[^&#\s]*", re.IGNORECASE)

# Where the extra is not called as the scheme is.
EXTRAS = {"mariadb": "mysql", "postgresql": "postgres", "postgres": "postgres", "rediss": "redis", "unix": "redis"}


# Scheme -> the sync and the async front, for the first of two addresses: "redis://cache/0 postgresql://db/app".
FRONTS: Mapping[str, tuple[str, str]] = {
    "redis": ("samekey.stores.redis._front:RedisFront", "samekey.stores.redis._front:AsyncRedisFront"),
    "rediss": ("samekey.stores.redis._front:RedisFront", "samekey.stores.redis._front:AsyncRedisFront"),
    "unix": ("samekey.stores.redis._front:RedisFront", "samekey.stores.redis._front:AsyncRedisFront"),
}
LAYERED = ("samekey.stores.layered:LayeredStore", "samekey.stores.layered:AsyncLayeredStore")


def check_address(address: str) -> str:
    front, *rest = address.split() or [address]
    if rest:
        if any(":" not in part for part in rest):
            raise Misconfigured("a space separates two addresses; in a path write %20: sqlite:///my%20keys.db")
        if len(rest) > 1:
            raise Misconfigured(f"{len(rest) + 1} addresses; two make a layered store: a front, then a durable one")
        if front.partition(":")[0] not in FRONTS:
            known = ", ".join(f"{name}://" for name in sorted(FRONTS))
            raise Misconfigured(f"{public(front)!r} cannot be the front of a layered store; {known} can")
        check_address(rest[0])
        return address
    scheme = address.partition(":")[0]
    if ":" not in address:
        raise Misconfigured(f"{address!r} is no store address: write e.g. sqlite:///keys.db")
    if scheme not in SCHEMES and not any(one.name == scheme for one in entry_points(group="samekey.stores")):
        known = ", ".join(f"{name}://" for name in sorted(SCHEMES))
        raise Misconfigured(f"no store is known for {scheme!r}; there are {known}")
    return address


def open_store(address: str, *, asynchronous: bool) -> Any:
    """The store at this address; built-in schemes from the table, others from the entry points."""
    scheme = check_address(address).partition(":")[0]
    front, *rest = address.split()
    if rest:
        first = _imported(FRONTS[scheme][asynchronous], scheme)(front)
        back = open_store(rest[0], asynchronous=asynchronous)
        options = {} if first.front_ttl is None else {"front_ttl": first.front_ttl}
        return _imported(LAYERED[asynchronous], scheme)(first, back, **options)
    if scheme in SCHEMES:
        store = _imported(SCHEMES[scheme][asynchronous], scheme)
        return getattr(store, "from_url", store)(address)  # most stores are made from an address anyway
    return check_store(_registered(scheme)[asynchronous].from_url(address), asynchronous=asynchronous)


def _registered(scheme: str) -> Any:
    """The pair that another distribution registered: its sync and its async store."""
    found = next(one for one in entry_points(group="samekey.stores") if one.name == scheme)
    try:
        pair = found.load()
    except (ImportError, AttributeError) as error:
        raise Misconfigured(f"{scheme}:// is registered as {found.value}, which is not there: {error}") from error
    if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(hasattr(one, "from_url") for one in pair):
        raise Misconfigured(
            f"{scheme}:// is registered as {found.value}, which is not a pair (sync store, async store), "
            "each with from_url(url)"
        )
    return pair


def _imported(dotted: str, scheme: str) -> Any:
    module, _, name = dotted.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(scheme, scheme)
        raise Misconfigured(f"{scheme}:// needs {error.name}: pip install 'samekey[{extra}]'") from error


def public(address: str) -> str:
    """The address for errors and logs: without its passwords."""
    return _PASSWORD_OPTION.sub(r"\1", _PASSWORD.sub(r"://\1@", address))


def absolute(address: str) -> str:
    """The address with the whole path of its file: a command line with it works in any folder."""
    parts = [part.partition("?") for part in address.split()]
    return " ".join(_whole_path(before) + mark + options for before, mark, options in parts)


def _whole_path(address: str) -> str:
    found = re.fullmatch(r"sqlite:(?:///|/(?!/))?([^/#][^#]*)", address)
    if found is None or found[1] == ":memory:":
        return address  # absolute already, of another store, or no address: opening it raises then
    try:
        return f"sqlite:///{quote(str(Path(unquote(found[1], errors='strict')).absolute()))}"
    except UnicodeDecodeError:
        return address
    except OSError as error:
        raise Misconfigured(f"{address} is relative to a working directory that is gone: {error.strerror}") from error


def check_store(store: Any, *, asynchronous: bool) -> Any:
    carry_out = getattr(store, "carry_out", None)
    if not callable(carry_out):
        raise Misconfigured(f"a guard takes a store address or a store, not {type(store).__name__}")
    if inspect.iscoroutinefunction(carry_out) != asynchronous:
        colour = "AsyncGuard takes an async" if asynchronous else "Guard takes a sync"
        raise Misconfigured(f"{colour} store; {type(store).__name__} is the other kind")
    return store


def refuse_greenlets() -> None:
    """Greenlets share a thread: while one computes no lease is renewed, and one that waits for a lock stops all."""
    for library, patcher, asked, names in _PATCHERS:
        monkey = sys.modules.get(patcher)
        if monkey is not None and any(getattr(monkey, asked)(name) for name in names):
            raise Misconfigured(
                f"{library} has patched threads or sockets: leases and waiting would not work; use threads or asyncio"
            )


# Sockets too: with those alone (`patch_all(thread=False)`) a greenlet that waits for another one keeps it from running.
_PATCHERS = (
    ("gevent", "gevent.monkey", "is_module_patched", ("threading", "socket")),
    ("eventlet", "eventlet.patcher", "is_monkey_patched", ("thread", "socket")),
)
