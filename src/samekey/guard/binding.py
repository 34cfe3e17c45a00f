"""From a call to its key, its tenant and its payload.

Arguments are bound with defaults first, so positional, keyword and default calls are one key. `self`,
`cls` and the Atomic parameter are not payload: they are where the call happens, not what it asks.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from samekey.core.errors import KeyMissing, Misconfigured
from samekey.core.fingerprint import Intent, declared_ignore
from samekey.core.key import as_text, key_text, part_text

_EMPTY = inspect.Parameter.empty
_ONLY, _EITHER = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_MANY, _NAMED = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
_new = tuple.__new__  # every call makes one: calling the class takes twice as long


@dataclass(frozen=True)
class Content:
    """A key made of the content itself: two equal calls are one intent.

    It must be chosen on purpose: a customer who really buys the same thing twice gets one purchase. `ignore` pins
    which fields are left out; without it the operation's own `ignore=` is used, and changing that makes new keys.
    """

    ignore: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.ignore is not None:
            object.__setattr__(self, "ignore", declared_ignore(self.ignore))

    def key_of(self, payload: Any, ignore: tuple[str, ...]) -> str:
        # Unkeyed and in form 1 for ever: a deploy or a new secret must not turn one intent into two keys.
        return Intent(payload, ignore=ignore if self.ignore is None else self.ignore).digest.hex()


CONTENT = Content()

KeyRule = str | tuple[str, ...] | list[str] | Callable[..., Any] | Content
TenantRule = str | Callable[..., Any]


class Bound(NamedTuple):
    """What one call asks."""

    key: str
    tenant: str | None
    payload: dict[str, Any]
    connection: Any = None


class Binding:
    """How calls of one function become keys and payloads; every mistake in it is raised at decoration."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        key: KeyRule,
        tenant: TenantRule | None,
        ignore: Collection[str],
        atomic: str | None,
    ) -> None:
        self._signature = _signature(function)
        parameters = list(self._signature.parameters.values())
        self._skip_first = is_method(function, parameters)
        self._atomic = atomic
        self._own = parameters[1 if self._skip_first else 0 :]
        names = [one.name for one in self._own]
        if atomic is not None and atomic not in names:
            known = ", ".join(names) or "none"
            raise TypeError(f"Atomic({atomic!r}): {_name(function)} has no such parameter (there are: {known})")
        self._payload_names = frozenset(names) - {atomic}
        self.ignore = declared_ignore(ignore)
        for path in self.ignore:
            self._known(path, "ignore=", function)
        self._key = self._rule(key, "key=", function)
        self._tenant = None if tenant is None else self._rule(tenant, "tenant=", function)
        self._plain = not any(one.kind in (_MANY, _NAMED, _ONLY) for one in parameters)
        self._positions = [one.name for one in parameters if one.kind in (_ONLY, _EITHER)]
        self._defaults = {one.name: one.default for one in parameters if one.default is not _EMPTY}
        # How many arguments are all of them, where all can be given by position; -1: never.
        self._all = len(parameters) if self._plain and len(self._positions) == len(parameters) else -1
        self._first = parameters[0].name if self._skip_first else None
        self._names = self._signature.parameters.keys()
        self._count = len(self._names)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        """Key, tenant and payload of this call; TypeError if it does not fit the function."""
        if not kwargs and len(args) == self._all:
            payload = dict(zip(self._positions, args, strict=True))
        else:
            payload = self._arguments(args, kwargs)
        if self._first is not None:
            payload.pop(self._first, None)
        connection = payload.pop(self._atomic) if self._atomic is not None else None
        key = self._key(payload, connection)
        tenant = None if self._tenant is None else part_text(self._tenant(payload, connection), "tenant")
        return _new(Bound, (key, tenant, payload, connection))

    def _arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        if self._plain and len(args) <= len(self._positions):
            # The common case without inspect: it costs more than all the rest of a replay.
            bound = dict(zip(self._positions, args, strict=False))
            if not kwargs or bound.keys().isdisjoint(kwargs):
                bound = {**self._defaults, **bound, **kwargs}
                if len(bound) == self._count and (not kwargs or bound.keys() == self._names):
                    return bound
        given = self._signature.bind(*args, **kwargs)
        given.apply_defaults()
        return dict(given.arguments)

    def _rule(self, rule: Any, what: str, function: Callable[..., Any]) -> Callable[..., str]:
        if isinstance(rule, Content):
            for left_out in rule.ignore or ():  # a name that matches nothing would make a new key of every retry
                self._known(left_out, "ignore=", function)
            return lambda payload, connection: rule.key_of(payload, self.ignore)
        if isinstance(rule, str):
            path, option = self._known(rule, what, function), what.rstrip("=")
            if len(path) == 1 and rule != "*":
                return lambda payload, connection: part_text(payload[rule], option)
            return lambda payload, connection: part_text(_follow(payload, path, what), option)
        if isinstance(rule, (tuple, list)):
            if not rule:
                raise TypeError(f"{what} of {_name(function)} is empty: name at least one parameter")
            paths = [self._known(one, what, function) for one in rule]
            return lambda payload, connection: key_text(tuple(_follow(payload, path, what) for path in paths))
        if callable(rule):
            return self._function(rule, what, function)
        raise TypeError(
            f"{what} of {_name(function)} is a parameter name, a dotted path, several of them, a function, or CONTENT"
        )

    def _function(self, rule: Callable[..., Any], what: str, function: Callable[..., Any]) -> Callable[..., str]:
        call, atomic = fitted(rule, self._own, f"{what} of {_name(function)}"), self._atomic
        text: Callable[[Any], str] = as_text if what == "key=" else functools.partial(part_text, what="tenant")
        if atomic is None:
            return lambda payload, connection: text(call(payload))
        return lambda payload, connection: text(call({**payload, atomic: connection}))

    def _known(self, path: Any, what: str, function: Callable[..., Any]) -> tuple[str, ...]:
        if not isinstance(path, str) or not path:
            raise TypeError(f"{what} of {_name(function)}: {path!r} is not a parameter name")
        first, *rest = path.split(".")
        if what != "ignore=" and not {"", "*"}.isdisjoint((first, *rest)):
            raise TypeError(f"{what} of {_name(function)}: {path!r} is not the path of one value")
        if first not in self._payload_names and first != "*":
            known = ", ".join(sorted(self._payload_names)) or "none"
            raise TypeError(f"{what} of {_name(function)}: there is no parameter {first!r} (there are: {known})")
        return (first, *rest)


