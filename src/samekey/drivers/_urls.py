"""Reading addresses: what every driver asks of one before it looks at its own parts."""

from __future__ import annotations

from collections import Counter
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from samekey.core.errors import Misconfigured


def split(url: str) -> tuple[SplitResult, list[tuple[str, str]]]:
    """The parts of an address, and its options in their order; each option may be said once."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query, keep_blank_values=True)
        unquote(url, errors="strict")  # else a password would be another one
    except UnicodeDecodeError:
        raise Misconfigured("this address cannot be read: what stands behind a % in it is not UTF-8") from None
    except ValueError as error:  # no word of the address: it may hold a password
        raise Misconfigured(f"this address cannot be read: {error}") from None
    for name, times in Counter(name for name, _ in options).items():
        if times > 1:
            raise Misconfigured(f"the option {name!r} stands {times} times in this address")
    return parts, options


def unsplit(parts: SplitResult, netloc: str, query: str) -> str:
    """The address again, with its two slashes also where no host is named; `urlunsplit` would leave them out."""
    return f"{parts.scheme}://{netloc}{parts.path}{'?' if query else ''}{query}"
