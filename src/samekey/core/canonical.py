"""The canonical form: bytes that are equal exactly when two values are the same intent.

Version 1. Once released it is frozen: another rule is another version.

    null true false 12 1.5 "text" [a,b] {"name":value}     as JSON: no spaces, names sorted, UTF-8, not escaped
    {"name":a,1:b,<uuid ...>:c}                            keys that are not str come last, sorted by their bytes
    <decimal -11e-1> <bytes 00ff> <set a,b> <uuid ...> <enum "Color" "RED"> <int 0xff...>
    <datetime 2024-01-31T09:00:00+01:00> <date ...> <time ...> <timedelta 1,0,500>

No JSON value starts with `<`, and no JSON key is without quotes, so a payload can never imitate a tag.
One intent: integral floats are integers, a tuple is a list, a model is the mapping of its fields by attribute
name (and of what else it holds under a name without `_`), a str or int Enum is its value, 1.10 and 1.1 are one
Decimal. Two intents: anything else, also the same instant in another offset - a false mismatch is loud, a false
match is silent. A value without an exact form is refused, and so is a subclass of one of these types that carries
more than its base, such as a Decimal with a currency. An Enum counts by the name of its class, not by its module:
two classes of one name are one.

Two ways lead to the same bytes. `_quick` looks at types only and gives plain payloads to the C encoder of
`json`. `_Walk` writes everything else value by value, and can name the path when it refuses.
What `_quick` cannot judge goes to `_Walk`; the tests compare the two.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import sys
from collections.abc import Callable, Collection, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from itertools import islice
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

from samekey.core._json import fast_encoder, quote
from samekey.core.errors import PayloadRefused
from samekey.core.extra_attributes import carries_more, extra_attributes

DEPTH_MAX: Final = 64  # containers inside each other; real payloads stay below 20, and a cycle shows here
SIZE_MAX: Final = 8 << 20  # canonical bytes; above it, fingerprint a digest of the large part instead
DIGITS_MAX: Final = 4300  # decimal digits of an integer: CPython's own default, beyond it the cost is quadratic
MEMBERS_COMPARED: Final = 1000  # of a payload that is too large, to name its largest part
STEP_MAX: Final = 128  # characters of a name shown in a path: a client chooses them

# --- What counts as a mapping -------------------------------------------------------------------------------------


def members_of(value: Any) -> dict[Any, Any] | None:
    """The entries of a dict, or a model's fields by attribute name; None if the value is neither."""
    cls = type(value)  # not isinstance(): a proxy or a mock claims the class it replaces
    if cls is dict:
        members: dict[Any, Any] = value
        return members
    if issubclass(cls, dict):
        # Not its own items(): that of a multi-dict shows one value of several, which would be a silent match.
        return dict(dict.items(value))
    if issubclass(cls, (type, Enum)):
        return None
    members, held, may_hold_more = {}, {}, True
    if hasattr(cls, "__struct_fields__"):  # msgspec
        names: Collection[str] = cls.__struct_fields__
        config = cls.__struct_config__
        may_hold_more = config.dict
        if config.tag_field is not None:  # it distinguishes the members of a union
            members = _apart({config.tag_field: config.tag}, names)
    elif hasattr(cls, "__pydantic_fields_set__") and hasattr(cls, "model_fields"):
        names, may_hold_more = cls.model_fields, False
        held = value.__dict__  # by attribute a deprecated field would warn
        if extra := getattr(value, "__pydantic_extra__", None):
            members = _apart(extra, names)
    elif dataclasses.is_dataclass(cls):
        names = _field_names(cls)
    else:
        return None
    for name in names:
        field = held[name] if name in held else getattr(value, name, _ABSENT)
        if field is not _ABSENT and type(field).__name__ != "UnsetType":  # never set: not there
            members[name] = field
    if may_hold_more and (extra := extra_attributes(value, names)):
        # A subclass that is no dataclass itself, or extra fields of pydantic's dataclasses.
        members.update((name, item) for name, item in extra.items() if not name.startswith("_"))
    return members


@lru_cache(maxsize=256)
def _field_names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


def _apart(entries: dict[str, Any], names: Collection[str]) -> dict[Any, Any]:
    """These entries under keys that no field has: an entry with the name of a field gets a bytes key."""
    return {name.encode(errors="surrogatepass") if name in names else name: item for name, item in entries.items()}


