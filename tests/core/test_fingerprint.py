"""One test per sentence about what is the same intent, what is another one, and what is refused."""

from __future__ import annotations

import enum
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal, localcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import Mock
from uuid import UUID

import msgspec
import pydantic
import pytest

from samekey.core import canonical, fingerprint, json_text
from samekey.core.canonical import DEPTH_MAX, SIZE_MAX, STEP_MAX
from samekey.core.errors import Misconfigured, PayloadRefused
from samekey.core.fingerprint import (
    ADOPTED,
    FIELDS_MAX,
    FORM_MAX,
    IGNORE_MAX,
    Fingerprint,
    Intent,
    check_ignore,
)
from samekey.core.json_text import parse_json, read_json

ROOT = Path(__file__).parents[2]
GOLDEN = json.loads((Path(__file__).parent / "golden" / "fingerprint.json").read_text())


def digest(payload: Any, **options: Any) -> bytes:
    return Intent(payload, **options).digest


def same(*payloads: Any) -> bool:
    return len({digest(payload) for payload in payloads}) == 1


def all_differ(*payloads: Any) -> bool:
    return len({digest(payload) for payload in payloads}) == len(payloads)


def refusal(payload: Any, **options: Any) -> PayloadRefused:
    with pytest.raises(PayloadRefused) as caught:
        Intent(payload, **options)
    assert caught.value.message.startswith(caught.value.path or "the payload")
    return caught.value


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


class Colour(enum.Enum):
    RED = 1
    GREEN = 2
    ROUGE = 1


class Card(enum.Enum):
    RED = 1


class Plan(enum.StrEnum):
    PRO = "pro"


class OldPlan(str, enum.Enum):  # noqa: UP042 - its str() differs between Pythons, its value does not
    PRO = "pro"


class Level(enum.IntEnum):
    HIGH = 3


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass(frozen=True)
class Item:
    sku: str
    qty: int = 1
    kind: ClassVar[str] = "item"
    seed: InitVar[int] = 0


class ItemModel(pydantic.BaseModel):
    sku: str = pydantic.Field(alias="SKU")
    qty: int = 1
    _cache: str = pydantic.PrivateAttr(default="not payload")
    model_config = pydantic.ConfigDict(populate_by_name=True, extra="allow")


class ItemStruct(msgspec.Struct, rename="camel"):
    sku: str
    qty: int = 1
    gift_note: str | msgspec.UnsetType = msgspec.UNSET


class Tagged(msgspec.Struct, tag="card"):
    number: str


class TaggedToo(msgspec.Struct, tag="cash"):
    number: str


# --- One intent ---------------------------------------------------------------------------------------------------


def test_key_order_is_no_difference():
    assert same({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1})


def test_whitespace_and_unicode_escapes_are_no_difference_after_parsing():
    assert same(
        parse_json('{"name":"M\u00fcller \U0001f600","n":[1,2]}'),
        parse_json(b' { "n" : [ 1 ,\n 2 ], "name" : "M\\u00fcller \\ud83d\\ude00" } '),
    )


@pytest.mark.parametrize(
    "wrap",
    [lambda n: n, lambda n: [n], lambda n: {"n": n}, lambda n: {"n": n, "m": 1.5}, lambda n: [b"slow", n]],
)
def test_an_integral_float_is_its_integer(wrap):
    assert same(wrap(1), wrap(1.0))
    assert same(wrap(0), wrap(0.0), wrap(-0.0))
    assert same(wrap(-7), wrap(-7.0))
    assert same(wrap(int(1e16)), wrap(1e16))
    assert same(wrap(int(1.5e300)), wrap(1.5e300))
    assert all_differ(wrap(1), wrap(1.5), wrap(1.0000000000000002), wrap(10))


def test_an_integral_float_beside_text_that_looks_like_one():
    """The text `.0,` in a str is not touched when floats are written as integers."""
    assert same({"a": 1.0, "b": "v1.0,x", "c": [2.0]}, {"a": 1, "b": "v1.0,x", "c": [2]})
    assert all_differ({"a": 1.0, "b": "v1.0,x"}, {"a": 1.0, "b": "v1,x"}, {"a": 1.0, "b": "v1.0]"})
    # As many as there are floats, and none of them is one.
    assert canonical.canonical([1e16, "v1.0,"]) == b'[10000000000000000,"v1.0,"]'
    for end in (",", "]", "}"):
        text = f"v.0{end}"
        for floats in ([1.0, text], [text, 1.0], [text, {"a": 1.0}], [text, text, 1.0], [text, text, {"a": 1.0}]):
            assert same(floats, json.loads(json.dumps(floats).replace("1.0", "1")))


def test_a_float_that_cannot_be_told_from_its_neighbour_integer_is_the_integer_it_holds():
    assert same(float(2**53), 2**53)
    assert all_differ(2**53, 2**53 + 1)


def test_list_and_tuple_are_one_sequence():
    pair = namedtuple("pair", "x y")

    assert same([1, [2, 3]], (1, (2, 3)), [1, (2, 3)], (1, pair(2, 3)))


def test_a_model_is_the_mapping_of_its_fields_by_attribute_name():
    assert same(
        {"item": {"sku": "x", "qty": 2}},
        {"item": Item("x", 2, seed=9)},
        {"item": ItemModel(SKU="x", qty=2)},
        {"item": ItemStruct("x", 2)},
    )
    assert all_differ(*[{"item": {"sku": "x", "qty": n}} for n in (1, 2)], {"item": Item("x", 3)})


def test_a_model_at_the_top_is_a_mapping_too():
    assert same({"sku": "x", "qty": 1}, Item("x"), ItemModel(SKU="x"), ItemStruct("x"))


def test_extra_fields_of_a_model_are_part_of_it():
    extra = ItemModel.model_validate({"sku": "x", "colour": "red"})

    assert same({"sku": "x", "qty": 1, "colour": "red"}, extra)


def test_a_field_that_was_never_set_is_absent():
    assert same({"qty": 1}, ItemModel.model_construct(qty=1))
    assert same({"sku": "x", "qty": 1}, ItemStruct("x", gift_note=msgspec.UNSET))
    assert not same(ItemStruct("x"), ItemStruct("x", gift_note="hi"))


def test_the_tag_of_a_struct_is_one_of_its_fields():
    assert same({"type": "card", "number": "1"}, Tagged("1"))
    assert all_differ(Tagged("1"), TaggedToo("1"), {"number": "1"})


