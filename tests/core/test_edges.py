"""Where a line is drawn: the last value on this side of it, and the first on the other."""

from __future__ import annotations

import dataclasses
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any, Generic, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

from samekey.core.canonical import SIZE_MAX, canonical, parse_json
from samekey.core.commands import Raised, Settle, Tell, Testify
from samekey.core.envelope import INT_BITS_MAX, decode, encode, seal
from samekey.core.errors import Misconfigured, NotDone, PayloadRefused, Refused
from samekey.core.fingerprint import FIELDS_MAX, FORM_MAX, IGNORE_MAX, Intent, check_ignore
from samekey.core.key import make_key
from samekey.core.record import Record
from samekey.core.refusal import decode_refusal, encode_refusal
from samekey.core.shapes import NotStorable, Unreadable, storable_type
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


# -- results -----------------------------------------------------------------------------------------------------

LEAVES = {
    "int": 1 << 5 * INT_BITS_MAX,
    "float": float("inf"),
    "str": "\ud800",
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "decimal": Decimal("1.50"),
    "datetime": datetime(2024, 1, 2, tzinfo=UTC),
    "date": date(2024, 1, 2),
    "time": time(1, 2),
    "timedelta": timedelta(1, 2, 3),
    "uuid": UUID(int=7),
    "tuple": (1,),
    "set": {1},
    "frozenset": frozenset({1}),
    "map": {1: 2},
    "unset": msgspec.UNSET,
}


@pytest.mark.parametrize("tag", LEAVES)
def test_a_tag_is_frozen_for_ever(tag):
    """Answers outlive deploys: what is written under a tag today is read under it for as long as it is kept."""
    kept = encode([LEAVES[tag], {1}], max_bytes=ROOM)

    assert kept[:2] == b"\x01T"
    assert list(json.loads(kept[2:])[0]) == [tag]
    assert decode(kept) == [LEAVES[tag], {1}]


def test_what_json_says_exactly_is_written_as_json():
    plain: list[Any] = [None, True, 1, 1.5, "ü", [[]], {}]
    assert (
        encode(plain, max_bytes=ROOM)
        == b"\x01J" + json.dumps(plain, ensure_ascii=False, separators=(",", ":")).encode()
    )
    assert json.loads(encode(["ü", {1}], max_bytes=ROOM)[2:])[0] == "ü"


@dataclasses.dataclass
class Page(Generic[T]):
    first: T


@dataclasses.dataclass(slots=True)
class Grown:
    first: int
    second: int = 2
    third: list[int] = dataclasses.field(default_factory=lambda: [3])


def test_a_field_that_came_later_has_its_default():
    old = seal("T", {"data": [f"{__name__}:Grown", {"first": 1}, {}]})

    assert decode(old, types=[Grown]) == Grown(1)


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


def test_of_anything_nothing_is_known_and_the_rest_is_looked_at():
    assert storable_type(dict[Any, Iterator[int]]) == "result: an Iterator cannot be kept"


def test_not_everything_of_msgspec_is_unset():
    with pytest.raises(NotStorable, match="a Raw cannot be kept"):
        encode(msgspec.Raw(b"1"), max_bytes=ROOM)


@pytest.mark.parametrize("tag", ["bytes", "bytearray"])
def test_bytes_that_are_damaged_are_unreadable(tag):
    assert decode(b'\x01T{"%b":"eA=="}' % tag.encode()) == b"x"
    with pytest.raises(Unreadable):
        decode(b'\x01T{"%b":"e!A=="}' % tag.encode())


class Base(ABC):
    @abstractmethod
    def pay(self) -> None: ...


def test_a_class_that_is_never_made_says_nothing_about_what_comes_back():
    assert storable_type(Base) is None


def test_a_tag_of_a_newer_version_is_named():
    with pytest.raises(Unreadable, match="tag 'later' is not known here: written by a newer samekey"):
        decode(b'\x01T{"later":1}')


def test_a_path_shows_names_and_numbers_and_of_anything_else_the_type():
    for key, shown in (("name", "name"), (7, "7"), (1.5, "float"), (None, "NoneType"), (1 << INT_BITS_MAX, "int")):
        with pytest.raises(NotStorable, match=rf"result\.{shown}: an object cannot be kept"):
            encode({key: object()}, max_bytes=ROOM)


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


def test_facts_of_a_refusal_are_its_public_attributes():
    error: Any = Refused("no")
    error.__dict__ |= {"code": 7, "a b": 1, "_own": 2}
    back: Any = decode_refusal(encode_refusal(error, max_bytes=ROOM), allowed=(Refused,))

    assert back.__dict__ == {"reason": "no", "detail": None, "code": 7}


@pytest.mark.parametrize("word", [Refused, NotDone])
def test_a_word_has_its_reason_and_detail_although_they_were_not_kept(word):
    error: Any = word("no")
    error.detail = object()
    back: Any = decode_refusal(encode_refusal(error, max_bytes=ROOM), allowed=(word,))

    assert (type(back), back.reason, back.detail) == (word, "no", None)


# -- commands ----------------------------------------------------------------------------------------------------


def test_a_command_says_nothing_that_it_was_not_given():
    key = make_key("a", "b")
    record = Record(key, State.STARTED, 1, "me", b"", "1", (), "opaque", 1, 1, 1.0, 1.0, 1.0, "")
    bare = Settle(record, Role.HOLDER, State.COMPLETED, "me")

    assert (bare.result, bare.error, bare.why, bare.retain_seconds, bare.next_round) == (None, None, "", 0.0, False)
    assert (Raised(ValueError()).inner, Raised(ValueError()).begun, Tell("x", None).detail) == (False, False, "")
    assert Testify.__test__ is False
