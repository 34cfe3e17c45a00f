"""What an envelope promises, one sentence per test."""

from __future__ import annotations

import dataclasses
import enum
import http
import json
import math
import sys
import types
import typing
import uuid
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import IO, Annotated, Any, Generic, Literal, NamedTuple, NewType, Protocol, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from typing_extensions import TypeAliasType

from samekey.core import envelope
from samekey.core.envelope import DEPTH_MAX, VERSION, decode, encode
from samekey.core.errors import NotDone, Refused
from samekey.core.refusal import decode_refusal, encode_refusal
from samekey.core.shapes import NotStorable, Unreadable, data_types, storable_type

ROOM = 1 << 20
T = TypeVar("T")


def again(value: Any, *types: type) -> Any:
    return decode(encode(value, max_bytes=ROOM), types=types)


def tagged(payload: Any) -> bytes:
    return b"\x01T" + json.dumps(payload).encode()


# ---- the classes that travel ----


class Colour(enum.Enum):
    RED = "r"
    GREEN = ("g", object())  # a value no envelope could hold: members travel by name


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Resolution(enum.StrEnum):
    YES = "yes"


class Perm(enum.Flag):
    R = 1
    W = 2
    X = 4


class Loose(enum.Flag, boundary=enum.KEEP):
    NONE = 0
    R = 1


class Bits(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass
class Line:
    sku: str
    price: Decimal
    tags: set[str] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 0


@dataclasses.dataclass(frozen=True)
class Receipt:
    id: uuid.UUID
    lines: list[Line]
    parent: Receipt | None = None
    at: datetime = datetime(2024, 1, 1, tzinfo=UTC)


@dataclasses.dataclass
class Base:
    a: int


@dataclasses.dataclass
class Derived(Base):
    b: int = dataclasses.field(init=False)
    c: int = dataclasses.field(init=False, default=5)
    d: dataclasses.InitVar[int] = 0
    made = 0

    def __post_init__(self, d: int) -> None:
        type(self).made += 1
        self.b = self.a + d
        self.beside = [self.b]

    @cached_property
    def twice(self) -> int:
        return 2 * self.a


@dataclasses.dataclass
class Slotted:
    __slots__ = ("__hidden", "__mark__", "_twice", "n", "never")
    n: int

    def __post_init__(self) -> None:
        self._twice, self.__hidden, self.__mark__ = 2 * self.n, [3], 4


class Pair(NamedTuple):
    left: int
    right: tuple[int, ...] = ()


Old = namedtuple("Old", "a b")


class Address(pydantic.BaseModel):
    street: str
    zip_code: str = pydantic.Field(alias="zip")


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")

    name: str = pydantic.Field(alias="fullName", serialization_alias="n")
    balance: Decimal = Decimal("0.00")
    home: Address | None = None
    seen: datetime | None = None
    _note: str = "private"

    @pydantic.field_validator("balance")
    @classmethod
    def double(cls, value: Decimal) -> Decimal:
        return value * 2  # not idempotent: a replay must not validate again


class Settings(pydantic.BaseModel):
    colour: str = "red"


class Crossed(pydantic.BaseModel):
    """Each field's alias is the other's name."""

    a: int = pydantic.Field(alias="b")
    b: int = pydantic.Field(alias="a")


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


class Names(pydantic.RootModel[list[str]]):
    pass


class Frozen(pydantic.BaseModel, frozen=True):
    n: int


class Event(msgspec.Struct, rename="camel", tag="event", frozen=True, kw_only=True):
    event_id: int
    points: list[Point] = []
    note: str | msgspec.UnsetType = msgspec.UNSET


class Touchy(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        self.n += 1


class StolenCard(Exception):
    def __init__(self, card: str, *, code: int) -> None:
        super().__init__(f"card {card} is stolen")
        self.card, self.code = card, code


class PlainRefusal(Refused):
    pass


# ---- what comes back ----


@pytest.mark.parametrize("value", [0, [], {}, "", False, None, 0.0, (), b"", set(), Decimal(0), timedelta(0)], ids=repr)
def test_an_empty_result_replays_as_itself(value):
    replayed = again(value)

    assert replayed == value
    assert type(replayed) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        True,
        -1,
        2**63,
        1.5,
        -0.0,
        1e308,
        math.inf,
        -math.inf,
        "text",
        "\x00\n\u2028 é 漢 😀",
        "\ud83d\ude00",  # two lone surrogates, which must not join to one character
        "\udfff",
        b"\x00\xff",
        bytearray(b"ab"),
        [1, [2, []]],
        (1, (2, ()), [3]),
        {"a": {"b": [1, None]}},
        {1: "int", "1": "str", (1, 2): "tuple", None: 0, 2.5: 1, b"x": 2, True is None: 3},
        {"\ud800": 1},
        {1, 2},
        frozenset({frozenset({1}), (2,)}),
        Decimal("10.00"),
        Decimal("-0E+3"),
        Decimal("Infinity"),
        Decimal("1." + "1" * 60),
        date(2024, 2, 29),
        time(23, 59, 59, 999999),
        time(1, 2, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
        timedelta(days=-1, microseconds=7),
        timedelta.max,
        datetime(2024, 1, 1),
        datetime.max,
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(2024, 1, 1, 12, 30, 0, 1, tzinfo=timezone(timedelta(hours=5, seconds=1, microseconds=3))),
        uuid.UUID("12345678123456781234567812345678"),
        Colour.RED,
        Colour.GREEN,
        Level.HIGH,
        Resolution.YES,
        http.HTTPStatus.OK,
        Perm.R,
        Perm.R | Perm.X,
        Perm(0),
        Bits.A | Bits.B,
        Bits(9),
        {Colour.RED: Resolution.YES, Level.LOW: [Level.HIGH]},
        Point(1, 2),
        {Point(1): Point(2)},
        Line("a", Decimal("1.10"), {"x"}),
        Receipt(uuid.UUID(int=1), [Line("a", Decimal("1.10"))], Receipt(uuid.UUID(int=2), [])),
        Derived(1, 2),
        Pair(1, (2, 3)),
        Old(1, [2]),
        Address(street="s", zip="z"),
        Crossed(a=1, b=2),
        Page[int](items=[1]),
        Names(["a", "b"]),
        Frozen(n=1),
        Event(event_id=1, points=[Point(1)]),
        Event(event_id=1, note="n"),
        Touchy(1),
    ],
    ids=lambda value: f"{type(value).__name__}-{str(value)[:20]!a}",
)
def test_a_result_replays_with_its_type_and_value(value):
    replayed = again(value, Page[int])

    assert replayed == value
    assert type(replayed) is type(value)
    assert repr(replayed) == repr(value) or isinstance(value, (set, frozenset))  # signs, trailing zeros, inner types


@pytest.mark.parametrize("digits", [300, 600, 700, 4000, 5000, 50_000])
def test_an_int_of_any_size_is_exact(digits):
    """Python reads at most 4300 decimal digits, or 640 if so told."""
    for value in (10**digits, -(10**digits) + 1):
        assert again(value) == again([value, ()])[0] == value


@pytest.fixture
def digits_allowed():
    allowed = sys.get_int_max_str_digits()
    yield sys.set_int_max_str_digits
    sys.set_int_max_str_digits(allowed)


@pytest.mark.parametrize("digits", [603, 641, 1001, 4299, 4300, 4301, 9000])
@pytest.mark.parametrize("written_with", [0, 640, 4300, 100_000])
@pytest.mark.parametrize("read_with", [0, 640, 4300, 100_000])
def test_an_int_is_read_where_other_limits_hold_than_where_it_was_written(
    digits, written_with, read_with, digits_allowed
):
    value = {"n": [10 ** (digits - 1), -(10**digits - 1)], "text": "7" * digits}
    digits_allowed(written_with)
    kept = encode(value, max_bytes=ROOM)
    digits_allowed(read_with)

    assert decode(kept) == value


def test_an_int_that_would_take_long_to_read_is_damage(digits_allowed):
    """Nobody writes one in decimals, and the time it takes grows with its square."""
    digits_allowed(640)
    for sign in (b"", b"-"):
        assert decode(b"\x01J" + sign + b"9" * 4300) in (10**4300 - 1, 1 - 10**4300)
        with pytest.raises(Unreadable, match="damaged JSON"):
            decode(b"\x01J" + sign + b"9" * 4301)


def test_the_plain_form_of_ints_is_frozen():
    """Ints of up to 4300 digits are plain JSON, as they were from the start."""
    assert encode([10**4299], max_bytes=ROOM) == b"\x01J[1" + b"0" * 4299 + b"]"
    assert encode(["1" * 9000], max_bytes=ROOM) == b'\x01J["' + b"1" * 9000 + b'"]'


def test_not_a_number_replays_as_not_a_number():
    assert math.isnan(again(math.nan))
    assert again([Decimal("NaN"), Decimal("sNaN")])[1].is_snan()


def test_the_order_of_a_dict_is_kept():
    assert list(again({"b": 1, "a": 2})) == ["b", "a"]
    assert list(again({2: 1, 1: (2,)})) == [2, 1]


def test_a_zone_is_kept_by_its_key():
    zone = ZoneInfo("Europe/Berlin")
    second_three_oclock = datetime(2024, 10, 27, 2, 30, tzinfo=zone, fold=1)

    replayed = again([second_three_oclock, time(1, tzinfo=zone)])

    assert replayed[0].tzinfo is zone
    assert (replayed[0].fold, replayed[0].utcoffset()) == (1, timedelta(hours=1))
    assert replayed[1].tzinfo is zone


class Cents(NamedTuple):
    amount: int
    currency: str = "EUR"


class Money(Cents):
    @property
    def amount(self) -> float:  # type: ignore[override]
        return self[0] / 100


def test_a_named_tuple_keeps_its_elements_whatever_stands_in_front_of_them():
    replayed = again(Money(150))

    assert (type(replayed), tuple(replayed), replayed.amount) == (Money, (150, "EUR"), 1.5)
    with pytest.raises(NotStorable, match="result: ValueError at this place"):
        encode(tuple.__new__(Cents, (1, "EUR", 3)), max_bytes=ROOM)  # more than there are names for


def test_a_named_offset_keeps_its_name():
    assert again(datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=2), "HERE"))).tzname() == "HERE"


