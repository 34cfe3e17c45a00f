"""Listing and surveying: bounded, complete or honest about it, and what is past retention is gone."""

from __future__ import annotations

import pytest

from samekey.core.ports import Query
from samekey.core.states import State
from samekey.ops import Ops
from samekey.stores.memory import MemoryStore
from tests.ops.scene import LEASE_SECONDS, Clock, Scene


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def scene(clock):
    return Scene(MemoryStore(clock))


@pytest.fixture
def ops(scene):
    return Ops(scene.store)


def test_pages_follow_each_other_and_the_last_one_says_so(scene, ops, clock):
    for number in range(5):
        scene.completed(f"o-{number}")
        clock.advance(1)
    first = ops.list_records(Query(limit=3))
    second = ops.list_records(Query(limit=3, before=first.before))

    assert [record.key.text for record in first.records + second.records] == ["o-4", "o-3", "o-2", "o-1", "o-0"]
    assert second.before is None


def test_a_page_that_is_just_full_is_the_last_one(scene, ops):
    scene.completed("o-1")
    scene.completed("o-2")

    assert ops.list_records(Query(limit=2)).before is None


def test_what_is_past_retention_is_gone(scene, ops, clock):
    scene.completed("old")
    scene.in_doubt("doubt")
    clock.advance(25 * 3600)

    assert [record.key.text for record in ops.list_records(Query()).records] == ["doubt"]
    assert ops.find("old").records == []
    assert ops.store.sweep(10) == 1


def test_find_looks_through_operations_and_tenants(scene, ops):
    scene.completed("o-1")
    scene.completed("o-1", name="mail")
    scene.completed("o-1", tenant="acme")
    scene.completed("o-2")

    assert len(ops.find("o-1").records) == 3
    assert len(ops.find("o-1", operation="charge").records) == 2
    assert len(ops.find("o-1", tenant="acme").records) == 1


def test_a_survey_counts_and_names_what_waits(scene, ops, clock):
    scene.held("gone")
    clock.advance(1)
    scene.held("gone later")
    clock.advance(LEASE_SECONDS + 1)
    scene.in_doubt("old doubt")
    clock.advance(10)
    scene.in_doubt("new doubt", name="mail")
    scene.held("alive")
    scene.completed("done")
    stats = ops.stats()

    assert stats.by_state == {State.STARTED: 3, State.IN_DOUBT: 2, State.COMPLETED: 1}
    assert stats.operations == {"charge": 5, "mail": 1}
    assert stats.oldest_doubt.key.text == "old doubt"
    assert [record.key.text for record in stats.overdue] == ["gone", "gone later"]
    assert stats.unsettled_complete
    assert stats.settled_complete


def test_a_survey_that_did_not_see_everything_says_so(scene, ops):
    for number in range(3):
        scene.in_doubt(f"d-{number}")
        scene.completed(f"c-{number}")
    stats = ops.stats(limit=2)

    assert not stats.unsettled_complete
    assert not stats.settled_complete
    assert stats.by_state == {State.IN_DOUBT: 2, State.COMPLETED: 2}