def is_method(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> bool:
    """Whether the first parameter is the instance or class: defined in a class body, and called that."""
    if not parameters or parameters[0].name not in ("self", "cls"):
        return False
    parent = getattr(function, "__qualname__", "").rpartition(".")[0]
    return bool(parent) and not parent.endswith("<locals>")


def check_function(function: Any, *, asynchronous: bool) -> None:
    """Refuse at decoration what can never work when called."""
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError("put @guard.once below @staticmethod or @classmethod, next to the function itself")
    if not callable(function):
        raise TypeError(f"@guard.once takes a function, not {function!r}")
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    call = inner if inspect.isroutine(inner) else getattr(inner, "__call__", inner)  # noqa: B004 - looked at, not tested
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise Misconfigured(f"{_name(function)} is a generator: its steps cannot be kept as one result")
    if inspect.iscoroutinefunction(call) and not asynchronous:
        raise Misconfigured(f"{_name(function)} is async: guard it with AsyncGuard")
    if asynchronous and not inspect.iscoroutinefunction(call):
        raise Misconfigured(f"{_name(function)} is not async: guard it with Guard")


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:  # written in C
        raise Misconfigured(
            f"{function!r} has no readable parameters: call it from a function of your own, and guard that"
        ) from None


def _follow(payload: Mapping[str, Any], path: tuple[str, ...], what: str) -> Any:
    value: Any = payload
    for step in path:
        try:
            value = value[step] if isinstance(value, Mapping) else getattr(value, step)
        except (KeyError, AttributeError):
            raise KeyMissing(f"the {what.rstrip('=')} {'.'.join(path)!r} is not there: no {step!r}") from None
    return value


def _name(function: Any) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


# -- key= and tenant= as functions ---------------------------------------------------------------------------------
#
# They get the bound arguments of the call. What they get must not depend on how the call was written (by position, by
# name or by default), or one intent would have two keys:
#
#     by name        where the rule names a parameter of the function, in any order
#     by position    where the rule uses another name, and everything if the rule takes `*args`
#     as it came     what the function itself takes as `*args` or `**kwargs`
#
# A parameter that could be either a constant of the rule's own or another name for one of the function's parameters
# is refused at decoration.

Arguments = Mapping[str, Any]


def fitted(rule: Callable[..., Any], own: Sequence[inspect.Parameter], what: str) -> Callable[[Arguments], Any]:
    """`rule` as a function of the bound arguments of a function with the parameters `own`."""
    taken = _parameters(rule)
    asks = _Asks(own, taken, what)
    single = [one for one in taken if one.kind not in (_MANY, _NAMED)]
    many = any(one.kind is _MANY for one in taken)
    sources = [(one, asks.source(index, one)) for index, one in enumerate(single)]
    by_position = [source for one, source in sources if one.kind is _ONLY or (many and one.kind is _EITHER)]
    by_name = [(one.name, source) for one, source in sources[len(by_position) :]]
    rest = asks.rest_of_positions(len(by_position)) if many else None
    others = asks.rest_of_names() if any(one.kind is _NAMED for one in taken) else None

    def call(bound: Arguments) -> Any:
        args = [source(bound) for source in by_position]
        named = {name: source(bound) for name, source in by_name}
        if rest is not None:
            args += rest(bound)
        if others is not None:
            named = {**others(bound, positions_too=rest is None), **named}
        return rule(*args, **named)

    return call


class _Asks:
    """Where each parameter of a rule gets its value from."""

    def __init__(self, own: Sequence[inspect.Parameter], taken: Sequence[inspect.Parameter], what: str) -> None:
        self._what = what
        self._names = [one.name for one in own]
        self._positions = [one.name for one in own if one.kind in (_ONLY, _EITHER)]
        self._items = next((one.name for one in own if one.kind is _MANY), None)
        self._options = next((one.name for one in own if one.kind is _NAMED), None)
        self._taken = {one.name for one in taken if one.kind not in (_MANY, _NAMED)}
        self._in_order = any(one.kind is _MANY for one in taken)

    def source(self, index: int, one: inspect.Parameter) -> Callable[[Arguments], Any]:
        positional = one.kind in (_ONLY, _EITHER)
        there = self._positions[index] if positional and index < len(self._positions) else None
        if one.name in self._names:
            if self._in_order and positional and one.name != there:
                raise TypeError(f"{self._what}: with *args it is called by position, and {one.name!r} has another")
            return lambda bound: bound[one.name]
        if there is not None and there not in self._taken:
            if one.default is _EMPTY and self._options is None:
                return lambda bound: bound[there]
            raise TypeError(
                f"{self._what}: is its parameter {one.name!r} the function's {there!r}? Then call it so; "
                "if it is a constant of its own, make it keyword-only"
            )
        if self._options is not None or (positional and self._items is not None):
            return self._as_it_came(index - len(self._positions) if positional else None, one)
        if one.default is not _EMPTY:
            return lambda bound: one.default
        known = ", ".join(self._names) or "none"
        raise TypeError(f"{self._what}: it asks for {one.name!r}, and there is no such parameter (there are: {known})")

    def rest_of_positions(self, count: int) -> Callable[[Arguments], list[Any]]:
        names, items, skip = self._positions[count:], self._items, max(0, count - len(self._positions))
        return lambda bound: [bound[name] for name in names] + list(bound.get(items or "", ()))[skip:]

    def rest_of_names(self) -> Callable[..., dict[str, Any]]:
        variadic, positions, taken = (self._items, self._options), self._positions, self._taken
        names = [name for name in self._names if name not in taken and name not in variadic]

        def rest(bound: Arguments, *, positions_too: bool) -> dict[str, Any]:
            options = bound.get(self._options or "", {})
            found = {name: value for name, value in options.items() if name not in taken}
            return found | {name: bound[name] for name in names if positions_too or name not in positions}

        return rest

    def _as_it_came(self, item: int | None, one: inspect.Parameter) -> Callable[[Arguments], Any]:
        def source(bound: Arguments) -> Any:
            options, items = bound.get(self._options or "", {}), bound.get(self._items or "", ())
            if one.name in options:
                return options[one.name]
            if item is not None and 0 <= item < len(items):
                return items[item]
            if one.default is not _EMPTY:
                return one.default
            raise TypeError(f"{self._what}: it asks for {one.name!r}, and this call has none")

        return source


def _parameters(rule: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(rule).parameters.values())
    except (TypeError, ValueError):  # written in C, and it does not tell
        return [inspect.Parameter("args", _MANY)]