def test_a_foreign_zone_with_a_fixed_offset_is_kept_as_that_offset():
    value = pydantic.TypeAdapter(datetime).validate_python("2024-01-01T00:00:00+02:00")
    assert type(value.tzinfo) is not timezone  # pydantic has its own

    replayed = again(value)

    assert (replayed, replayed.utcoffset()) == (value, timedelta(hours=2))


def test_a_foreign_zone_without_a_fixed_offset_is_refused():
    class Moving(tzinfo):
        def tzname(self, when: datetime | None) -> str | None:
            return None

        def dst(self, when: datetime | None) -> timedelta | None:
            return None

        def utcoffset(self, when: datetime | None) -> timedelta | None:
            return None if when is None else timedelta(0)

    with pytest.raises(NotStorable, match=r"result\.at: a time in a zone of type Moving cannot be kept"):
        encode({"at": datetime(2024, 1, 1, tzinfo=Moving())}, max_bytes=ROOM)


def test_a_zone_that_says_its_winter_time_where_there_is_no_date_is_refused_in_summer():
    """As the zones in Python's own documentation do: an hour would be lost without a word."""

    class Summery(tzinfo):
        def tzname(self, when: datetime | None) -> str | None:
            return None

        def dst(self, when: datetime | None) -> timedelta | None:
            return timedelta(hours=1 if when is not None and 4 <= when.month <= 9 else 0)

        def utcoffset(self, when: datetime | None) -> timedelta | None:
            return timedelta(hours=-5) + (self.dst(when) or timedelta(0))

    winter = datetime(2024, 1, 1, tzinfo=Summery())

    assert again(winter).isoformat() == winter.isoformat()
    with pytest.raises(NotStorable, match=r"result\.at: a time in a zone of type Summery cannot be kept"):
        encode({"at": datetime(2024, 7, 1, tzinfo=Summery())}, max_bytes=ROOM)


@pytest.mark.parametrize("value", [{"a": []}, (1, []), Line("a", Decimal(1)), {1}], ids=repr)
def test_each_replay_is_a_fresh_object(value):
    kept = encode(value, max_bytes=ROOM)

    assert decode(kept) == decode(kept)
    assert decode(kept) is not decode(kept)


@pytest.mark.parametrize(
    "value",
    [
        {"tuple": [1]},
        {"dict": {"tuple": [1]}, "x": ()},
        [{"data": ["os:system", {}, {}]}, ()],
        {"enum": ["http:HTTPStatus", "OK"], "deep": [{"set": []}, {1}]},
        {("tuple",): {"map": [[1, 2]]}},
    ],
    ids=repr,
)
def test_a_dict_that_looks_like_a_tag_is_a_dict(value):
    assert again(value) == value


def test_a_plain_answer_is_plain_json_and_bytes_are_raw():
    assert encode({"a": [1, "é"]}, max_bytes=ROOM) == b'\x01J{"a":[1,"\xc3\xa9"]}'
    assert encode(b"\xff", max_bytes=ROOM) == b"\x01B\xff"


# ---- data classes ----


def test_post_init_does_not_run_again_and_what_it_set_beside_the_fields_is_kept():
    value = Derived(1, 2)
    made, _ = Derived.made, value.twice

    replayed = again(value)

    assert Derived.made == made
    assert vars(replayed) == {"a": 1, "b": 3, "c": 5, "beside": [3]}  # and no cached property
    assert replayed.twice == 2


def test_what_post_init_set_in_slots_beside_the_fields_is_kept():
    value = Slotted(1)

    replayed = again(value)

    assert (replayed.n, replayed._twice, replayed._Slotted__hidden, replayed.__mark__) == (1, 2, [3], 4)
    assert not hasattr(replayed, "never")


def test_a_dataclass_field_that_was_never_set_stays_unset():
    value = object.__new__(Derived)
    value.a = 1

    assert not hasattr(again(value), "b")


def test_a_dataclass_without_a_required_field_is_refused():
    with pytest.raises(NotStorable, match="result: a Point without 'x' cannot be kept"):
        encode(object.__new__(Point), max_bytes=ROOM)


def test_a_dataclass_that_is_also_a_dict_is_refused():
    @dataclasses.dataclass
    class Both(dict[str, int]):
        a: int = 1

    with pytest.raises(NotStorable, match="a Both cannot be kept: only dict itself can"):
        encode(Both(), max_bytes=ROOM)


def test_a_pydantic_model_keeps_extra_private_and_set_fields_and_is_not_validated_again():
    value = Person(fullName="Ada", balance=Decimal("1.50"), home=Address(street="s", zip="z"), nick=("a",))  # type: ignore[call-arg]
    value._note = "changed"

    replayed = again(value)

    assert replayed == value
    assert repr(replayed.balance) == "Decimal('3.00')"
    assert replayed.model_extra == {"nick": ("a",)}
    assert replayed.model_fields_set == value.model_fields_set == {"name", "balance", "home", "nick"}
    assert replayed._note == "changed"
    assert replayed.model_dump(by_alias=True) == value.model_dump(by_alias=True)


