"""Data classes: which kinds are kept, what their fields are, how an instance is built again, and what a return
annotation shows about all that before the effect runs.

pydantic and msgspec are recognised by attributes, never imported; no name in a record can cause an import.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import sys
import typing
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import PurePath
from types import NoneType, UnionType
from typing import Any
from uuid import UUID

from samekey.core.extra_attributes import slots_of

# fmt: off
_KEPT: tuple[type, ...] = (
    NoneType, bool, int, float, str, bytes, bytearray, Decimal, datetime, date, time, timedelta, UUID,
    list, dict, tuple, set, frozenset,
)
# fmt: on
_REAL = (datetime.min, date.min)
_PROGRAM = ("__main__", "__mp_main__")  # the name of the module that is the program; the second one in a spawned child


class NotStorable(Exception):
    """The result cannot be kept; the message names the path and the type."""


class Unreadable(Exception):
    """The envelope is damaged or newer, or a class it names is gone or has changed."""


def storable_type(annotation: Any) -> str | None:
    """Why values of this return annotation cannot be kept, in one sentence; None if they can, or may.

    >>> storable_type(dict[str, Iterator[int]])
    'result: an Iterator cannot be kept'
    """
    return next((f"{where}: {cannot_keep(cls)}" for where, cls in _reachable(annotation) if not _may_keep(cls)), None)


def data_types(annotation: Any) -> tuple[type, ...]:
    """Every data class reachable from a return annotation, for `decode(types=...)`."""
    return tuple(dict.fromkeys(cls for _, cls in _reachable(annotation) if kind_of(cls)))


def _reachable(annotation: Any) -> Iterator[tuple[str, type]]:
    """Every class in an annotation, once each, with the path to it. Names that cannot be resolved are skipped."""
    todo, seen = [("result", annotation)], set()
    for where, hint in todo:  # the list grows during the loop; `seen` ends recursive types
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        cls = origin or hint
        if isinstance(hint, typing.NewType):
            todo.append((where, hint.__supertype__))
        elif origin is typing.Literal:
            yield from ((where, type(value)) for value in args)
        elif origin is typing.Annotated:
            todo.append((where, args[0]))
        elif hint is typing.Any:
            continue
        elif isinstance(cls, type) and cls is not UnionType:
            todo += [(where, arg) for arg in args]
            if id(cls) not in seen:
                seen.add(id(cls))
                yield where, cls
                todo += [(f"{where}.{name}", inner) for name, inner in _hints(cls).items()]
        elif type(cls).__name__ == "TypeAliasType" and id(cls) not in seen:
            seen.add(id(cls))
            todo += [(where, arg) for arg in args]
            try:
                todo.append((where, cls.__value__))
            except NameError:  # evaluated only now; its names may exist for type checkers only
                continue
        else:  # Union, Required, ...; or a string or TypeVar, about which nothing is known
            todo += [(where, arg) for arg in args]


def _hints(cls: Any) -> dict[str, Any]:
    kind = kind_of(cls)
    if kind == "pydantic":
        return {name: field.annotation for name, field in cls.model_fields.items()}
    if kind in (None, "enum") and not typing.is_typeddict(cls):
        return {}
    try:
        hints = typing.get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)
    except Exception:  # a name that cannot be resolved here, or not yet; strings are skipped
        hints = dict(vars(cls).get("__annotations__", {}))
    return hints if kind is None else {name: hints[name] for name in fields_of(cls, kind) if name in hints}


def _may_keep(cls: Any) -> bool:
    if cls in _KEPT or kind_of(cls) or typing.is_typeddict(cls) or posing_as(cls) or is_unset(cls):
        return True
    if cls.__module__ != "collections.abc" and (inspect.isabstract(cls) or getattr(cls, "_is_protocol", False)):
        return True  # the effect returns an instance of another class
    if hasattr(cls, "__get_pydantic_core_schema__") and cls.__init__ is object.__init__:
        return True  # a marker for pydantic, such as EmailStr; the values have another type
    return any(issubclass(kept, cls) for kept in _KEPT)


def cannot_keep(cls: type) -> str:
    if hasattr(cls, "_sa_class_manager"):
        return f"{with_article(cls)} cannot be kept: a mapped row belongs to its session, return a data class"
    base = next((kept.__name__ for kept in _KEPT if issubclass(cls, kept)), None)
    return f"{with_article(cls)} cannot be kept" + (f": only {base} itself can" if base else "")


def with_article(cls: type) -> str:
    return f"{'an' if cls.__name__[:1].lower() in 'aeiou' else 'a'} {cls.__name__}"


def posing_as(cls: type) -> type | None:
    """The type that a class replaces: asyncpg has its own UUID, and freezegun's datetime claims real instances."""
    if issubclass(cls, UUID):
        return UUID
    return next((type(real) for real in _REAL if issubclass(cls, type(real)) and isinstance(real, cls)), None)


