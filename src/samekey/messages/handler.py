"""Handler and AsyncHandler: one function that handles each message once, whatever the broker does.

    handler = Handler(guard, charge, name="charge", key="order_id", boundary=Keyed())
    action = handler.process(message)      # ack, later, park, dead or silent: `_ack.py`

An adapter makes a `Message` of each delivery, calls `process`, and translates the action. Everything else is here:
the key, the claim, the effect, the settle, and the parking store.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

from samekey.core.boundary import Atomic, Boundary
from samekey.core.call import Call
from samekey.core.errors import CallerError, Misconfigured, StoreError
from samekey.core.parking import BODY_MAX_BYTES, Parked, make_parked
from samekey.core.policy import Policy
from samekey.guard.adapters import AsyncRunning, Ended, Running
from samekey.guard.guards import AsyncGuard, Guard
from samekey.guard.operations import Declared, Operation, check_effect, refuse_atomic
from samekey.messages._ack import Action, Delivery, Outcome, Poison, Rules, Shutdown, TooBig, decide
from samekey.messages._batch import AsyncBatch, Batch
from samekey.messages._message import MESSAGE_MAX_BYTES, Identity, KeyRule, Message, Read, SourceRule, TenantRule

_log = logging.getLogger("samekey.messages")

STORE_DOWN_SECONDS = 2.0
Place = Literal["store", "broker"]


class _Handler:
    """What both colours share: the rules, and what is made of a message and of an outcome."""

    _colour: type
    _asynchronous: bool

    def __init__(
        self,
        guard: Any,
        function: Callable[..., Any],
        *,
        name: str,
        key: KeyRule,
        boundary: Boundary,
        tenant: TenantRule | None = None,
        ignore: Collection[str] = (),
        source: SourceRule | None = None,
        policy: Policy | None = None,
        rules: Rules = Rules(),  # noqa: B008 - frozen
        read: Read | None = None,
        message_max_bytes: int = MESSAGE_MAX_BYTES,
        connection: Callable[[], Any] | None = None,
        park: Place = "store",
        dead: Place = "store",
        horizon: float | None = None,
    ) -> None:
        if not isinstance(guard, self._colour):
            raise Misconfigured(f"{type(self).__name__} takes {self._colour.__name__}, not {type(guard).__name__}")
        if not isinstance(boundary, Boundary):
            raise Misconfigured(f"boundary= takes Atomic, Keyed, Asks, Repeatable or Opaque, not {boundary!r}")
        if connection is None:
            refuse_atomic(boundary)
        elif not isinstance(boundary, Atomic):
            raise Misconfigured("connection= runs the handler in your transaction: declare boundary=Atomic(...)")
        if not (self._asynchronous and not inspect.iscoroutinefunction(function)):
            check_effect(function, asynchronous=self._asynchronous)
        self._guard = cast(Any, guard)
        self._function, self._connection = function, connection
        self._identity = Identity(
            key=key, tenant=tenant, ignore=ignore, source=source, read=read, max_bytes=message_max_bytes
        )
        own = self._guard.policy if policy is None else policy
        # A message is not acknowledged before its record is written: no answer goes out earlier.
        own = replace(own, settle_patience=None) if isinstance(own, Policy) else own
        self.operation: Operation = self._guard.operation(
            name, ignore=self._identity.ignore, boundary=boundary, policy=own, apart=self._identity.apart, by="message"
        )
        if horizon is not None:
            self._guard.enter(Declared(self.operation.name, "message", self.operation, horizon=float(horizon)))
        self.name, self.rules = name, rules
        self.parks_in, self.dead_in = park, dead
        self._runs: dict[int, Any] = {}
        self._mutex = threading.Lock()
        self.stopping = False  # set by the adapter at its shutdown: what has not begun is given back

    @property
    def lease_seconds(self) -> float:
        return self.operation.policy.lease_seconds

    def call_of(self, message: Message) -> Call | Poison | TooBig:
        """The guarded call of this message, or why there can be none."""
        found = self._identity.of(message)
        if isinstance(found, (Poison, TooBig)):
            return found
        labels = {"source": found.source} if found.source else None
        try:
            call: Call = self._guard.new_call(
                self.operation, found.key, found.payload, found.tenant, labels, found.written
            )
            return call
        except Misconfigured:
            raise
        except CallerError as error:
            return Poison(getattr(error, "path", "") or str(error))
        except TypeError as error:
            return Poison(str(error))

    def call_for(self, message: Message) -> Call | None:
        """The call of a message that was read before; None where it can have none."""
        call = self.call_of(message)
        return call if isinstance(call, Call) else None

    def decide(self, outcome: Outcome, message: Message, *, lost: bool = False, cut: bool = False) -> Action:
        jitter = random.random()  # noqa: S311 - spreads retries
        return decide(outcome, Delivery(message.tries, lost, cut, jitter), self.rules)

    def to_park(self, message: Message, action: Action, call: Call | None) -> Parked | None:
        """The row for the parking store, where this handler keeps what the action sets aside."""
        place = {"park": self.parks_in, "dead": self.dead_in}.get(action.verb)
        if place is None:
            return None
        _log.warning("a message of %s is set aside (%s): %s", self.name, action.verb, action.reason)
        if place == "broker":
            return None
        return make_parked(
            at=time.time(),
            operation=self.name,
            tenant=None if call is None else call.key.tenant,
            key="" if call is None else call.key.text,
            destination=message.source,
            headers=message.headers,
            body=message.body,
            kind=action.kind,
            reason=action.reason,
        )

    def _too_long(self, message: Message, action: Action) -> Action | None:
        """What to do with a message that the parking store cannot take: it stays with the broker, and is logged."""
        place = {"park": self.parks_in, "dead": self.dead_in}.get(action.verb)
        if place != "store" or len(message.body) <= BODY_MAX_BYTES:
            return None
        _log.error(
            "a message of %s has %d bytes, which the parking store does not take: it stays with the broker. Give the "
            "handler dead='broker' and the adapter a dead-letter place",
            self.name,
            len(message.body),
        )
        return Action("later", self.rules.backoff_max, counted=True, row=action.row)

    def _unkept(self, action: Action, error: Exception) -> Action:
        _log.error("a message of %s could not be set aside, and comes again: %s", self.name, error)
        return Action("later", STORE_DOWN_SECONDS, stop=True, row=action.row)


class _Run:
    """One effect that runs. It is ended once: by its own thread, or by a shutdown that cuts it."""

    def __init__(self, running: Any, message: Message, call: Call) -> None:
        self.running, self.message, self.call = running, message, call
        self._mutex = threading.Lock()
        self.over = False

    def takes_end(self) -> bool:
        """Whether the caller is the one that ends it."""
        with self._mutex:
            first, self.over = not self.over, True
        return first


class Handler(_Handler):
    """For `Guard`: `function(message)` runs once for each key; with `connection=` it gets `(message, connection)`."""

    _colour, _asynchronous = Guard, False
    _guard: Guard
    _connection: Callable[[], AbstractContextManager[Any]] | None

    def process(self, message: Message, *, extend: Callable[[], Any] | None = None) -> Action:
        """Handle this delivery. `extend` renews the broker's timer, and is called after each renewal of the lease."""
        call = self.call_of(message)
        if isinstance(call, (Poison, TooBig)):
            return self.keep(message, self.decide(call, message), None)
        if self.stopping:
            return self.decide(Shutdown(), message)
        run = self._in_transaction if self._connection is not None else self._guarded
        return self.keep(message, run(message, call, extend), call)

    def process_many(
        self, messages: Sequence[Message], *, extend: Callable[[Message], Any] | None = None
    ) -> list[Action]:
        """Handle many deliveries in order: claims go out together, and so do settles. No outcome touches another."""
        if self._connection is not None:
            return [self.process(message) for message in messages]
        return Batch(self, messages, extend).run()

    def cut(self) -> list[tuple[Message, Action]]:
        """At a shutdown: end every effect that still runs, and return what to do with its message."""
        self.stopping = True
        return self._cut(list)

    def cut_one(self, message: Message) -> list[tuple[Message, Action]]:
        """End the effect of this message alone, if it still runs."""
        return self._cut(lambda runs: [run for run in runs if run.message is message])

    def _cut(self, chosen: Callable[[Any], list[Any]]) -> list[tuple[Message, Action]]:
        with self._mutex:
            runs = chosen(self._runs.values())
        cut = []
        for run in runs:
            if run.takes_end():
                lost = run.running.lost
                action = self.decide(run.running.cut("shutdown"), run.message, lost=lost, cut=True)
                cut.append((run.message, self.keep(run.message, action, run.call)))
        return cut

    def well(self) -> bool:
        """Whether the store answers: a consumer that has stopped asks this before it goes on."""
        try:
            self._guard.store.health()
        except StoreError:
            return False
        return True

    def keep(self, message: Message, action: Action, call: Call | None) -> Action:
        """Write what is set aside into the parking store, before the broker may forget the message."""
        stays = self._too_long(message, action)
        if stays is not None:
            return stays
        try:
            parked = self.to_park(message, action, call)
            if parked is not None:
                self._guard.store.park(parked)
        except (StoreError, Misconfigured) as error:
            return self._unkept(action, error)
        return action

    def run_one(self, running: Running, message: Message, call: Call) -> tuple[bool, Any]:
        """Run the effect of a begun call. (True, its result or exception), or (False, None) if a shutdown ended it."""
        run = _Run(running, message, call)
        with self._mutex:
            self._runs[id(run)] = run
        end: Any
        try:
            with running:
                end = self._function(message)
        except BaseException as error:
            end = error
        finally:
            with self._mutex:
                self._runs.pop(id(run), None)
        return run.takes_end(), end

    def _guarded(self, message: Message, call: Call, extend: Callable[[], Any] | None) -> Action:
        opened = self._guard.begin(call, wait=0)
        if not isinstance(opened, Running):
            return self.decide(opened, message)
        if extend is not None:
            opened.also_renew(extend)
        ours, end = self.run_one(opened, message, call)
        if not ours:
            return Action("silent", row="16")
        lost = opened.lost
        if isinstance(end, BaseException):
            action = self.decide(opened.fail(end), message, lost=lost)
            if not isinstance(end, Exception):
                raise end
            return action
        return self.decide(opened.succeed(end), message, lost=lost)

    def _in_transaction(self, message: Message, call: Call, extend: Any) -> Action:
        """Claim, rows of the application and answer commit together; rolled back, there is no record."""
        assert self._connection is not None  # noqa: S101 - for the type checker
        action = None
        try:
            with self._connection() as connection:
                opened = self._guard.on(connection).begin(call, wait=0)
                if not isinstance(opened, Running):
                    return self.decide(opened, message)
                try:
                    ended = opened.succeed(self._function(message, connection))
                except Exception as error:
                    ended = opened.fail(error)
                action = self.decide(ended, message)
                if not ended.recorded:
                    raise _RolledBack
        except _RolledBack:
            pass
        except Misconfigured:
            raise
        except Exception as error:  # of the commit, or of the connection
            _log.warning("the transaction for a message of %s failed: %s", self.name, type(error).__name__)
            return self.decide(Ended(None, recorded=False, error=error), message)
        assert action is not None  # noqa: S101 - the block ran
        return action


