"""samekey resolve by filter: a preview, a number to confirm, a stop at any time."""

from __future__ import annotations

import json

import pytest

from samekey.core.states import State
from samekey.ops import Ops
from samekey.ops.story import Resolution

SURE = ("--not-done", "--why", "outage", "--who", "ann")


@pytest.fixture
def doubts(scene):
    for number in range(7):
        scene.in_doubt(f"o-{number}")
    scene.completed("paid")
    scene.in_doubt("other", name="mail")
    return scene


def states(scene, name="charge"):
    return [scene.peek(f"o-{number}", name=name).state for number in range(7)]


def test_a_dry_run_shows_the_first_five_and_the_number_and_writes_nothing(shell, doubts):
    result = shell("resolve", "--operation", "charge", "--not-done", "--dry-run")

    assert result.exit_code == 0
    assert result.stderr.count("[in_doubt]") == 5
    assert "and 2 more" in result.stderr
    assert "7 records would become released; nothing was written" in result.stderr
    assert set(states(doubts)) == {State.IN_DOUBT}


def test_all_of_a_filter_are_resolved_with_name_and_reason(shell, doubts):
    result = shell("resolve", "--operation", "charge", *SURE, "--yes", "7")

    assert result.exit_code == 0
    assert result.stdout == "7 of 7 records are now released, says ann\n"
    assert set(states(doubts)) == {State.RELEASED}
    assert doubts.peek("other", name="mail").state is State.IN_DOUBT
    assert {(entry.who, entry.why) for entry in doubts.store.audit(10)} == {("ann", "outage")}


@pytest.mark.parametrize("number", ["6", "8", "0"])
def test_another_number_than_the_confirmed_one_writes_nothing(shell, doubts, number):
    result = shell("resolve", "--operation", "charge", *SURE, "--yes", number)

    assert result.exit_code == 5
    assert f"--yes {number} was given, and there are 7 records" in result.stderr
    assert set(states(doubts)) == {State.IN_DOUBT}


def test_the_number_may_be_typed(shell, doubts, monkeypatch):
    monkeypatch.setattr("samekey.cli._decision.someone_to_ask", lambda: True)

    assert shell("resolve", "--operation", "charge", *SURE, input="6\n").exit_code == 5
    assert set(states(doubts)) == {State.IN_DOUBT}
    assert shell("resolve", "--operation", "charge", *SURE, input="7\n").exit_code == 0
    assert set(states(doubts)) == {State.RELEASED}


def test_json_has_each_record_and_then_the_numbers(shell, doubts):
    result = shell("resolve", "--operation", "charge", *SURE, "--yes", "7", "--json")
    *records, numbers = [json.loads(line) for line in result.stdout.splitlines()]

    assert {one["state"] for one in records} == {"released"}
    assert numbers == {"v": 1, "outcome": "not_done", "matched": 7, "resolved": 7, "refused": 0, "done": True}


def test_a_record_that_changed_meanwhile_is_left_out(shell, doubts, monkeypatch):
    """Another operator is faster for one of them: its decision stays."""
    resolve = Ops.resolve

    def raced(self, seen, outcome, **given):
        if seen.key.text == "o-3":
            resolve(self, seen, Resolution.HAPPENED, who="bob", why="on the statement")
        return resolve(self, seen, outcome, **given)

    monkeypatch.setattr(Ops, "resolve", raced)
    result = shell("resolve", "--operation", "charge", *SURE, "--yes", "7")

    assert result.exit_code == 5
    assert "left out: charge o-3 moved on" in result.stderr
    assert doubts.peek("o-3").state is State.COMPLETED
    assert states(doubts).count(State.RELEASED) == 6


def test_ctrl_c_stops_between_two_records_and_the_next_run_goes_on(shell, doubts, monkeypatch):
    resolve, calls = Ops.resolve, []

    def interrupted(self, seen, outcome, **given):
        calls.append(seen)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return resolve(self, seen, outcome, **given)

    with monkeypatch.context() as patch:
        patch.setattr(Ops, "resolve", interrupted)
        result = shell("resolve", "--operation", "charge", *SURE, "--yes", "7")
    assert result.exit_code == 4
    assert result.stdout == "3 of 7 records are now released, says ann\n"
    assert "run the same command again to go on" in result.stderr

    assert shell("resolve", "--operation", "charge", *SURE, "--yes", "4").exit_code == 0
    assert set(states(doubts)) == {State.RELEASED}


def test_a_living_holder_is_no_part_of_it(shell, scene):
    scene.held("o-1")
    scene.in_doubt("o-2")

    assert shell("resolve", "--operation", "charge", *SURE, "--yes", "1").exit_code == 0
    assert scene.peek("o-1").state is State.STARTED


def test_a_crash_victim_is_part_of_it(shell, gone):
    gone.held("o-1")

    assert shell("resolve", "--operation", "charge", *SURE, "--yes", "1").exit_code == 0
    assert gone.peek("o-1").state is State.RELEASED


def test_nothing_to_resolve_is_fine(shell, scene):
    scene.completed()
    result = shell("resolve", "--waiting", *SURE, "--yes", "0")

    assert result.exit_code == 0
    assert "no records to resolve" in result.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        [],  # neither a key nor a filter
        ["--tenant", "acme"],  # alone it may have been meant for a key
        ["o-1", "--since", "1h"],
        ["--since", "1h", "--yes"],  # how many?
        ["--since", "1h", "--yes", "many"],
        ["--since", "1h", "--seen", "abcdef01"],
        ["--since", "1h", "--lease-is-over"],
        ["--since", "1h", "--happened", "--result", "1"],
        ["--since", "x"],
        ["--since", "1h", "--operation", ""],
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_a_usage_error(shell, doubts, wrong):
    outcome = () if "--happened" in wrong else ("--not-done",)
    yes = () if "--yes" in wrong else ("--yes", "7")

    assert shell("resolve", *wrong, *outcome, "--why", "w", *yes).exit_code == 2
    assert set(states(doubts)) == {State.IN_DOUBT}


# -- one record ------------------------------------------------------------------------------------------------------


def test_an_http_answer_has_a_status(shell, scene):
    scene.in_doubt("o-1", name="POST /charges")
    words = ("--happened", "--status", "201", "--result", '{"id": "ch_1"}', "--why", "w", "--yes")

    assert shell("resolve", "POST /charges", "o-1", *words).exit_code == 0
    answer = scene.guard.run("POST /charges", pytest.fail, key="o-1", payload={"amount": 200}).result
    assert answer == b'201\ncontent-type: application/json\n\n{"id": "ch_1"}'
    assert shell("resolve", "o-1", "--refused", "--status", "402", "--why", "w", "--yes").exit_code == 2


def test_a_lease_that_a_clock_keeps_alive_is_declared_over(shell, scene):
    scene.held("o-1")

    assert shell("resolve", "o-1", *SURE, "--yes").exit_code == 5
    assert shell("resolve", "o-1", *SURE, "--yes", "--lease-is-over").exit_code == 0
    assert scene.peek("o-1").state is State.RELEASED
    assert scene.store.audit(1)[0].why.startswith("over a lease of ")


def test_a_dry_run_of_one_writes_nothing(shell, scene):
    record = scene.in_doubt()
    result = shell("resolve", "o-1", "--happened", "--dry-run")

    assert result.exit_code == 0
    assert "charge o-1 would become completed; nothing was written" in result.stderr
    assert scene.peek().version == record.version
