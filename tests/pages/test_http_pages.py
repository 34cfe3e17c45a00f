"""The HTTP pages: every application is tried with and without a key, and `Keyed` is used where a key is sent."""

from __future__ import annotations

import re

import pytest

from tests.pages.blocks import ROOT, Block, every_block

PAGES = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("http*.md"))
EXAMPLES = [page for page in PAGES if page != "docs/http-scenarios.md"]
HIDDEN = re.compile(r"<!--- invisible-code-block: python\n(.*?)-->", re.DOTALL)
# What sends a request without a key: the helper of these pages, or a call that names no key.
WITHOUT_A_KEY = ("calls(", "post(200, None)", "give({})", "None, ann, amount=1", 'client.post("/orders/tea", headers=')
SENDS_THE_KEY = ("provider_key()", "samekey.clients", "AsyncSamekeyTransport", "SamekeyTransport")


@pytest.mark.parametrize("page", EXAMPLES)
def test_every_page_sends_requests_without_a_key(page: str):
    """A handler that works only under a key answered 500 on the first page that a reader tried."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert any(call in text for call in WITHOUT_A_KEY), page


def test_every_application_of_a_page_is_called():
    """`app = ...` and the like in a page's code are given to the helper, which sends three requests to each."""
    missing = []
    for page in ("docs/http-fastapi.md", "docs/http-asgi.md", "docs/http-litestar.md", "docs/http-wsgi.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        hidden = "\n".join(HIDDEN.findall(text))
        shown = "\n".join(block.text for block in every_block() if block.page == page)
        for name in re.findall(
            r"^(\w+) = (?:Starlette|FastAPI|Litestar|Flask|SamekeyMiddleware)\(", shown, re.MULTILINE
        ):
            if f"calls({name}" not in hidden:
                missing.append(f"{page}: {name}")
    assert missing == []


def test_keyed_is_declared_only_where_the_provider_gets_a_key():
    wrong = [
        str(block) for block in every_block() if re.search(r"\bKeyed\(", block.text) and not declared_rightly(block)
    ]
    assert wrong == []


def declared_rightly(block: Block) -> bool:
    """The block, or the page it is on, shows how the key reaches the provider."""
    page = (ROOT / block.page).read_text(encoding="utf-8")
    return any(sends in page for sends in SENDS_THE_KEY)
