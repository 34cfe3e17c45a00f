"""The comparison with other libraries is of the versions it names."""

from __future__ import annotations

import re
from pathlib import Path

from samekey.prove import SCENARIOS
from tools.peers import trouble

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "tools/peers/requirements.txt"
PROGRAMME = ROOT / "docs/programme.md"


def test_the_page_is_of_the_versions_that_make_peers_installs():
    pinned = dict(re.findall(r"^([a-z-]+)==([\d.]+)$", REQUIREMENTS.read_text(), re.M))
    page = (ROOT / "docs/peers.md").read_text()
    compared = dict(re.findall(r"^### ([a-z-]+) ([\d.]+)$", page, re.M))
    compared.pop("samekey")

    assert len(compared) == 5
    assert compared == {name: version for name, version in pinned.items() if name in compared}


def test_the_page_has_every_scenario():
    page = (ROOT / "docs/peers.md").read_text()

    assert set(re.findall(r"^\| `([a-z-]+)`", page, re.M)) == set(SCENARIOS)


def test_the_programme_is_of_the_versions_that_make_programme_installs():
    pinned = dict(re.findall(r"^([a-z-]+)(?:\[\w+\])?==([\d.]+)$", REQUIREMENTS.read_text(), re.M))
    played = dict(re.findall(r"^\d+\. \*\*([a-z-]+) ([\d.]+)\*\*", PROGRAMME.read_text(), re.M))
    played.pop("samekey")

    assert len(played) == 3
    assert played == {name: version for name, version in pinned.items() if name in played}


def test_the_programme_has_every_scenario_and_samekey_breaks_none_that_it_does_not_say():
    rows = [line.split(" | ") for line in PROGRAMME.read_text().splitlines() if line.startswith("| ")]
    played = {row[0].removeprefix("| "): row[2:] for row in rows}
    ours = [cell for name in trouble.SCENARIOS for cell in played[name][:4]]

    assert len(ours) == 4 * len(trouble.SCENARIOS)
    assert [cell for cell in ours if "**" in cell and "(as it says)" not in cell] == []
