"""Where a line is drawn: the last value on this side of it, and the first on the other."""

from __future__ import annotations

import dataclasses
import io
import json
import struct
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import NoneType, SimpleNamespace
from typing import Any, ClassVar, Generic, Protocol, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
import typing_extensions

from samekey.core import attempt, boundary, call, envelope, fingerprint, packing, policy, ports, recovery
from samekey.core import canonical as canonical_form
from samekey.core._json import fast_encoder
from samekey.core.canonical import SIZE_MAX, canonical, canonical_slow
from samekey.core.commands import Raised, Settle, Tell, Testify
from samekey.core.envelope import INT_BITS_MAX, decode, encode, seal
from samekey.core.errors import Misconfigured, NotDone, PayloadRefused, RecordUnreadable, Refused
from samekey.core.fingerprint import FIELDS_MAX, FORM_MAX, IGNORE_MAX, Intent, check_ignore
from samekey.core.json_text import parse_json
from samekey.core.key import make_key
from samekey.core.packing import unpack
from samekey.core.record import DAMAGED, Record
from samekey.core.refusal import decode_refusal, encode_refusal
from samekey.core.shapes import NotStorable, Unreadable, cannot_keep, data_types, storable_type
from samekey.core.states import Role, State

ROOM = 1 << 20
T = TypeVar("T")


# -- payloads ----------------------------------------------------------------------------------------------------


class Plain(pydantic.BaseModel):
    amount: int = 1


def test_an_ordinary_model_is_its_fields():
    assert canonical(Plain()) == canonical({"amount": 1})


def test_a_large_payload_is_written_in_one_piece():
    """The C encoder hands out what is large in several."""
    many = list(range(300_000))

    assert canonical(many) == ("[" + ",".join(map(str, many)) + "]").encode()


def test_ignore_paths_have_a_length_and_a_number():
    fits = "x" * (FORM_MAX - len("1 ignore= secret=00000000"))
    assert check_ignore({fits}) == (fits,)
    with pytest.raises(Misconfigured, match="longer"):
        check_ignore({fits + "x"})
    assert len(check_ignore({str(n) for n in range(IGNORE_MAX)})) == IGNORE_MAX
    with pytest.raises(Misconfigured, match="limit"):
        check_ignore({str(n) for n in range(IGNORE_MAX + 1)})


def test_a_body_may_be_as_large_as_a_payload():
    fits = b'"' + b"x" * (SIZE_MAX - 2) + b'"'

    assert len(parse_json(fits)) == SIZE_MAX - 2
    with pytest.raises(PayloadRefused, match="larger than 8 MiB"):
        parse_json(fits + b" ")


def test_a_mismatch_names_so_many_fields():
    one = {f"f{n:04}": 1 for n in range(FIELDS_MAX + 1)}
    kept = Intent(one).fingerprint()

    assert len(kept.fields) == FIELDS_MAX
    assert len(Intent(dict.fromkeys(one, 2)).differing(kept)) == FIELDS_MAX


ENCODERS = [
    json.JSONEncoder(),
    json.JSONEncoder(ensure_ascii=False),  # looks for circles
    json.JSONEncoder(ensure_ascii=False, check_circular=False, indent=2),
    json.JSONEncoder(check_circular=False, sort_keys=True),
    json.JSONEncoder(ensure_ascii=False, check_circular=False, skipkeys=True, separators=(",", ":")),
    json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False, sort_keys=True),
    json.JSONEncoder(ensure_ascii=False, check_circular=False),
]


def written(encode: Any, value: Any) -> Any:
    try:
        return encode(value)
    except (TypeError, ValueError) as error:
        return type(error)