def test_a_pydantic_model_without_extra_or_private_parts_is_as_pydantic_made_it():
    value, replayed = Address(street="s", zip="z"), again(Address(street="s", zip="z"))

    assert replayed.__getstate__() == value.__getstate__()


def test_a_pydantic_model_of_which_no_field_was_set_is_as_empty_again():
    """What exclude_unset leaves out, as FastAPI's response_model_exclude_unset does, it leaves out of a replay too."""
    replayed = again(Settings())

    assert (replayed, replayed.model_fields_set) == (Settings(), set())
    assert replayed.model_dump(exclude_unset=True) == Settings().model_dump(exclude_unset=True) == {}


def test_a_msgspec_struct_keeps_its_fields_even_where_post_init_changes_them():
    value = Touchy(1)

    assert (value.n, again(value).n) == (2, 2)


def test_a_msgspec_unset_stays_unset():
    assert again(Event(event_id=1)).note is msgspec.UNSET


def test_a_local_class_is_found_only_among_the_types_given():
    @dataclasses.dataclass
    class Local:
        n: int

    kept = encode([Local(1)], max_bytes=ROOM, types=[Local])

    assert decode(kept, types=[Local]) == [Local(1)]
    with pytest.raises(Unreadable, match=r"result\.0: the class .*:test_a_local.*Local is gone, or not loaded here"):
        decode(kept)


def made_here(kind: str) -> Any:
    """A value of a class that no name of a module leads to."""
    match kind:
        case "dataclass":
            return dataclasses.make_dataclass("Local", ["n"], namespace={"__module__": __name__})(1)
        case "another of one name":
            return dataclasses.make_dataclass("Point", ["x", "y"], namespace={"__module__": __name__})(1, 2)
        case "generic":
            return Page[frozenset[bytes]](items=[])
        case "enum":
            return enum.Enum("Suit", ["HEARTS"], module=__name__, qualname="Elsewhere").HEARTS  # type: ignore[attr-defined]
        case "flag":
            return enum.Flag("Perm", ["READ"], module=__name__, qualname="Elsewhere").READ  # type: ignore[attr-defined]
        case "namedtuple":
            Pair = namedtuple("Pair", "a b", module="never.loaded")
            return Pair(1, 2)
        case _:
            return msgspec.defstruct("Local", ["n"], module=__name__)(1)


@pytest.mark.parametrize(
    "kind", ["dataclass", "another of one name", "generic", "enum", "flag", "namedtuple", "struct"]
)
def test_a_class_that_no_replay_would_find_is_not_kept(kind):
    """Said when it is written: later nobody could read it, or another class of that name would stand in for it."""
    value = made_here(kind)

    with pytest.raises(NotStorable, match=r"^result\.0\.at: an? .* cannot be kept: a replay would not find it at .*:"):
        encode([{"at": value}], max_bytes=ROOM)
    kept = encode([{"at": value}], max_bytes=ROOM, types=[type(value)])
    assert decode(kept, types=[type(value)]) == [{"at": value}]


def test_the_types_given_come_before_those_of_loaded_modules():
    stand_in = dataclasses.make_dataclass("Point", ["x", "y"], namespace={"__module__": __name__})

    assert type(decode(encode(Point(1), max_bytes=ROOM), types=[stand_in])) is stand_in


