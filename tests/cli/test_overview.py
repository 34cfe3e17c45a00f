"""samekey stats, audit, doubles: what was counted, what people did, what came twice."""

from __future__ import annotations

import json
import time

import pytest

from samekey.core.books import Count


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


# -- stats -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(scene):
    minute = int(time.time()) // 60
    scene.store.add_counts(
        [
            Count(minute, "charge", "web", "new", 18),
            Count(minute - 3, "charge", "web", "replayed", 1),
            Count(minute - 60 * 30, "charge", "app", "waited", 5),
            Count(minute, "mail", "", "new", 1),
        ]
    )
    scene.completed("o-1")
    scene.in_doubt("o-2")
    return scene


def test_stats_counts_attempts_of_the_last_day_and_records_by_state(shell, counted):
    result = shell("stats")

    assert [line.split("\t") for line in result.stdout.splitlines()] == [
        ["charge", "web", "new", "18"],
        ["charge", "web", "replayed", "1"],
        ["mail", "-", "new", "1"],
    ]
    assert "replayed: 1 of 20 attempts (5.0 %)" in result.stderr
    assert "records: 0 started, 1 completed, 0 closed, 0 released, 1 in_doubt" in result.stderr
    assert result.exit_code == 0


def test_stats_of_a_span_and_an_operation_as_json(shell, counted):
    (printed,) = lines(shell("stats", "--since", "2d", "--operation", "charge", "--json"))

    assert printed["attempts"][0] == {"operation": "charge", "source": "app", "outcome": "waited", "number": 5}
    assert [one["number"] for one in printed["attempts"]] == [5, 18, 1]
    assert (printed["v"], printed["attempts_complete"], printed["states"]["in_doubt"]) == (1, True, 1)
    assert {"store", "since", "until", "unsettled_counted_completely", "settled_counted_completely"} <= printed.keys()


def test_stats_of_nothing_is_fine(shell, scene):
    result = shell("stats")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "no attempts were counted" in result.stderr


@pytest.mark.parametrize("wrong", [["--since", "soon"], ["--since", "1h", "--until", "2h"], ["--operation", ""]])
def test_stats_refuses_what_it_cannot_mean(shell, scene, wrong):
    assert shell("stats", *wrong).exit_code == 2


# -- audit -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def acted(shell, scene):
    scene.in_doubt("o-1")
    scene.in_doubt("o-2", name="mail", tenant="acme")
    shell("resolve", "charge", "o-1", "--happened", "--why", "statement", "--who", "ann", "--yes")
    shell("resolve", "mail", "o-2", "--tenant", "acme", "--refused", "--why", "bounced", "--who", "bob", "--yes")
    return scene


def test_audit_lists_what_people_did_newest_first(shell, acted):
    rows = [line.split("\t") for line in shell("audit").stdout.splitlines()]

    assert [row[1:] for row in rows] == [
        ["bob", "resolve", "mail", "o-2", "acme", "in_doubt", "closed", "bounced"],
        ["ann", "resolve", "charge", "o-1", "", "in_doubt", "completed", "statement"],
    ]


@pytest.mark.parametrize(
    ("words", "who"),
    [
        (["--operation", "mail"], ["bob"]),
        (["--tenant", "acme"], ["bob"]),
        (["--key", "o-1"], ["ann"]),
        (["--who", "ann"], ["ann"]),
        (["--since", "1h"], ["bob", "ann"]),
        (["--since", "2099-01-01"], []),
    ],
)
def test_audit_filters(shell, acted, words, who):
    assert [one["who"] for one in lines(shell("audit", *words, "--json"))] == who


def test_audit_as_json(shell, acted):
    first = lines(shell("audit", "--json"))[0]

    assert first.pop("at").endswith("Z")
    assert first == {
        "v": 1,
        "who": "bob",
        "action": "resolve",
        "operation": "mail",
        "tenant": "acme",
        "key": "o-2",
        "before": "in_doubt",
        "after": "closed",
        "why": "bounced",
    }


def test_an_audit_log_that_goes_on_is_incomplete(shell, acted):
    result = shell("audit", "--limit", "1")

    assert result.exit_code == 4
    assert "only the last 1 entries were read" in result.stderr


def test_an_empty_audit_log_is_fine_and_a_wrong_limit_is_not(shell, scene):
    assert (shell("audit").exit_code, shell("audit").stderr) == (0, "no entries\n")
    assert shell("audit", "--limit", "0").exit_code == 2


# -- doubles ---------------------------------------------------------------------------------------------------------


def test_doubles_are_one_content_under_several_keys(shell, scene):
    """The scene's payload is the same for each key."""
    scene.completed("retry-1")
    scene.in_doubt("retry-2")
    scene.completed("o-3", tenant="acme")
    scene.completed("o-4", name="mail")
    result = shell("doubles")

    assert result.exit_code == 1
    first, *keys = result.stdout.splitlines()
    assert first == "charge: one content under 2 keys"
    assert [line.split()[1:] for line in keys] == [["in_doubt", "retry-2"], ["completed", "retry-1"]]
    assert "4 records of the last 1 d were compared" in result.stderr


def test_doubles_as_json(shell, scene):
    for number in range(25):
        scene.completed(f"o-{number}")
    (printed,) = lines(shell("doubles", "--json"))

    assert (printed["v"], printed["number"], printed["ran"], len(printed["keys"])) == (1, 25, 20, 20)
    assert printed["keys"][0].keys() == {"key", "state", "created_at"}
    assert (printed["operation"], printed["tenant"], len(printed["content"])) == ("charge", None, 32)


def test_doubles_reads_its_window_only(shell, gone, clock):
    clock.advance(-7200)
    gone.completed("o-1")
    clock.advance(7190)
    gone.completed("o-2")

    assert shell("doubles", "--window", "1h").exit_code == 0
    assert shell("doubles", "--window", "3h").exit_code == 1


def test_no_doubles_is_fine(shell, scene):
    scene.completed("o-1")
    result = shell("doubles")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "no doubles" in result.stderr


def test_doubles_that_were_not_all_compared_are_incomplete(shell, scene, monkeypatch):
    for number in range(4):
        scene.completed(f"o-{number}")
    for module in ("listing", "doubles"):
        monkeypatch.setattr(f"samekey.ops.{module}.LIST_MAX", 2)

    assert shell("doubles", "--limit", "2").exit_code == 4
    assert shell("doubles", "--limit", "10").exit_code == 1


@pytest.mark.parametrize("wrong", [["--window", "soon"], ["--limit", "0"], ["--tenant", ""]])
def test_doubles_refuses_what_it_cannot_mean(shell, scene, wrong):
    assert shell("doubles", *wrong).exit_code == 2
