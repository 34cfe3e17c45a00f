"""An envelope keeps a result, or a refusal, so that a replay gives back the same type and value.

    version byte | codec byte | payload
                   J            JSON as it is: None, bool, int, finite float, str, list, dict with str keys
                   T            tagged JSON: everything else we keep
                   B            the bytes of a bytes result
                   R            a refusal: class, text, arguments, facts; its values are tagged as in T
                   E            one of these, sealed: see sealing.py
                   (a codec we do not know is refused, never guessed)

In tagged JSON an array is a list and an object is *always* a tag, with exactly one member:
`{"tuple": [1, 2]}`. A user's dict is itself tagged, `{"dict": {...}}`, so no user data can imitate a
tag. A data class is kept as its name and fields and rebuilt without its `__init__` or validators: a
replay has no side effects and changes nothing. Only msgspec's `__post_init__` cannot be avoided; the
stored fields are put back after it.

There is no pickle, and no record can cause an import: a class must be given by the caller
(`types`) or be in a module that is loaded, and be a data class. Messages name paths and types,
never values: results are often personal data.

`encode` raises only NotStorable: the effect has happened, and any other error would look like a
doubt. `decode` raises only Unreadable. That is why both catch broadly, once, in `_Walk.run`.
"""

from __future__ import annotations

import enum
import json
import math
import sys
from base64 import b64decode, b64encode
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import partial
from types import NoneType
from typing import Any, NoReturn
from uuid import UUID
from zoneinfo import ZoneInfo

from samekey.core._json import fast_encoder
from samekey.core.canonical import DIGITS_MAX, long_digits
from samekey.core.extra_attributes import extra_attributes
from samekey.core.sealing import without_keys
from samekey.core.shapes import (
    NotStorable,
    Unreadable,
    build,
    cannot_keep,
    fields_of,
    find_class,
    is_unset,
    kind_of,
    posing_as,
    ref_of,
    with_article,
)

VERSION = 1
DEPTH_MAX = 100  # containers within containers: far more than answers need, a tenth of Python's default stack
INT_BITS_MAX = 2000  # larger ones as hex: a process may forbid decimals of more than 640 digits
LABEL_MAX = 40  # characters of a dict key shown in a path
LABELS_MAX = 16  # of them; a longer path loses its middle


def encode(result: Any, *, max_bytes: int, types: Collection[type] = ()) -> bytes:
    """The envelope of a result, at most `max_bytes` long; raises NotStorable and nothing else.

    A data class is kept by its name, so it must be where `decode` with the same `types` would find it.

    >>> encode({"paid": True}, max_bytes=100)
    b'\\x01J{"paid":true}'
    """
    envelope = None
    if type(result) is bytes:
        envelope = b"%cB%b" % (VERSION, result)
    elif _is_plain(result, max_bytes):
        try:
            text = _write(result)
            if len(text) <= DIGITS_MAX or not long_digits(text):
                envelope = _PLAIN_MARK + text.encode()
        except (ValueError, RecursionError):  # NaN, an enormous int, a lone surrogate: only the tagged form is exact
            pass
    if envelope is None:
        try:
            envelope = seal("T", Writer(max_bytes, types).run(result))
        except (ValueError, RecursionError) as why:  # a class name that is not text, a stack that is nearly full
            raise NotStorable(f"result: {type(why).__name__} while writing it") from why
    if len(envelope) > max_bytes:
        raise NotStorable(f"result: {len(envelope)} bytes; at most {max_bytes} are kept")
    return envelope


def decode(envelope: bytes, *, types: Collection[type] = ()) -> Any:
    """The result in an envelope, a fresh object each time; raises Unreadable and nothing else.

    `types` are data classes to use for the names in the envelope, before those of loaded modules.
    """
    mark = envelope[:2] if type(envelope) is bytes else b""
    if mark == _PLAIN_MARK:  # nearly every replay of a function,
        return payload_of(envelope)
    if mark == _BYTES_MARK:  # and of a request over HTTP
        return envelope[2:]
    match codec_of(envelope):
        case "T":
            return Reader(types).run(payload_of(envelope))
        case "R":
            raise Unreadable("this is a refusal, not a result")
        case "E":
            raise without_keys(envelope)
        case codec:
            raise Unreadable(f"codec {codec!r} is not known here: written by a newer samekey")


# ---- the outside: version, codec, JSON ----


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)  # NaN and Infinity are not JSON; ours are tagged


_write = fast_encoder(
    json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"))
)


def _whole(text: str) -> int:
    if len(text.lstrip("-")) > DIGITS_MAX:
        raise ValueError("more digits than samekey ever writes")
    return int(Decimal(text))  # whatever limit this process has for int()


_read = json.JSONDecoder(parse_constant=_no_constant).raw_decode
_read_long = json.JSONDecoder(parse_constant=_no_constant, parse_int=_whole).raw_decode
_PLAIN_MARK, _BYTES_MARK = b"%cJ" % VERSION, b"%cB" % VERSION
_SCALARS = frozenset({NoneType, bool, int, float, str})
_PLAIN = _SCALARS | {list, dict}
_STR = frozenset({str})
_NESTED = frozenset({dict, list})


