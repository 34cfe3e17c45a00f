"""Events that are sent to you: the event's id is the key, so that a redelivery is handled once.

                                  answer    the sender
    handled, or handled before    200       is done
    refused for good              200       is done: sending it again changes nothing
    in doubt                      200       is done: it is parked here for a person or a reconciliation
    another delivery is running   409       sends it again later
    the hold was lost meanwhile   409       sends it again later
    not done, or to be run again  503       sends it again later
    the store is down             503       sends it again later
    no signature, no event id     401, 400  should look at itself

A `verify` that raises has not verified: 401 too, and a line in the log in case it is the check that is broken.

Framework-free: give it the raw request, send what it answers. Under any framework's adapter, leave the webhook's
own route unguarded - it has its own keys.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable
from typing import Any, cast

from samekey.core.boundary import Boundary, Kind, Opaque
from samekey.core.call import Answer
from samekey.core.errors import (
    Busy,
    CallerError,
    Fenced,
    InDoubt,
    Misconfigured,
    NotDone,
    Refused,
    StoreError,
    Uncertain,
)
from samekey.core.key import as_text, make_key
from samekey.core.policy import Policy
from samekey.core.record import Record
from samekey.core.states import State
from samekey.guard.guards import AsyncGuard, Guard
from samekey.guard.hold import current
from samekey.guard.operations import refuse_atomic
from samekey.http._key import KEY_MAX_CHARS
from samekey.http._message import Reply, Request
from samekey.http._problems import BAD_SIGNATURE, EVENT_ID_MISSING, IN_PROGRESS, NOT_DONE, STORE_UNAVAILABLE, Problem
from samekey.http.endpoint import Endpoint

_log = logging.getLogger("samekey")

Verify = Callable[[Request], Any]
EventId = Callable[[Request], Any]

SEEN_LATER = {"closes": State.CLOSED, "releases": State.RELEASED}  # what a policy makes of an error


class _Events:
    """What both colours share: the rules of one sender's events."""

    _colour: type

    def __init__(
        self,
        guard: Any,
        name: str,
        *,
        boundary: Boundary,
        verify: Verify,
        event_id: EventId,
        policy: Policy | None = None,
    ) -> None:
        if not all(map(callable, (verify, event_id))):
            raise Misconfigured("verify= and event_id= are functions of the request")
        if not isinstance(guard, self._colour):
            raise Misconfigured(f"{type(self).__name__} takes {self._colour.__name__}, not {type(guard).__name__}")
        if self._colour is Guard and is_async(verify):
            raise Misconfigured("verify= is async, and a coroutine is true whatever it would say: use AsyncWebhook")
        if is_async(event_id):
            raise Misconfigured("event_id= is a plain function of the request")
        self._guard = cast(Any, guard)
        self._guard.operation(name, boundary=boundary, policy=policy)  # looked at here, and not by the first event
        self._name = name
        self._boundary, self._policy = boundary, policy
        self._verify, self._event_id = verify, event_id
        self._joined = type(guard) is not self._colour  # guard.on(connection)
        if not self._joined:
            refuse_atomic(boundary)
        self._answers = Endpoint(boundary=Opaque(), single_tenant=True)  # for its problems only

    def _key(self, request: Request, verified: Any) -> str | Reply:
        """The key of this event; the signature comes first: an unsigned event must not learn anything."""
        if not verified:
            return self._answers.problem(BAD_SIGNATURE, "Sign it with the secret that was agreed.")
        try:
            text = as_text(self._event_id(request))
            if len(text) <= KEY_MAX_CHARS:
                return make_key(self._name, text).text
            why = "more than 255 characters"
        except CallerError as error:
            why = str(error)
        except (LookupError, ValueError, TypeError, AttributeError) as error:  # another shape than the event's
            why = type(error).__name__
        _log.warning("an event of %s was refused, it has no id to know it by: %s", self._name, why)
        return self._answers.problem(EVENT_ID_MISSING, "Send the event with its id: a redelivery is recognised by it.")

    def _handled(self, answer: Answer[Any]) -> Reply:
        return said("replayed" if answer.replayed else "done")

    def _unverified(self, error: Exception) -> bool:
        """Libraries raise on a bad signature; if it is a bug in the check, the log has its name."""
        _log.warning("an event of %s did not verify: %s", self._name, type(error).__name__)
        return False

    def _told(self, error: Exception) -> Reply | None:
        """The answer to what the guard said by itself. None: see the record, it is a refusal that was kept."""
        match error:
            case Uncertain() if not isinstance(error, Fenced):
                return said("in doubt" if isinstance(error, InDoubt) else "done")
            case CallerError():
                raise error
            case Refused():
                return said("refused")
        return self._answers.answer_to(error)

    def _left(self, error: Exception, meant: str, record: Record | None) -> Reply:
        """The answer to what the handler raised: what the record says of it.

        Not what the error says: a word of an inner guard speaks for that guard's effect, and a policy has words of
        its own. In a transaction of the caller the record is not to be seen yet, and what it will say is what was
        meant. What was released has no copy here: the sender must keep it.
        """
        if isinstance(error, Misconfigured):
            raise error
        if isinstance(error, Fenced):  # somebody else has the key now, and only the record knows how that ends
            return self._come_again(IN_PROGRESS)
        match SEEN_LATER.get(meant) if record is None else record.state:
            case State.CLOSED:
                return said("refused")
            case State.COMPLETED:
                return said("done")
            case State.RELEASED:
                return self._come_again(NOT_DONE)
            case State.STARTED:
                return self._come_again(IN_PROGRESS)
        if self._boundary.terms.kind is not Kind.OPAQUE:
            if isinstance(error, NotDone):
                return self._come_again(NOT_DONE)
            if isinstance(error, Busy):
                return self._come_again(IN_PROGRESS)
            raise error  # the next delivery runs it again, or asks: let the sender hear a server error
        if record is None:
            return self._unrecorded(error, NOT_DONE)
        _log.error("an event of %s is parked in doubt: its handler raised", self._name, exc_info=error)
        return said("in doubt")

    def _unrecorded(self, error: Exception, problem: Problem = STORE_UNAVAILABLE) -> Reply:
        """The record cannot be seen; the next delivery will."""
        _log.error("an event of %s must come again: its handler raised", self._name, exc_info=error)
        return self._come_again(problem)

    def _come_again(self, problem: Problem) -> Reply:
        return self._answers.problem(problem, "Send it again later.")


