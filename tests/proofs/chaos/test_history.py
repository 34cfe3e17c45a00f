"""The check of histories can fail."""

from __future__ import annotations

import pytest

from tests.proofs.chaos.history import Sighting, contradiction


def test_sightings_that_overlap_may_come_in_any_order():
    assert contradiction([Sighting(0, 3, 2, "b"), Sighting(1, 4, 1, "a"), Sighting(5, 6, 2, "b")]) == ""


@pytest.mark.parametrize(
    ("sightings", "why"),
    [
        ([Sighting(0, 1, 2, "b"), Sighting(2, 3, 1, "a")], "version 1 was seen after version 2"),
        ([Sighting(0, 1, 1, "a"), Sighting(0, 1, 1, "b")], "version 1 is a and b"),
        (
            [Sighting(0, 9, 1, "a"), Sighting(1, 2, 3, "c"), Sighting(3, 4, 2, "b")],
            "version 2 was seen after version 3",
        ),
    ],
)
def test_an_older_version_after_a_newer_one_and_a_version_with_two_contents_are_told(sightings, why):
    assert contradiction(sightings) == why
