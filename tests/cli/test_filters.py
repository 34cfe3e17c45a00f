"""samekey ls by what a person has at hand: a digest, a provider key, a note, a time."""

from __future__ import annotations

import json
import re

import pytest

from samekey import Opaque, Repeatable
from samekey.core.commands import Settle
from samekey.core.notes import encode
from samekey.core.search import term
from samekey.core.states import Role, State
from tests.cli.test_terminal import on_terminal


def keys(result):
    return [json.loads(line)["key"] for line in result.stdout.splitlines()]


def noted(scene, key, **notes):
    """A record that its effect wrote notes about."""
    held = scene.held(key, boundary=Opaque())
    terms = tuple(term(f"note.{name}", notes[name]) for name in ("party", "provider_ref") if name in notes)
    done = Settle(held, Role.HOLDER, State.COMPLETED, held.attempt, retain_seconds=60, notes=encode(notes), terms=terms)
    return scene.store.carry_out(done)


def test_waiting_is_doubts_and_holds_past_their_lease_oldest_first(shell, gone, clock):
    """A crash victim is no doubt yet, and nothing else will find it. Repeatable ends by itself."""
    gone.in_doubt("o-1")
    clock.advance(1)
    gone.held("o-2")
    clock.advance(1)
    gone.held("o-3", boundary=Repeatable())
    gone.completed("o-4")
    result = shell("ls", "--waiting", "--oldest-first", "--json")

    assert keys(result) == ["o-1", "o-2"]
    assert result.exit_code == 1


def test_a_dead_hold_of_repeatable_needs_no_person(shell, gone):
    gone.held(boundary=Repeatable())

    assert shell("ls").exit_code == 0


def test_by_digest_as_a_log_line_has_it(shell, scene):
    record = scene.completed("o-1")
    scene.completed("o-2")
    digest = record.key.digest.hex()

    for start in (digest[:4], digest[:7], record.key.short, digest.upper()):
        assert keys(shell("ls", start, "--json")) == ["o-1"]
        assert keys(shell("ls", "--digest", start, "--json")) == ["o-1"]


def test_by_provider_key_request_id_and_note(shell, scene):
    first = scene.completed("o-1", boundary=Opaque(), attributes={"request_id": "r-1", "region": "eu"})
    noted(scene, "o-2", party="cus_17", amount_minor=200, paid=True)

    assert keys(shell("ls", "--provider-key", first.provider_key(), "--json")) == ["o-1"]
    assert keys(shell("ls", "--request-id", "r-1", "--json")) == ["o-1"]
    assert keys(shell("ls", "--note", "party=cus_17", "--json")) == ["o-2"]
    assert keys(shell("ls", "--note", "party=cus_17", "--note", "amount_minor=200", "--json")) == ["o-2"]
    assert keys(shell("ls", "--note", "party=cus_17", "--note", "amount_minor=300", "--json")) == []
    assert keys(shell("ls", "--note", "paid=true", "--json")) == ["o-2"]
    assert keys(shell("ls", "--request-id", "r-1", "--provider-key", first.provider_key(), "--json")) == ["o-1"]


@pytest.mark.parametrize("words", [["--attribute", "region=eu"], ["--error", "TimeoutError"], ["--note", "a=1"]])
def test_without_an_index_it_names_the_span_that_was_read(shell, scene, words):
    scene.in_doubt("o-1", attributes={"region": "eu"})
    noted(scene, "o-2", a=1)
    result = shell("ls", *words, "--json")

    assert len(keys(result)) == 1
    assert result.stderr.startswith(f"no index for {words[0]}: every record is read that was created since 2")
    spanned = shell("ls", *words, "--since", "2h", "--until", "2099-01-01", "--json")
    assert keys(spanned) == keys(result)
    assert "before 2099-01-01T00:00:00Z" in spanned.stderr


@pytest.mark.parametrize("words", [["--operation", "charge"], ["--tenant", "acme"]])
def test_an_operation_or_a_tenant_alone_has_no_index_either(shell, gone, clock, words):
    """Read to its end, a search for a rare operation is one of the whole table. Nearly every record is completed."""
    clock.advance(-2 * 86400)
    gone.in_doubt("old", tenant="acme")
    clock.advance(2 * 86400)
    gone.completed("new", tenant="acme")
    result = shell("ls", *words, "--json")

    assert keys(result) == ["new"]
    assert result.stderr.startswith(f"no index for {words[0]}: every record is read that was created since 2")
    assert keys(shell("ls", *words, "--state", "completed", "--json")) == ["new"]
    assert "no index" in shell("ls", *words, "--state", "completed", "--json").stderr
    assert keys(shell("ls", *words, "--since", "3d", "--json")) == ["new", "old"]
    for few in (["--waiting"], ["--state", "in_doubt"]):
        waiting = shell("ls", *words, *few, "--json")
        assert keys(waiting) == ["old"]
        assert waiting.stderr == ""