class _Handler:
    """The handler, and what it raised itself: the guard around it raises too."""

    raised: Exception | None = None
    meant = "closes"  # what is raised in its place is a refusal that was kept

    def __init__(self, handle: Callable[[Request], Any], request: Request) -> None:
        self._handle, self._request = handle, request

    def run(self) -> None:
        """What a handler returns is nobody's answer: the sender wants a status."""
        try:
            _plain(self._handle(self._request))
        except Exception as error:
            self._note(error)
            raise

    async def arun(self) -> None:
        try:
            await _awaited(self._handle(self._request))
        except Exception as error:
            self._note(error)
            raise

    def _note(self, error: Exception) -> None:
        self.raised, self.meant = error, current().meaning(error)


class Webhook(_Events):
    """For `Guard`: `Webhook(guard, "stripe", verify=..., event_id=..., boundary=...).receive(request, handle)`."""

    _colour = Guard

    def receive(self, request: Request, handle: Callable[[Request], Any]) -> Reply:
        """Handle this event unless it was; what to answer."""
        if is_async(handle):
            raise Misconfigured("an async handler needs AsyncWebhook: here nobody would await it")
        try:
            verified = self._verify(request)
        except Exception as error:
            verified = self._unverified(error)
        key = self._key(request, _plain(verified))
        if isinstance(key, Reply):
            return key
        guard: Guard = self._guard
        handler = _Handler(handle, request)
        try:
            return self._handled(
                guard.run(self._name, handler.run, key=key, payload=None, boundary=self._boundary, policy=self._policy)
            )
        except Exception as error:
            told = None if error is handler.raised else self._told(error)
            if told is not None:
                return told
            try:
                record = None if self._joined else guard.peek(self._name, key)
            except StoreError:
                return self._unrecorded(error)
            return self._left(error, handler.meant, record)


class AsyncWebhook(_Events):
    """For `AsyncGuard`; `verify` and the handler may be async, or plain functions that do not block."""

    _colour = AsyncGuard

    async def receive(self, request: Request, handle: Callable[[Request], Any]) -> Reply:
        try:
            verified = await _awaited(self._verify(request))
        except Exception as error:
            verified = self._unverified(error)
        key = self._key(request, verified)
        if isinstance(key, Reply):
            return key
        guard: AsyncGuard = self._guard
        handler = _Handler(handle, request)
        try:
            return self._handled(
                await guard.run(
                    self._name, handler.arun, key=key, payload=None, boundary=self._boundary, policy=self._policy
                )
            )
        except Exception as error:
            told = None if error is handler.raised else self._told(error)
            if told is not None:
                return told
            try:
                record = None if self._joined else await guard.peek(self._name, key)
            except StoreError:
                return self._unrecorded(error)
            return self._left(error, handler.meant, record)


def said(word: str) -> Reply:
    return Reply(200, [(b"content-type", b"application/json")], json.dumps({"event": word}).encode())


def is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _plain(made: Any) -> Any:
    """What a plain function gave; a coroutine is no answer, and was not run."""
    if not inspect.isawaitable(made):
        return made
    if inspect.iscoroutine(made):
        made.close()
    raise Misconfigured("this gave a coroutine, which nobody awaits here: use AsyncWebhook")


async def _awaited(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made
