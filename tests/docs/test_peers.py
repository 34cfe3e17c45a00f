"""The comparison with other libraries is of the versions it names."""

from __future__ import annotations

import re
from pathlib import Path

from samekey.http.prove import SCENARIOS

ROOT = Path(__file__).parents[2]


def test_the_page_is_of_the_versions_that_make_peers_installs():
    pinned = dict(re.findall(r"^([a-z-]+)==([\d.]+)$", (ROOT / "tools/peers/requirements.txt").read_text(), re.M))
    page = (ROOT / "docs/peers.md").read_text()
    compared = dict(re.findall(r"^### ([a-z-]+) ([\d.]+)$", page, re.M))
    compared.pop("samekey")

    assert len(compared) == 5
    assert compared == {name: version for name, version in pinned.items() if name in compared}


def test_the_page_has_every_scenario():
    page = (ROOT / "docs/peers.md").read_text()

    assert set(re.findall(r"^\| `([a-z-]+)`", page, re.M)) == set(SCENARIOS)
