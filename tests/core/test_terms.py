"""What is declared: policies, boundaries and the terms that a record keeps of them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta

import pytest

from samekey.core.boundary import (
    Absent,
    Asks,
    Atomic,
    Boundary,
    Conflicting,
    Declined,
    Happened,
    Keyed,
    Kind,
    Opaque,
    Repeatable,
    StillUnknown,
    Terms,
    parse_terms,
)
from samekey.core.errors import Misconfigured, NotDone, RecordUnreadable, Refused
from samekey.core.policy import SECONDS_MAX, Policy, as_seconds, is_timeout


def find(record):
    return Absent()


# -- terms ---------------------------------------------------------------------------------------------------

DECLARED = {
    "atomic": Atomic("session"),
    "keyed window=86400.0": Keyed(),
    "keyed window=60.0 keeps_declines asks marked": Keyed(60, keeps_declines=True, lookup=find, marked=True),
    "keyed window=3600.0": Keyed(timedelta(hours=1)),
    "asks": Asks(find),
    "asks believe_absent_after=90.0 marked": Asks(find, timedelta(seconds=90), marked=True),
    "repeatable": Repeatable(),
    "opaque": Opaque(),
    "opaque marked": Opaque(marked=True),
}


@pytest.mark.parametrize("text", DECLARED)
def test_a_record_keeps_its_terms_as_this_text_for_ever(text):
    """Records outlive deploys: what one version writes every later one reads."""
    terms = DECLARED[text].terms

    assert terms.text() == text
    assert parse_terms(text) == terms


@pytest.mark.parametrize(
    "text",
    ["", "Opaque", "opaque ", "opaque marked=1", "keyed window", "keyed window=", "keyed window=x", "keyed window=-1",
     "keyed window=nan", "keyed width=1", "opaque shown", "asks believe_absent_after"],
)  # fmt: skip
def test_terms_of_no_version_we_know_are_unreadable(text):
    with pytest.raises(RecordUnreadable, match="does not know"):
        parse_terms(text)


def test_terms_that_nobody_can_declare_are_kept_as_they_were_read():
    assert parse_terms("asks keeps_declines marked").text() == "asks keeps_declines marked"


def test_a_window_of_nothing_is_read_although_it_is_not_declared():
    assert parse_terms("keyed window=0").window == 0.0
    with pytest.raises(Misconfigured):
        Keyed(0)


def test_whose_word_wins_and_when_a_decline_makes_a_new_round():
    assert [one.value for one in Kind if Terms(one).truth == "the database"] == ["atomic"]
    assert {Terms(one).truth for one in Kind if one is not Kind.ATOMIC} == {"the provider"}
    assert not Terms(Kind.KEYED).new_round_after_decline
    assert Terms(Kind.KEYED, keeps_declines=True).new_round_after_decline
    assert Terms(Kind.KEYED, asks=True).new_round_after_decline


def test_who_can_be_asked():
    assert Asks(find).asks_with is find
    assert Keyed(lookup=find).asks_with is find
    assert [one.asks_with for one in (Keyed(), Opaque(), Repeatable(), Atomic("s"), Boundary())] == [None] * 5


@pytest.mark.parametrize(
    ("declare", "why"),
    [
        (lambda: Atomic(""), "name of the parameter"),
        (lambda: Atomic("not a name"), "name of the parameter"),
        (lambda: Atomic(7), "name of the parameter"),  # type: ignore[arg-type]
        (lambda: Keyed(-1), "^Keyed window must be more than zero"),
        (lambda: Keyed(lookup="find"), "a lookup is a function of the record, not 'find'"),  # type: ignore[arg-type]
        (lambda: Asks(None), "a lookup is a function of the record, not None"),  # type: ignore[arg-type]
        (lambda: Asks(find, 0), "^believe_absent_after must be more than zero"),
        (lambda: Asks(find, True), "^believe_absent_after must be seconds"),
    ],
)
def test_a_boundary_that_means_nothing_is_refused(declare, why):
    with pytest.raises(Misconfigured, match=why):
        declare()


def test_a_boundary_of_its_own_is_no_boundary():
    with pytest.raises(TypeError, match="use one of"):
        _ = Boundary().terms


def test_what_was_declared_is_what_is_kept_and_nobody_changes_it():
    assert Keyed(timedelta(hours=1)).window == 3600.0
    assert Asks(find, timedelta(minutes=1)).believe_absent_after == 60.0
    for one in (Keyed(), Asks(find), Opaque(), Repeatable(), Atomic("s"), Terms(Kind.ASKS), Policy(), Boundary()):
        with pytest.raises((FrozenInstanceError, TypeError)):  # TypeError: CPython 3.11 where there are slots
            one.marked = True  # type: ignore[misc, union-attr]


def test_verdicts_say_nothing_more_than_they_were_given():
    assert (Happened().result, Happened(1)) == (None, Happened(1))
    assert (Declined().final, Declined().reason) == (False, "")
    assert StillUnknown().reason == ""
    assert Conflicting().results == ()
    assert Absent() == Absent()
    assert Declined(final=True) != Declined()
    for verdict in (Happened(), Declined(), Absent(), StillUnknown(), Conflicting()):
        with pytest.raises((FrozenInstanceError, TypeError)):
            verdict.reason = "other"  # type: ignore[misc, union-attr]


# -- policies --------------------------------------------------------------------------------------------------


def test_the_numbers_are_those_of_the_docs():
    policy = Policy()

    assert (policy.lease, policy.patience, policy.retention) == (30.0, 5.0, 86400.0)
    assert (policy.lease_seconds, policy.patience_seconds, policy.retention_seconds) == (30.0, 5.0, 86400.0)
    assert (policy.releases, policy.closes, policy.store_down) == ((), (), "refuse")
    assert (policy.result_max_bytes, policy.trust_inner) == (1 << 20, False)


def test_terms_and_policies_show_what_was_declared_and_nothing_else():
    for declared in (Keyed(window=60, marked=True).terms, Policy(lease=10, closes=(KeyError,))):
        shown = repr(declared)
        assert not [
            word for word in ("sends", "lease_seconds", "patience_seconds", "retention_seconds") if word in shown
        ]


@pytest.mark.parametrize("name", ["lease_seconds", "patience_seconds", "retention_seconds"])
def test_what_is_made_of_a_time_is_not_given_beside_it(name):
    with pytest.raises(TypeError):
        Policy(**{name: 1.0})  # type: ignore[arg-type]
    assert name not in repr(Policy())


def test_times_are_seconds_or_timedeltas():
    policy = Policy(lease=timedelta(minutes=1), patience=0, retention=7)

    assert (policy.lease, policy.patience, policy.retention) == (60.0, 0.0, 7.0)
    assert (policy.lease_seconds, policy.patience_seconds, policy.retention_seconds) == (60.0, 0.0, 7.0)
    assert type(as_seconds("t", 1)) is float
    assert as_seconds("t", SECONDS_MAX) == SECONDS_MAX == 316224000.0
    assert as_seconds("t", 0, zero_allowed=True) == 0.0
    assert as_seconds("t", 0.5) == 0.5


@pytest.mark.parametrize("value", [True, "1", None, float("nan"), -0.1, SECONDS_MAX + 1, float("inf")])
def test_anything_but_a_time_is_refused(value):
    for zero_allowed in (True, False):
        with pytest.raises(Misconfigured, match="span"):
            as_seconds("span", value, zero_allowed=zero_allowed)


def test_zero_is_a_patience_and_nothing_else():
    with pytest.raises(Misconfigured, match="must be zero or more and at most ten years"):
        as_seconds("span", -1, zero_allowed=True)
    with pytest.raises(Misconfigured, match="must be more than zero and at most ten years"):
        as_seconds("span", 0)
    for name in ("lease", "retention"):
        with pytest.raises(Misconfigured, match=name):
            Policy(**{name: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "wrong",
    [
        {"releases": (int,)},
        {"closes": ("ValueError",)},
        {"closes": 5},
        {"closes": "ValueError"},
        {"releases": (BaseException,)},
        {"closes": (Exception,)},
        {"releases": Exception},
        {"releases": (TimeoutError,)},
        {"releases": (KeyError,), "closes": (KeyError,)},
        {"store_down": "wait"},
        {"result_max_bytes": 0},
        {"result_max_bytes": True},
        {"result_max_bytes": 1.0},
    ],
)
def test_a_policy_that_means_nothing_is_refused(wrong):
    with pytest.raises(Misconfigured):
        Policy(**wrong)


def test_a_time_that_is_refused_is_shown_unless_it_is_endless():
    for wrong, shown in ((-1, ", not -1"), (float("nan"), ", not nan"), (999 * SECONDS_MAX, ", not 315907776000.0")):
        with pytest.raises(Misconfigured, match=f"at most ten years{shown}$"):
            as_seconds("span", wrong)
    for endless in (-SECONDS_MAX, 1000 * SECONDS_MAX, 10**400):
        with pytest.raises(Misconfigured, match=r"at most ten years$"):
            as_seconds("span", endless)


def test_a_timeout_is_known_by_its_name_however_it_is_written():
    for name in ("ReadTimeout", "read_time_out", "TIMEOUT", "TimedOut", "DeadlineExceeded", "too_slow"):
        assert is_timeout(type(name, (Exception,), {}))


@pytest.mark.parametrize("name", ["ConnectTimeout", "ConnectTimeoutError", "PoolTimeout"])
def test_a_timeout_before_anything_was_sent_means_what_the_caller_says(name):
    unsent = type(name, (Exception,), {})

    assert Policy(closes=(unsent,)).meaning(unsent(), inner=False) == "closes"
    assert Policy(releases=(unsent,)).meaning(unsent(), inner=False) == "releases"
    assert Policy().meaning(unsent(), inner=False) == "unknown"


def test_a_decline_that_is_final_says_so_in_any_shape_of_truth():
    """Databases without a boolean type give 0 and 1; a pattern would look for True itself."""
    for said in (True, False, 1, 0):
        assert Declined(final=said).final is bool(said)  # type: ignore[arg-type]


@pytest.mark.parametrize("said", ["stolen card", "", None, 2, b"", ()])
def test_a_decline_whose_finality_is_none_is_refused(said):
    """The reason in the first place would close the key, or free it, whatever it says."""
    with pytest.raises(Misconfigured, match=r"^Declined\(final=\) is True or False.*reason="):
        Declined(said)


def test_conflicting_counts_what_the_provider_has():
    assert Conflicting(["a", "b"]) == Conflicting(("a", "b")) == Conflicting(iter("ab"))  # type: ignore[arg-type]
    assert Conflicting().results == ()


@pytest.mark.parametrize("said", [2, None, "ab", b"ab", {"id": "a"}])
def test_conflicting_takes_results_not_a_number(said):
    with pytest.raises(Misconfigured, match=rf"^Conflicting takes .* not {type(said).__name__}$"):
        Conflicting(said)


def test_errors_that_would_mean_two_things_are_named():
    with pytest.raises(Misconfigured, match=r"^KeyError, ValueError is in both"):
        Policy(releases=(ValueError, KeyError), closes=(KeyError, ValueError))


def test_a_policy_takes_one_type_or_several():
    assert Policy(releases=KeyError).releases == (KeyError,)  # type: ignore[arg-type]
    assert Policy(closes=[KeyError, ValueError]).closes == (KeyError, ValueError)  # type: ignore[arg-type]
    assert Policy(store_down="run", result_max_bytes=1).result_max_bytes == 1


class Child(KeyError):
    pass


def test_what_an_error_means():
    policy = Policy(releases=(KeyError, Refused), closes=(Child, NotDone, OSError))

    assert policy.meaning(KeyError(), inner=False) == "releases"
    assert policy.meaning(Child(), inner=False) == "closes"  # the nearest class that is listed
    turned = Policy(releases=(Child,), closes=(KeyError,))
    assert turned.meaning(Child(), inner=False) == "releases"  # whichever list it stands in
    assert turned.meaning(KeyError(), inner=False) == "closes"
    assert policy.meaning(Refused(), inner=False) == "releases"  # the caller's own lists win over our words
    assert policy.meaning(NotDone(), inner=False) == "closes"
    assert policy.meaning(TimeoutError(), inner=False) == "unknown"  # although OSError is its parent
    assert policy.meaning(ValueError(), inner=False) == "unknown"
    assert Policy().meaning(Refused(), inner=False) == "closes"
    assert Policy().meaning(NotDone(), inner=False) == "releases"
    assert Policy().meaning(NotDone(), inner=True) == "unknown"
    assert Policy(trust_inner=True).meaning(NotDone(), inner=True) == "releases"
