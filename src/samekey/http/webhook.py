"""Events that are sent to you: the event's id is the key, so that a redelivery is handled once.

                                  answer    the sender
    handled, or handled before    200       is done
    refused for good              200       is done: sending it again changes nothing
    in doubt                      200       is done: the event is kept here for a person or a reconciliation
    another delivery is running   409       sends it again later
    the hold was lost meanwhile   409       sends it again later
    not done, or to be run again  503       sends it again later
    the store is down             503       sends it again later
    no signature, no event id     401, 400  should look at itself

A `verify` that raises is answered with 401 too, and logged, in case the check itself is broken.

No framework is needed: give `receive` the raw request, and send what it returns. Leave the webhook's route unguarded by
the adapter of your framework: it has its own keys. The handler gets the `Request` that was received.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable
from typing import Any, cast

from samekey.core.boundary import Boundary, Kind, Opaque
from samekey.core.call import Answer, Call
from samekey.core.errors import Busy, CallerError, Fenced, Misconfigured, NotDone, ResultNotKept, ResultUnreadable
from samekey.core.key import as_text, make_key
from samekey.core.policy import Policy
from samekey.core.states import State
from samekey.guard import adapters
from samekey.guard.guards import AsyncGuard, Guard
from samekey.guard.operations import refuse_atomic
from samekey.http._key import KEY_MAX_CHARS
from samekey.http._labels import LabelRule, check_labels, labels_of
from samekey.http._message import Reply, Request
from samekey.http._problems import BAD_SIGNATURE, EVENT_ID_MISSING, IN_PROGRESS, NOT_DONE, STORE_UNAVAILABLE, Problem
from samekey.http.endpoint import Endpoint, not_held_back

_log = logging.getLogger("samekey")

Verify = Callable[[Request], Any]
EventId = Callable[[Request], Any]


class _Events:
    """What the sync and async class share: the rules for one sender's events."""

    _colour: type

    def __init__(
        self,
        guard: Any,
        name: str,
        *,
        boundary: Boundary,
        verify: Verify,
        event_id: EventId,
        attributes: LabelRule | None = None,
        policy: Policy | None = None,
    ) -> None:
        if not all(map(callable, (verify, event_id))):
            raise Misconfigured("verify= and event_id= are functions of the request")
        if not isinstance(guard, self._colour):
            raise Misconfigured(f"{type(self).__name__} takes {self._colour.__name__}, not {type(guard).__name__}")
        if self._colour is Guard and is_async(verify):
            raise Misconfigured(
                "verify= is async, and a coroutine counts as true before it has checked anything: use AsyncWebhook"
            )
        if is_async(event_id):
            raise Misconfigured("event_id= is a plain function of the request")
        self._guard = cast(Any, guard)
        self._answers = Endpoint(boundary=Opaque(), single_tenant=True)  # for its problems only
        # Declared now: a mistake in it is raised at start, and not by the first event.
        rules = not_held_back(policy or self._guard.policy)
        self._operation = self._guard.operation(name, boundary=boundary, policy=rules, by="webhook")
        self._name = name
        self._verify, self._event_id, self._attributes = verify, event_id, check_labels(attributes)
        if type(guard) is self._colour:  # not guard.on(connection)
            refuse_atomic(boundary)

    def _key(self, request: Request, verified: Any) -> str | Reply:
        """The key of this event. The signature is checked first: the sender of an unsigned event must learn nothing."""
        if not verified:
            return self._answers.problem(BAD_SIGNATURE, "Sign it with the secret that was agreed.")
        try:
            text = as_text(self._event_id(request))
            if len(text) <= KEY_MAX_CHARS:
                return make_key(self._name, text).text
            why = "more than 255 characters"
        except CallerError as error:
            why = str(error)
        except (LookupError, ValueError, TypeError, AttributeError) as error:  # not an event as event_id= expects it
            why = type(error).__name__
        _log.warning("an event of %s was refused because it has no usable id: %s", self._name, why)
        return self._answers.problem(EVENT_ID_MISSING, "Send the event with its id: a redelivery is recognised by it.")

    def _call(self, request: Request, key: str) -> Call:
        call: Call = self._guard.new_call(self._operation, key, None, None, labels_of(request, self._attributes))
        return call

    def _unverified(self, error: Exception) -> bool:
        """Libraries raise on a bad signature. If the check has a bug instead, its type is in the log."""
        _log.warning("an event of %s did not verify: %s", self._name, type(error).__name__)
        return False

    def _unopened(self, opened: Answer[Any] | adapters.Unopened) -> Reply:
        """The answer to an event that is not to be handled now."""
        match opened:
            case Answer():
                return event("replayed")
            case adapters.NotKept():
                return event("done")
            case adapters.Refusal():
                return event("refused")
            case adapters.Doubt():
                return event("in doubt")
            case adapters.Waiting() | adapters.Down():
                return self._problem(opened.error)
            case adapters.Mismatch():
                raise opened.error

    def _succeeded(self, ended: adapters.Ended) -> Reply:
        """The handler returned. Another attempt may have settled the event meanwhile: then that counts."""
        if ended.error is None:
            return event("replayed" if ended.replayed else "done")
        if isinstance(ended.error, (ResultNotKept, ResultUnreadable)):
            return event("done")
        if ended.replayed:
            return event("refused")
        return self._problem(ended.error)

    def _raised(self, error: Exception, ended: adapters.Ended) -> Reply:
        """The handler raised: the answer is what the record says after it.

        Not what the error says: an error of an inner guard is about that guard's effect, and the policy judges errors
        by its own lists. A released event is not kept here: the sender must send it again.
        """
        if isinstance(error, Misconfigured):
            raise error
        if isinstance(ended.error, Fenced):  # another attempt has the key now, and only its record says how that ends
            return self._come_again(IN_PROGRESS)
        if ended.state is State.STARTED:  # the store did not take the write: the next delivery reads the record
            return self._log_and_come_again(error, STORE_UNAVAILABLE)
        match ended.state:
            case State.CLOSED:
                return event("refused")
            case State.COMPLETED:
                return event("done")
            case State.RELEASED if self._expected(error):
                return self._come_again(NOT_DONE)
        if self._operation.terms.kind is not Kind.OPAQUE:
            if isinstance(error, NotDone):
                return self._come_again(NOT_DONE)
            if isinstance(error, Busy):
                return self._come_again(IN_PROGRESS)
            raise error  # the next delivery runs it again, or asks: the sender gets a server error
        if ended.state is None:
            return self._log_and_come_again(error, NOT_DONE)
        _log.error("an event of %s is in doubt: its handler raised", self._name, exc_info=error)
        return event("in doubt")

    def _expected(self, error: Exception) -> bool:
        """Whether the handler reported that nothing was done. Under Repeatable any other error frees the key, too."""
        operation = self._operation
        known = operation.policy.meaning(error, inner=False) == "releases"
        return known or operation.terms.kind is not Kind.REPEATABLE

    def _problem(self, error: Any) -> Reply:
        reply = self._answers.answer_to(error)
        if reply is None:
            raise error
        return reply

    def _log_and_come_again(self, error: Exception, problem: Problem) -> Reply:
        _log.error("an event of %s must come again: its handler raised", self._name, exc_info=error)
        return self._come_again(problem)

    def _come_again(self, problem: Problem) -> Reply:
        return self._answers.problem(problem, "Send it again later.")


