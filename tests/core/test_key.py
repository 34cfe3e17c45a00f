"""What a key promises: parts that never run together, limits to the byte, and a digest that is frozen for ever."""

from __future__ import annotations

from enum import Enum, StrEnum
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samekey.core.errors import KeyMalformed, KeyMissing
from samekey.core.key import KEY_MAX_BYTES, NAME_MAX_BYTES, Key, as_text, key_text, make_key, part_text

ID = UUID("12345678-1234-5678-1234-567812345678")


class Colour(StrEnum):
    RED = "r"


@pytest.mark.parametrize(
    ("operation", "text", "tenant", "digest"),
    [
        ("charge", "o-1", None, "756f6589985e2bda3e395d27096ef0da"),
        ("charge", "o-1", "acme", "043eb5da20d60b22814aa463bd9e2afe"),
        ("größe", "ü/1", "t", "d29728d1cc209fad5456a4b7deed5212"),
    ],
)
def test_the_digest_is_frozen_for_ever(operation, text, tenant, digest):
    """A deploy that changed it would turn one intent into two keys."""
    assert make_key(operation, text, tenant).digest.hex() == digest


def test_every_part_of_a_key_is_in_its_digest():
    keys = [("a", "b", None), ("a", "b", "c"), ("a", "c", None), ("b", "a", None), ("a", "b", "t"), ("ab", "c", None)]

    assert len({make_key(*parts).digest for parts in keys}) == len(keys)


def test_a_key_shows_its_parts_and_its_short_form_shows_nothing():
    assert str(make_key("charge", "o-1")) == "charge o-1"
    assert str(make_key("charge", "o-1", "acme")) == "charge o-1 (tenant acme)"
    assert make_key("charge", "o-1").short == make_key("charge", "o-1").digest.hex()[:8]
    assert Key("a", None, "b", b"\x00\x01\x02\x03\x04").short == "00010203"


@given(
    *[st.lists(st.text("ab/\\", min_size=1, max_size=3), min_size=2, max_size=4)] * 2,
)
def test_parts_never_run_together(one, two):
    assert (key_text(tuple(one)) == key_text(tuple(two))) == (one == two)


def test_separators_inside_parts_are_escaped():
    assert key_text(("a/b", "c\\")) == "a\\/b/c\\\\"
    assert key_text(("a/b",)) == "a/b"  # one part is its own text


def test_a_key_is_its_text_whatever_it_was_given_as():
    """Frozen with the digest, and said in the docs: the keys of one operation should have one shape."""
    assert as_text(1) == as_text("1") == as_text([1])
    assert as_text(ID) == as_text(str(ID))
    assert as_text(("a", "b")) == as_text("a/b")
    assert as_text(("a/b", "c")) != as_text("a/b/c")


def test_a_name_that_is_an_enum_is_its_text():
    """Shown by its own name, it would stand in the line that resolves a doubt, and be no record's."""

    class Name(str, Enum):  # noqa: UP042 - a StrEnum shows its text by itself
        CHARGE = "charge"
        ACME = "acme"

    key = make_key(Name.CHARGE, "o-1", Name.ACME)

    assert key == make_key("charge", "o-1", "acme")
    assert (type(key.operation), type(key.tenant)) == (str, str)
    assert str(key) == "charge o-1 (tenant acme)"
    assert type(make_key(Name.CHARGE, "o-1").operation) is str


def test_parts_are_text_numbers_and_uuids_and_nothing_else():
    assert as_text((1, "b", ID)) == f"1/b/{ID}"
    assert as_text([1, 2]) == "1/2"
    assert as_text(7) == "7"
    assert part_text(Colour.RED) == "r"
    assert type(part_text(Colour.RED)) is str
    for wrong in (True, 1.5, b"x", object()):
        with pytest.raises(KeyMalformed, match=f"a thing must be str, int or UUID, not {type(wrong).__name__}"):
            part_text(wrong, "thing")
    with pytest.raises(KeyMalformed, match="a key must be"):
        part_text(1.5)


def test_zero_is_a_part_and_empty_is_none():
    assert key_text((0, "a")) == "0/a"
    for parts in ((), ("", "a"), ("a", "")):
        with pytest.raises(KeyMissing):
            key_text(parts)
    with pytest.raises(KeyMissing, match="tenant is None"):
        part_text(None, "tenant")


@pytest.mark.parametrize("letter", ["k", "é", "€"])
def test_limits_are_in_bytes_and_exact(letter):
    size = len(letter.encode())
    for field, most in (("text", KEY_MAX_BYTES), ("operation", NAME_MAX_BYTES), ("tenant", NAME_MAX_BYTES)):
        parts = {"operation": "o", "text": "t", "tenant": "t"}
        fits = letter * (most // size) + "k" * (most % size)
        assert getattr(make_key(**{**parts, field: fits}), field) == fits
        with pytest.raises(KeyMalformed, match=f"is {most + 1} bytes long; {most} is the limit"):
            make_key(**{**parts, field: fits + "k"})


def test_the_limits_are_those_of_the_docs():
    assert (KEY_MAX_BYTES, NAME_MAX_BYTES) == (1024, 255)


@pytest.mark.parametrize("char", ["\x00", "\x1f", "\x7f", "\x80", "\x9f"])
def test_control_characters_are_refused_with_their_place(char):
    for field in ("operation", "text", "tenant"):
        with pytest.raises(KeyMalformed, match=rf"control character \(U\+{ord(char):04X} at 2\)"):
            make_key(**{"operation": "o", "text": "t", field: f"ab{char}"})


@pytest.mark.parametrize("char", [" ", "~", "\xa0", "\u2028"])
def test_what_is_next_to_a_control_character_is_not_one(char):
    for text in (f"a{char}b", f"é{char}b"):  # plain ASCII has a way of its own
        assert make_key("o", text).text == text


@pytest.mark.parametrize("odd", [["a"], {"a": 1}, 1, b"a"])
def test_a_name_that_is_no_text_is_refused_also_where_nothing_could_remember_it(odd):
    with pytest.raises(KeyMalformed, match="operation name must be a string"):
        make_key(odd, "k")
    with pytest.raises(KeyMalformed, match="tenant must be a string"):
        make_key("charge", "k", odd)


def test_empty_foreign_and_broken_text_is_refused():
    for field, what in (("operation", "operation name"), ("text", "key"), ("tenant", "tenant")):
        with pytest.raises(KeyMissing, match=f"the {what} is empty"):
            make_key(**{"operation": "o", "text": "t", field: ""})
        with pytest.raises(KeyMalformed, match="lone surrogate"):
            make_key(**{"operation": "o", "text": "t", field: "a\ud800"})
        with pytest.raises(KeyMalformed, match="must be a string, not int"):
            make_key(**{"operation": "o", "text": "t", field: 7})  # type: ignore[arg-type]
