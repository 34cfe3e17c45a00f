"""The real npm client `@trigger.dev/sdk`, under Node, against a real `samekey intake serve` process."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from samekey.testing.servers import NoServer
from tests.intake.service import serving

ROOT = Path(__file__).parents[2]
VERSION = "4.8.3"


@pytest.fixture(scope="session")
def client() -> Path:
    """A folder with the client, installed by npm once and kept in the repository's cache folder."""
    folder = ROOT / ".cache" / "trigger-sdk"
    if not (folder / "node_modules/@trigger.dev/sdk/package.json").exists():
        if shutil.which("npm") is None or shutil.which("node") is None:
            raise NoServer("no Node here: apt-get install nodejs npm", "node")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true, "type": "module"}')
        packages = [f"@trigger.dev/sdk@{VERSION}", f"@trigger.dev/core@{VERSION}"]
        command = ["npm", "install", "--no-audit", "--no-fund", *packages]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            raise NoServer(f"npm could not install {packages[0]}: {done.stderr[-500:]}", "node")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_npm_client_works_unchanged(setup, client, tmp_path):
    arguments = ["--db", setup.db, *(["--redis", setup.redis, "--drain"] if setup.redis else [])]
    (client / "sdk.mjs").write_text((Path(__file__).parent / "sdk.mjs").read_text())
    with serving(*arguments, folder=tmp_path) as service:
        assert service.key.startswith("sk_dev_")
        done = subprocess.run(
            ["node", "sdk.mjs", service.url, service.key],
            cwd=client,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout.splitlines()[-1])

    assert seen["same"] is True
    assert seen["token"] is True
    assert seen["run"] == {
        "status": "QUEUED",
        "tags": ["a", "b"],
        "metadata": {"n": 1},
        "key": "order-1",
        "to": "ann",
        "task": "send/mail",
        "isQueued": True,
        "created": True,
    }
    assert (seen["other"]["status"], seen["missing"]["status"], seen["ttl"]["status"]) == (422, 404, 400)
    assert "another payload" in seen["other"]["message"]
    assert seen["packet"] == {"same": True, "length": 300_000}
    assert seen["batch"]["same"] is True
    assert (seen["batch"]["count"], seen["batch"]["distinct"]) == (6, 3)
    assert seen["list"] == {"count": 3, "distinct": 3}
    assert seen["byTag"] >= 1
    assert seen["metadata"] == {"n": 5, "deep": {"x": [1]}}
    assert (seen["delayed"], seen["rescheduled"], seen["canceled"]) == ("DELAYED", True, "CANCELED")
    assert seen["replayed"] is True
    assert (seen["followed"], seen["followedOutput"], seen["polled"]) == ("COMPLETED", {"done": True}, {"done": True})
    assert (seen["freed"], seen["error"], seen["reset"]) == (True, "out of luck", True)
