"""samekey free, redact: looked at first, signed, fenced, audited."""

from __future__ import annotations

import json

import pytest

from samekey.core.states import State
from samekey.ops import Ops
from samekey.ops.story import mark
from tests.cli.test_terminal import on_terminal

SURE = ("--why", "refunded", "--who", "ann", "--yes")


def test_free_lets_the_key_run_again(shell, scene):
    scene.completed()
    result = shell("free", "charge", "o-1", *SURE)

    assert (result.exit_code, result.stdout) == (0, "charge o-1 was completed and is free to run again\n")
    assert scene.guard.peek("charge", "o-1") is None
    (entry,) = scene.store.audit(10)
    assert (entry.action, entry.who, entry.why) == ("free", "ann", "refunded")


def test_redact_drops_the_result_and_keeps_the_record(shell, scene):
    scene.completed(result={"card": "4242"})
    result = shell("redact", "o-1", *SURE)

    assert (result.exit_code, result.stdout) == (0, "the result of charge o-1 was dropped\n")
    assert (scene.peek().state, scene.peek().result) == (State.COMPLETED, None)
    assert scene.store.audit(1)[0].action == "redact"


@pytest.mark.parametrize("command", ["free", "redact"])
def test_a_dry_run_tells_the_story_and_writes_nothing(shell, scene, command):
    record = scene.completed()
    result = shell(command, "o-1", "--dry-run", "--json")

    assert result.exit_code == 0
    assert "dry run: nothing was written" in result.stderr
    printed = json.loads(result.stdout)
    assert (printed["v"], printed["action"], printed["done"], printed["record"]["key"]) == (1, command, False, "o-1")
    assert scene.peek().version == record.version


@pytest.mark.parametrize("command", ["free", "redact"])
@pytest.mark.parametrize("state", ["in_doubt", "held"])
def test_what_is_not_settled_is_refused(shell, scene, command, state):
    record = getattr(scene, state)()

    assert shell(command, "o-1", *SURE).exit_code == 5
    assert shell(command, "o-1", "--dry-run").exit_code == 5
    assert scene.peek().version == record.version


@pytest.mark.parametrize("command", ["free", "redact"])
def test_another_record_than_the_one_that_was_seen_is_refused(shell, scene, command):
    record = scene.completed()

    assert shell(command, "o-1", *SURE, "--seen", "00000000").exit_code == 5
    assert scene.peek().version == record.version
    assert shell(command, "o-1", *SURE, "--seen", mark(record)).exit_code == 0


def test_a_change_between_look_and_write_is_refused(shell, scene, monkeypatch):
    record = scene.completed()
    free = Ops.free

    def raced(self, seen, **given):
        self.redact(seen, who="bob", why="deletion request")
        return free(self, seen, **given)

    monkeypatch.setattr(Ops, "free", raced)
    result = shell("free", "o-1", *SURE)

    assert result.exit_code == 5
    assert "moved on since you looked" in result.stderr
    assert scene.peek().version == record.version + 1


@pytest.mark.parametrize("command", ["free", "redact"])
@pytest.mark.parametrize(
    "wrong", [["o-1"], ["o-1", "--yes"], ["o-1", "--why", "w"], ["o-1", "--why", " ", "--yes"], []]
)
def test_without_a_reason_or_an_answer_nothing_is_written(shell, scene, command, wrong):
    record = scene.completed()

    assert shell(command, *wrong).exit_code == 2
    assert scene.peek().version == record.version


@pytest.mark.parametrize("command", ["free", "redact"])
def test_no_such_key(shell, scene, command):
    assert shell(command, "nope", *SURE).exit_code == 6


def test_on_a_terminal_it_asks(shell, scene):
    scene.completed()
    shown, code = on_terminal(shell, "free", "o-1", "--why", "w", typed=b"n\n")

    assert code == 4
    assert "so that it may run again?" in shown
    assert scene.peek().state is State.COMPLETED
