"""What a request is called: the operation that its key belongs to.

    POST /charges             its method and its path
    POST /orders/{}/pay       or the template of its route, where the framework knows it

A parameter has no name and no type in there, so that a deploy which renames one still finds the keys of the day before.
Two routes that look the same without them share their keys, and no answers: the whole path belongs to the request.
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
    """A name as long as a record may keep it: a long one ends in a digest of the whole, so that no two become one.

    So does one that looks as if it did: whoever may choose a name must not choose what became of another's.
    """
    whole = name.encode()
    if len(whole) <= SHOWN_BYTES or (len(whole) <= NAME_MAX_BYTES and whole[-67:-64] != b"..."):
        return name
    return f"{whole[:SHOWN_BYTES].decode(errors='ignore')}...{digest(whole)}"
