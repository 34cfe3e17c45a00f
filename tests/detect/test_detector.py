"""The detector against its definition: rows ordered by time, a row near the one before it is a duplicate."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from samekey.detect.detector import ROWS_KEPT, Alert, Detector, Event, Keys, row_name

WINDOW = 10
KEY = b"k" * 16


def event(row, at):
    return Event(KEY, str(row).encode(), at)


def folded(events, window=WINDOW):
    detector, state = Detector("orders", window), b""
    alerts: list[Alert] = []
    for one in events:
        state, more = detector.fold(state, one)
        alerts += more
    return state, alerts


def duplicates(events, window=WINDOW):
    """Rows whose predecessor is near, as the window query of `scan` counts them."""
    rows = sorted({one.row: one for one in events}.values(), key=lambda one: (one.at, len(one.row), one.row))
    return {
        later.row.decode() for earlier, later in pairwise(rows) if window is None or later.at - earlier.at <= window
    }


@st.composite
def arrivals(draw):
    """Rows in any order, some of them delivered again."""
    times = draw(st.lists(st.integers(0, 60), min_size=1, max_size=ROWS_KEPT))
    rows = [event(number, at) for number, at in enumerate(times)]
    again = draw(st.lists(st.sampled_from(rows), max_size=10))
    return draw(st.permutations(rows + again))


@given(arrivals(), st.sampled_from([WINDOW, 0, None]))
def test_each_duplicate_has_one_alert_whatever_the_order_of_arrival(events, window):
    _, alerts = folded(events, window)

    assert sorted(one.row for one in alerts) == sorted(duplicates(events, window))


@given(arrivals())
def test_the_pair_of_an_alert_is_two_known_rows_within_the_window(events):
    known = {one.row.decode(): one.at for one in events}

    for alert in folded(events)[1]:
        assert alert.first_row != alert.row
        assert (known[alert.first_row], known[alert.row]) == (alert.first_at, alert.at)
        assert 0 <= alert.at - alert.first_at <= WINDOW


@given(arrivals(), st.integers(0, 40))
def test_a_state_that_was_kept_and_read_again_continues(events, place):
    """What is known is in the bytes alone: a restart between any two rows changes nothing."""
    before, first = folded(events[:place])
    state, second = bytes(bytearray(before)), list(first)
    for one in events[place:]:
        state, more = Detector("orders", WINDOW).fold(state, one)
        second += more

    assert (state, second) == folded(events)


def test_a_change_that_is_delivered_again_is_not_its_own_duplicate():
    detector = Detector("orders", WINDOW)
    state, _ = detector.fold(b"", event(1, 5))

    assert detector.fold(state, event(1, 5)) == (state, ())


def test_the_window_slides_and_its_end_belongs_to_it():
    assert [one.row for one in folded([event(1, 0), event(2, 10), event(3, 20), event(4, 31)])[1]] == ["2", "3"]


def test_rows_of_one_moment_are_ordered_by_number():
    (alert,) = folded([event(9, 5), event(10, 5)])[1]

    assert (alert.first_row, alert.row) == ("9", "10")


def test_the_id_is_stable_and_differs_by_rule_key_and_row():
    def ids(rule, key, row):
        detector = Detector(rule, WINDOW)
        state, _ = detector.fold(b"", Event(key, b"0", 0))
        return [one.id for one in detector.fold(state, Event(key, row, 1))[1]]

    different = [ids("a", KEY, b"1"), ids("b", KEY, b"1"), ids("a", b"l" * 16, b"1"), ids("a", KEY, b"2")]

    assert ids("a", KEY, b"1") == different[0] == ["35a7805d9152bbc3ee67a9dd3e1694c7"]  # frozen: consumers keep ids
    assert len({one[0] for one in different}) == 4


def test_the_state_of_a_key_with_many_rows_is_bounded():
    rows = [event(number, number) for number in range(1000)]
    state, alerts = folded(rows)

    assert len(alerts) == 999
    assert len(state) < ROWS_KEPT * 20
    assert folded([*rows, *rows])[1] == alerts  # also old ones, delivered again


def test_a_state_expires_when_no_new_row_can_be_near():
    state, _ = folded([event(1, 0), event(2, 5)])

    assert not Detector("orders", WINDOW).expired(state, 15)
    assert Detector("orders", WINDOW).expired(state, 16)
    assert not Detector("orders", None).expired(state, 10**18)


def test_digests_tell_values_apart():
    keys = Keys("orders", b"s" * 32)
    values: list[list[bytes | None]] = [
        [b"a", b"bc"],
        [b"ab", b"c"],
        [b"abc"],
        [b"a", b"", b"bc"],
        [None],
        [b""],
        [b"-"],
        [None, None],
    ]

    assert len({keys.digest(one) for one in values}) == len(values)
    assert keys.digest([b"a"]) != Keys("orders", b"t" * 32).digest([b"a"])
    assert keys.digest([b"a"]) != Keys("other", b"s" * 32).digest([b"a"])


def test_a_row_is_named_by_its_primary_key():
    assert row_name([b"17"]) == b"17"
    assert row_name([b"a,1:b", b"c"]) != row_name([b"a", b"1:b,1:c"])
    assert len(row_name([b"x" * 5000])) == 33