class AsyncHandler(_Handler):
    """The same, awaited; `function` is async, or a plain one that does not block."""

    _colour, _asynchronous = AsyncGuard, True
    _guard: AsyncGuard
    _connection: Callable[[], AbstractAsyncContextManager[Any]] | None

    async def process(self, message: Message, *, extend: Callable[[], Any] | None = None) -> Action:
        """Handle this delivery; `extend` may be async."""
        call = self.call_of(message)
        if isinstance(call, (Poison, TooBig)):
            return await self.keep(message, self.decide(call, message), None)
        if self.stopping:
            return self.decide(Shutdown(), message)
        run = self._in_transaction if self._connection is not None else self._guarded
        return await self.keep(message, await run(message, call, extend), call)

    async def process_many(
        self, messages: Sequence[Message], *, extend: Callable[[Message], Any] | None = None
    ) -> list[Action]:
        """Handle many deliveries in order: claims go out together, and so do settles. No outcome touches another."""
        if self._connection is not None:
            return [await self.process(message) for message in messages]
        return await AsyncBatch(self, messages, extend).run()

    async def cut(self) -> list[tuple[Message, Action]]:
        """At a shutdown: cancel every effect that still runs, and return what to do with its message."""
        self.stopping = True
        return await self._cut(list)

    async def cut_one(self, message: Message) -> list[tuple[Message, Action]]:
        """End the effect of this message alone, if it still runs."""
        return await self._cut(lambda runs: [run for run in runs if run.message is message])

    async def _cut(self, chosen: Callable[[Any], list[Any]]) -> list[tuple[Message, Action]]:
        cut = []
        for run in [run for run in chosen(self._runs.values()) if run.takes_end()]:
            run.task.cancel()
            lost = run.running.lost
            action = self.decide(await run.running.cut("shutdown"), run.message, lost=lost, cut=True)
            cut.append((run.message, await self.keep(run.message, action, run.call)))
        return cut

    async def well(self) -> bool:
        """Whether the store answers: a consumer that has stopped asks this before it goes on."""
        try:
            await self._guard.store.health()
        except StoreError:
            return False
        return True

    async def keep(self, message: Message, action: Action, call: Call | None) -> Action:
        """Write what is set aside into the parking store, before the broker may forget the message."""
        stays = self._too_long(message, action)
        if stays is not None:
            return stays
        try:
            parked = self.to_park(message, action, call)
            if parked is not None:
                await self._guard.store.park(parked)
        except (StoreError, Misconfigured) as error:
            return self._unkept(action, error)
        return action

    async def run_one(self, running: AsyncRunning, message: Message, call: Call) -> tuple[bool, Any]:
        """Run the effect of a begun call, in a task of its own, so that a shutdown can cancel it alone."""
        run: Any = _Run(running, message, call)
        with running:
            run.task = task = asyncio.ensure_future(_awaited(partial(self._function, message)))
        self._runs[id(run)] = run
        end: Any
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:  # of the consumer itself
            task.cancel()
            end = error
        else:
            raised = asyncio.CancelledError() if task.cancelled() else task.exception()
            end = task.result() if raised is None else raised
        finally:
            self._runs.pop(id(run), None)
        return run.takes_end(), end

    async def _guarded(self, message: Message, call: Call, extend: Callable[[], Any] | None) -> Action:
        opened = await self._guard.begin(call, wait=0)
        if not isinstance(opened, AsyncRunning):
            return self.decide(opened, message)
        if extend is not None:
            opened.also_renew(extend)
        ours, end = await self.run_one(opened, message, call)
        if not ours:
            return Action("silent", row="16")
        lost = opened.lost
        if isinstance(end, BaseException):
            action = self.decide(await opened.fail(end), message, lost=lost)
            if not isinstance(end, Exception):
                raise end
            return action
        return self.decide(await opened.succeed(end), message, lost=lost)

    async def _in_transaction(self, message: Message, call: Call, extend: Any) -> Action:
        assert self._connection is not None  # noqa: S101 - for the type checker
        action = None
        try:
            async with self._connection() as connection:
                opened = await self._guard.on(connection).begin(call, wait=0)
                if not isinstance(opened, AsyncRunning):
                    return self.decide(opened, message)
                try:
                    ended = await opened.succeed(await _awaited(partial(self._function, message, connection)))
                except Exception as error:
                    ended = await opened.fail(error)
                action = self.decide(ended, message)
                if not ended.recorded:
                    raise _RolledBack
        except _RolledBack:
            pass
        except Misconfigured:
            raise
        except Exception as error:  # of the commit, or of the connection
            _log.warning("the transaction for a message of %s failed: %s", self.name, type(error).__name__)
            return self.decide(Ended(None, recorded=False, error=error), message)
        assert action is not None  # noqa: S101 - the block ran
        return action


class _RolledBack(Exception):
    """Leaves the block of a transaction, so that it is rolled back."""


async def _awaited(function: Callable[[], Any]) -> Any:
    made = function()
    return await made if inspect.isawaitable(made) else made
