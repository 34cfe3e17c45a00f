"""samekey resolve: asked, confirmed, fenced, audited - or refused with the right code."""

from __future__ import annotations

import getpass
import json

import pytest

from samekey.core.states import State
from samekey.ops import Ops
from samekey.ops.story import Resolution, mark


def test_it_writes_the_word_with_name_and_reason(shell, scene):
    scene.in_doubt()
    result = shell(
        "resolve", "o-1", "--happened", "--result", '{"id": 1}', "--why", "statement", "--who", "ann", "--yes"
    )

    assert result.exit_code == 0
    assert "is now completed, says ann" in result.stdout
    assert scene.guard.run("charge", pytest.fail, key="o-1", payload={"amount": 200}).result == {"id": 1}
    (entry,) = scene.store.audit(10)
    assert (entry.who, entry.why) == ("ann", "statement")


def test_the_name_is_the_login_name_unless_given(shell, scene):
    scene.in_doubt()
    shell("resolve", "o-1", "--refused", "--why", "w", "--yes")

    assert scene.store.audit(1)[0].who == getpass.getuser()


def test_without_a_login_name_one_must_be_given(shell, scene, monkeypatch):
    def no_user():
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", no_user)

    assert shell("resolve", "o-1", "--refused", "--why", "w", "--yes").exit_code == 2


def test_happened_without_a_result_says_what_callers_will_see(shell, scene):
    scene.in_doubt()
    result = shell("resolve", "o-1", "--happened", "--why", "w", "--yes")

    assert "ResultNotKept" in result.stderr
    assert "ResultNotKept" not in result.stdout


def test_json_gives_the_record_as_it_now_stands(shell, scene):
    scene.in_doubt()

    assert json.loads(shell("resolve", "o-1", "--not-done", "--why", "w", "--yes", "--json").stdout)["state"] == (
        "released"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        ["--why", "w"],
        ["--why", "w", "--happened", "--not-done"],
        ["--happened"],
        ["--happened", "--why", ""],
        ["--happened", "--why", "w", "--who", " "],
        ["--happened", "--why", "w", "--result", "{"],
        ["--happened", "--why", "w", "--result", "NaN"],
        ["--happened", "--why", "w", "--result", '{"paid": 1, "paid": 2}'],  # which of them would callers get?
        ["--happened", "--why", "w", "--result", "[" * 100_000],
        ["--refused", "--why", "w", "--result", "1"],
    ],
)
def test_a_word_that_is_none_is_a_usage_error_and_writes_nothing(shell, scene, wrong):
    record = scene.in_doubt()

    assert shell("resolve", "o-1", "--yes", *wrong).exit_code == 2
    assert scene.peek().version == record.version


def test_a_living_holder_is_left_alone(shell, scene):
    scene.held()
    result = shell("resolve", "o-1", "--not-done", "--why", "w", "--yes")

    assert result.exit_code == 5
    assert "the holder is alive until" in result.stderr


def test_a_dead_holder_is_not(shell, gone):
    gone.held()

    assert shell("resolve", "o-1", "--not-done", "--why", "w", "--yes").exit_code == 0
    assert [move.after for move in gone.peek().moves] == ["started", "in_doubt", "released"]


@pytest.mark.parametrize("state", ["completed", "closed"])
def test_what_is_settled_is_refused(shell, scene, state):
    getattr(scene, state)()

    assert shell("resolve", "o-1", "--happened", "--why", "w", "--yes").exit_code == 5


def test_no_such_key(shell, scene):
    assert shell("resolve", "o-1", "--happened", "--why", "w", "--yes").exit_code == 6


# -- asking ------------------------------------------------------------------------------------------------------------


def test_without_a_terminal_and_without_yes_it_refuses_at_once(shell, scene):
    record = scene.in_doubt()
    result = shell("resolve", "o-1", "--happened", "--why", "w", input="y\n")

    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert scene.peek().version == record.version


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr("samekey.cli._decision.someone_to_ask", lambda: True)


def test_on_a_terminal_the_story_comes_before_the_question(shell, scene, terminal):
    scene.in_doubt()
    result = shell("resolve", "o-1", "--happened", "--why", "w", input="y\n")

    assert result.exit_code == 0
    assert result.stderr.index("put in doubt by") < result.stderr.index("Write 'happened'")
    assert scene.peek().state is State.COMPLETED


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_no_and_silence_write_nothing(shell, scene, terminal, answer):
    record = scene.in_doubt()

    assert shell("resolve", "o-1", "--happened", "--why", "w", input=answer).exit_code == 4
    assert scene.peek().version == record.version


@pytest.mark.parametrize("first", list(Resolution))
def test_of_two_operators_at_the_same_question_one_wins(shell, scene, terminal, monkeypatch, first):
    """Both were shown the doubt; the second says yes after the first has written."""
    seen = scene.in_doubt()

    def while_bob_thinks(*args, **options):
        Ops(scene.store).resolve(seen, first, who="ann", why="was faster")
        return True

    monkeypatch.setattr("click.confirm", while_bob_thinks)
    result = shell("resolve", "o-1", "--happened", "--why", "w", "--who", "bob")

    assert result.exit_code == 5
    assert "moved on since you looked" in result.stderr
    assert "ann" in result.stderr
    assert scene.peek().state is first.state
    assert [entry.who for entry in scene.store.audit(10)] == ["ann"]


def test_a_mark_from_an_earlier_look_fences_too(shell, scene):
    seen = mark(scene.in_doubt())
    Ops(scene.store).resolve(scene.peek(), Resolution.NOT_DONE, who="ann", why="was faster")
    result = shell("resolve", "o-1", "--happened", "--why", "w", "--yes", "--seen", seen)

    assert result.exit_code == 5
    assert scene.peek().state is State.RELEASED
