"""The console in a real browser: every page in both themes and sizes, axe, no console errors, screenshots."""

from __future__ import annotations

import re

import pytest

from samekey import Guard
from samekey.console import console_app
from samekey.core.books import FindingQuery, make_finding
from samekey.core.commands import Read
from samekey.core.key import make_key
from samekey.core.states import State
from samekey.stores.sqlite import SqliteStore
from tests.console.conftest import SHOTS, Served
from tests.console.shop import ACCESS, VIEWER, XSS, charge, digest, fill

PAGES = {
    "overview": "/",
    "operations": "/operations?q=cus_doubt",
    "record-in-doubt": f"/record/{digest('doubt-0')}",
    "record-completed": f"/record/{digest('order-1')}",
    "doubts": "/doubts",
    "claims": "/claims",
    "duplicates": "/duplicates",
    "intake": "/intake",
    "messages": "/messages",
    "stores": "/stores",
    "audit": "/audit",
}
LOOKS = [("desktop", False), ("desktop", True), ("phone", False), ("phone", True)]

WIDER = "() => document.documentElement.scrollWidth > document.documentElement.clientWidth"


def check(tab, axe, name):
    """No violation of axe, nothing wider than the window, no complaint of the browser; with a screenshot."""
    page = tab.page
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)
    found = run_axe(tab, axe)
    assert [(one["id"], [node["html"][:200] for node in one["nodes"]][:3]) for one in found] == []
    assert not page.evaluate(WIDER), f"{name} is wider than its window"
    assert tab.complaints == []


def run_axe(tab, axe):
    """Evaluated through the protocol of the browser's tools, which the page's own policy does not bind."""
    tab.page.evaluate(axe)
    found = tab.page.evaluate("() => axe.run(document, {resultTypes: ['violations']})")
    violations: list[dict[str, object]] = found["violations"]
    return violations


@pytest.mark.parametrize(("size", "dark"), LOOKS, ids=[f"{size}-{'dark' if dark else 'light'}" for size, dark in LOOKS])
def test_every_page_is_accessible_and_quiet(shop, tabs, axe, size, dark):
    base, _ = shop
    tab = tabs(base, size=size, dark=dark)
    for name, path in PAGES.items():
        tab.open(path)
        check(tab, axe, f"{name}-{size}-{'dark' if dark else 'light'}")


def test_a_doubt_is_settled_by_clicking(shop, tabs, axe):
    base, store = shop
    tab = tabs(base, name="grace")
    page = tab.open("/")
    page.get_by_role("link", name="Go through the doubts").click()
    page.get_by_role("link", name="doubt-1").click()
    page.get_by_role("radio", name=re.compile("^Happened")).check()
    page.get_by_label("How you know").fill("pi_7 is on the provider's books")
    page.get_by_role("button", name="Settle as happened").click()
    page.get_by_text("Kept with your name and reason").wait_for()

    assert page.get_by_text("It happened once.").is_visible()
    assert store.carry_out(Read(make_key("order.charge", "doubt-1"))).state is State.COMPLETED
    check(tab, axe, "record-after-settling")


def test_of_two_operators_on_one_doubt_one_reads_a_sentence(shop, tabs, axe):
    base, store = shop
    ada, grace = tabs(base, name="ada"), tabs(base, name="grace")
    for tab, outcome in ((ada, "Happened"), (grace, "Never happened")):
        page = tab.open(f"/record/{digest('doubt-2')}")
        page.get_by_role("radio", name=re.compile(f"^{outcome}")).check()
        page.get_by_label("How you know").fill(f"{outcome}, as I see it")
    ada.page.get_by_role("button", name="Settle as happened").click()
    ada.page.get_by_text("Kept with your name and reason").wait_for()
    grace.page.get_by_role("button", name="Release it").click()

    grace.page.get_by_text("doubt-2 was not changed: ada (name not proven) (operator) was first.").wait_for()
    assert grace.page.get_by_text("What you gave, never happened, was not stored.").is_visible()
    assert store.carry_out(Read(make_key("order.charge", "doubt-2"))).state is State.COMPLETED
    check(grace, axe, "conflict")


