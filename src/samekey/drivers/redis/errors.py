"""What the errors of redis-py and of the servers mean for the store."""

from __future__ import annotations

import re

import redis

from samekey.core.errors import Misconfigured, StoreError, StoreUnavailable

DriverError = redis.RedisError
Refusal = redis.ResponseError  # a reply that is an error: the connection is still good

_DEMOTED = ("READONLY", "LOADING", "MASTERDOWN", "UNBLOCKED")
_REARRANGED = ("CLUSTERDOWN", "TRYAGAIN")
_FORBIDDEN = ("NOPERM", "ERR ACL failure", "ERR The user executing the script", "The user executing the script")
_AUTHENTICATION = (redis.exceptions.AuthenticationError, redis.exceptions.AuthorizationError)
_UNKNOWN_USER = ("NOAUTH", "WRONGPASS", "ERR invalid username-password")

# Redis 6 puts the place in the script before the error.
_IN_SCRIPT = re.compile(r"ERR Error running script \(call to f_\w+\): (@user_script: ?\d+: )+-?")


def _refusal(error: BaseException) -> str:
    """The server's refusal, beginning with its error code; "" if the error is not from a server.

    Callers compare only the beginning: the rest may contain a host, a path, or a user that is called READONLY.
    """
    return _IN_SCRIPT.sub("", str(error), count=1) if isinstance(error, Refusal) else ""


def is_unknown_script(error: BaseException) -> bool:
    return isinstance(error, redis.exceptions.NoScriptError) or _refusal(error).startswith("NOSCRIPT")


def is_demoted(error: BaseException) -> bool:
    """Whether this server is not a master, or not yet. Nothing was written, and another server may be the master."""
    if isinstance(error, (redis.exceptions.ReadOnlyError, redis.exceptions.BusyLoadingError)):
        return True
    return _refusal(error).startswith(_DEMOTED)


def is_silence(error: BaseException) -> bool:
    """Whether the server did not reply at all, not even with a refusal."""
    return isinstance(error, (TimeoutError, redis.TimeoutError))


def is_again(error: BaseException) -> bool:
    """Whether nothing was written and the same request may be sent again soon: masters change, or slots move."""
    classes = (redis.exceptions.ClusterDownError, redis.exceptions.TryAgainError)
    return is_demoted(error) or isinstance(error, classes) or _refusal(error).startswith(_REARRANGED)


def moved_to(error: BaseException) -> tuple[bool, str, int] | None:
    """Where a cluster redirects this key: whether permanently (MOVED, not ASK), and the host and port."""
    if isinstance(error, redis.exceptions.AskError):  # MovedError derives from it
        return isinstance(error, redis.exceptions.MovedError), str(error.host), int(error.port)
    code, _, where = str(error).partition(" ")  # older versions of redis-py parse these only in their cluster client
    if code not in ("MOVED", "ASK"):
        return None
    host, _, port = where.partition(" ")[2].rpartition(":")
    return code == "MOVED", host, int(port)


def store_error(name: str, error: BaseException) -> StoreError | Misconfigured:
    """The driver's exception as one of samekey's."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    refused = _refusal(error)
    if isinstance(error, redis.exceptions.NoPermissionError) or refused.startswith(_FORBIDDEN):
        return Misconfigured(
            f"{name}: this user lacks a right that the store needs ({text}); docs/redis.md has the ACL line"
        )
    if isinstance(error, _AUTHENTICATION) or refused.startswith(_UNKNOWN_USER):
        return Misconfigured(f"{name}: {text}")
    if refused.startswith("CROSSSLOT"):  # a store on one server sends one script for all buckets
        return Misconfigured(f"{name} is one server of a cluster: add ?cluster=1 to its address")
    if refused.startswith("OOM") or isinstance(error, getattr(redis.exceptions, "OutOfMemoryError", ())):
        return StoreUnavailable(f"the memory of {name} is full; nothing was written")
    return StoreUnavailable(f"{name}: {text}")
