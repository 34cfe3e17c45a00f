"""Which key, and whether again: without a network."""

from __future__ import annotations

from datetime import timedelta

import pytest

from samekey import Misconfigured
from samekey.clients import Retry, same_key
from samekey.clients._keys import key_for
from samekey.clients._retry import Course, retry_after
from samekey.clients._rules import Rules

STEADY = Retry(attempts=5, first_wait_seconds=1, longest_wait_seconds=30, patience_seconds=60)


def course(method="POST", *, keyed=True, replayable=True, lease=None, retry=STEADY):
    return Course(retry, method, keyed, replayable, lambda: lease)


def answered(going, status, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return going.after_answer(status, named.get, now=0.0, chance=1.0)


def test_a_409_that_is_a_problem_without_retry_after_is_an_answer():
    """In doubt, or done and not kept: our own problem in progress says when to come again."""
    problem = {"Content-Type": "application/problem+json; charset=utf-8"}

    assert course().after_answer(409, problem.get, now=0.0, chance=0.0) is None
    assert course().after_answer(409, {**problem, "Retry-After": "1"}.get, now=0.0, chance=0.0) is not None
    assert course().after_answer(503, problem.get, now=0.0, chance=0.0) is not None


def test_waits_grow_and_are_spread_by_chance():
    going = course()

    assert [answered(going, 503) for _ in range(5)] == [1, 2, 4, 8, None]
    assert course().after_answer(503, {}.get, now=0.0, chance=0.0) == 0.5


def test_whoever_tries_until_the_patience_ends_may_try_very_often():
    """From the 1,025th wait on, doubling would be too much for a float."""
    going = course(retry=Retry(attempts=3000, first_wait_seconds=0.01, longest_wait_seconds=0.02))

    waits = [going.after_error(sent=True, chance=1.0) for _ in range(2000)]
    assert waits == [0.01] + [0.02] * 1999


def test_retry_after_is_never_undercut():
    for chance in (0.0, 0.5, 1.0):
        wait = course().after_answer(429, {"Retry-After": "7"}.get, now=0.0, chance=chance)
        assert wait is not None
        assert wait >= 7


def test_a_retry_after_beyond_the_longest_wait_ends_it():
    assert answered(course(), 503, Retry_After="29") is not None
    assert answered(course(), 503, Retry_After="31") is None


def test_patience_is_for_all_waits_together():
    going = course()

    assert answered(going, 503, Retry_After="30") is not None
    assert answered(going, 503, Retry_After="29") is None


def test_no_wait_past_the_lease():
    assert answered(course(lease=10.0), 503, Retry_After="8") is not None
    assert answered(course(lease=5.0), 503, Retry_After="8") is None


def test_past_the_lease_nothing_is_sent_again_however_short_the_wait():
    at_once = Retry(first_wait_seconds=0)

    assert answered(course(retry=at_once, lease=0.1), 503, Retry_After="0") == 0.0
    assert answered(course(retry=at_once, lease=0.0), 503, Retry_After="0") is None
    assert course(retry=at_once, lease=0.0).after_error(sent=False, chance=0.0) is None


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_a_post_is_repeated_with_a_key_only(status):
    assert answered(course(keyed=True), status) is not None
    assert answered(course(keyed=False), status) is None


@pytest.mark.parametrize("status", [200, 201, 204, 304, 400, 401, 402, 403, 404, 412, 413, 422, 501])
def test_the_rest_is_an_answer(status):
    assert answered(course(), status) is None


def test_a_conflict_without_a_key_is_the_applications():
    assert answered(course("PUT", keyed=False), 503) is not None
    assert answered(course("PUT", keyed=False), 409) is None


def test_what_was_never_sent_may_always_be_sent():
    assert course(keyed=False).after_error(sent=False, chance=1.0) == 1
    assert course(keyed=False).after_error(sent=True, chance=1.0) is None
    assert course(keyed=True).after_error(sent=True, chance=1.0) == 1


def test_a_body_that_is_gone_is_not_sent_again():
    assert answered(course(replayable=False), 503) is None
    assert course(replayable=False).after_error(sent=False, chance=1.0) is None


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        ("0", None, 0.0),
        (" 120 ", None, 120.0),
        ("Thu, 01 Jan 1970 00:01:40 GMT", None, 40.0),  # it is 60 seconds past the epoch
        ("Thu, 01 Jan 1970 00:00:30 GMT", None, 0.0),  # past
        ("Thu, 01 Jan 1970 01:00:10 GMT", "Thu, 01 Jan 1970 01:00:00 GMT", 10.0),  # their clock is an hour ahead
        ("Thu, 01 Jan 1970 00:01:40 GMT", "not a date", 40.0),
        (None, None, None),
        ("", None, None),
        ("-1", None, None),
        ("1.5", None, None),
        ("soon", None, None),
        ("9" * 65, None, None),
        ("١٢", None, None),
        ("Fri, 99 Foo 9999 99:99:99 GMT", None, None),
    ],
)
def test_retry_after_as_seconds_and_as_a_date(value, date, seconds):
    assert retry_after(value, date, now=60.0) == seconds