def seal(codec: str, payload: Any) -> bytes:
    return f"{chr(VERSION)}{codec}{_write(payload)}".encode()


def codec_of(envelope: bytes) -> str:
    if type(envelope) is not bytes:
        raise Unreadable(f"an envelope is bytes, not {type(envelope).__name__}")
    if len(envelope) < 2:
        raise Unreadable(f"{len(envelope)} bytes are all that is left of the envelope")
    if envelope[0] != VERSION:
        raise Unreadable(f"envelope version {envelope[0]}; this samekey reads version {VERSION}")
    return chr(envelope[1])


def payload_of(envelope: bytes) -> Any:
    try:
        text = envelope.decode()
        try:
            value, end = _read(text, 2)
        except ValueError:
            value, end = _read_long(text, 2)
    except (ValueError, RecursionError) as why:
        # Not `from why`: a JSONDecodeError carries the whole document.
        raise Unreadable(f"damaged JSON in the envelope ({type(why).__name__})") from None
    if end != len(text):
        raise Unreadable("something follows the JSON in the envelope")
    # Few brackets cannot be deep: the common small answer is not walked.
    if text[1] == "J" and text.count("[") + text.count("{") > DEPTH_MAX and _is_deep(value):
        raise Unreadable(f"nested deeper than {DEPTH_MAX}")
    return value


def _is_deep(value: Any) -> bool:
    """Whether a value read from JSON is nested deeper than the depth. Its types need no check: JSON has no others."""
    level = [value]
    for _ in range(DEPTH_MAX):
        deeper: list[Any] = []
        for box in level:
            inside = box.values() if type(box) is dict else box
            if not _NESTED.isdisjoint(map(type, inside)):
                deeper += [one for one in inside if type(one) is dict or type(one) is list]
        if not deeper:
            return False
        level = deeper
    return True


def _is_plain(result: Any, boxes_max: int) -> bool:
    """Whether it has only exact JSON types, within the depth. Checks whole containers: this is the hot path."""
    kind = type(result)
    if kind is dict and _SCALARS.issuperset(map(type, result.values())):
        return _STR.issuperset(map(type, result))  # one flat object: most answers
    if kind is not dict and kind is not list:
        return kind in _SCALARS
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
    """Keeps the current `path`. Nothing is popped when an error leaves, so the path is the place of the error."""

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


class Writer(_Walk):
    stop = NotStorable

    def __init__(self, max_bytes: int, types: Iterable[type] = ()) -> None:
        super().__init__()
        self.room = self.max_bytes = max_bytes
        self.types = {ref_of(cls): cls for cls in types}
        self.refs: dict[type, str] = {}

    def node(self, value: Any) -> Any:
        cls = type(value)
        self.room -= len(value) if cls is str else 1  # each node is a byte at least; shared parts cannot explode
        if self.room < 0:
            raise NotStorable(f"the result is larger than the {self.max_bytes} bytes that are kept")
        if cls in _SCALARS or cls in _LEAVES:
            return tagged(value)
        if cls is list:
            return self.each(enumerate(value))
        if cls is dict:
            return self.mapping(value)
        if cls is tuple or cls is set or cls is frozenset:
            return {cls.__name__: self.each(enumerate(value))}
        if (kind := kind_of(cls)) is None:
            return self.odd(value, cls)
        if kind != "enum":
            return {"data": [self.ref(cls), *self.data(value, cls, kind)]}
        if isinstance(value, enum.Flag):
            return {"flag": [self.ref(cls), tagged(value.value), _names_in(cls, value.value)]}
        if cls.__members__.get(value.name) is not value:
            raise NotStorable(f"{with_article(cls)} that is not among its members cannot be kept")
        return {"enum": [self.ref(cls), tagged(value.name)]}

    def ref(self, cls: type) -> str:
        """The name by which a replay finds this class; a class made inside a function has none."""
        if cls not in self.refs:
            if find_class(ref_of(cls), self.types) is not cls:
                raise NotStorable(f"{with_article(cls)} cannot be kept: a replay would not find it at {ref_of(cls)}")
            self.refs[cls] = ref_of(cls)
        return self.refs[cls]

    def mapping(self, value: dict[Any, Any]) -> Any:
        nodes = self.each(value.items())
        if all(type(key) is str and _is_bare(key) for key in value):
            return {"dict": dict(zip(value, nodes, strict=True))}
        return {"map": list(zip(self.each((key, key) for key in value), nodes, strict=True))}

    def data(self, value: Any, cls: Any, kind: str) -> Iterator[Any]:
        known, held = fields_of(cls, kind), getattr(value, "__dict__", {})
        if kind == "namedtuple":
            held = dict(
                zip(known, tuple.__iter__(value), strict=True)
            )  # not by attribute: a property may have the name of a field
        fields = {name: held[name] for name in known if name in held}  # by attribute, a deprecated field would warn
        fields |= {name: getattr(value, name) for name in known if name not in held and hasattr(value, name)}
        if missing := [name for name, required in known.items() if required and name not in fields]:
            raise NotStorable(f"{with_article(cls)} without {missing[0]!r} cannot be kept")
        yield dict(zip(fields, self.each(fields.items()), strict=True))
        more: dict[str, Any]
        if kind == "pydantic":
            more = {"set": sorted(value.__pydantic_fields_set__), "extra": value.__pydantic_extra__}
            more["private"] = value.__pydantic_private__
        else:  # attributes that __post_init__ or a user set in addition to the fields, but not computed ones
            more = {"attrs": extra_attributes(value, known), "lacks": [name for name in known if name not in fields]}
        # An empty "set" is written, too: it means that no field was set, and exclude_unset leaves all of them out.
        yield {what: self.node(one) for what, one in more.items() if one or what == "set"}

    def odd(self, value: Any, cls: type) -> Any:
        if base := posing_as(cls):
            return tagged(value, base)
        if is_unset(cls):
            return {"unset": None}
        raise NotStorable(cannot_keep(cls))


