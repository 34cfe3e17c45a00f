"""Every link from one page to another leads somewhere, and every page can be found."""

from __future__ import annotations

import re
from pathlib import Path

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


def test_every_link_leads_somewhere():
    targets = {
        f"{page.relative_to(ROOT)}: {to}#{anchor}": ((page.parent / to).resolve() if to else page, anchor)
        for page, to, anchor in links()
    }
    missing = [link for link, (target, _) in targets.items() if not target.exists()]
    there = {link: (target, anchor) for link, (target, anchor) in targets.items() if link not in missing}
    dangling = [link for link, (target, anchor) in there.items() if anchor and anchor not in anchors(target)]

    assert len(targets) > 100
    assert missing + dangling == []


def test_every_page_of_the_docs_is_reached_from_the_index():
    reached, found = set[Path](), {ROOT / "docs/index.md"}
    while found - reached:
        reached |= found
        found = {(page.parent / to).resolve() for page, to, _ in links() if to and page in reached}

    assert sorted(set((ROOT / "docs").rglob("*.md")) - reached) == []
