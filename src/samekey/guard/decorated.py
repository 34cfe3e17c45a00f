"""Decorated functions: called as before, with `answer()` for the whole answer and `peek()` for the record."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from samekey.core.call import Answer
from samekey.core.record import Record
from samekey.guard.binding import Binding, Bound
from samekey.guard.operations import Operation

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
S = TypeVar("S")


F = TypeVar("F", bound=Callable[..., Any])


def needs_parentheses(once: F) -> F:
    """For `once`: `@guard.once` above a function, without parentheses, is a TypeError that shows the right line."""

    @functools.wraps(once)
    def checked(self: Any, *given: Any, **options: Any) -> Any:
        if not given:
            return once(self, **options)
        named = getattr(given[0], "__name__", "the function")
        code = getattr(given[0], "__code__", None)
        first = code.co_varnames[0] if code is not None and code.co_argcount else "order_id"
        raise TypeError(f"@guard.once takes its options in parentheses: write @guard.once(key={first!r}) above {named}")

    return checked  # type: ignore[return-value]


class _Named:
    """Pickled by its name, as a plain function is: another process uses the guard that was made there."""

    def __reduce__(self) -> str:
        name = getattr(self, "__qualname__", None)
        if not isinstance(name, str):
            raise TypeError(f"{vars(self)['__wrapped__']!r} has no name by which another process could find it")
        return name


class _OfInstance:
    """What bound methods share: they are pickled, copied and compared like plain methods."""

    __slots__ = ("_guarded", "_instance")
    _guarded: Any
    _instance: Any

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _OfInstance):
            return NotImplemented
        return self._guarded is other._guarded and self._instance is other._instance

    def __hash__(self) -> int:
        return hash((self._guarded, id(self._instance)))

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._instance, self._guarded.__name__)

    def __getattr__(self, name: str) -> Any:
        """The attributes of its function, with a signature without `self`: frameworks would take it for a parameter."""
        if name == "__signature__":
            whole = inspect.signature(self._guarded)
            return whole.replace(parameters=list(whole.parameters.values())[1:])
        if name == "__wrapped__":
            raise AttributeError(name)
        return getattr(self._guarded, name)


class Guarded(_Named, Generic[P, T]):
    """A guarded function: call it as before; `answer()` returns the whole answer, `peek()` only reads the record."""

    def __init__(
        self,
        function: Callable[P, T],
        binding: Binding,
        operation: Operation,
        *,
        guard: Any,
        answer: Callable[[Operation, Bound, Callable[[], T]], Answer[T]],
        peek: Callable[[str, Any, str | None], Record | None],
    ) -> None:
        functools.update_wrapper(self, function)
        self.operation, self.guard = operation, guard
        self._function, self._binding, self._answer, self._peek = function, binding, answer, peek

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        bound = self._binding.bind(args, kwargs)
        return self._answer(self.operation, bound, functools.partial(self._function, *args, **kwargs)).result

    def answer(self, *args: P.args, **kwargs: P.kwargs) -> Answer[T]:
        """The whole answer: result, state, replayed, token, attempts."""
        bound = self._binding.bind(args, kwargs)
        return self._answer(self.operation, bound, functools.partial(self._function, *args, **kwargs))

    def peek(self, key: Any, tenant: str | None = None) -> Record | None:
        """The record that a call with this key would find, or None; reading it changes nothing."""
        for name in (*self.operation.aliases, self.operation.name):
            record = self._peek(name, key, tenant)
            if record is not None:
                return record
        return None

    @overload
    def __get__(self, instance: None, owner: Any) -> Guarded[P, T]: ...
    @overload
    def __get__(self: Guarded[Concatenate[S, Q], T], instance: S, owner: Any) -> BoundGuarded[Q, T]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else BoundGuarded(self, instance)


class BoundGuarded(_OfInstance, Generic[P, T]):
    """A guarded method of one instance."""

    __slots__ = ()

    def __init__(self, guarded: Guarded[Any, T], instance: Any) -> None:
        self._guarded: Guarded[Any, T] = guarded
        self._instance = instance

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._guarded(self._instance, *args, **kwargs)

    def answer(self, *args: P.args, **kwargs: P.kwargs) -> Answer[T]:
        return self._guarded.answer(self._instance, *args, **kwargs)

    def peek(self, key: Any, tenant: str | None = None) -> Record | None:
        return self._guarded.peek(key, tenant)


class AsyncGuarded(_Named, Generic[P, T]):
    """A guarded async function."""

    def __init__(
        self,
        function: Callable[P, Coroutine[Any, Any, T]],
        binding: Binding,
        operation: Operation,
        *,
        guard: Any,
        answer: Callable[[Operation, Bound, Callable[[], Awaitable[T]]], Awaitable[Answer[T]]],
        peek: Callable[[str, Any, str | None], Awaitable[Record | None]],
    ) -> None:
        functools.update_wrapper(self, function)
        if hasattr(inspect, "markcoroutinefunction"):
            inspect.markcoroutinefunction(self)  # frameworks check that before they await
        self.operation, self.guard = operation, guard
        self._function, self._binding, self._answer, self._peek = function, binding, answer, peek

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return (await self.answer(*args, **kwargs)).result

    async def answer(self, *args: P.args, **kwargs: P.kwargs) -> Answer[T]:
        """The whole answer: result, state, replayed, token, attempts."""
        bound = self._binding.bind(args, kwargs)
        return await self._answer(self.operation, bound, functools.partial(self._function, *args, **kwargs))

    async def peek(self, key: Any, tenant: str | None = None) -> Record | None:
        """The record that a call with this key would find, or None; reading it changes nothing."""
        for name in (*self.operation.aliases, self.operation.name):
            record = await self._peek(name, key, tenant)
            if record is not None:
                return record
        return None

    @overload
    def __get__(self, instance: None, owner: Any) -> AsyncGuarded[P, T]: ...
    @overload
    def __get__(self: AsyncGuarded[Concatenate[S, Q], T], instance: S, owner: Any) -> AsyncBoundGuarded[Q, T]: ...
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else AsyncBoundGuarded(self, instance)


class AsyncBoundGuarded(_OfInstance, Generic[P, T]):
    """A guarded async method of one instance."""

    __slots__ = ()

    def __init__(self, guarded: AsyncGuarded[Any, T], instance: Any) -> None:
        self._guarded: AsyncGuarded[Any, T] = guarded
        self._instance = instance

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._guarded(self._instance, *args, **kwargs)

    async def answer(self, *args: P.args, **kwargs: P.kwargs) -> Answer[T]:
        return await self._guarded.answer(self._instance, *args, **kwargs)

    async def peek(self, key: Any, tenant: str | None = None) -> Record | None:
        return await self._guarded.peek(key, tenant)


# Celery reads the parameters of a callable object from its `__call__`, and would require `self` of every task.
_ANY_CALL = inspect.Signature(
    [
        inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
        inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
    ]
)
for _kind in (Guarded, BoundGuarded, AsyncGuarded, AsyncBoundGuarded):
    vars(_kind)["__call__"].__signature__ = _ANY_CALL