@pytest.mark.parametrize(
    "wrong",
    [
        {"attempts": 0},
        {"attempts": 2.5},
        {"attempts": True},
        {"attempts": "3"},
        {"first_wait_seconds": float("nan")},
        {"first_wait_seconds": -1},
        {"first_wait_seconds": 40},
        {"longest_wait_seconds": 61},
        {"patience_seconds": 1},
        {"first_wait_seconds": "1"},
        {"patience_seconds": timedelta(minutes=1)},
    ],
)
def test_a_policy_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(Misconfigured):
        Retry(**wrong)


@pytest.mark.parametrize("said", [0, False, 3])
def test_how_often_is_said_by_a_retry(said):
    """0 and False would be taken for nothing said: four attempts."""
    with pytest.raises(Misconfigured, match=r"retry= takes a Retry, .*Retry\(attempts=1\) tries once"):
        Rules({"api.example.com"}, said, "Idempotency-Key", False)


@pytest.mark.parametrize("key", ["", 17, " k", "k\n", "ключ", "a,b", 'a"b', "k" * 256])
def test_a_key_that_is_no_header_is_refused(key):
    with pytest.raises(Misconfigured, match="key for a header"), same_key(key):
        pass


def test_a_label_is_for_effects():
    with pytest.raises(Misconfigured, match="none is running"), same_key(label="capture"):
        pass
    with pytest.raises(Misconfigured, match="a key or a label, not both"), same_key("k", label="capture"):
        pass


def test_blocks_nest_and_end():
    with same_key("outer"):
        with same_key("inner"):
            assert key_for("POST", "http://p/", b"") == "inner"
        assert key_for("POST", "http://p/", b"") == "outer"

    assert key_for("POST", "http://p/", b"") != key_for("POST", "http://p/", b"")


def test_parts_are_the_same_whatever_stands_between_them():
    """requests draws a new boundary for every request, also for the second try of a caller's own loop."""

    def parts(text, boundary, content_type='multipart/form-data; boundary="{}"'):
        body = f"--{boundary}\r\nContent-Disposition: form-data; name=f\r\n\r\n{text}\r\n--{boundary}--\r\n"
        return key_for("POST", "http://p/", body.encode(), content_type.format(boundary))

    with same_key("k"):
        assert parts("abc", "aaa-1") == parts("abc", "bbb-2", "Multipart/Form-Data;boundary={};charset=utf-8") == "k"
        with pytest.raises(Misconfigured, match="second request"):
            parts("xyz", "aaa-1")
    with same_key("k"):
        assert parts("abc", "aaa", "text/plain; boundary={}") == "k"
        with pytest.raises(Misconfigured, match="second request"):
            parts("abc", "bbb", "text/plain; boundary={}")


def test_a_key_names_one_request():
    with same_key("k"):
        key_for("POST", "http://me:secret@p:80/charges?secret=1#secret", b"200")
        with pytest.raises(Misconfigured, match="http://p:80/charges is the second request") as caught:
            key_for("POST", "http://me:secret@p:80/charges?secret=1#secret", b"500")

    assert "secret" not in str(caught.value)