def test_a_record_cannot_import_a_module(tmp_path, monkeypatch):
    (tmp_path / "never_loaded.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(Unreadable, match="never_loaded:Thing is gone, or not loaded here"):
        decode(tagged({"data": ["never_loaded:Thing", {}, {}]}))
    assert "never_loaded" not in sys.modules


def test_a_record_cannot_wake_a_lazy_module(monkeypatch):
    lazy = types.ModuleType("lazy_module")
    lazy.__getattr__ = lambda name: pytest.fail(f"asked for {name}")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_module", lazy)

    with pytest.raises(Unreadable):
        decode(tagged({"data": ["lazy_module:Thing", {}, {}]}))


@pytest.mark.parametrize("ref", ["subprocess:Popen", "os:system", "builtins:object", "json:JSONEncoder", "os", ":", ""])
def test_a_record_cannot_make_anything_but_a_data_class(ref):
    with pytest.raises(Unreadable):
        decode(tagged({"data": [ref, {}, {}]}))
    with pytest.raises(Unreadable):
        decode(tagged({"enum": [ref, "x"]}))


def test_a_record_cannot_make_a_data_class_run_its_init():
    made = Derived.made

    with pytest.raises(Unreadable, match="Derived is not an Enum any more"):
        decode(tagged({"flag": [f"{__name__}:Derived", 1]}))
    assert Derived.made == made


def deployed(before: Any, after: Any) -> Any:
    """What a replay gives after a deploy has put class `after` where `before` was."""
    kept = encode(before, max_bytes=ROOM)
    after.__module__, after.__qualname__ = type(before).__module__, type(before).__qualname__
    return decode(kept, types=[after])


@pytest.mark.parametrize("box", [lambda a, b: {a: 1, b: 2}, lambda a, b: {a, b}, lambda a, b: frozenset({a, b})])
def test_members_that_a_deploy_made_one_are_unreadable_together(box):
    """One of two entries would be gone without a word."""

    class Before(enum.Enum):
        A = 1
        B = 2

    class After(enum.Enum):
        A = 1
        B = 1

    After.__qualname__ = Before.__qualname__
    kept = encode([box(Before.A, Before.B)], max_bytes=ROOM, types=[Before])

    assert decode(kept, types=[Before]) == [box(Before.A, Before.B)]
    with pytest.raises(Unreadable, match=r"^result\.0: two of its members are one by now"):
        decode(kept, types=[After])


def test_a_class_of_another_kind_that_cannot_hold_what_was_kept_is_unreadable():
    person = Person(fullName="Ada", nick="a")  # type: ignore[call-arg]

    with pytest.raises(Unreadable, match="keeps no extra fields any more"):
        deployed(person, dataclasses.make_dataclass("P", [*Person.model_fields]))
    with pytest.raises(Unreadable, match="keeps no extra fields any more"):
        deployed(Derived(1), pydantic.create_model("D", a=(int, ...), b=(int, ...), c=(int, ...)))


def test_a_field_added_with_a_default_takes_its_default():
    @dataclasses.dataclass
    class NewPoint:
        x: int
        y: int
        z: int = 7
        tags: list[str] = dataclasses.field(default_factory=list)

    class NewPair(NamedTuple):
        left: int
        right: tuple[int, ...]
        more: int = 7

    class NewAddress(pydantic.BaseModel):
        street: str
        zip_code: str
        tags: list[str] = pydantic.Field(default_factory=lambda: ["new"])
        _cached: int = 3

    class NewTouchy(msgspec.Struct):
        n: int
        tags: list[str] = []

    assert deployed(Point(1, 2), NewPoint) == NewPoint(1, 2)
    assert deployed(Pair(1), NewPair) == NewPair(1, ())
    address = deployed(Address(street="s", zip="z"), NewAddress)
    assert (address.tags, address._cached, address.model_fields_set) == (["new"], 3, {"street", "zip_code"})
    assert deployed(Touchy(1), NewTouchy) == NewTouchy(2)


@pytest.mark.parametrize("kind", ["dataclass", "namedtuple", "pydantic", "msgspec"])
def test_a_field_that_is_gone_or_newly_required_is_unreadable_and_named(kind):
    before, less, more = {
        "dataclass": (
            Point(1, 2),
            dataclasses.make_dataclass("P", ["x"]),
            dataclasses.make_dataclass("P", ["x", "y", "z"]),
        ),
        "namedtuple": (Old(1, 2), namedtuple("Old", "a"), namedtuple("Old", "a b z")),
        "pydantic": (
            Address(street="s", zip="z"),
            pydantic.create_model("A", street=(str, ...)),
            pydantic.create_model("A", street=(str, ...), zip_code=(str, ...), z=(int, ...)),
        ),
        "msgspec": (
            Event(event_id=1),
            msgspec.defstruct("E", ["event_id", "points"]),
            msgspec.defstruct("E", ["z", "event_id", ("points", list, []), ("note", str, "")], kw_only=True),
        ),
    }[kind]

    with pytest.raises(Unreadable, match=r"has no field '(y|b|zip_code|note)' any more"):
        deployed(before, less)
    with pytest.raises(Unreadable, match="now requires 'z', which was not stored"):
        deployed(before, more)


def test_a_member_that_is_gone_is_unreadable_and_named():
    with pytest.raises(Unreadable, match=r"Colour has no member 'RED' any more"):
        deployed(Colour.RED, enum.Enum("Colour", ["BLUE"]))
    with pytest.raises(Unreadable):
        deployed(Perm.X, enum.Flag("Perm", ["R", "W"]))


def test_a_flag_whose_bits_mean_other_members_by_now_is_unreadable():
    """`auto()` numbers them anew where a member is put before the others: W came back as R."""
    with pytest.raises(Unreadable, match="Perm has other members at these bits by now"):
        deployed(Perm.W, enum.Flag("Perm", ["NEW", "R", "W", "X"]))
    with pytest.raises(Unreadable, match="Perm has other members at these bits by now"):
        deployed(Perm.R | Perm.X, enum.Flag("Perm", {"R": 2, "W": 1, "X": 4}))

    later = deployed(Perm.R | Perm.X, enum.Flag("Perm", {"READ": 1, "R": 1, "W": 2, "X": 4, "NEW": 8}))
    assert (later.value, type(later).__members__["R"] in later) == (5, True)
    assert deployed(Perm(0), enum.Flag("Perm", ["NEW"])).value == 0


def test_a_flag_with_bits_that_its_class_drops_by_now_is_unreadable():
    """They have no name that could be missed."""

    class Drops(enum.Flag, boundary=enum.CONFORM):
        R = 1

    with pytest.raises(Unreadable, match="Loose has not all of the members any more"):
        deployed(Loose(8 | 1), Drops)


def test_a_flag_without_any_bits_may_be_called_otherwise():
    assert deployed(Loose.R, enum.Flag("Loose", {"EMPTY": 0, "R": 1})).value == 1


@pytest.mark.parametrize("slots", [False, True])
def test_a_new_field_that_is_set_after_init_is_unreadable_and_named(slots):
    """Without its __post_init__ the replay had no such attribute, and to print it was an AttributeError."""

    def twice(self: Any) -> None:
        self.twice = 2 * self.x

    fields: Any = ["x", "y", ("twice", int, dataclasses.field(init=False))]
    after = dataclasses.make_dataclass("P", fields, namespace={"__post_init__": twice}, slots=slots)

    with pytest.raises(Unreadable, match="Point now sets 'twice', which was not stored"):
        deployed(Point(1, 2), after)


def test_what_stood_beside_the_fields_is_the_field_it_became():
    fields: Any = ["a", ("b", int, 0), ("c", int, 0), ("beside", list, dataclasses.field(init=False))]

    assert deployed(Derived(1), dataclasses.make_dataclass("D", fields)).beside == [1]


@pytest.mark.parametrize(
    "field",
    [
        {"nick": (str, "none")},
        {"nickname": (str, pydantic.Field("none", alias="nick"))},
        {"nickname": (str, pydantic.Field("none", validation_alias="nick"))},
        {"nickname": (str, pydantic.Field("none", validation_alias=pydantic.AliasChoices("nickname", "nick")))},
    ],
    ids=["name", "alias", "validation", "choices"],
)
def test_an_extra_field_that_became_a_field_is_unreadable_and_not_its_default(field):
    """The answer was kept, beside the fields: the default of the new one stood in its place."""
    person = Person(fullName="Ada", nick="a")  # type: ignore[call-arg]
    after: Any = pydantic.create_model("P", __base__=Person, **field)

    with pytest.raises(Unreadable, match=r"now has a field '(nick|nickname)', which was stored as an extra one"):
        deployed(person, after)
    assert deployed(Person(fullName="Ada", other=1), after).model_extra == {"other": 1}  # type: ignore[call-arg]


def test_an_extra_field_that_became_another_name_of_a_field_stays_beside_it():
    """Both were kept, and each is what it was."""
    person = Person(fullName="Ada", nick="a")  # type: ignore[call-arg]
    after: Any = pydantic.create_model("P", __base__=Person, name=(str, pydantic.Field(alias="nick")))

    again = deployed(person, after)
    assert (again.name, again.model_extra) == ("Ada", {"nick": "a"})


def test_a_new_field_that_is_taken_from_inside_another_has_its_default():
    found: Any = pydantic.Field("none", validation_alias=pydantic.AliasPath("nick", 0))
    person = Person(fullName="Ada", other=1)  # type: ignore[call-arg]

    assert deployed(person, pydantic.create_model("P", __base__=Person, first=(str, found))).first == "none"


def test_extra_fields_are_unreadable_when_the_model_takes_none_any_more():
    class Narrow(pydantic.BaseModel):
        name: Any
        balance: Any
        home: Any
        seen: Any

    with pytest.raises(Unreadable, match="keeps no extra fields any more"):
        deployed(Person(fullName="Ada", nick="a"), Narrow)  # type: ignore[call-arg]


def test_a_class_that_is_no_data_class_any_more_is_unreadable():
    with pytest.raises(Unreadable, match="Point is not a data class any more"):
        deployed(Point(1), type("Point", (), {}))


# ---- what is refused ----


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"items": [1, 2, (n for n in "a")]}, "result.items.2: a generator cannot be kept"),
        (object(), "result: an object cannot be kept"),
        ({"f": print}, "result.f: a builtin_function_or_method cannot be kept"),
        ({("k",): object()}, "result.tuple: an object cannot be kept"),
        ({7: object()}, "result.7: an object cannot be kept"),
        ({10**5000: object()}, "result.int: an object cannot be kept"),
        ({"k" * 50: object()}, f"result.{'k' * 40}: an object cannot be kept"),
        ([{object()}], "result.0.0: an object cannot be kept"),
        (
            Line("a", object()),  # type: ignore[arg-type]
            "result.price: an object cannot be kept",
        ),
        (defaultdict(list), "result: a defaultdict cannot be kept: only dict itself can"),
        (OrderedDict(), "result: an OrderedDict cannot be kept: only dict itself can"),
        (deque(), "result: a deque cannot be kept"),
        (type("Mail", (str,), {})("a@b"), "result: a Mail cannot be kept: only str itself can"),
        (type("Money", (Decimal,), {})(1), "result: a Money cannot be kept: only Decimal itself can"),
        (type("When", (datetime,), {})(2024, 1, 1), "result: a When cannot be kept: only datetime itself can"),
        (ValueError("x"), "result: a ValueError cannot be kept"),
        ([memoryview(b"x")], "result.0: a memoryview cannot be kept"),
        (range(3), "result: a range cannot be kept"),
        (1j, "result: a complex cannot be kept"),
        (int, "result: a type cannot be kept"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_kept_is_named_by_path_and_type(value, message):
    with pytest.raises(NotStorable) as refused:
        encode(value, max_bytes=ROOM)

    assert str(refused.value) == message


def test_a_coroutine_is_refused():
    async def work() -> None: ...

    coroutine = work()
    with pytest.raises(NotStorable, match="result: a coroutine cannot be kept"):
        encode(coroutine, max_bytes=ROOM)
    coroutine.close()


def test_a_mapped_row_is_refused():
    """SQLAlchemy's mark on a class, dataclass or not: a row rebuilt without its session would fail when read."""

    @dataclasses.dataclass
    class Row:
        id: int

    Row._sa_class_manager = object()  # type: ignore[attr-defined]

    with pytest.raises(NotStorable, match="a Row cannot be kept: a mapped row belongs to its session"):
        encode(Row(1), max_bytes=ROOM)
    assert "mapped row" in (storable_type(Row) or "")


def test_a_made_up_enum_member_is_refused():
    member = object.__new__(Colour)
    member._name_, member._value_ = "PINK", "p"

    with pytest.raises(NotStorable, match="a Colour that is not among its members cannot be kept"):
        encode(member, max_bytes=ROOM)


def test_a_class_in_the_place_of_a_kept_one_is_kept_as_that():
    """asyncpg's UUID, and freezegun's datetime: a subclass that claims every real datetime as its own."""

    class Claims(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, datetime)

    class Fake(datetime, metaclass=Claims):
        pass

    @dataclasses.dataclass(init=False, repr=False, eq=False)
    class DriverUUID(uuid.UUID):
        """Whatever else it is."""

    class ClaimsDates(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, date)

    class FakeDate(date, metaclass=ClaimsDates):
        pass

    assert type(again(FakeDate(2024, 1, 1))) is date
    assert type(again(Fake(2024, 1, 1, tzinfo=UTC))) is datetime
    assert again(DriverUUID(int=3)) == uuid.UUID(int=3)
    assert storable_type(DriverUUID) is storable_type(Fake) is None


@pytest.mark.parametrize("value", ["x" * 200, ["x" * 200], ("x" * 200,), b"x" * 200, list(range(100)), {1: "x" * 200}])
def test_too_large_is_refused_and_the_size_named(value):
    whole = len(encode(value, max_bytes=ROOM))

    assert len(encode(value, max_bytes=whole)) == whole
    with pytest.raises(NotStorable, match=rf"^result.*{whole - 1} (are|bytes)"):
        encode(value, max_bytes=whole - 1)


def test_shared_parts_cannot_explode():
    bomb: Any = []
    tagged_bomb: Any = ()
    for _ in range(60):
        bomb, tagged_bomb = [bomb, bomb], (tagged_bomb, tagged_bomb)

    for value in (bomb, tagged_bomb):
        with pytest.raises(NotStorable, match="the result is larger than the 1000 bytes that are kept"):
            encode(value, max_bytes=1000)


def nested(box: Any, depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = box(value)
    return value


BOXES = [
    lambda inner: [inner],
    lambda inner: {"a": inner},
    lambda inner: (inner,),
    lambda inner: {1: inner},
    lambda inner: frozenset([inner]),
    lambda inner: Point(inner),
    lambda inner: Old(inner, 1),
    lambda inner: Page[Any].model_construct(items=inner),
]


@pytest.mark.parametrize("box", BOXES)
def test_as_deep_as_the_limit_is_kept_and_deeper_is_refused(box):
    kept = encode(nested(box, DEPTH_MAX), max_bytes=ROOM, types=[Page[Any]])

    assert decode(kept, types=[Page[Any]]) == nested(box, DEPTH_MAX)
    for depth in (DEPTH_MAX + 1, 5 * DEPTH_MAX):
        with pytest.raises(NotStorable, match=f"nested deeper than {DEPTH_MAX}"):
            encode(nested(box, depth), max_bytes=ROOM, types=[Page[Any]])


def test_a_long_path_loses_its_middle():
    with pytest.raises(NotStorable, match=r"^result(\.0){8}\.…(\.0){8}: an object cannot be kept$"):
        encode(nested_object(50), max_bytes=ROOM)
    with pytest.raises(NotStorable, match=r"^result(\.0){16}: an object cannot be kept$"):
        encode(nested_object(16), max_bytes=ROOM)


def nested_object(depth: int) -> Any:
    return [nested_object(depth - 1)] if depth else object()


def test_what_holds_itself_is_refused():
    loop: list[Any] = []
    loop += [loop, loop]
    point = Line("a", Decimal(1))
    point.tags = [point]  # type: ignore[assignment]
    person = Person(fullName="x")
    person._note = person  # type: ignore[assignment]

    for value in (loop, point, person):
        with pytest.raises(NotStorable, match="nested deeper"):
            encode(value, max_bytes=50_000)


@pytest.mark.parametrize(
    "payload",
    [
        b"J" + b"[" * 101 + b"]" * 101,
        b"J" + b'{"a":' * 101 + b"1" + b"}" * 101,
        b"J" + b'[{"a":' * 51 + b"1" + b"}]" * 51,
        b"J" + b"[" * 99_999,
        b"T" + b'{"tuple":[' * 9999,
    ],
)
def test_a_payload_deeper_than_the_limit_is_unreadable(payload):
    with pytest.raises(Unreadable):
        decode(b"\x01" + payload)


def test_a_wide_answer_is_not_a_deep_one():
    assert again([[1]] * 1000) == [[1]] * 1000


def test_a_nearly_full_stack_is_no_recursion_error():
    kept = encode(nested(BOXES[2], DEPTH_MAX), max_bytes=ROOM)

    def dig(left: int) -> set[str]:
        if left:
            return dig(left - 1)
        seen = set()
        for act in (lambda: encode(nested(BOXES[2], DEPTH_MAX), max_bytes=ROOM), lambda: decode(kept)):
            try:
                act()
            except (NotStorable, Unreadable) as stopped:
                seen.add(type(stopped).__name__)
        return seen

    room = sys.getrecursionlimit() - len(__import__("inspect").stack())

    assert dig(room - 60) == {"NotStorable", "Unreadable"}


def test_an_error_of_the_users_own_code_is_not_storable():
    class Boom:
        def __get__(self, value: object, cls: type) -> int:
            if value is None:
                return 1
            raise ZeroDivisionError

        def __set__(self, value: object, given: int) -> None: ...

    @dataclasses.dataclass
    class Trap:
        n: int = Boom()  # type: ignore[assignment]

    with pytest.raises(NotStorable, match=r"result\.0: ZeroDivisionError") as refused:
        encode([Trap()], max_bytes=ROOM, types=[Trap])
    assert isinstance(refused.value.__cause__, ZeroDivisionError)


def test_a_class_name_that_is_not_text_is_not_storable():
    class Odd(enum.Enum):
        A = 1

    Odd.__qualname__ = "\ud800"

    with pytest.raises(NotStorable, match="result: UnicodeEncodeError while writing it"):
        encode(Odd.A, max_bytes=ROOM, types=[Odd])


# ---- what is unreadable ----


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (b"", "0 bytes are all that is left"),
        (b"\x01", "1 bytes are all that is left"),
        (b"\x02J1", "envelope version 2; this samekey reads version 1"),
        (b"\x00J1", "envelope version 0"),
        (b"\x01E\x042026...", "it is sealed with the key '2026', and there are no keys"),
        (b"\x01Xnewer", "codec 'X' is not known here"),
        (b"\x01J", "damaged JSON"),
        (b"\x01J{", "damaged JSON"),
        (b"\x01T", "damaged JSON"),
        (b"\x01E", "the header of a sealed value is damaged"),
        (b"\x01J1 ", "something follows"),
        (b"\x01JNaN", "damaged JSON"),
        (b"\x01J" + b"1" * 5000, "damaged JSON"),
        (b"\x01J\xff", "damaged JSON"),
        (tagged({}), "result: ValueError"),
        (tagged({"tuple": [], "set": []}), "result: ValueError"),
        (tagged([1, {"novelty": 1}]), "result.1: tag 'novelty' is not known here: written by a newer samekey"),
        (tagged({"set": [[1]]}), "result: TypeError"),
        (tagged({"decimal": "ten"}), "result: InvalidOperation"),
        (tagged({"datetime": ["2024-01-01T00:00:00", "No/Where", 0]}), "result: ZoneInfoNotFoundError"),
        (tagged({"datetime": ["2024-01-01T00:00:00", "../../etc/passwd", 0]}), "result: "),
        (tagged({"timedelta": [10**20, 0, 0]}), "result: OverflowError"),
        (tagged({"bytes": "***"}), "result: "),
        (tagged({"data": ["a:b"]}), "result: TypeError"),
    ],
)
def test_what_cannot_be_read_says_why(kept, message):
    with pytest.raises(Unreadable) as refused:
        decode(kept)

    assert str(refused.value).startswith(message)


