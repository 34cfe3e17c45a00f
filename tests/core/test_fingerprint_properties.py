"""What holds for every payload. `meaning` is a second, slow and simple opinion on when two payloads are one intent."""

from __future__ import annotations

import enum
import json
import math
import random
from dataclasses import make_dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st

from samekey.core import canonical, fingerprint
from samekey.core.errors import PayloadRefused
from samekey.core.fingerprint import Intent, check_ignore
from samekey.core.json_text import _read_exactly, _read_quick, parse_json, read_json

EXAMPLES = settings(deadline=None, max_examples=60)  # all tests of this file take some seconds


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 0
    HIGH = 3


class Plan(enum.StrEnum):
    PRO = "a"


def meaning(value: Any) -> Any:
    """A hashable value that is equal exactly when the intent is equal."""
    if value is None or isinstance(value, bool):
        return ("constant", value)
    if isinstance(value, float) and value.is_integer():
        return ("number", int(value))
    if isinstance(value, int):
        return ("number", int(value))
    if isinstance(value, float):
        return ("fraction", value)
    if isinstance(value, str):
        return ("text", str.__str__(value))
    if isinstance(value, Decimal):
        return ("decimal", Fraction(value))
    if isinstance(value, datetime):
        return ("datetime", value.replace(tzinfo=None), value.utcoffset())
    if isinstance(value, time):
        return ("time", value.replace(tzinfo=None), value.utcoffset())
    if isinstance(value, (date, timedelta, UUID)):
        return (type(value).__name__, value)
    if isinstance(value, (bytes, bytearray)):
        return ("bytes", bytes(value))
    if isinstance(value, enum.Enum):
        return ("enum", type(value).__name__, value.name)
    if isinstance(value, (list, tuple)):
        return ("sequence", tuple(map(meaning, value)))
    if isinstance(value, (set, frozenset)):
        return ("set", frozenset(map(meaning, value)))
    if isinstance(value, dict):
        return ("mapping", frozenset((meaning(k), meaning(v)) for k, v in value.items()))
    raise AssertionError(type(value))


# Small alphabets: two payloads drawn apart should often be nearly, and sometimes really, the same.
texts = st.text(alphabet='ab0.,"\\<>{}[]:é\n \U0001f600', max_size=6)
names = st.sampled_from(["a", "b", "c", "a.b", '"', "\\", "é", "\n", "Z", "1", "*", "true", "\U0001f600", "\uffff"])
numbers = st.one_of(
    st.integers(-3, 3),
    st.integers(),
    st.sampled_from([0.0, -0.0, 1.0, 2.5, 1e15, 1e16, 1e22, 1e23, -1e300, 2.0**53, 10**22, 2**53 + 1, 10**700]),
    st.floats(allow_nan=False, allow_infinity=False),
)
plain_scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
plain = st.recursive(
    plain_scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=3).map(tuple), st.dictionaries(names, inner, max_size=4)
    ),
    max_leaves=12,
)
zones = st.one_of(st.none(), st.integers(-600, 600).map(lambda minutes: timezone(timedelta(minutes=minutes))))
odd_scalars = st.one_of(
    st.sampled_from([Colour.RED, Colour.BLUE, Level.LOW, Level.HIGH, Plan.PRO]),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.sampled_from(["1", "1.0", "1.10", "11e-1", "-0", "0", "1e3", "1000"]).map(Decimal),
    st.binary(max_size=3),
    st.datetimes(timezones=zones),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.uuids(),
)
keys = st.one_of(
    names,
    st.integers(-2, 2),
    st.booleans(),
    st.none(),
    st.dates(),
    st.uuids(),
    st.sampled_from([*Colour, *Level, *Plan]),
)
hashables = st.one_of(plain_scalars, odd_scalars)
payloads = st.recursive(
    hashables,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(hashables, max_size=3),
        st.frozensets(hashables, max_size=3),
    ),
    max_leaves=12,
)
mappings = st.dictionaries(names, plain | payloads, max_size=5)


def reworded(value: Any, rng: random.Random) -> Any:
    """The same intent, said differently: order, int for float, tuple for list, a model for a mapping."""
    if type(value) is float and value.is_integer() and rng.random() < 0.5:
        return int(value)
    if type(value) is int and abs(value) < 2**53 and rng.random() < 0.5:
        return float(value)
    if type(value) is Decimal and value and value.as_tuple().exponent > -9000 and rng.random() < 0.5:  # type: ignore[operator]
        sign, digits, exponent = value.as_tuple()
        return Decimal((sign, (*digits, 0), int(exponent) - 1))
    if isinstance(value, (list, tuple)):
        return rng.choice([list, tuple])(reworded(item, rng) for item in value)
    if isinstance(value, dict):
        entries = [(key, reworded(item, rng)) for key, item in value.items()]
        rng.shuffle(entries)
        if value and all(type(key) is str and key in ("a", "b", "c", "Z") for key in value):
            return make_dataclass("Model", [key for key, _ in entries])(**dict(entries))
        return dict(entries)
    if isinstance(value, (set, frozenset)):
        return rng.choice([set, frozenset])(value)
    if type(value) is bytes:
        return rng.choice([bytes, bytearray])(value)
    return value