def kind_of(cls: Any) -> str | None:
    """Which kind of data class it is, or None."""
    if issubclass(cls, enum.Enum):
        return "enum"
    if hasattr(cls, "_sa_class_manager"):
        return None  # a mapped row belongs to its session, even if it is a dataclass too
    if issubclass(cls, tuple) and hasattr(cls, "_field_defaults"):
        return "namedtuple"
    if issubclass(cls, (BaseException, *_KEPT)):
        return None  # a dataclass that is also a dict holds more than its fields
    if dataclasses.is_dataclass(cls):
        return "dataclass"
    if hasattr(cls, "__pydantic_fields_set__") and hasattr(cls, "model_fields"):
        return "pydantic"
    return "msgspec" if hasattr(cls, "__struct_fields__") else None


def fields_of(cls: Any, kind: str) -> dict[str, bool]:
    """The names of its fields, and whether each must be given."""
    if kind == "dataclass":
        none = dataclasses.MISSING
        return {
            field.name: field.init and field.default is none and field.default_factory is none
            for field in dataclasses.fields(cls)
        }
    if kind == "namedtuple":
        return {name: name not in cls._field_defaults for name in cls._fields}
    if kind == "pydantic":
        return {name: field.is_required() for name, field in cls.model_fields.items()}
    names, defaults = cls.__struct_fields__, cls.__struct_defaults__
    bare = len(names) - len(defaults)  # defaults belong to the last fields; some of them are "no default"
    return {name: at < bare or repr(defaults[at - bare]) == "NODEFAULT" for at, name in enumerate(names)}


