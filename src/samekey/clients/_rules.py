"""Where keys go, how they are written, and how often a request is tried: the same for every library."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from samekey.clients._keys import KEYED_METHODS
from samekey.clients._retry import Retry
from samekey.core.errors import Misconfigured

KEY_HEADER = "Idempotency-Key"

_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # the name of a header, as HTTP defines it
_NAME = re.compile(r"[a-z0-9_-]+(?:\.[a-z0-9_-]+)*")  # of a host, in lower case


class Rules:
    """The user's options for outgoing requests, checked once."""

    def __init__(self, hosts: Iterable[str], retry: Retry | None, header: Any, quoted: bool) -> None:
        self.hosts = checked_hosts(hosts)
        if not isinstance(retry, Retry | None):
            raise Misconfigured(f"retry= takes a Retry, not {retry!r}; Retry(attempts=1) tries once")
        self.retry = retry or Retry()
        if not isinstance(header, str) or not _TOKEN.fullmatch(header):
            # A server would not read the key under such a name, and a retry would be a second effect.
            raise Misconfigured(f"header= is the name of a header, not {header!r}")
        self.header: str = header
        self.quoted = quoted

    def honours(self, host: str | None) -> bool:
        """Whether this host honours keys."""
        return _as_host(host or "") in self.hosts

    def gives(self, method: str, host: str | None) -> bool:
        """Whether this request should have a key."""
        return method in KEYED_METHODS and self.honours(host)

    def written(self, key: str) -> str:
        return f'"{key}"' if self.quoted else key


def checked_hosts(hosts: Iterable[str]) -> frozenset[str]:
    """The hosts that honour a key, in one spelling: only there a POST with a key is safe to repeat."""
    if isinstance(hosts, str | bytes) or not isinstance(hosts, Iterable):
        raise Misconfigured("hosts= is a collection of names: {'api.example.com'}")
    given = tuple(hosts)
    named = all(isinstance(host, str) for host in given)
    found = frozenset(_as_host(host.removeprefix("[").removesuffix("]")) for host in given) if named else None
    if not found or not all(_NAME.fullmatch(host) or _is_address(host) for host in found):
        raise Misconfigured(
            "hosts= names the hosts that honour a key, without scheme and port, as DNS has them "
            "(xn--...) or as an address: {'api.example.com', '::1'}"
        )
    return found


def _as_host(host: str) -> str:
    """One spelling for each host."""
    host = host.lower()
    return ip_address(host).compressed if _is_address(host) else host.removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