def test_only_bytes_are_an_envelope():
    for value in (None, "\x01J1", memoryview(b"\x01J1")):
        with pytest.raises(Unreadable, match="an envelope is bytes"):
            decode(value)  # type: ignore[arg-type]


def test_messages_never_show_a_value():
    secret = "4242424242424242"
    kept = tagged({"decimal": secret + "x"})

    with pytest.raises(Unreadable) as unreadable:
        decode(kept)
    with pytest.raises(NotStorable) as not_storable:
        encode({"card": type("Card", (str,), {})(secret)}, max_bytes=ROOM)
    with pytest.raises(Unreadable) as damaged:
        decode(b'\x01J["' + secret.encode())

    assert secret not in f"{unreadable.value}{not_storable.value}{damaged.value}"
    assert damaged.value.__cause__ is None  # a JSONDecodeError would carry the document into every log


def test_a_result_is_no_refusal_and_a_refusal_no_result():
    with pytest.raises(Unreadable, match="a refusal, not a result"):
        decode(encode_refusal(Refused("no"), max_bytes=ROOM))
    with pytest.raises(Unreadable, match="a result, not a refusal"):
        decode_refusal(encode("no", max_bytes=ROOM), allowed=(Refused,))


# ---- refusals ----


def refused_again(error: BaseException, *allowed: type[BaseException]) -> BaseException:
    return decode_refusal(encode_refusal(error, max_bytes=ROOM), allowed=allowed)