def build(cls: Any, kind: str, fields: dict[str, Any], more: dict[str, Any]) -> Any:
    """An instance with these fields, made without `__init__`; `more` is what it had besides its fields."""
    if kind == "pydantic":
        return _build_pydantic(cls, fields, more)
    if kind == "namedtuple":
        fields = {**cls._field_defaults, **fields}
        made = tuple.__new__(cls, [fields[name] for name in cls._fields])
    elif kind == "msgspec":
        made = cls(**fields)
        for name, value in fields.items():
            getattr(cls, name).__set__(made, value)  # the slot itself: also where frozen
    else:
        made = object.__new__(cls)
        for field in dataclasses.fields(cls):
            if field.name in fields:
                object.__setattr__(made, field.name, fields[field.name])
            elif field.default is not dataclasses.MISSING:
                object.__setattr__(made, field.name, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                object.__setattr__(made, field.name, field.default_factory())
            elif field.name not in more.get("lacks", ()) and field.name not in more.get("attrs", ()):
                # __post_init__ would set this field, and is not run. Without the field even repr() fails.
                raise Unreadable(f"{ref_of(cls)} now sets {field.name!r}, which was not stored")
    if more.get("extra"):
        raise Unreadable(f"{ref_of(cls)} keeps no extra fields any more")
    for name, value in more.get("attrs", {}).items():
        if name in slots_of(cls):
            object.__setattr__(made, name, value)
        else:
            made.__dict__[name] = value  # not setattr: a property may have this name by now
    return made


def _build_pydantic(cls: Any, fields: dict[str, Any], more: dict[str, Any]) -> Any:
    """As pydantic copies a model; `model_construct` would take a field's value from the alias of another field."""
    keeps_extra = cls.model_config.get("extra") == "allow"
    if more.get("attrs") or (more.get("extra") and not keeps_extra):
        raise Unreadable(f"{ref_of(cls)} keeps no extra fields any more")
    for name, field in cls.model_fields.items():
        # The value was stored as an extra, unchecked: replacing it by the default of the new field would be wrong.
        if name not in fields and any(one in more.get("extra", ()) for one in _names_of(name, field)):
            raise Unreadable(f"{ref_of(cls)} now has a field {name!r}, which was stored as an extra one")
    private = {name: attribute.get_default() for name, attribute in cls.__private_attributes__.items()}
    private = {name: one for name, one in private.items() if type(one).__name__ != "PydanticUndefinedType"}
    state = {
        "__dict__": {
            name: fields[name] if name in fields else field.get_default(call_default_factory=True)
            for name, field in cls.model_fields.items()
        },
        "__pydantic_fields_set__": set(more.get("set", fields)),
        "__pydantic_extra__": more.get("extra", {}) if keeps_extra else None,
        "__pydantic_private__": {**private, **more.get("private", {})} if cls.__private_attributes__ else None,
    }
    made = object.__new__(cls)
    for name, part in state.items():
        object.__setattr__(made, name, part)
    return made


def _names_of(name: str, field: Any) -> list[str]:
    """The keys pydantic reads a field from: its name, its alias, or one of several; not a path into another field."""
    given = getattr(
        field.validation_alias, "choices", [field.validation_alias]
    )  # an `alias` is a validation alias, too
    return [one for one in (name, *given) if isinstance(one, str)]


def is_unset(cls: type) -> bool:
    return cls.__name__ == "UnsetType" and cls.__module__ == "msgspec"


def home_of(module: str, own: Mapping[str, Any] | None = None) -> str:
    """The name by which other modules import this module, also where it is the running program.

    Started as a file or with -m its name is `__main__`, in a spawned child `__mp_main__`: under three names a function
    would have three sets of keys. A prompt or a notebook has no other name. `own` may be the module's `__dict__`.
    """
    if module not in _PROGRAM:
        return module
    if own is None or own.get("__name__") != module:  # the `__dict__` of a wrapper, which has the name of what it wraps
        own = getattr(sys.modules.get(module), "__dict__", {})
    name, file = getattr(own.get("__spec__"), "name", module), own.get("__file__")
    if name not in _PROGRAM:
        return str(name)
    return PurePath(file).stem if isinstance(file, str) else module


# Public classes whose `__module__` is `samekey`, and the module that defines them. Records name the defining module, as
# every version has written it.
DEFINED_IN: dict[type, str] = {}


def ref_of(cls: type) -> str:
    """The name of a class in a record: where a replay finds it."""
    module = DEFINED_IN.get(cls, cls.__module__)
    if module in _PROGRAM and _found_in(sys.modules.get(module), cls.__qualname__) is cls:
        home = home_of(module)
        module = module if home in sys.modules else home  # imported as well: that module has a copy of this class
    return f"{module}:{cls.__qualname__}"


def find_class(ref: str, given: dict[str, Any]) -> Any:
    """The class of this name: one of the given ones, or one in a loaded module; else None.

    Reads `__dict__`, never getattr: a module's own __getattr__ may import.
    """
    if ref in given:
        return given[ref]
    module, _, qualname = ref.partition(":")
    found = _found_in(sys.modules.get(module), qualname)
    if module not in sys.modules and module == home_of("__main__"):
        found = _found_in(sys.modules.get("__main__"), qualname)
    return found if isinstance(found, type) else None


def _found_in(found: Any, qualname: str) -> Any:
    for name in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found
