"""An envelope keeps a result, or a refusal, so that a replay gives back the same type and value.

    version byte | codec byte | payload
                   J            JSON as it is: None, bool, int, finite float, str, list, dict with str keys
                   T            tagged JSON: everything else we keep
                   B            the bytes of a bytes result
                   R            a refusal: class, text, arguments, facts; its values are tagged as in T
                   (E is left for encryption; a codec we do not know is refused, never guessed)

In tagged JSON an array is a list and an object is *always* a tag, with exactly one member:
`{"tuple": [1, 2]}`. A user's dict is itself tagged, `{"dict": {...}}`, so no user data can pose as a
tag. A data class is kept as its name and fields and rebuilt without its `__init__` or validators: a
replay has no side effects and changes nothing. Only msgspec's `__post_init__` cannot be avoided; the
stored fields are put back after it.

There is no pickle, and no record can make us import anything: a class must be given by the caller
(`types`) or stand in a module that is loaded, and be a data class. Messages name paths and types,
never values: results are often personal data.

`encode` raises nothing but NotStorable: the effect has happened, and a stray error would look like
doubt. `decode` raises nothing but Unreadable. That is why both catch broadly, once, in `_Walk.run`.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import json
import math
import sys
import typing
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import partial
from types import NoneType, UnionType
from typing import Any, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

from samekey.core.errors import NotDone, Refused

VERSION = 1
DEPTH_MAX = 100  # containers within containers: far more than answers need, a tenth of Python's default stack
INT_BITS_MAX = 2000  # larger ones as hex: Python may be told to read no decimals of more than 640 digits
LABEL_MAX = 40  # characters of a dict key shown in a path
LABELS_MAX = 16  # of them; a longer path loses its middle


class NotStorable(Exception):
    """The result cannot be kept; the message names the path and the type."""


class Unreadable(Exception):
    """The envelope is damaged or newer, or a class it names is gone or has changed."""


def encode(result: Any, *, max_bytes: int) -> bytes:
    """The envelope of a result, at most `max_bytes` long; raises NotStorable and nothing else.

    >>> encode({"paid": True}, max_bytes=100)
    b'\\x01J{"paid":true}'
    """
    envelope = b"%cB%b" % (VERSION, result) if type(result) is bytes else _plain(result, max_bytes)
    if envelope is None:
        try:
            envelope = _seal("T", _Writer(max_bytes).run(result))
        except (ValueError, RecursionError) as why:  # a class name that is not text, a stack that is nearly full
            raise NotStorable(f"result: {type(why).__name__} while writing it") from why
    if len(envelope) > max_bytes:
        raise NotStorable(f"result: {len(envelope)} bytes; at most {max_bytes} are kept")
    return envelope


def decode(envelope: bytes, *, types: Collection[type] = ()) -> Any:
    """The result in an envelope, a fresh object each time; raises Unreadable and nothing else.

    `types` are data classes to use for the names in the envelope, before those of loaded modules.
    """
    match _codec(envelope):
        case "J":
            return _payload(envelope)
        case "T":
            return _Reader(types).run(_payload(envelope))
        case "B":
            return envelope[2:]
        case "R":
            raise Unreadable("this is a refusal, not a result")
        case codec:
            raise Unreadable(f"codec {codec!r} is not known here: encrypted, or written by a newer samekey")


def encode_refusal(error: BaseException, *, max_bytes: int) -> bytes:
    """The envelope of a refusal: class, text, arguments and public attributes.

    Arguments and attributes that cannot be kept or no longer fit are left out. Class and text always
    stay; only a text that fills `max_bytes` by itself is cut.
    """
    text, facts = _text(error), dict[str, Any]()
    refusal = {"class": _ref(type(error)), "text": _tagged(text), "args": None, "facts": facts}
    room = max_bytes - len(_seal("R", refusal))
    if room < 0:
        refusal["text"] = _tagged(text[: max(0, len(text) + room)])  # a character is a byte at least
        room = max_bytes - len(_seal("R", refusal))
    if room < 0:
        raise NotStorable(f"{refusal['class']}: {max_bytes} bytes have no room for its name")
    wanted = [(facts, name, fact) for name, fact in vars(error).items() if _is_public(name)]
    for kept, name, value in [(refusal, "args", list(error.args)), *wanted]:
        try:
            node = _Writer(max_bytes).run(value)
            size = len(_seal("", {name: node}))
        except (NotStorable, ValueError, RecursionError):
            continue
        if size <= room:
            kept[name] = node
            room -= size
    return _seal("R", refusal)


def decode_refusal(envelope: bytes, *, allowed: tuple[type[BaseException], ...]) -> BaseException:
    """The refusal in an envelope, to be raised: same class, arguments and attributes.

    The class must be loaded and be, or derive from, one in `allowed`; its `__init__` is not run.
    Else it is a Refused whose reason says which class it was. Raises only Unreadable.
    """
    if _codec(envelope) != "R":
        raise Unreadable("this is a result, not a refusal")
    match _payload(envelope):
        case {"class": str(ref), "text": node, "args": list() | None as args, "facts": dict(facts)}:
            text = _Reader().run(node)
        case _:
            raise Unreadable("a damaged refusal")
    if type(text) is not str:
        raise Unreadable("a refusal whose text is not text")
    cls = _lookup(ref, {_ref(one): one for one in allowed})
    if cls is None or not issubclass(cls, allowed):
        return Refused(f"{ref}, which is not loaded here or not allowed: {text}")
    try:
        return _rebuild(cls, text, args, facts)
    except Exception as why:  # a class's own __new__ may raise anything; the refusal must not be lost with it
        return Refused(f"{ref}, which cannot be rebuilt ({type(why).__name__}): {text}")


def storable_type(annotation: Any) -> str | None:
    """Why values of this return annotation cannot be kept, in one sentence; None if they can, or may.

    >>> storable_type(dict[str, Iterator[int]])
    'result: an Iterator cannot be kept'
    """
    return next((f"{where}: {_cannot(cls)}" for where, cls in _reachable(annotation) if not _may_keep(cls)), None)


def data_types(annotation: Any) -> tuple[type, ...]:
    """Every data class reachable from a return annotation, for `decode(types=...)`."""
    return tuple(dict.fromkeys(cls for _, cls in _reachable(annotation) if _kind(cls)))


# ---- the outside: version, codec, JSON ----


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and Infinity are not JSON; ours are tagged


_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")).encode
_read = json.JSONDecoder(parse_constant=_no_constant).raw_decode
_SCALARS = frozenset({NoneType, bool, int, float, str})
_PLAIN = _SCALARS | {list, dict}
_STR = frozenset({str})


def _seal(codec: str, payload: Any) -> bytes:
    return f"{chr(VERSION)}{codec}{_write(payload)}".encode()


def _codec(envelope: bytes) -> str:
    if type(envelope) is not bytes:
        raise Unreadable(f"an envelope is bytes, not {type(envelope).__name__}")
    if len(envelope) < 2:
        raise Unreadable(f"{len(envelope)} bytes are all that is left of the envelope")
    if envelope[0] != VERSION:
        raise Unreadable(f"envelope version {envelope[0]}; this samekey reads version {VERSION}")
    return chr(envelope[1])


def _payload(envelope: bytes) -> Any:
    try:
        text = envelope.decode()
        value, end = _read(text, 2)
    except (ValueError, RecursionError) as why:
        # Not `from why`: a JSONDecodeError carries the whole document.
        raise Unreadable(f"damaged JSON in the envelope ({type(why).__name__})") from None
    if end != len(text):
        raise Unreadable("something follows the JSON in the envelope")
    # Without many brackets nothing is deep: the common small answer is not walked.
    if text[1] == "J" and text.count("[") + text.count("{") > DEPTH_MAX and not _is_plain(value, len(text)):
        raise Unreadable(f"nested deeper than {DEPTH_MAX}")
    return value


def _plain(result: Any, max_bytes: int) -> bytes | None:
    """The plain form, or None where only the tagged form is exact."""
    if not _is_plain(result, max_bytes):
        return None
    try:
        return _seal("J", result)
    except (ValueError, RecursionError):  # NaN, an enormous int, a lone surrogate
        return None


def _is_plain(result: Any, boxes_max: int) -> bool:
    """Made only of exact JSON types, within the depth. Looks at whole containers: this is the hot path."""
    if type(result) is not dict and type(result) is not list:
        return type(result) in _SCALARS
    level: list[Any] = [result]
    for _ in range(DEPTH_MAX):
        deeper: list[Any] = []
        for box in level:
            inside = box
            if type(box) is dict:
                if not _STR.issuperset(map(type, box)):
                    return False
                inside = box.values()
            kinds = set(map(type, inside))
            if kinds <= _SCALARS:
                continue
            if not kinds <= _PLAIN:
                return False
            deeper += [value for value in inside if type(value) is dict or type(value) is list]
        if not deeper:
            return True
        boxes_max -= len(deeper)  # a list holding one list twice, which holds one twice, ...: 2**30 at depth 30
        if boxes_max < 0:
            return False
        level = deeper
    return False


# ---- the walk through a value, in either direction ----


class _Walk:
    """`path` is the depth and, when something stops us, the place: nothing is popped on the way out."""

    stop: type[Exception]

    def __init__(self) -> None:
        self.path: list[object] = []

    def run(self, value: Any) -> Any:
        try:
            return self.node(value)
        except self.stop as why:
            raise self.stop(f"{self.where()}: {why}") from None
        except RecursionError:
            raise self.stop("result: nested too deeply for the stack that is left") from None
        except Exception as why:  # damaged data, or a user's descriptor, hash or factory: anything can come
            raise self.stop(f"{self.where()}: {type(why).__name__} at this place") from why

    def node(self, value: Any) -> Any:
        raise NotImplementedError

    def each(self, items: Iterable[tuple[object, Any]]) -> list[Any]:
        if len(self.path) >= DEPTH_MAX:
            raise self.stop(f"nested deeper than {DEPTH_MAX}")
        nodes = []
        for name, value in items:
            self.path.append(name)
            nodes.append(self.node(value))
            self.path.pop()
        return nodes

    def where(self) -> str:
        names = [_label(name) for name in self.path]
        if len(names) > LABELS_MAX:
            names[LABELS_MAX // 2 : -LABELS_MAX // 2] = ["…"]
        return ".".join(("result", *names))


def _label(name: object) -> str:
    if type(name) is str:
        return name[:LABEL_MAX]
    return str(name) if type(name) is int and _is_bare(name) else type(name).__name__


class _Writer(_Walk):
    stop = NotStorable

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self.room = self.max_bytes = max_bytes

    def node(self, value: Any) -> Any:
        cls = type(value)
        self.room -= len(value) if cls is str else 1  # each node is a byte at least; shared parts cannot explode
        if self.room < 0:
            raise NotStorable(f"the result is larger than the {self.max_bytes} bytes that are kept")
        if cls in _SCALARS or cls in _LEAVES:
            return _tagged(value)
        if cls is list:
            return self.each(enumerate(value))
        if cls is dict:
            return self.mapping(value)
        if cls is tuple or cls is set or cls is frozenset:
            return {cls.__name__: self.each(enumerate(value))}
        if (kind := _kind(cls)) is None:
            return self.odd(value, cls)
        if kind != "enum":
            return {"data": [_ref(cls), *self.data(value, cls, kind)]}
        if isinstance(value, enum.Flag):
            return {"flag": [_ref(cls), _tagged(value.value)]}
        if cls.__members__.get(value.name) is not value:
            raise NotStorable(f"{_a(cls)} that is not among its members cannot be kept")
        return {"enum": [_ref(cls), _tagged(value.name)]}

    def mapping(self, value: dict[Any, Any]) -> Any:
        nodes = self.each(value.items())
        if all(type(key) is str and _is_bare(key) for key in value):
            return {"dict": dict(zip(value, nodes, strict=True))}
        return {"map": list(zip(self.each((key, key) for key in value), nodes, strict=True))}

    def data(self, value: Any, cls: Any, kind: str) -> Iterator[Any]:
        known, held = _fields(cls, kind), getattr(value, "__dict__", {})
        fields = {name: held[name] for name in known if name in held}  # by attribute, a deprecated field would warn
        fields |= {name: getattr(value, name) for name in known if name not in held and hasattr(value, name)}
        if missing := [name for name, required in known.items() if required and name not in fields]:
            raise NotStorable(f"{_a(cls)} without {missing[0]!r} cannot be kept")
        yield dict(zip(fields, self.each(fields.items()), strict=True))
        beside: dict[str, Any]
        if kind == "pydantic":
            beside = {"set": sorted(value.__pydantic_fields_set__), "extra": value.__pydantic_extra__}
            beside["private"] = value.__pydantic_private__
        else:  # what __post_init__ or a user set beside the fields, but not what is computed anew
            beside = {"attrs": {name: held[name] for name in held if name not in known and not _is_cached(cls, name)}}
        yield {what: self.node(one) for what, one in beside.items() if one}

    def odd(self, value: Any, cls: type) -> Any:
        if base := _posing_as(cls):
            return _tagged(value, base)
        if _is_unset(cls):
            return {"unset": None}
        raise NotStorable(_cannot(cls))


class _Reader(_Walk):
    stop = Unreadable

    def __init__(self, types: Iterable[type] = ()) -> None:
        super().__init__()
        self.types = {_ref(cls): cls for cls in types}

    def node(self, value: Any) -> Any:
        if type(value) is list:
            return self.each(enumerate(value))
        if type(value) is not dict:
            return value
        [(tag, body)] = value.items()
        match tag:
            case "dict":
                return dict(zip(body, self.each(body.items()), strict=True))
            case "map":
                keys = self.each((where, key) for where, (key, _) in enumerate(body))
                return dict(zip(keys, self.each(zip(keys, (one for _, one in body), strict=True)), strict=True))
            case "tuple" | "set" | "frozenset":
                return _BOXES[tag](self.each(enumerate(body)))
            case "data":
                return self.data(*body)
            case "enum":
                cls, _ = self.find(body[0])
                if (member := cls.__members__.get(self.node(body[1]))) is None:
                    raise Unreadable(f"{body[0]} has no member {body[1]!r} any more")
                return member
            case "flag":
                cls, _ = self.find(body[0])
                if (member := cls(bits := self.node(body[1]))).value != bits:  # some Pythons drop unknown bits silently
                    raise Unreadable(f"{body[0]} has not all of the members any more")
                return member
            case "unset":
                return sys.modules["msgspec"].UNSET
        if tag not in _READ:
            raise Unreadable(f"tag {tag[:LABEL_MAX]!r} is not known here: written by a newer samekey?")
        return _READ[tag](body)

    def find(self, ref: str) -> tuple[Any, str]:
        if (cls := _lookup(ref, self.types)) is None:
            raise Unreadable(f"the class {ref} is gone, or not loaded here")
        if (kind := _kind(cls)) is None:
            raise Unreadable(f"{ref} is not a data class any more")
        return cls, kind

    def data(self, ref: str, stored: dict[str, Any], beside: dict[str, Any]) -> Any:
        cls, kind = self.find(ref)
        known = _fields(cls, kind)
        if gone := [name for name in stored if name not in known]:
            raise Unreadable(f"{ref} has no field {gone[0]!r} any more")
        if new := [name for name, required in known.items() if required and name not in stored]:
            raise Unreadable(f"{ref} now requires {new[0]!r}, which was not stored")
        fields = dict(zip(stored, self.each(stored.items()), strict=True))
        return _build(cls, kind, fields, {what: self.node(one) for what, one in beside.items()})


# ---- values that hold no others: one row each, how it is written and how it is read ----


def _moment(value: Any) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), _zone(value.tzinfo), value.fold]


def _zone(zone: tzinfo | None) -> Any:
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo) and zone.key is not None:
        return zone.key
    # An offset that needs no date is fixed: datetime.timezone, and pydantic's and the drivers' own zones.
    if (offset := zone.utcoffset(None)) is None:
        raise NotStorable(f"a time in a zone of type {type(zone).__name__} cannot be kept: use zoneinfo")
    named = zone.tzname(None)
    return [offset // timedelta(microseconds=1), None if named == timezone(offset).tzname(None) else named]


def _from_moment(cls: Any, body: list[Any]) -> Any:
    text, zone, fold = body
    if isinstance(zone, list):
        offset = timedelta(microseconds=zone[0])
        zone = timezone(offset) if zone[1] is None else timezone(offset, zone[1])
    elif zone is not None:
        zone = ZoneInfo(zone)
    return cls.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def _base64(value: bytes | bytearray) -> str:
    return b64encode(value).decode()


_SURROGATES = ("utf-8", "surrogatepass")
_LEAVES: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    int: ("int", lambda value: f"{value:x}", lambda body: int(body, 16)),
    float: ("float", repr, float),
    str: ("str", lambda text: text.encode(*_SURROGATES).hex(), lambda body: bytes.fromhex(body).decode(*_SURROGATES)),
    bytes: ("bytes", _base64, partial(b64decode, validate=True)),
    bytearray: ("bytearray", _base64, lambda body: bytearray(b64decode(body, validate=True))),
    Decimal: ("decimal", str, Decimal),
    datetime: ("datetime", _moment, partial(_from_moment, datetime)),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", _moment, partial(_from_moment, time)),
    timedelta: ("timedelta", lambda span: [span.days, span.seconds, span.microseconds], lambda body: timedelta(*body)),
    UUID: ("uuid", str, UUID),
}
_READ = {tag: read for tag, _, read in _LEAVES.values()}
_BOXES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset}
_KEPT = (NoneType, bool, *_LEAVES, list, dict, *_BOXES.values())
_REAL = (datetime.min, date.min)


def _tagged(value: Any, cls: type | None = None) -> Any:
    if _is_bare(value):
        return value
    tag, write, _ = _LEAVES[cls or type(value)]
    return {tag: write(value)}


def _is_bare(value: Any) -> bool:
    """JSON says it exactly."""
    match value:
        case None | bool():
            return True
        case int():
            return value.bit_length() <= INT_BITS_MAX
        case float():
            return math.isfinite(value)
        case str():
            return value.isascii() or _is_utf8(value)
    return False


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return False
    return True


def _posing_as(cls: type) -> type | None:
    """The type in whose place a class stands: asyncpg's UUID, and freezegun's datetime, which claims the real ones."""
    if issubclass(cls, UUID):
        return UUID
    return next((type(real) for real in _REAL if issubclass(cls, type(real)) and isinstance(real, cls)), None)


# ---- data classes ----


def _kind(cls: Any) -> str | None:
    """Which kind of data class it is. pydantic and msgspec are known by their marks, never imported."""
    if issubclass(cls, enum.Enum):
        return "enum"
    if hasattr(cls, "_sa_class_manager"):
        return None  # a mapped row belongs to its session, whatever else it is
    if issubclass(cls, tuple) and hasattr(cls, "_field_defaults"):
        return "namedtuple"
    if issubclass(cls, (BaseException, *_KEPT)):
        return None  # a dataclass that is also a dict holds more than its fields
    if dataclasses.is_dataclass(cls):
        return "dataclass"
    if hasattr(cls, "__pydantic_fields_set__") and hasattr(cls, "model_fields"):
        return "pydantic"
    return "msgspec" if hasattr(cls, "__struct_fields__") else None


def _fields(cls: Any, kind: str) -> dict[str, bool]:
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
    bare = len(names) - len(defaults)  # defaults belong to the last fields; some of them say "no default"
    return {name: at < bare or repr(defaults[at - bare]) == "NODEFAULT" for at, name in enumerate(names)}


def _build(cls: Any, kind: str, fields: dict[str, Any], beside: dict[str, Any]) -> Any:
    if kind == "pydantic":
        return _build_pydantic(cls, fields, beside)
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
    if attrs := beside.get("attrs"):
        made.__dict__.update(attrs)
    return made


def _build_pydantic(cls: Any, fields: dict[str, Any], beside: dict[str, Any]) -> Any:
    """As pydantic's own copy does, since `model_construct` would take a field's value from another's alias."""
    keeps_extra = cls.model_config.get("extra") == "allow"
    if beside.get("extra") and not keeps_extra:
        raise Unreadable(f"{_ref(cls)} keeps no extra fields any more")
    private = {name: attribute.get_default() for name, attribute in cls.__private_attributes__.items()}
    private = {name: one for name, one in private.items() if type(one).__name__ != "PydanticUndefinedType"}
    state = {
        "__dict__": {
            name: fields[name] if name in fields else field.get_default(call_default_factory=True)
            for name, field in cls.model_fields.items()
        },
        "__pydantic_fields_set__": set(beside.get("set", fields)),
        "__pydantic_extra__": beside.get("extra", {}) if keeps_extra else None,
        "__pydantic_private__": {**private, **beside.get("private", {})} if cls.__private_attributes__ else None,
    }
    made = object.__new__(cls)
    for name, part in state.items():
        object.__setattr__(made, name, part)
    return made