@pytest.mark.parametrize(
    "error",
    [
        Refused("stolen", detail={"code": Decimal("1.0"), "at": date(2024, 1, 1)}),
        PlainRefusal("stolen", detail=(1, Point(1))),
        NotDone("later"),
        StolenCard("42", code=7),
        ValueError("a", 1, (2,)),
        KeyError("k"),
        FileNotFoundError(2, "gone"),
        Exception(),
        Exception("\ud800"),
    ],
    ids=repr,
)
def test_a_refusal_replays_with_class_arguments_and_attributes(error):
    replayed = refused_again(error, type(error))

    assert type(replayed) is type(error)
    assert (replayed.args, vars(replayed), str(replayed)) == (error.args, vars(error), str(error))


def test_a_subclass_of_an_allowed_class_is_allowed():
    assert type(refused_again(PlainRefusal("no"), Refused)) is PlainRefusal


def test_a_local_class_is_found_among_the_allowed():
    class Local(Exception):
        pass

    assert type(refused_again(Local("no"), Local)) is Local
    assert type(refused_again(Local("no"), Exception)) is Refused


@pytest.mark.parametrize("allowed", [(), (ValueError,)])
def test_a_class_that_is_not_allowed_is_a_refused_that_names_it(allowed):
    replayed = refused_again(StolenCard("42", code=7), *allowed)

    assert type(replayed) is Refused
    assert str(replayed).endswith(
        "test_envelope:StolenCard, which is not loaded here or not allowed: card 42 is stolen"
    )


def test_a_class_that_is_gone_is_a_refused_that_names_it():
    kept = encode_refusal(StolenCard("42", code=7), max_bytes=ROOM).replace(b"StolenCard", b"GoneCard")

    replayed = decode_refusal(kept, allowed=(Exception,))

    assert type(replayed) is Refused
    assert "GoneCard, which is not loaded here" in str(replayed)


def test_a_refusal_never_runs_init():
    class Counted(Exception):
        made = 0

        def __init__(self, a: int, b: int) -> None:
            Counted.made += 1
            super().__init__("text only")

    replayed = refused_again(Counted(1, 2), Counted)

    assert (type(replayed), replayed.args, Counted.made) == (Counted, ("text only",), 1)


def test_what_cannot_be_kept_of_a_refusal_is_dropped_but_class_and_text_stay():
    error = StolenCard("42", code=7)
    error.response, error.retry, error._private = object(), False, 1  # type: ignore[attr-defined]
    unkept = ValueError("why", object())

    replayed, plain = refused_again(error, StolenCard), refused_again(unkept, ValueError)

    assert vars(replayed) == {"card": "42", "code": 7, "retry": False, "_private": 1}
    assert (type(plain), str(plain)) == (ValueError, str(unkept))


def test_a_refusal_can_be_shown_whose_text_is_made_of_private_attributes():
    """As that of Stripe's errors is: a replay that is logged must not fail in its own `__str__`."""

    class Declined(Exception):
        __slots__ = ("code",)

        def __init__(self, message: str, code: int) -> None:
            super().__init__(message, code)
            self._message, self.code = message, code

        def __str__(self) -> str:
            return f"{self.code}: {self._message}"

    replayed = refused_again(Declined("no", 7), Declined)

    assert (str(replayed), vars(replayed)) == ("7: no", {"_message": "no"})


def test_a_refusal_that_is_an_error_of_python_is_filled_in_as_python_does():
    class NotFound(OSError):
        def __init__(self, code: int, text: str) -> None:
            super().__init__(code, text)

    class Other(UnicodeError):
        def __init__(self, code: int) -> None:
            super().__init__()

    with pytest.raises(UnicodeDecodeError) as raised:
        b"\xff".decode()
    replayed: Any = refused_again(raised.value, ValueError)
    assert (str(replayed), replayed.reason, replayed.object) == (str(raised.value), raised.value.reason, b"\xff")
    missing: Any = refused_again(NotFound(2, "gone"), NotFound)
    assert (missing.errno, missing.strerror, str(missing)) == (2, "gone", "[Errno 2] gone")
    assert type(refused_again(Other(1), Other)) is Other


