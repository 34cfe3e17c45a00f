"""samekey ls, show, explain: looking, and naming what is meant."""

from __future__ import annotations

import json
import re
import shlex
import time

import pytest

from samekey import Opaque
from samekey.core.books import Count
from samekey.core.commands import Settle, Testify
from samekey.core.states import Role, State
from samekey.stores.sqlite import SqliteStore


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


# -- ls --------------------------------------------------------------------------------------------------------------


def test_ls_lists_newest_first_separated_by_tabs(shell, scene):
    scene.completed("o-1")
    scene.completed("o-2", tenant="acme")
    result = shell("ls")

    rows = [row.split("\t") for row in result.stdout.splitlines()]
    assert [row[:4] for row in rows] == [["completed", "charge", "o-2", "acme"], ["completed", "charge", "o-1", ""]]
    assert result.exit_code == 0


def test_ls_of_nothing_is_fine_and_prints_nothing(shell, scene):
    result = shell("ls")

    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "no records\n")


@pytest.mark.parametrize("waiting", ["in_doubt", "held"])
def test_ls_of_something_that_waits_has_found_something(shell, gone, waiting):
    getattr(gone, waiting)()

    assert shell("ls").exit_code == 1


def test_ls_of_a_living_hold_has_found_nothing(shell, scene):
    scene.held()
    result = shell("ls")

    assert result.stdout.startswith("started\t")
    assert result.exit_code == 0


def test_ls_filters(shell, scene):
    scene.completed("o-1")
    scene.in_doubt("o-2")
    scene.closed("o-3", tenant="acme")
    scene.completed("o-4", name="mail")

    def keys(*words):
        return sorted(one["key"] for one in lines(shell("ls", "--json", *words)))

    assert keys("--state", "in_doubt", "--state", "closed") == ["o-2", "o-3"]
    assert keys("--operation", "mail") == ["o-4"]
    assert keys("--tenant", "acme") == ["o-3"]


def test_ls_json_is_one_object_per_line_with_every_field_and_no_result(shell, scene):
    scene.completed(result="secret-result", attributes={"region": "eu"})
    (one,) = lines(shell("ls", "--json"))

    assert one["result"] == {"bytes": 17, "masked": True}
    assert one["attributes"] == {"region": "eu"}
    assert one["moves"][-1]["after"] == "completed"
    assert one["created_at"].endswith("Z")
    assert one["truth"] == "the provider"


def test_ls_goes_on_where_the_page_ended(shell, scene):
    for number in range(3):
        scene.completed(f"o-{number}")
    first = shell("ls", "--json", "--limit", "2")
    cursor = first.stderr.split()[-1]
    second = shell("ls", "--json", "--limit", "2", "--before", cursor)

    assert [one["key"] for one in lines(first) + lines(second)] == ["o-2", "o-1", "o-0"]
    assert second.stderr == ""


@pytest.mark.parametrize(
    "wrong",
    [
        ["--before", "nan/" + "00" * 16],
        ["--before", "inf/" + "00" * 16],
        ["--before", "1.5/00"],
        ["--before", "1.5/"],
        ["--tenant", ""],
        ["--operation", ""],
        ["--tenant", "a\nb"],
        ["--operation", "x" * 300],
    ],
    ids=str,
)
def test_a_filter_that_can_match_nothing_is_no_clean_answer(shell, scene, wrong):
    """`--tenant "$T"` with nothing in $T would be 0 beside any number of doubts."""
    scene.in_doubt()
    result = shell("ls", *wrong)

    assert result.exit_code == 2
    assert result.stdout == ""


@pytest.mark.parametrize("wrong", [["--before", "x"], ["--limit", "0"], ["--limit", "1001"], ["--state", "pending"]])
def test_ls_refuses_what_it_cannot_mean(shell, scene, wrong):
    assert shell("ls", *wrong).exit_code == 2


