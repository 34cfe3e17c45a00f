"""samekey ask: the lookup of the user's own code, called now; the effect is never run."""

from __future__ import annotations

import json
from itertools import count

import pytest

from samekey import Asks, Opaque, StillUnknown
from samekey.core.commands import Ask
from samekey.core.states import State

APP = """
from samekey import {guard}, Absent, Asks, Conflicting, Declined, Happened, Opaque, StillUnknown

guard = {guard}({store!r})
bare = {guard}({store!r})

{maybe}def lookup(record):
    return {verdict}

@guard.once(key="order", name="charge", boundary=Asks(lookup))
{maybe}def charge(order: str) -> str:
    raise SystemExit("the effect must not run")

@guard.once(key="order", name="opaque", boundary=Opaque())
{maybe}def opaque(order: str) -> str:
    raise SystemExit("the effect must not run")
"""


NUMBERS = count()


@pytest.fixture
def app(shell, tmp_path, monkeypatch):
    """Writes an application whose lookup has this verdict; each module has a name of its own."""
    monkeypatch.chdir(tmp_path)

    def write(verdict, *, asynchronous=False):
        name = f"asked_{next(NUMBERS)}"
        colour = {"guard": "AsyncGuard", "maybe": "async "} if asynchronous else {"guard": "Guard", "maybe": ""}
        (tmp_path / f"{name}.py").write_text(APP.format(store=shell.store, verdict=verdict, **colour))
        return f"{name}:guard"

    return write


def unknown(record):
    return StillUnknown()


ASKS = Asks(unknown)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_the_provider_knows_is_written(shell, scene, app, asynchronous):
    scene.in_doubt(boundary=ASKS)
    result = shell("ask", "charge", "o-1", "--app", app("Happened('ch_1')", asynchronous=asynchronous))

    assert result.exit_code == 0
    assert result.stdout == "charge o-1 was in_doubt and is now completed: the provider says happened\n"
    assert scene.peek().moves[-1].who.startswith("lookup:")


def test_a_hold_past_its_lease_is_asked_about_too(shell, gone, app):
    gone.held(boundary=ASKS)
    result = shell("ask", "o-1", "--app", app("Declined(final=True, reason='stolen')"))

    assert result.exit_code == 0
    assert [move.after for move in gone.peek().moves] == ["started", "in_doubt", "closed"]


@pytest.mark.parametrize("verdict", ["Absent()", "StillUnknown('later')", "Conflicting(['a', 'b'])", "None", "1 / 0"])
def test_what_the_provider_does_not_know_stays_in_doubt(shell, scene, app, verdict):
    """Also "absent": only a caller that runs the effect may believe it."""
    scene.in_doubt(boundary=Asks(unknown, believe_absent_after=0.001))
    result = shell("ask", "o-1", "--app", app(verdict))

    assert result.exit_code == 1
    assert "whose turn: " in result.stderr
    record = scene.peek()
    assert (record.state, record.being_asked) == (State.IN_DOUBT, False)


def test_json_has_the_verdict_and_the_record(shell, scene, app):
    scene.in_doubt(boundary=ASKS)
    printed = json.loads(shell("ask", "o-1", "--app", app("Happened(1)"), "--json").stdout)

    assert (printed["v"], printed["verdict"], printed["record"]["state"]) == (1, "happened", "completed")


@pytest.mark.parametrize("state", ["completed", "closed", "released", "held"])
def test_what_is_no_doubt_is_refused(shell, scene, app, state):
    record = getattr(scene, state)(boundary=ASKS)

    assert shell("ask", "o-1", "--app", app("Happened(1)")).exit_code == 5
    assert scene.peek().version == record.version


def test_while_another_attempt_asks_nothing_is_written(shell, scene, app):
    """The clock of leases is this machine's, so the other asking is alive to the command too."""
    record = scene.in_doubt(boundary=ASKS)
    scene.store.carry_out(Ask(record, asker="b" * 32, lease_seconds=60))
    before = scene.peek()
    result = shell("ask", "o-1", "--app", app("Happened(1)"))

    assert result.exit_code == 5
    assert "another attempt is asking" in result.stderr
    assert scene.peek().version == before.version


def test_terms_of_the_claim_are_not_widened(shell, scene, app):
    """It was claimed as Opaque: its effect may not have sent what today's lookup looks for."""
    record = scene.in_doubt(boundary=Opaque())
    result = shell("ask", "o-1", "--app", app("Happened(1)"))

    assert result.exit_code == 5
    assert "no provider can be asked about it" in result.stderr
    assert scene.peek().version == record.version


def test_bad_input(shell, scene, app):
    scene.in_doubt(boundary=ASKS)
    scene.in_doubt("o-2", name="opaque")
    scene.in_doubt("o-3", name="unknown")
    guard = "Happened(1)"

    assert shell("ask", "o-1").exit_code == 2
    assert shell("ask", "o-1", "--app", "nonsense").exit_code == 2
    assert shell("ask", "o-1", "--app", app(guard), "--store", shell.store).exit_code == 2
    assert "has no lookup" in shell("ask", "o-2", "--app", app(guard)).stderr
    assert "no operation 'unknown'" in shell("ask", "o-3", "--app", app(guard)).stderr
    assert shell("ask", "nope", "--app", app(guard)).exit_code == 6