@EXAMPLES
@given(plain)
def test_the_quick_way_and_the_walk_write_the_same_bytes(value):
    quick = canonical._quick(value, canonical.DEPTH_MAX)

    assert quick is None or quick == canonical.canonical_slow(value)
    assert canonical.canonical(value) == canonical.canonical_slow(value)


@EXAMPLES
@given(payloads)
def test_the_quick_parts_of_a_walk_change_no_byte(value):
    assert canonical.canonical(value) == canonical.canonical_slow(value)
    assert canonical.canonical({"a": value, "b": [1.0, "x"]}) == canonical.canonical_slow({"a": value, "b": [1, "x"]})


@EXAMPLES
@given(
    st.lists(
        st.dictionaries(st.text(max_size=3), plain_scalars | st.floats() | st.text(max_size=4), max_size=4), max_size=4
    )
)
def test_both_ways_refuse_the_same(value):
    """With NaN, infinities and any text, surrogates included."""
    quick: Any
    slow: Any
    try:
        quick = canonical.canonical(value)
    except PayloadRefused as refused:
        quick = refused.path
    try:
        slow = canonical.canonical_slow(value)
    except PayloadRefused as refused:
        slow = refused.path

    assert quick == slow


@EXAMPLES
@given(payloads, st.randoms(use_true_random=False))
def test_the_same_intent_said_differently_has_the_same_digest(value, rng):
    assert Intent(value).digest == Intent(reworded(value, rng)).digest


@settings(EXAMPLES, max_examples=150)
@given(payloads, payloads)
def test_two_payloads_match_exactly_when_they_mean_the_same(one, other):
    assert (Intent(one).digest == Intent(other).digest) == (meaning(one) == meaning(other))


@EXAMPLES
@given(st.lists(payloads, max_size=3), payloads, payloads)
def test_changing_one_place_changes_the_digest_exactly_when_it_changes_the_meaning(around, one, other):
    before, after = [*around, {"k": one}], [*around, {"k": other}]

    assert (Intent(before).digest == Intent(after).digest) == (meaning(one) == meaning(other))


@EXAMPLES
@given(st.lists(hashables, min_size=2, max_size=8))
def test_many_scalars_have_as_many_digests_as_meanings(values):
    assert len({Intent(value).digest for value in values}) == len({meaning(value) for value in values})


simple_names = st.sampled_from(["a", "b", "c", "d"])
simple_mappings = st.dictionaries(simple_names, plain, max_size=4)
ignores = st.sets(simple_names, max_size=3)


@EXAMPLES
@given(simple_mappings, simple_mappings, ignores, ignores)
def test_a_record_is_judged_under_the_ignore_set_it_was_written_with(was, now, then_ignored, now_ignored):
    stored = Intent(was, ignore=then_ignored).fingerprint()
    intent = Intent(now, ignore=now_ignored)

    def less(mapping: dict[str, Any]) -> Any:
        return meaning({k: v for k, v in mapping.items() if k not in then_ignored})

    assert intent.matches(stored.digest, stored.form) == (less(was) == less(now))
    assert intent.matches(intent.digest, intent.form)


@EXAMPLES
@given(simple_mappings, simple_mappings, ignores, st.sampled_from([(), (b"s",), (b"new", b"s")]))
def test_differing_names_exactly_the_fields_that_differ(was, now, ignored, secrets):
    stored = Intent(was, ignore=ignored, secrets=secrets[-1:], salt="record").fingerprint()
    differing = Intent(now, secrets=secrets, salt="record").differing(stored)

    old, new = ({k: meaning(v) for k, v in m.items() if k not in ignored} for m in (was, now))
    expected = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    assert list(differing) == (expected if old else [])  # nothing stored: it cannot tell


@EXAMPLES
@given(mappings, st.sets(names, max_size=4), st.sampled_from([(), (b"secret",)]))
def test_any_form_can_be_read_back(value, ignored, secrets):
    ignored = {name for name in ignored if all(name.split("."))}
    intent = Intent(value, ignore=ignored, secrets=secrets)
    ignore, secret_id = fingerprint._parse_form(intent.form)

    assert ignore == check_ignore(ignored)
    assert bool(secret_id) == bool(secrets)
    assert Intent(value, secrets=secrets).matches(intent.digest, intent.form)


