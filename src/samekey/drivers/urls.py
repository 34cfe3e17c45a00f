"""Splitting the address of a store: what all drivers check before they read their own options."""

from __future__ import annotations

from collections import Counter
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from samekey.core.errors import Misconfigured


def split(url: str) -> tuple[SplitResult, list[tuple[str, str]]]:
    """The parts of an address, and its options in their order; each option may be given once."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        unquote(url, errors="strict")  # or a password would be read as another one
    except UnicodeDecodeError:
        raise Misconfigured("this address cannot be read: the bytes after a % in it are not UTF-8") from None
    except ValueError as error:  # the message does not show the address, which may hold a password
        raise Misconfigured(f"this address cannot be read: {error}") from None
    if "#" in url or any("@" in name for name, _ in options) or not all(map(_has_port, _hosts(parts))):
        # Nor does this one: what looks like a port or an option is a part of the password.
        raise Misconfigured(
            "this address cannot be read: it has a #, or a port that is no number, or an @ after the ?. "
            "In a name or a password write %23 for #, %3F for ?, %2F for / and %40 for @"
        )
    for name, times in Counter(name for name, _ in options).items():
        if times > 1:
            raise Misconfigured(f"the option {name!r} is given {times} times in this address")
    return parts, options


def _hosts(parts: SplitResult) -> list[str]:
    return parts.netloc.rpartition("@")[2].split(",")


def _has_port(host: str) -> bool:
    """Whether the part after the colon is a number, or empty; colons of IPv6 are in brackets."""
    port = host.rpartition("]")[2].partition(":")[2]
    return not port or port.isdecimal()


def unsplit(parts: SplitResult, netloc: str, query: str) -> str:
    """The address again, with its two slashes also where no host is named; `urlunsplit` would leave them out."""
    return f"{parts.scheme}://{netloc}{parts.path}{'?' if query else ''}{query}"