class Reader(_Walk):
    stop = Unreadable

    def __init__(self, types: Iterable[type] = ()) -> None:
        super().__init__()
        self.types = {ref_of(cls): cls for cls in types}

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
                items = self.each(zip(keys, (one for _, one in body), strict=True))
                return _all_of(keys, dict(zip(keys, items, strict=True)))
            case "tuple" | "set" | "frozenset":
                return _all_of(items := self.each(enumerate(body)), _BOXES[tag](items))
            case "data":
                return self.data(*body)
            case "enum":
                cls = self.find_enum(body[0])
                if (member := cls.__members__.get(self.node(body[1]))) is None:
                    raise Unreadable(f"{body[0]} has no member {body[1]!r} any more")
                return member
            case "flag":
                cls = self.find_enum(body[0])
                if (member := cls(bits := self.node(body[1]))).value != bits:  # some Pythons drop unknown bits silently
                    raise Unreadable(f"{body[0]} has not all of the members any more")
                if body[2:] and not set(body[2]).issubset(_names_in(cls, bits)):  # no names: by an earlier samekey
                    raise Unreadable(f"{body[0]} has other members at these bits by now")
                return member
            case "unset":
                return sys.modules["msgspec"].UNSET
        if tag not in _READ:
            raise Unreadable(f"tag {tag[:LABEL_MAX]!r} is not known here: written by a newer samekey?")
        return _READ[tag](body)

    def find(self, ref: str) -> tuple[Any, str]:
        if (cls := find_class(ref, self.types)) is None:
            raise Unreadable(f"the class {ref} is gone, or not loaded here")
        if (kind := kind_of(cls)) is None:
            raise Unreadable(f"{ref} is not a data class any more")
        return cls, kind

    def find_enum(self, ref: str) -> Any:
        cls, kind = self.find(ref)
        if kind != "enum":  # calling it would run its __init__
            raise Unreadable(f"{ref} is not an Enum any more")
        return cls

    def data(self, ref: str, stored: dict[str, Any], more: dict[str, Any]) -> Any:
        cls, kind = self.find(ref)
        known = fields_of(cls, kind)
        if gone := [name for name in stored if name not in known]:
            raise Unreadable(f"{ref} has no field {gone[0]!r} any more")
        if new := [name for name, required in known.items() if required and name not in stored]:
            raise Unreadable(f"{ref} now requires {new[0]!r}, which was not stored")
        fields = dict(zip(stored, self.each(stored.items()), strict=True))
        return build(cls, kind, fields, {what: self.node(one) for what, one in more.items()})


def _names_in(cls: Any, bits: int) -> list[str]:
    """The members that make up these bits of a flag: `auto()` numbers them anew when a member is inserted."""
    return [name for name, one in cls.__members__.items() if one.value and one.value & bits == one.value]


def _all_of(items: list[Any], box: Any) -> Any:
    if len(box) != len(items):
        raise Unreadable("two of its members are one by now")
    return box


# ---- values that contain no others: one row each, how it is written and how it is read ----


def _moment(value: Any) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), _zone(value, value.tzinfo), value.fold]


def _zone(value: datetime | time, zone: tzinfo | None) -> Any:
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo) and zone.key is not None:
        return zone.key
    # An offset that needs no date is fixed: datetime.timezone, and the zones of pydantic and the drivers. But some
    # zones with summer time give the winter offset when asked without a date, as those in Python's documentation do.
    if (offset := zone.utcoffset(None)) is None or offset != value.utcoffset():
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


def tagged(value: Any, cls: type | None = None) -> Any:
    if _is_bare(value):
        return value
    tag, write, _ = _LEAVES[cls or type(value)]
    return {tag: write(value)}


def _is_bare(value: Any) -> bool:
    """Whether JSON represents it exactly."""
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