paths = st.lists(st.sampled_from(["a", "b", "*", "1"]), min_size=1, max_size=3).map(".".join)


@EXAMPLES
@given(st.dictionaries(st.sampled_from(["a", "b", "1"]), plain, max_size=3), st.sets(paths, max_size=3), st.data())
def test_ignored_places_may_hold_anything_and_others_may_not(value, ignored, data):
    def scrambled(value: Any, at: tuple[str, ...]) -> Any:
        if any(len(p) == len(at) and all(s in ("*", step) for s, step in zip(p, at, strict=True)) for p in patterns):
            return data.draw(st.integers())
        if isinstance(value, dict):
            return {k: scrambled(v, (*at, k)) for k, v in value.items()}
        if isinstance(value, (list, tuple)):  # only a star reaches into a sequence
            return [scrambled(v, (*at, "#")) for v in value]
        return value

    patterns = [tuple(path.split(".")) for path in ignored]

    assert Intent(value, ignore=ignored).digest == Intent(scrambled(value, ()), ignore=ignored).digest
    assert (Intent(value, ignore=ignored).digest == Intent({**value, "new": 1}, ignore=ignored).digest) == (
        "*" in ignored
    )


def held(text: str) -> Any:
    """What parse_json should make of a number with a fraction or exponent, by exact arithmetic."""
    number = float(text)
    if not math.isfinite(number):
        return Decimal(text)
    # What the canonical form writes of this float: the integer it is, or its shortest text.
    written = Fraction(number) if number.is_integer() else Fraction(repr(number))
    return number if written == Fraction(text) else Decimal(text)


@EXAMPLES
@given(plain, st.sampled_from([None, 1]), st.booleans())
def test_what_json_writes_is_read_back_as_the_same_intent(value, indent, escaped):
    """Except floats so large that their text is not their value: those stay as written."""
    body = json.dumps(value, indent=indent, ensure_ascii=escaped)
    expected = json.loads(body, parse_float=held)

    assert meaning(parse_json(body)) == meaning(parse_json(body.encode())) == meaning(expected)


number_texts = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    st.one_of(st.integers(0, 20), st.integers(2**53 - 3, 2**53 + 3), st.integers(0, 10**20)),
    st.sampled_from(["", ".0", ".5", ".10", ".1000000000000000055"]) | st.integers(0, 10**18).map(".{}".format),
    st.sampled_from(["", "e0", "E1", "e+22", "e-1", "e23"]) | st.integers(-400, 400).map("e{}".format),
)


@settings(EXAMPLES, max_examples=150)
@given(number_texts, number_texts)
def test_two_numbers_in_a_body_never_merge(one, other):
    """Equal digests only for equal numbers. (Unequal digests for equal numbers happen: 1e23 and its digits.)"""
    if Intent(parse_json(one)).digest == Intent(parse_json(other)).digest:
        assert Fraction(one) == Fraction(other)


@EXAMPLES
@given(number_texts)
def test_a_number_is_kept_or_held_as_written(text):
    expected = held(text) if set(text) & set(".eE") else int(text)

    assert (type(parse_json(text)), parse_json(text)) == (type(expected), expected)


@EXAMPLES
@given(st.binary(max_size=30) | st.text(alphabet='{}[]",:\\u0dE+-.1 \ud800truefalsnN', max_size=30))
def test_a_body_is_parsed_like_json_or_refused(body):
    """Nothing but PayloadRefused ever comes out, and what is accepted is what json accepts."""
    try:
        value = parse_json(body)
    except PayloadRefused:
        return
    assert meaning(value) == meaning(json.loads(body, parse_float=lambda text: parse_json(text)))


members = st.lists(
    st.tuples(st.sampled_from(["a", "b", ":", "\\u003a", "\\u0061", "\\n", "\u00e9", "\\u00e9"]), plain), max_size=4
)


@EXAMPLES
@given(members, st.sampled_from([",", " , "]), st.booleans())
def test_the_quick_way_to_read_json_says_what_the_exact_way_says(members, comma, escaped):
    """The same value and the same bytes; or nothing, and the exact way is asked: names that come twice, above all."""
    body = "{" + comma.join(f'"{name}": {json.dumps(value, ensure_ascii=escaped)}' for name, value in members) + "}"
    try:
        exact = _read_exactly(body)
    except PayloadRefused:
        assert _read_quick(body) is None
        return
    quick = _read_quick(body)
    if quick is not None:
        assert meaning(quick[0]) == meaning(exact)
        assert quick[1] == canonical.canonical(exact) == canonical.canonical_slow(exact)
    assert meaning(read_json(body)[0]) == meaning(exact)
