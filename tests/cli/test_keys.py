"""SAMEKEY_KEYS_FILE: what records keep encrypted is shown to a person who has the keys, and to no other."""

from __future__ import annotations

import base64
import json

import pytest

from samekey import current
from samekey.guard.keyring import Keyring
from tests.ops.scene import Scene


@pytest.fixture
def sealed(scene):
    def effect():
        current().note(amount_minor=200, colour="blue")
        return {"card": "4242"}

    Scene(scene.store, keys=Keyring(("2026", b"k" * 32))).run("o-1", effect)
    return scene


@pytest.fixture
def keys(tmp_path, monkeypatch):
    path = tmp_path / "keys"
    path.write_text(f"2026 {base64.b64encode(b'k' * 32).decode()}\n")
    path.chmod(0o600)
    monkeypatch.setenv("SAMEKEY_KEYS_FILE", str(path))
    return path


def test_with_the_keys_results_and_notes_are_shown_and_found(shell, sealed, keys):
    shown = json.loads(shell("show", "o-1", "--reveal", "--json").stdout)

    assert shown["result"]["value"] == {"card": "4242"}
    assert shown["notes"] == {"amount_minor": 200, "colour": "blue"}
    assert "notes: amount_minor=200, colour=blue" in shell("explain", "o-1").stdout
    assert shell("ls", "--note", "colour=blue").stdout.startswith("completed\tcharge\to-1")
    assert "4242" not in shell("show", "o-1").stdout


def test_without_the_keys_nothing_is_shown_and_the_reason_is_named(shell, sealed):
    shown = json.loads(shell("show", "o-1", "--reveal", "--json").stdout)

    assert shown["result"]["value"] is None
    assert "sealed with the key '2026'" in shown["result"]["unreadable"]
    assert "cannot be shown: it is sealed" in shell("show", "o-1", "--reveal").stdout
    assert shown["notes"] == {"sealed": True}
    assert shell("ls", "--note", "colour=blue").exit_code == 4


def test_a_file_of_keys_that_is_none_is_a_usage_error(shell, sealed, keys):
    keys.unlink()

    assert shell("ls", "--note", "colour=blue").exit_code == 2
