"""The name of a request's operation, which its key belongs to.

    POST /charges             its method and its path
    POST /orders/{}/pay       or the template of its route, where the framework knows it

A parameter has neither name nor type in the template, so a deploy that renames one still finds the earlier keys. Two
routes with equal templates share their keys but no answers: the whole path is part of what is compared.
"""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote

from samekey.core.key import NAME_MAX_BYTES
from samekey.http._body import digest

PARAMETER = "{}"
SHOWN_BYTES = 180  # of a name too long to be kept: its digest takes 64 more of 255


@lru_cache(maxsize=1024)
def operation_name(method: str, route: str) -> str:
    """`POST /orders`: printable, and never longer than a name may be."""
    return short(f"{method} {quote(route, safe='/:@!$&()*+,;=~-._{}', errors='backslashreplace')}")


def short(name: str) -> str:
    """A name that a record can keep: a long one is cut and ends in a digest of the whole, so that no two become one.

    A name that looks like a shortened one gets a digest too: a caller who chooses a name must not be able to choose the
    shortened form of another caller's name.
    """
    whole = name.encode()
    if len(whole) <= SHOWN_BYTES or (len(whole) <= NAME_MAX_BYTES and whole[-67:-64] != b"..."):
        return name
    return f"{whole[:SHOWN_BYTES].decode(errors='ignore')}...{digest(whole)}"
