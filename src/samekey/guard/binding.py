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

from samekey.core.attributes import Pairs, fitted_to
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


def apart_of(key: Any) -> tuple[str, ...] | None:
    """The paths of the payload that a key rule names; None where it may use anything."""
    if isinstance(key, str):
        return (key,)
    return tuple(key) if isinstance(key, (tuple, list)) else None


def apart_by_hand(key: Any) -> tuple[str, ...] | None:
    """The same for a key that is given as a value: it names nothing of the payload."""
    return None if isinstance(key, Content) else ()


KeyRule = str | tuple[str, ...] | list[str] | Callable[..., Any] | Content
TenantRule = str | Callable[..., Any]
AttributeRule = Collection[str] | Callable[..., Mapping[str, Any]]


# Annotations whose values are the same after their canonical form was read back.
_PLAIN_TYPES = frozenset(
    {inspect.Parameter.empty, str, int, bool, dict, list, None, Any, "str", "int", "bool", "dict", "list", "Any"}
    | {"str | None", "int | None", "bool | None", "dict[str, Any]", "list[str]", "list[int]"}
)


class Bound(NamedTuple):
    """What one call asks."""

    key: str
    tenant: str | None
    payload: dict[str, Any]
    connection: Any = None
    attributes: Pairs | None = None


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
        skips_first = is_method(function, parameters)
        self._atomic = atomic
        self._own = parameters[1 if skips_first else 0 :]
        names = [one.name for one in self._own]
        if atomic is not None and atomic not in names:
            known = ", ".join(names) or "none"
            raise TypeError(f"Atomic({atomic!r}): {_name(function)} has no such parameter (there are: {known})")
        self._payload_names = frozenset(names) - {atomic}
        self.ignore = declared_ignore(ignore)
        for path in self.ignore:
            self._known(path, "ignore=", function)
        self._key = self._rule(key, "key=", function)
        self.apart = apart_of(key)
        self._tenant = None if tenant is None else self._rule(tenant, "tenant=", function)
        self._plain = not any(one.kind in (_MANY, _NAMED, _ONLY) for one in parameters)
        self._positions = [one.name for one in parameters if one.kind in (_ONLY, _EITHER)]
        self._defaults = {one.name: one.default for one in parameters if one.default is not _EMPTY}
        # How many arguments are all of them, where all can be given by position; -1: never.
        self._all = len(parameters) if self._plain and len(self._positions) == len(parameters) else -1
        self._first = parameters[0].name if skips_first else None
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
        return _new(Bound, (key, tenant, payload, connection, None))

    def from_payload(self, function: Callable[..., Any]) -> Callable[[Any], Any] | None:
        """The function as one of its kept payload: a mapping of plain values, as their canonical form has them.

        None for a method, for a function that takes a connection, and where a parameter is annotated with a type that
        the canonical form does not give back: a model, a date, a Decimal.
        """
        if self._first is not None or self._atomic is not None:
            return None
        parameters = self._signature.parameters.values()
        if any(one.kind in (_MANY, _NAMED, _ONLY) or one.annotation not in _PLAIN_TYPES for one in parameters):
            return None
        return lambda payload: function(**payload)

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


class LabelledBinding(Binding):
    """The same for a function whose calls keep attributes. They are labels: one that is not there is left out."""

    def __init__(self, function: Callable[..., Any], attributes: AttributeRule, **rules: Any) -> None:
        super().__init__(function, **rules)
        what = "attributes="
        if callable(attributes):
            # Of the payload: a connection is where the call happens, not what a person would look for.
            own = [one for one in self._own if one.name != self._atomic]
            self._attributes = fitted(attributes, own, f"{what} of {_name(function)}")
            return
        if isinstance(attributes, (str, bytes)) or not isinstance(attributes, Collection):
            raise TypeError(f"{what} of {_name(function)} takes names in a tuple, or a function, not {attributes!r}")
        paths = {path: self._known(path, what, function) for path in attributes}
        self._attributes = lambda payload: {name: _found(payload, path) for name, path in paths.items()}

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Bound:
        bound = super().bind(args, kwargs)
        return bound._replace(attributes=fitted_to(self._attributes(bound.payload)))


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
        why = "has no readable parameters: call it from a function of your own, and guard that"
        raise Misconfigured(f"{function!r} {why}") from None


def _follow(payload: Mapping[str, Any], path: tuple[str, ...], what: str) -> Any:
    value: Any = payload
    for step in path:
        try:
            value = value[step] if isinstance(value, Mapping) else getattr(value, step)
        except (KeyError, AttributeError):
            raise KeyMissing(f"the {what.rstrip('=')} {'.'.join(path)!r} is not there: no {step!r}") from None
    return value


def _found(payload: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    try:
        return _follow(payload, path, "attributes=")
    except KeyMissing:
        return None


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
    taken, names = _parameters(rule), [one.name for one in own]
    single = [one for one in taken if one.kind not in (_MANY, _NAMED)]
    asked = {one.name for one in single}
    many, others = (any(one.kind is kind for one in taken) for kind in (_MANY, _NAMED))
    positions = [one.name for one in own if one.kind in (_ONLY, _EITHER)]
    items, options = (next((one.name for one in own if one.kind is kind), "") for kind in (_MANY, _NAMED))

    for index, one in enumerate(single):
        positional = one.kind in (_ONLY, _EITHER)
        there = positions[index] if positional and index < len(positions) else None
        if one.name in names:
            if many and positional and one.name != there:
                raise TypeError(f"{what}: with *args it is called by position, and {one.name!r} has another")
        elif there is not None and there not in asked:
            if one.default is not _EMPTY or options:
                raise TypeError(
                    f"{what}: is its parameter {one.name!r} the function's {there!r}? Then call it so; "
                    "if it is a constant of its own, make it keyword-only"
                )
        elif one.default is _EMPTY and not options and not (positional and items):
            known = ", ".join(names) or "none"
            raise TypeError(f"{what}: it asks for {one.name!r}, and there is no such parameter (there are: {known})")

    def call(bound: Arguments) -> Any:
        in_order = [bound[name] for name in positions] + list(bound.get(items, ()))
        by_name = {**bound, **bound.get(options, {})}
        args, named = [], {}
        for index, one in enumerate(single):
            value = by_name.get(one.name, one.default)
            renamed = index >= len(positions) or positions[index] not in asked  # the rule has another name for it
            if one.name not in by_name and one.kind in (_ONLY, _EITHER) and index < len(in_order) and renamed:
                value = in_order[index]
            if value is _EMPTY:
                raise TypeError(f"{what}: it asks for {one.name!r}, and this call has none")
            if one.kind is _ONLY or (many and one.kind is _EITHER):
                args.append(value)
            else:
                named[one.name] = value
        if many:
            args += in_order[len(args) :]
        if others:
            left_out = {*asked, items, options, *(positions if many else ())}
            named.update((name, value) for name, value in by_name.items() if name not in left_out)
        return rule(*args, **named)

    return call


def _parameters(rule: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(rule).parameters.values())
    except (TypeError, ValueError):  # written in C, and it does not tell
        return [inspect.Parameter("args", _MANY)]
