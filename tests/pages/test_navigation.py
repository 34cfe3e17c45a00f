"""The navigation of the docs site: every page is in it, once, and every entry is a page."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SITE = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]


def entries(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for one in nav.values() if isinstance(nav, dict) else nav:
            yield from entries(one)


def test_every_page_is_in_the_navigation_once():
    there = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    named = Counter(entries(SITE["nav"]))

    assert sorted(there - set(named)) == []
    assert sorted(set(named) - there) == []
    assert [page for page, number in named.items() if number > 1] == []


def test_the_sections_are_by_need():
    sections = [name for one in SITE["nav"] for name in one]

    assert sections == [
        "samekey",
        "Start",
        "How-tos",
        "Guarantees",
        "Operations",
        "Comparison",
        "Reference",
        "Decisions",
    ]


def test_nothing_is_fetched_from_elsewhere():
    assert SITE["theme"]["font"] is False
    assert "extra_javascript" not in SITE
    assert "extra_css" not in SITE
