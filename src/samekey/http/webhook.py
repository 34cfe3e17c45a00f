"""Events that are sent to you: the event's id is the key, so that a redelivery is handled once.

                                  answer    the sender
    handled, or handled before    200       is done
    refused for good              200       is done: sending it again changes nothing
    in doubt                      200       is done: it is parked here for a person or a reconciliation
    another delivery is running   409       sends it again later
    the hold was lost meanwhile   409       sends it again later
    not done, or to be run again  503       sends it again later
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
from typing import Any

from samekey.core.boundary import Boundary, Kind
from samekey.core.call import Answer
from samekey.core.errors import (
    CallerError,
    Fenced,
    InDoubt,
    KeyMalformed,
    KeyMissing,
    Misconfigured,
    NotDone,
    Refused,
    Uncertain,
)
from samekey.core.policy import Policy
from samekey.core.record import Record
from samekey.core.states import State
from samekey.guard import AsyncGuard, Guard
from samekey.http._exchange import Endpoint
from samekey.http._key import KEY_MAX_CHARS
from samekey.http._message import Reply, Request
from samekey.http._problems import BAD_SIGNATURE, KEY_MALFORMED, NOT_DONE

_log = logging.getLogger("samekey")

Verify = Callable[[Request], Any]
EventId = Callable[[Request], Any]


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
        self._guard: Any = guard
        self._name = name
        self._boundary, self._policy = boundary, policy
        self._verify, self._event_id = verify, event_id
        self._answers = Endpoint(boundary=boundary, single_tenant=True)

    def _key(self, request: Request, verified: Any) -> str | Reply:
        """The key of this event; the signature comes first: an unsigned event must not learn anything."""
        if not verified:
            return self._answers.problem(BAD_SIGNATURE, "Sign it with the secret that was agreed.")
        try:
            key = self._event_id(request)
        except (LookupError, ValueError, TypeError, AttributeError):  # another shape than the event's
            key = None
        if not isinstance(key, str) or not key or len(key) > KEY_MAX_CHARS:
            return self._answers.problem(KEY_MALFORMED, "There is no event id to know this event by.")
        return key

    def _handled(self, answer: Answer[Any]) -> Reply:
        return said("replayed" if answer.replayed else "done")

    def _unverified(self, error: Exception) -> bool:
        """Libraries raise on a bad signature; if it is a bug in the check, the log has its name."""
        _log.warning("an event of %s did not verify: %s", self._name, type(error).__name__)
        return False

    def _failed(self, error: Exception) -> Reply | None:
        """The answer to what the guard or the handler raised; what nobody can answer goes on. None: see the record."""
        match error:
            case Refused():
                return said("refused")
            case NotDone():
                return self._answers.problem(NOT_DONE, "Send it again later.")
            case Fenced():  # somebody else has the key now, and only the record knows how that ends
                return self._answers.answer_to(error)
            case Uncertain():
                return said("in doubt" if isinstance(error, InDoubt) else "done")
            case KeyMalformed() | KeyMissing():
                return self._answers.problem(KEY_MALFORMED, "There is no event id to know this event by.")
            case CallerError():
                raise error
        ours = self._answers.answer_to(error)
        if ours is not None:
            return ours
        if self._boundary.terms.kind is not Kind.OPAQUE:
            raise error  # the next delivery runs it again, or asks: let the sender hear a server error
        return None

    def _parked(self, error: Exception, record: Record | None) -> Reply:
        """Behind Opaque: parked, if the record says so. What was released has no copy here: the sender must keep it."""
        if record is None or record.state is State.RELEASED:
            return self._answers.problem(NOT_DONE, "Send it again later.")
        _log.error("an event of %s is parked in doubt: its handler raised", self._name, exc_info=error)
        return said("in doubt")


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
        try:
            return self._handled(
                guard.run(
                    self._name,
                    lambda: _nothing(_plain(handle(request))),
                    key=key,
                    payload=None,
                    boundary=self._boundary,
                    policy=self._policy,
                )
            )
        except Exception as error:
            return self._failed(error) or self._parked(error, guard.peek(self._name, key))


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

        async def effect() -> None:
            await _awaited(handle(request))

        try:
            return self._handled(
                await guard.run(self._name, effect, key=key, payload=None, boundary=self._boundary, policy=self._policy)
            )
        except Exception as error:
            return self._failed(error) or self._parked(error, await guard.peek(self._name, key))


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


def _nothing(_: Any) -> None:
    """What a handler returns is nobody's answer: the sender wants a status."""
