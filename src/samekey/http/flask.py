"""Flask: an extension around the dispatch of a request.

It runs after `before_request`, where callers are authenticated, and before `after_request`, where sessions set their
cookies. The record is settled when the view has returned. A commit in `teardown_request` comes later than that: use
`samekey.http.wsgi` around `app.wsgi_app` for it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any

import flask
from flask import Flask, Response
from werkzeug.exceptions import ClientDisconnected, HTTPException

from samekey.core.errors import Misconfigured
from samekey.guard.guards import Guard
from samekey.http._environ import as_bytes, has_unended_body, headers_in
from samekey.http._message import Header, Reply, Request
from samekey.http._operation import PARAMETER
from samekey.http._rules import Rules, check_rules, opened, rules_of
from samekey.http._visit import Door, Stream, Visit, close, counts, ends_with_view, gather
from samekey.http.endpoint import Endpoint

_VARIABLE = re.compile(r"<(?:\w+(?:\(.*?\))?:)?\w+>")  # <name>, <converter:name>, <converter(arguments):name>


class Samekey:
    """`Samekey(app, guard=guard, endpoint=Endpoint(...))`; `@rules(...)` on a view gives it its own, or none."""

    def __init__(self, app: Flask | None = None, *, guard: Guard, endpoint: Rules) -> None:
        self._door = Door(guard)
        self._endpoint = check_rules(endpoint, sends=False)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        self._door.start(self._endpoint)
        app.extensions["samekey"] = self  # which reads `@rules`: a middleware of WSGI around it need not
        dispatch = app.dispatch_request

        def guarded(*context: Any) -> Any:
            return self._dispatch(app, lambda: dispatch(*context))

        app.dispatch_request = guarded  # type: ignore[method-assign]

    def _dispatch(self, app: Flask, dispatch: Any) -> Any:
        asked = flask.request
        if asked.routing_exception is not None or asked.endpoint is None:
            return dispatch()
        rules = rules_of(app.view_functions.get(asked.endpoint), self._endpoint, asked.method)
        ready = opened(rules, request_of(asked), partial(body_of, asked))
        if ready is None:
            return dispatch()
        entered = ready if isinstance(ready, Reply) else self._door.enter(*ready)
        if isinstance(entered, Reply):
            return response_of(app, entered)
        return run_view(app, dispatch, entered)


def request_of(asked: Any) -> Request:
    rule, host, route = asked.url_rule, "", None
    where = rule.host or rule.subdomain  # set for a view that answers at this host only
    if where:
        host = "//" + (asked.host if "<" in where else where)
    if asked.view_args:
        route = (template_of("//" + where) if where else "") + asked.root_path + template_of(rule.rule)
    return Request(
        asked.method,
        asked.root_path + asked.path,
        query=asked.query_string,
        headers=headers_in(asked.environ),
        route=route,
        native=asked,
        host=host,
    )


@lru_cache(maxsize=1024)
def template_of(rule: str) -> str:
    """A rule with braces for its parameters, without their names and converters."""
    return _VARIABLE.sub(PARAMETER, rule)


def body_of(asked: Any, endpoint: Endpoint, key: str) -> bytes | Reply:
    """The whole body, or the problem with it; nothing is claimed before its end. The application's own limit holds."""
    given, most, stream = asked.content_length, endpoint.body_max_bytes, asked.environ["wsgi.input"]
    terminated = asked.environ.get("wsgi.input_terminated")
    if (given or 0) > most:
        return endpoint.too_large(key)
    if not given and not terminated and has_unended_body(asked.environ):
        return endpoint.endless(key)  # Werkzeug would read an empty body
    own = asked.max_content_length
    asked.max_content_length = most if own is None else min(own, most)
    try:
        body: bytes = asked.get_data(cache=True)
        # Werkzeug ends a body without a length at the limit: more bytes would be cut off without notice.
        ended = given is not None or not terminated or not stream.read(1)
    except (ClientDisconnected, OSError):
        return endpoint.incomplete(key)
    if len(body) > most or not ended:
        return endpoint.too_large(key)
    if given and not body and "form" in vars(asked):
        raise Misconfigured(
            "the form was read before samekey could see the body (a CSRF check in before_request?): "
            "call request.get_data() before it, or put samekey.http.wsgi around app.wsgi_app"
        )
    return body if len(body) >= (given or 0) else endpoint.incomplete(key)


def run_view(app: Flask, dispatch: Any, visit: Visit) -> Any:
    try:
        try:
            response = app.make_response(dispatch())
        except Exception as error:
            # The application's own error handlers answer it; without one this raises the error again.
            response = app.make_response(app.handle_user_exception(error))
            if counts(visit, error, response.status_code, answers=isinstance(error, HTTPException)):
                return excused(app, response, visit, error)
        return answered(app, response, visit)
    except BaseException as error:
        reply = visit.fail(error)
        if reply is None:
            raise
        return response_of(app, reply)


def excused(app: Flask, response: Response, visit: Visit, error: Exception) -> Response:
    """A page was made of an exception: the exception decides about the record, the page is the answer."""
    made = Reply(response.status_code, headers_of(response), None if response.is_streamed else response.get_data())
    return chosen(app, response, made, visit.fail(error, made) or visit.endpoint.first(made, visit.key))


def headers_of(response: Response) -> list[Header]:
    return [(name.lower().encode("latin-1"), as_bytes(value)) for name, value in response.headers]


def answered(app: Flask, response: Response, visit: Visit) -> Response:
    headers = headers_of(response)
    response.direct_passthrough = False
    if response.is_streamed:
        source, parts = response.response, iter(response.iter_encoded())
        held, complete = gather(parts, visit.room, headers)
        if not complete:
            return streamed(app, response, visit, itertools.chain(held, parts))
        close(source)  # we replace it in the response, so Flask will not close it
        response.response = held
    body = response.get_data()
    reply = Reply(response.status_code, headers, body if len(body) <= visit.room else None)
    return chosen(app, response, reply, visit.leave(reply, len(body)))


def streamed(app: Flask, response: Response, visit: Visit, parts: Iterable[bytes]) -> Response:
    """An answer that is too long to keep, or an event stream."""
    source, reply = response.response, Reply(response.status_code, headers_of(response), None)
    if ends_with_view(visit):
        response.response = parts
        response.call_on_close(lambda: close(source))
        return chosen(app, response, reply, visit.leave(reply))
    response.response = stream = Stream(parts, source, visit, reply)
    response.call_on_close(stream.close)  # also where a middleware wraps the stream, to compress it
    return mark(response, visit.endpoint.first(reply, visit.key, stored=False))


def chosen(app: Flask, response: Response, made: Reply, out: Reply) -> Response:
    """What goes out: the application's own response, or another one if the record has one."""
    return mark(response, out) if out.status == made.status and out.body is made.body else response_of(app, out)


def mark(response: Response, reply: Reply) -> Response:
    """The same response with our headers."""
    for name, value in as_text(reply):
        if name.startswith("idempot") or name not in response.headers:
            response.headers[name] = value
    return response


def response_of(app: Flask, reply: Reply) -> Response:
    response = app.response_class(reply.body, reply.status)
    del response.headers["Content-Type"]  # Flask's guess, where the answer has none
    response.headers.extend(as_text(reply))
    return response


def as_text(reply: Reply) -> list[tuple[str, str]]:
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in reply.headers]