def test_what_a_model_holds_beside_its_fields_is_part_of_it_unless_it_is_private():
    """A subclass that forgot to be a dataclass, and pydantic's dataclass with extra fields: EUR 10 is not USD 10."""

    @dataclass
    class Charge:
        amount: int

    class InCurrency(Charge):
        def __init__(self, amount: int, currency: str) -> None:
            super().__init__(amount)
            self.currency, self._cache = currency, object()

    class InSlots(Charge):
        __slots__ = ("_cache", "currency")

        def __init__(self, currency: str) -> None:
            super().__init__(10)
            self.currency = currency

    class Noted(msgspec.Struct, dict=True):
        amount: int

    Open = pydantic.dataclasses.dataclass(Charge, config=pydantic.ConfigDict(extra="allow"))
    noted = Noted(10)
    noted.currency = "EUR"  # type: ignore[attr-defined]
    in_euro = {"amount": 10, "currency": "EUR"}

    assert same(in_euro, InCurrency(10, "EUR"), InSlots("EUR"), Open(amount=10, currency="EUR"), noted)  # type: ignore[call-arg]
    assert all_differ(InCurrency(10, "EUR"), InCurrency(10, "USD"), Charge(10))
    assert all_differ(*[Open(amount=10, currency=code) for code in ("EUR", "USD")])  # type: ignore[call-arg]
    assert Intent(InCurrency(10, "EUR"), ignore=["currency"]).digest == Intent(Charge(10)).digest


def test_what_was_put_into_a_pydantic_model_past_pydantic_is_no_part_of_it():
    """As in its own comparison: two models are equal when their fields are."""

    class Order(pydantic.BaseModel):
        sku: str

    first, second = Order(sku="x"), Order(sku="x")
    second.__dict__["memo"] = 1

    assert first == second
    assert same(first, second, {"sku": "x"})


def test_what_is_called_like_a_field_by_another_name_is_not_lost():
    """An extra field may have the name of a field that arrives under an alias; so may a tag."""

    class Pay(msgspec.Struct, tag="pay", rename={"type": "kind"}):
        type: str

    class Refund(msgspec.Struct, tag="refund", rename={"type": "kind"}):
        type: str

    class Strict(pydantic.BaseModel, extra="allow"):
        amount: int = pydantic.Field(alias="Amount")

    assert all_differ(*[Strict.model_validate({"Amount": 1, "amount": n}) for n in (1, 2)], Strict(Amount=1))
    assert all_differ(Pay("x"), Refund("x"))


def test_a_deprecated_field_of_a_model_does_not_warn():
    class Old(pydantic.BaseModel):
        sku: str = pydantic.Field(default="x", deprecated=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert same(Old(), {"sku": "x"})


def test_slots_and_default_factories_of_a_dataclass():
    @dataclass(slots=True)
    class Order:
        lines: list[Item] = field(default_factory=list)

    assert same(Order([Item("x")]), {"lines": [{"sku": "x", "qty": 1}]})


def test_a_str_or_int_enum_is_its_value():
    assert same({"plan": "pro"}, {"plan": Plan.PRO}, {"plan": OldPlan.PRO})
    assert same([3], [Level.HIGH])
    assert same({"pro": 1}, {Plan.PRO: 1}, {OldPlan.PRO: 1})
    assert same({3: 1}, {Level.HIGH: 1})


def test_decimals_are_compared_as_numbers():
    assert same(*map(Decimal, ("1.10", "1.1", "0.11e1", "110e-2", "001.1")))
    assert same(*map(Decimal, ("0", "-0", "0.00", "0e9")))
    assert same(Decimal("100"), Decimal("1e2"))
    assert all_differ(*map(Decimal, ("1.1", "-1.1", "11", "0.11", "1.11", "0")))


def test_decimals_do_not_depend_on_the_context():
    long = Decimal("1234567890.12345678901234567890")

    before = digest(long)
    with localcontext() as context:
        context.prec, context.capitals = 3, 0
        assert digest(long) == before
        assert not same(long, Decimal("1234567890.1234567890123456789"), Decimal("1234567890.1"))


def test_subclasses_count_as_their_base():
    class Name(str): ...

    class Cents(int): ...

    class Rows(list): ...  # type: ignore[type-arg]

    assert same(
        {"a": "x", "b": 1, "c": [1]},
        OrderedDict(a=Name("x"), b=Cents(1), c=Rows([1])),
        {Name("c"): [1], "a": "x", "b": 1},
    )


def test_set_and_frozenset_have_no_order():
    words = [f"w{n}" for n in range(50)]

    assert same(set(words), frozenset(reversed(words)))
    assert same({1, 2.0}, {1.0, 2})
    assert all_differ(set(words), words, {*words, "x"}, set())


# --- Two intents --------------------------------------------------------------------------------------------------


def test_values_of_different_kinds_differ():
    moment = datetime(2024, 1, 31, 9, 0)
    assert all_differ(
        None, True, False, 1, 0, "1", "0", "true", "null", "", b"", b"1", Decimal(1), Decimal(0), [], [1], {}, {"1": 1},
        set(), {1}, frozenset({"1"}), 1.5, "1.5", Decimal("1.5"), moment, moment.date(), moment.time(),
        moment.isoformat(), moment.replace(tzinfo=UTC), "2024-01-31", timedelta(1), 86400, UUID(int=1),
        str(UUID(int=1)), UUID(int=1).bytes,
        Colour.RED, "RED", Rights.READ, [None], [[]], {"": None}, [{}],
    )  # fmt: skip


def test_bool_is_not_int_anywhere():
    assert all_differ([True], [1], {"a": True}, {"a": 1}, {True: 1}, {1: 1}, {1: True})


def test_an_integer_too_long_for_decimals_is_written_in_hexadecimals():
    for sign in (1, -1):
        long = sign * 10**4300
        assert canonical.canonical(long) == f"<int {long:#x}>".encode()
        assert canonical.canonical(long - sign) == ("-" * (sign < 0) + "9" * 4300).encode()


def test_integers_are_exact_at_any_size():
    sizes = [2**53, 2**64, 10**20, 10**600, 10**4299, 10**4300, 10**5000, 2**100_000]

    assert all_differ(*[n + d for n in sizes for d in (-1, 0, 1)], *[-n for n in sizes])


@pytest.mark.parametrize("limit", [0, 640, 4300, 100_000])
def test_integers_do_not_depend_on_the_digit_limit_of_the_process(limit):
    values = [[s * 10**n + d] for n in (10, 639, 640, 700, 4299, 4300, 4301, 9000) for d in (-1, 0) for s in (1, -1)]
    text = {"digits in a str": "9" * 5000, "n": 1}

    before = [digest(value) for value in [*values, text]]
    allowed = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(limit)
    try:
        after = [digest(value) for value in [*values, text]]
    finally:
        sys.set_int_max_str_digits(allowed)
    assert after == before
    assert len(set(after)) == len(after)


def test_datetimes_are_exact_including_their_offset():
    """The same instant in another offset is another value: a false mismatch is loud."""
    naive = datetime(2024, 1, 31, 9, 0)
    east = timezone(timedelta(hours=1))

    assert all_differ(naive, naive.replace(tzinfo=UTC), naive.replace(tzinfo=east), naive.replace(microsecond=1))
    assert all_differ(naive.replace(tzinfo=UTC), naive.replace(tzinfo=UTC).astimezone(east))
    assert same(naive.replace(tzinfo=UTC), naive.replace(tzinfo=timezone(timedelta(0), "Z")))


def test_dates_times_and_spans_are_exact():
    assert all_differ(date(2024, 1, 1), date(2024, 1, 2), time(9), time(9, 0, 0, 1), time(9, tzinfo=UTC), timedelta(1))
    assert all_differ(timedelta(0), timedelta(microseconds=1), timedelta(seconds=1), timedelta(days=-1))
    assert same(timedelta(days=1), timedelta(hours=24))


def test_a_plain_enum_is_its_class_and_member():
    assert all_differ(Colour.RED, Colour.GREEN, Card.RED, 1, "RED", Rights.READ | Rights.WRITE, Rights(0))
    assert same(Colour.RED, Colour.ROUGE)


def test_bytes_are_exact_and_not_text():
    assert same(b"abc", bytearray(b"abc"))
    assert all_differ(b"abc", "abc", b"abd", b"abc".hex(), [97, 98, 99])


def test_keys_that_are_not_str_differ_from_their_text():
    day, who = date(2024, 1, 1), UUID(int=5)

    assert all_differ(
        {1: "x"}, {"1": "x"}, {True: "x"}, {"True": "x"}, {"true": "x"}, {None: "x"}, {"null": "x"}, {"None": "x"}
    )
    assert all_differ(
        {day: 1}, {str(day): 1}, {who: 1}, {str(who): 1}, {Colour.RED: 1}, {"RED": 1}, {1.5: 1}, {"1.5": 1}
    )


def test_mixed_keys_have_no_order_either():
    day = date(2024, 1, 1)
    entries: list[tuple[Any, int]] = [
        ("b", 1),
        (2, 2),
        (None, 3),
        ("1", 4),
        (1, 5),
        (day, 6),
        (Colour.RED, 7),
        ("a", 8),
    ]

    assert same(dict(entries), dict(reversed(entries)))
    assert not same(dict(entries), {**dict(entries), 1: 6})


def test_text_can_never_imitate_a_tag():
    odd = [Decimal("1.5"), b"\xff", date(2024, 1, 1), {1}, {1: 2}, Colour.RED, 10**5000, UUID(int=1), timedelta(1)]
    tags = [canonical.canonical_slow(value).decode() for value in odd]

    assert all_differ(*odd, *tags, *[[tag] for tag in tags], *[[value] for value in odd], *[{tag: 1} for tag in tags])


def test_no_text_runs_into_its_neighbour():
    assert all_differ(
        ["a", "b"], ['a","b'], ["a,b"], [["a"], "b"], ["a", ["b"]], {"a": "b"}, {'a":"b': 1}, ['["a"'], "a\\", 'a"'
    )
    assert all_differ("\n", "\\n", "\x0b", "\\u000b", "\u2028", "\\u2028", "\x7f", "\x00", "")


def test_unicode_is_not_normalised():
    assert all_differ("é", "e\u0301", "É", "\ufb01", "fi")


def test_a_tiny_change_deep_inside_is_another_intent():
    order = {"lines": [{"sku": f"s{n}", "price": n + 0.5, "tags": ["a", {"k": [n]}]} for n in range(50)]}
    changed = json.loads(json.dumps(order))
    changed["lines"][49]["tags"][1]["k"][0] = 50

    assert not same(order, changed)


# --- Refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad", [float("nan"), float("inf"), float("-inf"), Decimal("NaN"), Decimal("-Infinity"), Decimal("sNaN")]
)
def test_what_is_not_a_number_is_refused_by_its_path(bad):
    assert refusal({"items": [{}, {}, {"price": bad}]}).path == "items.2.price"
    assert refusal(bad).path == ""
    if not (isinstance(bad, Decimal) and bad.is_snan()):  # which Python itself refuses to hash
        assert refusal({"a": {bad: 1}}).path == "a"


