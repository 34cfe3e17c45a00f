"""The classic mistakes: the kit finds each, names the assumption that gives way, and lets the repaired twin pass."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "mistakes"
MISTAKES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py") if path.stem != "shop")
LINES_MAX = 40  # a mistake and its repair are read at one glance


@pytest.fixture
def mistake(request, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module(request.param)


@pytest.fixture
def shop(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    with importlib.import_module("shop").Shop(tmp_path) as shop:
        yield shop


def tried(make, shop, mistake):
    return importlib.import_module("shop").tried(make, shop, mistake)


def test_there_are_at_least_twelve_and_each_is_short():
    lengths = {name: len((FOLDER / f"{name}.py").read_text().splitlines()) for name in MISTAKES}

    assert len(MISTAKES) >= 12
    assert {name: length for name, length in lengths.items() if length > LINES_MAX} == {}


@pytest.mark.parametrize("mistake", MISTAKES, indirect=True)
def test_the_planted_mistake_is_found(mistake, shop):
    """Exactly the assumptions that it breaks, and a story of how."""
    report = tried(mistake.broken, shop, mistake)

    assert set(report.broken) == mistake.BREAKS, str(report)
    assert all(finding.story and finding.problem for finding in report.findings if finding.holds is False)


@pytest.mark.parametrize("mistake", MISTAKES, indirect=True)
def test_the_repaired_twin_passes(mistake, shop):
    report = tried(mistake.repaired, shop, mistake)

    assert report.check().holds
    assert shop.provider.doubles() == {}


def test_the_stories_are_printed():
    done = subprocess.run(
        [sys.executable, str(FOLDER), "check_then_insert"], capture_output=True, text=True, timeout=60, check=True
    )

    assert "Claim     BROKEN" in done.stdout
    assert "provider moved by 2 for one operation" in done.stdout
