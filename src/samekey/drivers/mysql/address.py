"""MySQL addresses: what a URL may hold, checked, and shown without its password."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlencode

from samekey.core.errors import Misconfigured
from samekey.drivers.urls import split, unsplit

LOOPBACK = ("localhost", "127.0.0.1", "::1")
OPTIONS = ("unix_socket", "ssl_ca", "ssl_cert", "ssl_key")


@dataclass(frozen=True, slots=True)
class Address:
    """A checked place."""

    name: str  # for people: no password
    arguments: Mapping[str, Any] = field(repr=False)  # for PyMySQL, the password among them


def parse_url(url: str) -> Address:
    """`mysql://user:password@host:3306/database`, also `?unix_socket=/run/mysqld/mysqld.sock`, `?ssl_ca=ca.pem`."""
    parts, given = split(url)
    database = unquote(parts.path.removeprefix("/"))
    user, at, host = parts.netloc.rpartition("@")
    options = dict(given)
    shown = {option: value for option, value in options.items() if option in OPTIONS}  # no secret in any of them
    name = unsplit(parts, user.partition(":")[0] + at + host, urlencode(shown, safe="/", quote_via=quote))
    if parts.scheme not in ("mysql", "mariadb") or not database or "/" in database:
        raise Misconfigured(f"{name!r} is no MySQL address: write mysql://user@host/database")
    unknown = sorted(set(options) - set(OPTIONS))
    if unknown:
        raise Misconfigured(f"unknown option {unknown[0]!r} in {name!r}; there are: {', '.join(OPTIONS)}")
    try:
        port = parts.port or 3306
    except ValueError:
        raise Misconfigured(f"{name!r} has a port that is no number") from None
    arguments: dict[str, Any] = {
        "host": parts.hostname or "localhost",
        "port": port,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": database,
        **options,
    }
    if "ssl_ca" in options:
        arguments["ssl_verify_cert"] = arguments["ssl_verify_identity"] = True  # else it would prove nothing
    elif not ("ssl_cert" in options or "ssl_key" in options) and (
        "unix_socket" in options or arguments["host"] in LOOPBACK
    ):
        arguments["ssl_disabled"] = True  # the connection stays on this machine, and a TLS context takes 30 ms to make
    return Address(name, {name: value for name, value in arguments.items() if value != ""})