def test_several_doubts_are_released_with_a_preview(shop, tabs, axe):
    base, store = shop
    tab = tabs(base)
    page = tab.open("/doubts")
    page.get_by_label("Select doubt-3").check()
    page.get_by_label("Select doubt-4").check()
    assert page.locator("#picked").text_content() == "2"
    page.get_by_role("button", name="Never happened…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("If the provider did carry out some of these").wait_for()
    check(tab, axe, "bulk-preview")
    dialog.get_by_label("How you know").fill("incident 4411")
    dialog.get_by_role("button", name="Release 2").click()

    page.get_by_text("2 of 2 were released.").wait_for()
    assert store.carry_out(Read(make_key("order.charge", "doubt-3"))).state is State.RELEASED


def test_the_provider_is_asked_by_clicking(shop, tabs):
    base, store = shop
    tab = tabs(base)
    page = tab.open(f"/record/{digest('doubt-5')}")
    page.get_by_role("button", name="Ask the provider now").click()
    page.get_by_role("status").get_by_text("The record is now completed.").wait_for()

    assert store.carry_out(Read(make_key("order.charge", "doubt-5"))).state is State.COMPLETED
    assert tab.complaints == []


def test_a_result_is_hidden_until_it_is_shown(shop, tabs):
    base, store = shop
    page = tabs(base).open(f"/record/{digest('order-1')}")
    assert "only for those allowed" not in page.content()
    page.get_by_label("Why you need it").fill("ticket 4410")
    page.get_by_role("button", name="Show the result").click()
    page.locator("#revealed").wait_for()

    assert "only for those allowed" in (page.locator("#revealed").text_content() or "")
    assert store.audit(1)[0].action == "reveal"


def test_a_viewer_sees_no_buttons(shop, tabs, axe):
    base, _ = shop
    tab = tabs(base, token=VIEWER, name="vera")
    page = tab.open(f"/record/{digest('doubt-0')}")

    assert page.get_by_role("button", name="Settle it").count() == 0
    assert page.get_by_text("You are signed in as a viewer. An operator can do this.").is_visible()
    check(tab, axe, "viewer")


def test_a_form_of_another_site_cannot_act(shop, tabs, tmp_path):
    """A page from elsewhere posts the right fields; the browser sends no cookie, and the console does nothing."""
    base, store = shop
    tab = tabs(base)
    page = tab.open(f"/record/{digest('doubt-0')}")
    proof = page.locator("input[name=proof]").first.input_value()
    seen = page.locator("input[name=seen]").first.input_value()
    fields = {"proof": proof, "seen": seen, "outcome": "not_done", "why": "harm"}
    inputs = "".join(f'<input name="{name}" value="{value}">' for name, value in fields.items())
    other = tmp_path / "other.html"
    action = f"{base}/record/{digest('doubt-0')}/resolve"
    other.write_text(f'<form method="post" action="{action}">{inputs}<button>Win</button></form>')
    page.goto(other.as_uri())
    page.get_by_role("button").click()

    page.get_by_text("Your sign-in ended; nothing was changed.").wait_for()
    assert store.carry_out(Read(make_key("order.charge", "doubt-0"))).state is State.IN_DOUBT


def test_a_page_without_the_sign_in_shows_nothing(shop, tabs, chromium):
    """The address of a page, and the page itself from the history, are worth nothing without the cookie."""
    base, _ = shop
    tab = tabs(base)
    place = tab.open(f"/record/{digest('order-1')}").url
    context = chromium.new_context()
    page = context.new_page()
    page.goto(place)
    assert "order-1" not in page.content()
    context.close()
    tab.page.get_by_role("button", name="Sign out").click()
    tab.page.get_by_text("Sign in to the console").wait_for()
    tab.page.go_back()
    assert "cus_1" not in tab.page.content()


def test_hostile_text_does_nothing(tabs, tmp_path, axe):
    address = f"sqlite:///{tmp_path / 'hostile.db'}"
    store = SqliteStore.from_url(address)
    with fill(store, doubts=0, done=0) as guard:
        for number, text in enumerate(XSS):
            plain = text if text.isprintable() else "plain"
            tenant = f"t{text}" if text.isprintable() else None
            attributes = {"client_version": plain, "source": plain, "host": plain}
            error = TimeoutError() if number % 2 else None
            charge(
                guard,
                f"{number}{text}",
                party=plain,
                tenant=tenant,
                attributes=attributes,
                error=error,
                result={"id": text},
            )
            finding = make_finding(
                "late",
                at=1.79e9 + number,
                severity="high",
                about=(text,),
                evidence={"fix": text, "rows": [text]},
                proposal=plain,
                source=plain,
                title=plain,
            )
            store.keep_finding(finding)
        with Served(console_app(address, ACCESS, name=XSS[0])) as base:
            tab = tabs(base, name=XSS[1][:60])
            (last, *_) = store.findings(FindingQuery())
            places = [
                "/",
                "/operations",
                "/doubts",
                "/duplicates",
                f"/duplicates?which=all&finding={last.id}",
                "/audit",
                "/stores",
            ]
            places += [
                f"/record/{digest(f'{n}{text}', tenant=f't{text}' if text.isprintable() else None)}"
                for n, text in enumerate(XSS)
            ]
            for place in places:
                page = tab.open(place)
                assert page.evaluate("() => window.hacked") is None, place
            assert tab.complaints == []
    store.close()


def test_live_figures_come_by_themselves(shop, tabs):
    base, store = shop
    page = tabs(base).open("/doubts")
    page.get_by_text("Live,").wait_for()
    before = int(page.locator("#n-doubts > span").first.text_content() or 0)
    with Guard(store) as guard:
        charge(guard, "a new doubt", error=TimeoutError())
    page.wait_for_function(f"() => Number(document.querySelector('#n-doubts > span').textContent) === {before + 1}")

    assert page.get_by_text("a new doubt").count() == 0  # nothing moves under the pointer
    page.locator("#new-rows").click()
    page.get_by_text("a new doubt").wait_for()


def test_keys_lead_to_pages_and_rows(shop, tabs):
    base, _ = shop
    page = tabs(base).open("/")
    page.keyboard.press("g")
    page.keyboard.press("d")
    page.wait_for_url(f"{base}/doubts")
    page.keyboard.press("j")
    page.keyboard.press("x")
    assert page.locator("#picked").text_content() == "1"
    page.keyboard.press("/")
    page.keyboard.type("order-1")
    page.keyboard.press("Enter")
    page.wait_for_url("**/operations?q=order-1")


def test_the_choice_of_colours_is_kept(shop, tabs):
    base, _ = shop
    page = tabs(base).open("/audit")
    page.get_by_role("button", name="Dark").first.click()

    assert page.locator("html").get_attribute("data-theme") == "dark"
    assert page.url == f"{base}/audit"
