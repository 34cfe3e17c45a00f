"""Notes, search terms and content: what a record can be found and compared by."""

import pytest

from samekey import FOREVER, Misconfigured, Policy, RecordUnreadable
from samekey.core import notes
from samekey.core.fingerprint import Intent
from samekey.core.key import make_key
from samekey.core.ports import Query
from samekey.core.record import Move, Record, provider_key, terms_of
from samekey.core.search import TERMS_MAX, all_terms, claim_terms, provider_term, sends_key, term, with_terms
from samekey.core.states import State

KEY = make_key("charge", "o-1")
RECORD = Record(KEY, State.IN_DOUBT, 7, "a", b"f", "1", (), "opaque", 1, 1, 1.0, 90.0, 2.0, "", now=100.0)


# -- notes -------------------------------------------------------------------------------------------------------


def test_notes_come_back_as_they_were_and_are_written_in_one_way():
    given: dict[str, str | int | bool] = {"party": "K\u00e4the \u2713", "amount_minor": -200, "paid": True}
    given["n" * 256] = "v" * 256

    assert notes.decode(notes.encode(given)) == given
    assert notes.encode(given) == notes.encode(dict(reversed(given.items())))
    assert notes.encode({"a": True, "b": 1}) == b'{"a":true,"b":1}'


@pytest.mark.parametrize(
    "given",
    [
        {"a": 1.5}, {"a": None}, {"a": b"x"}, {"a": ["x"]}, {1: "a"}, {"": "a"}, {"a": "v" * 257}, {"n" * 257: 1},
        {"a": "line\nbreak"}, {"a\x00": 1}, {"a": "\ud800"}, {"a": 10**256}, {"a": -(10**256)},
        {str(number): 1 for number in range(17)}, [("a", 1)],
    ],
)  # fmt: skip
def test_what_is_no_note_is_refused(given):
    with pytest.raises(Misconfigured):
        notes.encode(given)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff", b'{"a":1.5}', b'{"a":null}', b'{"a":[1]}', b"[" * 99999])
def test_bytes_that_are_no_notes_are_unreadable(data):
    with pytest.raises(RecordUnreadable):
        notes.decode(data)


# -- terms -------------------------------------------------------------------------------------------------------


def test_a_term_depends_on_name_value_and_secret_and_is_frozen():
    """An index that was written by an older version must still be found."""
    assert term("note.party", "acme").hex() == "1b56b5b362de190bca2dd6f9eb435079"
    assert len({term("note.party", "acme"), term("note.party", "acm"), term("note.partya", "cme")}) == 3
    assert term("note.party", "acme", b"secret") != term("note.party", "acme")
    assert len(term("note.party", "\ud800")) == 16


def test_what_a_record_shows_anyway_is_not_keyed():
    """A provider key is a digest, and a request id is among the attributes: any secret finds them."""
    for name in ("provider_key", "request_id"):
        assert term(name, "a", b"secret") == term(name, "a")


def test_a_claim_is_found_by_its_provider_key_and_request_id():
    asked = (("region", "eu"), ("request_id", "r-1"))
    mine = term("provider_key", provider_key(KEY, 0))

    assert claim_terms(KEY, "opaque marked", asked) == (mine, term("request_id", "r-1"))
    assert claim_terms(KEY, "repeatable", ()) == (None, None)
    assert claim_terms(KEY, "atomic", asked) == (None, term("request_id", "r-1"))
    assert sends_key("a boundary of tomorrow")
    assert set(all_terms(RECORD._replace(terms=(b"x" * 16,)))) == {mine, b"x" * 16}
    assert Query(term=mine).picks(RECORD)
    assert not Query(term=provider_term(KEY, 1)).picks(RECORD)


def test_terms_are_kept_once_and_bounded():
    many = tuple(bytes([number]) * 16 for number in range(TERMS_MAX + 1))

    assert with_terms(many[:2], many[1:3] + many[:1]) == many[:3]
    assert with_terms((), many) == many[:TERMS_MAX]
    assert terms_of(b"".join(many)) == many
    with pytest.raises(ValueError, match="17 bytes"):
        terms_of(b"x" * 17)


# -- content -----------------------------------------------------------------------------------------------------


def content(payload, apart=(), **how):
    return Intent(payload, apart=apart, **how).fingerprint().content


def test_content_is_equal_under_two_keys_and_differs_for_two_intents():
    one = content({"order": "a", "amount": 200}, ("order",), salt="a")

    assert one == content({"amount": 200, "order": "b"}, ("order",), salt="b")
    assert one == content({"amount": 200}) == content({"amount": 200, "at": 1}, ignore=("at",))
    assert one != content({"order": "a", "amount": 500}, ("order",))
    assert one != content({"order": "a", "amount": 200}, ("order",), secrets=[b"secret"])
    assert one is not None
    assert len(one) == 16


def test_content_is_the_same_whichever_way_it_is_made():
    """From the fields that are written anyway, or of the whole payload, with a path in key= or many fields."""
    many = {f"n{number}%b": number for number in range(70)}

    assert content({"order": {"id": 1, "at": 2}, "a": 1}, ("order.id",)) == content({"order": {"at": 2}, "a": 1})
    assert content({**many, "key": 1}, ("key",)) == content(many) != content({**many, "n69%b": 0})
    assert content({"100%": 1, "b": 2, "k": 3}, ("k",)) == content({"100%": 1, "b": 2})
    assert content([1, 2]) == content((1, 2))


def test_what_leaves_nothing_or_is_not_known_has_no_content():
    assert content({"order": "a"}, ("order",)) is content({}) is content(None) is None
    assert content({"order": "a", "amount": 1}, None) is None
    assert content({"order": {"id": 1}}, ("order.id",)) is not None


# -- the rest ----------------------------------------------------------------------------------------------------


def test_the_age_of_a_doubt_counts_from_the_move_into_it():
    moves = [Move(1.0, 7, "", "started", "a", ""), Move(20.0, 7, "started", "in_doubt", "a", "")]
    again = [Move(30.0, 8, "in_doubt", "started", "b", ""), Move(40.0, 8, "started", "in_doubt", "b", "")]

    assert RECORD._replace(moves=tuple(moves)).doubt_since == 20.0
    assert RECORD._replace(moves=tuple(moves + again)).doubt_since == 40.0
    assert RECORD.doubt_since == RECORD.changed_at == 90.0  # no move is kept


def test_forever_is_the_only_retention_beyond_ten_years():
    kept = Policy(retention=FOREVER)

    assert kept.retention_seconds == FOREVER.total_seconds() == 365_250 * 86400
    assert Policy(retention=kept.retention) == kept
    for wrong in ({"retention": FOREVER * 2}, {"lease": FOREVER}, {"retention": FOREVER.total_seconds() - 1}):
        with pytest.raises(Misconfigured):
            Policy(**wrong)