def loses_in_a_copy(value: Any) -> bool:
    """Whether this container is of a subclass and has attributes that a copy of its members would lose."""
    base = None if type(value) in _CONTAINERS else _base_of(type(value), _BASES)
    return base is not None and carries_more(value, base)


def elements_of(value: Any) -> Iterable[Any]:
    return list.__iter__(value) if issubclass(type(value), list) else tuple.__iter__(value)


# --- The quick way ------------------------------------------------------------------------------------------------

_ABSENT: Final = object()
_SMALL: Final = 10**18
_CONTAINERS: Final = frozenset({dict, list, tuple})
_BASES: Final = (dict, list, tuple, set, frozenset)
_FLAT: Final = frozenset({str, int, bool, type(None)})
_STR: Final = frozenset({str})
_MEMBERS_QUICK: Final = 1 << 20  # looked at before the walk, which counts bytes, takes over
EXPONENT_FROM: Final = 1e16  # such a float is an integer of up to 309 digits: counted while it is written

_encoder: Final = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
)
encode_json: Final = fast_encoder(_encoder)


def canonical(value: Any) -> bytes:
    """The value's canonical bytes; PayloadRefused, naming the path, if it has none."""
    kind = type(value)
    if kind is str:
        if value.isascii() and len(value) <= DIGITS_MAX:
            return quote(value).encode()
    elif kind is int:
        if -_SMALL < value < _SMALL:
            return b"%d" % value
    try:
        data = _quick(value, DEPTH_MAX) if kind in _CONTAINERS else None
        return _Walk(quick=True).run(value) if data is None else data
    except _TooLarge:
        raise larger_than_allowed(_largest(members_of(value))) from None


def canonical_slow(value: Any) -> bytes:
    try:
        return _Walk(quick=False).run(value)
    except _TooLarge:
        raise larger_than_allowed(_largest(members_of(value))) from None


def _quick(value: Any, depth_max: int) -> bytes | None:
    """The canonical bytes of a plain value; None if the walk must judge."""
    if type(value) is dict and _FLAT.issuperset(map(type, value.values())) and _STR.issuperset(map(type, value)):
        integral_floats: int | None = 0  # arguments are mostly flat: no need to walk them
    else:
        integral_floats = survey(value, depth_max)
    if integral_floats is None:
        return None
    try:
        text = encode_json(value)
        if integral_floats:
            text = _with_integers(text, integral_floats)
        if not text or (len(text) > DIGITS_MAX and long_digits(text)):
            return None
        data = text.encode()
    except ValueError:  # NaN, an infinity, a lone surrogate, or more digits than this process allows
        return None
    return data if len(data) <= SIZE_MAX else _too_large()


def survey(value: Any, depth_max: int) -> int | None:
    """How many integral floats a plain value has; None if it is not plain.

    Plain: exactly the types of JSON, names that are exactly str, not too deep, not too many members (a few lists
    that share each other can expand to a billion), no -0.0 and no float so large that it is written with an exponent.
    """
    integral_floats, members = 0, 0
    level: list[Any] = [(value,)]  # a member itself, so that it need not be a container
    for _ in range(depth_max + 1):
        below: list[Any] = []
        for container in level:
            members += len(container)
            if members > _MEMBERS_QUICK:
                return None
            if type(container) is dict:
                for key in container:
                    if type(key) is not str:
                        return None
                container = container.values()
            for item in container:
                kind = type(item)
                if kind is str or kind is int:
                    continue
                if kind in _CONTAINERS:
                    below.append(item)
                elif kind is float:
                    if item.is_integer():
                        if abs(item) >= EXPONENT_FROM or (not item and math.copysign(1, item) < 0):
                            return None
                        integral_floats += 1
                elif kind is not bool and item is not None:
                    return None
        if not below:
            return integral_floats
        level = below
    return None


def _with_integers(text: str, count: int) -> str:
    """The text with its `count` integral floats as integers; nothing if a str with `.0,` in it looks like one."""
    if text.count(".0,") + text.count(".0]") + text.count(".0}") != count:
        return ""
    return text.replace(".0,", ",").replace(".0]", "]").replace(".0}", "}")


def long_digits(text: str) -> bool:
    """Whether JSON holds an integer of more than DIGITS_MAX digits; or a text that looks like one."""
    # Only where a process raised or dropped the limit can the C encoder have written so many.
    allowed = sys.get_int_max_str_digits()
    return not 0 < allowed <= DIGITS_MAX and re.search(f"[0-9]{{{DIGITS_MAX + 1}}}", text) is not None


