"""The options of an `Endpoint`, checked when it is made: most mistakes in them would leave requests unguarded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from samekey.core.errors import CallerError, Misconfigured
from samekey.core.key import make_key

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # of a method, or of a header's name


def several(given: Any, option: str) -> tuple[Any, ...]:
    """The members of a collection. A string is refused: its members would be its letters."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise Misconfigured(f"{option}= takes a collection, not {given!r}")
    return tuple(given)


def methods_of(given: Any) -> frozenset[str]:
    methods = several(given, "methods")
    if not methods or not all(isinstance(one, str) and _TOKEN.fullmatch(one) for one in methods):
        raise Misconfigured(f"methods= lists the methods that are guarded, not {given!r}; @rules(None) guards none")
    return frozenset(one.upper() for one in methods)


def statuses(given: Any) -> frozenset[int]:
    final = several(given, "final")
    if not all(isinstance(one, int) and 400 <= one <= 599 for one in final):
        raise Misconfigured(f"final= lists statuses of refusals, 400 to 599, not {given!r}")
    return frozenset(final)


def header_name(given: Any, option: str) -> bytes:
    """The name of a header, in lower case."""
    if not isinstance(given, str) or _TOKEN.fullmatch(given) is None:
        raise Misconfigured(f"{option}= names a header, and {given!r} cannot be the name of one")
    return given.lower().encode("ascii")


def request_header(given: Any, option: str) -> bytes:
    name = header_name(given, option)
    if b"_" in name:
        raise Misconfigured(f"{option}= has {given!r}: WSGI reads _ and - in a header as one, and proxies drop it")
    return name


def operation_named(given: Any, option: str) -> str:
    """The name of an operation, as a record would keep it."""
    try:
        make_key(given, "checked")
    except CallerError as error:
        raise Misconfigured(f"{option}=: {error.message}") from error
    name: str = given
    return name


def size_of(given: Any, option: str, of: str = "bytes") -> int:
    if not isinstance(given, int) or given < 0:
        raise Misconfigured(f"{option}= is a number of {of}, not {given!r}")
    return given


def text_of(given: Any, option: str) -> str:
    if not isinstance(given, str):
        raise Misconfigured(f"{option}= is a text, not {given!r}")
    return given
