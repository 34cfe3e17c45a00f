"""Every link from one page to another leads somewhere, and every page can be found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages.blocks import ROOT, pages

LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def plain(page: Path) -> str:
    return re.sub(r"```.*?```|<!--.*?-->", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The headings of a page, as addresses spell them."""
    headings = re.findall(r"^#+ (.+)$", plain(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def links() -> list[tuple[Path, str, str]]:
    return [(page, to, anchor) for page in pages() for to, anchor in LINK.findall(plain(page))]


@pytest.mark.parametrize(("page", "to", "anchor"), links())
def test_a_link_leads_somewhere(page: Path, to: str, anchor: str):
    target = (page.parent / to).resolve() if to else page

    assert target.exists()
    assert not anchor or anchor in anchors(target)


def test_every_page_of_the_docs_is_reached_from_the_index():
    reached, found = set[Path](), {ROOT / "docs/index.md"}
    while found - reached:
        reached |= found
        found = {(page.parent / to).resolve() for page, to, _ in links() if to and page in reached}

    assert sorted(set((ROOT / "docs").rglob("*.md")) - reached) == []
