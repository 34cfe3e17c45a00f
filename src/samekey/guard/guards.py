"""Guard and AsyncGuard: what a user puts around anything that must not happen twice.

Twins with equal names. Both do the same three things: turn a call into a `Call` (what is asked, under
which rules), let the core decide step by step, and raise or return what the core says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from time import monotonic
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from samekey.core.attributes import Attributes
from samekey.core.boundary import ATOMIC, Boundary, Opaque
from samekey.core.call import Answer, Call
from samekey.core.commands import Read
from samekey.core.errors import StoreUnavailable
from samekey.core.key import as_text, make_key
from samekey.core.policy import Policy
from samekey.core.ports import AsyncStore, Health, Store
from samekey.core.record import Record
from samekey.guard import off_switch
from samekey.guard.adapter_batches import BeginSome, SettleSome
from samekey.guard.adapters import AsyncOpened, AsyncRunning, Ended, Opened, Running, pairs, patience, unopened
from samekey.guard.atomic import AsyncAtomicPerformer, AtomicPerformer
from samekey.guard.base import BaseGuard
from samekey.guard.batch import Many, Rules, ato_the_end, chunks, to_the_end
from samekey.guard.binding import AttributeRule, Bound, Content, KeyRule, TenantRule, apart_by_hand, apart_of
from samekey.guard.claiming import Crowd
from samekey.guard.deadline import Bounded
from samekey.guard.decorated import AsyncGuarded, Guarded, needs_parentheses
from samekey.guard.hold import AsyncHeld, Held
from samekey.guard.on_connection import AsyncOnConnection, OnConnection
from samekey.guard.operations import Operation, as_key, no_effect
from samekey.guard.performer import AsyncPerformer, Performer

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


class Guard(BaseGuard[Store]):
    """The guard for sync code.

    >>> guard = Guard("memory://")
    >>> @guard.once(name="greet", key="who")
    ... def greet(who: str) -> str:
    ...     print("greeting", who)
    ...     return f"hello {who}"
    >>> greet("ann")
    greeting ann
    'hello ann'
    >>> greet("ann")
    'hello ann'
    """

    _asynchronous = False

    @needs_parentheses
    def once(
        self,
        *,
        key: KeyRule,
        name: str | None = None,
        tenant: TenantRule | None = None,
        ignore: Collection[str] = (),
        boundary: Boundary = Opaque(),  # noqa: B008 - frozen
        policy: Policy | None = None,
        aliases: Collection[str] = (),
        attributes: AttributeRule = (),
    ) -> Callable[[Callable[P, T]], Guarded[P, T]]:
        """Decorate a function: one effect per key, and the same answer for every caller with that key.

        key         what makes two calls one intent: a parameter's name, a dotted path ("order.id"), several of them, a
                    function of the same arguments, or CONTENT (all arguments)
        name        the operation's name in the records; give it one, or a renamed or moved function forgets its keys
        tenant      whose key it is (a parameter's name, a path or a function): tenants never share a key
        ignore      parameters and paths that are not part of the intent: they may differ between retries
        boundary    what may be done after a crash: Atomic, Keyed, Asks, Repeatable, or Opaque (a person decides)
        policy      lease, patience, retention, and what the effect's exceptions mean; otherwise the guard's policy
        aliases     earlier names of the operation: keys that were used under them are still found
        attributes  parameters and paths to keep with the record as labels, or a function that returns a mapping

        The arguments are compared too: the same key with other arguments raises KeyReused. An exception of the function
        says nothing about its effect, so the key is in doubt, unless the exception is NotDone or Refused, or is listed
        in the policy's releases= or closes=.

        >>> guard = Guard("memory://")
        >>> @guard.once(name="charge", key="order_id", ignore=["trace"])
        ... def charge(order_id: str, amount: int, trace: str = "") -> str:
        ...     return f"charged {amount}"
        >>> charge("o-1", 200, trace="a"), charge("o-1", 200, trace="b")
        ('charged 200', 'charged 200')
        >>> charge("o-1", 500)
        Traceback (most recent call last):
        ...
        samekey.KeyReused: charge o-1 was used before with another payload: 'amount' differs...
        """

        def decorate(function: Callable[P, T]) -> Guarded[P, T]:
            binding, operation = self._decorated(
                function, key, name, tenant, ignore, boundary, policy, aliases, attributes
            )
            return Guarded(function, binding, operation, guard=self, answer=self._answer, peek=self.peek)

        return decorate

    def run(
        self,
        name: str,
        effect: Callable[[], T],
        *,
        key: Any,
        payload: Any,
        tenant: str | None = None,
        ignore: Collection[str] = (),
        boundary: Boundary = Opaque(),  # noqa: B008 - frozen
        policy: Policy | None = None,
        attributes: Attributes | None = None,
    ) -> Answer[T]:
        """Run `effect()` once for this key; every other call with it gets the same answer."""
        operation = self._by_hand(name, effect, ignore, boundary, policy, apart_by_hand(key))
        call = self.new_call(operation, as_key(key, payload, operation), payload, tenant, attributes)
        performer = self._performer(call, effect)
        return performer.conclude(performer.go_on())

    def run_many(
        self,
        name: str,
        effect: Callable[[S], T],
        payloads: Iterable[S],
        *,
        key: Callable[[S], Any] | str | Content,
        tenant: str | None = None,
        ignore: Collection[str] = (),
        boundary: Boundary = Opaque(),  # noqa: B008 - frozen
        policy: Policy | None = None,
        attributes: Attributes | Callable[[S], Mapping[str, Any]] | None = None,
    ) -> list[Answer[T] | Exception]:
        """`effect(payload)` once for each payload's key; answers and errors in the order of the payloads.

        Claims are made together, up to 64 in one round trip; effects run one after the other.
        """
        operation = self._by_hand(name, effect, ignore, boundary, policy, apart_of(key))
        answers: list[Answer[T] | Exception] = []
        for some in chunks(payloads):
            answers += self._run_some(operation, effect, some, Rules(key, tenant, attributes))
        return answers

    def hold(
        self,
        name: str,
        *,
        key: Any,
        payload: Any,
        tenant: str | None = None,
        ignore: Collection[str] = (),
        boundary: Boundary = Opaque(),  # noqa: B008 - frozen
        policy: Policy | None = None,
        attributes: Attributes | None = None,
    ) -> Held | Answer[Any]:
        """Take the key by hand: a `Held` to enter with `with` and `complete()`, or the `Answer` there already is."""
        operation = self._by_hand(name, no_effect, ignore, boundary, policy, apart_by_hand(key), "hold")
        call = self.new_call(operation, as_key(key, payload, operation), payload, tenant, attributes)
        return self._performer(call, no_effect).hold()

    def begin(
        self,
        call: Call,
        *,
        wait: float | None = None,
        decides: bool = False,
        crowd: tuple[Crowd, int] | None = None,
    ) -> Opened:
        """For adapters (docs/adapters.md): claim the key of this call, and answer with a value.

        `wait` is how long to wait for another holder, in place of the policy's patience. `decides`: the effect may call
        `current().release()` and `.keep()`, and the adapter obeys `running.decision`. `crowd`: where so many calls wait
        already, this one does not.
        """
        performer = self._performer(call, no_effect)
        performer.crowd = crowd
        if wait is not None:
            performer.wait_at_most(patience(wait))
        try:
            held = performer.hold()
            if isinstance(held, Answer):
                return held
            late = held.too_late() if performer.leases is None or held.deadline <= monotonic() else None
            if late is not None:
                performer.withdraw()
                raise late
        except Exception as error:
            return unopened(error, call)
        return Running(held, decides=decides)

    def begin_many(self, calls: Iterable[Call], *, wait: float = 0.0) -> list[Opened]:
        """`begin` for many calls, in their order; up to 64 keys are claimed in one round trip.

        None of them is `current()` yet: run each effect inside `with running:`.
        """
        seconds, opened = patience(wait), list[Opened]()
        for some in chunks(calls):
            begin = BeginSome(self, seconds)
            opened += to_the_end(self, begin.run(some), begin.let_go)
        return opened

    def settle_many(self, ends: Iterable[tuple[Running, Any]]) -> list[Ended]:
        """End many runs, up to 64 in one round trip: each with its result, or with the exception that it ended in."""
        ended: list[Ended] = []
        for some in chunks(pairs(ends)):
            settle = SettleSome()
            ended += to_the_end(self, settle.run(some), settle.let_go)
        return ended

    def on(self, connection: Any) -> Guard:
        """This guard inside the caller's transaction: record and effect commit together, or not at all."""
        return self if off_switch.depth else _GuardOn(self, connection)

    def peek(self, name: str, key: Any, tenant: str | None = None) -> Record | None:
        """The record of a key, or None; looking changes nothing."""
        found: Record | None = self.store.carry_out(Read(make_key(name, as_text(key), tenant)))
        return found

    def check(self) -> Health | None:
        """Open the store and let it check itself: at the start of an application. The HTTP adapters call it.

        Raises Misconfigured for what waiting does not mend: a missing driver, missing tables, a wrong password. Returns
        None where the server does not answer: that is logged as a warning, and the application may start.
        """
        try:
            return self.store.health()
        except StoreUnavailable as error:
            self._require_open()
            self._unreachable(error)
            return None

    def close(self) -> None:
        """Take no more calls, and close the store: now, or as soon as the last effect that is running was settled.

        Waits for outcomes that are written in the background, at most until their leases end.
        """
        self._closed = True
        self._settling.finish()
        self._shut_if_idle()

    def _shut_if_idle(self) -> None:
        """Close the store of a closed guard, unless a call or an outcome still needs it: that closes it then."""
        store = self._to_be_shut()
        if store is not None:
            self._facts.books.close(store)
            store.close()

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answer(self, operation: Operation, bound: Bound, effect: Callable[[], Any]) -> Answer[Any]:
        call = self.new_call(operation, bound.key, bound.payload, bound.tenant, bound.attributes)
        if operation.terms.kind is ATOMIC and not call.unguarded:
            performer = self._in_transaction(call, effect, bound.connection)
        else:
            performer = self._performer(call, effect)
        return performer.conclude(performer.go_on())

    def _performer(self, call: Call, effect: Callable[[], Any]) -> Performer:
        guard = Bounded(self, call) if call.policy.bounded and not self._in_process else self
        return Performer(call, effect, guard, self._flights, self._leases, self._facts)

    def _in_transaction(self, call: Call, effect: Callable[[], Any], connection: Any) -> Performer:
        return AtomicPerformer(call, effect, self.store.join(connection), begins=True, facts=self._facts)

    def _run_some(self, operation: Operation, effect: Any, some: list[Any], rules: Rules) -> list[Any]:
        many = Many(self, operation, effect, rules)
        answers: list[Any] = to_the_end(self, many.run(some), many.let_go)
        return answers


class AsyncGuard(BaseGuard[AsyncStore]):
    """The guard for async code: the same names, awaited. asyncio, and trio on memory, SQLite and MySQL."""

    _asynchronous = True

    @needs_parentheses
    def once(
        self,
        *,
        key: KeyRule,
        name: str | None = None,
        tenant: TenantRule | None = None,
        ignore: Collection[str] = (),
        boundary: Boundary = Opaque(),  # noqa: B008 - frozen
        policy: Policy | None = None,
        aliases: Collection[str] = (),
        attributes: AttributeRule = (),
    ) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], AsyncGuarded[P, T]]:
        """Decorate an async function: one effect per key, and the same answer for every caller with that key.

        The options are those of `Guard.once`. A lookup of `Asks` or `Keyed` may be async here.
        """

        def decorate(function: Callable[P, Coroutine[Any, Any, T]]) -> AsyncGuarded[P, T]:
            binding, operation = self._decorated(
                function, key, name, tenant, ignore, boundary, policy, aliases, attributes
            )
            return AsyncGuarded(function, binding, operation, guard=self, answer=self._answer, peek=self.peek)

        return decorate

    async def run(
        self,
        name: str,
        effect: Callable[[], Awaitable[T]],
        *,
        key: Any,
        payload: Any,
        tenant: str | None = None,
        ignore: Collection[str] = (),
        boundary: Boundary = Opaque(),  # noqa: B008 - frozen
        policy: Policy | None = None,
        attributes: Attributes | None = None,
    ) -> Answer[T]:
        """Run `await effect()` once for this key; every other call with it gets the same answer."""
        operation = self._by_hand(name, effect, ignore, boundary, policy, apart_by_hand(key))
        call = self.new_call(operation, as_key(key, payload, operation), payload, tenant, attributes)
        performer = self._performer(call, effect)
        return performer.conclude(await performer.go_on())

    async def run_many(
        self,
        name: str,
        effect: Callable[[S], Awaitable[T]],
        payloads: Iterable[S],
        *,
        key: Callable[[S], Any] | str | Content,
        tenant: str | None = None,
        ignore: Collection[str] = (),
        boundary: Boundary = Opaque(),  # noqa: B008 - frozen
        policy: Policy | None = None,
        attributes: Attributes | Callable[[S], Mapping[str, Any]] | None = None,
    ) -> list[Answer[T] | Exception]:
        """`await effect(payload)` once for each payload's key; answers and errors in the order of the payloads."""
        operation = self._by_hand(name, effect, ignore, boundary, policy, apart_of(key))
        answers: list[Answer[T] | Exception] = []
        for some in chunks(payloads):
            answers += await self._run_some(operation, effect, some, Rules(key, tenant, attributes))
        return answers

    async def hold(
        self,
        name: str,
        *,
        key: Any,
        payload: Any,
        tenant: str | None = None,
        ignore: Collection[str] = (),
        boundary: Boundary = Opaque(),  # noqa: B008 - frozen
        policy: Policy | None = None,
        attributes: Attributes | None = None,
    ) -> AsyncHeld | Answer[Any]:
        """Take the key by hand: an `AsyncHeld` to enter with `async with`, or the `Answer` there already is."""
        operation = self._by_hand(name, no_effect, ignore, boundary, policy, apart_by_hand(key), "hold")
        call = self.new_call(operation, as_key(key, payload, operation), payload, tenant, attributes)
        return await self._performer(call, no_effect).hold()

    async def begin(
        self,
        call: Call,
        *,
        wait: float | None = None,
        decides: bool = False,
        crowd: tuple[Crowd, int] | None = None,
    ) -> AsyncOpened:
        """For adapters (docs/adapters.md): claim the key of this call, and answer with a value."""
        performer = self._performer(call, no_effect)
        performer.crowd = crowd
        if wait is not None:
            performer.wait_at_most(patience(wait))
        try:
            held = await performer.hold()
            if isinstance(held, Answer):
                return held
            late = held.too_late() if performer.leases is None or held.deadline <= monotonic() else None
            if late is not None:
                await performer.withdraw()
                raise late
        except Exception as error:
            return unopened(error, call)
        return AsyncRunning(held, decides=decides)

    async def begin_many(self, calls: Iterable[Call], *, wait: float = 0.0) -> list[AsyncOpened]:
        """`begin` for many calls, in their order; up to 64 keys are claimed in one round trip."""
        seconds, opened = patience(wait), list[AsyncOpened]()
        for some in chunks(calls):
            begin = BeginSome(self, seconds)
            opened += await ato_the_end(self, begin.run(some), begin.let_go)
        return opened

    async def settle_many(self, ends: Iterable[tuple[AsyncRunning, Any]]) -> list[Ended]:
        """End many runs, up to 64 in one round trip: each with its result, or with the exception that it ended in."""
        ended: list[Ended] = []
        for some in chunks(pairs(ends)):
            settle = SettleSome()
            ended += await ato_the_end(self, settle.run(some), settle.let_go)
        return ended

    def on(self, connection: Any) -> AsyncGuard:
        """This guard inside the caller's transaction: record and effect commit together, or not at all."""
        return self if off_switch.depth else _AsyncGuardOn(self, connection)

    async def peek(self, name: str, key: Any, tenant: str | None = None) -> Record | None:
        """The record of a key, or None; looking changes nothing."""
        found: Record | None = await self.store.carry_out(Read(make_key(name, as_text(key), tenant)))
        return found

    async def check(self) -> Health | None:
        """Open the store and let it check itself: at the start of an application."""
        try:
            return await self.store.health()
        except StoreUnavailable as error:
            self._require_open()
            self._unreachable(error)
            return None

    async def close(self) -> None:
        """Take no more calls, and close the store: now, or as soon as the last effect that is running was settled."""
        self._closed = True
        await self._settling.finish()
        await self._shut_if_idle()

    async def _shut_if_idle(self) -> None:
        """Close the store of a closed guard, unless a call or an outcome still needs it: that closes it then."""
        store = self._to_be_shut()
        if store is not None:
            await self._facts.books.aclose(store)
            await store.close()

    async def __aenter__(self) -> AsyncGuard:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _answer(self, operation: Operation, bound: Bound, effect: Callable[[], Any]) -> Answer[Any]:
        call = self.new_call(operation, bound.key, bound.payload, bound.tenant, bound.attributes)
        if operation.terms.kind is ATOMIC and not call.unguarded:
            performer = self._in_transaction(call, effect, bound.connection)
        else:
            performer = self._performer(call, effect)
        return performer.conclude(await performer.go_on())

    def _performer(self, call: Call, effect: Callable[[], Any]) -> AsyncPerformer:
        guard = Bounded(self, call) if call.policy.bounded and not self._in_process else self
        return AsyncPerformer(call, effect, guard, self._flights, self._leases, self._facts)

    def _in_transaction(self, call: Call, effect: Callable[[], Any], connection: Any) -> AsyncPerformer:
        return AsyncAtomicPerformer(call, effect, self.store.join(connection), begins=True, facts=self._facts)

    async def _run_some(self, operation: Operation, effect: Any, some: list[Any], rules: Rules) -> list[Any]:
        many = Many(self, operation, effect, rules)
        answers: list[Any] = await ato_the_end(self, many.run(some), many.let_go)
        return answers


class _GuardOn(OnConnection, Guard):
    """`guard.on(connection)`: the same names; effects and records commit with the caller."""


class _AsyncGuardOn(AsyncOnConnection, AsyncGuard):
    """The same, awaited."""