@pytest.mark.parametrize(
    "damaged", [["o-0"], ["o-4"], ["o-2"], ["o-1", "o-2", "o-4"], ["o-0", "o-1", "o-2", "o-3", "o-4"]]
)
@pytest.mark.parametrize("limit", ["2", "3", "5", "100"])
def test_a_damaged_record_does_not_hide_the_others(shell, scene, damaged, limit):
    """Page by page: what can be read is listed, what cannot is named, and the exit code is never 0."""
    for number in range(5):
        scene.completed(f"o-{number}")
    for key in damaged:
        shell.damage(key, "state = 'elsewhere'")
    keys: list[str] = []
    named: list[str] = []
    codes: list[int] = []
    cursor: list[str] = []
    while cursor or not codes:
        page = shell("ls", "--json", "--limit", limit, *cursor)
        keys += [one["key"] for one in lines(page)]
        named += re.findall("incomplete: the record of charge (o-[0-9]) is damaged", page.stderr)
        codes.append(page.exit_code)
        cursor = " ".join(re.findall(r"--before \S+", page.stderr)).split()

    assert sorted(keys + named) == [f"o-{number}" for number in range(5)]
    assert sorted(named) == damaged
    assert {4} <= set(codes) <= {0, 4}


def test_a_damaged_record_is_listed_in_its_place(shell, scene):
    """A person who reads the list sees where a record is missing, and why."""
    for number in range(3):
        scene.completed(f"o-{number}")
    shell.damage("o-1", "state = 'elsewhere'")
    newest, damaged, oldest = (line.split("\t") for line in shell("ls").stdout.splitlines())

    assert (newest[2], damaged[0], oldest[2]) == ("o-2", "unreadable", "o-0")
    assert "the record of charge o-1 is damaged" in damaged[-1]
    assert oldest[4] <= damaged[4] <= newest[4]


def test_a_store_that_is_damaged_all_over_is_listed_in_pages(shell, scene):
    for number in range(5):
        scene.completed(f"o-{number}")
        shell.damage(f"o-{number}", "story = '{'")
    page = shell("ls", "--limit", "3")

    assert page.exit_code == 4
    assert [line.split("\t")[0] for line in page.stdout.splitlines()] == ["unreadable"] * 3
    assert page.stderr.count("incomplete: ") == 3
    assert "there are more records: --before" in page.stderr


@pytest.mark.parametrize("words", [["charge", "o-1"], ["o-1"]])
def test_a_damaged_record_is_not_reported_as_absent(shell, scene, words):
    scene.completed()
    shell.damage("o-1", "story = '{'")
    result = shell("explain", *words)

    assert result.exit_code == 4
    assert "the record of charge o-1 is damaged" in result.stderr


# -- which record is meant -------------------------------------------------------------------------------------------


def test_the_operation_may_be_left_out_where_one_has_the_key(shell, scene):
    scene.completed("o-1", tenant="acme")

    assert json.loads(shell("show", "o-1", "--json").stdout)["tenant"] == "acme"


def test_where_several_have_the_key_they_are_named(shell, scene):
    scene.completed("o-1")
    scene.in_doubt("o-1", name="mail")
    result = shell("show", "o-1")

    assert result.exit_code == 2
    assert result.stdout == ""
    assert "charge o-1 [completed]" in result.stderr
    assert "mail o-1 [in_doubt]" in result.stderr
    assert shell("show", "mail", "o-1").exit_code == 0


@pytest.mark.parametrize("words", [["nope"], ["charge", "nope"], ["charge", "o-1", "--tenant", "other"]])
@pytest.mark.parametrize("command", ["show", "explain"])
def test_no_such_key(shell, scene, command, words):
    scene.completed("o-1")
    result = shell(command, *words)

    assert result.exit_code == 6
    assert result.stderr.startswith("samekey: ")


