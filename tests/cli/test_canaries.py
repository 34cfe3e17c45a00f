"""Planted secrets: no command prints a payload, an error's text or, unless it is revealed, a result."""

from __future__ import annotations

import os
from functools import partial

from samekey import Guard, Refused, current
from samekey.guard.keyring import Keyring

CANARIES = {
    "payload": "canary-payload-21f",
    "result": "canary-result-22f",
    "refusal": "canary-refusal-23f",
    "error": "canary-error-24f",
}
NOTE = "canary-note-25f"
COMMANDS = [
    ["ls"],
    ["ls", "--json"],
    ["ls", "--waiting"],
    ["ls", "--note", "party=cus_17"],
    *([command, "charge", key, *more] for command in ("show", "explain") for key in "wrd" for more in ([], ["--json"])),
    ["doctor", "--json"],
    ["stats"],
    ["audit", "--json"],
    ["doubles", "--window", "24h"],
    ["resolve", "charge", "d", "--happened", "--result", '"ch_1"', "--why", "statement", "--who", "ann", "--yes"],
    ["explain", "charge", "d"],
    ["redact", "charge", "w", "--why", "asked for", "--who", "ann", "--yes"],
    ["free", "charge", "r", "--why", "again", "--who", "ann", "--yes"],
    ["show", "charge", "none", "--debug"],
]


def plant(guard: Guard) -> None:
    """A record that ended well, one that was refused, and one in doubt: each with the same note."""

    def effect(ends):
        current().note(party="cus_17", memo=NOTE)
        match ends:
            case "w":
                return {"receipt": CANARIES["result"]}
            case "r":
                raise Refused(CANARIES["refusal"])
            case _:
                raise TimeoutError(CANARIES["error"])

    for ends in "wrd":
        payload = {"card": CANARIES["payload"], "amount": 200}
        try:
            guard.run("charge", partial(effect, ends), key=ends, payload=payload)
        except (Refused, TimeoutError):
            pass


def printed(shell, command):
    result = shell(*command)
    assert result.exit_code != 2, result.stderr  # the command is as a person writes it
    return result.stdout + result.stderr


def test_no_command_prints_a_payload_a_result_or_the_text_of_an_error(shell, scene):
    plant(scene.guard)
    revealed = printed(shell, ["show", "charge", "w", "--reveal"])
    shown = {" ".join(command): printed(shell, command) for command in COMMANDS}

    assert CANARIES["result"] in revealed
    assert NOTE in shown["show charge w"]  # notes are for people
    found = [(what, line) for what, secret in CANARIES.items() for line, text in shown.items() if secret in text]
    assert found == []


def test_without_the_keys_no_command_prints_what_is_sealed(shell, scene, monkeypatch):
    monkeypatch.delenv("SAMEKEY_KEYS_FILE", raising=False)
    plant(Guard(scene.store, keys=Keyring(("2026-01", os.urandom(32)))))
    commands = [*COMMANDS, ["show", "charge", "w", "--reveal"]]
    shown = {" ".join(command): printed(shell, command) for command in commands}

    secrets = {**CANARIES, "note": NOTE}
    found = [(what, line) for what, secret in secrets.items() for line, text in shown.items() if secret in text]
    assert found == []