def test_the_span_of_a_scan_ends_a_day_back(shell, gone, clock):
    clock.advance(-2 * 86400)
    gone.in_doubt("o-1")

    assert keys(shell("ls", "--error", "TimeoutError", "--json")) == []
    assert keys(shell("ls", "--error", "TimeoutError", "--since", "3d", "--json")) == ["o-1"]
    assert keys(shell("ls", "--error", "TimeoutError", "--waiting", "--json")) == ["o-1"]


def test_by_time_of_creation(shell, gone, clock):
    clock.advance(-7200)
    gone.completed("old")
    clock.advance(7190)
    gone.completed("new")

    assert keys(shell("ls", "--older-than", "1h", "--json")) == ["old"]
    assert keys(shell("ls", "--since", "1h", "--json")) == ["new"]
    assert keys(shell("ls", "--until", "30m", "--json")) == ["old"]


def test_a_secret_of_the_guard_makes_other_terms(shell, scene, tmp_path, monkeypatch):
    (tmp_path / "keyed_shop.py").write_text("from samekey import Guard\nguard = Guard('memory://', secret='s' * 32)\n")
    monkeypatch.chdir(tmp_path)
    held = scene.held("o-1", boundary=Opaque())
    terms = (term("note.party", "cus_17", b"s" * 32),)
    done = Settle(held, Role.HOLDER, State.COMPLETED, held.attempt, retain_seconds=60, terms=terms)
    scene.store.carry_out(done)

    assert keys(shell("ls", "--note", "party=cus_17", "--json")) == []
    assert keys(shell("ls", "--note", "party=cus_17", "--app", "keyed_shop:guard", "--json")) == ["o-1"]


def test_sealed_notes_are_not_reported_as_no_match(shell, scene):
    held = scene.held("o-1")
    scene.store.carry_out(
        Settle(held, Role.HOLDER, State.COMPLETED, held.attempt, retain_seconds=60, notes=b"\x02sealed")
    )
    result = shell("ls", "--note", "amount_minor=200")

    assert result.exit_code == 4
    assert "the notes of 1 records are encrypted" in result.stderr
    assert json.loads(shell("show", "o-1", "--json").stdout)["notes"] == {"sealed": True}
    assert "notes: encrypted" in shell("explain", "o-1").stdout


@pytest.mark.parametrize(
    "wrong",
    [
        ["xyz"],
        ["abc"],
        ["--digest", "12345g"],
        ["abcd", "--digest", "abcd"],
        ["--note", "party"],
        ["--note", "party="],
        ["--note", "=x"],
        ["--attribute", "region"],
        ["--error", ""],
        ["--provider-key", ""],
        ["--since", "yesterday"],
        ["--older-than", "2026-05-03"],
        ["--older-than", "-1h"],
        ["--app", "nonsense"],
    ],
    ids=str,
)
def test_a_filter_that_means_nothing_is_a_usage_error(shell, scene, wrong):
    scene.in_doubt()
    result = shell("ls", *wrong)

    assert (result.exit_code, result.stdout) == (2, "")


def test_a_scan_that_was_cut_is_incomplete(shell, scene, monkeypatch):
    for number in range(4):
        scene.completed(f"o-{number}")
    monkeypatch.setattr("samekey.ops.listing.SCAN_MAX", 2)
    monkeypatch.setattr("samekey.ops.listing.LIST_MAX", 2)
    result = shell("ls", "--note", "a=1")

    assert result.exit_code == 4
    assert "there are more records: --before" in result.stderr
    assert "incomplete: the store did not look at every record" in result.stderr


def test_a_search_goes_on_where_the_page_ended(shell, scene):
    for number in range(3):
        noted(scene, f"o-{number}", a=1)
    first = shell("ls", "--note", "a=1", "--json", "--limit", "2")
    cursor = first.stderr.split()[-1]
    second = shell("ls", "--note", "a=1", "--json", "--limit", "2", "--before", cursor)

    assert keys(first) + keys(second) == ["o-2", "o-1", "o-0"]
    assert "--before" not in second.stderr


def test_a_list_fits_eighty_columns(shell, scene):
    for number in range(3):
        scene.in_doubt(f"order-2026-05-03-{number:04}", name="charge.card", tenant="acme")
    shown, _ = on_terminal(shell, "ls", "--waiting", COLUMNS="80", NO_COLOR="1")

    lines = re.sub(r"\x1b\[[0-9;]*m", "", shown).splitlines()
    assert len(lines) == 4
    assert max(map(len, lines)) <= 80
    assert "order-2026-05-03-0000" in shown


def test_show_and_explain_have_notes_attributes_and_the_provider_key(shell, scene):
    noted(scene, "o-1", party="cus_17", amount_minor=200)
    record = scene.completed("o-2", boundary=Opaque(), attributes={"region": "eu"})

    shown = json.loads(shell("show", "o-1", "--json").stdout)
    assert (shown["v"], shown["notes"]) == (1, {"amount_minor": 200, "party": "cus_17"})
    assert "amount_minor=200, party=cus_17" in shell("show", "o-1").stdout
    assert "notes: amount_minor=200, party=cus_17" in shell("explain", "o-1").stdout
    explained = shell("explain", "o-2").stdout
    assert f"provider key: {record.provider_key()}" in explained
    assert "attributes: region=eu" in explained
