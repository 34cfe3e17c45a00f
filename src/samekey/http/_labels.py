"""What a record keeps of a request, besides its payload: its request id, its trace id, and what the endpoint adds.

All of it is what a client sent: cut to the limit or left out, and never a reason to refuse the request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from samekey.core.attributes import Pairs, fitted_to
from samekey.core.errors import Misconfigured
from samekey.core.search import REQUEST_ID
from samekey.http._message import Request

TRACE_ID = "trace_id"

LabelRule = Callable[[Request], Mapping[str, Any]]

# W3C Trace Context: version, trace id, parent id, flags; a later version may append more.
_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")


def check_labels(rule: Any) -> LabelRule | None:
    if rule is not None and not callable(rule):
        raise Misconfigured("attributes= takes a function of the request that returns a mapping of names to texts")
    checked: LabelRule | None = rule
    return checked


def labels_of(request: Request, more: LabelRule | None) -> Pairs | None:
    """The attributes of a request; `more` may replace those that are taken from its headers."""
    named = request.named
    request_id, trace = named.get(b"x-request-id"), named.get(b"traceparent")
    if request_id is None and trace is None and more is None:
        return None
    found: dict[str, Any] = {}
    if request_id is not None:
        found[REQUEST_ID] = request_id.decode("latin-1")
    traced = None if trace is None else _TRACEPARENT.fullmatch(trace)
    if traced is not None:
        found[TRACE_ID] = traced[1].decode("ascii")
    if more is not None:
        given = more(request)
        if not isinstance(given, Mapping):
            raise Misconfigured(f"attributes= returns a mapping of names to texts, not {type(given).__name__}")
        found.update(given)
    return fitted_to(found)