@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("c_encoder", [True, False])
def test_the_fast_encoder_writes_what_its_encoder_would(encoder, c_encoder, monkeypatch):
    if not c_encoder:
        monkeypatch.setattr(json.encoder, "c_make_encoder", None)
    encode = fast_encoder(encoder)
    nan = float("nan")
    values: list[Any] = ["ü", {"b": "ü", "a": [1, 1.5, None, True]}, {"a": {"b": []}}, [nan], {(1,): 2}, [object()]]
    for value in values:
        assert written(encode, value) == written(encoder.encode, value)
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValueError if encoder.check_circular else RecursionError):
        encode(circle)


# -- results -----------------------------------------------------------------------------------------------------

LEAVES: list[tuple[Any, Any]] = [
    (1 << INT_BITS_MAX, {"int": "1" + "0" * (INT_BITS_MAX // 4)}),
    ((1 << INT_BITS_MAX) - 1, (1 << INT_BITS_MAX) - 1),
    *((bare, bare) for bare in (None, True, 1, 1.5, "ü")),
    (float("inf"), {"float": "inf"}),
    ("\ud800", {"str": "eda080"}),
    (b"x", {"bytes": "eA=="}),
    (bytearray(b"x"), {"bytearray": "eA=="}),
    (Decimal("1.50"), {"decimal": "1.50"}),
    (datetime(2024, 1, 2), {"datetime": ["2024-01-02T00:00:00", None, 0]}),
    (datetime(2024, 1, 2, tzinfo=UTC), {"datetime": ["2024-01-02T00:00:00", [0, None], 0]}),
    (
        datetime(2024, 10, 27, 2, 30, 5, 6, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        {"datetime": ["2024-10-27T02:30:05.000006", "Europe/Berlin", 1]},
    ),
    (date(2024, 1, 2), {"date": "2024-01-02"}),
    (time(1, 2), {"time": ["01:02:00", None, 0]}),
    (time(1, 2, tzinfo=timezone(timedelta(hours=1), "X")), {"time": ["01:02:00", [3_600_000_000, "X"], 0]}),
    (timedelta(1, 2, 3), {"timedelta": [1, 2, 3]}),
    (UUID(int=7), {"uuid": "00000000-0000-0000-0000-000000000007"}),
    ((1,), {"tuple": [1]}),
    ({1}, {"set": [1]}),
    (frozenset({1}), {"frozenset": [1]}),
    ({"a": 1}, {"dict": {"a": 1}}),
    ({1: 2}, {"map": [[1, 2]]}),
    (msgspec.UNSET, {"unset": None}),
]


@pytest.mark.parametrize(("value", "tagged"), LEAVES, ids=lambda one: next(iter(one)) if type(one) is dict else "bare")
def test_a_tag_is_frozen_for_ever(value, tagged):
    """Answers outlive deploys: what is written under a tag today is read under it for as long as it is kept."""
    kept = encode([value, {1}], max_bytes=ROOM)

    assert kept[:2] == b"\x01T"
    assert json.loads(kept[2:]) == [tagged, {"set": [1]}]
    assert decode(kept) == [value, {1}]


def test_what_json_says_exactly_is_written_as_json():
    flat: dict[str, Any] = {"a": None, "b": True, "c": 1, "d": 1.5, "e": "ü"}
    plains: list[Any] = [[None, True, 1, 1.5, "ü", [[]], {}], flat, {"in": flat}]
    for plain in plains:
        written = json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
        assert encode(plain, max_bytes=ROOM) == b"\x01J" + written
    assert json.loads(encode(["ü", {1}], max_bytes=ROOM)[2:])[0] == "ü"


@pytest.mark.parametrize(
    "value",
    [
        [{"a": (1,)}],
        {"a": [{"b": {"c": (1,)}}]},
        [[[(1,)]]],
        [{"a": {1: 2}}],
        [[{1}]],
        [None, True, 1, 1.5, "x", [(1,)]],
        [[1], [(1,)]],
    ],
)
def test_what_is_not_json_is_found_in_whatever_it_is_in(value):
    assert decode(encode(value, max_bytes=ROOM)) == value


def test_a_zone_without_a_name_is_not_dropped():
    counts = struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    zone = ZoneInfo.from_file(io.BytesIO(b"TZif" + bytes(16) + counts + struct.pack(">lbb", 3600, 0, 0) + b"ABC\0"))
    moment = datetime(2024, 1, 2, tzinfo=zone)

    assert decode(encode(moment, max_bytes=ROOM)) == moment


@dataclasses.dataclass
class Page(Generic[T]):
    first: T


@dataclasses.dataclass(slots=True)
class Grown:
    first: int
    second: int = 2
    third: list[int] = dataclasses.field(default_factory=lambda: [3])


class Ordered(msgspec.Struct, kw_only=True):
    note: str = ""
    amount: int


def test_a_field_without_a_default_must_be_there_wherever_it_stands():
    assert decode(encode(Ordered(amount=1), max_bytes=ROOM), types=[Ordered]) == Ordered(amount=1)
    with pytest.raises(Unreadable, match="now requires 'amount'"):
        decode(seal("T", {"data": [f"{__name__}:Ordered", {"note": ""}, {}]}), types=[Ordered])


def test_a_field_that_came_later_has_its_default():
    old = seal("T", {"data": [f"{__name__}:Grown", {"first": 1}, {}]})

    assert decode(old, types=[Grown]) == Grown(1)


def test_a_data_class_is_kept_as_its_name_and_its_fields():
    assert json.loads(encode(Page(1), max_bytes=ROOM)[2:]) == {"data": [f"{__name__}:Page", {"first": 1}, {}]}
    beside = Page(1)
    beside.note = "n"  # type: ignore[attr-defined]
    kept = {"data": [f"{__name__}:Page", {"first": 1}, {"attrs": {"dict": {"note": "n"}}}]}
    assert json.loads(encode(beside, max_bytes=ROOM)[2:]) == kept


class Outer:
    @dataclasses.dataclass
    class Inner:
        n: int


def test_a_class_inside_a_class_is_found_in_its_module(monkeypatch):
    monkeypatch.setitem(sys.modules, __name__, SimpleNamespace(Outer=Outer))

    assert decode(encode(Outer.Inner(1), max_bytes=ROOM)) == Outer.Inner(1)


def test_what_python_notes_on_an_instance_is_not_part_of_it():
    page = Page[int](1)  # has __orig_class__ now

    assert decode(encode(page, max_bytes=ROOM), types=[Page]) == Page(1)


class Typed(TypedDict):
    amount: int


@pytest.mark.parametrize(
    "annotation",
    [NoneType, bool, int, float, str, bytes, bytearray, Decimal, datetime, date, time, timedelta, UUID, list, dict,
     tuple, set, frozenset, Typed, Plain, object],
)  # fmt: skip
def test_what_can_be_kept_is_not_refused_beforehand(annotation):
    assert storable_type(annotation) is None


class Later(datetime):
    pass


class Day(date):
    pass


class Nano(timedelta):
    nanoseconds = 5


class Stamp(datetime):
    nanosecond = 5


def test_a_subclass_that_may_hold_more_is_not_taken_for_its_base():
    with pytest.raises(NotStorable, match="a Later cannot be kept: only datetime itself can"):
        encode(Later(2024, 1, 2), max_bytes=ROOM)
    with pytest.raises(NotStorable, match="a Day cannot be kept: only date itself can"):
        encode(Day(2024, 1, 2), max_bytes=ROOM)
    for value in (Nano(1), Stamp(2024, 1, 2)):
        with pytest.raises(PayloadRefused, match="with nanoseconds"):
            canonical(value)
    assert canonical(Later(2024, 1, 2)) == canonical(datetime(2024, 1, 2))


@dataclasses.dataclass
class Trouble(Exception):
    code: int


def test_an_exception_is_no_answer_whatever_else_it_is():
    with pytest.raises(NotStorable, match="a Trouble cannot be kept"):
        encode(Trouble(1), max_bytes=ROOM)


def test_a_name_that_no_encoding_carries_is_kept_all_the_same():
    odd = {"\ud800": 1, "plain": {1}}

    assert decode(encode(odd, max_bytes=ROOM)) == odd


def test_a_class_that_names_itself_is_looked_into_wherever_it_stands():
    @dataclasses.dataclass
    class Node:
        below: list[Node]
        lines: Iterator[int]

    assert storable_type(Node) == "result.lines: an Iterator cannot be kept"


def test_of_anything_nothing_is_known_and_the_rest_is_looked_at():
    assert storable_type(dict[Any, Iterator[int]]) == "result: an Iterator cannot be kept"


class UnsetType:
    """Somebody else's."""


def test_not_everything_of_msgspec_is_unset():
    with pytest.raises(NotStorable, match="an UnsetType cannot be kept"):
        encode(UnsetType(), max_bytes=ROOM)
    with pytest.raises(NotStorable, match="a Raw cannot be kept"):
        encode(msgspec.Raw(b"1"), max_bytes=ROOM)


@pytest.mark.parametrize("tag", ["bytes", "bytearray"])
def test_bytes_that_are_damaged_are_unreadable(tag):
    assert decode(b'\x01T{"%b":"eA=="}' % tag.encode()) == b"x"
    with pytest.raises(Unreadable):
        decode(b'\x01T{"%b":"e!A=="}' % tag.encode())


@dataclasses.dataclass
class Odd:
    """Has marks of other kinds, one each where that kind has two."""

    amount: int
    _field_defaults: ClassVar[dict[str, Any]] = {}
    __pydantic_fields_set__: ClassVar[set[str]] = set()


class HalfAModel:
    __pydantic_fields_set__: ClassVar[set[str]] = set()


class OtherHalf:
    model_fields: ClassVar[dict[str, Any]] = {}


def test_half_a_mark_is_none():
    assert decode(encode(Odd(1), max_bytes=ROOM), types=[Odd]) == Odd(1)
    for half in (HalfAModel, OtherHalf):
        assert str(storable_type(half)).endswith(f"{half.__name__} cannot be kept")
        with pytest.raises(PayloadRefused, match=f"{half.__name__} has no exact form"):
            canonical(half())


class TypeAliasType:
    """As the `type` statement of Python 3.12 makes it: evaluated when somebody asks, so that it may mean itself."""

    def __init__(self, value: Any) -> None:
        self._value = value

    @property
    def __value__(self) -> Any:
        return self._value()


def boxed(box: Any, *inner: Any) -> Any:
    return box[inner]


def test_an_alias_may_mean_itself_or_nothing_that_is_there():
    tree: TypeAliasType = TypeAliasType(lambda: boxed(list, tree) | boxed(dict, str, tree) | Grown)
    lost = TypeAliasType(lambda: NoSuchName)  # type: ignore[name-defined]  # noqa: F821

    assert data_types(tree) == (Grown,)
    assert storable_type(boxed(dict, lost, Iterator[int])) == "result: an Iterator cannot be kept"


def test_what_an_alias_is_given_is_looked_at():
    pages = typing_extensions.TypeAliasType("pages", list[T], type_params=(T,))

    assert data_types(pages[Grown]) == (Grown,)


class Base(ABC):
    @abstractmethod
    def pay(self) -> None: ...


class Reading(Protocol):
    lines: Iterator[int]


def test_a_class_that_is_never_made_says_nothing_about_what_comes_back():
    assert storable_type(Base) is None
    assert storable_type(Reading) is None


def test_a_tag_of_a_newer_version_is_named():
    with pytest.raises(Unreadable, match="tag 'later' is not known here: written by a newer samekey"):
        decode(b'\x01T{"later":1}')


def test_a_path_shows_names_and_numbers_and_of_anything_else_the_type():
    for key, shown in (("name", "name"), (7, "7"), (1.5, "float"), (None, "NoneType"), (1 << INT_BITS_MAX, "int")):
        with pytest.raises(NotStorable, match=rf"result\.{shown}: an object cannot be kept"):
            encode({key: object()}, max_bytes=ROOM)


class Secretive(pydantic.BaseModel):
    amount: int = 1
    _never_set: int


def test_a_private_part_that_was_never_set_stays_so():
    bare = Secretive.model_validate({})
    back = decode(encode(bare, max_bytes=ROOM), types=[Secretive])

    assert back.__pydantic_private__ == bare.__pydantic_private__ == {}


class Dated(pydantic.BaseModel):
    old: int = pydantic.Field(default=1, deprecated="use another")


def test_a_deprecated_field_is_kept_without_a_warning():
    kept = Dated(old=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written = encode(kept, max_bytes=ROOM)

    assert decode(written, types=[Dated]) == kept


# -- refusals ----------------------------------------------------------------------------------------------------


def test_a_refusal_is_kept_where_its_name_just_fits():
    sizes = []
    for room in range(1, 200):
        try:
            sizes.append((room, len(encode_refusal(Refused("why"), max_bytes=room))))
        except NotStorable:
            continue

    assert sizes[0][0] == sizes[0][1]  # the first room that is enough is filled to the last byte
    assert all(size <= room for room, size in sizes)


def test_the_text_of_a_refusal_is_cut_to_the_character():
    room = len(seal("R", {"class": "samekey.core.errors:Refused", "text": "why", "args": None, "facts": {}}))
    for less, text in ((0, "why"), (1, "wh"), (3, "")):
        back: Any = decode_refusal(encode_refusal(Refused("why"), max_bytes=room - less), allowed=(Refused,))
        assert back.reason == text


def test_what_just_fits_of_a_refusal_is_kept():
    error = ValueError("a", 7)
    bare: dict[str, Any] = {"class": "builtins:ValueError", "text": str(error), "args": None, "facts": {}}
    room = len(seal("R", bare)) + len(seal("", {"args": ["a", 7]}))

    assert decode_refusal(encode_refusal(error, max_bytes=room), allowed=(ValueError,)).args == ("a", 7)
    assert decode_refusal(encode_refusal(error, max_bytes=room - 1), allowed=(ValueError,)).args == (str(error),)


def test_facts_of_a_refusal_are_its_attributes_but_for_pythons_own():
    error: Any = Refused("no")
    error.__dict__ |= {"code": 7, "a b": 1, "_own": 2, "__ours__": 3}
    back: Any = decode_refusal(encode_refusal(error, max_bytes=ROOM), allowed=(Refused,))

    assert back.__dict__ == {"reason": "no", "detail": None, "code": 7, "_own": 2}


@pytest.mark.parametrize("word", [Refused, NotDone])
def test_a_word_has_its_reason_and_detail_although_they_were_not_kept(word):
    error: Any = word("no")
    error.detail = object()
    back: Any = decode_refusal(encode_refusal(error, max_bytes=ROOM), allowed=(word,))

    assert (type(back), back.reason, back.detail) == (word, "no", None)


class Newborn(Exception):
    def __new__(cls, *args: Any) -> Newborn:
        return super().__new__(cls)  # which leaves it without its arguments


def test_arguments_come_back_although_a_class_makes_its_instances_itself():
    back = decode_refusal(encode_refusal(Newborn("no", "really"), max_bytes=ROOM), allowed=(Newborn,))

    assert (type(back), back.args) == (Newborn, ("no", "really"))


def test_a_fact_that_is_not_text_is_left_out_and_the_refusal_stays():
    unspeakable: Any = dataclasses.make_dataclass("Unspeakable", [("n", int)])
    unspeakable.__qualname__ = "\ud800"
    error: Any = Refused("no")
    error.unspeakable, error.code = unspeakable(1), 7
    back: Any = decode_refusal(encode_refusal(error, max_bytes=ROOM), allowed=(Refused,))

    assert (back.reason, back.code, hasattr(back, "unspeakable")) == ("no", 7, False)


# -- limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("module", "numbers"),
    [
        (attempt, {"ROUNDS_MAX": 20, "SETTLE_PAUSE_SECONDS": 0.05, "SETTLE_PAUSE_MAX_SECONDS": 2.0}),
        (boundary, {"WINDOW_SECONDS": 86_400.0}),
        (call, {"ERROR_MAX_CHARS": 500}),
        (canonical_form, {"DEPTH_MAX": 64, "SIZE_MAX": 8_388_608, "DIGITS_MAX": 4300, "STEP_MAX": 128}),
        (canonical_form, {"MEMBERS_COMPARED": 1000}),
        (packing, {"LINES_KEPT": 1024, "LINE_KEPT_MAX_BYTES": 4096}),
        (envelope, {"DEPTH_MAX": 100, "INT_BITS_MAX": 2000, "LABEL_MAX": 40, "LABELS_MAX": 16}),
        (fingerprint, {"FIELDS_MAX": 64, "NAME_MAX": 128, "IGNORE_MAX": 64, "FORM_MAX": 4096}),
        (policy, {"RESULT_MAX_BYTES": 1_048_576, "SECONDS_MAX": 316_224_000.0}),
        (ports, {"LIST_MAX": 1000}),
        (recovery, {"ASK_SECONDS": 30.0}),
    ],
)
def test_a_limit_is_the_number_that_was_agreed(module, numbers):
    """Tests use the names; whoever changes a number shall know that clients, stores and old records rely on it."""
    assert {name: getattr(module, name) for name in numbers} == numbers


# -- commands ----------------------------------------------------------------------------------------------------


def test_a_command_says_nothing_that_it_was_not_given():
    key = make_key("a", "b")
    record = Record(key, State.STARTED, 1, "me", b"", "1", (), "opaque", 1, 1, 1.0, 1.0, 1.0, "")
    bare = Settle(record, Role.HOLDER, State.COMPLETED, "me")

    assert (bare.result, bare.error, bare.why, bare.retain_seconds, bare.next_round) == (None, None, "", 0.0, False)
    assert (Raised(ValueError()).inner, Raised(ValueError()).begun, Tell("x", None).detail) == (False, False, "")
    assert Testify.__test__ is False


def test_parts_of_a_set_are_written_without_anything_between_them():
    member = (Decimal("1.50"), UUID(int=1))

    assert canonical({member}) == b"<set [<decimal 15e-1>,<uuid 00000000000000000000000000000001>]>"


def test_the_exact_way_refuses_what_is_too_large_as_the_quick_one_does():
    with pytest.raises(PayloadRefused, match="larger than"):
        canonical_slow({"note": "x" * SIZE_MAX})


def test_a_kind_of_int_is_told_that_only_int_itself_can_be_kept():
    class Cents(int):
        pass

    assert cannot_keep(Cents) == "a Cents cannot be kept: only int itself can"


@pytest.mark.parametrize(
    "line",
    [
        b"junk",
        b"[]",
        b"[5]",
        b'[["charge",null,"o-1"],"asleep"]',
        b"[" * 5000,
        b"{}",
        b'[["charge",null,"o-1"],"started"]',
    ],
    ids=["no JSON", "empty", "no key", "no state", "without end", "no list", "short"],
)
def test_a_record_in_one_piece_that_is_none_is_unreadable(line):
    with pytest.raises(RecordUnreadable):
        unpack(line + b"\n", make_key("charge", "o-1"))


def test_whatever_a_reader_stumbles_with_is_a_damaged_record():
    """Each was seen: a null where text should be, a number without end, a list that never closes."""
    assert set(DAMAGED) == {
        ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError, OverflowError
    }  # fmt: skip
