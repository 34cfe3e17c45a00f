"""Every value we promise to keep comes back as it was; no bytes whatever bring anything but Unreadable."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable
from datetime import timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from samekey.core import envelope
from samekey.core.envelope import decode, encode
from samekey.core.errors import Refused
from samekey.core.refusal import decode_refusal, encode_refusal
from samekey.core.shapes import NotStorable, Unreadable

ROOM = 1 << 20
often = settings(
    max_examples=100,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Colour(enum.Enum):
    RED = 1
    GREEN = "green"


class Resolution(enum.StrEnum):
    YES = "yes"
    NO = "no"


class Perm(enum.IntFlag):
    R = 1
    W = 2
    X = 4


@dataclasses.dataclass
class Box:
    inside: Any
    more: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    inside: Any


class Derived(Box):
    pass


class Pair(NamedTuple):
    left: Any
    right: Any = ()


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)

    inside: Any = pydantic.Field(alias="outside")
    outside: Any = pydantic.Field(default=0, alias="inside")
    _private: Any = None


class Struct(msgspec.Struct, frozen=True, rename="camel", tag=True):
    some_thing: Any
    other: Any = msgspec.UNSET


class Declined(Exception):
    def __init__(self, *args: Any, **facts: Any) -> None:
        super().__init__(*args)
        self.__dict__.update(facts)


any_text = st.text(st.characters())  # lone surrogates too
zones = st.none() | st.timezones() | st.timedeltas(timedelta(hours=-23), timedelta(hours=23)).map(timezone)
hashables = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.builds(int.__lshift__, st.integers(), st.integers(0, 9000)),
        st.floats(allow_nan=False),
        any_text,
        st.binary(),
        st.decimals(allow_nan=False),
        st.datetimes(timezones=zones),
        st.dates(),
        st.times(timezones=zones),
        st.timedeltas(),
        st.uuids(),
        st.sampled_from([*Colour, *Resolution]),
        st.integers(0, 15).map(Perm),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.frozensets(inner, max_size=3),
        st.builds(Slotted, inner),
        st.builds(Pair, inner, inner),
        st.builds(Struct, inner),
    ),
    max_leaves=6,
)
names = st.text("abcdefgh", min_size=1, max_size=4)


@st.composite
def models(draw: Any, inner: Any) -> Model:
    given = draw(st.dictionaries(names, inner, max_size=2)) | draw(st.dictionaries(st.just("inside"), inner))
    made = Model(outside=draw(inner), **given)
    made._private = draw(inner)
    return made


values = st.recursive(
    hashables | st.floats() | st.binary().map(bytearray) | st.decimals(allow_nan=True),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(any_text, inner, max_size=4),
        st.dictionaries(st.sampled_from(["dict", "tuple", "data", "set"]), inner, min_size=1, max_size=1),
        st.dictionaries(hashables, inner, max_size=3),
        st.sets(hashables, max_size=3),
        st.builds(Box, inner, inner),
        st.builds(Derived, inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Struct, inner, inner),
        models(inner),
    ),
    max_leaves=12,
)
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=10,
)


def picture(value: Any) -> Any:
    """All that is to be kept of a value, types included, in a form that compares NaN as equal to itself."""
    inner: Any
    if isinstance(value, enum.Enum):
        inner = value.name, value.value
    elif isinstance(value, (list, tuple)):
        inner = [picture(one) for one in value]
    elif isinstance(value, (set, frozenset)):
        inner = sorted(repr(picture(one)) for one in value)
    elif isinstance(value, dict):
        inner = [(picture(key), picture(one)) for key, one in value.items()]
    elif isinstance(value, Model):
        state = value.__getstate__()
        state["__pydantic_fields_set__"] = sorted(state["__pydantic_fields_set__"])
        inner = picture(state)
    elif dataclasses.is_dataclass(value):
        inner = [(field.name, picture(getattr(value, field.name))) for field in dataclasses.fields(value)]
    elif isinstance(value, msgspec.Struct):
        inner = picture({name: getattr(value, name) for name in value.__struct_fields__})
    elif isinstance(value, int):
        inner = hex(value)
    elif isinstance(value, Decimal):
        inner = str(value)
    else:
        inner = repr(value), getattr(value, "fold", None)
    return type(value), inner


@often
@given(values)
def test_what_is_kept_comes_back_as_it_was(value):
    kept = encode(value, max_bytes=ROOM)

    assert picture(decode(kept)) == picture(value)
    assert picture(decode(kept)) == picture(decode(kept))


@often
@given(plain)
@example({"": [0, [], {}, "", False, None]})
def test_a_json_answer_is_kept_as_json(value):
    kept = encode(value, max_bytes=ROOM)

    assert kept == b"\x01J" + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    assert picture(decode(kept)) == picture(value)


@often
@given(values, st.integers(0, 400))
def test_an_envelope_is_never_larger_than_allowed(value, max_bytes):
    whole = encode(value, max_bytes=ROOM)

    if len(whole) <= max_bytes:
        assert picture(decode(encode(value, max_bytes=max_bytes))) == picture(value)
    else:
        with pytest.raises(NotStorable, match=str(max_bytes)):
            encode(value, max_bytes=max_bytes)


@often
@given(st.lists(values, max_size=3), st.dictionaries(names, values, max_size=3), st.integers(150, 2000))
def test_a_refusal_comes_back_as_it_was_or_without_what_did_not_fit(args, facts, max_bytes):
    error = Declined(*args, **facts)

    whole = decode_refusal(encode_refusal(error, max_bytes=ROOM), allowed=(Declined,))
    whole.__dict__.pop("__notes__", None)  # the text of a set may differ from run to run: then it is noted
    kept = encode_refusal(error, max_bytes=max_bytes)
    part = decode_refusal(kept, allowed=(Exception,))

    assert (type(whole), picture(whole.args), picture(vars(whole))) == (Declined, picture(error.args), picture(facts))
    assert len(kept) <= max_bytes
    assert type(part) is Declined
    assert vars(part).keys() - {"__notes__"} <= facts.keys()


# ---- bytes from anywhere ----


def only_unreadable(kept: bytes) -> None:
    read: list[Callable[[], Any]] = [lambda: decode(kept), lambda: decode_refusal(kept, allowed=(Exception,))]
    for one in read:
        try:
            one()
        except Unreadable:
            pass


@often
@given(st.binary(max_size=200))
@example(b"\x01T" + b"[" * 5000)
@example(b"\x01J" + b'{"a":' * 5000)
@example(b'\x01T{"int":"' + b"f" * 9000 + b'"}')
@example(b'\x01T{"decimal":"1E+999999999999999999"}')
def test_random_bytes_are_unreadable(kept):
    only_unreadable(kept)
    for codec in b"JTR":
        only_unreadable(bytes((envelope.VERSION, codec)) + kept)


@often
@given(values, st.data())
def test_a_damaged_envelope_is_unreadable_or_another_value(value, data):
    whole = data.draw(
        st.sampled_from([encode(value, max_bytes=ROOM), encode_refusal(Refused("no", detail=value), max_bytes=ROOM)])
    )
    for _ in range(5):
        at = data.draw(st.integers(0, len(whole)))
        width = data.draw(st.integers(0, 3))
        only_unreadable(whole[:at])
        only_unreadable(whole[:at] + data.draw(st.binary(max_size=3)) + whole[at + width :])


here = __name__
refs = st.sampled_from(
    [f"{here}:{name}" for name in ("Box", "Slotted", "Pair", "Model", "Struct", "Colour", "Perm", "Declined")]
)
tags = st.sampled_from(
    sorted({*envelope._READ, *envelope._BOXES, "dict", "map", "data", "enum", "flag", "unset", "E", ""})
)
forged = st.recursive(
    plain | refs | st.sampled_from(["inside", "RED", "Europe/Berlin", "2024-01-01T00:00:00"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(tags, inner, min_size=1, max_size=1),
        st.dictionaries(tags, st.lists(inner, max_size=3), min_size=1, max_size=1),
        st.tuples(refs, st.dictionaries(st.sampled_from(["inside", "left", "some_thing"]), inner), st.just({})).map(
            lambda body: {"data": list(body)}
        ),
        st.tuples(refs, st.just({}), st.dictionaries(st.sampled_from(["set", "extra", "private", "attrs"]), inner)).map(
            lambda body: {"data": list(body)}
        ),
        st.tuples(refs, inner).map(lambda body: {"enum": list(body)}),
        st.tuples(refs, inner).map(lambda body: {"flag": list(body)}),
        st.builds(
            lambda ref, text, args, facts: {"class": ref, "text": text, "args": args, "facts": facts},
            refs,
            inner,
            st.lists(inner, max_size=2),
            st.dictionaries(names | st.just("__class__"), inner, max_size=2),
        ),
    ),
    max_leaves=10,
)


@often
@given(forged)
def test_forged_tags_are_unreadable_or_another_value(payload):
    text = json.dumps(payload).encode()

    only_unreadable(b"\x01T" + text)
    only_unreadable(b"\x01R" + text)
