"""Translates Django's requests and responses to ours, and back."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable
from typing import Any

from django.core.exceptions import RequestDataTooBig
from django.http import HttpResponse, UnreadablePostError
from django.http.request import RawPostDataException
from django.http.response import HttpResponseBase

from samekey.core.errors import Misconfigured
from samekey.http._environ import as_bytes, has_unended_body, headers_in
from samekey.http._message import Header, Reply, Request, is_endless
from samekey.http._visit import AsyncVisit, Stream, Visit, ends_with_view, gather
from samekey.http.django._route import template_of
from samekey.http.django._stream import STREAM, AsyncStream
from samekey.http.endpoint import Endpoint


def request_of(asked: Any) -> Request:
    match, mount = asked.resolver_match, asked.path[: -len(asked.path_info) or None]
    return Request(
        asked.method or "",
        asked.path,
        query=as_bytes(asked.META.get("QUERY_STRING", "")),
        headers=headers_in(asked.META),
        route=f"{mount}/{template_of(match.route)}" if match is not None and (match.kwargs or match.args) else None,
        native=asked,
    )


def body_of(asked: Any, endpoint: Endpoint, key: str) -> bytes | Reply:
    """The whole body, or the problem with it; nothing is claimed before its end."""
    given = asked.META.get("CONTENT_LENGTH") or "0"
    if given == "0" and "wsgi.input" in asked.META and has_unended_body(asked.META):
        return endpoint.endless(key)  # under WSGI Django reads no body without a length: nothing could be compared
    if given.isdigit() and (len(given) > 20 or int(given) > endpoint.body_max_bytes):
        return endpoint.too_large(key)
    try:
        body: bytes = asked.body
    except RequestDataTooBig:
        return endpoint.too_large(key)
    except UnreadablePostError:
        return endpoint.incomplete(key)
    except RawPostDataException as error:
        raise Misconfigured(
            "the form was read before samekey could see the body (by the CSRF check?): "
            "SamekeyMiddleware sees it before any view's decorators and checks do"
        ) from error
    if len(body) > endpoint.body_max_bytes:
        return endpoint.too_large(key)
    return body if not given.isdigit() or len(body) >= int(given) else endpoint.incomplete(key)


def response_of(reply: Reply) -> HttpResponse:
    response = HttpResponse(reply.body, status=reply.status)
    del response.headers["Content-Type"]
    for name, value in reply.headers:
        if name.lower() != b"content-length":
            response.headers[name.decode("latin-1").title()] = value.decode("latin-1")
    if reply.status not in (204, 304):
        response.headers["Content-Length"] = str(len(response.content))
    return response


def headers_of(response: Any) -> list[Header]:
    # Cookies are not among the headers in Django; they are never kept.
    return [(name.lower().encode("latin-1"), as_bytes(value)) for name, value in response.headers.items()]


def page_of(response: Any) -> Reply:
    """The page that was made of an exception."""
    render(response)
    return Reply(response.status_code, headers_of(response), None if response.streaming else response.content)


def settle(response: Any, visit: Visit) -> HttpResponseBase:
    """Settle the view's answer, and return it, or the other one that the record has."""
    render(response)
    status, headers = response.status_code, headers_of(response)
    if not response.streaming:
        body: bytes = response.content
        reply = Reply(status, headers, body if len(body) <= visit.room else None)
        return chosen(response, reply, visit.leave(reply, len(body)))
    parts = iter(response.streaming_content)
    held, complete = gather(parts, visit.room, headers)
    if complete:
        response.streaming_content = held
        reply = Reply(status, headers, b"".join(held))
        return chosen(response, reply, visit.leave(reply))
    reply, rest = Reply(status, headers, None), itertools.chain(held, parts)
    if ends_with_view(visit):
        response.streaming_content = rest
        return chosen(response, reply, visit.leave(reply))
    # The response closes the source by itself, and our stream after it.
    response.streaming_content = Stream(rest, None, visit, reply)
    return flowing(response, visit.endpoint.first(reply, visit.key, stored=False))


async def asettle(response: Any, visit: AsyncVisit) -> HttpResponseBase:
    render(response)
    if not response.streaming:
        body: bytes = response.content
        reply = Reply(response.status_code, headers_of(response), body if len(body) <= visit.room else None)
        return chosen(response, reply, await visit.leave(reply, len(body)))
    made = response.streaming_content
    parts = aiter(made) if response.is_async else as_async(made)
    held: list[bytes] = []
    size, endless = 0, is_endless(headers_of(response))
    while not endless and size <= visit.room:
        part = await anext(parts, None)
        if part is None:
            whole = b"".join(held)
            response.streaming_content = as_async([whole])
            reply = Reply(response.status_code, headers_of(response), whole)
            return chosen(response, reply, await visit.leave(reply))
        held.append(part)
        size += len(part)
    reply = Reply(response.status_code, headers_of(response), None)
    if ends_with_view(visit):
        response.streaming_content = chained(held, parts)
        return chosen(response, reply, await visit.leave(reply))
    stream = AsyncStream(held, parts, visit, reply)
    response.streaming_content = stream
    setattr(response, STREAM, stream)
    return flowing(response, visit.endpoint.first(reply, visit.key, stored=False))


async def chained(held: list[bytes], rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    for part in held:
        yield part
    async for part in rest:
        yield part


async def as_async(parts: Iterable[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


def render(response: Any) -> None:
    """Template responses, and Django REST framework's, are not yet bytes when they leave a view."""
    if hasattr(response, "render") and callable(response.render) and not getattr(response, "is_rendered", True):
        response.render()


def chosen(response: HttpResponseBase, reply: Reply, out: Reply | None) -> HttpResponseBase:
    """What goes out: the application's own response, or another one if the record has one."""
    if out is None:
        return response
    if out.status == reply.status and out.body is reply.body:
        return flowing(response, out)
    return response_of(out)


def flowing(response: Any, reply: Reply) -> HttpResponseBase:
    """The same response with our headers."""
    for name, value in reply.headers:
        text = name.decode("latin-1")
        if text.startswith("idempot") or text not in response.headers:
            response.headers[text.title()] = value.decode("latin-1")
    return response
