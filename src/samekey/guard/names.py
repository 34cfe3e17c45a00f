"""The default name of an operation, and whether two functions may share one.

Two functions under one name would answer for each other's keys. A function is its code and what it carries: the
arguments of a partial, the object of a method, defaults, the values in a closure. Two functions are the same if both
are equal. Values are compared by ==, and values that can change by identity: a refusal at start is better than
"charged" as the answer to a refund.

A module that is run again (reloaded, or imported anew) makes the same functions of new parts. There module and
qualname are enough: within one run a second function of that name is refused.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from samekey.core.shapes import home_of

_NOT_YET = object()


def default_name(function: Any) -> str:
    """module:qualname, however the program was started; a partial or a callable object has no name of its own."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if isinstance(function, functools.partial) or not module or not qualname:
        raise TypeError(f"{function!r} has no name of its own: give it one with name=")
    return f"{home_of(module, getattr(inspect.unwrap(function), '__globals__', None))}:{qualname}"


@dataclass(frozen=True, slots=True, eq=False)
class Origin:
    """Where a function was defined, and what it carried when it was decorated."""

    place: tuple[str, str]
    named: bool  # by a `def` of its own: within one run of its module no other function has its place
    code: types.CodeType | None
    carried: tuple[Any, ...]
    module: Mapping[str, Any]
    spec: Any

    def is_same(self, other: Origin, compared: set[tuple[int, int]]) -> bool:
        """Whether it is the same function; `compared` are the pairs that are being compared, or were."""
        if self.place != other.place:
            return False
        if self.module is not other.module or self.spec is not other.spec:
            return True  # the module was run again: importing makes a new one, reloading a new spec
        if self.named and other.named and "__file__" not in self.module:
            return True  # a notebook or a prompt: each definition is a run of its own
        return (
            self.code == other.code
            and getattr(self.code, "co_filename", None) == getattr(other.code, "co_filename", None)
            and len(self.carried) == len(other.carried)
            and all(_same(*pair, compared) for pair in zip(self.carried, other.carried, strict=True))
        )


def origin_of(function: Any) -> Origin:
    """Everything in which this function can differ from another one."""
    carried: list[Any] = []
    inner = function
    while isinstance(inner, (functools.partial, types.MethodType)):
        if isinstance(inner, functools.partial):
            carried += [functools.partial, *inner.args, *_flat(inner.keywords)]
            inner = inner.func
        else:
            carried.append(inner.__self__)
            inner = inner.__func__
    if not isinstance(inner, (types.FunctionType, types.BuiltinFunctionType, type)):
        carried.append(inner)  # an object that can be called
        inner = type(inner).__call__
    if isinstance(inner, types.FunctionType):
        carried += [*(inner.__defaults__ or ()), *_flat(inner.__kwdefaults__ or {})]
        carried += map(_content, inner.__closure__ or ())
    named = function if getattr(function, "__qualname__", None) else inner
    called, qualname = getattr(named, "__module__", None) or "", getattr(named, "__qualname__", None) or ""
    ran = sys.modules.get(called)
    module = getattr(inner, "__globals__", {}) if ran is None else vars(ran)
    return Origin(
        place=(home_of(called, getattr(inspect.unwrap(inner), "__globals__", None)), qualname),
        named=isinstance(function, types.FunctionType) and "<" not in qualname,
        code=getattr(inner, "__code__", None),
        carried=tuple(carried),
        module=module,
        spec=module.get("__spec__"),
    )


def _same(one: Any, other: Any, compared: set[tuple[int, int]]) -> bool:
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, (types.FunctionType, types.MethodType, functools.partial)):
        pair = (id(one), id(other))
        if pair in compared:
            return True  # functions that carry each other
        compared.add(pair)
        return origin_of(one).is_same(origin_of(other), compared)
    try:
        return hash(one) == hash(other) and bool(one == other)
    except Exception:  # without a hash it can change; and what cannot be compared is not known to be the same
        return False


def _flat(named: Mapping[str, Any]) -> list[Any]:
    return [one for name in sorted(named) for one in (name, named[name])]


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _NOT_YET  # the function's own name, while it is being decorated