def test_a_missing_key_costs_a_short_search_at_most(shell, scene, monkeypatch):
    """Its hint is a kindness: a read in each operation of the last day, then a search of the last hour, once."""
    scene.completed("o-1")
    scene.store.add_counts([Count(int(time.time() // 60), "charge", "", "new", 1)])
    asked = []
    real = SqliteStore.list

    def listed(store, query):
        asked.append(query)
        return real(store, query)

    monkeypatch.setattr(SqliteStore, "list", listed)

    wrong = shell("explain", "chrage", "o-1")
    assert (wrong.exit_code, "there is: charge" in wrong.stderr, asked) == (6, True, [])
    assert shell("explain", "charge", "o-2").exit_code == 6
    assert len(asked) == 1
    assert asked[0].since == pytest.approx(time.time() - 3600, abs=600)


def test_a_tenant_left_out_is_pointed_at(shell, scene):
    scene.completed("o-1", tenant="acme")
    result = shell("show", "charge", "o-1")

    assert result.exit_code == 6
    assert "charge o-1 (tenant acme)" in result.stderr


@pytest.mark.parametrize("words", [[], ["a", "b", "c"], ["bad\x07key"], ["charge", ""]])
def test_what_cannot_be_a_key_is_a_usage_error(shell, scene, words):
    assert shell("show", *words).exit_code == 2


# -- show ------------------------------------------------------------------------------------------------------------


def test_show_masks_the_result_unless_it_is_revealed(shell, scene):
    scene.completed(result={"card": "4242"})

    masked, revealed = shell("show", "charge", "o-1"), shell("show", "charge", "o-1", "--reveal")
    assert "4242" not in masked.stdout
    assert "masked (--reveal shows it)" in masked.stdout
    assert '{"card": "4242"}' in revealed.stdout
    assert "4242" not in shell("show", "o-1", "--json").stdout
    assert json.loads(shell("show", "o-1", "--json", "--reveal").stdout)["result"]["value"] == {"card": "4242"}


def test_show_reveals_what_is_no_plain_json_as_it_is_stored(shell, scene):
    scene.completed("tuple", result=(1, 2))
    scene.completed("bytes", result=b"\xff")

    assert json.loads(shell("show", "tuple", "--json", "--reveal").stdout)["result"]["value"] == {"tuple": [1, 2]}
    assert json.loads(shell("show", "bytes", "--json", "--reveal").stdout)["result"]["value"] == {"hex": "ff"}


def test_show_tells_times_in_utc_and_age(shell, scene):
    scene.completed()
    shown = dict(line.split("  ", 1) for line in shell("show", "o-1").stdout.splitlines())

    created, settled = shown["created_at"].strip(), shown["settled_at"].strip()
    assert "Z  (" in created
    assert created.endswith("ago)")
    assert settled.endswith("ago)")
    assert "(in " in shown["retain_until"].strip()


def test_show_masks_results_in_the_evidence_too(shell, scene):
    record = scene.in_doubt()
    scene.store.carry_out(Testify(record.key, "a" * 32, record.token, State.COMPLETED, b'\x01J"4242"', "late"))

    assert "4242" not in shell("show", "o-1").stdout
    assert "4242" not in shell("show", "o-1", "--json").stdout
    assert "4242" in shell("show", "o-1", "--reveal").stdout


def test_a_boundary_of_a_newer_version_can_still_be_shown(shell, scene):
    scene.completed()
    with scene.store._here().turn:
        scene.store._here().writer.execute("UPDATE samekey_records SET boundary = 'quantum'")

    assert shell("show", "o-1").exit_code == 0
    assert shell("explain", "o-1").exit_code == 4


# -- explain ---------------------------------------------------------------------------------------------------------


def test_explain_tells_the_story_and_the_line_it_prints_works(shell, gone):
    gone.held(boundary=Opaque())
    result = shell("explain", "charge", "o-1", "--store", shell.store)
    line = next(one for one in result.stdout.splitlines() if "--not-done" in one)

    assert result.exit_code == 0
    assert "claimed by attempt" in result.stdout
    assert shell(*shlex.split(line)[1:], "--yes").exit_code == 0
    assert gone.peek().state is State.RELEASED


def test_explain_does_not_repeat_an_address_from_the_environment(shell, scene):
    scene.in_doubt()

    assert "--store" not in shell("explain", "o-1").stdout


def test_explain_as_json(shell, scene):
    scene.in_doubt()
    printed = json.loads(shell("explain", "o-1", "--json").stdout)

    assert printed["turn"]["whose"] == "a person"
    assert printed["truth"] == "the provider"
    assert any("samekey resolve" in line for line in printed["next"])


# -- what a terminal would obey --------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["ls"], ["show", "o-1"], ["explain", "o-1"], ["ls", "--json"]])
def test_control_characters_of_stored_text_never_reach_the_terminal(shell, scene, command):
    """Ours refuses them in names and reasons; a foreign writer or an old version may not have."""
    record = scene.in_doubt()
    evil = "\x1b]0;owned\x07\x1b[2J\r\n\x9b31m\u202e[bold]text[/bold]"
    scene.store.carry_out(
        Settle(record, Role.OPERATOR, State.CLOSED, by=f"eve{evil}", why=evil, error=evil, retain_seconds=60)
    )
    result = shell(*command)

    for char in "\x1b\x07\r\x9b\u202e":
        assert char not in result.stdout
    assert "owned" in result.stdout
    assert "[bold]text[/bold]" in result.stdout
