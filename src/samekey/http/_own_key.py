"""Keys for senders that have no key header: the content of the request, or what a function takes from it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import Any

from samekey.core.errors import KeyMissing, Misconfigured
from samekey.core.key import as_text, make_key
from samekey.guard.binding import Content
from samekey.http._message import Request

_log = logging.getLogger("samekey")

KeyRule = Content | Callable[[Request], Any]

LATER = ""  # the key of a request whose body was not read yet


def check_key_rule(rule: Any, *, about_header: bool) -> KeyRule | None:
    if rule is None:
        return None
    if not isinstance(rule, Content) and not callable(rule):
        raise Misconfigured(f"key= takes CONTENT or a function of the request, not {rule!r}")
    if iscoroutinefunction(rule) or iscoroutinefunction(type(rule).__call__):
        raise Misconfigured("key= takes a plain function of the request, not an async one: it must not wait")
    if about_header:
        raise Misconfigured("required= and strict= are about the key header, and with key= no header is read")
    checked: KeyRule = rule
    return checked


def own_key(rule: KeyRule, request: Request, operation: str, payload: Any, ignore: tuple[str, ...]) -> str:
    """The key of a request whose body is complete; KeyMissing or KeyMalformed if it has none."""
    made: Any = rule
    if not isinstance(rule, Content):
        try:
            made = rule(request)
        except (LookupError, ValueError, TypeError, AttributeError) as error:  # not a request as key= expects it
            _log.warning("a request to %s was refused, because key= raised %s", operation, type(error).__name__)
            raise KeyMissing("it has no key where key= looks for it") from error
    if isinstance(made, Content):
        return made.key_of(payload, ignore)
    return make_key(operation, as_text(made)).text