# --- The exact way ------------------------------------------------------------------------------------------------


class NoForm(Exception):
    """Why a value has no exact form, and steps below it. The walk adds the path, or finds a NoForm in a value."""


class _Walk:
    """Writes one value. `steps` is the current path, and its length the depth."""

    __slots__ = ("out", "quick", "size", "steps")

    def __init__(self, *, quick: bool) -> None:
        self.quick = quick
        self.out: list[bytes] = []
        self.size = 0
        self.steps: list[str | int] = []

    def run(self, value: Any) -> bytes:
        try:
            self.write(value)
        except NoForm as why:
            path = ".".join(map(_shown, [*self.steps, *why.args[1:]]))
            raise PayloadRefused(f"{path or 'the payload'}: {why.args[0]}", path=path) from None
        return b"".join(self.out)

    def write(self, value: Any) -> None:
        text, cls = _scalar(value), type(value)
        if text is not None:
            return self.put(text)
        if cls is NoForm:
            raise value
        if len(self.steps) >= DEPTH_MAX:
            raise NoForm(f"nested deeper than {DEPTH_MAX} levels, or inside itself")
        # One odd argument should not slow down the others; deeper than this, looking again would cost more.
        if self.quick and len(self.steps) == 1 and (data := _quick(value, DEPTH_MAX - 1)) is not None:
            return self.append(data)
        if cls not in _CONTAINERS and (base := _base_of(cls, _BASES)) is not None:
            _refuse_more(value, base)
        if issubclass(cls, (list, tuple)):
            self.sequence(elements_of(value))
        elif issubclass(cls, (set, frozenset)):
            self.set(value)
        elif (members := members_of(value)) is not None:
            self.mapping(members)
        else:
            raise NoForm(f"{cls.__qualname__} has no exact form; pass its data, or ignore this field")

    def sequence(self, items: Iterable[Any]) -> None:
        self.put("[")
        for at, item in enumerate(items):
            if at:
                self.put(",")
            self.steps.append(at)
            self.write(item)
            self.steps.pop()
        self.put("]")

    def set(self, items: Iterable[Any]) -> None:
        start, size, members = len(self.out), self.size, []
        self.steps.append("*")
        for item in items:
            self.write(item)
            members.append(b"".join(self.out[start:]))
            del self.out[start:]
        self.steps.pop()
        self.size = size  # they are counted once more, together
        self.append(b"<set " + b",".join(sorted(members)) + b">")

    def mapping(self, members: dict[Any, Any]) -> None:
        # By the name itself, as the C encoder sorts: a quoted name may sort elsewhere.
        named = [(str.__str__(key), _key(key), item) for key, item in members.items() if isinstance(key, str)]
        other = [(_key(key), _key(key), item) for key, item in members.items() if not isinstance(key, str)]
        entries = sorted(named, key=itemgetter(0)) + sorted(other, key=itemgetter(0))
        if len({text for _, text, _ in entries}) < len(entries):
            raise NoForm("two of its keys are the same in canonical form")
        self.put("{")
        for at, (step, text, item) in enumerate(entries):
            self.steps.append(step)
            self.put(f",{text}:" if at else f"{text}:")
            self.write(item)
            self.steps.pop()
        self.put("}")

    def put(self, text: str) -> None:
        try:
            self.append(text.encode())
        except UnicodeEncodeError:
            raise NoForm("text with a lone surrogate, which no encoding can carry") from None

    def append(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > SIZE_MAX:
            _too_large()
        self.out.append(data)


class _TooLarge(Exception):
    """More bytes than SIZE_MAX; the caller then looks for the largest part."""


def _too_large() -> Any:
    raise _TooLarge


def larger_than_allowed(path: str) -> PayloadRefused:
    limit = f"larger than {SIZE_MAX >> 20} MiB"
    if not path:
        return PayloadRefused(f"the payload is {limit}; pass a digest of its large part", path="")
    return PayloadRefused(f"{path}: the largest part of a payload {limit}; pass a digest of it", path=path)


def _largest(members: dict[Any, Any] | None) -> str:
    """The name of the largest of these members; the search costs at most a few times what the payload cost."""
    name, most, left = "", 0, 4 * SIZE_MAX
    for key, member in islice((members or {}).items(), MEMBERS_COMPARED):
        try:
            size = len(_quick(member, DEPTH_MAX - 1) or _Walk(quick=False).run(member))
        except _TooLarge:
            return _shown(key)
        except PayloadRefused:
            continue  # it has no form: the walk was stopped by the size before it came to this member
        left -= size
        if size > most:
            name, most = _shown(key), size
        if left < 0:
            break
    return name


def _shown(step: str | int) -> str:
    text = str(step).encode(errors="backslashreplace").decode()
    return text if len(text) <= STEP_MAX else f"{text[:STEP_MAX]}..."


def _key(key: Any) -> str:
    text = _scalar(key)
    if text is None:
        raise NoForm(f"a mapping key of type {type(key).__qualname__} has no exact form")
    return text


def _scalar(value: Any) -> str | None:
    """The text of anything that is not a container; None for containers, models and unknown types."""
    cls = type(value)
    write = _SCALARS.get(cls)
    if write is None and cls not in _CONTAINERS:
        # A subclass counts as its base: str and int Enums, numpy's float64, asyncpg's UUID.
        base = _base_of(cls, _SCALARS)
        if base is None:
            return None
        _refuse_more(value, base)
        write = _SCALARS[base]
    return None if write is None else write(value)


def _base_of(cls: type, bases: Iterable[type]) -> type | None:
    return next((base for base in bases if issubclass(cls, base)), None)


def _refuse_more(value: Any, base: type) -> None:
    if carries_more(value, base):
        name = type(value).__qualname__
        raise NoForm(f"a {name} carries more than its {base.__name__}; pass its parts, or ignore this field")


def _text(value: str) -> str:
    return encode_json(str.__str__(value))


def _int(value: int) -> str:
    if not -_HUGE < value < _HUGE:
        return f"<int {int.__int__(value):#x}>"  # linear, and free of any process's digit limit
    try:
        return int.__repr__(value)
    except ValueError:  # this process allows fewer digits than DIGITS_MAX; Decimal writes them all
        return str(Decimal(int.__int__(value)))


def _float(value: float) -> str:
    if not math.isfinite(value):
        raise NoForm(f"{float.__repr__(value)} is not a number two payloads could share")
    return _int(int(value)) if float.is_integer(value) else float.__repr__(value)


def _decimal(value: Decimal) -> str:
    # Not normalize(): that rounds to the precision of the current context.
    sign, digits, exponent = Decimal.as_tuple(value)
    if not isinstance(exponent, int):
        raise NoForm(f"Decimal {Decimal.__str__(value)} is not a number two payloads could share")
    written = "".join(map(str, digits))
    significant = written.rstrip("0")
    if not significant:
        return "<decimal 0e0>"
    return f"<decimal {'-' if sign else ''}{significant}e{exponent + len(written) - len(significant)}>"


def _datetime(value: datetime) -> str:
    _refuse_nanoseconds(value)
    return f"<datetime {datetime.isoformat(value)}>"


def _time(value: time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise NoForm("a time in a zone whose offset depends on the date has no exact form")
    return f"<time {time.isoformat(value)}>"


def _timedelta(value: timedelta) -> str:
    _refuse_nanoseconds(value)
    return f"<timedelta {value.days},{value.seconds},{value.microseconds}>"


def _refuse_nanoseconds(value: Any) -> None:
    # pandas subclasses both and keeps what the base class would silently drop; its NaT ends here too.
    if getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0):
        raise NoForm(f"a {type(value).__qualname__} with nanoseconds has no exact form")


def _enum(value: Enum) -> str:
    # The class belongs to it: Card.VISA is not Wallet.VISA. An empty Flag has no name, only a value.
    return f"<enum {_text(type(value).__name__)} {_text(value.name or repr(value.value))}>"


_HUGE: Final = 10**DIGITS_MAX

_SCALARS: Final[dict[type, Callable[[Any], str]]] = {  # a subclass before its base
    str: _text,
    bool: lambda value: "true" if value else "false",
    int: _int,
    float: _float,
    type(None): lambda _: "null",
    Decimal: _decimal,
    bytes: lambda value: f"<bytes {bytes.hex(value)}>",
    bytearray: lambda value: f"<bytes {bytearray.hex(value)}>",
    datetime: _datetime,
    date: lambda value: f"<date {date.isoformat(value)}>",
    time: _time,
    timedelta: _timedelta,
    UUID: lambda value: f"<uuid {value.int:032x}>",
    Enum: _enum,
}