def _is_unset(cls: type) -> bool:
    return cls.__name__ == "UnsetType" and cls.__module__ == "msgspec"


def _is_cached(cls: type, name: str) -> bool:
    return name.startswith("__") or type(getattr(cls, name, None)).__name__ == "cached_property"


def _ref(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _lookup(ref: str, given: dict[str, Any]) -> Any:
    """The class of this name: one of the given, or one that stands in a loaded module; else None.

    Reads `__dict__`, never getattr: a module's own __getattr__ may import.
    """
    if ref in given:
        return given[ref]
    module, _, qualname = ref.partition(":")
    found: Any = sys.modules.get(module)
    for name in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(name)
    return found if isinstance(found, type) else None


# ---- refusals ----


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a user's __str__ that needs what is gone
        return type(error).__name__


def _is_public(name: str) -> bool:
    return name.isidentifier() and not name.startswith("_")


def _rebuild(cls: Any, text: str, args: list[Any] | None, facts: dict[str, Any]) -> BaseException:
    read: dict[str, Any] = {}
    notes = []
    for name, node in (("args", [text] if args is None else args), *facts.items()):
        try:
            read[name] = _Reader().run(node)
        except Unreadable as why:  # a class of one of its values is gone; its own is not
            notes.append(f"{name} is not replayed: {why}")
    given = tuple(read.pop("args", (text,)))
    error: BaseException = cls.__new__(cls, *given)
    error.args = given
    if isinstance(error, (Refused, NotDone)):
        error.__dict__.update(reason=text, detail=None)  # handlers may count on them, kept or not
    error.__dict__.update({name: fact for name, fact in read.items() if _is_public(name)})
    if _text(error) != text:
        notes.append(f"first raised as: {text}")
    for note in notes:
        error.add_note(note)
    return error


# ---- annotations: what can be known before the effect ----


def _reachable(annotation: Any) -> Iterator[tuple[str, type]]:
    """Every class in an annotation, each once, with the path to it. What cannot be resolved is passed over."""
    todo, seen = [("result", annotation)], set()
    for where, hint in todo:  # grows as it is walked; `seen` ends recursive types
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
            except NameError:  # evaluated only now; its names may be there for type checkers alone
                continue
        else:  # Union, Required, ...; or a string, a TypeVar, anything, of which nothing is known
            todo += [(where, arg) for arg in args]


def _hints(cls: Any) -> dict[str, Any]:
    kind = _kind(cls)
    if kind == "pydantic":
        return {name: field.annotation for name, field in cls.model_fields.items()}
    if kind in (None, "enum") and not typing.is_typeddict(cls):
        return {}
    try:
        hints = typing.get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)
    except Exception:  # a name that cannot be resolved, here or yet; strings are passed over
        hints = dict(vars(cls).get("__annotations__", {}))
    return hints if kind is None else {name: hints[name] for name in _fields(cls, kind) if name in hints}


def _may_keep(cls: Any) -> bool:
    if cls in _KEPT or _kind(cls) or typing.is_typeddict(cls) or _posing_as(cls) or _is_unset(cls):
        return True
    if cls.__module__ != "collections.abc" and (inspect.isabstract(cls) or getattr(cls, "_is_protocol", False)):
        return True  # what comes back is another class
    if hasattr(cls, "__get_pydantic_core_schema__") and cls.__init__ is object.__init__:
        return True  # a mark for pydantic, such as EmailStr; the values are of another type
    return any(issubclass(kept, cls) for kept in _KEPT)


def _cannot(cls: type) -> str:
    if hasattr(cls, "_sa_class_manager"):
        return f"{_a(cls)} cannot be kept: a mapped row belongs to its session, return a data class"
    base = next((kept.__name__ for kept in _KEPT if issubclass(cls, kept)), None)
    return f"{_a(cls)} cannot be kept" + (f": only {base} itself can" if base else "")


def _a(cls: type) -> str:
    return f"{'an' if cls.__name__[:1].lower() in 'aeiou' else 'a'} {cls.__name__}"