class Webhook(_Events):
    """For `Guard`: `Webhook(guard, "stripe", verify=..., event_id=..., boundary=...).receive(request, handle)`."""

    _colour = Guard

    def receive(self, request: Request, handle: Callable[[Request], Any]) -> Reply:
        """Handle this event unless it was handled before; returns what to answer."""
        if is_async(handle):
            raise Misconfigured("the handler is async, and Webhook would not await it: use AsyncWebhook")
        try:
            verified = self._verify(request)
        except Exception as error:
            verified = self._unverified(error)
        key = self._key(request, _plain(verified))
        if isinstance(key, Reply):
            return key
        guard: Guard = self._guard
        opened = guard.begin(self._call(request, key))
        if not isinstance(opened, adapters.Running):
            return self._unopened(opened)
        try:
            _plain(handle(request))  # what a handler returns is not kept: the sender wants a status
        except BaseException as error:
            ended = opened.fail(error)
            if not isinstance(error, Exception):
                raise
            return self._raised(error, ended)
        return self._succeeded(opened.succeed())


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
        opened = await guard.begin(self._call(request, key))
        if not isinstance(opened, adapters.AsyncRunning):
            return self._unopened(opened)
        try:
            await _awaited(handle(request))
        except BaseException as error:
            ended = await opened.fail(error)
            if not isinstance(error, Exception):
                raise
            return self._raised(error, ended)
        return self._succeeded(await opened.succeed())


def event(outcome: str) -> Reply:
    return Reply(200, [(b"content-type", b"application/json")], json.dumps({"event": outcome}).encode())


def is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _plain(made: Any) -> Any:
    """What a plain function returned; a coroutine is refused, because it was not run."""
    if not inspect.isawaitable(made):
        return made
    if inspect.iscoroutine(made):
        made.close()
    raise Misconfigured("this returned a coroutine, which Webhook does not await: use AsyncWebhook")


async def _awaited(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made
