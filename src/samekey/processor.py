"""A function that handles each payload once: the simplest consumer.

    processor = IdempotentProcessor(handle, "postgresql://app@db/shop")
    record = processor.process(message)      # record.result, record.was_replay, record.key, record.attempts

The key is the content: SHA-256 of the canonical payload without the ignored fields. The boundary is `Repeatable`:
running the function twice is harmless, and losing a payload is not. So an exception is logged and raised, and the next
delivery of the payload runs the function again; and a payload whose result is not in the record is run again, too.
An effect that must not happen twice (a charge) needs `Guard.once` and another boundary.
"""

from __future__ import annotations

import inspect
import logging
import weakref
from collections.abc import Awaitable, Callable, Collection
from types import TracebackType
from typing import Any, Generic, NamedTuple, TypeVar

from samekey.core.boundary import Repeatable
from samekey.core.errors import Misconfigured, ResultNotKept, ResultUnreadable
from samekey.core.fingerprint import declared_ignore
from samekey.core.key import make_key
from samekey.core.policy import Policy
from samekey.core.ports import AsyncStore, Store
from samekey.guard.binding import CONTENT
from samekey.guard.guards import AsyncGuard, Guard
from samekey.guard.names import default_name, origin_of
from samekey.guard.operations import check_effect

__all__ = ["AsyncIdempotentProcessor", "IdempotentProcessor", "ProcessingRecord"]

T = TypeVar("T")

_log = logging.getLogger("samekey.processor")
_REPEATABLE = Repeatable()
_MEMORY = "memory://"

# (store, name) -> the processor that uses this name. Two functions under one name would answer for each other.
_open: weakref.WeakValueDictionary[tuple[str, str], _Processor] = weakref.WeakValueDictionary()


class ProcessingRecord(NamedTuple, Generic[T]):
    """What `process` returns."""

    result: T
    was_replay: bool  # the result is the one of an earlier delivery; the function did not run
    key: str  # SHA-256 of the canonical payload, in hex
    attempts: int  # how often the function was started for this payload


class _Processor:
    """What both colours share: the name, the rules, and the check of the name."""

    _guard: Any

    def __init__(
        self,
        fn: Callable[[Any], Any],
        guard: Any,
        *,
        own: bool,
        name: str | None,
        ignore: Collection[str],
        exclude_fields: Collection[str] | None,
        policy: Policy | None,
    ) -> None:
        self._fn, self._guard, self._own = fn, guard, own
        self.name = default_name(fn) if name is None else make_key(name, "checked").operation
        self._ignore = _ignored(ignore, exclude_fields)
        self._policy = policy
        guard.operation(self.name, ignore=self._ignore, boundary=_REPEATABLE, policy=policy)  # checked and registered
        self._origin = origin_of(fn)
        self._take_name()

    @property
    def _scope(self) -> tuple[str, str]:
        store = self._guard.store_name
        # Every guard on memory:// has a memory of its own.
        return (f"{_MEMORY}{id(self._guard)}" if store == _MEMORY else store, self.name)

    def _take_name(self) -> None:
        other = _open.setdefault(self._scope, self)
        if not other._origin.is_same(self._origin, set()):
            raise Misconfigured(
                f"two processors on {self._guard.store_name} are called {self.name!r}: each would answer for the "
                "other. Give each its own name="
            )

    def _give_name_back(self) -> None:
        if _open.get(self._scope) is self:
            del _open[self._scope]

    def _rules(self, payload: Any) -> dict[str, Any]:
        return {
            "key": CONTENT,
            "payload": payload,
            "ignore": self._ignore,
            "boundary": _REPEATABLE,
            "policy": self._policy,
        }