def test_a_refusal_that_is_a_frozen_dataclass_is_of_its_class_again():
    """Whoever catches it the first time catches its replay, too."""

    @dataclasses.dataclass(frozen=True)
    class Declined(Exception):
        code: str
        response: object = None

    @dataclasses.dataclass(frozen=True)
    class Stolen(Refused):
        card: str

    declined: Any = refused_again(Declined("no_funds"), Declined)
    unkept: Any = refused_again(Declined("no_funds", object()), Declined)
    stolen: Any = refused_again(Stolen("42"), Stolen)

    assert (declined, declined.args) == (Declined("no_funds"), ("no_funds",))
    assert (type(unkept), unkept.code) == (Declined, "no_funds")
    assert (type(stolen), stolen.card, stolen.args) == (Stolen, "42", ("42",))


def test_a_refusal_has_the_arguments_that_its_class_gave_it():
    class Odd(OSError):
        def __init__(self, name: str) -> None:
            super().__init__(2, "gone")
            self.args = (2, "gone", name)  # Python's own would keep two

    assert refused_again(Odd("file"), Odd).args == (2, "gone", "file")


def test_facts_of_a_refusal_that_bear_a_name_of_pythons_own_are_not_believed():
    """The notes of an exception are such a fact, and whoever adds one counts on a list."""
    kept = b'\x01R{"class":"builtins:ValueError","text":"no","args":["yes"],"facts":{"__notes__":5,"__x":6,"code":7}}'

    replayed = decode_refusal(kept, allowed=(ValueError,))

    assert vars(replayed) == {"code": 7, "__notes__": ["first raised as: no"]}


def test_a_refusal_of_ours_always_has_reason_and_detail():
    replayed = refused_again(Refused("no", detail=object()), Refused)

    assert isinstance(replayed, Refused)
    assert (replayed.reason, replayed.detail) == ("no", None)


def test_a_text_that_needs_what_was_not_kept_is_shown_as_it_was():
    """A handler catches the replay as it caught the first one, and a log of it does not fail in its `__str__`."""

    class Wordy(Exception):
        def __str__(self) -> str:
            return f"code {self.response.code}"  # type: ignore[attr-defined]

    error = Wordy()
    error.response = types.SimpleNamespace(code=7)  # type: ignore[attr-defined]

    replayed = refused_again(error, Wordy)

    assert isinstance(replayed, Wordy)
    assert (str(replayed), type(replayed).__qualname__) == ("code 7", Wordy.__qualname__)
    assert not hasattr(replayed, "__notes__")
    assert str(refused_again(replayed, Wordy)) == "code 7"


def test_djangos_validation_error_by_field_is_replayed_with_its_text():
    """Its `__str__` reads `error_dict`, which holds exceptions and cannot be kept."""
    from django.core.exceptions import ValidationError

    refused = ValidationError({"email": ["Enter a valid address."]})
    replayed = refused_again(refused, ValidationError)

    assert isinstance(replayed, ValidationError)
    assert str(replayed) == str(refused) == "{'email': ['Enter a valid address.']}"
    assert "ValidationError" in repr(replayed)


def test_arguments_that_raise_do_not_lose_the_refusal():
    class Hidden(Exception):
        @property
        def args(self) -> Any:  # type: ignore[override]
            raise ZeroDivisionError

    replayed = refused_again(Hidden("no funds"), Hidden)

    assert isinstance(replayed, Hidden)