def test_lone_surrogates_are_refused_in_values_and_keys():
    assert refusal({"a": [1, "x\ud800"]}).path == "a.1"
    assert refusal({"a": {"x\udc00": 1}}).path == "a.x\\udc00"
    assert refusal("\ud83d\ude00").path == ""  # a pair in two halves would merge with the character


@pytest.mark.parametrize(
    "stranger",
    [object(), SimpleNamespace(a=1), Mock(), Mock(spec=str), Mock(spec=dict), UserDict(a=1), Item, ItemStruct,
     ItemModel, int, len, range(3), iter([]), 1j, memoryview(b"x"), {}.items(), Path("x"), ...],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_unknown_objects_are_refused_and_never_repr(stranger):
    refused = refusal({"items": [1, {"what": stranger}]})

    assert refused.path == "items.1.what"
    assert type(stranger).__name__ in refused.message
    assert "0x" not in refused.message


def test_a_container_as_a_key_is_refused():
    assert refusal({"a": {(1, 2): 3}}).path == "a"


def test_a_set_of_containers_is_written_piece_by_piece():
    assert canonical.canonical({(2, "b"), (1, "a")}) == b'<set [1,"a"],[2,"b"]>'


def test_a_set_has_no_places_to_name():
    assert refusal({"a": {float("nan")}}).path == "a.*"
    assert refusal({"a": {1}, "b": float("nan")}).path == "b"


def test_a_multi_dict_cannot_hide_values_behind_its_items():
    class MultiDict(dict):  # type: ignore[type-arg]
        def items(self):
            return [(key, values[0]) for key, values in super().items()]

    assert all_differ(MultiDict(a=[1, 2]), MultiDict(a=[1, 3]))
    assert same(MultiDict(a=[1, 2]), {"a": [1, 2]})


def test_two_keys_with_one_canonical_form_are_refused():
    class Loner(str):
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other

    def red() -> enum.Enum:
        class Colour(enum.Enum):
            RED = 1

        return Colour.RED

    others: tuple[Any, ...] = (1, {})
    for other in others:  # what is under them is not looked at, and need not have an order
        assert refusal({"a": {Loner("x"): 1, Loner("x"): other}}).path == "a"
        assert refusal({"a": {red(): 1, red(): other}}).path == "a"


def test_a_subclass_that_holds_nanoseconds_is_refused():
    """pandas: the base class would silently drop them."""

    class Timestamp(datetime):
        nanosecond = 0

    class Later(Timestamp):
        nanosecond = 7  # not in its __dict__: theirs is a field of a C struct

    assert same(Timestamp(2024, 1, 1), datetime(2024, 1, 1))
    assert refusal({"at": Later(2024, 1, 1)}).path == "at"


def test_a_time_whose_zone_needs_a_date_is_refused():
    class Zone(tzinfo):
        def utcoffset(self, when: datetime | None) -> timedelta | None:
            return None if when is None else timedelta(hours=1)

        dst = tzname = None  # type: ignore[assignment]

    assert refusal([time(9, tzinfo=Zone())]).path == "0"
    assert digest(datetime(2024, 1, 1, tzinfo=Zone()))


def test_nesting_is_refused_past_the_limit_and_not_before():
    assert digest(nested(DEPTH_MAX))
    assert digest([b"slow", *nested(DEPTH_MAX)])
    assert refusal(nested(DEPTH_MAX + 1)).path == ".".join("0" * DEPTH_MAX)
    assert refusal({"a": b"slow", "b": nested(DEPTH_MAX)}).path == ".".join("b" + "0" * (DEPTH_MAX - 1))
    assert "nested" in refusal({"a": {1: nested(DEPTH_MAX)}}).message


def test_cycles_show_as_nesting():
    lists: list[Any] = []
    lists += [lists, lists]
    mapping: dict[str, Any] = {"x": 1}
    mapping["self"] = mapping

    assert "nested" in refusal(lists).message
    assert refusal({"a": mapping}).path.startswith("a.self.self.")


@pytest.mark.slow
def test_size_is_refused_past_the_limit_and_not_before():
    assert digest(["x" * (SIZE_MAX - 4)])
    assert "8 MiB" in refusal(["x" * (SIZE_MAX - 3)]).message
    assert refusal(["x" * SIZE_MAX]).path == ""  # a list has no names
    assert "8 MiB" in refusal([b"x" * (SIZE_MAX // 2)]).message
    assert "8 MiB" in refusal(["\u20ac" * (SIZE_MAX // 3 + 1)]).message
    assert "8 MiB" in refusal([1 << (SIZE_MAX * 4)]).message
    assert "8 MiB" in refusal([1e300] * 30_000).message  # 210 KB as JSON, 9 MB as integers
    assert "8 MiB" in refusal("x" * SIZE_MAX).message
    beside = len('["",<bytes >]')  # which is written value by value, and counted so
    assert digest(["x" * (SIZE_MAX - beside), b""])
    assert "8 MiB" in refusal(["x" * (SIZE_MAX - beside + 1), b""]).message
    assert digest([{"x" * (SIZE_MAX // 2)}, "y" * (SIZE_MAX // 3)])  # what is in a set is counted once


def test_a_payload_that_is_too_large_names_its_largest_field(monkeypatch):
    monkeypatch.setattr(canonical, "SIZE_MAX", 1 << 20)
    small, half, whole = "x" * 10_000, "x" * (1 << 19), "x" * (1 << 20)

    assert refusal({"a": small, "b": whole, "c": half}).path == "b"
    assert refusal({"a": half, "b": half + small, "c": small}).path == "b"
    assert refusal({"a": small, "b": {"c": [Decimal(1), whole]}}).path == "b"
    assert refusal({"note": half, Decimal(2): [half, small]}).path == "2"
    assert refusal({"file": whole.encode(), "at": 1}, ignore={"at"}).path == "file"
    assert len(refusal({"k" * 10_000: whole}).path) < 200


def test_of_what_is_too_large_the_largest_part_is_named_and_what_has_no_form_is_none(monkeypatch):
    for module in (canonical, json_text):
        monkeypatch.setattr(module, "SIZE_MAX", 1 << 20)
    large = "x" * (1 << 20)
    assert refusal({"z": object(), "b": large}).path == "b"
    assert refusal({"a": large[::2], "b": large[::2] + "xxx", "c": b""}).path == "b"
    assert json_refusal(" " * (1 << 20) + "1").path == ""


@pytest.mark.slow
def test_a_few_shared_lists_cannot_stand_for_a_billion(monkeypatch):
    monkeypatch.setattr(canonical, "SIZE_MAX", 1 << 20)
    laughs: Any = ["ha"] * 1000
    for _ in range(5):
        laughs = [laughs] * 1000

    assert "1 MiB" in refusal(laughs).message
    assert refusal({"a": 1, "laughs": laughs}).path == "laughs"


def test_a_refusal_names_a_long_or_unprintable_step_in_bounded_text():
    refused = refusal({"k" * 10_000: {"\ud800": float("nan")}})

    assert refused.path == "k" * STEP_MAX + "...." + "\\ud800"
    assert refusal({"k" * STEP_MAX: float("nan")}).path == "k" * STEP_MAX
    refused.path.encode()


def test_the_first_odd_argument_does_not_hide_what_is_plain():
    """Plain parts take the quick way inside the walk, and are refused by the same path."""
    assert refusal({"at": date(2024, 1, 1), "items": [{"price": float("nan")}]}).path == "items.0.price"


# --- Ignored fields -----------------------------------------------------------------------------------------------


def ignoring(paths: set[str], *payloads: Any) -> bool:
    return len({digest(payload, ignore=paths) for payload in payloads}) == 1


def test_a_top_level_name_removes_that_field():
    assert ignoring({"client_ts"}, {"a": 1, "client_ts": 1}, {"a": 1, "client_ts": 2}, {"a": 1})
    assert not ignoring({"client_ts"}, {"a": 1}, {"a": 2})
    assert not ignoring({"client_ts"}, {"a": {"client_ts": 1}}, {"a": {"client_ts": 2}})


def test_a_dotted_path_removes_a_field_deeper_down():
    assert ignoring({"meta.sent.at"}, {"meta": {"sent": {"at": 1, "by": 2}}}, {"meta": {"sent": {"by": 2}}})
    assert not ignoring({"meta.sent.at"}, {"meta": {"at": 1}}, {"meta": {"at": 2}})


def test_a_star_is_every_index_and_every_key():
    assert ignoring({"items.*.ts"}, {"items": [{"ts": 1, "n": 1}, {"n": 2}]}, {"items": ({"n": 1}, {"ts": 5, "n": 2})})
    assert ignoring({"items.*.ts"}, {"items": {"a": {"ts": 1}, 7: {"ts": 2}}}, {"items": {"a": {}, 7: {}}})
    assert ignoring({"*.ts"}, {"a": {"ts": 1}, "b": {"ts": 2}}, {"a": {}, "b": {}})
    assert ignoring({"*.ts"}, [{"ts": 1}], [{}])
    assert ignoring({"items.*"}, {"items": [1, 2]}, {"items": []})
    assert not ignoring({"items.*.ts"}, {"items": [{"n": 1}]}, {"items": [{"n": 2}]})
    assert not ignoring({"items.*.ts"}, {"items": [{}]}, {"items": [{}, {}]})


def test_ignore_reaches_into_models():
    assert ignoring(
        {"item.qty"},
        {"item": Item("x", 1)},
        {"item": ItemModel(SKU="x", qty=2)},
        {"item": ItemStruct("x", 3)},
        {"item": {"sku": "x"}},
    )
    assert ignoring({"qty"}, Item("x", 1), Item("x", 2), {"sku": "x"})
    assert ignoring({"items.*.qty"}, {"items": (Item("x", 1),)}, {"items": [Item("x", 2)]})


def test_ignore_reaches_into_named_tuples():
    """Their elements have names, by which a key may be taken of them too."""
    sent = namedtuple("sent", "id at by")

    assert ignoring({"sent.at"}, {"sent": sent(1, 2, {"x": 1})}, {"sent": sent(1, 3, {"x": 1})})
    assert ignoring({"sent.by.x", "sent.at"}, {"sent": sent(1, 2, {"x": 1})}, {"sent": sent(1, 3, {"x": 2})})
    assert ignoring({"sent.*.x", "sent.at"}, {"sent": sent(1, 2, {"x": 1})}, {"sent": sent(1, 3, {})})
    assert ignoring({"sent.*"}, {"sent": sent(1, 2, 3)}, {"sent": []})
    assert not ignoring({"sent.at"}, {"sent": sent(1, 2, 3)}, {"sent": sent(2, 2, 3)})
    assert digest({"sent": sent(1, 2, 3)}, ignore={"sent.x"}) == digest({"sent": [1, 2, 3]})
    assert digest({"sent": tuple.__new__(sent, (1, 2, 3, 4))}, ignore={"sent.at"}) == digest({"sent": [1, 3, 4]})


def test_what_an_ignored_path_does_not_lead_into_stays():
    for inside in ([1], (1,), "text", 7, None):
        assert digest({"a": inside}, ignore={"a.b"}) != digest({"a": [2]}, ignore={"a.b"})
        assert same(inside, fingerprint._without({"a": inside}, ("a.b",))["a"])


def test_a_missing_ignored_field_is_fine():
    assert ignoring({"nothing", "a.b.c", "a.*.d", "x.*"}, {"a": 1, "x": "text"}, {"a": 1, "x": "text"})
    assert same({"a": 1}, {"a": 1})
    assert digest({"a": 1}, ignore={"b"}) == digest({"a": 1})
    assert digest("text", ignore={"b"}) == digest("text")


def test_dropping_a_field_drops_what_is_in_it():
    assert ignoring({"a", "a.b", "a-b", "a.b.c"}, {"a": {"b": 1, "c": 2}, "z": 1}, {"z": 1})


def test_what_is_ignored_may_be_anything():
    assert digest({"a": 1, "session": object(), "n": {"x": float("nan")}}, ignore={"session", "n.x"})


def test_the_payload_is_not_changed():
    payload = {"a": [{"ts": 1, "n": 1.0}], "ts": 2}
    before = json.dumps(payload)

    Intent(payload, ignore={"ts", "a.*.ts"}).fingerprint()
    assert json.dumps(payload) == before


def test_check_ignore_sorts_and_drops_repeats():
    assert check_ignore(["b", "a.*.c", "b", Plan.PRO]) == ("a.*.c", "b", "pro")
    assert check_ignore(()) == ()
    assert check_ignore(name for name in ("b", "a")) == ("a", "b")  # type: ignore[arg-type]


def test_an_index_in_a_declared_path_is_refused_with_the_path_that_works():
    assert fingerprint.declared_ignore(["b", "a.*.c"]) == ("a.*.c", "b")
    with pytest.raises(Misconfigured, match=r"has 'a\.0\.c', .*: 'a\.\*\.c'$"):
        fingerprint.declared_ignore(["a.0.c"])


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("client_ts", "not one string"),
        (b"client_ts", "not one string"),
        ([1], "not int"),
        ([None], "not NoneType"),
        ([["a"]], "not list"),
    ],
)
def test_check_ignore_takes_a_collection_of_str(wrong, why):
    with pytest.raises(TypeError, match=f"ignore takes .*{why}"):
        check_ignore(wrong)


@pytest.mark.parametrize(
    "wrong", [[""], ["a."], [".a"], ["a..b"], ["\ud800"], [f"p{n}" for n in range(IGNORE_MAX + 1)], ["x" * FORM_MAX]]
)
def test_check_ignore_refuses_what_no_form_could_carry(wrong):
    with pytest.raises(Misconfigured, match="ignore"):
        check_ignore(wrong)
    with pytest.raises(Misconfigured, match="ignore"):
        Intent({}, ignore=wrong)


# --- Form, secrets, and records of yesterday ----------------------------------------------------------------------


def test_the_form_says_version_ignore_set_and_secret():
    assert Intent({}).form == "1"
    assert Intent({}, ignore={"items.*.ts", "client_ts"}).form == "1 ignore=client_ts,items.*.ts"
    assert re.fullmatch(r"1 ignore=a secret=[0-9a-f]{8}", Intent({}, ignore=["a"], secrets=[b"s1"]).form)


@pytest.mark.parametrize(
    "path", ["a b", "a,b", "a=b", "a secret=00000000", "%2C", "é.*", "-", "~", "a\nb", "\x00", '"']
)
def test_any_name_survives_the_form(path):
    intent = Intent({path.split(".")[0]: 1, "z": 1}, ignore=[path, "other"], secrets=[b"s"])

    assert fingerprint._parse_form(intent.form)[0] == check_ignore([path, "other"])
    assert intent.form.isascii()
    assert intent.form.isprintable()


def test_a_form_may_be_as_long_as_its_limit():
    longest = "x" * (FORM_MAX - len("1 ignore= secret=00000000"))
    stored = Intent({longest: 1, "a": 1}, ignore={longest}, secrets=[b"s"]).fingerprint()

    assert len(stored.form) == FORM_MAX
    assert Intent({"a": 1}, secrets=[b"s"]).matches(stored.digest, stored.form)


def test_a_record_is_compared_under_the_ignore_set_it_was_written_with():
    before = Intent({"a": 1, "ts": 1}).fingerprint()
    after = Intent({"a": 1, "ts": 1}, ignore={"ts"}).fingerprint()

    assert Intent({"a": 1, "ts": 1}, ignore={"ts"}).matches(before.digest, before.form)
    assert not Intent({"a": 1, "ts": 2}, ignore={"ts"}).matches(before.digest, before.form)
    assert Intent({"a": 1, "ts": 2}).matches(after.digest, after.form)
    assert not Intent({"a": 2, "ts": 2}).matches(after.digest, after.form)
    assert Intent({"a": 1, "ts": 2}, ignore={"other"}).matches(after.digest, after.form)


def test_a_secret_keys_the_digest():
    payload = {"pin": "1234"}

    assert len({digest(payload), digest(payload, secrets=[b"one"]), digest(payload, secrets=[b"two"])}) == 3
    assert all(len(digest(payload, secrets=secrets)) == 32 for secrets in ([], [b"one"]))


def test_the_first_secret_writes_and_the_others_are_still_read():
    payload = {"pin": "1234"}
    old, new = Intent(payload, secrets=[b"old"]), Intent(payload, secrets=[b"new", b"old"])

    assert new.digest == digest(payload, secrets=[b"new"])
    assert new.matches(old.digest, old.form)
    assert not Intent({"pin": "1235"}, secrets=[b"new", b"old"]).matches(old.digest, old.form)


def test_a_record_from_before_the_first_secret_is_still_read():
    old = Intent({"pin": "1234"})

    assert Intent({"pin": "1234"}, secrets=[b"new"]).matches(old.digest, old.form)
    assert not Intent({"pin": "1235"}, secrets=[b"new"]).matches(old.digest, old.form)


@pytest.mark.parametrize("secrets", [(), [b"new"]])
def test_an_unknown_secret_is_neither_match_nor_mismatch(secrets):
    old = Intent({"pin": "1234"}, secrets=[b"old"]).fingerprint()
    intent = Intent({"pin": "1234"}, secrets=secrets)

    with pytest.raises(Misconfigured, match="secret"):
        intent.matches(old.digest, old.form)
    with pytest.raises(Misconfigured, match="secret"):
        intent.differing(old)


@pytest.mark.parametrize(
    "form",
    ["2", "", "1 ", "01", "1 ignore=", "1 ignore=b,a", "1 ignore=a..b", "1 ignore=%2c", "1 ignore=%FF", "1 secret=ab",
     "1 secret=00000000 ignore=a", "1 extra=1", "1\n", "1 ignore=é", "1 ignore=" + "x" * FORM_MAX],
)  # fmt: skip
def test_an_unknown_or_damaged_form_is_neither_match_nor_mismatch(form):
    intent = Intent({"a": 1})

    with pytest.raises(Misconfigured):
        intent.matches(intent.digest, form)
    with pytest.raises(Misconfigured):
        intent.differing(Fingerprint(intent.digest, form, (("a", b"1234"),)))


def test_the_secret_id_reveals_nothing_and_is_stable():
    form = Intent({}, secrets=[b"a secret of some length"]).form

    assert form == Intent({"other": 1}, secrets=[b"a secret of some length", b"x"]).form
    assert b"a secret of some length".hex()[:8] not in form


@pytest.mark.parametrize("secrets", [b"bytes", "str", [1], ["s"], [b"a", "s"], {b"which is the first", b"of a set"}])
def test_secrets_are_a_list_of_bytes(secrets):
    with pytest.raises(TypeError, match="secret"):
        Intent({}, secrets=secrets)


def test_an_empty_secret_is_refused():
    with pytest.raises(Misconfigured, match="empty"):
        Intent({}, secrets=[b"a", b""])


def test_two_secrets_with_one_short_id_are_refused(monkeypatch):
    monkeypatch.setattr("hmac.digest", lambda key, data, name: bytes(32))

    with pytest.raises(Misconfigured, match="short id"):
        Intent({}, secrets=[b"collides", b"collides too"])


def test_errors_come_when_the_intent_is_built():
    with pytest.raises(PayloadRefused):
        Intent({"a": object()})


# --- Fields -------------------------------------------------------------------------------------------------------


def test_fields_are_sorted_names_with_four_byte_digests():
    fingerprint = Intent({"b": 1, "a": {"x": Decimal(1)}, 7: "unnamed", "ts": 1}, ignore={"ts"}).fingerprint()

    assert [name for name, _ in fingerprint.fields] == ["a", "b"]
    assert all(len(short) == 4 for _, short in fingerprint.fields)
    assert (len(fingerprint.digest), fingerprint.form) == (32, "1 ignore=ts")


def test_the_fingerprint_is_made_once():
    intent = Intent({"a": 1})

    assert intent.fingerprint() is intent.fingerprint()
    assert intent.fingerprint().digest == intent.digest


@pytest.mark.parametrize("payload", ["text", b"bytes", [1, 2], None, 7, {1, 2}, {}, {1: 2}])
def test_only_mappings_have_fields(payload):
    assert Intent(payload).fingerprint().fields == ()
    assert [n for n, _ in Intent(Item("x")).fingerprint().fields] == ["qty", "sku"]


def test_a_member_of_an_enum_has_no_fields_whatever_it_is_made_of():
    class Stock(Item, enum.Enum):
        BOOK = ("book", 1)

    assert Intent(Stock.BOOK).fingerprint().fields == ()


def test_what_a_record_keeps_beside_the_digest_is_frozen_for_ever():
    plain = Intent({"amount": 200, "to": "x"}, salt="r").fingerprint()
    keyed = Intent({"amount": 200}, salt="r", secrets=[b"s"]).fingerprint()

    assert plain.fields == (("amount", bytes.fromhex("59bdd122")), ("to", bytes.fromhex("478a8b6d")))
    assert keyed.fields == (("amount", bytes.fromhex("771036aa")),)
    assert keyed.form == "1 secret=68e9e264"


def test_equal_values_do_not_show_across_fields_records_or_secrets():
    def fields(**options: Any) -> list[bytes]:
        return [short for _, short in Intent({"a": 1, "b": 1}, **options).fingerprint().fields]

    seen = fields() + fields(salt="r1") + fields(salt="r2") + fields(secrets=[b"s"]) + fields(secrets=[b"s"], salt="r1")

    assert len(set(seen)) == len(seen) == 10
    assert fields(salt="r1") == fields(salt="r1")


def test_without_a_salt_it_is_empty():
    assert Intent({"a": 1}).fingerprint() == Intent({"a": 1}, salt="").fingerprint()


def test_the_salt_is_for_fields_only():
    assert digest({"a": 1}, salt="r1") == digest({"a": 1})


def test_differing_names_what_changed_went_missing_and_is_new():
    stored = Intent({"amount": 200, "to": "x", "note": "n", "same": [1.0]}, salt="r").fingerprint()

    assert Intent({"amount": 500, "to": "x", "memo": 1, "same": (1,)}, salt="r").differing(stored) == (
        "amount",
        "memo",
        "note",
    )
    assert Intent({"amount": 200, "to": "x", "note": "n", "same": [1]}, salt="r").differing(stored) == ()
    assert Intent({}, salt="r").differing(stored) == ("amount", "note", "same", "to")


def test_differing_judges_under_the_stored_form():
    stored = Intent({"amount": 200, "ts": 1}, ignore={"ts"}, secrets=[b"old"]).fingerprint()

    assert Intent({"amount": 500, "ts": 2}, secrets=[b"new", b"old"]).differing(stored) == ("amount",)


def test_differing_says_nothing_where_it_cannot_tell():
    stored = Intent({"a": 1}).fingerprint()

    assert Intent([1]).differing(stored) == ()
    assert Intent({"a": 1}).differing(Intent([1]).fingerprint()) == ()
    assert Intent({"a": 1, 7: 1}).differing(Intent({"a": 1, 7: 2}).fingerprint()) == ()


def test_a_long_list_of_fields_is_cut_and_nothing_is_claimed_beyond_it():
    many = {f"f{n:03}": n for n in range(FIELDS_MAX * 2)}
    stored = Intent(many).fingerprint()

    assert len(stored.fields) == FIELDS_MAX
    assert Intent({**many, "f001": -1, "f100": -1, "f001x": 0, "zzz": 0}).differing(stored) == ("f001", "f001x")
    assert len(Intent({f"g{n:03}": n for n in range(200)}).differing(Intent({"a": 1}).fingerprint())) == FIELDS_MAX


def test_a_very_long_name_is_not_kept():
    stored = Intent({"n" * 10_000: 1, "a": 1}).fingerprint()

    assert [name for name, _ in stored.fields] == ["a"]
    assert Intent({"n" * 10_000: 2, "a": 1}).differing(stored) == ()
    for beside in ({}, {7: 1}, {"n" * 129: 1}):
        assert "n" * 128 in dict(Intent({"n" * 128: 1, **beside}).fingerprint().fields)


def test_whoever_has_written_the_payload_already_gets_the_same_fingerprint():
    payload = {"amount": 200, "ts": 1}
    written = canonical.canonical(payload)
    for how in ({}, {"ignore": {"ts"}}, {"secrets": [b"s"]}, {"ignore": {"ts"}, "secrets": [b"s"]}):
        spared = Intent(payload, written=written, **how)
        assert spared.fingerprint() == Intent(payload, **how).fingerprint()
        assert spared.matches(*Intent({"amount": 200}, ignore={"ts"}).fingerprint()[:2])


# --- JSON bodies --------------------------------------------------------------------------------------------------


def json_refusal(body: bytes | str) -> PayloadRefused:
    with pytest.raises(PayloadRefused) as caught:
        parse_json(body)
    return caught.value


@pytest.mark.parametrize(
    "body", [b'{"a":[1,-0,2.5,1e3,true,null,"\\u00e9\\n"]}', '"\u20ac"', b" 7 ", b"[]", b'{"a":{"b":{}}}', "\t[1]\r\n"]
)
def test_what_json_reads_is_read_alike(body):
    assert parse_json(body) == json.loads(body)


def test_duplicate_names_are_refused_by_their_path():
    assert json_refusal(b'{"amount":1,"amount":100}').path == "amount"
    assert json_refusal(b'{"items":[{},{"a":1,"b":2,"\\u0061":3}]}').path == "items.1.a"
    assert json_refusal(b'{"x":{"y":1,"y":2},"x":1}').path == "x"


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_constants_that_are_not_json_are_refused_by_their_path(word):
    assert json_refusal(f'{{"a":[0,{word}]}}').path == "a.1"
    assert json_refusal(word).path == ""


def test_lone_surrogates_in_a_body_are_refused_by_their_path():
    assert json_refusal(b'{"a":["\\ud800"]}').path == "a.0"
    assert json_refusal(b'{"a":{"\\uDC00":1}}').path == "a.\\udc00"
    assert json_refusal('{"a":"\ud800"}').path == "a"
    assert json_refusal(b'["\\ude00\\ud83d"]').path == "0"
    assert parse_json(b'["\\ud83d\\ude00", "\\\\ud800"]') == ["\U0001f600", "\\ud800"]
    assert parse_json(b'"\\ud83d\\ude00"') == "\U0001f600"


@pytest.mark.parametrize(
    "body",
    [b'"\xff"', b'"\xed\xa0\x80"', b'"\xc0\x80"', '{"a":1}'.encode("utf-16"), '{"a":1}'.encode("utf-32"),
     "\ufeff{}".encode(), b"", b" ", b"{", b"[1,]", b'{"a":1,}', b"{'a':1}", b"01", b"+1", b"1.", b".5",
     b"1 2", b"1X", b"X1", b"tru", b'"\t"', b"[1]\x00",
     b"\xa01", b'{1:2}', b'"a', b"nan", b"0x10", "\ud800", b"// c\n1", b"\x0c1", b"-", b"1e", b'"\\x"', b'"\\u12"'],
)  # fmt: skip
def test_bodies_that_are_not_utf8_json_are_refused(body):
    assert json_refusal(body).path == ""


def test_a_body_that_nests_too_deep_is_refused_at_any_depth():
    assert parse_json("[" * DEPTH_MAX + "]" * DEPTH_MAX)
    assert json_refusal("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1)).path == ".".join("0" * DEPTH_MAX)
    for deep in (900, 5_000, 100_000, 2_000_000):
        assert json_refusal("[" * deep + "]" * deep).path in ("", ".".join("0" * DEPTH_MAX))
        json_refusal("[" * deep)
        json_refusal('{"a":' * deep + "1" + "}" * deep)


def test_a_body_that_is_too_large_is_refused_before_it_is_read():
    assert "8 MiB" in json_refusal(b"[" + b" " * SIZE_MAX + b"]").message
    assert "8 MiB" in json_refusal(" " * SIZE_MAX + "1").message


@pytest.mark.parametrize(
    "text",
    [
        "0.1000000000000000055",
        "1E400",
        "1e23",
        "1e-400",
        "9007199254740993.0",
        "123456789012345678901234567890.5",
        "-1E+400",
        "1e+23",
        "1.7976931348623157e308",
    ],
)
def test_a_number_that_a_double_would_round_is_kept_as_written(text):
    assert parse_json(text) == Decimal(text)
    assert isinstance(parse_json(text), Decimal)
    assert all_differ(parse_json(text), float(text) if float(text) not in (float("inf"), float("-inf")) else "infinite")


@pytest.mark.parametrize(
    "text", ["0.1", "1.10", "-0.0", "1e22", "1E2", "5e-324", "1.5e22", "100.000", "0e9", "9007199254740992.0"]
)
def test_a_number_that_a_double_holds_is_a_float(text):
    assert parse_json(text) == float(text)
    assert isinstance(parse_json(text), float)


def test_numbers_in_a_body_never_merge():
    texts = ["0.1", "0.1000000000000000055", "1e400", "1e401", "10", "1e23", "99999999999999991611392",
             "100000000000000000000000", "9007199254740992", "9007199254740993", "9007199254740993.0",
             "1e-400", "0", "100000000000000000001"]  # fmt: skip

    assert all_differ(*map(parse_json, texts))
    assert same(*map(parse_json, ["1", "1.0", "1e0", "10e-1", "1.000"]))


def test_integers_in_a_body_are_exact_and_bounded():
    assert parse_json("1" * 4300) == (10**4300 - 1) // 9
    assert json_refusal('{"n":[' + "1" * 4301 + "]}").path == "n.0"
    allowed = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert parse_json("[" + "1" * 700 + "]") == [(10**700 - 1) // 9]
    finally:
        sys.set_int_max_str_digits(allowed)


@pytest.mark.parametrize("text", ["1e99999999999999999999", "1e-99999999999999999999"])
def test_an_exponent_without_end_is_refused(text):
    assert json_refusal(f'{{"n":{text}}}').path == "n"
    with localcontext() as context:
        context.clear_traps()
        assert json_refusal(f'{{"n":{text}}}').path == "n"


@pytest.mark.parametrize(
    "body",
    [
        b'{"order":"o-1","amount":1999,"card":{"save":true},"items":[1.5,19.90,-0,"\\u00e9 \\" / : \\n",null]}',
        b'{"price":1e-7}',
        b"[]",
        b"7",
        b'{"n":123456789012345678901234567890}',
    ],
)
def test_plain_json_is_read_together_with_its_canonical_bytes(body):
    value, written = read_json(body)

    assert value == parse_json(body)
    assert written == canonical.canonical(value)


@pytest.mark.parametrize(
    "body",
    [b"1.0", b"[-0.0]", b"1e23", b"1E400", b'["\\ud83d\\ude00"]', b'{"\\u003a":1}', b"[" * 64 + b"1.0" + b"]" * 64],
)
def test_what_needs_a_closer_look_is_read_without_them(body):
    assert read_json(body) == (parse_json(body), None)


def test_long_integers_are_refused_before_they_are_read_also_where_the_process_allows_them():
    allowed = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert json_refusal("[" + "1" * 1_000_000 + "]").path == "0"
    finally:
        sys.set_int_max_str_digits(allowed)


def test_text_is_text_also_where_the_process_allows_any_number_of_digits():
    allowed = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        for text in ("(" * 5000, "1" * 4300 + "x"):
            assert canonical.canonical([text]) == f'["{text}"]'.encode()
            assert read_json(f'["{text}"]') == ([text], f'["{text}"]'.encode())
    finally:
        sys.set_int_max_str_digits(allowed)


def test_parse_json_takes_text():
    assert parse_json("[1]") == parse_json(b"[1]") == parse_json(bytearray(b"[1]")) == [1]  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bytes or str"):
        parse_json({"a": 1})  # type: ignore[arg-type]


# --- The bytes are for ever ---------------------------------------------------------------------------------------


def golden_values() -> dict[str, Any]:
    """Runs in child processes too, from its source: everything it needs is in it."""
    import enum
    from collections import OrderedDict
    from dataclasses import dataclass
    from datetime import UTC, date, datetime, time, timedelta, timezone
    from decimal import Decimal
    from uuid import UUID

    class Colour(enum.Enum):
        RED = 1

    class Plan(enum.StrEnum):
        PRO = "pro"

    class Level(enum.IntEnum):
        HIGH = 3

    class Rights(enum.Flag):
        READ = 1
        WRITE = 2

    @dataclass(frozen=True)
    class Item:
        sku: str
        price: Decimal

    who = UUID("12345678-1234-5678-1234-567812345678")
    east = timezone(timedelta(hours=5, minutes=30))
    moment = datetime(2024, 2, 29, 23, 59, 59, 123456)
    return {
        "null": None,
        "true": True,
        "false": False,
        "zero": 0,
        "minus one": -1,
        "integer past 2**53": 2**53 + 1,
        "integer past 2**64": -(2**64) - 1,
        "integer of 4300 digits": 10**4300 - 1,
        "integer of 4301 digits": 10**4300,
        "negative integer of 5000 digits": -(10**5000),
        "float": 0.1,
        "float with exponent": 1.5e-7,
        "smallest float": 5e-324,
        "integral float": 200.0,
        "minus zero": -0.0,
        "large float": 1e300,
        "largest float": 1.7976931348623157e308,
        "empty str": "",
        "ascii": "hello",
        "escapes": 'quote " backslash \\ slash / tab \t newline \n nul \x00 del \x7f',
        "unicode": "Müller € 😀 \u2028",
        "str like a tag": "<decimal 1e0>",
        "empty list": [],
        "list": [1, "a", None, [True, []]],
        "tuple": (1, (2.0, 3)),
        "empty mapping": {},
        "mapping": {"b": 1, "a": {"y": [1.5], "x": None}},
        "names that need escapes": {'"': 1, "\\": 2, "a": 3, "\n": 4, "é": 5, "😀": 6, "Z": 7},
        "ordered mapping": OrderedDict(z=1, a=2.0),
        "keys of every kind": {
            "a": 1,
            1: 2,
            None: 3,
            who: 4,
            date(2024, 1, 1): 5,
            Colour.RED: 6,
            2.5: 7,
            "1": 8,
            False: 9,
        },
        "enum keys": {Plan.PRO: 1, Level.HIGH: 2},
        "decimal": Decimal("1.10"),
        "negative decimal": Decimal("-0.001"),
        "large decimal": Decimal("12e400"),
        "decimal zero": Decimal("-0.00"),
        "bytes": b"\x00\xff",
        "bytearray": bytearray(b"abc"),
        "naive datetime": moment,
        "utc datetime": moment.replace(tzinfo=UTC),
        "datetime with offset": moment.replace(tzinfo=east, microsecond=0),
        "date": date(2024, 2, 29),
        "time": time(9, 30, 0, 1),
        "time with offset": time(9, 30, tzinfo=east),
        "timedelta": timedelta(days=-1, seconds=5, microseconds=7),
        "uuid": who,
        "enum": Colour.RED,
        "str enum": Plan.PRO,
        "int enum": Level.HIGH,
        "flag": Rights.READ,
        "empty flag": Rights(0),
        "empty set": set(),
        "set": {3, "a", 2.0, None, b"x", who},
        "frozenset of tuples": frozenset({(1, "b"), (1, "a")}),
        "dataclass": Item("x", Decimal("9.90")),
        "order": {
            "order_id": "o-1",
            "amount": 200,
            "currency": "EUR",
            "at": moment.replace(tzinfo=UTC),
            "items": [Item("a", Decimal("1.5")), {"sku": "b", "price": 2.0, "tags": {"x", "y"}}],
        },
    }


def golden_digests() -> dict[str, Any]:
    from samekey.core.fingerprint import Intent

    found: dict[str, Any] = {name: Intent(value).digest.hex() for name, value in golden_values().items()}
    order = golden_values()["order"]
    keyed = Intent(
        order, ignore={"items.*.price", "at", "näme"}, secrets=(b"current", b"old"), salt="salt"
    ).fingerprint()
    plain = Intent(order, salt="salt").fingerprint()
    for name, one in (("fingerprint", plain), ("keyed fingerprint", keyed)):
        fields = {field: short.hex() for field, short in one.fields}
        found[name] = {"digest": one.digest.hex(), "form": one.form, "fields": fields}
    return found


def test_golden_digests_hold_in_this_process():
    assert len(golden_values()) >= 40
    assert golden_digests() == GOLDEN


def test_golden_values_are_all_different_except_where_they_should_not_be():
    digests = [value for value in GOLDEN.values() if isinstance(value, str)]

    assert len(digests) - len(set(digests)) == 1  # "zero" and "minus zero"


def interpreters() -> list[str]:
    """The running Python, and whichever others of 3.11 to 3.13 really start (a pyenv shim may not)."""
    found = [sys.executable]
    for version in {"3.11", "3.12", "3.13"} - {f"3.{sys.version_info.minor}"}:
        home = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
        named = [shutil.which(f"python{version}"), *sorted(home.glob(f"versions/{version}.*/bin/python"))]
        starts = (path for path in named if path and not subprocess.call([path, "-Sc", ""], stderr=subprocess.DEVNULL))
        found += [str(path) for path in [next(starts, None)] if path]
    return found


@pytest.mark.slow
def test_golden_digests_hold_in_every_python_under_any_hash_seed_and_digit_limit():
    program = "\n".join(
        [
            "import json, sys\nfrom typing import Any",
            inspect.getsource(golden_values),
            inspect.getsource(golden_digests),
            "sys.set_int_max_str_digits(int(sys.argv[1]))\nprint(json.dumps(golden_digests()))",
        ]
    )
    for at, python in enumerate(interpreters()):
        for seed, limit in ((str(at), "640"), ("4321", "0"))[: None if at == 0 else 1]:
            child = subprocess.run(
                [python, "-S", "-c", program, limit],
                env={"PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": seed, "PATH": os.environ["PATH"]},
                stdout=subprocess.PIPE,
                timeout=60,
                check=True,
            )
            assert json.loads(child.stdout) == GOLDEN, (python, seed, limit)


def test_an_adopted_record_matches_every_payload_and_names_no_field():
    """Its hash was made by the rules of another table, so there is nothing to compare."""
    intent = Intent({"amount": 200}, secrets=(b"s" * 32,))
    stored = Fingerprint(b"\x00" * 32, ADOPTED, ())

    assert intent.matches(stored.digest, ADOPTED)
    assert intent.differing(stored) == ()
    with pytest.raises(Misconfigured):
        intent.matches(stored.digest, "adopted by others")