class IdempotentProcessor(_Processor, Generic[T]):
    """Run `fn(payload)` once for each payload, and return its result for every later delivery of it.

    >>> processor = IdempotentProcessor(lambda order: order["amount"] * 2, "memory://", ignore={"sent_at"})
    >>> processor.process({"id": 1, "amount": 5, "sent_at": "10:00"}).result
    10
    >>> processor.process({"id": 1, "amount": 5, "sent_at": "10:01"}).was_replay
    True

    store       an address, a store, or a `Guard` that other code uses too
    name        the operation's name in the records; without it the function's own
    ignore      fields and paths that may differ between deliveries of one payload (`exclude_fields` is the same)
    policy      lease, patience and retention; otherwise the guard's policy
    """

    _guard: Guard

    def __init__(
        self,
        fn: Callable[[Any], T],
        store: str | Store | Guard,
        *,
        name: str | None = None,
        ignore: Collection[str] = (),
        exclude_fields: Collection[str] | None = None,
        policy: Policy | None = None,
    ) -> None:
        check_effect(fn, asynchronous=False)
        own = not isinstance(store, Guard)
        guard = store if isinstance(store, Guard) else Guard(store)
        super().__init__(fn, guard, own=own, name=name, ignore=ignore, exclude_fields=exclude_fields, policy=policy)

    def process(self, payload: Any) -> ProcessingRecord[T]:
        """The result of `fn(payload)`: of this run, or of the earlier one if the payload was delivered before.

        Raises what `fn` raises; InProgress if another worker runs this payload and does not end in time;
        StoreUnavailable if the store does not answer. After each of them deliver the payload again.
        """
        run = _Run(self._fn, payload, self.name)
        try:
            answer = self._guard.run(self.name, run, **self._rules(payload))
        except (ResultNotKept, ResultUnreadable) as lost:
            if run.begun:
                raise  # of another guard inside `fn`
            reason = lost
        else:
            return ProcessingRecord(answer.result, answer.replayed, answer.key, answer.attempts)
        _log.warning(_AGAIN, self.name, type(reason).__name__)
        record = self._guard.peek(self.name, reason.key)
        return ProcessingRecord(run(), False, reason.key, _attempts(record) + 1)

    def close(self) -> None:
        """Close the guard, if the processor made it; a guard that was given stays open."""
        self._give_name_back()
        if self._own:
            self._guard.close()

    def __enter__(self) -> IdempotentProcessor[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncIdempotentProcessor(_Processor, Generic[T]):
    """The same, awaited: `fn` is an async function, or a plain one that does not block."""

    _guard: AsyncGuard

    def __init__(
        self,
        fn: Callable[[Any], Awaitable[T] | T],
        store: str | AsyncStore | AsyncGuard,
        *,
        name: str | None = None,
        ignore: Collection[str] = (),
        exclude_fields: Collection[str] | None = None,
        policy: Policy | None = None,
    ) -> None:
        check_effect(fn, asynchronous=True)
        own = not isinstance(store, AsyncGuard)
        guard = store if isinstance(store, AsyncGuard) else AsyncGuard(store)
        super().__init__(fn, guard, own=own, name=name, ignore=ignore, exclude_fields=exclude_fields, policy=policy)

    async def process(self, payload: Any) -> ProcessingRecord[T]:
        """The result of `fn(payload)`: of this run, or of the earlier one if the payload was delivered before."""
        run = _AsyncRun(self._fn, payload, self.name)
        try:
            answer = await self._guard.run(self.name, run, **self._rules(payload))
        except (ResultNotKept, ResultUnreadable) as lost:
            if run.begun:
                raise  # of another guard inside `fn`
            reason = lost
        else:
            return ProcessingRecord(answer.result, answer.replayed, answer.key, answer.attempts)
        _log.warning(_AGAIN, self.name, type(reason).__name__)
        record = await self._guard.peek(self.name, reason.key)
        return ProcessingRecord(await run(), False, reason.key, _attempts(record) + 1)

    async def close(self) -> None:
        """Close the guard, if the processor made it; a guard that was given stays open."""
        self._give_name_back()
        if self._own:
            await self._guard.close()

    async def __aenter__(self) -> AsyncIdempotentProcessor[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class _Run:
    """The effect of one delivery. It knows whether it was started, and logs what `fn` raises."""

    __slots__ = ("_fn", "_name", "_payload", "begun")

    def __init__(self, fn: Callable[[Any], Any], payload: Any, name: str) -> None:
        self._fn, self._payload, self._name = fn, payload, name
        self.begun = False

    def __call__(self) -> Any:
        self.begun = True
        try:
            return self._fn(self._payload)
        except Exception:
            _log.exception(_RAISED, self._name)
            raise


class _AsyncRun(_Run):
    """The same, awaited."""

    __slots__ = ()

    async def __call__(self) -> Any:
        self.begun = True
        try:
            found = self._fn(self._payload)
            return await found if inspect.isawaitable(found) else found
        except Exception:
            _log.exception(_RAISED, self._name)
            raise


_RAISED = "%s raised; the next delivery of this payload runs it again"
_AGAIN = (
    "the record of a payload of %s has no result (%s): it is run again. Return a value that can be stored, or raise "
    "result_max_bytes= of the policy"
)


def _attempts(record: Any) -> int:
    return 0 if record is None else int(record.attempts)


def _ignored(ignore: Collection[str], exclude_fields: Collection[str] | None) -> tuple[str, ...]:
    if exclude_fields is None:
        return declared_ignore(ignore)
    if ignore:
        raise Misconfigured("ignore= and exclude_fields= are two names of one option: give one of them")
    return declared_ignore(exclude_fields)