def test_a_broken_str_does_not_lose_the_refusal():
    class Mute(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    replayed = refused_again(Mute("a"), Mute)
    assert (isinstance(replayed, Mute), str(replayed)) == (True, "Mute")
    assert "Mute, which is not loaded here or not allowed: Mute" in str(refused_again(Mute("a")))


def test_an_attribute_whose_class_is_gone_is_left_out_and_noted(monkeypatch):
    kept = [encode_refusal(error, max_bytes=ROOM) for error in (Refused("no", detail=Point(1)), KeyError(Point(1)))]
    monkeypatch.delattr(sys.modules[__name__], "Point")
    replayed = decode_refusal(kept[0], allowed=(Refused,))
    by_argument = decode_refusal(kept[1], allowed=(KeyError,))

    assert isinstance(replayed, Refused)
    assert replayed.detail is None
    assert replayed.__notes__[0].startswith("detail is not replayed: result: the class")
    assert type(by_argument) is KeyError
    assert by_argument.__notes__[0].startswith("args is not replayed: result.0: the class")


def test_a_class_that_cannot_be_rebuilt_is_a_refused_that_names_it():
    group = ExceptionGroup("both", [ValueError("a")])

    replayed = refused_again(group, ExceptionGroup)

    assert str(replayed) == "builtins:ExceptionGroup, which cannot be rebuilt (TypeError): both (1 sub-exception)"


@pytest.mark.parametrize("max_bytes", range(100, 500, 7))
def test_a_refusal_keeps_what_fits_and_its_class_and_text_first(max_bytes):
    error = Refused("r" * 50, detail="d" * 50)
    error.big, error.small = list(range(100)), 1  # type: ignore[attr-defined]

    kept = encode_refusal(error, max_bytes=max_bytes)
    replayed = decode_refusal(kept, allowed=(Refused,))

    assert len(kept) <= max_bytes
    assert type(replayed) is Refused
    assert ("r" * 50).startswith(str(replayed))
    assert max_bytes < 130 or str(replayed) == "r" * 50
    assert max_bytes < 400 or replayed.detail == "d" * 50


def test_a_refusal_whose_very_name_does_not_fit_is_not_storable():
    with pytest.raises(NotStorable, match=r"samekey.core.errors:Refused: 10 bytes have no room for its name"):
        encode_refusal(Refused("no"), max_bytes=10)


@pytest.mark.parametrize(
    "payload",
    [
        "[]",
        "{}",
        '{"class":1,"text":"","args":null,"facts":{}}',
        '{"class":"a:b","text":1,"args":null,"facts":{}}',
        '{"class":"a:b"}',
        "1",
    ],
)
def test_a_damaged_refusal_is_unreadable(payload):
    with pytest.raises(Unreadable):
        decode_refusal(b"\x01R" + payload.encode(), allowed=(Exception,))


# ---- annotations ----


class Movie(TypedDict, total=False):
    title: typing.Required[str]
    reviews: list[Review]


class Review(TypedDict):
    movie: Movie
    by: Person


@dataclasses.dataclass
class Tree:
    children: list[Tree]
    value: Colour = Colour.RED


@dataclasses.dataclass
class Streaming:
    lines: Iterator[int]


class Client:
    pass


class Sized(Protocol):
    size: int


class Holder(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)

    client: Client


Id = NewType("Id", uuid.UUID)
Deep = NewType("Deep", Id)


@pytest.mark.parametrize(
    "annotation",
    [
        None,
        type(None),
        Any,
        object,
        T,
        "Unresolved",
        int,
        list,
        dict[str, Any],
        list["Unresolved"],  # type: ignore[name-defined]  # noqa: F821
        typing.Union[Receipt, None],  # noqa: UP007
        int | None,
        tuple[int, ...],
        tuple[()],
        Annotated[Decimal, "money", []],
        Literal["a", 1, None, Colour.RED],
        Deep,
        Movie,
        Tree,
        Pair,
        Person,
        Page[Receipt],
        Names,
        Event,
        Colour,
        Bits,
        Iterable[int],
        Sequence[int],
        Mapping[str, int],
        Sized,
        pydantic.BaseModel,
        pydantic.EmailStr,
        pydantic.AwareDatetime,
        pydantic.PositiveInt,
        typing.Never,
        typing.Self,
        typing.SupportsInt,
        ...,
        3,
    ],
    ids=str,
)
def test_an_annotation_whose_values_can_or_may_be_kept_has_no_reason(annotation):
    assert storable_type(annotation) is None


@pytest.mark.parametrize(
    ("annotation", "reason"),
    [
        (Generator[int, None, None], "result: a Generator cannot be kept"),
        (Iterator[int], "result: an Iterator cannot be kept"),
        (AsyncIterator[int], "result: an AsyncIterator cannot be kept"),
        (Coroutine[Any, Any, int], "result: a Coroutine cannot be kept"),
        (Awaitable[int], "result: an Awaitable cannot be kept"),
        (Callable[[int], int], "result: a Callable cannot be kept"),
        (typing.Callable, "result: a Callable cannot be kept"),
        (IO[str], "result: an IO cannot be kept"),
        (typing.BinaryIO, "result: a BinaryIO cannot be kept"),
        (type[int], "result: a type cannot be kept"),
        (types.GeneratorType, "result: a generator cannot be kept"),
        (Client, "result: a Client cannot be kept"),
        (typing.Union[Client, None], "result: a Client cannot be kept"),  # noqa: UP007
        (int | Client, "result: a Client cannot be kept"),
        (list[dict[str, tuple[Client, ...]]], "result: a Client cannot be kept"),
        (Annotated[Client, 1], "result: a Client cannot be kept"),
        (Streaming, "result.lines: an Iterator cannot be kept"),
        (list[Streaming], "result.lines: an Iterator cannot be kept"),
        (Holder, "result.client: a Client cannot be kept"),
        (NewType("N", Client), "result: a Client cannot be kept"),
        (defaultdict[str, int], "result: a defaultdict cannot be kept: only dict itself can"),
        (Path, "result: a Path cannot be kept"),
        (pydantic.SecretStr, "result: a SecretStr cannot be kept"),
        (ValueError, "result: a ValueError cannot be kept"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_annotation_whose_values_cannot_be_kept_has_a_reason(annotation, reason):
    assert storable_type(annotation) == reason


def test_data_types_are_found_wherever_an_annotation_leads():
    assert set(data_types(typing.Union[Receipt, None])) == {Receipt, Line}  # noqa: UP007
    assert set(data_types(list[Movie])) == {Person, Address}
    assert set(data_types(Tree)) == {Tree, Colour}
    assert set(data_types(tuple[Pair, Event] | Literal[Level.LOW])) == {Pair, Event, Point, Level}
    assert set(data_types(Page[Point])) == {Page[Point], Point}
    assert data_types(int) == data_types(Any) == data_types("Receipt") == data_types(None) == ()


def test_a_local_class_is_decoded_with_the_types_of_its_annotation():
    @dataclasses.dataclass
    class Inner:
        n: int

    outer = dataclasses.make_dataclass("Outer", [("inner", Inner), ("more", list[Inner])])

    value = [outer(Inner(1), [Inner(2)])]

    known = data_types(list[outer])  # type: ignore[valid-type]
    assert decode(encode(value, max_bytes=ROOM, types=known), types=known) == value


def test_a_name_that_cannot_be_resolved_hides_nothing_else():
    partly = dataclasses.make_dataclass("Partly", [("a", "NoSuchName"), ("b", list[Point]), ("c", Client)])

    assert data_types(partly) == (partly, Point)
    assert storable_type(partly) == "result.c: a Client cannot be kept"


def test_an_alias_is_what_it_stands_for():
    alias = TypeAliasType("alias", list[Point] | Client)

    assert data_types(alias) == (Point,)
    assert storable_type(dict[str, alias]) == "result: a Client cannot be kept"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement is new in 3.12")
def test_a_recursive_alias_ends():
    space: dict[str, Any] = {"Point": Point, "Client": Client}
    exec(
        "type Json = list[Json] | dict[str, Json] | Point\ntype Bad[T] = list[T] | Client\ntype Lost = NoSuchName",
        space,
    )

    assert storable_type(space["Json"]) is None
    assert data_types(space["Json"]) == (Point,)
    assert storable_type(space["Lost"]) is None
    assert storable_type(space["Bad"][int]) == "result: a Client cannot be kept"


# ---- for ever ----


@dataclasses.dataclass
class GoldenOrder:
    id: int
    total: Decimal


class GoldenPair(NamedTuple):
    a: int
    b: str


class GoldenModel(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str = pydantic.Field(alias="n")
    age: int = 0
    _secret: int = 1


class GoldenStruct(msgspec.Struct, rename="camel"):
    some_id: int
    note: str | msgspec.UnsetType = msgspec.UNSET


class GoldenColour(enum.Enum):
    RED = 1


class GoldenPerm(enum.Flag):
    R = 1
    W = 2


class GoldenRefused(Exception):
    pass


GOLDEN_TYPES: list[Any] = [GoldenOrder, GoldenPair, GoldenModel, GoldenStruct, GoldenColour, GoldenPerm, GoldenRefused]
for _golden in GOLDEN_TYPES:
    _golden.__module__ = "golden"


def golden_values() -> dict[str, Any]:
    refused = GoldenRefused("no", 1)
    refused.code = Decimal("1.0")  # type: ignore[attr-defined]
    offset = timezone(timedelta(hours=2))
    return {
        "none": None,
        "json": {"a": [1, -2.5, True, None, "é\x00😀"], "b": {}},
        "bytes": b"\x00\xffraw",
        "nested bytes": [b"\x00\xff", bytearray(b"b")],
        "numbers": (10**700, -(1 << 2001), math.inf, -math.inf, Decimal("1.500"), Decimal("-1E+30")),
        "text": ["\ud800", {"\udfff": 1}],
        "boxes": {"t": (1, (2,)), "s": {3}, "f": frozenset({4}), "m": {1: 2, None: 3, (4,): [5]}},
        "times": [
            datetime(2024, 2, 29, 1, 2, 3, 4),
            datetime(2024, 1, 1, tzinfo=UTC),
            datetime(2024, 1, 1, tzinfo=timezone(timedelta(seconds=-1), "odd")),
            datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
            date(2024, 2, 29),
            time(1, 2, 3, 4, tzinfo=offset),
            timedelta(days=-1, seconds=2, microseconds=3),
            uuid.UUID(int=5),
        ],
        "enums": [GoldenColour.RED, GoldenPerm.R | GoldenPerm.W],
        "dataclass": GoldenOrder(1, Decimal("2.0")),
        "named tuple": GoldenPair(1, "b"),
        "pydantic": GoldenModel(n="x", more=(1,)),  # type: ignore[call-arg]
        "msgspec": [GoldenStruct(1), GoldenStruct(2, note="n")],
        "refusal": refused,
    }


GOLDEN = Path(__file__).parent / "golden" / "envelope.json"


@pytest.mark.parametrize("name", golden_values())
def test_an_envelope_written_by_an_older_version_is_read_for_ever(name):
    value, kept = golden_values()[name], bytes.fromhex(json.loads(GOLDEN.read_text())[name])

    if name == "refusal":
        error = decode_refusal(kept, allowed=(GoldenRefused,))
        assert (type(error), error.args, vars(error)) == (GoldenRefused, value.args, vars(value))
    else:
        replayed = decode(kept, types=GOLDEN_TYPES)
        assert (repr(replayed), replayed) == (repr(value), value)


def test_every_tag_and_codec_has_a_golden_envelope():
    kept = [bytes.fromhex(text) for text in json.loads(GOLDEN.read_text()).values()]

    assert {text[:2] for text in kept} == {bytes((VERSION, codec)) for codec in b"JTBR"}
    tags = {*envelope._READ, *envelope._BOXES, "dict", "map", "data", "enum", "flag", "unset"}
    assert {tag for tag in tags if not any(f'{{"{tag}":'.encode() in text for text in kept)} == set()
