"""`samekey console` needs a credential, and the assets that the package carries are those of their releases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import samekey.console
from samekey import Guard

VENDOR = Path(samekey.console.__file__).parent / "static" / "vendor"


def test_without_a_credential_it_exits_with_2_and_a_sentence(tmp_path):
    address = f"sqlite:///{tmp_path / 'keys.db'}"
    with Guard(address) as guard:
        guard.run("charge", int, key="o-1", payload={})
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SAMEKEY_CONSOLE")}
    command = [sys.executable, "-m", "samekey", "console", "--store", address, "--port", "0"]
    done = subprocess.run(command, env=clean, capture_output=True, text=True, timeout=100)

    assert done.returncode == 2
    assert "the console needs a credential: set SAMEKEY_CONSOLE_TOKEN" in done.stderr


def test_the_vendored_files_are_those_of_the_manifest():
    manifest = json.loads((VENDOR / "MANIFEST.json").read_text(encoding="utf-8"))
    there = {one.name: sha256(one.read_bytes()).hexdigest() for one in VENDOR.iterdir() if one.name != "MANIFEST.json"}

    assert {name: one["sha256"] for name, one in manifest.items()} == there
