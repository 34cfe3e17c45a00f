"""A function of the user's, called with the bound arguments of a guarded call.

`key=` and `tenant=` may be functions. What they hear must not depend on how the call was written - by
position, by name or by default - or one intent would have two keys. So they are called with what was bound:

    by name        wherever the rule names a parameter of the function, in whatever order
    by position    what it calls by other words, and everything if it takes `*args`
    as it came     what the function itself takes as `*args` or `**kwargs`

A parameter that could be either a constant of the rule's own or other words for one of the function's is
refused at decoration.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_EMPTY = inspect.Parameter.empty
_ONLY, _EITHER = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
_MANY, _NAMED = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD

Bound = Mapping[str, Any]


def fitted(rule: Callable[..., Any], own: Sequence[inspect.Parameter], what: str) -> Callable[[Bound], Any]:
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

    def call(bound: Bound) -> Any:
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

    def source(self, index: int, one: inspect.Parameter) -> Callable[[Bound], Any]:
        positional = one.kind in (_ONLY, _EITHER)
        there = self._positions[index] if positional and index < len(self._positions) else None
        if one.name in self._names:
            if self._in_order and positional and one.name != there:
                raise TypeError(f"{self._what}: with *args it is called by position, and {one.name!r} stands elsewhere")
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

    def rest_of_positions(self, count: int) -> Callable[[Bound], list[Any]]:
        names, items, skip = self._positions[count:], self._items, max(0, count - len(self._positions))
        return lambda bound: [bound[name] for name in names] + list(bound.get(items or "", ()))[skip:]

    def rest_of_names(self) -> Callable[..., dict[str, Any]]:
        variadic, positions, taken = (self._items, self._options), self._positions, self._taken
        names = [name for name in self._names if name not in taken and name not in variadic]

        def rest(bound: Bound, *, positions_too: bool) -> dict[str, Any]:
            options = bound.get(self._options or "", {})
            found = {name: value for name, value in options.items() if name not in taken}
            return found | {name: bound[name] for name in names if positions_too or name not in positions}

        return rest

    def _as_it_came(self, item: int | None, one: inspect.Parameter) -> Callable[[Bound], Any]:
        def source(bound: Bound) -> Any:
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
